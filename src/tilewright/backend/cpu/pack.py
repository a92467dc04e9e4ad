"""Constants as kernels read them: operands of contractions arranged for the register tile.

Weights are read once, where they are, and arranged where they are used from: in memory, or in the
file of an artifact, part by part through little memory. Large ones are arranged by threads of their
own while code is generated, and once for all levels that arrange them alike. Start with
:class:`ConstantStore`.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.ir.codes import Codes
from tilewright.ir.evaluate import evaluate_node
from tilewright.ir.graph import Node, topological
from tilewright.ir.mapped import is_mapped, release
from tilewright.runtime.artifact import ALIGNMENT, aligned_memory, raw_bytes
from tilewright.runtime.artifact_writer import LARGE, ArtifactDraft
from tilewright.runtime.sections import PART
from tilewright.support.processors import usable_processors
from tilewright.tile.variants import CodePart, Packed, PackedCodes, PackedConstant

Array = np.ndarray[Any, Any]
# What the elements lie in, and arrays that hold them one after the other in row-major order.
_Pieces = tuple[Array, list[Array]]

_MOST_THREADS = 8  # a limit of what compiling takes of a large machine
_JOB = 8 * PART  # bytes that a thread arranges at a time
# Bytes of memory that constants share, the first ones and any later ones: a limit of what is taken
# and never used, as only the last stretch has an end without constants.
_FIRST_ROOM, _MOST_ROOM = PART, 64 * PART


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
    sizes = [packed.type.shape[axis].value for axis in packed.order]
    if packed.lead < 0:
        sizes = [-packed.lead, sizes[0] // -packed.lead, *sizes[1:]]
    lead, end = abs(packed.lead) if packed.lead >= 0 else 1, len(sizes) - packed.depth
    rows, depth = math.prod(sizes[lead:end]), math.prod(sizes[end:])
    panels, words = -(-rows // packed.panel), depth // packed.word
    return math.prod(sizes[:lead]), panels, words, packed.panel, packed.word


class ConstantStore:
    """The constants of one compilation, by what they are made of.

    Large ones lie in the file of ``draft``, where one is given, and all others in memory. ``with``
    waits for its threads at the end, so that none writes to a draft that was removed.
    """

    def __init__(self, draft: ArtifactDraft | None = None) -> None:
        threads = min(usable_processors(), _MOST_THREADS)
        self._pool = ThreadPoolExecutor(threads, "tilewright-pack")
        self._draft = draft
        self._buffers = threading.local()
        self._made: dict[Node | Packed, _Made] = {}
        self._room, self._free = _FIRST_ROOM, aligned_memory(0)

    def __enter__(self) -> ConstantStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def add(self, source: Node | Packed) -> int:
        """Begin to make a constant, unless that was done; the number of its bytes."""
        if source not in self._made:
            self._made[source] = self._begun(source)
        return self._made[source].size

    def arrays(self, sources: Sequence[Node | Packed]) -> tuple[Array, ...]:
        """These constants, which were added, when they are complete."""
        return tuple(self._made[source].array for source in sources)

    def _begun(self, source: Node | Packed) -> _Made:
        if isinstance(source, PackedCodes):
            dtype = np.dtype(source.part.value.numpy)
            return self._arranged(lambda: _code_panels(source), source.shape, dtype)
        if isinstance(source, PackedConstant):
            dtype = np.dtype(source.node.dtype.numpy)
            return self._arranged(lambda: _panels(source), packed_shape(source), dtype)
        array = constant_value(source)
        if array.dtype == object:  # strings, which the runtime reads from a list in JSON
            array = np.frombuffer(json.dumps(array.reshape(-1).tolist()).encode(), np.uint8)
        aligned = array.__array_interface__["data"][0] % ALIGNMENT == 0
        usable = aligned and array.flags.c_contiguous and not is_mapped(array)
        if usable and (self._draft is None or array.nbytes < LARGE):
            return _Made(array.nbytes, lambda: array)
        # What is in a file is copied, too: the file is the user's, and may be another one later.
        rows = np.atleast_1d(array)
        return self._arranged(lambda: (array, [rows]), array.shape, array.dtype)

    def _arranged(
        self, pieces: Callable[[], _Pieces], shape: Sequence[int], dtype: np.dtype[Any]
    ) -> _Made:
        """A constant of the elements of ``pieces``, put in place by threads if it is large."""
        count = math.prod(shape)
        size, step = count * dtype.itemsize, _JOB // dtype.itemsize
        begins = range(0, count, step)
        elements = _Elements(pieces, len(begins))
        if self._draft is None or size < LARGE:
            flat = self._memory(size).view(dtype)

            def fill(begin: int) -> None:
                elements.copy(begin, flat[begin : begin + step])

            def finished() -> Array:
                return flat.reshape(shape)

        else:
            written = self._draft.reserve(size)

            def fill(begin: int) -> None:
                part = self._buffer().view(dtype)[: count - begin]
                elements.copy(begin, part)
                written.write(begin * dtype.itemsize, raw_bytes(part))

            def finished() -> Array:
                return written.finished(dtype, shape)

        if size >= LARGE:
            return _Made(size, finished, [self._pool.submit(fill, begin) for begin in begins])
        for begin in begins:
            fill(begin)
        return _Made(size, finished)

    def _memory(self, size: int) -> Array:
        """Memory of a constant, behind the one before: what is allocated alone may be too short.

        Systems map long stretches by large pages, as numpy asks them to. Hardware asks ahead up to
        the end of a page, and a core knows where few pages are: weights are read twice as fast.
        Each stretch is longer than the one before, so that few constants take little memory.
        """
        whole = -(-size // ALIGNMENT) * ALIGNMENT
        if self._free.size < whole:
            self._free = aligned_memory(max(whole, min(2 * whole, _MOST_ROOM), self._room))
            self._room = min(2 * self._free.size, _MOST_ROOM)
        memory, self._free = self._free[:size], self._free[whole:]
        return memory

    def _buffer(self) -> Array:
        """Memory of this thread for one part, which is touched for the first time only once."""
        if not hasattr(self._buffers, "memory"):
            self._buffers.memory = aligned_memory(_JOB)
        return self._buffers.memory


class _Made:
    """A constant of ``size`` bytes that is complete when its jobs are done."""

    def __init__(
        self, size: int, finished: Callable[[], Array], jobs: Sequence[Future[None]] = ()
    ) -> None:
        self.size = size
        self._finished = finished
        self._jobs = jobs

    @cached_property
    def array(self) -> Array:
        for job in self._jobs:
            job.result()
        return self._finished()


class _Elements:
    """What a constant consists of, made when first needed and given back after ``uses`` copies."""

    def __init__(self, pieces: Callable[[], _Pieces], uses: int) -> None:
        self._make = pieces
        self._made: _Pieces | None = None
        self._uses = uses
        self._lock = threading.Lock()

    def copy(self, begin: int, out: Array) -> None:
        """Fill ``out`` with the elements from number ``begin`` on."""
        with self._lock:
            self._made = self._made or self._make()
            origin, pieces = self._made
        for piece in pieces:
            if begin < piece.size and out.size:
                part = out[: piece.size - begin]
                _copy(piece, begin, part)
                begin, out = begin + part.size, out[part.size :]
            begin -= piece.size
        with self._lock:
            self._uses -= 1
            if not self._uses:
                release(origin)
                self._made = None


def _copy(array: Array, begin: int, out: Array) -> None:
    """Fill ``out`` with the elements of ``array`` from number ``begin`` on, in row-major order."""
    if array.ndim == 1:
        np.copyto(out, array[begin : begin + out.size])
        return
    row = math.prod(array.shape[1:])
    first, skipped = divmod(begin, row)
    if skipped:
        part = out[: row - skipped]
        _copy(array[first], skipped, part)
        first, out = first + 1, out[part.size :]
    rows = out.size // row
    whole = out[: rows * row].reshape(rows, *array.shape[1:])
    np.copyto(whole, array[first : first + rows])
    if out.size > whole.size:
        _copy(array[first + rows], 0, out[whole.size :])


def _panels(packed: PackedConstant) -> _Pieces:
    """The elements of a packed constant, the last panel of a batch filled with zeros."""
    batch, count, words, width, word = packed_shape(packed)
    origin = constant_value(packed.node)
    array = origin if packed.transform is None else packed.transform.applied(origin)
    rows = array.transpose(packed.order).reshape(batch, -1, words, word)
    whole = rows.shape[1] // width
    full = rows[:, : whole * width].reshape(batch, whole, width, words, word)
    full = full.transpose(0, 1, 3, 2, 4)
    if whole == count:
        return origin, [full]
    last = np.zeros((batch, words, width, word), array.dtype)
    last[:, :, : rows.shape[1] - whole * width] = rows[:, whole * width :].transpose(0, 2, 1, 3)
    return origin, [piece for pair in zip(full, last, strict=True) for piece in pair]


def _code_panels(packed: PackedCodes) -> _Pieces:
    """A part of a constant of codes in panels, filled up with zeros."""
    codes, (panels, along, width) = packed.codes, packed.shape
    match packed.part:
        case CodePart.WORDS:
            origin, array = codes.integers, _words(codes)
        case CodePart.SCALES:
            origin = array = codes.scales
        case CodePart.ZEROS:
            assert not isinstance(codes.zeros, int)
            origin = array = codes.zeros
    missing = panels * width - len(array)
    filled = np.pad(array, [(0, missing), (0, 0)])
    return origin, [filled.reshape(panels, width, along).transpose(0, 2, 1)]


def _words(codes: Codes) -> Array:
    """Whole numbers [rows, depth] as words [rows, words] of them, the first in the lowest bits."""
    rows, depth = codes.shape
    count, bits = codes.per_word, codes.bits
    made = np.zeros((rows, -(-depth // count)), np.uint32)
    for place in range(count):
        part = codes.integers[:, place::count]
        made[:, : part.shape[1]] |= part.astype(np.uint32) << np.uint32(place * bits)
    return made.view(np.int32)
