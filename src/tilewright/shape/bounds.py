"""Bounds and divisors of expressions, from what is declared of the symbols.

Plain interval arithmetic loses what the terms of a sum have in common, so a bound is improved in
two ways: by measuring each atom from its lower end, and by putting an end of its range for an atom
that shares symbols with the rest (a loop variable, a quotient, …). Start at :meth:`Bounds.low`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import NamedTuple

from tilewright.shape.expr import Atom, Expr, Monomial, from_atoms, from_terms, rebuild
from tilewright.shape.interval import (
    EVERYTHING,
    Interval,
    add,
    apply_to_intervals,
    intersect,
    multiply,
    negate,
    power,
    scale,
)
from tilewright.shape.table import Operation

# Limits of effort, beyond which a bound is what intervals say of it term by term. Atoms are
# eliminated one by one, some in two ways.
_MOST_APPLICATIONS = 4
_MOST_ELIMINATIONS = 200  # in one question: each may ask two more, so without end they double
_LONGEST = 500  # symbols and operations of a sum that is looked into so; some have millions
_WITH_ENDS = (
    Operation.FLOORDIV,
    Operation.CEILDIV,
    Operation.MOD,
    Operation.MINIMUM,
    Operation.MAXIMUM,
    Operation.SELECT,
)


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

    def depth(self, name: str) -> int:
        """How long the longest chain of upper bounds that begins at the symbol is."""
        return max(
            (
                1 + self.depth(other)
                for limit in self.limits.get(name, ())
                for other in limit.free_symbols
            ),
            default=0,
        )

    def depends_on(self, expression: Expr, name: str) -> bool:
        """Whether the expression, or an upper bound of one of its symbols, holds the symbol."""
        return name in expression.free_symbols or any(
            self.depends_on(limit, name)
            for other in expression.free_symbols
            for limit in self.limits.get(other, ())
        )

    def narrowed(self, expression: Expr, bounds: Interval) -> Declarations | None:
        """These facts, and that the expression lies in `bounds`; None where nothing does.

        Looks through a multiple, an offset and a quotient by a constant for a symbol to narrow.
        """
        self.asked.update(expression.free_symbols)
        result = self.copy()
        result.asked = self.asked  # what is concluded from the copy holds by these facts too
        return result if result._narrow(expression, bounds) else None

    def occupied(self, sizes: Iterable[Expr]) -> Declarations | None:
        """These facts, and that all of `sizes` are 1 or more; None where one of them never is."""
        facts: Declarations | None = self
        for size in sizes:
            facts = facts and facts.narrowed(size, Interval(1, None))
        return facts

    def _narrow(self, expression: Expr, bounds: Interval) -> bool:
        """Take in that the expression lies in `bounds`; False where that leaves no value."""
        offset = expression.constant_term
        terms = (expression - offset).terms
        bounds = add(bounds, Interval(-offset, -offset))
        if expression.is_constant:
            return 0 in bounds
        monomial, size = terms[0]
        if len(terms) > 1 or len(monomial.atoms) != 1:
            return self._note(expression - offset, bounds)
        atom = monomial.atoms[0]
        if size < 0:
            bounds, size = negate(bounds), -size
        bounds = Interval(
            None if bounds.low is None else -(-bounds.low // size),
            None if bounds.high is None else bounds.high // size,
        )
        if atom.operation is Operation.FLOORDIV and _is_positive(atom.operands[1]):
            divisor = atom.operands[1].value
            high = None if bounds.high is None else bounds.high * divisor + divisor - 1
            numerators = Interval(scale(bounds, divisor).low, high)
            if not self._narrow(atom.operands[0], numerators):
                return False
        if atom.operation is not Operation.SYMBOL:
            return self._note(from_atoms((atom,)), bounds)
        facts = self.symbols.get(atom.name, SymbolFacts(None, None, 1))
        found = intersect(Interval(facts.low, facts.high), bounds)
        self.symbols[atom.name] = SymbolFacts(found.low, found.high, facts.multiple_of)
        return not found.is_empty

    def _note(self, expression: Expr, bounds: Interval) -> bool:
        found = intersect(self.known.get(expression, EVERYTHING), bounds)
        self.known[expression] = found
        return not found.is_empty


class Bounds:
    """What follows from declarations; answers are kept, so make a new one when facts change."""

    def __init__(self, declarations: Declarations) -> None:
        self._depth = 0  # eliminations within each other, and how many in the outermost one
        self._eliminations = 0
        self.declarations = declarations
        self._lows: dict[Expr, int | None] = {}
        self._sums: dict[Expr, Interval] = {}
        self._atoms: dict[Atom, Interval] = {}
        self._divisors: dict[Expr, int] = {}
        self._depths: dict[str, int] = {}
        self._with_sizes: dict[tuple[Expr, ...], Bounds | None] = {}

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
        low = self.low(expression)
        if low is not None and low >= 0:
            return True
        names = {name: None for operand in context for name in operand.free_symbols}
        for name in names:
            limits = self.declarations.limits.get(name, ())
            lowest = self.declarations.interval(name).low
            if lowest is None:
                continue
            for limit in limits:
                low = self.low(expression - limit + lowest)
                if low is not None and low >= 0:
                    return True
        return False

    def proves_nonzero(self, expression: Expr, context: Sequence[Expr] = ()) -> bool:
        """Whether the value is surely not 0 where the symbols of `context` have values."""
        if len(expression.terms) == 1 and len(expression.terms[0][0].atoms) > 1:
            atoms = expression.terms[0][0].atoms
            return all(self.proves_nonzero(from_atoms((atom,)), context) for atom in atoms)
        if self.proves_nonnegative(expression - 1, context) or self.proves_nonnegative(
            -expression - 1, context
        ):
            return True
        occupied = self._occupied(context)
        low = None if occupied is None else occupied.low(expression)
        return low is not None and low > 0

    def _occupied(self, context: Sequence[Expr]) -> Bounds | None:
        """What holds where the symbols of `context` have values; None if no more, or if none has.

        The range of a loop variable has a size of 1 or more then, and so has what it is a product
        or a quotient of.
        """
        sizes: dict[Expr, None] = {}
        for name in dict.fromkeys(name for operand in context for name in operand.free_symbols):
            lowest = self.declarations.interval(name).low
            if lowest is not None:
                for limit in self.declarations.limits.get(name, ()):
                    sizes |= dict.fromkeys(self._positive_with(limit - lowest + 1))
        key = tuple(sizes)
        if key not in self._with_sizes:
            facts = self.declarations.occupied(sizes) if sizes else None
            self._with_sizes[key] = facts and Bounds(facts)
        return self._with_sizes[key]

    def _positive_with(self, size: Expr) -> list[Expr]:
        """Atoms that are 1 or more where a size is."""
        if len(size.terms) != 1 or size.terms[0][1] < 0:
            return []
        found: list[Expr] = []
        for atom in size.terms[0][0].atoms:
            low = self._atom(atom).low
            if low is None or low < 0:
                return []
            found.append(from_atoms((atom,)))
            if atom.operation is Operation.FLOORDIV and self.proves_nonnegative(atom.operands[1]):
                found += self._positive_with(atom.operands[0])
        return found

    def where(self, expression: Expr, bounds: Interval) -> Bounds | None:
        """What holds where the value lies in `bounds` too; None where it surely never does."""
        narrowed = self.declarations.narrowed(expression, bounds)
        return None if narrowed is None else Bounds(narrowed)

    # --- bounds ----------------------------------------------------------------------------------

    def interval(self, expression: Expr) -> Interval:
        """A range that holds every value of the expression."""
        return Interval(self.low(expression), self.high(expression))

    def high(self, expression: Expr) -> int | None:
        """What the expression is at most, or None."""
        opposite = self.low(-expression)
        return None if opposite is None else -opposite

    def low(self, expression: Expr) -> int | None:
        """What the expression is at least, or None."""
        if expression in self._lows:
            return self._lows[expression]
        plain = self._sum(expression)
        found = plain.low
        # The plain bound stands in while a better one is looked for, which ends any circle.
        self._lows[expression] = found
        terms = expression.terms
        if not plain.is_point and any(size < 0 and monomial.atoms for monomial, size in terms):
            looked_into = len(terms) > 1 and expression.length <= _LONGEST
            better = self._by_elimination(expression) if looked_into else None
            if better is None and any(len(monomial.atoms) > 1 for monomial, _ in terms):
                better = self._from_lower_ends(expression)
            found = _greater(found, better)
            self._lows[expression] = found
        return found

    def _sum(self, expression: Expr) -> Interval:
        """Interval arithmetic term by term, and what is known of the expression as a whole."""
        found = self._sums.get(expression)
        if found is None:
            low: int | None = 0
            high: int | None = 0
            for monomial, size in expression.terms:
                term = self._product(monomial)
                ends = (term.low, term.high) if size > 0 else (term.high, term.low)
                low = None if low is None or ends[0] is None else low + ends[0] * size
                high = None if high is None or ends[1] is None else high + ends[1] * size
            found = Interval(low, high)
            known = self.declarations.known
            if known:
                found = intersect(found, self._known(expression))
                offset = expression.constant_term
                if offset:
                    rest = self._known(expression - offset)
                    found = intersect(found, add(rest, Interval(offset, offset)))
            self._sums[expression] = found
        return found

    def _product(self, monomial: Monomial) -> Interval:
        """The range of a product of atoms; most have one, and the empty product is 1."""
        atoms = monomial.atoms
        if len(atoms) == 1:
            return self._atom(atoms[0])
        term = Interval(1, 1)
        for atom in dict.fromkeys(atoms):
            term = multiply(term, power(self._atom(atom), atoms.count(atom)))
        return term

    def _known(self, expression: Expr) -> Interval:
        """What is declared of the expression, or of its negative, as a whole."""
        known = self.declarations.known
        opposite = negate(known.get(-expression, EVERYTHING))
        return intersect(known.get(expression, EVERYTHING), opposite)

    def _atom(self, atom: Atom) -> Interval:
        found = self._atoms.get(atom)
        if found is None:
            if atom.operation is Operation.SYMBOL:
                found = self.declarations.interval(atom.name)
                for limit in self.declarations.limits.get(atom.name, ()):
                    found = intersect(found, Interval(None, self.high(limit)))
            else:
                found = apply_to_intervals(atom.operation, [*map(self.interval, atom.operands)])
            if self.declarations.known:
                known = self.declarations.known.get(from_atoms((atom,)), EVERYTHING)
                found = intersect(found, known)
            self._atoms[atom] = found
        return found

    def _from_lower_ends(self, expression: Expr) -> int | None:
        """A bound with each atom as its lower end and a natural number: a*b - b at a >= 1."""
        ends: dict[Atom, Expr] = {}
        for monomial, _ in expression.terms:
            for atom in monomial.atoms:
                low = self._atom(atom).low
                if low:
                    ends[atom] = from_atoms((atom,)) + low
        if not ends:
            return None
        result = 0
        for monomial, size in rebuild(expression, ends).terms:
            term = Interval(1, 1)
            for atom in dict.fromkeys(monomial.atoms):
                bounds = self._atom(atom)
                if bounds.low is not None:
                    bounds = add(bounds, Interval(-bounds.low, -bounds.low))
                term = multiply(term, power(bounds, monomial.atoms.count(atom)))
            low = scale(term, size).low
            if low is None:
                return None
            result += low
        return result

    def _by_elimination(self, expression: Expr) -> int | None:
        """A bound with the first suitable atom replaced by an end of its range.

        Sound where the atom occurs linearly with a factor of known sign; the other atoms follow as
        the bound of the result is asked for.
        """
        if self._depth == 0:
            self._eliminations = 0
        self._eliminations += 1
        if self._eliminations > _MOST_ELIMINATIONS:
            return None
        self._depth += 1
        try:
            return self._eliminated(expression)
        finally:
            self._depth -= 1

    def _eliminated(self, expression: Expr) -> int | None:
        atoms = {atom: None for monomial, _ in expression.terms for atom in monomial.atoms}
        applications = [atom for atom in atoms if atom.operation in _WITH_ENDS]
        variables = [atom for atom in atoms if atom.name in self.declarations.limits]
        if not (applications or variables) or len(applications) > _MOST_APPLICATIONS:
            return None
        # Inner loop variables go first: their limits may hold outer ones.
        variables.sort(key=self._depth_of, reverse=True)
        for atom in (*applications, *variables):
            split = _split(expression, atom)
            if split is not None and self._is_related(atom, split[1]):
                choices = self._choices(atom, *split)
                if choices is not None:
                    return choices
        return None

    def _depth_of(self, variable: Atom) -> int:
        """How many upper bounds follow on each other; all of them have been asked for before."""
        if variable.name not in self._depths:
            self._depths[variable.name] = self.declarations.depth(variable.name)
        return self._depths[variable.name]

    def _is_related(self, atom: Atom, rest: Expr) -> bool:
        """Whether the atom has something in common with the rest of its sum."""
        if atom.operation is Operation.SYMBOL:
            return True
        names = from_atoms((atom,)).free_symbols
        return any(self.declarations.depends_on(rest, name) for name in names) or any(
            self.declarations.depends_on(from_atoms((atom,)), name) for name in rest.free_symbols
        )

    def _choices(self, atom: Atom, factor: Expr, rest: Expr) -> int | None:
        """A lower bound of factor*atom + rest, or None where the atom has no end that is of use."""
        operands = atom.operands
        if atom.operation is Operation.SELECT:
            return self._least(operands[1:], factor, rest)
        low = self.low(factor)
        rising = low is not None and low >= 0
        high = None if rising else self.high(factor)
        if not rising and (high is None or high > 0):
            return None
        match atom.operation:
            case Operation.SYMBOL:
                return self._greatest(
                    () if rising else self.declarations.limits[atom.name], factor, rest
                )
            case Operation.MINIMUM | Operation.MAXIMUM:
                one_sided = rising is (atom.operation is Operation.MAXIMUM)
                combine = self._greatest if one_sided else self._least
                return combine(operands, factor, rest)
            case Operation.FLOORDIV if factor.is_constant and _is_positive(operands[1]):
                return self._of_quotient(atom, factor.value, rest)
            case _:
                return None if rising else self._greatest(self._highest(atom), factor, rest)

    def _greatest(self, ends: Sequence[Expr], factor: Expr, rest: Expr) -> int | None:
        """The best of the bounds at ends, each of which bounds the atom."""
        found: int | None = None
        for end in ends:
            found = _greater(found, self.low(factor * end + rest))
        return found

    def _least(self, ends: Sequence[Expr], factor: Expr, rest: Expr) -> int | None:
        """The worst of the bounds at ends, one of which is the value of the atom."""
        found = [self.low(factor * end + rest) for end in ends]
        known = [low for low in found if low is not None]
        return min(known) if len(known) == len(found) else None

    def _of_quotient(self, atom: Atom, factor: int, rest: Expr) -> int | None:
        """From d*(p//d) = p - m with m in 0..d-1."""
        divisor = atom.operands[1].value
        low = self.low(rest * divisor + atom.operands[0] * factor)
        if low is None:
            return None
        low -= max(factor, 0) * (divisor - 1)
        return -(-low // divisor)

    def _highest(self, atom: Atom) -> tuple[Expr, ...]:
        """What a quotient or a remainder never exceeds."""
        numerator, denominator = atom.operands
        if not self.proves_nonnegative(denominator - 1):
            return ()
        ends = (denominator - 1,) if atom.operation is Operation.MOD else ()
        return (*ends, numerator) if self.proves_nonnegative(numerator) else ends


def _greater(left: int | None, right: int | None) -> int | None:
    if left is None or right is None:
        return right if left is None else left
    return max(left, right)


def _is_positive(expression: Expr) -> bool:
    return expression.is_constant and expression.value > 0


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
