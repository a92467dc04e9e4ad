"""Checks of tile programs: bounds of every access, scratch written before it is read, one writer.

Where a result lies where an operand did, no task may read what another one writes, unless that is
one of an earlier round.

What follows from the facts about sizes is *proved*. What does not is tried at a few sizes, at the
ends of all loops: an access that is outside there is *wrong*, and the sizes are told. All the rest
is *unknown* and counted, not called proved. Start with :func:`verify_tile`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.ir.tile import TileBuffer, TileProgram
from tilewright.ir.tile_access import Access, Trace, conjuncts, trace
from tilewright.ir.tile_proofs import AccessProofs, touches_alike
from tilewright.ir.tile_samples import Corners, Point, Sample, written
from tilewright.shape import Expr, Scope, Truth, constant, symbol


@dataclass
class Findings:
    """How much was proved of tile programs, and what is left open.

    Counts are by the kind of question: "bounds", "scratch", "writers" and "readers".
    """

    proved: Counter[str] = field(default_factory=Counter[str])
    unknown: Counter[str] = field(default_factory=Counter[str])
    open: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, kind: str, is_proved: bool, what: str) -> None:
        """Count one question."""
        if is_proved:
            self.proved[kind] += 1
        else:
            self.unknown[kind] += 1
            self.open[f"{kind}: {what}"] = self.open.get(f"{kind}: {what}", 0) + 1

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """For each kind of question, how many are proved and how many unknown."""
        kinds = sorted({*self.proved, *self.unknown})
        return {k: {"proved": self.proved[k], "unknown": self.unknown[k]} for k in kinds}

    def __str__(self) -> str:
        told = [
            f"{k} {n['proved']} proved and {n['unknown']} unknown" for k, n in self.counts.items()
        ]
        return ", ".join(told) or "nothing to prove"


def verify_tile(
    program: TileProgram,
    sizes: Mapping[str, Expr],
    scope: Scope,
    samples: Sequence[Sample],
    findings: Findings,
) -> list[str]:
    """Everything that is wrong with a program, as sentences; the rest goes to ``findings``.

    ``sizes`` are the bytes of its buffers, ``scope`` what is known of its symbols (it is not
    changed), ``samples`` values of all of them at which it may be called.
    """
    facts = scope.copy()
    found = trace(program, facts)
    if found.problems:
        return [*found.problems]
    return _Questions(found, dict(sizes), facts, samples, findings, program.in_rounds).problems()


def unfilled(
    program: TileProgram,
    buffer: TileBuffer,
    before: Sequence[tuple[TileProgram, TileBuffer]],
    scope: Scope,
    samples: Sequence[Sample],
) -> list[str]:
    """What a program reads of a buffer that the programs before it do not write, at some sample.

    Each of those comes with its own name of the buffer.
    """
    reads = [a for a in trace(program, scope.copy()).accesses if a.buffer == buffer]
    writes = [
        access
        for writer, own in before
        for access in trace(writer, scope.copy()).accesses
        if access.writes and access.buffer == own
    ]
    if len({access.width for access in (*reads, *writes)}) > 1:
        return []  # elements of one are not those of the other
    for sample in samples:
        sizes = Point(sample)
        filled, corners = written(writes, sizes), Corners(sizes)
        if filled is None:
            continue
        for read in reads:
            places = {point.of(read.offset) for point in corners.of(read)} - {None}
            missing = sorted(place for place in places - filled if place is not None)
            if missing:
                return [f"{read}: element {missing[0]} is not written at {_told(sizes, read)}"]
    return []


class _Questions(AccessProofs):
    def __init__(
        self,
        found: Trace,
        sizes: dict[str, Expr],
        scope: Scope,
        samples: Sequence[Sample],
        findings: Findings,
        in_rounds: bool,
    ) -> None:
        self.in_rounds = in_rounds
        self.samples = [Corners(Point(sample)) for sample in samples]
        super().__init__(found, scope, self._happens)
        self.found = found
        self.sizes = sizes
        self.findings = findings

    def _happens(self, access: Access) -> bool:
        """Whether an access is made at one of the samples."""
        return any(True for sizes in self.samples for _ in sizes.of(access))

    def problems(self) -> list[str]:
        """Ask everything."""
        wrong: list[str] = []
        for access in self.accesses:
            wrong += self._bounds(access)
        for what in self.found.unread:
            self.findings.add("bounds", False, what)
        return wrong + self._scratch() + self._writers() + self._readers()

    def _elements(self, access: Access) -> Expr:
        if access.buffer.name in self.sizes:
            return self.sizes[access.buffer.name] // access.width
        assert access.buffer.elements is not None, access.buffer
        return access.buffer.elements

    # ------------------------------------------------------------ bounds

    def _bounds(self, access: Access) -> list[str]:
        """An access lies within its buffer."""
        size = self._elements(access)
        most = self.simple.of(size)
        forms = self._forms(access)
        if any(offset is None or self._is_within(offset, most) for offset in forms):
            self.findings.add("bounds", True, "")
            return []
        for sample, point in self._points(access):
            there, there_are = point.of(access.offset), point.of(size)
            if there is not None and there_are is not None and not 0 <= there < there_are:
                told = _told(sample, access)
                return [f"{access} is element {there} of {there_are} at {told}"]
        self.findings.add("bounds", False, str(access))
        return []

    def _is_within(self, offset: Expr, size: Expr) -> bool:
        return self.is_natural(offset) and self.is_natural(size - offset - 1)

    def _forms(self, access: Access) -> Iterator[Expr | None]:
        """The offset, and what it is where the predicates around it hold: None if they never do."""
        offset = self.simple.of(access.offset)
        yield offset
        known = [self.simple.of(d) for p in access.under for d in conjuncts(p)]
        if known:
            yield self._assuming(offset, known, {axis.name for axis in access.nest})

    def _assuming(self, offset: Expr, known: list[Expr], axes: set[str]) -> Expr | None:
        """``offset`` with an axis replaced by a new one that counts from where a demand is met.

        None if the demands exclude each other.
        """
        for position, demand in enumerate(known):
            for name in demand.free_symbols:
                if name not in axes or name not in offset.free_symbols:
                    continue
                affine = demand.affine((name,))
                if affine is None or affine[0][name] not in (constant(1), constant(-1)):
                    continue
                sign = affine[0][name].value
                others = [d for i, d in enumerate(known) if i != position]
                span = self._span(demand, name, sign, [*others, *self._implied(name)])
                if span is not None and self.scope.is_less(span, 0) is Truth.YES:
                    return None
                fresh = self.scope.fresh("_axis", 0, span)
                replaced = (fresh - affine[1]) * sign
                offset = offset.substitute({name: replaced})
                known = [d.substitute({name: replaced}) for d in known]
                break
        return offset

    def _implied(self, axis: str) -> list[Expr]:
        """What holds of an axis in any case, as expressions that are at least 0."""
        return [symbol(axis), self.extents[axis] - 1 - symbol(axis)]

    def _span(self, demand: Expr, name: str, sign: int, others: Sequence[Expr]) -> Expr | None:
        """What ``demand`` is at most, by another demand that holds the axis with the other sign."""
        for other in others:
            affine = other.affine((name,))
            if affine is not None and affine[0][name] is constant(-sign):
                return self.scope.resolve(demand + other)
        return None

    # ------------------------------------------------------------ scratch

    def _scratch(self) -> list[str]:
        """Scratch memory is written before it is read."""
        wrong: list[str] = []
        for position, read in enumerate(self.accesses):
            if read.writes or not read.buffer.scratch:
                continue
            writes = [w for w in self.accesses[:position] if w.writes and w.buffer == read.buffer]
            if not writes:
                wrong.append(f"{read}: nothing is written there before")
                continue
            covered = any(self._covers(write, read) for write in writes)
            self.findings.add("scratch", covered, str(read))
        return wrong

    def _covers(self, write: Access, read: Access) -> bool:
        """Whether a write, in all of its iterations, reaches every element that is read."""
        shared = set(write.nest) & set(read.nest)
        own = [a.name for a in write.nest if a not in shared]
        new = [a.name for a in read.nest if a not in shared]
        written = self.simple.of(write.offset).affine(own)
        wanted = self.simple.of(read.offset).affine(new)
        if write.under or written is None or wanted is None:
            return False
        if not self.is_simple(written[1], wanted[1]):
            return False
        left = self.scope.resolve(wanted[1] - written[1])
        taken: set[str] = set()
        for name in own:
            slope = written[0][name]
            twins = [n for n in new if n not in taken and self.same(wanted[0][n], slope)]
            value = symbol(twins[0]) if twins else constant(0)
            taken |= set(twins[:1])
            if self.same(slope, constant(1)):
                value, left = value + left, constant(0)
            beyond = self.extents[name] - 1 - value
            if not self.is_natural(beyond) or not self.is_natural(value):
                return False
        rest = [n for n in new if n not in taken and not self.same(wanted[0][n], constant(0))]
        return not rest and self.same(left, constant(0))

    # ------------------------------------------------------------ writers

    def _writers(self) -> list[str]:
        """No element of a result is written by two tasks."""
        wrong: list[str] = []
        results: dict[str, list[Access]] = {}
        for access in self.accesses:
            if access.writes and not access.buffer.scratch:
                results.setdefault(access.buffer.name, []).append(access)
        for name, writes in results.items():
            tasks = any(axis.task for write in writes for axis in write.nest)
            alone = len(writes) == 1 and self._is_one_to_one(writes[0])
            if not tasks or alone or self._have_own_regions(writes):
                self.findings.add("writers", True, "")
                continue
            collision = self._collision(writes)
            if collision is None:
                self.findings.add("writers", False, f"{name}: {writes[0]}")
            else:
                wrong.append(f"two tasks write element {collision}")
        return wrong

    def _readers(self) -> list[str]:
        """No task reads an element of a result that another one writes."""
        wrong: list[str] = []
        for read in self.accesses:
            if read.writes or read.buffer.scratch:
                continue
            writes = [w for w in self.accesses if w.writes and w.buffer == read.buffer]
            if not writes:
                continue
            if all(touches_alike(self, read, write) for write in writes):
                self.findings.add("readers", True, "")
                continue
            crossing = self._crossing(read, writes)
            if crossing is None:
                self.findings.add("readers", False, str(read))
            else:
                wrong.append(f"a task reads what another one writes: element {crossing}")
        return wrong

    def _crossing(self, read: Access, writes: Sequence[Access]) -> str | None:
        """An element that a task reads and another one writes, at some sample of sizes."""
        for sample in self.samples:
            readers: dict[int, set[tuple[int, ...]]] = {}
            for point in sample.of(read):
                there = point.of(read.offset)
                if there is not None:
                    task = tuple(point.values[a.name] for a in read.nest if a.task)
                    readers.setdefault(there, set()).add(task)
            for write in writes:
                if [a for a in write.nest if a.task] != [a for a in read.nest if a.task]:
                    continue
                for point in sample.of(write):
                    there = point.of(write.offset)
                    task = tuple(point.values[a.name] for a in write.nest if a.task)
                    others = () if there is None else readers.get(there, ())
                    if any(task != o and not self._is_after(o, task) for o in others):
                        told = _told(sample.sizes, read)
                        return f"{there} of {read.buffer.name} at {told}: {read}"
        return None

    def _is_after(self, task: tuple[int, ...], other: tuple[int, ...]) -> bool:
        """Whether a task is one of a later round."""
        return self.in_rounds and other[0] < task[0]

    def _is_one_to_one(self, write: Access) -> bool:
        """Whether different values of the axes mean different elements."""
        return self.is_chain(write, [*write.nest], constant(0))

    def _have_own_regions(self, writes: Sequence[Access]) -> bool:
        """Whether what tasks add to offsets keeps them further apart than what else is added."""
        common: dict[str, Expr] | None = None
        for write in writes:
            axes = [a for a in write.nest if a.task]
            affine = self.simple.of(write.offset).affine([a.name for a in axes])
            if affine is None or common not in (None, affine[0]):
                return False
            common = affine[0]
            if not self.is_natural(affine[1]) or not self.is_chain(write, axes, affine[1]):
                return False
        return True

    def _collision(self, writes: Sequence[Access]) -> str | None:
        """An element that two tasks write at some sample of sizes."""
        for sample in self.samples:
            first: dict[int, tuple[int, ...]] = {}
            for write in writes:
                for point in sample.of(write):
                    task = tuple(point.values[a.name] for a in write.nest if a.task)
                    there = point.of(write.offset)
                    if there is not None and first.setdefault(there, task) != task:
                        told = _told(sample.sizes, write)
                        return f"{there} of {write.buffer.name} at {told}: {write}"
        return None

    def _points(self, access: Access) -> Iterator[tuple[Point, Point]]:
        for sample in self.samples:
            for point in sample.of(access):
                yield sample.sizes, point


def _told(sample: Point, access: Access) -> str:
    names = {s for axis in access.nest for s in axis.extent.free_symbols}
    names |= set(access.offset.free_symbols)
    return (
        ", ".join(f"{n} = {sample.values[n]}" for n in sorted(names) if n in sample.values)
        or "any size"
    )


__all__ = ["Findings", "unfilled", "verify_tile"]
