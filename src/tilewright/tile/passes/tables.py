"""Positions that depend on one loop alone, computed once per call into a table for that loop.

A resized, gathered or padded axis has few positions, but a loop nest asks for each of them once for
every element of all other axes. A first step fills one table per position, checked there; the nest
then reads an integer without a check, which LLVM's vectoriser takes where a branch to an error
would stop it. Start with :func:`with_tables`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.tile import (
    Check,
    Convert,
    Guarded,
    IndexValue,
    LetIndex,
    Load,
    Loop,
    Statement,
    Store,
    TileBuffer,
    TileProgram,
    Value,
)
from tilewright.ir.tile_walk import value_buffers, value_symbols
from tilewright.shape import (
    Expr,
    Truth,
    ceil_div,
    constant,
    less,
    logical_and,
    minimum,
    symbol,
)
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import LoweredStep, Workspace
from tilewright.tile.work import estimate

MOST_WITH_32_BITS = 2**31  # an axis this long or longer has positions of 64 bits

_Range = tuple[Expr, Expr]
_Fill = tuple[LetIndex, _Range, Expr]  # a position, for which values, and whether at all
_Loops = dict[str, _Range | None]  # the values of the variables of loops, outermost first


@dataclass
class _Tables:
    """What is moved into tables, by the loop variable that each depends on.

    A table is filled for the very values for which it is read: a position may not exist, or be
    another, elsewhere along its axis.
    """

    lowering: Lowering
    spaces: dict[TileBuffer, Workspace] = field(default_factory=dict[TileBuffer, Workspace])
    fills: list[Loop] = field(default_factory=list[Loop])
    reads: dict[TileBuffer, None] = field(default_factory=dict[TileBuffer, None])
    checks: list[Check] = field(default_factory=list[Check])
    made: dict[LetIndex, TileBuffer] = field(default_factory=dict[LetIndex, TileBuffer])
    filled: set[_Fill] = field(default_factory=set[_Fill])
    symbols: dict[Value, frozenset[str]] = field(default_factory=dict[Value, frozenset[str]])

    def statements(self, body: Sequence[Statement], loops: _Loops) -> tuple[Statement, ...]:
        """The statements, which stand inside ``loops``, with positions read from tables."""
        out: list[Statement] = []
        for statement in body:
            match statement:
                case LetIndex():
                    out.append(self._position(statement, loops))
                case Loop(variable=variable, body=inner):
                    around = {**loops, variable: self._values(statement, loops)}
                    out.append(replace(statement, body=self.statements(inner, around)))
                case _:
                    if isinstance(statement, Check):
                        self.checks.append(statement)
                    out.append(statement)
        return tuple(out)

    def _values(self, loop: Loop, around: _Loops) -> _Range | None:
        """All values of a loop's variable over the loops around it, None if that is no range.

        An axis that tasks share out in chunks counts as a whole.
        """
        bounds = {*loop.begin.free_symbols, *loop.end.free_symbols}
        outer = sorted(bounds & self.lowering.depth.keys())
        if not outer:
            return loop.begin, loop.end
        size, chunks = self.lowering.sizes.get(loop.variable), around.get(outer[0])
        affine = loop.begin.affine(outer)
        if size is None or chunks is None or affine is None or len(outer) > 1:
            return None
        length = affine[0][outer[0]]
        is_cut = (
            affine[1] is constant(0)
            and loop.end is minimum(loop.begin + length, size)
            and chunks == (constant(0), ceil_div(size, length))
        )
        return (constant(0), size) if is_cut else None

    def _position(self, statement: LetIndex, loops: _Loops) -> LetIndex:
        lowering = self.lowering
        symbols = value_symbols(statement.value, self.symbols) | set(statement.limit.free_symbols)
        own = symbols & lowering.depth.keys()
        variable = next(iter(own), "")
        values = loops.get(variable)
        if len(own) != 1 or values is None or not self._pays(statement, variable, tuple(loops)):
            return statement
        if _reads_scratch(statement.value):
            return statement
        others = [bounds for name, bounds in loops.items() if name != variable]
        if None in others:
            return statement
        runs = logical_and(*(less(*bounds) for bounds in others if bounds is not None))
        table = self._table(statement, variable, values, lowering.scope.resolve(runs))
        read: Value = Load(table, symbol(variable))
        read = Convert(read, DType.INT64) if table.dtype is DType.INT32 else read
        return replace(statement, value=read, check=None)

    def _table(self, statement: LetIndex, variable: str, values: _Range, runs: Expr) -> TileBuffer:
        """The table of a position, filled for these values of its variable if ``runs`` is not 0."""
        lowering = self.lowering
        if statement not in self.made:
            limit = lowering.scope.resolve(statement.limit)
            is_short = lowering.scope.is_less(limit, MOST_WITH_32_BITS) is Truth.YES
            dtype = DType.INT32 if is_short else DType.INT64
            made = self.made[statement] = TileBuffer(f"t{len(self.spaces)}", dtype)
            size = lowering.sizes[variable]
            self.spaces[made] = Workspace(f"positions {made.name}", dtype, size)
        table = self.made[statement]
        if (statement, values, runs) in self.filled:
            return table
        self.filled.add((statement, values, runs))
        stored: Value = IndexValue(symbol(statement.name))
        stored = Convert(stored, table.dtype) if table.dtype is DType.INT32 else stored
        checks = self._checks(variable)
        body = (*checks, statement, Store(table, symbol(variable), stored))
        fill = Loop(variable, *values, body)
        if runs is not constant(1):
            fill = Loop(lowering.name("k"), constant(0), runs, (fill,))
        self.fills.append(fill)
        for part in (*checks, statement):
            self.reads.update(dict.fromkeys(value_buffers(part.value)))
        return table

    def _checks(self, variable: str) -> list[Check]:
        """What was asked so far of values that a table may use, of divisors as a rule."""
        known = self.lowering.depth.keys()
        return [
            check
            for check in self.checks
            if value_symbols(check.value, self.symbols) & known <= {variable}
            and not _reads_scratch(check.value)
        ]

    def _pays(self, statement: LetIndex, variable: str, variables: tuple[str, ...]) -> bool:
        """Whether the position is asked for more often than there are values of the variable.

        One that lies in memory as it is costs only its check, which matters in an inner loop.
        """
        sizes = self.lowering.sizes
        if not all(v in sizes for v in variables):
            return False
        around = variables[: variables.index(variable)]
        repeats = any(not _is_chunk(v) for v in around)
        is_inner = variable == variables[-1]
        return repeats and (is_inner or not _lies_in_memory(statement.value))


def _reads_scratch(value: Value) -> bool:
    """Whether a value is there while a task runs only."""
    return any(buffer.scratch for buffer in value_buffers(value))


def _is_chunk(variable: str) -> bool:
    return variable.startswith("_c")


def _lies_in_memory(value: Value) -> bool:
    while isinstance(value, Guarded | Convert):
        value = value.inside if isinstance(value, Guarded) else value.operand
    return isinstance(value, Load)


def with_tables(
    program: TileProgram, lowering: Lowering, outputs: Iterable[Node]
) -> tuple[LoweredStep, ...]:
    """The steps of a loop program: it alone, or one that fills tables and one that reads them."""
    nodes = {buffer: node for node, buffer in lowering.buffers.items()}
    tables = _Tables(lowering)
    body = tables.statements(program.body, {n: (constant(0), size) for n, size in program.grid})
    if not tables.fills:
        return (LoweredStep(program, tuple(lowering.buffers), tuple(outputs)),)
    spaces = tuple(tables.spaces.values())
    fill = TileProgram(
        (*tables.reads, *tables.spaces),
        len(tables.spaces),
        (),
        tuple(tables.fills),
        (),
        program.checks,
        estimate((), tables.fills),
    )
    first = len(program.buffers) - program.results
    reading = replace(
        program,
        buffers=(*program.buffers[:first], *tables.spaces, *program.buffers[first:]),
        body=body,
        work=estimate(program.grid, body),
    )
    return (
        LoweredStep(fill, tuple(nodes[b] for b in tables.reads), spaces),
        LoweredStep(reading, (*lowering.buffers, *spaces), tuple(outputs)),
    )
