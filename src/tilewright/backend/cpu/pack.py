"""Constant operands of contractions, arranged for the register tile when compiling."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.ir.evaluate import evaluate_node
from tilewright.ir.graph import Node, topological
from tilewright.tile.variants import PackedConstant

Array = np.ndarray[Any, Any]


def constant_value(node: Node) -> Array:
    """The contents of a node that depends on constants alone."""
    values: dict[Node, Any] = {}
    for current in topological([node]):
        values[current] = evaluate_node(current, [values[i] for i in current.inputs], {}, {}, None)
    return np.asarray(values[node])


def pack_constant(packed: PackedConstant) -> Array:
    """Panels: [batch, rows / panel, depth / word, panel, word], the last one filled with zeros.

    A negative ``lead`` of -g says that the first axis holds g groups of rows (convolution weights).
    """
    array = constant_value(packed.node).transpose(packed.order)
    if packed.lead < 0:
        groups = -packed.lead
        array = array.reshape(groups, array.shape[0] // groups, *array.shape[1:])
        lead = 1
    else:
        lead = packed.lead
    batch = int(np.prod(array.shape[:lead]))
    depth = int(np.prod(array.shape[array.ndim - packed.depth :]))
    rows = int(np.prod(array.shape[lead : array.ndim - packed.depth]))
    flat = array.reshape(batch, rows, depth)
    panels = -(-rows // packed.panel)
    padded = np.zeros((batch, panels * packed.panel, depth), dtype=array.dtype)
    padded[:, :rows] = flat
    words = padded.reshape(batch, panels, packed.panel, depth // packed.word, packed.word)
    return np.ascontiguousarray(words.transpose(0, 1, 3, 2, 4))
