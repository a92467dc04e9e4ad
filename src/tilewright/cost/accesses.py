"""What one place of a tile program touches of a buffer, and how accesses meet.

Imports ir and shape. Start with :class:`Access`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.ir.tile import CACHE_LINE, TileBuffer
from tilewright.shape import Expr, constant, maximum, minimum, product, total

ONE = constant(1)
TURNED = ("rows", "columns")  # of a block that is turned: several rows are read beside each other
LEAST_PIECE = 512  # bytes; shorter ones share what is fetched ahead (assumed, not measured)
NEAR_TAPS = 64  # elements between two accesses that touch mostly the same


@dataclass(frozen=True)
class Access:
    """What one place of a program touches: elements by the distance between neighbours."""

    buffer: TileBuffer
    extents: Mapping[str, Expr]
    pending: Mapping[str, str]  # loop variables around, and the distance that each of them makes
    offset: Expr
    is_store: bool
    apart: int  # elements from one to the next, as many as a line has at most
    count: int = 1
    asked: Expr = ONE  # 0 where it is in a branch that is not taken

    @property
    def key(self) -> tuple[object, ...]:
        """Alike where two accesses differ by where they begin only."""
        return (
            self.buffer, tuple(sorted((k, str(e)) for k, e in self.extents.items())),
            tuple(sorted(self.pending.items())), self.is_store,
        )  # fmt: skip

    def elements(self, sizes: Mapping[str, Expr]) -> Expr:
        """How many elements it touches, those between them as well where lines are whole."""
        count = product(self.extents.values()) * self.count * self.apart * self.asked
        whole = self.buffer.elements if self.buffer.scratch else sizes.get(self.buffer.name)
        return count if whole is None else minimum(count, whole)

    def pieces(self, sizes: Mapping[str, Expr]) -> Expr:
        """How many runs of neighbouring elements it goes through, each of which ends before a gap.

        0 for a single one, and where nothing is known of gaps.
        """
        (first, run), *others = list(self.extents.items()) or [("", ONE)]
        if first not in ("1", *TURNED):
            return constant(0)
        for distance, count in others:
            if distance == str(run):
                run = run * count
            elif distance in TURNED or _is_beyond(distance, run):
                moved = self.elements(sizes) * self.buffer.dtype.bytes
                least = maximum(run * self.buffer.dtype.bytes, LEAST_PIECE)
                return moved // least
            else:
                break
        return constant(0)


def _is_beyond(distance: str, run: Expr) -> bool:
    """Whether the next run begins a line or more after the end of one."""
    return distance.isdigit() and run.is_constant and int(distance) >= run.value + CACHE_LINE // 4


def touched_by_all(buffer: TileBuffer, each: Sequence[Expr], written: bool) -> Expr:
    """Bytes that several accesses to a buffer touch together."""
    return total(each) if written and not buffer.scratch else maximum(*each)


def distance_apart(pending: Mapping[str, str], size: int) -> int:
    """Elements from one that is touched to the next, as many as a line has at most.

    Positions that are no multiples of a loop variable are taken to be dense.
    """
    distances = list(pending.values())
    if not distances or any(distance.startswith("?") for distance in distances):
        return 1
    most = max(1, CACHE_LINE // size)
    known = [abs(int(d)) for d in distances if d.lstrip("-").isdigit()]
    return max(1, min([most, *known]))


def extended(access: Access, variable: str, count: Expr) -> Access:
    """What an access touches in ``count`` turns of the loop of ``variable``."""
    distance = access.pending.get(variable)
    if distance is None:
        return access
    extents = dict(access.extents)
    before = extents.get(distance)
    extents[distance] = count if before is None else before + count - 1
    pending = {name: d for name, d in access.pending.items() if name != variable}
    return replace(access, extents=extents, pending=pending)


def is_near(access: Access, other: Access) -> bool:
    """Whether two accesses that are alike touch mostly the same."""
    apart = access.offset - other.offset
    if apart.is_constant and abs(apart.value) < NEAR_TAPS:
        return True
    near = range(-2, 3)  # a tap beside, in the next line
    texts = {str(sign * apart + extra) for sign in (1, -1) for extra in near}
    return any(distance in texts for distance in (*access.extents, *access.pending.values()))


def gathered(again: Sequence[tuple[Expr, Expr]]) -> list[tuple[Expr, Expr]]:
    """Pairs of bytes and distances, those at the same distance in one."""
    found: dict[Expr, Expr] = {}
    for moved, distance in again:
        found[distance] = found.get(distance, constant(0)) + moved
    return [(moved, distance) for distance, moved in found.items()]


__all__ = ["Access", "distance_apart", "extended", "gathered", "is_near", "touched_by_all"]
