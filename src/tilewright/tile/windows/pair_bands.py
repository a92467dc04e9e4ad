"""Convolutions of bytes in groups, channels first, by the words of ``paired_sums``.

A row in scratch has the word of every place at which two taps of an output begin: with a stride of
2 all bytes of the row in order, two at a time, which is what widening them gives; with one of 1
each byte and the one that the next tap reads. What the zero point takes off a sum is where sums
begin, and borders are that byte.
Start with :func:`pair_bands`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Convolve
from tilewright.ir.scalar import HALF_WORD, MULTIPLY_ADD_PAIRS
from tilewright.ir.tile import Apply, Convert, Literal, Load, TileBuffer, Value
from tilewright.ir.views import Index
from tilewright.shape import Expr, constant
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.windows.bands import Geometry, Taps
from tilewright.tile.windows.paired_sums import (
    PairedSums,
    give_integers,
    integers,
    paired_sums,
    word_of,
)
from tilewright.tile.windows.window_bands import WindowBands


def pair_bands(kernel: Kernel, lowering: Lowering) -> PairBands | None:
    """One task of a kernel that sums whole numbers, two outputs at most apart; None of others."""
    sums, primitive = paired_sums(kernel), kernel.seed.primitive
    if sums is None or not isinstance(primitive, Convolve) or primitive.strides[-1] > 2:
        return None
    return PairBands(kernel, lowering, sums)


class PairBands(WindowBands):
    """Depthwise convolution of bytes: a band of words, each of which is two elements of a row."""

    def __init__(self, kernel: Kernel, lowering: Lowering, sums: PairedSums) -> None:
        self.zero, total = sums.zero, sums.weights.reshape(sums.weights.shape[0], -1)
        self.weights = integers(sums.words())
        self.starts = integers(-sums.zero * total.sum(1, dtype=np.int32))
        self.whole: dict[Index, Value] = {}
        super().__init__(kernel, lowering)
        self.geometry = replace(self.geometry, operand=sums.data)
        give_integers(kernel, lowering, self.whole.get)

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

    def _read_columns(self) -> Expr:
        return self._whole(self.columns)  # all words are made by whole vectors

    def _words(self, columns: Expr) -> Expr:
        """How many words are read for neighbouring outputs."""
        return self._whole(columns + (self.steps[-1] - 1) * self._apart)

    def _reach(self, columns: Expr) -> Expr:
        return (self._words(columns) - 1) * self.stride + (self.geometry.dilations[-1] + 1)

    def _row_width(self) -> int:
        return self._words(constant(self.most_columns)).value + self.unit

    @cached_property
    def line(self) -> TileBuffer:
        """The bytes of all rows of a band, of which words are made."""
        return self.fixed(self.height * self.pitch, DType.UINT8)

    def neutral(self) -> Value:
        return Literal(self.zero, DType.UINT8)

    # ------------------------------------------------------------ words

    def clear(self, buffer: TileBuffer, base: Expr) -> None:
        word = Literal(self.zero << HALF_WORD | self.zero, DType.INT32)
        self._every_word(lambda x: self.put(buffer, base + x, word))

    def _copy_rows(
        self, where: Sequence[Sequence[Expr]], rows: Sequence[Expr], bases: Sequence[Expr]
    ) -> None:
        starts = [row * self.pitch for row in rows]
        self.clear_ends(self.line, starts)
        self._copy(where, self.line, starts)

    def _copied(self, rows: tuple[Expr, Expr], base: Callable[[Expr], Expr]) -> None:
        """Words of all lines: what was stored just before in other pieces is waited for."""

        def words(row: Expr) -> None:
            def body(x: Expr) -> None:
                low = row * self.pitch + x * self.stride
                pair = (
                    Load(self.line, self.lowering.scope.resolve(place))
                    for place in (low, low + self.geometry.dilations[-1])
                )
                self.put(self.band, base(row) + x, word_of(*pair))

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


__all__ = ["PairBands", "pair_bands"]
