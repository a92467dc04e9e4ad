"""Depthwise convolutions of bytes in register tiles, whose vectors are words of two pixels.

Bytes are copied as they are, with the byte that means 0 around them, and become words when all rows
have been: what was stored just before in other pieces is waited for. With an even stride words are
all pixels of a row, two at a time, else every pixel and the one that the next tap reads. Sums of
bytes begin with what the zero point takes off the lines of taps that lie inside. Start with
:class:`PairTiles`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Convolve
from tilewright.ir.scalar import MULTIPLY_ADD_PAIRS
from tilewright.ir.tile import Apply, Convert, Literal, TransposeBlock, Value
from tilewright.ir.views import Index, linear
from tilewright.rewrite.quantised import OFFSET
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    equal,
    less,
    maximum,
    minimum,
    product,
    select,
)
from tilewright.target import Target
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.windows.channel_tiles import ChannelTiles
from tilewright.tile.windows.group_geometry import COLUMNS, OUTPUTS, group_vectors
from tilewright.tile.windows.paired_sums import PairedSums, give_integers, integers, word_of


class PairTiles(ChannelTiles):
    """One task: a block of rows and columns of outputs for the channels of one vector."""

    adding = MULTIPLY_ADD_PAIRS

    def __init__(
        self, kernel: Kernel, lowering: Lowering, target: Target, sums: PairedSums
    ) -> None:
        primitive = kernel.seed.primitive
        assert isinstance(primitive, Convolve)
        # Bytes that are turned as they lie keep their sign: words hold either kind.
        is_signed = not primitive.channels_last and sums.stored.dtype is DType.INT8
        self.kind = DType.INT8 if is_signed else DType.UINT8
        self.paired = replace(sums, zero=sums.zero - OFFSET) if is_signed else sums
        super().__init__(kernel, lowering, target)
        self.geometry = replace(self.geometry, operand=sums.data)
        self.width = self._read(constant(COLUMNS)).value
        self.lines = self._scratch(self.height * self.width, self.kind)
        self.inner = self.end - self.begin
        self.starts = self._starts()
        self.whole: dict[Index, Value] = {}
        give_integers(kernel, lowering, self.whole.get)

    def _starts(self) -> Node:
        """What the zero point adds to the sums of all lines before each one, as weights lie."""
        taps, primitive = self.paired.weights, self.seed.primitive
        assert isinstance(primitive, Convolve)
        lines = taps.sum(-1, dtype=np.int32).reshape(taps.shape[0], 1, -1)
        before = np.cumsum(np.pad(lines, ((0, 0), (0, 0), (1, 0))), -1, np.int32)
        return group_vectors(integers(self.paired.zero * before), primitive.groups, self.lanes)

    # ------------------------------------------------------------ what a row is

    def _summed(self) -> DType:
        return DType.INT32

    def _weights(self) -> Node:
        return integers(self.paired.words()[:, None])

    @property
    def _pixels(self) -> int:
        """How many pixels the words of a row lie apart."""
        return 2 if self.geometry.strides[-1] % 2 == 0 else 1

    def _along_row(self) -> tuple[int, int, int]:
        stride, dilation = self.geometry.strides[-1], self.geometry.dilations[-1]
        return self.paired.steps, stride // self._pixels, 2 * dilation // self._pixels

    def _read(self, outputs: Expr) -> Expr:
        last = (self._vectors(outputs) - 1) * self._pixels
        return last + (self.geometry.dilations[-1] + 1)

    def neutral(self) -> Value:
        return Literal(self.paired.zero, self.kind)

    # ------------------------------------------------------------ copies

    def _copies(self, inside: Expr) -> None:
        """The pixels inside, row after row: those that follow each other in memory in one piece."""
        partly = less(self.count, self.lanes)
        self.clear(self.lines, constant(0), select(partly, inside * self.inner, 0),
                   self.height * self.width, constant(0))  # fmt: skip
        if self.channels_last:
            self.loop(0, inside, self.height, self._copied)
            return
        is_whole = equal(self.inner, self.geometry.operand.shape[-1])
        self.loop(0, select(is_whole, minimum(inside, 1), inside), self.height,
                  lambda row: self._turned_rows(row, select(is_whole, inside, 1)))  # fmt: skip

    def _turned_rows(self, row: Expr, rows: Expr) -> None:
        operand = self.paired.stored
        place = (self.batch, self.group, *self._place_of(row), self.origin + self.begin)
        self.lowering.emit(
            TransposeBlock(
                self.lowering.buffer(operand),
                self.lowering.scope.resolve(linear(place, operand.shape)),
                product(operand.shape[2:]), self.lines, row * self.inner * self.lanes,
                constant(self.lanes), self.count, rows * self.inner,
            )
        )  # fmt: skip

    def _copied(self, row: Expr) -> None:
        base, rows = row * self.inner - self.begin, self._place_of(row)
        self.loop(self.begin, self.end, self.width, lambda x: self._bytes(x, base + x, rows))

    def _bytes(self, x: Expr, vector: Expr, rows: list[Expr]) -> None:
        """A pixel of data that has its channels last."""

        def copy(lane: Expr) -> None:
            index = (self.batch, *rows, self.origin + x, self.group + lane)
            value = self.lowering.value(self.geometry.operand, index)
            self.put(self.lines, vector, lane, value)

        self.channels(self.count, 1, copy)

    def _prepare(self, inside: Expr) -> None:
        """Words of all rows: of two pixels inside, of one beside the border, and beyond it."""
        words = self._vectors(ceil_div(self.columns, OUTPUTS) * OUTPUTS)
        far, resolve = self.geometry.dilations[-1], self.lowering.scope.resolve

        def first(pixel: Expr) -> Expr:
            """The first word that begins at such a pixel or behind it."""
            return resolve(minimum(words, maximum(0, ceil_div(pixel, self._pixels))))

        low, no_low = first(self.begin), first(self.end)
        high, no_high = first(self.begin - far), first(self.end - far)

        def line(row: Expr) -> None:
            def pixel(x: Expr, lane: Expr) -> Value:
                return self.at(self.lines, row * self.inner - self.begin + x, lane)

            def made(begin: Expr, end: Expr, is_low: bool, is_high: bool) -> None:
                def word(x: Expr, lane: Expr) -> None:
                    place = x * self._pixels
                    halves = (
                        pixel(at, lane) if is_inside else self.neutral()
                        for at, is_inside in ((place, is_low), (place + far, is_high))
                    )
                    self.put(self.band, row * self.pitch + x, lane, word_of(*halves))

                self.loop(begin, end, self.pitch,
                          lambda x: self.vector(lambda lane: word(x, lane)))  # fmt: skip

            made(constant(0), low, False, False)
            made(high, minimum(low, no_high), False, True)
            made(low, no_high, True, True)
            made(maximum(low, no_high), no_low, True, False)
            made(no_low, words, False, False)

        self.loop(0, inside, self.height, line)

    # ------------------------------------------------------------ sums

    def _start(self, lines: tuple[Expr, Expr], made: Expr, lane: Expr) -> Value:
        ends = (
            self.lowering.value(self.starts, (self.block, made, constant(0), line, lane))
            for line in lines
        )
        return Apply("subtract", tuple(ends), DType.INT32)

    def note(self, place: Index, value: Value) -> None:
        self.whole[place] = value
        super().note(place, Convert(value, self.seed.dtype))


__all__ = ["PairTiles"]
