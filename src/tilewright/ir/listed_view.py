"""Right operands of products whose rows along k lie anywhere in memory: :class:`ListedView`."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.tile import TileBuffer, View


@dataclass(frozen=True, eq=False, kw_only=True)
class ListedView(View):
    """A right operand of which the row of every k lies anywhere in ``buffer``.

    That of the product's k-th step begins ``shifts[k]`` bytes after element ``offset``, wherever
    columns begin; ``depth`` is 0.
    """

    shifts: TileBuffer
