"""Private reductions over an axis before a few others, whose elements are turned into rows.

Elements of a few columns fill no vector, and a loop over them for every row is mostly its own
instructions. A task takes all columns of one place instead: register squares pick them apart on
their way into scratch, where each is reduced along vectors. Start with :func:`in_rows`; it knows
accesses only, and no operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.ir.tile import Load, Loop, Statement, TileBuffer, TransposeBlock, Value
from tilewright.ir.tile_walk import ExpressionMap, value_loads
from tilewright.shape import Expr, constant, symbol
from tilewright.tile.loops.interchange import reduces_across
from tilewright.tile.moves.transposes import SIZES
from tilewright.tile.rows.row_layouts import FEW_COLUMNS
from tilewright.tile.values.lowering import Lowering

ZERO = constant(0)
Access = tuple[TileBuffer, Expr]
Nest = tuple[list[tuple[str, Expr]], list[Statement]]


def in_rows(
    lowering: Lowering, variables: Sequence[tuple[str, Expr]], body: Sequence[Statement]
) -> Nest | None:
    """The grid and the statements of tasks that have all columns, if these may be few.

    The last of ``variables`` is the axis of the columns.
    """
    *grid, (name, columns) = variables
    if (columns.is_constant and columns.value >= FEW_COLUMNS) or not reduces_across(name, body):
        return None
    turned = _Turned(lowering, name, columns)
    for loop in (part for part in body if isinstance(part, Loop)):
        if not turned.take(loop):
            return None
    if not turned.blocks:
        return None
    return grid, [*turned.blocks, Loop(name, ZERO, columns, turned.statements(body))]


class _Turned(ExpressionMap):
    """A body that reads of scratch, into which ``blocks`` turn them, elements along the columns."""

    def __init__(self, lowering: Lowering, name: str, columns: Expr) -> None:
        super().__init__(lambda e: e)
        self.lowering = lowering
        self.name = name
        self.columns = columns
        self.blocks: list[TransposeBlock] = []
        self._found: dict[tuple[TileBuffer, Expr, Expr], TileBuffer] = {}
        self._places: dict[Access, Load] = {}

    def take(self, loop: Loop) -> bool:
        """Turn what a loop reads across; False if it is more than rows of columns."""
        if loop.body or not loop.accumulators:
            return False
        for load in _loads(loop):
            affine = load.offset.affine((self.name, loop.variable))
            assert affine is not None, "it reduces across"
            beside, step = (affine[0].get(n, ZERO) for n in (self.name, loop.variable))
            if ZERO in (beside, step):
                continue
            if load.buffer.dtype.bytes not in SIZES:
                return False
            self._turn(load, loop, step)
        return True

    def _turn(self, load: Load, loop: Loop, step: Expr) -> None:
        length, row = loop.end - loop.begin, symbol(loop.variable)
        origin = load.offset.substitute({self.name: ZERO, loop.variable: loop.begin})
        key = (load.buffer, origin, length)
        if key not in self._found:
            scratch = self.lowering.scratch_buffer(load.buffer.dtype, length * self.columns)
            self._found[key] = scratch
            self.blocks.append(
                TransposeBlock(
                    load.buffer, origin, step, scratch, ZERO, length, length, self.columns
                )
            )
        place = symbol(self.name) * length + row - loop.begin
        self._places[load.buffer, load.offset] = Load(self._found[key], place)

    def _value(self, value: Value) -> Value:
        if isinstance(value, Load):
            return self._places.get((value.buffer, value.offset), value)
        return super()._value(value)


def _loads(loop: Loop) -> Iterator[Load]:
    for accumulator in loop.accumulators:
        yield from value_loads(accumulator.value)


__all__ = ["in_rows"]
