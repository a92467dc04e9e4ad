"""Every access that a tile program makes to memory, with the loops around it, in program order.

Loop variables, index locals and the bounds of blocks are replaced by *axes*: fresh symbols that
count from 0. Whatever names something that is not there is listed as a problem. Start with
:func:`trace`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tilewright.ir.tile import (
    IDENTITY,
    OUTSIDE,
    Apply,
    Check,
    Contraction,
    Convert,
    Gathering,
    Guarded,
    IndexValue,
    Let,
    LetIndex,
    Load,
    Local,
    Loop,
    LoopProgram,
    Operand,
    Packing,
    Product,
    Statement,
    Store,
    TileBuffer,
    TileProgram,
    TransposeBlock,
    Value,
)
from tilewright.shape import (
    Expr,
    Scope,
    ceil_div,
    constant,
    logical_not,
    maximum,
    minimum,
    symbol,
)
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
    """What a program does to memory, and what is wrong with its structure."""

    accesses: dict[Access, None] = field(default_factory=dict[Access, None])
    problems: dict[str, None] = field(default_factory=dict[str, None])
    unread: list[str] = field(default_factory=list[str])  # accesses that are not followed


def trace(program: TileProgram, scope: Scope) -> Trace:
    """All accesses; axes become names of ``scope``, without their extents as upper bounds."""
    found = Trace()
    if isinstance(program, LoopProgram):
        block = _Block(program, scope, found)
        for name, size in program.grid:
            block.axis(name, constant(0), size, task=True)
        block.statements(program.body)
    else:
        _Contraction(program, scope, found).run()
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

    def inner(self) -> _Block:
        """A block inside of this one."""
        made = _Block(self.program, self.scope, self.found)
        made.names, made.locals = dict(self.names), set(self.locals)
        made.nest, made.under, made.dead = self.nest, self.under, self.dead
        made.seen = [*self.seen, set()]
        return made

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
                case Product():
                    self._product(statement)
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
        read = block.source_offset + row * block.source_row + column
        inner.access(block.source, read, writes=False, width=block.target.dtype.bytes)
        written = block.target_offset + column * block.target_row + row
        inner.access(block.target, written, writes=True)

    def _product(self, product: Product) -> None:
        self.known(product.resume)
        row, column, left = self._of_product(product, product.columns)
        depth = left.axis("depth of the product", constant(0), product.depth)
        place = product.left_offset + row * product.left_row + depth * product.left_depth
        left.access(product.left, place, writes=False)
        lines = product.whole_lines(product.columns)
        wide = lines if product.right.scratch else product.columns
        row, column, right = self._of_product(product, wide)
        depth = right.axis("depth of the product", constant(0), product.depth)
        place = product.right_offset + depth * product.right_depth + column
        right.access(product.right, place, writes=False)
        row, column, target = self._of_product(product, lines)
        place = product.target_offset + row * product.target_row + column
        if product.resume is not constant(0):
            target.access(product.target, place, writes=False)
        target.access(product.target, place, writes=True)

    def _of_product(self, product: Product, columns: Expr) -> tuple[Expr, Expr, _Block]:
        """A row, a column, and the block of all of them: without either nothing is read."""
        block = self.inner()
        row = block.axis("row of the product", constant(0), product.rows)
        return row, block.axis("column of the product", constant(0), columns), block


def _is_table(value: Value) -> bool:
    """Whether a value is read from memory as it lies there."""
    return isinstance(value.operand if isinstance(value, Convert) else value, Load)


class _Contraction:
    """The accesses of a product: blocks, what fills them, the register tiles, the epilogue."""

    def __init__(self, program: Contraction, scope: Scope, found: Trace) -> None:
        self.program = program
        self.width = program.dtype.bytes
        self.tasks = _Block(program, scope, found)
        for name, size in program.batch:
            self.tasks.axis(name, constant(0), size, task=True)
        self.whole = self.tasks.inner()
        self._blocks(self.tasks, ("_nb", "_n", program.n, program.block_n))
        self._blocks(self.tasks, ("_mb", "_m", program.m, program.block_m))

    def _blocks(self, block: _Block, axis: tuple[str, str, Expr, Expr], least: int = 0) -> None:
        """Bind the first and last index of a block of an axis."""
        name, stem, size, step = axis
        count = maximum(ceil_div(size, step), least)
        first = block.axis(name, constant(0), count, task=not least) * block.known(step)
        block.names[f"{stem}0"] = first
        block.names[f"{stem}1"] = minimum(first + block.meant(step), block.known(size))

    def run(self) -> None:
        """All accesses in order."""
        program, found = self.program, self.tasks.found
        if isinstance(program.left, Gathering):
            self._gathering(program.left)
        else:
            self._operand(program.left, program.m)
        deep = self.tasks.inner()
        self._blocks(deep, ("_kb", "_k", program.k, program.block_k), least=1)
        if isinstance(program.right, Packing):
            self._packing(program.right, deep)
        else:
            self._operand(program.right, program.n)
        for store in program.stores:
            staged = store.buffer in program.stages
            block = (self.tasks if staged else self.whole).inner()
            if staged:
                block.axis("_m", symbol("_m0"), symbol("_m1"))
                block.axis("_n", symbol("_n0"), symbol("_n1"))
            else:
                block.axis("_m", constant(0), program.m, task=True)
                block.axis("_n", constant(0), program.n, task=True)
            block.locals.add("accumulator")
            block.statements((store,))
        after = self.tasks.inner()
        after.statements(program.after)
        for stage in program.stages:
            if not any(a.buffer == stage and not a.writes for a in found.accesses):
                self.tasks.problem(f"nothing empties the stage {stage.name}")

    def _operand(self, operand: Operand, size: Expr) -> None:
        """What register tiles read in place."""
        block = self.whole.inner()
        if operand.panel:
            panel = block.axis("panel", constant(0), ceil_div(size, operand.panel))
            within = block.axis("row of the panel", constant(0), constant(operand.panel))
            row = panel * operand.panel * operand.row + within
        else:
            row = block.axis("row of the tile", constant(0), size) * operand.row
        depth = block.axis("depth", constant(0), self.program.k) * operand.depth
        block.access(operand.buffer, operand.base + row + depth, False, self.width)

    def _packing(self, packing: Packing, block: _Block) -> None:
        """What fills the block of the right operand, and what reads it."""
        block.statements(packing.body)
        k = block.axis("depth of the block", symbol("_k0"), symbol("_k1"))
        n = block.axis("column of the block", symbol("_n0"), symbol("_n1"))
        place = (k - block.names["_k0"]) * packing.row + (n - block.names["_n0"])
        block.access(packing.target, place, False)

    def _gathering(self, left: Gathering) -> None:
        """What fills the table of the left operand, what reads it, and where its runs lie."""
        program, block = self.program, self.tasks.inner()
        block.names[OUTSIDE] = constant(0)
        block.statements(left.body)
        runs = block.axis("run", constant(0), ceil_div(program.k, left.run))
        row = block.axis("row of the block", symbol("_m0"), symbol("_m1")) - block.names["_m0"]
        if left.shifts is None:
            block.access(left.table, runs * left.row + row, False)
        else:
            block.access(left.table, row, False)
            block.access(left.shifts, runs, False)
        if left.zeros is not None:
            element = block.axis("element of the run", constant(0), left.run)
            block.access(left.zeros, element, False)
        self.tasks.found.unread.append(f"runs of {left.buffer.name} that a table names")


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
