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
    LoopProgram,
    Statement,
    Store,
    TileBuffer,
    Value,
)
from tilewright.ir.tile_walk import value_buffers, value_symbols
from tilewright.shape import Truth, constant, less, logical_and, symbol
from tilewright.tile.lowering import Lowering
from tilewright.tile.variants import LoweredStep, Workspace
from tilewright.tile.work import estimate

MOST_WITH_32_BITS = 2**31  # an axis this long or longer has positions of 64 bits


@dataclass
class _Tables:
    """What is moved into tables, by the loop variable that each depends on."""

    lowering: Lowering
    spaces: dict[TileBuffer, Workspace] = field(default_factory=dict[TileBuffer, Workspace])
    fills: list[Loop] = field(default_factory=list[Loop])
    reads: dict[TileBuffer, None] = field(default_factory=dict[TileBuffer, None])
    checks: list[Check] = field(default_factory=list[Check])
    made: dict[LetIndex, LetIndex] = field(default_factory=dict[LetIndex, LetIndex])
    symbols: dict[Value, frozenset[str]] = field(default_factory=dict[Value, frozenset[str]])

    def statements(
        self, body: Sequence[Statement], variables: tuple[str, ...]
    ) -> tuple[Statement, ...]:
        """The statements with positions read from tables; ``variables`` are the loops around."""
        out: list[Statement] = []
        for statement in body:
            match statement:
                case LetIndex():
                    if statement not in self.made:
                        self.made[statement] = self._position(statement, variables)
                    out.append(self.made[statement])
                case Loop():
                    inner = self.statements(statement.body, (*variables, statement.variable))
                    out.append(replace(statement, body=inner))
                case _:
                    if isinstance(statement, Check):
                        self.checks.append(statement)
                    out.append(statement)
        return tuple(out)

    def _position(self, statement: LetIndex, variables: tuple[str, ...]) -> LetIndex:
        lowering = self.lowering
        symbols = value_symbols(statement.value, self.symbols) | set(statement.limit.free_symbols)
        own = symbols & lowering.depth.keys()
        variable = next(iter(own), "")
        if len(own) != 1 or not self._pays(statement, variable, variables):
            return statement
        limit = lowering.scope.resolve(statement.limit)
        is_short = lowering.scope.is_less(limit, MOST_WITH_32_BITS) is Truth.YES
        dtype = DType.INT32 if is_short else DType.INT64
        size = lowering.sizes[variable]
        table = TileBuffer(f"t{len(self.spaces)}", dtype)
        self.spaces[table] = Workspace(f"positions {table.name}", dtype, size)
        others = [lowering.sizes[v] for v in variables if v != variable]
        runs = lowering.scope.resolve(logical_and(*(less(0, other) for other in others)))
        index, name = symbol(variable), symbol(statement.name)
        stored: Value = IndexValue(name)
        store = Store(table, index, Convert(stored, dtype) if is_short else stored)
        body = (*self._checks(variable), statement, store)
        self.fills.append(Loop(variable, constant(0), size, body))
        if runs is not constant(1):
            self.fills[-1] = Loop(lowering.name("k"), constant(0), runs, (self.fills[-1],))
        for part in body[:-1]:
            self.reads.update(dict.fromkeys(value_buffers(part.value)))
        read: Value = Load(table, index)
        read = Convert(read, DType.INT64) if is_short else read
        return replace(statement, value=read, check=None)

    def _checks(self, variable: str) -> list[Check]:
        """What was asked so far of values that a table may use, of divisors as a rule."""
        known = self.lowering.depth.keys()
        return [
            check
            for check in self.checks
            if value_symbols(check.value, self.symbols) & known <= {variable}
        ]

    def _pays(self, statement: LetIndex, variable: str, variables: tuple[str, ...]) -> bool:
        """Whether the position is asked for more often than there are values of the variable.

        One that lies in memory as it is costs only its check, which matters in an inner loop.
        """
        sizes = self.lowering.sizes
        if variable not in variables or not all(v in sizes for v in variables):
            return False
        around = variables[: variables.index(variable)]
        repeats = any(not _is_chunk(v) for v in around)
        is_inner = variable == variables[-1]
        return repeats and (is_inner or not _lies_in_memory(statement.value))


def _is_chunk(variable: str) -> bool:
    return variable.startswith("_c")


def _lies_in_memory(value: Value) -> bool:
    while isinstance(value, Guarded | Convert):
        value = value.inside if isinstance(value, Guarded) else value.operand
    return isinstance(value, Load)


def with_tables(
    program: LoopProgram, lowering: Lowering, outputs: Iterable[Node]
) -> tuple[LoweredStep, ...]:
    """The steps of a loop program: it alone, or one that fills tables and one that reads them."""
    nodes = {buffer: node for node, buffer in lowering.buffers.items()}
    tables = _Tables(lowering)
    body = tables.statements(program.body, tuple(name for name, _ in program.grid))
    if not tables.fills:
        return (LoweredStep(program, tuple(lowering.buffers), tuple(outputs)),)
    spaces = tuple(tables.spaces.values())
    fill = LoopProgram(
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
