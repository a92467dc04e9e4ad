"""Bounds and divisors of expressions, from what is declared of the symbols.

Plain interval arithmetic loses what the terms of a sum have in common, so a bound is improved in
two ways: by measuring each atom from its lower end, and by putting an end of its range for an atom
that shares symbols with the rest (a loop variable, a minimum, a quotient, …). May import `expr` and
`interval`. Start reading at :meth:`Bounds.interval`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import NamedTuple

from tilewright.shape.expr import Atom, Expr, from_atoms, from_terms, rebuild
from tilewright.shape.interval import (
    EVERYTHING,
    Interval,
    add,
    apply_to_intervals,
    floor_divide,
    hull,
    intersect,
    multiply,
    power,
    scale,
)
from tilewright.shape.table import BOOLEANS, Operation

# Atoms are eliminated one by one, some in two ways; with more than this the effort is not worth it.
_MOST_APPLICATIONS = 4


class SymbolFacts(NamedTuple):
    """What is declared of a symbol: the range (None: open) and a divisor of every value."""

    low: int | None
    high: int | None
    multiple_of: int


@dataclass
class Declarations:
    """Facts as declared: of symbols, upper bounds by expressions, and of whole expressions.

    `asked` holds the symbols about which something may have been concluded already.
    """

    symbols: dict[str, SymbolFacts] = field(default_factory=dict[str, SymbolFacts])
    limits: dict[str, tuple[Expr, ...]] = field(default_factory=dict[str, tuple[Expr, ...]])
    known: dict[Expr, Interval] = field(default_factory=dict[Expr, Interval])
    asked: set[str] = field(default_factory=set[str])

    def copy(self) -> Declarations:
        """The same facts, to be added to separately."""
        return Declarations(
            self.symbols.copy(), self.limits.copy(), self.known.copy(), self.asked.copy()
        )

    def interval(self, name: str) -> Interval:
        """The declared range of a symbol."""
        self.asked.add(name)
        facts = self.symbols.get(name)
        return EVERYTHING if facts is None else Interval(facts.low, facts.high)

    def depends_on(self, expression: Expr, name: str) -> bool:
        """Whether the expression, or an upper bound of one of its symbols, holds the symbol."""
        return name in expression.free_symbols or any(
            self.depends_on(limit, name)
            for other in expression.free_symbols
            for limit in self.limits.get(other, ())
        )


class Bounds:
    """What follows from declarations; answers are kept, so make a new one when facts change."""

    def __init__(self, declarations: Declarations) -> None:
        self.declarations = declarations
        self._intervals: dict[Expr, Interval] = {}
        self._divisors: dict[Expr, int] = {}

    # --- divisors --------------------------------------------------------------------------------

    def known_divisor(self, expression: Expr) -> int:
        """The greatest integer known to divide the value; 0 if the value is 0."""
        found = self._divisors.get(expression)
        if found is None:
            found = 0
            for monomial, size in expression.terms:
                divisor = abs(size)
                for atom in monomial.atoms:
                    divisor *= self._atom_divisor(atom)
                found = gcd(found, divisor)
            self._divisors[expression] = found
        return found

    def _atom_divisor(self, atom: Atom) -> int:
        operands = atom.operands
        match atom.operation:
            case Operation.SYMBOL:
                self.declarations.asked.add(atom.name)
                facts = self.declarations.symbols.get(atom.name)
                return 1 if facts is None else facts.multiple_of
            case Operation.MINIMUM | Operation.MAXIMUM | Operation.MOD:
                return gcd(*(self.known_divisor(operand) for operand in operands))
            case Operation.SELECT:
                return gcd(*(self.known_divisor(operand) for operand in operands[1:]))
            case Operation.FLOORDIV if operands[1].is_constant and operands[1].value > 0:
                divisor, size = self.known_divisor(operands[0]), operands[1].value
                return divisor // size if divisor % size == 0 else 1
            case _:
                return 1

    # --- proofs ----------------------------------------------------------------------------------

    def proves_nonnegative(self, expression: Expr, context: Sequence[Expr] = ()) -> bool:
        """Whether the value is surely >= 0 where the symbols of `context` have values.

        That a loop variable has a value tells that its upper bound is not below its lower one.
        """
        if _is_natural(self.interval(expression)):
            return True
        names = {name: None for operand in context for name in operand.free_symbols}
        for name in names:
            limits = self.declarations.limits.get(name, ())
            lowest = self.declarations.interval(name).low
            if lowest is None:
                continue
            for limit in limits:
                if _is_natural(self.interval(expression - limit + lowest)):
                    return True
        return False

    def proves_nonzero(self, expression: Expr, context: Sequence[Expr] = ()) -> bool:
        """Whether the value is surely not 0 where the symbols of `context` have values."""
        if len(expression.terms) == 1 and len(expression.terms[0][0].atoms) > 1:
            atoms = expression.terms[0][0].atoms
            return all(self.proves_nonzero(from_atoms((atom,)), context) for atom in atoms)
        return self.proves_nonnegative(expression - 1, context) or self.proves_nonnegative(
            -expression - 1, context
        )

    # --- bounds ----------------------------------------------------------------------------------

    def interval(self, expression: Expr) -> Interval:
        """A range that holds every value of the expression."""
        found = self._intervals.get(expression)
        if found is None:
            found = self._sum(expression, shifted=False)
            # The plain bounds stand in while better ones are looked for, which ends any circle.
            self._intervals[expression] = found
            terms = expression.terms
            if len(terms) > 1 and not found.is_point:
                if any(len(monomial.atoms) > 1 for monomial, _ in terms):
                    found = intersect(found, self._from_lower_ends(expression))
                if len(terms) > 2 or not expression.constant_term:
                    found = intersect(found, self._by_elimination(expression))
                self._intervals[expression] = found
        return found

    def _sum(self, expression: Expr, shifted: bool) -> Interval:
        """Interval arithmetic term by term; `shifted`: of each atom less its lower end."""
        result = Interval(0, 0)
        for monomial, size in expression.terms:
            term = Interval(1, 1)
            for atom in dict.fromkeys(monomial.atoms):
                bounds = self._atom(atom)
                if shifted and bounds.low is not None:
                    bounds = add(bounds, Interval(-bounds.low, -bounds.low))
                term = multiply(term, power(bounds, monomial.atoms.count(atom)))
            result = add(result, scale(term, size))
        known = None if shifted else self.declarations.known.get(expression)
        return result if known is None else intersect(result, known)

    def _atom(self, atom: Atom) -> Interval:
        if atom.operation is Operation.SYMBOL:
            result = self.declarations.interval(atom.name)
            for limit in self.declarations.limits.get(atom.name, ()):
                result = intersect(result, Interval(None, self.interval(limit).high))
            return result
        operands = [self.interval(operand) for operand in atom.operands]
        result = apply_to_intervals(atom.operation, operands)
        known = self.declarations.known.get(from_atoms((atom,)))
        return result if known is None else intersect(result, known)

    def _from_lower_ends(self, expression: Expr) -> Interval:
        """Bounds with every atom as its lower end and a natural number: a*b - b at a >= 1."""
        ends: dict[Atom, Expr] = {}
        for monomial, _ in expression.terms:
            for atom in monomial.atoms:
                low = self._atom(atom).low
                if low:
                    ends[atom] = from_atoms((atom,)) + low
        return self._sum(rebuild(expression, ends), shifted=True) if ends else EVERYTHING

    def _by_elimination(self, expression: Expr) -> Interval:
        """Bounds with the first suitable atom replaced by the ends of its range.

        Sound where the atom occurs linearly with a factor of known sign; the other atoms follow as
        the bounds of the results are asked for.
        """
        atoms = _candidates(expression)
        if sum(atom.operation is not Operation.SYMBOL for atom in atoms) > _MOST_APPLICATIONS:
            return EVERYTHING
        limits = self.declarations.limits
        last = {name: -position for position, name in enumerate(limits)}
        atoms = [atom for atom in atoms if atom.operation is not Operation.SYMBOL] + sorted(
            (atom for atom in atoms if atom.name in limits), key=lambda atom: last[atom.name]
        )
        for atom in atoms:
            split = _split(expression, atom)
            if split is None or not self._is_related(atom, split[1]):
                continue
            result = self._eliminate(atom, *split)
            if result is not None:
                return result
        return EVERYTHING

    def _is_related(self, atom: Atom, rest: Expr) -> bool:
        """Whether the atom has something in common with the rest of its sum."""
        if atom.operation is Operation.SYMBOL:
            return True
        names = from_atoms((atom,)).free_symbols
        return any(self.declarations.depends_on(rest, name) for name in names) or any(
            self.declarations.depends_on(from_atoms((atom,)), name) for name in rest.free_symbols
        )

    def _eliminate(self, atom: Atom, factor: Expr, rest: Expr) -> Interval | None:
        """Bounds of factor*atom + rest, or None where the atom has no ends that are of use."""
        if atom.operation is Operation.FLOORDIV and factor.is_constant:
            divisor = atom.operands[1]
            if divisor.is_constant and divisor.value > 0:
                return self._eliminate_quotient(atom, factor.value, rest, divisor.value)
        if atom.operation is Operation.SELECT:
            return hull(*(self.interval(factor * end + rest) for end in atom.operands[1:]))
        sign = self.interval(factor)
        if _is_natural(sign):
            rising = True
        elif sign.high is not None and sign.high <= 0:
            rising = False
        else:
            return None
        lowest, highest = self._ends(atom, upper=False), self._ends(atom, upper=True)
        if lowest is None or highest is None:
            return None
        result = EVERYTHING
        for end in highest:
            reached = self.interval(factor * end + rest)
            side = Interval(None, reached.high) if rising else Interval(reached.low, None)
            result = intersect(result, side)
        for end in lowest:
            reached = self.interval(factor * end + rest)
            side = Interval(reached.low, None) if rising else Interval(None, reached.high)
            result = intersect(result, side)
        if atom.operation in (Operation.MINIMUM, Operation.MAXIMUM):
            every = [self.interval(factor * end + rest) for end in atom.operands]
            together = every[0]
            for interval in every[1:]:
                together = hull(together, interval)
            result = intersect(result, together)
        return result

    def _eliminate_quotient(self, atom: Atom, factor: int, rest: Expr, divisor: int) -> Interval:
        """From divisor*(p//divisor) = p - m with m in 0..divisor-1."""
        multiple = self.interval(rest * divisor + atom.operands[0] * factor)
        remainder = scale(Interval(0, divisor - 1), -factor)
        whole = add(multiple, remainder)
        by = Interval(divisor, divisor)
        low = None if whole.low is None else -(-whole.low // divisor)
        return Interval(low, floor_divide(whole, by).high)

    def _ends(self, atom: Atom, upper: bool) -> tuple[Expr | int, ...] | None:
        """What the atom never exceeds, or never falls below; None where nothing is known."""
        operands = atom.operands
        bounds = self._atom(atom)
        plain = bounds.high if upper else bounds.low
        ends: tuple[Expr | int, ...] = () if plain is None else (plain,)
        match atom.operation:
            case Operation.SYMBOL:
                return (*self.declarations.limits[atom.name], *ends) if upper else ends
            case Operation.MINIMUM:
                return operands if upper else ends
            case Operation.MAXIMUM:
                return ends if upper else operands
            case Operation.MOD | Operation.FLOORDIV | Operation.CEILDIV:
                if not self.proves_nonnegative(operands[1] - 1):
                    return None
                if not upper:
                    return ends
                if atom.operation is Operation.MOD:
                    ends = (*ends, operands[1] - 1)
                return (*ends, operands[0]) if self.proves_nonnegative(operands[0]) else ends
            case _:
                return None


def _is_natural(interval: Interval) -> bool:
    return interval.low is not None and interval.low >= 0


def _candidates(expression: Expr) -> list[Atom]:
    """The atoms of the sum, truth values left out."""
    atoms = {atom: None for monomial, _ in expression.terms for atom in monomial.atoms}
    return [atom for atom in atoms if atom.operation not in BOOLEANS]


def _split(expression: Expr, atom: Atom) -> tuple[Expr, Expr] | None:
    """(f, r) with expression = f*atom + r and the atom in neither, nor within an atom of theirs."""
    if atom.operation is Operation.SYMBOL:
        found = expression.affine((atom.name,))
        return None if found is None else (found[0][atom.name], found[1])
    linear = constant_part = from_terms({})
    for monomial, size in expression.terms:
        count = monomial.atoms.count(atom)
        if count > 1:
            return None
        others = from_atoms(other for other in monomial.atoms if other is not atom) * size
        if count:
            linear = linear + others
        else:
            constant_part = constant_part + others
    return linear, constant_part
