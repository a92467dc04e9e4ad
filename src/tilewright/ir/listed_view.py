"""Right operands of products whose rows along k lie anywhere in memory: :class:`ListedView`."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.tile import TileBuffer, View
from tilewright.shape import Expr, constant

_NONE = constant(0)


@dataclass(frozen=True, eq=False, kw_only=True)
class ListedView(View):
    """A right operand of which the row of every k lies anywhere in ``buffer``.

    That of the product's k-th step begins ``shifts[k]`` bytes after element ``offset``, wherever
    columns begin; ``depth`` is 0.

    Unless ``line`` is 0, so many columns lie side by side, and ``pitch`` elements after where they
    begin do the next ones. The columns of a product are whole lines then, and those of a tile lie
    in one line.
    """

    shifts: TileBuffer
    line: Expr = _NONE
    pitch: Expr = _NONE

    @property
    def has_lines(self) -> bool:
        """Whether not all columns lie side by side."""
        return self.line is not _NONE
