"""Private reductions of many short rows: a block of them is turned, and vectors run across.

A vector along a row of a few elements is mostly empty, and what it reduces is combined from its own
lanes in the end. Register squares turn the rows of a block on their way into scratch, where
neighbouring elements are of different rows. Rows may have several results each, as where a few
columns follow the axis that is reduced. Start with :func:`across_rows`; it knows accesses only, and
no operator.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.tile import (
    Load,
    Loop,
    Statement,
    Store,
    TileBuffer,
    TransposeBlock,
    Value,
)
from tilewright.ir.tile_walk import ExpressionMap, value_loads
from tilewright.shape import Expr, ceil_div, constant, maximum, minimum, symbol
from tilewright.target.core_model import WIDE_LANES
from tilewright.tile.loops.few_columns import Nest
from tilewright.tile.loops.interchange import interchanged, reduces_across
from tilewright.tile.moves.transposes import SIZES
from tilewright.tile.nests import Columns, task_columns
from tilewright.tile.rows.turned_rows import BLOCK
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.work import MOST_COLUMNS

ZERO, ONE = constant(0), constant(1)
Variables = Sequence[tuple[str, Expr]]


def across_rows(lowering: Lowering, variables: Variables, body: Sequence[Statement]) -> Nest | None:
    """The grid and the statements of a nest over blocks of rows; None where it has no such rows.

    The first of ``variables`` counts the rows, a second one the results of each.
    """
    if not 1 <= len(variables) <= 2:
        return None
    rows = _Rows(variables)
    if not all(rows.takes(part) for part in body) or rows.length is None:
        return None
    grid: list[tuple[str, Expr]] = []
    most = maximum(minimum(BLOCK // maximum(rows.length, 1), MOST_COLUMNS) // WIDE_LANES, 1)
    most = minimum(most, maximum(ceil_div(rows.count, WIDE_LANES), 1)) * WIDE_LANES
    block = task_columns(lowering, grid, rows.count, "c", most)
    turned = _Turned(lowering, rows, block)
    made = turned.statements(body)
    if not reduces_across(rows.name, made):
        return None
    inner = interchanged(lowering, rows.name, made, block)
    if rows.columns is not ONE:
        inner = (Loop(rows.column, ZERO, rows.columns, inner),)
    return grid, [*turned.before, *inner, *turned.after()]


class _Rows:
    """What a nest reads and writes, if that is whole rows that follow each other."""

    def __init__(self, variables: Variables) -> None:
        (self.name, self.count), *others = variables
        self.column, self.columns = others[0] if others else ("", ONE)
        self.length: Expr | None = None

    def takes(self, part: Statement) -> bool:
        """Whether a statement reduces elements of rows, or stores what that makes."""
        match part:
            case Loop(body=(), accumulators=accumulators):
                values = [accumulator.value for accumulator in accumulators]
                return all(self._holds(load, part) for v in values for load in value_loads(v))
            case Store(value=value, buffer=buffer, offset=offset):
                own = {self.name, self.column}
                near = all(own.isdisjoint(x.offset.free_symbols) for x in value_loads(value))
                place = symbol(self.name) * self.columns
                place = place + (symbol(self.column) if self.column else ZERO)
                return near and offset is place and buffer.dtype.bytes in SIZES
            case _:
                return False

    def _holds(self, load: Load, loop: Loop) -> bool:
        """Whether all rows have an element at each place that is read, or it is not of rows."""
        if self.name not in load.offset.free_symbols:
            return True
        length = (loop.end - loop.begin) * self.columns
        place = symbol(self.name) * length + symbol(loop.variable) * self.columns
        place = place + (symbol(self.column) if self.column else ZERO)
        if self.length is None:
            self.length = length
        is_row = loop.begin is ZERO and load.offset is place and self.length is length
        return is_row and load.buffer.dtype.bytes in SIZES


class _Turned(ExpressionMap):
    """A body that reads rows of a block of scratch, and stores several results of each there."""

    def __init__(self, lowering: Lowering, rows: _Rows, block: Columns) -> None:
        super().__init__(lambda e: e)
        assert rows.length is not None
        self.lowering, self.rows, self.block, self.length = lowering, rows, block, rows.length
        self.before: list[TransposeBlock] = []
        self._read: dict[TileBuffer, TileBuffer] = {}
        self._written: dict[TileBuffer, TileBuffer] = {}

    def after(self) -> list[TransposeBlock]:
        """Results on their way out."""
        columns, block = self.rows.columns, self.block
        return [
            TransposeBlock(
                scratch, ZERO, block.most, target, block.first * columns, columns, columns,
                block.count,
            )
            for target, scratch in self._written.items()
        ]  # fmt: skip

    def _turned_in(self, buffer: TileBuffer) -> TileBuffer:
        if buffer not in self._read:
            scratch = self.lowering.scratch_buffer(buffer.dtype, self.length * self.block.most)
            self._read[buffer] = scratch
            self.before.append(
                TransposeBlock(
                    buffer, self.block.first * self.length, self.length, scratch, ZERO,
                    self.block.most, self.block.count, self.length,
                )
            )  # fmt: skip
        return self._read[buffer]

    def _in_block(self, place: Expr) -> Expr:
        return place * self.block.most + symbol(self.rows.name) - self.block.first

    def _value(self, value: Value) -> Value:
        if isinstance(value, Load) and self.rows.name in value.offset.free_symbols:
            place = value.offset.substitute({self.rows.name: ZERO})
            return Load(self._turned_in(value.buffer), self._in_block(place))
        return super()._value(value)

    def statement(self, statement: Statement) -> Statement:
        """One statement rewritten."""
        made = super().statement(statement)
        if not isinstance(made, Store) or self.rows.columns is ONE:
            return made
        if made.buffer not in self._written:
            size = self.rows.columns * self.block.most
            self._written[made.buffer] = self.lowering.scratch_buffer(made.buffer.dtype, size)
        place = self._in_block(symbol(self.rows.column))
        return Store(self._written[made.buffer], place, made.value)


__all__ = ["across_rows"]
