"""How a register tile asks for what it reads of its right operand later.

That is the next panel (:class:`Ahead`), or all rows of the next block of the depth
(:class:`RowsAhead`).
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.indices import word
from tilewright.ir.dtype import DType
from tilewright.ir.tile import LINE_BYTES

UNROLL = 4  # steps along k per iteration of a full tile: hides the loop's own instructions


@dataclass(frozen=True)
class Ahead:
    """What a tile asks for of the next panel: ``step`` elements for every ``UNROLL`` steps along k.

    They begin at ``start``. Iterations whose number has bits in common with ``skipped`` leave it to
    others, which ask for what is theirs as well.
    """

    start: ir.Value
    step: ir.Value
    skipped: ir.Value

    @property
    def values(self) -> list[ir.Value]:
        """What is passed to a tile."""
        return [self.start, self.step, self.skipped]

    def ask(self, scalar: Emitter, k: ir.Value, dtype: DType, width: int, unroll: int) -> None:
        """Write what the iteration at ``k``, of ``unroll`` steps, asks for, if it does.

        These are the lines of two steps along k of a panel of ``width`` columns. Requests that the
        first-level cache waits for keep what this panel reads from the second one waiting, where
        many are under way: under few tiles, lines come to the second one only. Of some 24 buffers
        of such requests two tiles would need 31, four 16: memory takes about 370 cycles (Zen 4).
        """
        builder = scalar.builder
        number = builder.lshr(k, word(unroll.bit_length() - 1))
        skipped = builder.and_(number, self.skipped)
        with builder.if_then(builder.icmp_signed("==", skipped, word(0))):
            many = builder.icmp_signed("<", self.step, word(width))
            with builder.if_else(many) as parts:
                for part, near in zip(parts, (True, False), strict=True):
                    with part:
                        self._ask(scalar, k, dtype, (width, unroll), near=near)

    def _ask(
        self, scalar: Emitter, k: ir.Value, dtype: DType, tile: tuple[int, int], *, near: bool
    ) -> None:
        builder, (width, unroll) = scalar.builder, tile
        first = builder.lshr(builder.mul(k, self.step), word(UNROLL.bit_length() - 1))
        span = builder.mul(self.step, builder.add(self.skipped, word(1)))
        whole = max(1, width * dtype.bytes // LINE_BYTES)
        for line in range(-(-2 * whole * unroll // UNROLL)):
            beside = word(line % whole * LINE_BYTES // dtype.bytes)
            place = builder.add(first, builder.lshr(span, word(1))) if line >= whole else first
            place = scalar.gep(self.start, dtype, builder.add(place, beside))
            scalar.prefetch(place, near=near)


@dataclass(frozen=True)
class RowsAhead:
    """What a tile asks for of rows that lie side by side from ``start`` on, in their order.

    It is as much as the tile reads meanwhile, so that all panels of a block ask for one like it.
    Tiles of a panel take turns: an iteration asks whose number is ``turn`` in the bits of ``mask``.
    """

    start: ir.Value
    turn: ir.Value
    mask: ir.Value

    @property
    def values(self) -> list[ir.Value]:
        """What is passed to a tile."""
        return [self.start, self.turn, self.mask]

    def ask(self, scalar: Emitter, k: ir.Value, dtype: DType, width: int, unroll: int) -> None:
        """Write what the iteration at ``k``, of ``unroll`` steps of ``width`` columns, asks for."""
        builder = scalar.builder
        number = builder.lshr(k, word(unroll.bit_length() - 1))
        number = builder.and_(number, self.mask)
        with builder.if_then(builder.icmp_signed("==", number, self.turn)):
            place = scalar.gep(self.start, dtype, builder.mul(k, word(width)))
            for element in range(0, width * unroll, LINE_BYTES // dtype.bytes):
                scalar.prefetch(scalar.gep(place, dtype, word(element)), near=False)


__all__ = ["UNROLL", "Ahead", "RowsAhead"]
