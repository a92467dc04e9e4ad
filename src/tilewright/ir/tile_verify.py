"""Checks of tile programs: bounds of every access, scratch written before it is read, one writer.

What follows from the facts about sizes is *proved*. What does not is tried at a few sizes, at the
ends of all loops: an access that is outside there is *wrong*, and the sizes are told. All the rest
is *unknown* and counted, not called proved. Start with :func:`verify_tile`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.ir.tile import TileProgram
from tilewright.ir.tile_access import Access, Axis, Trace, conjuncts, trace
from tilewright.shape import Expr, Scope, Truth, constant, symbol
from tilewright.support.errors import DimensionError

MOST_POINTS = 64  # of an access that are tried at one sample of sizes
Sample = Mapping[str, int]


@dataclass
class Findings:
    """How much was proved of tile programs, and what is left open.

    Counts are by the kind of question: "bounds", "scratch" and "writers".
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

    def __str__(self) -> str:
        kinds = sorted({*self.proved, *self.unknown})
        return ", ".join(
            f"{kind} {self.proved[kind]} proved and {self.unknown[kind]} unknown" for kind in kinds
        )


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
    return [*found.problems, *_Questions(found, dict(sizes), facts, samples, findings).problems()]


class _Questions:
    def __init__(
        self,
        found: Trace,
        sizes: dict[str, Expr],
        scope: Scope,
        samples: Sequence[Sample],
        findings: Findings,
    ) -> None:
        self.found = found
        self.sizes = sizes
        self.scope = scope
        self.samples = samples
        self.findings = findings
        self.accesses = list(found.accesses)

    def problems(self) -> list[str]:
        """Ask everything."""
        wrong: list[str] = []
        for access in self.accesses:
            wrong += self._bounds(access)
        for what in self.found.unread:
            self.findings.add("bounds", False, what)
        return wrong + self._scratch() + self._writers()

    def _elements(self, access: Access) -> Expr:
        if access.buffer.name in self.sizes:
            return self.sizes[access.buffer.name] // access.width
        assert access.buffer.elements is not None, access.buffer
        return access.buffer.elements

    # ------------------------------------------------------------ bounds

    def _bounds(self, access: Access) -> list[str]:
        """An access lies within its buffer."""
        size = self._elements(access)
        if any(self._is_within(offset, size) for offset in self._forms(access)):
            self.findings.add("bounds", True, "")
            return []
        for sample, point in self._points(access):
            there = _value(access.offset, point)
            most = _value(size, point)
            if there is not None and most is not None and not 0 <= there < most:
                return [
                    f"{access} is element {there} of {most} at {_told(sample, access, self.scope)}"
                ]
        self.findings.add("bounds", False, str(access))
        return []

    def _is_within(self, offset: Expr, size: Expr) -> bool:
        above = self.scope.is_less_equal(0, offset) is Truth.YES
        return above and self.scope.is_less(offset, size) is Truth.YES

    def _forms(self, access: Access) -> Iterator[Expr]:
        """The offset, and what it is where the predicates around it hold."""
        yield access.offset
        if not access.under:
            return
        known = [d for predicate in access.under for d in conjuncts(predicate)]
        axes = {axis.name: axis for axis in access.nest}
        yield self._assuming(access.offset, known, axes)

    def _assuming(self, offset: Expr, known: list[Expr], axes: Mapping[str, Axis]) -> Expr:
        """``offset`` with an axis replaced by a new one that counts from where a demand is met."""
        for position, demand in enumerate(known):
            for name in demand.free_symbols:
                if name not in axes or name not in offset.free_symbols:
                    continue
                affine = demand.affine((name,))
                if affine is None or affine[0][name] not in (constant(1), constant(-1)):
                    continue
                sign = affine[0][name].value
                others = [d for i, d in enumerate(known) if i != position]
                span = self._span(demand, name, sign, [*others, *_implied(axes[name])])
                fresh = self.scope.fresh("_axis", 0, span)
                replaced = (fresh - affine[1]) * sign
                offset = offset.substitute({name: replaced})
                known = [d.substitute({name: replaced}) for d in known]
                break
        return offset

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
        own = {a.name: a for a in write.nest if a not in shared}
        new = {a.name: a for a in read.nest if a not in shared}
        written, wanted = write.offset.affine([*own]), read.offset.affine([*new])
        if write.under or written is None or wanted is None:
            return False
        left = self.scope.resolve(wanted[1] - written[1])
        taken: set[str] = set()
        for name, axis in own.items():
            slope = written[0][name]
            twins = [n for n in new if n not in taken and self._same(wanted[0][n], slope)]
            value = symbol(twins[0]) if twins else constant(0)
            taken |= set(twins[:1])
            if self._same(slope, constant(1)):
                value, left = value + left, constant(0)
            inside = self.scope.is_less(value, axis.extent) is Truth.YES
            if not inside or self.scope.is_less_equal(0, value) is not Truth.YES:
                return False
        rest = [n for n in new if n not in taken and not self._same(wanted[0][n], constant(0))]
        return not rest and self._same(left, constant(0))

    def _same(self, left: Expr, right: Expr) -> bool:
        return self.scope.is_equal(left, right) is Truth.YES

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

    def _is_one_to_one(self, write: Access) -> bool:
        """Whether different values of the axes mean different elements."""
        return self._is_chain(write, [*write.nest], constant(0))

    def _have_own_regions(self, writes: Sequence[Access]) -> bool:
        """Whether what tasks add to offsets keeps them further apart than what else is added."""
        common: dict[str, Expr] | None = None
        for write in writes:
            axes = [a for a in write.nest if a.task]
            affine = write.offset.affine([a.name for a in axes])
            if affine is None or common not in (None, affine[0]):
                return False
            common = affine[0]
            scope = self._running(write)
            above = scope is not None and scope.is_less_equal(0, affine[1]) is Truth.YES
            if not above or not self._is_chain(write, axes, affine[1]):
                return False
        return True

    def _is_chain(self, write: Access, axes: Sequence[Axis], reach: Expr) -> bool:
        """Whether each slope is more than all smaller ones with their axes, and ``reach``, make."""
        affine = write.offset.affine([axis.name for axis in axes])
        scope = self._running(write)
        if affine is None or scope is None:
            return scope is None
        slopes = affine[0]
        several = [a for a in axes if not (a.extent.is_constant and a.extent.value == 1)]
        for axis in sorted(several, key=lambda a: _magnitude(slopes[a.name])):
            slope = slopes[axis.name]
            if scope.is_less(reach, slope) is not Truth.YES:
                return False
            reach = reach + slope * symbol(axis.name)
        return True

    def _running(self, write: Access) -> Scope | None:
        """The facts where the loops around a write run; None where they never do."""
        return self.scope.occupied([axis.extent for axis in write.nest])

    def _collision(self, writes: Sequence[Access]) -> str | None:
        """An element that two tasks write at some sample of sizes."""
        for sample in self.samples:
            first: dict[int, tuple[int, ...]] = {}
            for write in writes:
                for point in _corners(write, sample):
                    task = tuple(point[a.name] for a in write.nest if a.task)
                    there = _value(write.offset, point)
                    if there is not None and first.setdefault(there, task) != task:
                        told = _told(sample, write, self.scope)
                        return f"{there} of {write.buffer.name} at {told}: {write}"
        return None

    def _points(self, access: Access) -> Iterator[tuple[Sample, Sample]]:
        for sample in self.samples:
            for point in _corners(access, sample):
                yield sample, point


def _implied(axis: Axis) -> list[Expr]:
    """What holds of an axis in any case, as expressions that are at least 0."""
    return [symbol(axis.name), axis.extent - 1 - symbol(axis.name)]


def _magnitude(slope: Expr) -> tuple[int, int, str]:
    """A key by which slopes are in order for most sizes."""
    degree = max((len(monomial.atoms) for monomial, _ in slope.terms), default=0)
    return degree, max((abs(size) for _, size in slope.terms), default=0), str(slope)


def _corners(access: Access, sample: Sample) -> Iterator[Sample]:
    """Values of the axes at the ends of their ranges, where the access happens."""
    points: list[dict[str, int]] = [dict(sample)]
    for axis in access.nest:
        following: list[dict[str, int]] = []
        for point in points:
            extent = _value(axis.extent, point) or 0
            ends = dict.fromkeys((0, extent - 1)) if extent > 0 else ()
            following += [{**point, axis.name: end} for end in ends]
        points = following[:: max(1, len(following) // MOST_POINTS)]
    for point in points:
        if all(_value(predicate, point) for predicate in access.under):
            yield point


def _value(expression: Expr, point: Sample) -> int | None:
    try:
        return expression.evaluate(point)
    except DimensionError:
        return None  # a division by a size that is 0


def _told(sample: Sample, access: Access, scope: Scope) -> str:
    names = {s for axis in access.nest for s in axis.extent.free_symbols}
    names |= set(access.offset.free_symbols)
    return ", ".join(f"{n} = {sample[n]}" for n in sorted(names) if n in sample) or "any size"


def sample_sizes(scope: Scope, demands: Sequence[Expr], names: Sequence[str]) -> list[Sample]:
    """A few values of all symbols by which every fact and demand is met; small ones."""
    free = [n for n in scope.symbols if scope.resolve(symbol(n)) is symbol(n)]
    choices: list[tuple[int, ...]] = [(0,), (1,), (2,), (3, 2, 5), (9, 17, 4), (70, 33, 1)]
    found: dict[tuple[int, ...], Sample] = {}
    for steps in choices:
        sample = {n: steps[i % len(steps)] for i, n in enumerate(names)}
        for position, name in enumerate(free):
            low, high, multiple = scope.symbols[name]
            value = steps[position % len(steps)]
            value = max(-(-value // multiple) * multiple, low if low is not None else value)
            sample[name] = value if high is None else min(value, high)
        for name in scope.symbols:
            value = _value(scope.resolve(symbol(name)), sample)
            sample[name] = 0 if value is None else value
        if _is_possible(scope, demands, sample):
            found.setdefault(tuple(sample.values()), sample)
    return list(found.values())


def _is_possible(scope: Scope, demands: Sequence[Expr], sample: Sample) -> bool:
    for name, (low, high, multiple) in scope.symbols.items():
        value = sample[name]
        if (low is not None and value < low) or (high is not None and value > high):
            return False
        if value % multiple:
            return False
    for left, right in scope.assumptions:
        if _value(left, sample) != _value(right, sample):
            return False
    for name, limit in scope.limits:
        most = _value(limit, sample)
        if most is None or sample[name] > most:
            return False
    for expression, bounds in scope.known_bounds:
        value = _value(expression, sample)
        if value is None or value not in bounds:
            return False
    return all(_value(demand, sample) for demand in demands)


__all__ = ["Findings", "sample_sizes", "verify_tile"]
