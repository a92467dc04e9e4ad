"""Convolutions of bytes in groups, channels first: words of two bytes by words of two weights.

Sums of whole numbers are the same in integers, and an instruction multiplies two neighbouring
bytes, widened to 16 bits, by two weights and adds both. A row in scratch has the word of every
place at which two taps of an output begin: with a stride of 2 all bytes of the row in order, two at
a time, which is what widening them gives; with one of 1 each byte and the one that the next tap
reads. What the zero point takes off a sum is where sums begin, and borders are that byte.
Start with :func:`paired_sums`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Cast, Constant, Convolve
from tilewright.ir.scalar import MULTIPLY_ADD_PAIRS
from tilewright.ir.tile import Apply, Convert, Literal, Load, TileBuffer, Value
from tilewright.ir.views import Index
from tilewright.rewrite.quantised import known, quantised, without_sign
from tilewright.shape import Expr, constant
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.windows.bands import Geometry, Taps
from tilewright.tile.windows.window_bands import WindowBands

EXACT = 1 << 24  # below, float32 has all whole numbers
LARGEST = 255  # byte
HALF = 16  # bits


@dataclass(frozen=True)
class PairedSums:
    """Bytes without a sign, the byte that means 0, and whole weights [channel, kernel…]."""

    data: Node
    zero: int
    weights: np.ndarray[tuple[int, ...], np.dtype[np.int32]]

    def words(self) -> Node:
        """The weights of two taps that follow each other along rows in a word: [channel, …]."""
        taps = self.weights
        filled = np.pad(taps, [(0, 0)] * (taps.ndim - 1) + [(0, taps.shape[-1] % 2)])
        low, high = filled[..., 0::2], filled[..., 1::2]
        words = (low & 0xFFFF) | np.left_shift(high, HALF)
        return node(Constant.of(np.ascontiguousarray(words, np.int32), DType.INT32))

    def starts(self) -> Node:
        """What sums of bytes begin with: [channel]."""
        total = self.weights.reshape(self.weights.shape[0], -1).sum(1, dtype=np.int32)
        return node(Constant.of(-self.zero * total, DType.INT32))


def paired_sums(kernel: Kernel) -> PairedSums | None:
    """The operands of a convolution that sums whole numbers, where that is exact in float32.

    None of other kernels, of strides that divide no pair of taps, and of single taps along rows.
    """
    seed, primitive = kernel.seed, kernel.seed.primitive
    if not isinstance(primitive, Convolve) or primitive.channels_last:
        return None
    if seed.dtype is not DType.FLOAT32 or primitive.strides[-1] > 2:
        return None
    data, weights = seed.inputs[0], known(seed.inputs[1])
    if isinstance(data.primitive, Cast) and data.inputs[0].dtype is DType.INT32:
        data = data.inputs[0]
    found = quantised(data)
    if found is None or found.scale is not None or weights is None or weights.shape[-1] < 2:
        return None
    sizes = np.abs(weights.astype(np.float64)).sum(tuple(range(1, weights.ndim)))
    if (weights != np.rint(weights)).any() or LARGEST * sizes.max(initial=0.0) >= EXACT:
        return None
    found = without_sign(found)
    zero = np.zeros(1) if found.zero is None else known(found.zero.value)
    if zero is None or zero.size != 1 or not 0 <= zero.item() <= LARGEST:
        return None
    return PairedSums(found.data, int(zero.item()), weights[:, 0].astype(np.int32))


class PairBands(WindowBands):
    """Depthwise convolution of bytes: a band of words, each of which is two elements of a row."""

    def __init__(self, kernel: Kernel, lowering: Lowering, sums: PairedSums) -> None:
        self.weights, self.starts, self.zero = sums.words(), sums.starts(), sums.zero
        self.whole: dict[Index, Value] = {}
        super().__init__(kernel, lowering)
        self.geometry = replace(self.geometry, operand=sums.data)
        for inner in kernel.body:
            # Sums that readers want in integers never were floats.
            is_whole = isinstance(inner.primitive, Cast) and inner.dtype is DType.INT32
            if is_whole and inner.inputs[0] is kernel.seed:
                lowering.cached[inner] = self.whole.get

    # ------------------------------------------------------------ what a band is

    def _summed(self) -> DType:
        return DType.INT32

    def _steps(self, geometry: Geometry) -> tuple[int, ...]:
        return (*geometry.kernel[:-1], -(-geometry.kernel[-1] // 2))

    def _parts(self) -> int:
        return 1

    @property
    def _apart(self) -> int:
        """How far the words of two pairs of taps lie apart."""
        return 2 * self.geometry.dilations[-1] // self.stride

    def _words(self, columns: Expr) -> Expr:
        """How many words are read for neighbouring outputs."""
        return self._whole(columns + (self.steps[-1] - 1) * self._apart)

    def _read(self, columns: Expr) -> Expr:
        return (self._words(columns) - 1) * self.stride + (self.geometry.dilations[-1] + 1)

    def _row_width(self) -> int:
        return self._words(constant(self.most_columns)).value + self.unit

    @cached_property
    def line(self) -> TileBuffer:
        return self.fixed(self.height * self.pitch, DType.UINT8)

    def neutral(self) -> Value:
        return Literal(self.zero, DType.UINT8)

    # ------------------------------------------------------------ words

    def clear(self, buffer: TileBuffer, base: Expr) -> None:
        word = Literal(self.zero << HALF | self.zero, DType.INT32)
        self._every_word(lambda x: self.put(buffer, base + x, word))

    def _copy_row(self, where: Sequence[Expr], row: Expr, base: Expr) -> None:
        start = row * self.pitch
        self.clear_ends(self.line, start)
        self.exactly(self.begin, self.end, self.pitch,
                      lambda x: self.put(self.line, start + x, self.operand(where, x)))  # fmt: skip

    def _copied(self, rows: tuple[Expr, Expr], base: Callable[[Expr], Expr]) -> None:
        """Words of all lines: what was stored just before in other pieces is waited for."""

        def words(row: Expr) -> None:
            def body(x: Expr) -> None:
                low = row * self.pitch + x * self.stride
                halves = [
                    Convert(Load(self.line, self.lowering.scope.resolve(place)), DType.INT32)
                    for place in (low, low + self.geometry.dilations[-1])
                ]
                upper = Apply("shift_left", (halves[1], Literal(HALF, DType.INT32)), DType.INT32)
                word = Apply("bitwise_or", (halves[0], upper), DType.INT32)
                self.put(self.band, base(row) + x, word)

            self._every_word(body)

        self.loop(*rows, self.height, words)

    def _every_word(self, body: Callable[[Expr], None]) -> None:
        self.vectors(self._words(self._whole(self.columns)), self.width, body)

    # ------------------------------------------------------------ sums

    def along(self, x: Expr, tap: Expr) -> Expr:
        return x + tap * self._apart

    def _weight(self, taps: Taps) -> Value:
        return self.lowering.value(self.weights, (self.index[1], *taps))

    def start(self) -> Value:
        return self.lowering.value(self.starts, (self.index[1],))

    def _step(self, pair: tuple[Value, Value], before: Value | None) -> Value:
        return Apply(MULTIPLY_ADD_PAIRS, (*pair, before or self.start()), DType.INT32)

    def note(self, place: Index, value: Value) -> None:
        self.whole[place] = value
        super().note(place, Convert(value, self.seed.dtype))


__all__ = ["PairBands", "PairedSums", "paired_sums"]
