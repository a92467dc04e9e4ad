"""Tasks of several neighbouring rows whose elements are picked at the same positions.

Where elements of a row are picked at positions that a table lists, as along a resized axis, most of
the work is about the positions: they are read, asked whether they lie near each other, and counted
from the first one. Other rows pick at the same ones. So a task makes a few rows: the loop that
picks makes all of them in each turn, the others one after the other in scratch memory of each row.
Rows that are left over are made one by one, and all of them where the results are more than the
last cache keeps: a core that waits for memory gains nothing by computing less between the stores,
and stores of several rows wait longer. Start with :func:`with_rows_together`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.tile import (
    Convert,
    Let,
    LetIndex,
    Load,
    Local,
    Loop,
    Statement,
    Store,
    TileBuffer,
    TileProgram,
    Value,
)
from tilewright.ir.tile_walk import ExpressionMap, slope, value_buffers, value_parts, value_symbols
from tilewright.ir.views import declare_index
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    less_equal,
    logical_and,
    minimum,
    product,
    select,
    total,
)
from tilewright.target import Target
from tilewright.target.core_model import VECTORS_TOGETHER
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import LoweredStep

ROWS = VECTORS_TOGETHER  # of a task: one vector of each is made in a turn


def with_rows_together(step: LoweredStep, lowering: Lowering, target: Target) -> LoweredStep:
    """The step with several rows in each task, where its program is a nest of loops that picks."""
    program = step.program
    if not _picks(program.body):
        return step
    found = _shared_axis(program, lowering)
    if found is None:
        return step
    number, together = found
    variable, size = program.grid[number]
    blocks = ceil_div(size, ROWS)
    block = lowering.variable(blocks, "b")
    first = block * ROWS
    rows = together.rows([first + row for row in range(ROWS)])
    makes = logical_and(less_equal(first + ROWS, size), _is_kept(step, target))
    makes = lowering.scope.resolve(makes)
    end = minimum(first + ROWS, size)
    left = Loop(variable, select(makes, end, first), end, program.body)
    made = replace(
        program,
        grid=(*program.grid[:number], (str(block), blocks), *program.grid[number + 1 :]),
        body=(Loop(lowering.name("k"), constant(0), makes, rows), left),
        scratch=tuple(lowering.scratch),
    )
    return replace(step, program=made)


def _shared_axis(program: TileProgram, lowering: Lowering) -> tuple[int, _Together] | None:
    """The innermost axis of the grid whose rows share loops, if there are enough of them."""
    for number, (variable, size) in reversed(list(enumerate(program.grid))):
        together = _Together(variable, program.body, lowering)
        is_short = size.is_constant and size.value < ROWS
        if not is_short and together.is_shared:
            return number, together
    return None


def _is_kept(step: LoweredStep, target: Target) -> Expr:
    """Whether half of the last cache holds the results: the rest is for what is read."""
    results = [node for node in step.writes if isinstance(node, Node)]
    written = total(product(node.shape) * node.dtype.bytes for node in results)
    return less_equal(written * 2, target.levels[-2].capacity)


def _picks(body: Iterable[Statement]) -> bool:
    """Whether an innermost loop picks elements at positions that a table lists."""
    loops = [part for part in body if isinstance(part, Loop)]
    return any(_picks(loop.body) or any(_is_listed(p, loop) for p in loop.body) for loop in loops)


def _is_listed(part: Statement, loop: Loop) -> bool:
    match part:
        case LetIndex(value=Convert(operand=Load(buffer=buffer, offset=offset)), check=None):
            return buffer.dtype is DType.INT32 and slope(offset, loop.variable) == 1
        case _:
            return False


class _Row(ExpressionMap):
    """Statements for one of the rows: its own names and scratch memory."""

    def __init__(self, variable: str, place: Expr) -> None:
        self.places: dict[str, Expr] = {variable: place}
        super().__init__(lambda expression: expression.substitute(self.places))

    def copied(self, part: Statement, lowering: Lowering) -> Statement:
        """A statement of no loop, what it binds under a name of the row's own."""
        made = self.statement(part)
        match made:
            case Store():
                return replace(made, buffer=self.read(made.buffer))
            case Let(name=name, value=value):
                known = self.scalars.setdefault(name, Local(lowering.name("v"), value.dtype))
                assert isinstance(known, Local)
                return replace(made, name=known.name)
            case LetIndex(name=name, limit=limit):
                if name not in self.places:
                    self.places[name] = declare_index(lowering.scope, lowering.name("g"), limit)
                return replace(made, name=str(self.places[name]))
            case _:
                raise AssertionError(made)


class _Together:
    """The statements of a task over ``variable`` for several of its values at once."""

    def __init__(self, variable: str, body: Sequence[Statement], lowering: Lowering) -> None:
        self.lowering = lowering
        self.variable = variable
        self.body = body
        self.own: set[str] = {variable}  # names that each row has for itself
        self.private = dict.fromkeys(b for b in _stored(body) if b.scratch)
        self.symbols: dict[Value, frozenset[str]] = {}
        self.copies: list[_Row] = []
        self.is_shared = self._is_shared(body)

    def rows(self, places: Sequence[Expr]) -> tuple[Statement, ...]:
        """The statements for rows at ``places``."""
        self.copies = [_Row(self.variable, place) for place in places]
        for buffer in self.private:
            assert buffer.elements is not None
            for copy in self.copies[1:]:
                made = self.lowering.scratch_buffer(buffer.dtype, buffer.elements, buffer.fixed)
                copy.read_from[buffer] = made
        return self._statements(self.body)

    def _is_shared(self, body: Sequence[Statement]) -> bool:
        """Whether all loops have the same bounds in all rows; notes what is each row's own."""
        return all(self._is_shared_part(part) for part in body)

    def _is_shared_part(self, part: Statement) -> bool:
        match part:
            case Let(name=name, value=value):
                self._note(name, value)
                return True
            case LetIndex(name=name, value=value, limit=limit, check=check):
                self._note(name, value)
                return check is None and self.own.isdisjoint(limit.free_symbols)
            case Store():
                return True
            case Loop(begin=begin, end=end, accumulators=accumulators, body=inner):
                bounds = (*begin.free_symbols, *end.free_symbols)
                same = not accumulators and self.own.isdisjoint(bounds)
                return same and self._is_shared(inner)
            case _:
                return False

    def _note(self, name: str, value: Value) -> None:
        """Note whether what is bound differs from row to row."""
        names = {part.name for part in value_parts(value) if isinstance(part, Local)}
        names |= value_symbols(value, self.symbols)
        if not self.own.isdisjoint(names) or any(b in self.private for b in value_buffers(value)):
            self.own.add(name)

    def _statements(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        out: list[Statement] = []
        for part in body:
            match part:
                case Loop() if any(isinstance(p, Loop) for p in part.body) or _picks([part]):
                    out.append(replace(part, body=self._statements(part.body)))
                case Loop():
                    out += [replace(part, body=self._own(part.body, copy)) for copy in self.copies]
                case Let() | LetIndex() if part.name not in self.own:
                    out.append(part)
                case _:
                    out += [copy.copied(part, self.lowering) for copy in self.copies]
        return tuple(out)

    def _own(self, body: Iterable[Statement], copy: _Row) -> tuple[Statement, ...]:
        """The statements of a loop for one of the rows."""
        return tuple(copy.copied(part, self.lowering) for part in body)


def _stored(body: Iterable[Statement]) -> Iterator[TileBuffer]:
    for part in body:
        if isinstance(part, Loop):
            yield from _stored(part.body)
        elif isinstance(part, Store):
            yield part.buffer
