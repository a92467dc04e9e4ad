"""Loops cut where a guard, a clamp or a remainder changes: an interior without, and two borders.

Along a padded axis nearly all elements are a plain copy, and only some at the ends are filled or
read elsewhere. Under a few demands on the loop variable, each position is affine in it and lies
within its axis: where all are met, the loop needs neither guards nor checks, and LLVM sees a copy.
The borders keep the statements as they were. All parts are cut once more where a comparison of
positions changes (``comparisons``). Start with :func:`with_borders`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.ir.tile import (
    Accumulator,
    Guarded,
    Let,
    LetIndex,
    Loop,
    Statement,
    Store,
    TileProgram,
    Value,
)
from tilewright.ir.tile_walk import ExpressionMap, value_symbols
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    logical_and,
    maximum,
    minimum,
)
from tilewright.shape.expr import Atom, apply_operation
from tilewright.shape.table import Operation
from tilewright.tile.passes.comparisons import cut_at_comparisons
from tilewright.tile.passes.positions import as_index, with_pieces
from tilewright.tile.passes.wraps import in_parts, once
from tilewright.tile.values.lowering import Lowering


def with_borders(program: TileProgram, lowering: Lowering) -> TileProgram:
    """The program with its innermost loops cut, where that leaves simpler parts."""
    return replace(program, body=_statements(program.body, lowering, _cut_whole))


_Way = Callable[[Loop, Lowering], Sequence[Statement]]


def _statements(body: Sequence[Statement], lowering: Lowering, way: _Way) -> tuple[Statement, ...]:
    """Statements with what innermost loops among them become; ``way`` takes those without wraps."""
    out: list[Statement] = []
    for statement in body:
        if not isinstance(statement, Loop):
            out.append(statement)
        elif any(isinstance(part, Loop) for part in statement.body):
            inside = _as_it_is if way is _cut_whole else way
            out.append(replace(statement, body=_statements(statement.body, lowering, inside)))
        else:
            out += _without_wraps(statement, lowering) or way(statement, lowering)
    return tuple(out)


def _as_it_is(loop: Loop, _: Lowering) -> Sequence[Statement]:
    return [loop]


def _without_wraps(loop: Loop, lowering: Lowering) -> Sequence[Statement]:
    """The loop in parts in which no position wraps around, and these cut; nothing if none does."""
    found = in_parts(loop, lowering)
    if not found:
        return found
    parts, *rest = found
    return _joined([*_statements((parts,), lowering, _cut), *rest], loop, lowering)


def _joined(parts: Sequence[Statement], loop: Loop, lowering: Lowering) -> Sequence[Statement]:
    """Parts of a loop; what it reduces is carried from one to the next by a loop around them."""
    if len(parts) == 1 or not loop.accumulators:
        return parts
    return [once(constant(1), parts, loop, lowering)]


def _cut_whole(loop: Loop, lowering: Lowering) -> Sequence[Statement]:
    """A loop cut at its borders, if it is over a whole axis, and where comparisons change.

    Where a task has a part of an axis, the loops over the borders would hardly ever run, but be
    asked for in every task. That pays where a turn of the loop stores several elements.
    """
    is_part = loop.begin is not constant(0)
    has_few = sum(isinstance(part, Store) for part in loop.body) < 2
    parts = [loop] if is_part and has_few else _cut(loop, lowering)
    found = [part for cut in parts for part in cut_at_comparisons(cut, lowering.scope)]
    return _joined(found, loop, lowering)


def _cut(loop: Loop, lowering: Lowering) -> Sequence[Loop]:
    """The loop as up to three that follow each other and cover the same range."""
    whole, scope = [loop], lowering.scope
    if not all(isinstance(part, Let | LetIndex | Store) for part in loop.body):
        return whole
    interior = _Interior(loop.variable)
    body = interior.body(loop.body)
    accumulators = tuple(interior.accumulator(a) for a in loop.accumulators)
    if not interior.is_simpler:
        return whole
    low, high = map(scope.resolve, interior.bounds(loop.begin, loop.end))
    border = replace(loop, masked=False) if loop.accumulators else loop
    made = [replace(loop, begin=low, end=high, body=body, accumulators=accumulators)]
    if low is not loop.begin:
        made.insert(0, replace(border, end=scope.resolve(minimum(low, loop.end))))
    if high is not loop.end:
        made.append(replace(border, begin=scope.resolve(maximum(low, high))))
    return made


class _Interior(ExpressionMap):
    """A loop's statements where all demands on its variable are met, which are collected."""

    def __init__(self, variable: str) -> None:
        super().__init__(self._simplified)
        self.variable = variable
        self.is_simpler = False
        self._demands: dict[Expr, None] = {}
        self._positions: dict[str, Expr] = {}

    def bounds(self, begin: Expr, end: Expr) -> tuple[Expr, Expr]:
        """The part [low, high) of a range of the variable in which the demands are met."""
        low, high = begin, end
        for demand in self._demands:
            slope, rest = self._line(demand)
            if slope > 0:
                low = maximum(low, ceil_div(-rest, slope))
            else:
                high = minimum(high, rest // -slope + 1)
        return low, high

    def body(self, statements: Sequence[Statement]) -> tuple[Statement, ...]:
        """The statements; a position that is known to lie within its axis is no statement."""
        out: list[Statement] = []
        for statement in statements:
            if isinstance(statement, LetIndex) and self._is_known(statement):
                self.is_simpler = True
            else:
                out.append(self.statement(statement))
        return tuple(out)

    def accumulator(self, accumulator: Accumulator) -> Accumulator:
        """What a loop reduces, in the interior."""
        return replace(accumulator, value=self.value(accumulator.value))

    def _is_known(self, statement: LetIndex) -> bool:
        found = as_index(statement.value)
        if found is None or self._line(statement.limit)[0]:
            return False
        position = self._simplified(found)
        if not self._demand(position, statement.limit - 1 - position):
            return False
        self._positions[statement.name] = position
        return True

    # ------------------------------------------------------------ expressions

    def _simplified(self, expression: Expr) -> Expr:
        """The expression with the part of each clamp or remainder that holds in the interior."""
        found = expression.substitute(self._positions)
        if self.variable not in found.free_symbols:
            return found
        return with_pieces(found, self._piece)

    def _piece(self, atom: Atom) -> Expr:
        operands = tuple(map(self._simplified, atom.operands))
        whole = apply_operation(atom.operation, operands)
        match atom.operation:
            case Operation.MOD:
                inner, count = operands
                is_inside = not self._line(count)[0] and self._demand(inner, count - 1 - inner)
                return inner if is_inside else whole
            case Operation.MINIMUM | Operation.MAXIMUM:
                chosen = max(operands, key=lambda operand: self._line(operand)[0])
                sign = 1 if atom.operation is Operation.MAXIMUM else -1
                others = [operand for operand in operands if operand is not chosen]
                holds = self._demand(*((chosen - other) * sign for other in others))
                return chosen if holds else whole
            case _:
                return whole

    def _demand(self, *expressions: Expr) -> bool:
        """Demand that all are at least 0, if each is a bound of the variable."""
        if not all(self._line(expression)[0] for expression in expressions):
            return False
        self._demands.update(dict.fromkeys(expressions))
        return True

    def _line(self, expression: Expr) -> tuple[int, Expr]:
        """The slope along the variable, 0 where there is none or it is not known, and the rest."""
        affine = expression.affine((self.variable,))
        if affine is None or not affine[0][self.variable].is_constant:
            return 0, expression
        return affine[0][self.variable].value, affine[1]

    # ------------------------------------------------------------ values

    def _value(self, value: Value) -> Value:
        if isinstance(value, Guarded) and self.variable not in value_symbols(value.outside, {}):
            kept = [p for p in _conjuncts(value.predicate) if not self._is_met(p)]
            value = replace(value, predicate=logical_and(*kept))
            if value.predicate.is_constant and value.predicate.value:
                return self.value(value.inside)
        return super()._value(value)

    def _is_met(self, predicate: Expr) -> bool:
        """Whether a predicate holds in the interior."""
        atom = predicate.atom
        if atom is None or atom.operation is not Operation.LESS_EQUAL:
            return False
        less, more = map(self._simplified, atom.operands)
        met = self._demand(more - less)
        self.is_simpler |= met
        return met


def _conjuncts(predicate: Expr) -> Sequence[Expr]:
    atom = predicate.atom
    is_joined = atom is not None and atom.operation is Operation.AND
    return atom.operands if atom is not None and is_joined else [predicate]
