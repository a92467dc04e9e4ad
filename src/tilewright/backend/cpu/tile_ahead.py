"""How a register tile asks for the next panel of its right operand. Start with :class:`Ahead`."""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.indices import word
from tilewright.ir.dtype import DType
from tilewright.target.core_model import LINE_BYTES

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


__all__ = ["UNROLL", "Ahead"]
