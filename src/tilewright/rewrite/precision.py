"""Products by known weights over narrower operands, where a user has asked for it.

With bfloat16 both operands are rounded, and products are summed in float32. With int8 every row of
the data gets a scale at run time and every column of the weights one when compiling, so that the
largest number in each becomes 127; rounded products are summed exactly in int32 and scaled back.
Data is shifted by 128 then to be without sign, as processors multiply such by signed weights; what
that adds is known for every column. Start with :func:`narrow_products`.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, mapped, node, same
from tilewright.ir.primitives import Cast, Constant, Contract, Map, Reduce
from tilewright.rewrite.build import Array, broadcast, contents, filled, static_shape
from tilewright.shape import product

LEAST_COLUMNS = 16  # of the weights: for fewer, narrowing the data takes as long as it saves
MOST_SUMMED = 1 << 16  # products of two bytes that an int32 can hold
LEVELS = 127  # numbers on each side of 0
OFFSET = 128  # of data without sign
LEAST_SPAN = 1e-30  # of a row: below, all of it becomes 0


class Precision(Enum):
    """In what the operands of products by known weights are held."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"


def narrow_products(graph: Graph, precision: Precision) -> Graph:
    """The graph with the products that can be narrowed in ``precision``.

    Those are float32 Contracts without batch axes whose right operand is a constant of known, even
    (for int8: fourfold) depth. Left operands have the summed axes last, see ``plan.prepare``.
    """
    if precision is Precision.FLOAT32:
        return graph
    make = _rounded if precision is Precision.BFLOAT16 else _quantised
    word = 2 if precision is Precision.BFLOAT16 else 4

    def change(current: Node, operands: tuple[Node, ...]) -> Node:
        found = same(current, operands)
        return make(found) if _may_be_narrow(found, word) else found

    return mapped(graph, change)


def _may_be_narrow(x: Node, word: int) -> bool:
    primitive = x.primitive
    if not isinstance(primitive, Contract) or x.dtype is not DType.FLOAT32:
        return False
    left, right = x.inputs
    array = contents(right)
    if array is None or primitive.batch or primitive.sums is not None:
        return False
    summed = product([right.shape[j] for _, j in primitive.summed]).value
    ends = [i for i, _ in primitive.summed] == list(range(left.rank))[-len(primitive.summed) :]
    if not summed or summed % word or not ends or not np.isfinite(array).all():
        return False
    return array.size // summed >= LEAST_COLUMNS and (word == 2 or summed <= MOST_SUMMED)


def _rounded(x: Node) -> Node:
    """Both operands in bfloat16."""
    left, right = x.inputs
    array = contents(right)
    assert array is not None and isinstance(x.primitive, Contract)
    weights = node(Constant.of(array.astype(DType.BFLOAT16.numpy)))
    primitive = replace(x.primitive, sums=DType.FLOAT32)
    return node(primitive, node(Cast(DType.BFLOAT16), left), weights)


def _quantised(x: Node) -> Node:
    """Data in uint8, weights in int8, the sums scaled back."""
    left, right = x.inputs
    primitive, array, shape = x.primitive, contents(right), static_shape(right)
    assert isinstance(primitive, Contract) and array is not None and shape is not None
    summed_left = tuple(i for i, _ in primitive.summed)
    summed_right = tuple(j for _, j in primitive.summed)
    weights, column_scale = _quantised_weights(array, summed_right)
    data, row_scale = _quantised_rows(left, summed_left)
    sums = node(replace(primitive, sums=DType.INT32), data, node(Constant.of(weights)))
    rows = left.rank - len(summed_left)
    columns = tuple(range(rows, x.rank))
    shift = OFFSET * weights.astype(np.int32).sum(summed_right, dtype=np.int32)
    shifted = broadcast(node(Constant.of(shift)), x.shape, columns)
    exact = node(Cast(DType.FLOAT32), node(Map("subtract"), sums, shifted))
    by_row = broadcast(row_scale, x.shape, tuple(range(rows)))
    by_column = broadcast(node(Constant.of(column_scale)), x.shape, columns)
    return node(Map("multiply"), node(Map("multiply"), exact, by_row), by_column)


def _quantised_weights(array: Array, summed: tuple[int, ...]) -> tuple[Array, Array]:
    """Weights as int8, and the scale of every column."""
    span = np.maximum(np.abs(array).max(summed, keepdims=True), LEAST_SPAN)
    scale = (span / LEVELS).astype(np.float32)
    whole = np.clip(np.rint(array / scale), -LEVELS, LEVELS).astype(np.int8)
    return whole, scale.squeeze(summed)


def _quantised_rows(x: Node, summed: tuple[int, ...]) -> tuple[Node, Node]:
    """``x`` as uint8 around ``OFFSET``, and the scale of every row."""
    rows = tuple(range(x.rank - len(summed)))
    largest = node(Reduce("maximum", summed), node(Map("absolute"), x))
    span = node(Map("maximum"), largest, filled(LEAST_SPAN, largest))
    inverse = node(Map("divide"), filled(LEVELS, span), span)
    steps = node(Map("multiply"), x, broadcast(inverse, x.shape, rows))
    whole = node(Map("add"), node(Map("round_even"), steps), filled(OFFSET, x))
    scale = node(Map("multiply"), span, filled(1 / LEVELS, span))
    return node(Cast(DType.UINT8), whole), scale


__all__ = ["Precision", "narrow_products"]
