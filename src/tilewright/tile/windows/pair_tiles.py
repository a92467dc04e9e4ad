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
from tilewright.ir.tile import Apply, Convert, Literal, TileBuffer, TransposeBlock, Value
from tilewright.ir.views import Index, linear
from tilewright.shape import Expr, ceil_div, constant, less, product, select
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
        self.paired = sums
        super().__init__(kernel, lowering, target)
        self.geometry = replace(self.geometry, operand=sums.data)
        self.width = self._read(constant(COLUMNS)).value
        self.lines = self._scratch(self.height * self.width, DType.UINT8)
        self.results = self._scratch(self.made * COLUMNS, kernel.outputs[0].dtype)
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
        return Literal(self.paired.zero, DType.UINT8)

    # ------------------------------------------------------------ copies

    def _copied(self, row: Expr) -> None:
        base = row * self.width
        partly = less(self.count, self.lanes)
        for begin, end in (
            (constant(0), select(partly, self.reached, self.begin)),
            (select(partly, self.reached, self.end), self.reached),
        ):
            self.clear(self.lines, begin, end, self.width, base)
        rows = self._place_of(row)
        operand = self.geometry.operand
        if self.channels_last:
            self.loop(self.begin, self.end, self.width, lambda x: self._bytes(x, base + x, rows))
            return
        place = (self.batch, self.group, *rows, self.origin + self.begin)
        self.lowering.emit(
            TransposeBlock(
                self.lowering.buffer(operand),
                self.lowering.scope.resolve(linear(place, operand.shape)),
                product(operand.shape[2:]), self.lines, (base + self.begin) * self.lanes,
                constant(self.lanes), self.count, self.end - self.begin,
            )
        )  # fmt: skip

    def _bytes(self, x: Expr, vector: Expr, rows: list[Expr]) -> None:
        """A pixel of data that has its channels last."""

        def copy(lane: Expr) -> None:
            index = (self.batch, *rows, self.origin + x, self.group + lane)
            value = self.lowering.value(self.geometry.operand, index)
            self.put(self.lines, vector, lane, value)

        self.channels(self.count, 1, copy)

    def _prepare(self, inside: Expr) -> None:
        words = self._vectors(ceil_div(self.columns, OUTPUTS) * OUTPUTS)

        def line(row: Expr) -> None:
            self.loop(0, words, self.pitch, lambda x: self.vector(lambda lane: word(row, x, lane)))

        def word(row: Expr, x: Expr, lane: Expr) -> None:
            first = row * self.width + x * self._pixels
            pair = (
                self.at(self.lines, place, lane)
                for place in (first, first + self.geometry.dilations[-1])
            )
            self.put(self.band, row * self.pitch + x, lane, word_of(*pair))

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

    def _result(self, vector: Expr) -> tuple[TileBuffer, Expr]:
        return self.results, vector


__all__ = ["PairTiles"]
