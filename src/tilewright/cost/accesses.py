"""What one place of a tile program touches of a buffer, and how accesses meet.

Imports ir, shape and target. Start with :class:`Access`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.ir.tile import LINE_BYTES, TileBuffer
from tilewright.ir.tile_walk import stride
from tilewright.shape import (
    Expr,
    constant,
    less_equal,
    logical_and,
    maximum,
    minimum,
    product,
    select,
    total,
)
from tilewright.shape.expr import from_terms
from tilewright.target.core_model import LINE_ELEMENTS, PAIRED_ROW_BYTES, RUN_BYTES

ZERO, ONE = constant(0), constant(1)
# Of a block that is turned: several rows are read beside each other. No size has such a name.
TURNED = ("turned rows", "turned columns")
TURNED_AXES = frozenset(TURNED)
# Rows of a square that is turned, of which all wait at once for where they begin (assumed: squares
# have 4 to 16; not measured by itself).
TURNED_TOGETHER = 8
# Of pieces of rows that end where lines do, for how many one line beyond the end is asked for while
# another thread stores it: a quarter of what parts of lines take (halves of 200 rows of 784 to
# 1,024, two threads of Zen 4).
WHOLE_PIECES = 4
NEAR_TAPS = 64  # elements between two accesses that touch mostly the same
NEAR_ROWS = 2  # the same where one of them is in the next row: a tap beside, in the next line


@dataclass(frozen=True)
class Access:
    """What one place of a program touches: elements by the distance between neighbours.

    ``origin`` is where it begins beside a constant, whatever the loops around it have reached.
    ``distances`` are those of ``pending`` and ``extents`` that are known, by their text, and
    ``span`` is how far the last of ``count`` places alike is from the first, where that is known.
    ``chunks`` are the variables of loops over parts of another one, with the distance of that.
    ``crosses`` says that vectors are loaded which begin beside a line.
    """

    buffer: TileBuffer
    extents: Mapping[str, Expr]
    pending: Mapping[str, str]  # loop variables around, and the distance that each of them makes
    offset: Expr
    is_store: bool
    apart: int  # elements from one to the next, as many as a line has at most
    count: int = 1
    origin: Expr = ZERO
    distances: Mapping[str, Expr] = field(default_factory=dict[str, Expr])
    span: int | None = None
    chunks: Mapping[str, str] = field(default_factory=dict[str, str])
    asked: Expr = ONE  # 0 where it is in a branch that is not taken
    crosses: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """Alike where two accesses differ by where they begin only."""
        return (
            self.buffer, tuple((k, self.extents[k]) for k in sorted(self.extents)),
            tuple(sorted(self.pending.items())), self.is_store,
        )  # fmt: skip

    def elements(self, sizes: Mapping[str, Expr]) -> Expr:
        """How many elements it touches, those between them as well where lines are whole."""
        count = product(self.extents.values()) * self.count * self.apart * self.asked
        whole = self.buffer.elements if self.buffer.scratch else sizes.get(self.buffer.name)
        return count if whole is None else minimum(count, whole)

    def moved(self, sizes: Mapping[str, Expr]) -> Expr:
        """How many bytes it touches."""
        return self.elements(sizes) * self.buffer.dtype.bytes

    def pieces(self, sizes: Mapping[str, Expr], followed: int) -> Expr:
        """How many runs of neighbouring elements it goes through, each of which ends before a gap.

        Long ones count several times, until hardware follows from byte ``followed`` on. 0 for a
        single one, and where nothing is known of gaps.
        """
        (first, run), *others = list(self.extents.items()) or [("", ONE)]
        if first not in ("1", *TURNED):
            return ZERO
        moved = self.moved(sizes)
        made = self._runs(moved, run, followed)
        if self._is_joined(run):
            return made if run.value * self.buffer.dtype.bytes > PAIRED_ROW_BYTES else ZERO
        found: list[tuple[Expr, Expr]] = []  # where a run ends at a gap, and how many there are
        for text, count in others:
            made = self._runs(moved, run, followed)
            distance = self.distances.get(text)
            if text in TURNED:
                found.append((ONE, made // TURNED_TOGETHER))
                break
            if distance is None:
                break
            if text != str(run):
                is_apart = less_equal(run + LINE_ELEMENTS, distance)
                found.append((logical_and(less_equal(2, count), is_apart), made))
            run = run * count
        number = ZERO
        for ends, made in reversed(found):
            number = select(ends, made, number)
        return number

    def shared_lines(self, sizes: Mapping[str, Expr]) -> Expr:
        """How many lines it reads that runs beside its own have a part of, one for each run."""
        run = self.extents.get("1")
        if not self.crosses or run is None or self._is_joined(run):
            return ZERO
        return self.pieces(sizes, RUN_BYTES)

    def parted_lines(self, task: str) -> Expr:
        """See :func:`parted_lines`, of one access."""
        step = self.distances.get(self.pending.get(task, ""))
        rows = {text: count for text, count in self.extents.items() if text != "1"}
        if step is None or "1" not in self.extents or not rows or not TURNED_AXES.isdisjoint(rows):
            return ZERO
        if not rows.keys() <= self.distances.keys():
            return ZERO
        follows = less_equal(step, 2 * self.extents["1"])
        met = product(rows.values()) * self.count * follows
        if not self.is_store:
            return met
        elements = LINE_BYTES // self.buffer.dtype.bytes
        beside = total(self.distances[text] // self.count % elements for text in rows)
        beside = beside + step % elements
        return select(minimum(beside, 1), met, met // WHOLE_PIECES)

    def _runs(self, moved: Expr, run: Expr, followed: int) -> Expr:
        """Pieces of ``run`` elements; of several at a time each is followed sooner.

        How much sooner is fitted to sums of eight rows at a time, in pieces of 0.5 to 16 KiB, on
        Zen 4.
        """
        sooner = 1 if self.count == 1 else 2 * self.count
        most = max(followed // RUN_BYTES // sooner, 1)
        return moved // maximum(run * self.buffer.dtype.bytes // most, RUN_BYTES)

    def _is_joined(self, run: Expr) -> bool:
        """Whether each of several runs at a time begins where another one ends."""
        return self.span is not None and run.is_constant and self.span <= self.count * run.value


def most_pieces(
    accesses: Iterable[Access], sizes: Mapping[str, Expr], followed: int
) -> dict[TileBuffer, Expr]:
    """The pieces of each buffer, by whichever access goes through the most (:meth:`Access.pieces`).

    A loop over several rows at a time and one over those that are left share the rows, of which
    either may have none.
    """
    return _most_of_each(accesses, lambda access: access.pieces(sizes, followed))


def shared_lines(accesses: Iterable[Access], sizes: Mapping[str, Expr]) -> dict[TileBuffer, Expr]:
    """Those of each buffer, by whichever access has the most (:meth:`Access.shared_lines`)."""
    return _most_of_each(accesses, lambda access: access.shared_lines(sizes))


def parted_lines(accesses: Iterable[Access], task: str) -> Expr:
    """Lines about the end of pieces of rows that a task stores and the next one along ``task``.

    Where pieces do not end where lines do, both store a part of one; hardware asks for lines beyond
    the end too, above all where results are read again.
    """
    of_results = [access for access in accesses if not access.buffer.scratch]
    stored = {access.buffer for access in of_results if access.is_store}
    return total(a.parted_lines(task) for a in of_results if a.buffer in stored)


def _most_of_each(
    accesses: Iterable[Access], count: Callable[[Access], Expr]
) -> dict[TileBuffer, Expr]:
    """For each buffer the most that is counted of any access to it."""
    found: dict[TileBuffer, Expr] = {}
    for access in accesses:
        own = count(access)
        before = found.get(access.buffer, own)
        found[access.buffer] = own if own is before else maximum(before, own)
    return found


def touched_by_all(buffer: TileBuffer, each: Sequence[tuple[Expr, Expr]], written: bool) -> Expr:
    """Bytes that several accesses to a buffer touch together: pairs of an origin and bytes.

    What is read from one origin is mostly the same; what one loop leaves to another begins where
    that has ended.
    """
    if written and not buffer.scratch:
        return total(moved for _, moved in each)
    found: dict[Expr, Expr] = {}
    for origin, moved in each:
        found[origin] = maximum(found.get(origin, ZERO), moved)
    return total(found.values())


def regions(
    accesses: Iterable[Access], sizes: Mapping[str, Expr]
) -> dict[TileBuffer, tuple[Expr, bool]]:
    """Bytes of each buffer that are touched, and whether they are written.

    Loops that read the same memory mostly read the same part of it, and so do those that write
    scratch memory; those that write a result write different ones.
    """
    found: dict[TileBuffer, tuple[list[tuple[Expr, Expr]], bool]] = {}
    for access in accesses:
        own, written = found.setdefault(access.buffer, ([], access.is_store))
        if access.is_store and not written:
            own, written = [], True
        if access.is_store or not written:
            own.append((access.origin, access.moved(sizes)))
        found[access.buffer] = own, written
    return {
        buffer: (at_most(buffer, touched_by_all(buffer, own, written), sizes), written)
        for buffer, (own, written) in found.items()
    }


def at_most(buffer: TileBuffer, moved: Expr, sizes: Mapping[str, Expr]) -> Expr:
    """So many bytes, or all of a buffer."""
    whole = buffer.elements if buffer.scratch else sizes.get(buffer.name)
    return moved if whole is None else minimum(moved, whole * buffer.dtype.bytes)


def origin_of(rest: Expr, steps: Iterable[Expr]) -> Expr:
    """Where a place is whose offset is ``rest`` beside its loops, which go by ``steps``.

    Multiples of a step do not count, as taps of a window are a few steps from each other.
    """
    along = {monomial for step in steps for monomial, _ in step.terms}
    return rest - from_terms({m: c for m, c in rest.terms if m in along or not m.atoms})


def one_of(places: Sequence[Access]) -> Access:
    """Places that are alike but for where they begin, as one access."""
    first = min(places, key=lambda access: len(access.origin.terms))
    offsets = [access.offset - places[0].offset for access in places]
    known = [offset.value for offset in offsets if offset.is_constant]
    span = max(known) - min(known) if 1 < len(known) == len(offsets) else None
    crosses = any(access.crosses for access in places)
    return replace(first, count=len(places), span=span, crosses=crosses)


def distance_apart(pending: Mapping[str, str], size: int) -> int:
    """Elements from one that is touched to the next, as many as a line has at most.

    Positions of which no loop variable makes a known number are taken to be dense.
    """
    distances = list(pending.values())
    most = max(1, LINE_BYTES // size)
    known = [abs(int(d)) for d in distances if d.lstrip("-").isdigit()]
    if not known:
        return 1
    return max(1, min([most, *known]))


def extended(access: Access, variable: str, count: Expr) -> Access:
    """What an access touches in ``count`` turns of the loop of ``variable``."""
    distance = access.pending.get(variable)
    if distance is None:
        return access
    extents = dict(access.extents)
    whole = access.chunks.get(variable)
    if whole is not None and whole in extents:
        extents[whole] = extents[whole] * count
    else:
        before = extents.get(distance)
        extents[distance] = count if before is None else before + count - 1
    pending = {name: d for name, d in access.pending.items() if name != variable}
    return replace(access, extents=extents, pending=pending)


def is_near(access: Access, other: Access) -> bool:
    """Whether two accesses that are alike touch mostly the same."""
    apart = access.offset - other.offset
    if apart.is_constant and abs(apart.value) < NEAR_TAPS:
        return True
    for text in {*access.extents, *access.pending.values()}:
        distance = access.distances.get(text)
        if distance is not None and distance.is_constant == apart.is_constant:
            beside = (distance - apart, distance + apart)
            if any(d.is_constant and abs(d.value) <= NEAR_ROWS for d in beside):
                return True
    return False


def gathered(again: Sequence[tuple[Expr, Expr]]) -> list[tuple[Expr, Expr]]:
    """Pairs of bytes and distances, those at the same distance in one."""
    found: dict[Expr, Expr] = {}
    for moved, distance in again:
        found[distance] = found.get(distance, ZERO) + moved
    return [(moved, distance) for distance, moved in found.items()]


def known_steps(offset: Expr, names: Iterable[str]) -> dict[str, Expr]:
    """The distances that are known of a position which others than these make no line."""
    found = {name: stride(offset, name) for name in names}
    return {name: constant(step) for name, step in found.items() if step is not None}


__all__ = [
    "TURNED",
    "Access",
    "at_most",
    "distance_apart",
    "extended",
    "gathered",
    "is_near",
    "known_steps",
    "most_pieces",
    "one_of",
    "origin_of",
    "parted_lines",
    "regions",
    "touched_by_all",
]
