"""Walking and rewriting tile programs: every index expression, and substitution in all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from tilewright.ir.listed_view import ListedView
from tilewright.ir.scalar import DIVISIONS, SIMPLE_FUNCTIONS, table_of
from tilewright.ir.stage_axis import StageAxis
from tilewright.ir.tile import (
    Accumulator,
    Apply,
    Check,
    CodeView,
    Convert,
    Finish,
    Guarded,
    IndexValue,
    Let,
    LetDistance,
    LetIndex,
    Literal,
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
    TransposeBlock,
    Value,
    View,
)
from tilewright.shape import Expr

_OF_TRANSPOSE = (
    "source_offset", "source_row", "target_offset", "target_row", "rows", "columns", "run",
)  # fmt: skip


def value_expressions(value: Value, seen: set[int] | None = None) -> Iterator[Expr]:
    """Every index expression inside a value, shared parts once."""
    visited = set[int]() if seen is None else seen
    if id(value) in visited:
        return
    visited.add(id(value))
    match value:
        case Load(offset=offset):
            yield offset
        case IndexValue(expression=expression):
            yield expression
        case Apply(operands=operands):
            for operand in operands:
                yield from value_expressions(operand, visited)
        case Convert(operand=operand):
            yield from value_expressions(operand, visited)
        case Guarded(predicate=predicate, inside=inside, outside=outside):
            yield predicate
            yield from value_expressions(inside, visited)
            yield from value_expressions(outside, visited)
        case _:
            pass


def slope(offset: Expr, variable: str) -> int | None:
    """0, 1 (elements per step of the variable), or None for anything else."""
    found = stride(offset, variable)
    return found if found in (0, 1) else None


def stride(offset: Expr, variable: str) -> int | None:
    """Elements per step of the variable, or None where that is no known number."""
    if variable not in offset.free_symbols:
        return 0
    affine = offset.affine((variable,))
    if affine is None:
        return None
    found = affine[0][variable]
    return found.value if found.is_constant else None


def is_beside(value: Value, variable: str) -> bool:
    """Whether neighbouring values of a loop's variable need vectors that lie side by side only.

    Loads have stride 1 or 0 then, and nothing else depends on the position.
    """
    match value:
        case Apply(operands=operands):
            return all(is_beside(operand, variable) for operand in operands)
        case Convert(operand=operand):
            return is_beside(operand, variable)
        case Guarded():
            return False
        case IndexValue(expression=expression):
            return variable not in expression.free_symbols
        case _:
            return all(slope(load.offset, variable) is not None for load in value_loads(value))


def may_fault(part: Value) -> bool:
    """Whether a part of a value must not be computed where the loop has no element.

    Whole numbers are divided by 0 there.
    """
    if isinstance(part, Guarded):
        return True
    return isinstance(part, Apply) and part.function in DIVISIONS and part.dtype.is_integer


def is_innermost(loop: Loop) -> bool:
    """Whether a loop has nothing inside that is more than values."""
    return all(isinstance(part, Let | Store) for part in loop.body)


def own_values(loop: Loop) -> list[Value]:
    """What the statements of a loop compute, but for those of loops inside, and what it reduces."""
    values = [part.value for part in loop.body if isinstance(part, Let | Store)]
    return values + [accumulator.value for accumulator in loop.accumulators]


def is_light_on_bytes(loop: Loop) -> bool:
    """Whether an innermost loop without reductions computes little of elements of one byte.

    Where no registers hold masks, bytes under a mask are moved one by one, which takes longer than
    light work: whoever writes such a loop takes no masks for it, and whoever prices it counts none.
    """
    values = own_values(loop)
    accesses = [load for value in values for load in value_loads(value)]
    stores = [part for part in loop.body if isinstance(part, Store)]
    widths = {access.buffer.dtype.bytes for access in (*accesses, *stores)}
    parts = (part for value in values for part in value_parts(value))
    are_light = all(not is_function(part) or is_lookup(part) for part in parts)
    return 1 in widths and not loop.accumulators and are_light


def is_function(part: Value) -> bool:
    """Whether a part of a value is a function of several instructions."""
    return isinstance(part, Apply) and part.function not in SIMPLE_FUNCTIONS


def is_lookup(part: Value) -> bool:
    """Whether a part of a value looks up what a function gives for a byte."""
    return isinstance(part, Apply) and table_of(part.function) is not None


def looks_up_bytes(loop: Loop) -> bool:
    """Whether an innermost loop looks up what functions give for bytes."""
    return any(is_lookup(part) for value in own_values(loop) for part in value_parts(value))


def lies_near(part: Value, variable: str, is_picked: Callable[[Load], bool]) -> bool:
    """Whether a vector of a part of a value needs no more than whole vectors of memory.

    ``is_picked`` says whether the elements of a load that lie apart are picked out of such.
    """
    match part:
        case Load(offset=offset):
            return slope(offset, variable) is not None or is_picked(part)
        case IndexValue(expression=expression):
            return stride(expression, variable) is not None
        case _:
            return not isinstance(part, Guarded)


def is_side_by_side(loop: Loop) -> bool:
    """Whether an innermost loop reduces nothing, and neighbours are all that it reads and writes.

    What is the same in all iterations may be anywhere.
    """
    if loop.accumulators or not is_innermost(loop):
        return False
    parts = [part for part in loop.body if isinstance(part, Let | Store)]
    return all(
        is_beside(part.value, loop.variable)
        and (isinstance(part, Let) or slope(part.offset, loop.variable) == 1)
        for part in parts
    )


def reduces_side_by_side(loop: Loop) -> bool:
    """Whether a loop does nothing but reduce what lies side by side, and functions of positions."""
    if loop.body or not loop.accumulators:
        return False
    parts = [part for a in loop.accumulators for part in value_parts(a.value)]
    places = [part.offset for part in parts if isinstance(part, Load)]
    positions = [part.expression for part in parts if isinstance(part, IndexValue)]
    return (
        any(slope(place, loop.variable) == 1 for place in places)
        and all(slope(place, loop.variable) is not None for place in places)
        and all(stride(position, loop.variable) is not None for position in positions)
        and not any(isinstance(part, Guarded) for part in parts)
    )


def value_parts(value: Value) -> Iterator[Value]:
    """A value and what it is computed of, as often as that is used; nothing under a condition."""
    yield value
    match value:
        case Apply(operands=operands):
            for operand in operands:
                yield from value_parts(operand)
        case Convert(operand=operand):
            yield from value_parts(operand)
        case _:
            pass


def value_loads(value: Value) -> Iterator[Load]:
    """Every load inside a value."""
    match value:
        case Load():
            yield value
        case Apply(operands=operands):
            for operand in operands:
                yield from value_loads(operand)
        case Convert(operand=operand):
            yield from value_loads(operand)
        case Guarded(inside=inside, outside=outside):
            yield from value_loads(inside)
            yield from value_loads(outside)
        case _:
            pass


def is_strided(values: Iterable[Value], variable: str) -> bool:
    """Whether elements are loaded that lie as far apart as a size says."""
    for load in (load for value in values for load in value_loads(value)):
        affine = load.offset.affine((variable,))
        step = None if affine is None else affine[0].get(variable)
        if step is not None and not step.is_constant:
            return True
    return False


def value_symbols(value: Value, known: dict[Value, frozenset[str]]) -> frozenset[str]:
    """Loop variables and locals that a value depends on; ``known`` holds those of its parts."""
    found = known.get(value)
    if found is not None:
        return found
    match value:
        case Load(offset=expression) | IndexValue(expression=expression):
            found = frozenset(expression.free_symbols)
        case Apply(operands=operands):
            found = frozenset[str]().union(*(value_symbols(o, known) for o in operands))
        case Convert(operand=operand):
            found = value_symbols(operand, known)
        case Local(name=name):
            found = frozenset((name,))
        case Guarded(predicate=predicate, inside=inside, outside=outside):
            sides = value_symbols(inside, known) | value_symbols(outside, known)
            found = sides.union(predicate.free_symbols)
        case Literal():
            found = frozenset[str]()
    known[value] = found
    return found


def value_buffers(value: Value, seen: set[int] | None = None) -> Iterator[TileBuffer]:
    """The memory that a value reads, shared parts once."""
    visited = set[int]() if seen is None else seen
    if id(value) in visited:
        return
    visited.add(id(value))
    match value:
        case Load(buffer=buffer):
            yield buffer
        case Apply(operands=operands):
            for operand in operands:
                yield from value_buffers(operand, visited)
        case Convert(operand=operand):
            yield from value_buffers(operand, visited)
        case Guarded(inside=inside, outside=outside):
            yield from value_buffers(inside, visited)
            yield from value_buffers(outside, visited)
        case _:
            pass


def expressions(statements: Iterable[Statement]) -> Iterator[Expr]:
    """Every index expression inside statements, loop bounds included."""
    for statement in statements:
        match statement:
            case Let(value=value) | Check(value=value):
                yield from value_expressions(value)
            case LetIndex(value=value, limit=limit):
                yield limit
                yield from value_expressions(value)
            case Loop(begin=begin, end=end, body=body, accumulators=accumulators):
                yield from (begin, end, statement.streamed)
                yield from expressions(body)
                for accumulator in accumulators:
                    yield from value_expressions(accumulator.value)
            case Store(offset=offset, value=value):
                yield offset
                yield from value_expressions(value)
            case TransposeBlock():
                yield from (getattr(statement, name) for name in _OF_TRANSPOSE)
            case LetDistance(offset=offset):
                yield offset
            case Product():
                yield from _of_product(statement)
            case Stage(axes=axes):
                yield from (size for axis in axes for size in axis.sizes)
                yield from expressions((*statement.load, *statement.body, *statement.store))


def _of_product(product: Product) -> Iterator[Expr]:
    for operand in (product.left, product.right):
        yield from (operand.offset, operand.row, operand.depth)
        if isinstance(operand, RunTable):
            yield operand.run
        if isinstance(operand, CodeView):
            yield from (operand.place, operand.blocks)
        if isinstance(operand, ListedView):
            yield from (operand.line, operand.pitch)
    yield from (*product.rows, *product.columns, *product.depth)
    target = product.target
    if isinstance(target, Sums):
        yield from (target.offset, target.row, target.resume)
    else:
        yield from (target.streamed, target.ahead)
        yield from expressions(target.stores)


def stages(body: Iterable[Statement]) -> Iterator[Stage]:
    """Every stage among statements, those inside of others after them."""
    for statement in body:
        if isinstance(statement, Stage):
            yield statement
            yield from stages((*statement.load, *statement.body, *statement.store))


class ExpressionMap:
    """Applies a function to every index expression; shared values stay shared.

    Scalars that are bound under the names in ``scalars`` become these values. What is read of a
    buffer in ``read_from`` is read of the one that it maps to.
    """

    def __init__(
        self,
        expression: Callable[[Expr], Expr],
        scalars: Mapping[str, Value] | None = None,
        read_from: Mapping[TileBuffer, TileBuffer] | None = None,
    ) -> None:
        self.expression = expression
        self.scalars = dict(scalars or {})
        self.read_from = dict(read_from or {})
        self._values: dict[int, tuple[Value, Value]] = {}

    @staticmethod
    def substitution(
        mapping: Mapping[str, Expr], scalars: Mapping[str, Value] | None = None
    ) -> ExpressionMap:
        """The map that replaces names in index expressions, and scalars."""

        def replaced(e: Expr) -> Expr:
            return e.substitute(mapping)

        return ExpressionMap(replaced, scalars)

    def offset(self, _: TileBuffer, offset: Expr, /) -> Expr:
        """A place in a buffer, rewritten."""
        return self.expression(offset)

    def read(self, buffer: TileBuffer) -> TileBuffer:
        """The buffer that takes the place of one that is read."""
        return self.read_from.get(buffer, buffer)

    def stores(self, stores: Iterable[Store]) -> tuple[Store, ...]:
        """Stores rewritten in order."""
        return tuple(
            Store(s.buffer, self.offset(s.buffer, s.offset), self.value(s.value)) for s in stores
        )

    def value(self, value: Value) -> Value:
        """One value rewritten."""
        found = self._values.get(id(value))
        if found is not None:
            return found[1]
        made = self._value(value)
        self._values[id(value)] = (value, made)
        return made

    def _value(self, value: Value) -> Value:
        match value:
            case Load(buffer=buffer, offset=offset):
                return Load(self.read(buffer), self.offset(buffer, offset))
            case IndexValue(expression=expression, dtype=dtype):
                return IndexValue(self.expression(expression), dtype)
            case Apply(function=function, operands=operands, dtype=dtype):
                return Apply(function, tuple(map(self.value, operands)), dtype)
            case Convert(operand=operand, dtype=dtype):
                return Convert(self.value(operand), dtype)
            case Guarded(predicate=predicate, inside=inside, outside=outside):
                rewritten = self.expression(predicate)
                return Guarded(rewritten, self.value(inside), self.value(outside))
            case Local(name=name):
                return self.scalars.get(name, value)
            case _:
                return value

    def statement(self, statement: Statement) -> Statement:
        """One statement rewritten, with all inside it."""
        match statement:
            case Let() | Check():
                return replace(statement, value=self.value(statement.value))
            case LetIndex():
                limit = self.expression(statement.limit)
                return replace(statement, value=self.value(statement.value), limit=limit)
            case Loop():
                return replace(
                    statement,
                    begin=self.expression(statement.begin),
                    end=self.expression(statement.end),
                    streamed=self.expression(statement.streamed),
                    body=self.statements(statement.body),
                    accumulators=tuple(
                        Accumulator(a.name, a.kind, self.value(a.value))
                        for a in statement.accumulators
                    ),
                )
            case Store():
                offset = self.offset(statement.buffer, statement.offset)
                return replace(statement, offset=offset, value=self.value(statement.value))
            case TransposeBlock():
                made = {n: self.expression(getattr(statement, n)) for n in _OF_TRANSPOSE}
                return replace(statement, source=self.read(statement.source), **made)
            case LetDistance():
                return replace(statement, offset=self.expression(statement.offset))
            case Product():
                return self.product(statement)
            case Stage():
                return replace(
                    statement,
                    axes=tuple(map(self.axis, statement.axes)),
                    load=self.statements(statement.load),
                    body=self.statements(statement.body),
                    store=self.statements(statement.store),
                )

    def axis(self, axis: StageAxis) -> StageAxis:
        """An axis of a stage, rewritten."""
        extent, block, outermost = map(self.expression, axis.sizes)
        return replace(axis, extent=extent, block=block, outermost=outermost)

    def product(self, product: Product) -> Product:
        """A product, rewritten."""
        rewrite, target, left = self.expression, product.target, product.left
        if isinstance(target, Sums):
            offset, row = rewrite(target.offset), rewrite(target.row)
            target = replace(target, offset=offset, row=row, resume=rewrite(target.resume))
        left = self.view(left) if isinstance(left, View) else self.runs(left)
        right = self.view(product.right)
        rows, columns, depth = (
            (rewrite(begin), rewrite(end))
            for begin, end in (product.rows, product.columns, product.depth)
        )
        if isinstance(target, Finish):
            streamed, ahead = rewrite(target.streamed), rewrite(target.ahead)
            stores = self.stores(target.stores)
            target = replace(target, stores=stores, streamed=streamed, ahead=ahead)
        return replace(
            product, left=left, right=right, rows=rows, columns=columns, depth=depth, target=target
        )

    def view(self, view: View) -> View:
        """An operand, rewritten."""
        offset, row = self.expression(view.offset), self.expression(view.row)
        buffer, depth = self.read(view.buffer), self.expression(view.depth)
        made = replace(view, buffer=buffer, offset=offset, row=row, depth=depth)
        if isinstance(made, CodeView):
            place, blocks = self.expression(made.place), self.expression(made.blocks)
            return replace(made, place=place, blocks=blocks)
        if isinstance(made, ListedView):
            line, pitch = self.expression(made.line), self.expression(made.pitch)
            return replace(made, line=line, pitch=pitch)
        return made

    def runs(self, table: RunTable) -> RunTable:
        """An operand with a table, rewritten."""
        rewrite = self.expression
        run, row, depth = rewrite(table.run), rewrite(table.row), rewrite(table.depth)
        return replace(table, offset=rewrite(table.offset), run=run, row=row, depth=depth)

    def statements(self, statements: Iterable[Statement]) -> tuple[Statement, ...]:
        """Statements rewritten in order."""
        return tuple(self.statement(s) for s in statements)
