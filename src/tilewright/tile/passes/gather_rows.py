"""Values computed along a whole axis before positions of it are picked, where picking costs more.

An interpolation along two axes mixes neighbouring lines at every position that an element of the
result asks for, and asks for each element of the lines by itself. The mixture at one position is a
function of that position alone: computed once along the axis, with vectors, it lies in scratch, and
of several elements that had to be picked one is left. This makes interpolation along several axes
separable wherever the last axis is one of them. Start with :func:`with_gather_rows`; it knows
accesses only, and no operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tilewright.ir.tile import (
    Apply,
    Convert,
    IndexValue,
    Let,
    LetIndex,
    Literal,
    Load,
    Loop,
    Statement,
    Store,
    TileBuffer,
    TileProgram,
    Value,
)
from tilewright.ir.tile_walk import ExpressionMap, value_loads, value_symbols
from tilewright.shape import Expr, constant, less_equal, symbol
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import LoweredStep

MOST_SKIPPED = 16  # elements of the axis for each one picked, up to which all are computed


def with_gather_rows(step: LoweredStep, lowering: Lowering) -> LoweredStep:
    """The step with such values in scratch, where its program is a nest of loops that has any."""
    program = step.program
    assert isinstance(program, TileProgram)
    body = _statements(program.body, lowering)
    if body is program.body:
        return step
    scratch = tuple(lowering.scratch)
    return replace(step, program=replace(program, body=body, scratch=scratch))


def _statements(body: tuple[Statement, ...], lowering: Lowering) -> tuple[Statement, ...]:
    out: list[Statement] = []
    for statement in body:
        if not isinstance(statement, Loop):
            out.append(statement)
        elif any(isinstance(part, Loop) for part in statement.body):
            inner = _statements(statement.body, lowering)
            out.append(statement if inner is statement.body else replace(statement, body=inner))
        else:
            out += _picked(statement, lowering)
    return body if out == [*body] else tuple(out)


def _picked(loop: Loop, lowering: Lowering) -> Sequence[Statement]:
    """A loop that picks, behind those that compute what it picks; or as it was."""
    if loop.accumulators or not all(isinstance(p, Let | LetIndex | Store) for p in loop.body):
        return [loop]
    rows = _Rows(loop, lowering)
    picking = replace(loop, body=rows.statements(loop.body))
    if not rows.fills:
        return [loop]
    # Where far fewer elements are picked than there are, the others are not worth computing.
    length = loop.end - loop.begin
    pays = constant(1)
    for limit in dict.fromkeys(fill.end for fill in rows.fills):
        pays = pays * less_equal(limit, length * MOST_SKIPPED)
    pays = lowering.scope.resolve(pays)
    if pays is constant(1):
        return [*rows.fills, picking]
    return [
        Loop(lowering.name("k"), constant(0), pays, (*rows.fills, picking)),
        Loop(lowering.name("k"), constant(0), 1 - pays, (loop,)),
    ]


@dataclass(frozen=True)
class _Form:
    """A value as a function of a position: equal forms are equal functions."""

    kind: str
    parts: tuple[object, ...]


@dataclass
class _Made:
    """The rows of one loop, by axis and form, and the loops that fill them."""

    rows: dict[tuple[Expr, _Form], TileBuffer] = field(
        default_factory=dict[tuple[Expr, _Form], TileBuffer]
    )
    fills: list[Loop] = field(default_factory=list[Loop])


class _Rows(ExpressionMap):
    """The statements of a loop with such values read from rows."""

    def __init__(self, loop: Loop, lowering: Lowering) -> None:
        super().__init__(lambda expression: expression)
        self._lowering = lowering
        self._variable = loop.variable
        self._made = _Made()
        self._symbols: dict[Value, frozenset[str]] = {}
        self._positions = {
            part.name: part.limit
            for part in loop.body
            if isinstance(part, LetIndex) and loop.variable not in part.limit.free_symbols
        }
        self._bound = {loop.variable, *self._positions} | {
            part.name for part in loop.body if isinstance(part, Let)
        }

    @property
    def fills(self) -> list[Loop]:
        """Loops that fill the rows, which must run first."""
        return self._made.fills

    def _value(self, value: Value) -> Value:
        if isinstance(value, Apply):
            own = value_symbols(value, self._symbols) & self._bound
            if len(own) == 1 and (position := next(iter(own))) in self._positions:
                row = self._row(value, position)
                if row is not None:
                    return Load(row, symbol(position))
        return super()._value(value)

    def _row(self, value: Value, position: str) -> TileBuffer | None:
        """The row of a value at a position, if it picks several elements that lie side by side."""
        picked = [load for load in value_loads(value) if position in load.offset.free_symbols]
        places = {(load.buffer, load.offset) for load in picked}
        if len(places) < 2 or any(_slope(load.offset, position) != 1 for load in picked):
            return None
        if any(load.buffer.scratch for load in value_loads(value)):
            return None
        form = _form(value, position)
        if form is None:
            return None
        limit = self._positions[position]
        row = self._made.rows.get((limit, form))
        if row is None:
            row = self._lowering.scratch_buffer(value.dtype, limit)
            self._made.rows[limit, form] = row
            place = self._lowering.name("i")
            rewrite = ExpressionMap.substitution({position: symbol(place)})
            store = Store(row, symbol(place), rewrite.value(value))
            # Picking begins at once, and would wait for elements that are stored one by one.
            self.fills.append(Loop(place, constant(0), limit, (store,), masked=True))
        return row


def _slope(offset: Expr, position: str) -> int:
    affine = offset.affine((position,))
    slope = None if affine is None else affine[0][position]
    return slope.value if slope is not None and slope.is_constant else 0


_PLACE = "_place"  # stands for the position in a form


def _form(value: Value, position: str) -> _Form | None:
    """What a value is as a function of a position, or None where that is not told."""
    match value:
        case Load(buffer=buffer, offset=offset):
            return _Form("load", (buffer, offset.substitute({position: symbol(_PLACE)})))
        case IndexValue(expression=expression, dtype=dtype):
            return _Form("index", (expression.substitute({position: symbol(_PLACE)}), dtype))
        case Literal(value=number, dtype=dtype):
            return _Form("literal", (repr(number), dtype))
        case Apply(function=function, operands=operands, dtype=dtype):
            parts = [_form(operand, position) for operand in operands]
            return None if None in parts else _Form("apply", (function, dtype, *parts))
        case Convert(operand=operand, dtype=dtype):
            part = _form(operand, position)
            return None if part is None else _Form("convert", (part, dtype))
        case _:
            return None
