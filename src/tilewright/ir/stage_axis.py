"""Axes of a stage of a tile program, which goes over them in blocks.

Imports shape. Start with :class:`StageAxis`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tilewright.shape import Expr, ceil_div, constant, select, symbol, total

NEVER = constant(0)  # a condition


class Role(Enum):
    """How a :class:`Stage` goes over the blocks of an axis."""

    PARALLEL = "parallel"  # a task has one block, which a variable of the grid counts
    REDUCTION = "reduction"  # one block after the other, one at least: sums of nothing are 0


@dataclass(frozen=True)
class StageAxis:
    """Positions 0 to ``extent`` in blocks of ``block``, the last of which may have fewer.

    The names of the positions at which a block begins and ends are made of ``stem``. Blocks that
    are tasks are counted by an axis of the grid, and where ``outermost`` is not 0 by another one,
    around those that count the blocks of other axes.
    """

    stem: str
    extent: Expr
    block: Expr
    role: Role
    outermost: Expr = NEVER

    @property
    def sizes(self) -> tuple[Expr, Expr, Expr]:
        """The expressions it is made of."""
        return self.extent, self.block, self.outermost

    @property
    def begin(self) -> Expr:
        """The first position of a block."""
        return symbol(f"{self.stem}0")

    @property
    def end(self) -> Expr:
        """The position after a block's last one."""
        return symbol(f"{self.stem}1")

    @property
    def bounds(self) -> tuple[Expr, Expr]:
        """Both."""
        return self.begin, self.end

    @property
    def number(self) -> str:
        """The variable of the grid that counts the blocks, if they are tasks."""
        return f"{self.stem}b"

    @property
    def counters(self) -> tuple[tuple[str, Expr], ...]:
        """The axes of the grid that count the blocks; of two, one has the size 1."""
        if self.outermost is NEVER:
            return ((self.number, self.count),)
        around = select(self.outermost, self.count, 1), select(self.outermost, 1, self.count)
        return tuple(zip((f"{self.stem}o", self.number), around, strict=True))

    @property
    def place(self) -> Expr:
        """Which block it is, by the variables that count them."""
        return total(symbol(name) for name, _ in self.counters)

    @property
    def count(self) -> Expr:
        """How many blocks there are."""
        return ceil_div(self.extent, self.block)
