"""Loops whose positions wrap around: a part for each row of what is read.

Where a tensor is read in rows of another length than those of the loop, positions are quotients and
remainders of the loop's variable, and a division takes as long as tens of copies. The quotient is
the same until the remainder is 0 again. So it is counted by a loop around, in whose parts positions
are affine, and LLVM sees a copy. Start with :func:`in_parts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.ir.tile import Accumulator, Let, LetIndex, Local, Loop, Statement, Store
from tilewright.ir.tile_walk import ExpressionMap, expressions
from tilewright.shape import (
    Expr,
    Scope,
    Truth,
    ceil_div,
    constant,
    less_equal,
    maximum,
    minimum,
    select,
    symbol,
)
from tilewright.shape.expr import Atom, apply_operation
from tilewright.shape.table import Operation
from tilewright.tile.passes.positions import with_pieces
from tilewright.tile.values.lowering import Lowering

ZERO = constant(0)
DIVISIONS = (Operation.FLOORDIV, Operation.MOD)
# Iterations: with fewer each is divided by itself. Shifts of rows of 1 to 4 took up to 2.6 times as
# long in parts (timed on Zen 4).
SHORT = 8


def in_parts(loop: Loop, lowering: Lowering) -> tuple[Loop, ...]:
    """A loop around the parts of an innermost one, which divides less; none if it does not divide.

    Where parts may be short, the loop as it was follows, which runs in their place then. A loop
    that divides in several ways stays as it is: parts of parts grow in number with each of them.
    """
    divisions = list(dict.fromkeys(_divisions(loop)))
    if len(divisions) != 1 or not all(isinstance(p, Let | LetIndex | Store) for p in loop.body):
        return ()
    (division,) = divisions
    resolve, length = lowering.scope.resolve, loop.end - loop.begin
    are_long = resolve(less_equal(SHORT, minimum(length, division.divisor)))
    if are_long is constant(0):
        return ()
    parts = _around(loop, division, lowering)
    if are_long is constant(1):
        return (parts,)
    begin = resolve(select(are_long, loop.end, loop.begin))
    return once(are_long, (parts,), loop, lowering), replace(loop, begin=begin)


def _around(loop: Loop, division: _Division, lowering: Lowering) -> Loop:
    """The loop over quotients."""
    resolve, rest, divisor = lowering.scope.resolve, division.rest, division.divisor
    first = resolve((loop.begin + rest) // divisor)
    quotient = lowering.scope.declare(lowering.name("q"), lowering.scope.bounds(first).low)
    start = quotient * divisor - rest
    part = replace(
        loop,
        begin=resolve(maximum(loop.begin, start)),
        end=resolve(minimum(loop.end, start + divisor)),
    )
    # The last part of one row and the first of another at least, and as many as are between them.
    is_within = _is_within(loop, division.written, lowering.scope)
    count = constant(2) if is_within else ceil_div(loop.end - loop.begin, divisor) + 1
    inside = _Part(loop.variable, division, quotient).statement(part)
    return Loop(str(quotient), first, first + count, (inside,), _carried(loop.accumulators))


def once(runs: Expr, parts: Sequence[Statement], loop: Loop, lowering: Lowering) -> Loop:
    """A loop that does ``parts`` of another once, or not at all where ``runs`` is 0."""
    only = str(lowering.variable(constant(1), "w"))
    return Loop(only, ZERO, runs, tuple(parts), _carried(loop.accumulators))


def _carried(accumulators: Iterable[Accumulator]) -> tuple[Accumulator, ...]:
    """The accumulators of a loop around others that have them."""
    return tuple(Accumulator(a.name, a.kind, Local(a.name, a.value.dtype)) for a in accumulators)


@dataclass(frozen=True)
class _Division:
    """The loop's variable plus ``rest``, divided."""

    rest: Expr
    written: Expr  # the divisor, which may be 0 where the loop does not run

    @property
    def divisor(self) -> Expr:
        return maximum(self.written, 1)


def _divisions(loop: Loop) -> Iterator[_Division]:
    """What a loop divides in each of its turns."""
    bound = {part.name for part in loop.body if isinstance(part, LetIndex)} | {loop.variable}
    for expression in dict.fromkeys(expressions((replace(loop, begin=ZERO, end=ZERO),))):
        for atom in _atoms(expression, loop.variable):
            if atom.operation not in DIVISIONS:
                continue
            inner, divisor = atom.operands
            affine = inner.affine((loop.variable,))
            if affine is None or affine[0][loop.variable] is not constant(1):
                continue
            if bound.isdisjoint((*affine[1].free_symbols, *divisor.free_symbols)):
                yield _Division(affine[1], divisor)


def _is_within(loop: Loop, divisor: Expr, scope: Scope) -> bool:
    """Whether a loop is no longer than a divisor."""
    lengths = [loop.end - loop.begin]
    if scope.is_less_equal(0, loop.begin) is Truth.YES:
        lengths.append(loop.end)
    return any(scope.is_less_equal(length, divisor) is Truth.YES for length in lengths)


def _atoms(expression: Expr, name: str) -> Iterator[Atom]:
    """All operations on a symbol in an expression, those inside of others before them."""
    if name not in expression.free_symbols:
        return
    for atom in dict.fromkeys(a for monomial, _ in expression.terms for a in monomial.atoms):
        for operand in atom.operands:
            yield from _atoms(operand, name)
        yield atom


class _Part(ExpressionMap):
    """A loop's statements where a division has a known quotient."""

    def __init__(self, variable: str, division: _Division, quotient: Expr) -> None:
        super().__init__(self._rewritten)
        self._known: dict[Atom, Expr] = {}
        self._dividend = symbol(variable) + division.rest
        self._division = division
        self._quotient = quotient

    def _rewritten(self, expression: Expr) -> Expr:
        return with_pieces(expression, self._piece)

    def _piece(self, atom: Atom) -> Expr:
        if atom not in self._known:
            self._known[atom] = self._value_of(atom)
        return self._known[atom]

    def _value_of(self, atom: Atom) -> Expr:
        if atom.operation in DIVISIONS:
            dividend, divisor = atom.operands
            if dividend is self._dividend and divisor is self._division.written:
                if atom.operation is Operation.FLOORDIV:
                    return self._quotient
                return dividend - self._quotient * divisor
        return apply_operation(atom.operation, tuple(map(self._rewritten, atom.operands)))


__all__ = ["in_parts", "once"]
