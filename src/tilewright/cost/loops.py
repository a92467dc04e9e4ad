"""The time of a tile program without products: what its loops compute and what memory they move.

A program is walked once. Loops give cycles (``vector_work``), and every access a footprint: the
elements that it touches while a loop around it runs. Where a loop, or the next one after it,
touches the same again, the bytes come from the level of memory that holds all that is touched in
between; what is touched for the first time comes from the level that holds everything. Computing
and moving overlap but for a share, within each phase of a task: its loops follow each other, and a
core looks no farther ahead than a few hundred instructions. All is one integer expression in
picoseconds. Imports ir, shape and target. Start with :func:`loop_price`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tilewright.cost.accesses import (
    TURNED,
    Access,
    at_most,
    distance_apart,
    extended,
    gathered,
    is_near,
    known_steps,
    one_of,
    origin_of,
    parted_lines,
    regions,
    touched_by_all,
)
from tilewright.cost.handed import HandOvers, largest
from tilewright.cost.lengths import known, short
from tilewright.cost.machine import Machine
from tilewright.cost.phases import LoopPrice, Touched, phases_price
from tilewright.cost.positions import applied
from tilewright.cost.repeated import repeating_cycles
from tilewright.cost.sought import read_of, seeking, seeking_cycles
from tilewright.cost.squares import squares_cycles
from tilewright.cost.vector_work import (
    Core,
    is_aligned,
    is_vector,
    loop_cycles,
    loop_values,
    scalar_cycles,
)
from tilewright.cost.waits import waits
from tilewright.ir.stage_axis import Role
from tilewright.ir.tile import (
    Check,
    Let,
    LetDistance,
    LetIndex,
    Loop,
    Product,
    Stage,
    Statement,
    Store,
    TileBuffer,
    TileProgram,
    TransposeBlock,
    Value,
)
from tilewright.ir.tile_repeated import repeats
from tilewright.ir.tile_walk import is_innermost, value_loads, value_symbols
from tilewright.shape import (
    Expr,
    constant,
    maximum,
    minimum,
    product,
    symbol,
    with_positive_divisors,
)
from tilewright.shape.expr import Atom

ZERO, ONE = constant(0), constant(1)
PHASES = (Loop, TransposeBlock, Stage, Product)  # what takes longer than others start before it


def loop_price(
    program: TileProgram, machine: Machine, sizes: Mapping[str, Expr] | None = None
) -> LoopPrice:
    """What a program costs; ``sizes`` are the elements of its tensors, by name, where known."""
    walk = _Walk(machine, sizes or {})
    phases, contested = walk.tasks(program)
    grid = [size for _, size in program.grid]
    return phases_price(phases, grid, contested, walk.sizes, machine)


def statement_cycles(
    statements: Iterable[Statement], machine: Machine, around: Iterable[tuple[str, Expr]] = ()
) -> Expr:
    """Thousandths of cycles of statements that run once, whatever it takes to read.

    They may name variables ``around`` them, each with its number of values: a usual turn counts.
    """
    walk = _Walk(machine, {})
    for name, size in around:
        walk.declare(name, ZERO, size)
    made = walk.statements(statements)
    return made.cycles + made.turning


class _Walk:
    """Goes over the statements of a program."""

    def __init__(self, machine: Machine, sizes: Mapping[str, Expr]) -> None:
        self.machine = machine
        self.core = Core(machine.target, machine.core.loops)
        self.costs = machine.core.loops
        self.sizes = sizes
        self.middle: dict[str, Expr] = {}
        self.extent: dict[str, Expr] = {}
        self.around: list[str] = []
        self.origins: dict[str, frozenset[str]] = {}
        self.begins: dict[str, Expr] = {}
        self.handed = HandOvers(self.core, self.middle, self.extent)
        self.applied: frozenset[Atom] = frozenset()

    # ------------------------------------------------------------ loops

    def tasks(self, program: TileProgram) -> tuple[list[Touched], Expr]:
        """All tasks, one after the other, by the phases of a task: loops that follow each other.

        Beside them lines that a task stores and the next one too.
        """
        for name, size in program.grid:
            self._enter(name, ZERO, size)
        self.handed = self.handed.within(program)
        phases = self._phases(program.body)
        phases[0].cycles = phases[0].cycles + round(1000 * self.costs.task)
        once = [access for phase in phases for access in phase.accesses]
        contested = parted_lines(once, program.grid[-1][0]) if program.grid else ZERO
        for name, size in reversed(program.grid):
            everything = [access for phase in phases for access in phase.accesses]
            phases = [self._repeated(phase, name, size, everything) for phase in phases]
        return phases, contested

    def _phases(self, body: Sequence[Statement]) -> list[Touched]:
        """Statements in order: a loop with what comes before it, and what follows the last one."""
        parts = self._parts(body)
        made = [Touched()]
        for number, (statement, part) in enumerate(zip(body, parts, strict=True)):
            made[-1] = made[-1].then(part)
            later = body[number + 1 :]
            if isinstance(statement, PHASES) and any(isinstance(s, PHASES) for s in later):
                made.append(Touched())
        return made

    def declare(self, name: str, begin: Expr, length: Expr) -> None:
        """Say what values a variable has."""
        outer = {n: self.middle[n] for n in begin.free_symbols if n in self.middle}
        first = begin.substitute(outer) if outer else begin
        self.middle[name] = first + maximum(length - 1, 0) // 2
        self.extent[name] = length

    def _enter(self, name: str, begin: Expr, length: Expr) -> None:
        self.declare(name, begin, length)
        self.around.append(name)
        if begin is not ZERO:
            self.begins[name] = begin

    def length(self, begin: Expr, end: Expr) -> Expr:
        """Iterations of a loop, in the mean over the one around it and in the middle of others."""
        usual = end - begin
        free = usual.free_symbols
        local = [name for name in self.extent if name in free]
        return known(self._usual(usual, local) if local else usual)

    def middle_of(self, length: Expr) -> Expr:
        """A length in the middle of the loops around it."""
        local = {n: self.middle[n] for n in length.free_symbols if n in self.extent}
        return known(length.substitute(local) if local else length)

    def _usual(self, length: Expr, local: Sequence[str]) -> Expr:
        """The mean over the turns of the innermost of these loops, with the others in their middle.

        All turns but the last are alike. The last has what is left: of 8 rows, 7 at a time, one.
        """
        *outer, inner = local
        length = length.substitute({name: self.middle[name] for name in outer}) if outer else length
        usual = length.substitute({inner: self.middle[inner]})
        count = self.extent[inner]
        last = length.substitute({inner: count - 1})
        if last is usual:
            return usual
        count = maximum(count, 1)
        return ((count - 1) * maximum(usual, 0) + maximum(last, 0) + count // 2) // count

    def statements(self, body: Iterable[Statement]) -> Touched:
        """Statements in order."""
        made = Touched()
        for part in self._parts(list(body)):
            made = made.then(part)
        return made

    def _parts(self, body: Sequence[Statement]) -> list[Touched]:
        """Each statement: what an earlier one has touched comes from nearer."""
        parts = [self.statement(statement) for statement in body]
        loops = [(n, s) for n, s in enumerate(body) if isinstance(s, Loop)]
        lengths = {n: self.length(s.begin, s.end) for n, s in loops}
        computed = {n: parts[n].cycles + parts[n].turning for n, _ in loops}
        waiting = largest((waits(self.core, body, lengths), self.handed.waits(body, computed)))
        repeated = self._merge(parts)
        everything = [access for part in parts for access in part.accesses]
        for number, part in enumerate(parts):
            part.cycles = part.cycles + waiting.get(number, ZERO)
            if repeated[number] is not ZERO:
                part.again.append((repeated[number], self._footprint(everything)))
        return parts

    def _merge(self, parts: Sequence[Touched]) -> list[Expr]:
        """Leaves alike accesses once, and returns the bytes that each part touches again."""
        first: dict[object, int] = {}
        found: dict[object, tuple[int, Access]] = {}
        repeated = [ZERO] * len(parts)
        for number, part in enumerate(parts):
            for access in part.accesses:
                place = access.buffer if access.is_store else (access.buffer, access.origin)
                written = first.get(access.buffer, number)
                earliest = min(first.setdefault(place, number), written)
                if earliest != number and not access.is_store:
                    repeated[number] = repeated[number] + access.moved(self.sizes)
                key = (access.key, access.origin)
                before, kept = found.get(key, (number, access))
                found[key] = before, access if kept.count < access.count else kept
        for number, part in enumerate(parts):
            part.accesses = [access for own, access in found.values() if own == number]
        return repeated

    def statement(self, statement: Statement) -> Touched:
        """One statement."""
        match statement:
            case Loop():
                return self._loop(statement)
            case Store(value=value):
                return self._once((value,), (statement,), 1.0)
            case Let(value=value) | Check(value=value):
                return self._once((value,), (), 0.0)
            case LetIndex(name=name, value=value):
                self.origins[name] = self._variables(value_symbols(value, {}))
                cycles = self.costs.index if statement.check is None else self.costs.checked
                return self._once((value,), (), cycles / self.costs.scalar)
            case LetDistance():
                return self._once((), (), 1.0)
            case TransposeBlock():
                return self._turned(statement)
            case Product(rows=rows, columns=columns, depth=depth):
                return self._multiplied(product([self.length(*b) for b in (rows, columns, depth)]))
            case Stage():
                return self._stage(statement)

    def _multiplied(self, count: Expr) -> Touched:
        lanes = self.core.lanes(4) * max(1, round(self.core.target.fma_pipes))
        return Touched(cycles=count * 1000 // lanes)

    def _once(self, values: Sequence[Value], stores: Sequence[Store], steps: float) -> Touched:
        cycles = scalar_cycles(self.core, values) + steps * self.costs.scalar
        return Touched(self._accesses(values, stores), [], constant(round(1000 * cycles)))

    def _stage(self, stage: Stage) -> Touched:
        axes = [axis for axis in stage.axes if axis.role is Role.REDUCTION]
        for axis in stage.axes:
            count = with_positive_divisors(axis.count)
            self.extent[str(axis.begin)] = self.extent[str(axis.end)] = count
            middle = maximum(count - 1, 0) // 2 * axis.block
            self.middle[str(axis.begin)] = middle
            self.middle[str(axis.end)] = minimum(middle + axis.block, axis.extent)
        made = self.statements((*stage.load, *stage.body, *stage.store))
        for axis in reversed(axes):
            made = self._repeated(made, str(axis.begin), self.extent[str(axis.begin)])
        return made

    def _loop(self, loop: Loop) -> Touched:
        length = self.length(loop.begin, loop.end)
        self._enter(loop.variable, loop.begin, length)
        if is_innermost(loop):
            values, stores = loop_values(loop), [s for s in loop.body if isinstance(s, Store)]
            made = Touched(self._accesses(values, stores), [], ZERO)
            self.around.pop()
            found = seeking(self.core, loop)
            read = length if found is None else read_of(length)
            made = self._repeated(made, loop.variable, read)
            if found is None:
                made.cycles = loop_cycles(self.core, loop, length)
            else:
                made.cycles = seeking_cycles(self.core, loop, found, length)
            made.cycles = made.cycles + self._bounds(loop)
            return made
        made = self.statements(loop.body)
        repeated = repeats(loop)
        if repeated is not None:
            self.around.pop()
            made = self._repeated(replace(made, cycles=ZERO), loop.variable, length)
            made.cycles = repeating_cycles(self.core, repeated, length) + self._bounds(loop)
            return made
        if loop.begin.is_boolean and loop.end.is_boolean and length is not ONE:
            made.accesses = [replace(a, asked=a.asked * length) for a in made.accesses]
        is_plain = all(is_vector(part) for part in loop.body)
        own = scalar_cycles(self.core, [a.value for a in loop.accumulators])
        steps = 0.0 if is_plain else self.costs.scalar * 2
        made.cycles = made.cycles + round(1000 * (own + steps))
        self.around.pop()
        made = self._repeated(made, loop.variable, length)
        if not (is_plain and length.is_constant) and length is not ONE:
            made.cycles = made.cycles + self._entered(length)
        made.cycles = made.cycles + self._bounds(loop)
        return made

    def _bounds(self, loop: Loop) -> int:
        """Thousandths of cycles to compute where a loop begins and ends in each turn around it."""
        if not self.around:
            return 0
        found = applied(loop.begin, self.around[-1]) | applied(loop.end, self.around[-1])
        new = found - self.applied
        self.applied |= new
        return round(1000 * self.costs.scalar * len(new))

    def _entered(self, length: Expr) -> Expr:
        """Thousandths of cycles to enter a loop, and of the test alone where it does not run."""
        asked = round(2000 * self.costs.scalar)
        return minimum(length, 1) * (round(1000 * self.costs.enter) - asked) + asked

    def _repeated(
        self,
        made: Touched,
        variable: str,
        count: Expr,
        everything: Sequence[Access] | None = None,
    ) -> Touched:
        """The same in a loop: accesses that it moves touch more, others the same again.

        A turn of the loop touches ``everything``, which is what it does here if that is not given.
        """
        again = [(short(b) * count, d) for b, d in made.again]
        moved = self._once_more([a for a in made.accesses if variable not in a.pending])
        if moved is not ZERO and count is not ONE:
            more = maximum(count - 1, 0)
            around = made.accesses if everything is None else everything
            again.append((short(moved) * more, self._footprint(around)))
        accesses = [extended(access, variable, count) for access in made.accesses]
        cycles, turning = short(made.cycles) * count, short(made.turning) * count
        return Touched(accesses, gathered(again), cycles, turning)

    def _once_more(self, accesses: Sequence[Access]) -> Expr:
        """Bytes that come from afar when the same is touched in a next turn.

        What touches a buffer first brings its lines near, be it to read or to write them; what
        touches them later in a turn was counted by the statement that does.
        """
        found: dict[TileBuffer, tuple[bool, list[tuple[Expr, Expr]]]] = {}
        for access in accesses:
            is_store, own = found.setdefault(access.buffer, (access.is_store, []))
            if access.is_store is is_store:
                own.append((access.origin, access.moved(self.sizes)))
        moved = ZERO
        for buffer, (is_store, own) in found.items():
            touched = at_most(buffer, touched_by_all(buffer, own, is_store), self.sizes)
            moved = moved + (touched * round(4 * self.costs.again) // 4 if is_store else touched)
        return moved

    # ------------------------------------------------------------ accesses

    def _variables(self, names: Iterable[str]) -> frozenset[str]:
        found: set[str] = set()
        for name in names:
            if name in self.origins:
                found |= self.origins[name]
            elif name in self.extent:
                found.add(name)
        return frozenset(found)

    def _accesses(self, values: Sequence[Value], stores: Sequence[Store]) -> list[Access]:
        """What values and stores touch; those that differ by where they begin are one."""
        loads = {load for value in values for load in value_loads(value)}
        ordered = sorted(loads, key=lambda load: (load.buffer.name, str(load.offset)))
        places = [(load.buffer, load.offset, False) for load in ordered]
        places += [(store.buffer, store.offset, True) for store in stores]
        found: dict[tuple[object, ...], list[Access]] = {}
        for place in dict.fromkeys(places):
            access = self._access(*place)
            alike = found.setdefault(access.key, [])
            if not any(is_near(access, other) for other in alike):
                alike.append(access)
        return [one_of(alike) for alike in found.values()]

    def _access(self, buffer: TileBuffer, offset: Expr, is_store: bool) -> Access:
        moved = {n: self.begins[n] + symbol(n) for n in self.around if n in self.begins}
        for name in reversed(self.around):
            if name in moved and name in offset.free_symbols:
                offset = offset.substitute({name: moved[name]})
        names = self._variables(offset.free_symbols)
        direct = [name for name in self.around if name in offset.free_symbols]
        affine = offset.affine(direct)
        steps, rest = affine if affine is not None else (known_steps(offset, direct), ZERO)
        pending: dict[str, str] = {}
        for name in self.around:
            if name in names:
                distance = steps.get(name)
                pending[name] = f"?{name}" if distance is None else str(distance)
        parts = {
            part: pending[name]
            for name in moved
            if name in pending
            for part in self.begins[name].free_symbols
            if part in pending
        }
        return Access(
            buffer, {}, pending, offset, is_store, distance_apart(pending, buffer.dtype.bytes),
            origin=origin_of(rest, steps.values()), chunks=parts,
            distances={str(step): with_positive_divisors(step) for step in steps.values()},
            crosses=not (is_store or buffer.scratch) and self._crosses(offset, steps, buffer),
        )  # fmt: skip

    def _crosses(self, offset: Expr, steps: Mapping[str, Expr], buffer: TileBuffer) -> bool:
        """Whether vectors of the innermost loop may begin beside a line."""
        inner = self.around[-1] if self.around else ""
        is_along = steps.get(inner) is ONE
        return is_along and not is_aligned(self.core, offset, inner, buffer.dtype.bytes)

    def _footprint(self, accesses: Sequence[Access]) -> Expr:
        """Bytes that all of them touch."""
        return short(sum((e for e, _ in regions(accesses, self.sizes).values()), ZERO))

    def _turned(self, block: TransposeBlock) -> Touched:
        rows, columns = self.length(ZERO, block.rows), self.length(ZERO, block.columns)
        usual = self.middle_of(block.rows), self.middle_of(block.columns)
        cycles = squares_cycles(self.core, block, usual, (rows, columns))
        read = self._access(block.source, block.source_offset, False)
        written = self._access(block.target, block.target_offset, True)
        down, beside = TURNED
        along = {beside: columns * block.run, down: rows}
        across = {down: rows * block.run, beside: columns}
        sides = ((read, along), (written, across))
        accesses = [replace(a, extents=extents, apart=1) for a, extents in sides]
        return Touched(accesses, [], ZERO, cycles + round(1000 * self.costs.turn_call))


__all__ = ["loop_price", "statement_cycles"]
