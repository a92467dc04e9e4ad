"""Constants as kernels read them: operands of contractions arranged for the register tile.

Weights are read once, where they are, into the memory they are used from. Large ones are arranged
by threads of their own while code is generated, and once for all levels that arrange them alike.
Start with :class:`ConstantStore`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from tilewright.ir.evaluate import evaluate_node
from tilewright.ir.graph import Node, topological
from tilewright.ir.mapped import is_mapped, release
from tilewright.runtime.artifact import ALIGNMENT, aligned_memory
from tilewright.support.processors import usable_processors
from tilewright.tile.variants import PackedConstant

Array = np.ndarray[Any, Any]

_MOST_THREADS = 8
_LARGE = 1 << 20  # bytes from which on a thread of its own is worthwhile
_JOB = 32 << 20  # bytes that a thread arranges at a time


def constant_value(node: Node) -> Array:
    """The contents of a node that depends on constants alone."""
    values: dict[Node, Any] = {}
    for current in topological([node]):
        values[current] = evaluate_node(current, [values[i] for i in current.inputs], {}, {}, None)
    return np.asarray(values[node])


def packed_shape(packed: PackedConstant) -> tuple[int, int, int, int, int]:
    """Panels: [batch, rows / panel, depth / word, panel, word].

    The last one is filled with zeros. A negative ``lead`` of -g says that the first axis holds g
    groups of rows (convolution weights).
    """
    sizes = [packed.node.shape[axis].value for axis in packed.order]
    if packed.lead < 0:
        sizes = [-packed.lead, sizes[0] // -packed.lead, *sizes[1:]]
    lead, end = abs(packed.lead) if packed.lead >= 0 else 1, len(sizes) - packed.depth
    rows, depth = math.prod(sizes[lead:end]), math.prod(sizes[end:])
    panels, words = -(-rows // packed.panel), depth // packed.word
    return math.prod(sizes[:lead]), panels, words, packed.panel, packed.word


class ConstantStore:
    """The constants of one compilation, by what they are made of."""

    def __init__(self) -> None:
        threads = min(usable_processors(), _MOST_THREADS)
        self._pool = ThreadPoolExecutor(threads, "tilewright-pack")
        self._made: dict[Node | PackedConstant, Array] = {}
        self._waiting: dict[Node | PackedConstant, list[Future[None]]] = {}

    def add(self, source: Node | PackedConstant) -> int:
        """Begin to make a constant, unless that was done; the number of its bytes."""
        if source not in self._made:
            self._made[source] = self._begun(source)
        return self._made[source].nbytes

    def arrays(self, sources: Sequence[Node | PackedConstant]) -> tuple[Array, ...]:
        """These constants, which were added, when they are complete."""
        for source in sources:
            for job in self._waiting.pop(source, ()):
                job.result()
        return tuple(self._made[source] for source in sources)

    def _begun(self, source: Node | PackedConstant) -> Array:
        if isinstance(source, PackedConstant):
            made = _memory(packed_shape(source), source.node)
            if made.nbytes < _LARGE:
                _pack(source, made, slice(0, None))
            else:
                self._waiting[source] = [
                    self._pool.submit(_pack, source, made, panels) for panels in _parts(made)
                ]
            return made
        array = constant_value(source)
        if array.dtype == object:  # strings, which the runtime reads from a list in JSON
            return np.frombuffer(json.dumps(array.reshape(-1).tolist()).encode(), np.uint8)
        aligned = array.__array_interface__["data"][0] % ALIGNMENT == 0
        if aligned and array.flags.c_contiguous and not is_mapped(array):
            return array
        # What is in a file is copied, too: the file is the user's, and may be another one later.
        made = _memory(array.shape, source)
        if made.nbytes < _LARGE:
            _copy(made, array)
        else:
            self._waiting[source] = [self._pool.submit(_copy, made, array)]
        return made


def _memory(shape: Sequence[int], node: Node) -> Array:
    dtype = np.dtype(node.dtype.numpy)
    return aligned_memory(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)


def _copy(made: Array, array: Array) -> None:
    np.copyto(made, array)
    release(array)


def _parts(made: Array) -> list[slice]:
    """Panels that are arranged together."""
    step = max(1, _JOB * made.shape[1] // max(1, made.nbytes))
    return [slice(at, at + step) for at in range(0, made.shape[1], step)]


def _pack(packed: PackedConstant, made: Array, panels: slice) -> None:
    """Fill some of the panels."""
    batch, _, words, width, word = made.shape
    if not made.size:
        return
    array = constant_value(packed.node).transpose(packed.order)
    rows = array.reshape(batch, -1, words, word)[:, panels.start * width :]
    target = made[:, panels]
    whole = min(target.shape[1], rows.shape[1] // width)
    source = rows[:, : whole * width].reshape(batch, whole, width, words, word)
    np.copyto(target[:, :whole], source.transpose(0, 1, 3, 2, 4))
    if whole < target.shape[1]:
        left = rows[:, whole * width :]
        target[:, whole, :, : left.shape[1]] = left.transpose(0, 2, 1, 3)
        target[:, whole, :, left.shape[1] :] = 0
    release(array)
