"""Every access that a tile program makes to memory, with the loops around it, in program order.

Loop variables, index locals and the bounds of blocks are replaced by *axes*: fresh symbols that
count from 0. Whatever names something that is not there is listed as a problem. Start with
:func:`trace`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from tilewright.ir.listed_view import ListedView
from tilewright.ir.stage_axis import NEVER, Role, StageAxis
from tilewright.ir.tile import (
    IDENTITY,
    Apply,
    Bounds,
    Check,
    CodeView,
    Convert,
    Finish,
    Guarded,
    IndexValue,
    Let,
    LetDistance,
    LetIndex,
    Load,
    Local,
    Loop,
    Product,
    RunTable,
    Stage,
    Statement,
    Store,
    Sums,
    TileBuffer,
    TileProgram,
    TransposeBlock,
    Value,
    View,
)
from tilewright.ir.tile_walk import expressions, value_buffers
from tilewright.shape import Expr, Scope, ceil_div, constant, logical_not, maximum, minimum, symbol
from tilewright.shape.table import Operation

AXIS = "_axis"


@dataclass(frozen=True)
class Axis:
    """A symbol that takes the values 0 to ``extent`` - 1; of a ``task``, tasks differ in it.

    One that is ``read`` is a position from memory: it takes one of these values each time.
    """

    name: str
    extent: Expr
    task: bool = False
    read: bool = False


@dataclass(frozen=True)
class Access:
    """Elements of ``buffer`` at ``offset`` for all values of the axes in ``nest``, outermost first.

    Only where every predicate in ``under`` is not 0. ``width`` is what an element has in bytes.
    """

    buffer: TileBuffer
    offset: Expr
    nest: tuple[Axis, ...]
    under: tuple[Expr, ...]
    writes: bool
    width: int

    def __str__(self) -> str:
        axes = ", ".join(f"{a.name} < {a.extent}" for a in self.nest)
        where = "".join(f" where {p}" for p in self.under)
        verb = "write" if self.writes else "read"
        return f"{verb} {self.buffer.name}[{self.offset}] for {axes}{where}"


@dataclass
class Trace:
    """What a program does to memory, and what is wrong with its structure.

    ``untracked`` are buffers that are read at places or at times which ``accesses`` do not tell.
    """

    accesses: dict[Access, None] = field(default_factory=dict[Access, None])
    problems: dict[str, None] = field(default_factory=dict[str, None])
    unread: list[str] = field(default_factory=list[str])  # accesses that are not followed
    untracked: dict[TileBuffer, None] = field(default_factory=dict[TileBuffer, None])  # read there
    finished: dict[TileBuffer, None] = field(default_factory=dict[TileBuffer, None])  # in scratch


def trace(program: TileProgram, scope: Scope) -> Trace:
    """All accesses; axes become names of ``scope``, without their extents as upper bounds."""
    found = Trace()
    block = _Block(program, scope, found)
    for name, size in program.grid:
        block.axis(name, constant(0), size, task=True)
    block.statements(program.body)
    for buffer in found.finished:
        if not any(a.buffer == buffer and not a.writes for a in found.accesses):
            block.problem(f"nothing reads {buffer.name}, to which results are stored")
    return found


class _Block:
    """The statements of one block: what names mean here, and the axes around it."""

    def __init__(self, program: TileProgram, scope: Scope, found: Trace) -> None:
        self.program = program
        self.scope = scope
        self.found = found
        self.names: dict[str, Expr] = {}
        self.locals: set[str] = set()
        self.nest: tuple[Axis, ...] = ()
        self.under: tuple[Expr, ...] = ()
        self.seen: list[set[int]] = [set()]
        self.dead = False
        self.around: dict[str, StageAxis] = {}  # axes of stages by the names of their begins

    def inner(self) -> _Block:
        """A block inside of this one."""
        made = _Block(self.program, self.scope, self.found)
        made.names, made.locals = dict(self.names), set(self.locals)
        made.nest, made.under, made.dead = self.nest, self.under, self.dead
        made.seen, made.around = [*self.seen, set()], dict(self.around)
        return made

    def whole(self, axis: StageAxis) -> None:
        """Let all blocks of an axis be a single one, of all positions."""
        kept = [a for a in self.nest if not self._counts(a, axis)]
        self.nest = tuple(kept)
        self.names |= {str(axis.begin): constant(0), str(axis.end): self.meant(axis.extent)}

    def _counts(self, counter: Axis, axis: StageAxis) -> bool:
        return self.names[axis.number] is symbol(counter.name)

    def axis(
        self, name: str, begin: Expr, end: Expr, task: bool = False, read: bool = False
    ) -> Expr:
        """Bind ``name``, as the program writes it, to values in [begin, end)."""
        first, extent = self.meant(begin), self.meant(end - begin)
        if extent.is_constant and extent.value <= 0:
            self.dead = True
            extent = constant(1)
        fresh = self.scope.fresh(AXIS)
        self.nest = (*self.nest, Axis(str(fresh), extent, task, read))
        self.names[name] = first + fresh
        return self.names[name]

    def meant(self, expression: Expr) -> Expr:
        """An expression of the program over sizes and axes."""
        return expression.substitute(self.names)

    def known(self, expression: Expr) -> Expr:
        """The same; a problem if something in it has no value here."""
        for name in expression.free_symbols:
            if name not in self.names and name not in self.scope.symbols:
                self.problem(f'nothing defines "{name}" in {expression}')
        return self.meant(expression)

    def problem(self, text: str) -> None:
        """Note that something is wrong."""
        self.found.problems[text] = None

    def access(self, buffer: TileBuffer, offset: Expr, writes: bool, width: int = 0) -> None:
        """Note an access to an element."""
        place = self.known(offset)
        if buffer not in self.program.buffers and not buffer.scratch:
            self.problem(f"{buffer.name} is no buffer of the program")
        results = self.program.buffers[len(self.program.buffers) - self.program.results :]
        if writes and not buffer.scratch and buffer not in results:
            self.problem(f"{buffer.name} is written, but is no result")
        if not self.dead:
            width = width or buffer.dtype.bytes
            made = Access(buffer, place, self.nest, self.under, writes, width)
            self.found.accesses[made] = None

    # ------------------------------------------------------------ values

    def value(self, value: Value) -> None:
        """All that a value reads."""
        if any(id(value) in seen for seen in self.seen):
            return
        self.seen[-1].add(id(value))
        match value:
            case Load(buffer=buffer, offset=offset):
                self.access(buffer, offset, writes=False)
            case IndexValue(expression=expression):
                self.known(expression)
            case Apply(operands=operands):
                for operand in operands:
                    self.value(operand)
            case Convert(operand=operand):
                self.value(operand)
            case Local(name=name):
                if not name.startswith(IDENTITY) and name not in self.locals:
                    self.problem(f'nothing defines the value "{name}" where it is used')
            case Guarded(predicate=predicate, inside=inside, outside=outside):
                truth = self.known(predicate)
                self._branch(truth, inside)
                self._branch(logical_not(truth), outside)
            case _:
                pass

    def _branch(self, condition: Expr, value: Value) -> None:
        block = self.inner()
        block.under = (*self.under, condition)
        block.value(value)

    # ------------------------------------------------------------ statements

    def statements(self, body: Iterable[Statement]) -> None:
        """Statements in order."""
        for statement in body:
            match statement:
                case Let(name=name, value=value):
                    self.value(value)
                    self.locals.add(name)
                case LetIndex(name=name, value=value, limit=limit):
                    self.value(value)
                    self.known(limit)
                    self._check_index(statement)
                    self.axis(name, constant(0), limit, read=True)
                case Store(buffer=buffer, offset=offset, value=value):
                    self.value(value)
                    self.access(buffer, offset, writes=True)
                case TransposeBlock():
                    self._transpose(statement)
                case LetDistance(name=name, buffer=buffer, offset=offset, target=target):
                    self.known(offset)
                    self.names[name] = constant(0)
                    self.found.untracked |= dict.fromkeys((buffer, target))
                case Product():
                    _Product(self, statement).run()
                case Stage():
                    self._stage(statement)
                case Check(value=value, check=check):
                    self.value(value)
                    self._check(check)
                case Loop():
                    self._loop(statement)

    def _check(self, number: int) -> None:
        if not 0 <= number < len(self.program.checks):
            self.problem(f"the program has no message {number}")

    def _check_index(self, statement: LetIndex) -> None:
        if statement.check is not None:
            self._check(statement.check)
        elif not _is_table(statement.value):
            self.problem(f'nothing checks the index "{statement.name}"')

    def _loop(self, loop: Loop) -> None:
        self.known(loop.begin)
        self.known(loop.end)
        block = self.inner()
        block.axis(loop.variable, loop.begin, loop.end)
        block.statements(loop.body)
        for accumulator in loop.accumulators:
            block.value(accumulator.value)
            self.locals.add(accumulator.name)

    def _transpose(self, block: TransposeBlock) -> None:
        inner = self.inner()
        row = inner.axis("row of the block", constant(0), block.rows)
        column = inner.axis("column of the block", constant(0), block.columns)
        place = constant(0)
        if block.run is not constant(1):
            place = inner.axis("place in the run", constant(0), block.run)
        read = block.source_offset + row * block.source_row + column * block.run + place
        inner.access(block.source, read, writes=False, width=block.target.dtype.bytes)
        written = block.target_offset + column * block.target_row + row * block.run + place
        inner.access(block.target, written, writes=True)

    def _stage(self, stage: Stage) -> None:
        inner = self.inner()
        for axis in stage.axes:
            inner.blocks(axis)
        for part in (stage.load, stage.body, stage.store):
            inner.statements(part)

    def blocks(self, axis: StageAxis) -> None:
        """Bind the ends of a block of an axis."""
        count, is_task = self.known(axis.count), axis.role is Role.PARALLEL
        if not is_task:
            number = self.axis(axis.number, constant(0), maximum(axis.count, 1))
        elif not set(axis.counters) <= set(self.program.grid):
            self.problem(f"the grid has not {count} blocks of {axis.stem}")
            return
        elif axis.outermost is NEVER:
            number = self.names[axis.number]
        else:
            number = self._counted(axis)
        first = number * self.known(axis.block)
        last = minimum(first + self.meant(axis.block), self.meant(axis.extent))
        self.names |= {str(axis.begin): first, str(axis.end): last}
        self.around[str(axis.begin)] = axis

    def _counted(self, axis: StageAxis) -> Expr:
        """Let one axis count the blocks that two of the grid do, of which one has the size 1."""
        counters = [self.names[name] for name, _ in axis.counters]
        self.nest = tuple(a for a in self.nest if symbol(a.name) not in counters)
        return self.axis(axis.number, constant(0), maximum(axis.count, 1), task=True)


def _is_table(value: Value) -> bool:
    """Whether a value is read from memory as it lies there."""
    return isinstance(value.operand if isinstance(value, Convert) else value, Load)


_ROW, _COLUMN, _DEPTH = "_row_of_product", "_column_of_product", "_depth_of_product"


class _Product:
    """The accesses of a product: operands, then sums or what finishes them.

    What moves on with the blocks of a stage is followed for all of them as for a single one.
    """

    def __init__(self, block: _Block, product: Product) -> None:
        self.block = block
        self.product = product
        self.width = product.dtype.bytes

    def run(self) -> None:
        """All accesses in order."""
        product, target = self.product, self.product.target
        if isinstance(product.left, RunTable):
            self._runs(product.left)
        else:
            self._view(product.left, _ROW, product.rows)
        wide, right = product.columns, product.right
        if isinstance(target, Sums) and right.buffer.scratch:
            wide = (wide[0], wide[0] + target.whole_lines(wide[1] - wide[0]))
        if isinstance(right, CodeView):
            self._codes(right)
        elif isinstance(right, ListedView):
            self._listed(right)
        else:
            self._view(right, _COLUMN, wide)
        if isinstance(target, Sums):
            self._sums(target)
        else:
            self._finish(target)

    def _view(self, view: View, name: str, bounds: Bounds) -> None:
        """What register tiles read as it lies."""
        depth, i, k = self.product.depth, symbol(name), symbol(_DEPTH)
        place = view.offset + (i - bounds[0]) * view.row + (k - depth[0]) * view.depth
        block = self.block.inner() if view.buffer.scratch else self._apart(place.free_symbols)
        first, last = block.known(bounds[0]), block.known(bounds[1])
        if view.panel:
            panel = block.axis("panel", constant(0), ceil_div(last - first, view.panel))
            within = block.axis("row of the panel", constant(0), constant(view.panel))
            place = place.substitute({name: first + panel * view.panel}) + within
        else:
            block.axis(name, first, last)
        block.axis(_DEPTH, block.known(depth[0]), block.known(depth[1]))
        block.access(view.buffer, place, False, self.width)

    def _codes(self, view: CodeView) -> None:
        """Words, scales and zero points of whole panels."""
        block = self._apart(view.offset.free_symbols)
        first, last = map(block.known, self.product.columns)
        panel = block.axis("panel", constant(0), ceil_div(last - first, view.panel))
        within = block.axis("row of the panel", constant(0), constant(view.panel))
        word = block.axis("word of the panel", constant(0), view.row)
        place = (panel * view.row + word) * view.panel + within
        block.access(view.buffer, view.offset + place, False)
        scale = block.axis("block of the panel", constant(0), view.blocks)
        place = (panel * view.blocks + scale) * view.panel + within
        for buffer in view.parameters:
            block.access(buffer, view.place + place, False)

    def _apart(self, names: Collection[str]) -> _Block:
        """A block in which the blocks of an axis are one if ``names`` do not tell which one it is.

        So it is with operands whose elements are at the same place whatever block they belong to.
        """
        block = self.block.inner()
        for axis in self.block.around.values():
            if not any(str(end) in names for end in axis.bounds):
                block.whole(axis)
        return block

    def _runs(self, left: RunTable) -> None:
        """The table of the left operand, and where its runs lie."""
        product = self.product
        block = self._apart({str(end) for end in (*product.rows, *product.columns)})
        runs = block.axis("run", constant(0), ceil_div(product.depth[1], left.run))
        row = block.axis(_ROW, *product.rows) - block.meant(product.rows[0])
        if left.shifts is None:
            block.access(left.table, runs * left.row + row, False)
        else:
            block.access(left.table, row, False)
            block.access(left.shifts, runs, False)
        if left.zeros is not None:
            element = block.axis("element of the run", constant(0), left.run)
            block.access(left.zeros, element, False)
        block.found.unread.append(f"runs of {left.buffer.name} that a table names")
        block.found.untracked[left.buffer] = None

    def _listed(self, right: ListedView) -> None:
        """The table of the right operand, and where its rows lie."""
        block = self.block.inner()
        begin, end = map(block.known, self.product.depth)
        step = block.axis(_DEPTH, begin, end) - block.meant(self.product.depth[0])
        block.access(right.shifts, step, False)
        block.found.unread.append(f"rows of {right.buffer.name} that a table names")
        block.found.untracked[right.buffer] = None

    def _sums(self, target: Sums) -> None:
        product, block = self.product, self.block.inner()
        block.known(target.resume)
        rows, columns = (end - begin for begin, end in (product.rows, product.columns))
        row = block.axis(_ROW, constant(0), rows)
        column = block.axis(_COLUMN, constant(0), product.written(target, columns))
        place = target.offset + row * target.row + column
        if target.resume is not constant(0):
            block.access(target.buffer, place, writes=False)
        block.access(target.buffer, place, writes=True)

    def _finish(self, target: Finish) -> None:
        found = self.block.found
        ends = {str(end) for axis in self.block.around.values() for end in axis.bounds}
        blocks: dict[frozenset[str], _Block] = {}  # what is stored element by element has one nest
        for store in target.stores:
            names = {n for expression in expressions((store,)) for n in expression.free_symbols}
            told = frozenset(names & ends)
            block = blocks.get(told)
            if block is None:
                block = blocks[told] = self._elements(names)
            block.statements((store,))
            if store.buffer.scratch:
                found.finished[store.buffer] = None
            if not self.product.finishes_once:
                found.untracked |= dict.fromkeys(value_buffers(store.value))

    def _elements(self, names: Collection[str]) -> _Block:
        """A block for every element of the product, whose stores depend on ``names``."""
        block = self._apart(names)
        for name, bounds in (("_m", self.product.rows), ("_n", self.product.columns)):
            around = self.block.around.get(str(bounds[0]))
            has_tasks = around is not None and around.count is not constant(1)
            block.axis(name, *bounds, task=has_tasks and str(bounds[0]) not in names)
        block.locals.add("accumulator")
        return block


def conjuncts(predicate: Expr) -> list[Expr]:
    """Expressions that are all >= 0 where the predicate holds; those that can be told."""
    atom = predicate.atom
    if atom is None:
        return []
    match atom.operation:
        case Operation.AND:
            return [d for operand in atom.operands for d in conjuncts(operand)]
        case Operation.LESS_EQUAL:
            return [atom.operands[1] - atom.operands[0]]
        case Operation.EQUAL:
            difference = atom.operands[1] - atom.operands[0]
            return [difference, -difference]
        case Operation.NOT:
            return _negated(atom.operands[0])
        case _:
            return []


def _negated(predicate: Expr) -> list[Expr]:
    atom = predicate.atom
    if atom is None:
        return []
    match atom.operation:
        case Operation.OR:
            return [d for operand in atom.operands for d in _negated(operand)]
        case Operation.LESS_EQUAL:
            return [atom.operands[0] - atom.operands[1] - 1]
        case _:
            return []


__all__ = ["Access", "Axis", "Trace", "conjuncts", "trace"]
