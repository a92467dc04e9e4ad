"""Facts about dimensions, and what follows from them: a `Scope` resolves, bounds and decides.

Facts are ranges, multiples, upper bounds by other expressions (loop variables) and equalities. Every
answer is proved or UNKNOWN. May import the rest of the room; start reading at :class:`Scope`. The
rules of `resolve` are in `scoped.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from math import gcd
from types import MappingProxyType
from typing import NamedTuple, NoReturn

from tilewright.shape.expr import (
    Atom,
    Expr,
    apply_operation,
    as_expr,
    constant,
    from_atoms,
    from_terms,
    rebuild,
    symbol,
)
from tilewright.shape.interval import (
    EVERYTHING,
    Interval,
    add,
    apply_to_intervals,
    intersect,
    multiply,
    power,
    scale,
)
from tilewright.shape.table import SCOPED_RULES, Operation
from tilewright.support.errors import DimensionError

# Rules end by themselves in a few rounds; a bound keeps a mistake in one from hanging a compiler.
_ROUNDS = 32


class Truth(Enum):
    """An answer that may be missing. It has no truth value: compare with `is`."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"

    def __bool__(self) -> NoReturn:
        raise TypeError("a Truth may be UNKNOWN; compare it with Truth.YES or Truth.NO by `is`")


class SymbolFacts(NamedTuple):
    """What is declared of a symbol: the range (None: open) and a divisor of every value."""

    low: int | None
    high: int | None
    multiple_of: int


def _truth(holds: bool, fails: bool) -> Truth:
    return Truth.YES if holds else Truth.NO if fails else Truth.UNKNOWN


class Scope:
    """What is known of the symbols. Declare and assume first, then ask; both may be mixed.

    A scope may be read by several threads, but declared and assumed in by one only.
    """

    def __init__(self) -> None:
        self._symbols: dict[str, SymbolFacts] = {}
        self._limits: dict[str, tuple[Expr, ...]] = {}
        self._equalities: dict[str, Expr] = {}
        self._rewrites: dict[Atom, Expr] = {}
        self._zeros: dict[Expr, None] = {}
        self._known: dict[Expr, Interval] = {}
        self._fresh: dict[str, int] = {}
        self._asked: set[str] = set()
        self._clear()

    def _clear(self) -> None:
        """Forget what was concluded from facts that have changed."""
        self._resolved: dict[Expr, Expr] = {}
        self._resolved_atoms: dict[Atom, Expr] = {}
        self._intervals: dict[Expr, Interval] = {}
        self._divisors: dict[Expr, int] = {}

    def copy(self) -> Scope:
        """A scope with the same facts, in which more can be declared without touching this one."""
        other = Scope()
        for name, value in vars(self).items():
            setattr(other, name, value.copy())
        return other

    # --- facts -----------------------------------------------------------------------------------

    @property
    def symbols(self) -> Mapping[str, SymbolFacts]:
        """The facts of each declared symbol, in the order of declaration."""
        return MappingProxyType(self._symbols)

    def declare(
        self,
        name: str,
        low: int | None = 0,
        high: int | Expr | None = None,
        multiple_of: int = 1,
    ) -> Expr:
        """State that low <= name <= high and that `multiple_of` divides it; give the symbol.

        A `high` that is an expression (of other symbols) is the last value of a loop variable: the
        symbol has a value only where that is at least `low`. Declaring again adds to what is known.
        :class:`DimensionError` if no value is left.
        """
        result = symbol(name)
        if multiple_of < 1:
            raise DimensionError(f'dimension "{name}" cannot be a multiple of {multiple_of}')
        if isinstance(high, Expr) and high.is_constant:
            high = high.value
        if isinstance(high, Expr):
            if self._depends_on(high, name):
                raise DimensionError(f'the upper bound {high} of "{name}" depends on itself')
            if high not in self._limits.get(name, ()):
                self._limits[name] = (*self._limits.get(name, ()), high)
                if name in self._asked:
                    self._clear()
            high = None
        old = self._symbols.get(name, SymbolFacts(None, None, 1))
        divisor = multiple_of * old.multiple_of // gcd(multiple_of, old.multiple_of)
        bounds = intersect(Interval(old.low, old.high), Interval(low, high))
        least = None if bounds.low is None else -(-bounds.low // divisor) * divisor
        most = None if bounds.high is None else bounds.high // divisor * divisor
        if least is not None and most is not None and least > most:
            multiple = f" and a multiple of {divisor}" if divisor > 1 else ""
            raise DimensionError(
                f'dimension "{name}" has no possible value: it has to lie in {bounds}{multiple}',
                hint="check the declared ranges against each other and against the model",
            )
        new = SymbolFacts(least, most, divisor)
        if self._symbols.get(name) != new:
            self._symbols[name] = new
            if name in self._asked:
                self._clear()
            if name in self._equalities:
                self._learn(self._equalities[name], Interval(least, most), divisor)
        return result

    def fresh(self, stem: str, low: int | None = 0, high: int | Expr | None = None) -> Expr:
        """Declare a symbol with a new name: the stem, `_` and the next free number."""
        number = self._fresh.get(stem, 0)
        while f"{stem}_{number}" in self._symbols:
            number += 1
        self._fresh[stem] = number + 1
        return self.declare(f"{stem}_{number}", low, high)

    def assume_equal(self, left: int | Expr, right: int | Expr) -> None:
        """State that two expressions are equal.

        Where one is a symbol, or a symbol can be isolated, the symbol is replaced from now on.
        :class:`DimensionError` if they cannot be equal.
        """
        first, second = self.resolve(as_expr(left)), self.resolve(as_expr(right))
        difference = first - second
        if not difference.terms:
            return
        if self.is_equal(first, second) is Truth.NO:
            raise DimensionError(
                f"{left} = {right} cannot hold: {first} and {second} are never equal",
                hint="check the declared ranges and the shapes that the model states",
            )
        isolated = self._isolate(difference, first, second)
        if isolated is not None:
            self._replace(*isolated)
            return
        for one, other in ((first, second), (second, first)):
            atom = one.atom
            if atom is not None and not _occurs(atom, other):
                self._rewrites[atom] = other
                self._learn(other, self._interval(one), 1)
                break
        else:
            self._zeros[_primitive(difference)] = None
        self._clear()

    def _isolate(self, difference: Expr, first: Expr, second: Expr) -> tuple[str, Expr] | None:
        """A symbol and what it equals, from difference = 0: the one declared last, if there is one.

        A side that is a symbol by itself comes before one that has to be isolated.
        """
        order = {name: position for position, name in enumerate(self._symbols)}
        best: tuple[tuple[bool, int, str], Expr] | None = None
        for monomial, size in difference.terms:
            name = from_atoms(monomial.atoms).symbol_name
            if name is None or abs(size) != 1 or name in self._limits:
                continue
            value = symbol(name) - difference * size
            if name in value.free_symbols:
                continue
            rank = (symbol(name) in (first, second), order.get(name, len(order)), name)
            if best is None or rank > best[0]:
                best = rank, value
        return None if best is None else (best[0][2], best[1])

    def _replace(self, name: str, value: Expr) -> None:
        facts = self._symbols.get(name, SymbolFacts(None, None, 1))
        for other, expression in self._equalities.items():
            self._equalities[other] = expression.substitute({name: value})
        self._equalities[name] = value
        self._clear()
        self._learn(value, Interval(facts.low, facts.high), facts.multiple_of)

    def _learn(self, expression: Expr, bounds: Interval, divisor: int) -> None:
        """Take in that an expression lies within bounds and is a multiple of `divisor`."""
        name, scale_, offset = _linear(expression)
        if intersect(self._interval(expression), bounds).is_empty:
            raise DimensionError(
                f"{expression} has to lie in {bounds}, but lies in {self._interval(expression)}",
                hint="check the declared ranges against each other and against the model",
            )
        if name is None:
            known = self._known.get(expression, EVERYTHING)
            self._known[expression] = intersect(known, bounds)
            self._clear()
            return
        if scale_ < 0:
            bounds = Interval(
                None if bounds.high is None else -bounds.high,
                None if bounds.low is None else -bounds.low,
            )
            scale_, offset = -scale_, -offset
        low = None if bounds.low is None else -(-(bounds.low - offset) // scale_)
        high = None if bounds.high is None else (bounds.high - offset) // scale_
        multiple = divisor // gcd(scale_, divisor) if offset % divisor == 0 else 1
        self.declare(name, low, high, multiple)

    # --- questions -------------------------------------------------------------------------------

    def resolve(self, expression: Expr) -> Expr:
        """The simplest equal expression that the facts allow; equal wherever the facts hold."""
        found = self._resolved.get(expression)
        if found is not None:
            return found
        current = expression
        for _ in range(_ROUNDS):
            following = self._resolve_once(current)
            if following is current:
                break
            current = following
        self._resolved[expression] = current
        self._resolved[current] = current
        return current

    def _resolve_once(self, expression: Expr) -> Expr:
        replace: dict[Atom, Expr] = {}
        for monomial, _ in expression.terms:
            for atom in monomial.atoms:
                if atom not in replace:
                    result = self._resolve_atom(atom)
                    if result.atom is not atom:
                        replace[atom] = result
        if replace:
            return rebuild(expression, replace)
        for rule in SCOPED_RULES[Operation.ADD]:
            result = rule.apply(Operation.ADD, (expression,), self)
            if result is not None:
                return result
        return expression

    def _resolve_atom(self, atom: Atom) -> Expr:
        found = self._resolved_atoms.get(atom)
        if found is None:
            found = self._simplify_atom(atom)
            self._resolved_atoms[atom] = found
        return found

    def _simplify_atom(self, atom: Atom) -> Expr:
        if atom.operation is Operation.SYMBOL:
            bounds = self._symbol_interval(atom.name)
            if atom.name in self._equalities:
                return self._equalities[atom.name]
            if bounds.is_point and bounds.low is not None:
                return constant(bounds.low)
            return from_atoms((atom,))
        operands = tuple([self.resolve(operand) for operand in atom.operands])
        result = apply_operation(atom.operation, operands)
        if result.atom is None or result.atom.operands != operands:
            return result
        if result.atom in self._rewrites:
            return self._rewrites[result.atom]
        for rule in SCOPED_RULES[atom.operation]:
            simplified = rule.apply(atom.operation, operands, self)
            if simplified is not None:
                return simplified
        return result

    def bounds(self, expression: Expr) -> Interval:
        """A range that holds every value the expression can take."""
        resolved = self.resolve(expression)
        return intersect(self._interval(expression), self._interval(resolved))

    def divisible(self, expression: Expr, divisor: int) -> Truth:
        """Whether `divisor` (not 0) divides the value."""
        resolved = self.resolve(expression)
        size = abs(divisor)
        if size == 0:
            raise DimensionError(f"whether 0 divides {expression} makes no sense")
        if self.known_divisor(resolved) % size == 0:
            return Truth.YES
        offset = resolved.constant_term
        common = gcd(self.known_divisor(resolved - offset), size)
        if offset % common:
            return Truth.NO
        remainder = self.resolve(resolved % size)
        return self.is_equal(remainder, constant(0))

    def is_equal(self, left: int | Expr, right: int | Expr) -> Truth:
        """Whether the two have the same value wherever the facts hold."""
        difference = self.resolve(as_expr(left) - right)
        if not difference.terms:
            return Truth.YES
        offset = difference.constant_term
        common = self.known_divisor(difference - offset)
        if 0 not in self._interval(difference) or (common > 1 and offset % common):
            return Truth.NO
        known = any(
            self.resolve(zero) in (_primitive(difference), -_primitive(difference))
            for zero in self._zeros
        )
        return Truth.YES if known else Truth.UNKNOWN

    def is_less(self, left: int | Expr, right: int | Expr) -> Truth:
        """Whether left < right wherever the facts hold."""
        return self.is_less_equal(as_expr(left) + 1, right)

    def is_less_equal(self, left: int | Expr, right: int | Expr) -> Truth:
        """Whether left <= right wherever the facts hold; NO where it never does."""
        bounds = self.bounds(as_expr(right) - left)
        return _truth(
            bounds.low is not None and bounds.low >= 0,
            bounds.high is not None and bounds.high < 0,
        )

    # --- what rules ask (`Facts`) ----------------------------------------------------------------

    def interval(self, expression: Expr) -> Interval:
        """Bounds of a resolved expression."""
        return self._interval(expression)

    def proves_nonnegative(self, expression: Expr, context: Sequence[Expr] = ()) -> bool:
        """Whether a resolved expression is >= 0 where the symbols of `context` have values.

        That a loop variable has a value tells that its upper bound is not below its lower one.
        """
        low = self._interval(expression).low
        if low is not None and low >= 0:
            return True
        names = {name: None for operand in context for name in operand.free_symbols}
        for name in names:
            lowest = self._symbol_interval(name).low
            for limit in self._limits.get(name, ()) if lowest is not None else ():
                low = self._interval(expression - (limit - lowest)).low
                if low is not None and low >= 0:
                    return True
        return False

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
                self._asked.add(atom.name)
                facts = self._symbols.get(atom.name)
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

    # --- bounds ----------------------------------------------------------------------------------

    def _symbol_interval(self, name: str) -> Interval:
        self._asked.add(name)
        facts = self._symbols.get(name)
        return EVERYTHING if facts is None else Interval(facts.low, facts.high)

    def _interval(self, expression: Expr) -> Interval:
        found = self._intervals.get(expression)
        if found is None:
            # The plain bounds stand in while better ones are looked for, which ends any circle.
            found = self._plain_interval(expression)
            self._intervals[expression] = found
            if not self._limits.keys().isdisjoint(expression.free_symbols):
                for low in (True, False):
                    found = intersect(found, self._by_limits(expression, low))
            self._intervals[expression] = found
        return found

    def _plain_interval(self, expression: Expr) -> Interval:
        """Interval arithmetic, term by term."""
        result = Interval(0, 0)
        for monomial, size in expression.terms:
            term = Interval(1, 1)
            for atom in dict.fromkeys(monomial.atoms):
                factor = power(self._atom_interval(atom), monomial.atoms.count(atom))
                term = multiply(term, factor)
            result = add(result, scale(term, size))
        known = self._known.get(expression)
        return result if known is None else intersect(result, known)

    def _atom_interval(self, atom: Atom) -> Interval:
        if atom.operation is Operation.SYMBOL:
            result = self._symbol_interval(atom.name)
            for limit in self._limits.get(atom.name, ()):
                result = intersect(result, Interval(None, self._interval(limit).high))
            return result
        return apply_to_intervals(
            atom.operation, [self._interval(operand) for operand in atom.operands]
        )

    def _by_limits(self, expression: Expr, low: bool) -> Interval:
        """A bound on one side, by putting an end of its range for one loop variable.

        Sound where the variable occurs affinely with a factor of known sign; the others follow as
        the bounds of the result are asked for.
        """
        result = EVERYTHING
        for name in reversed(self._limits):
            split = expression.affine((name,)) if name in expression.free_symbols else None
            if split is None:
                continue
            factor, rest = split[0][name], split[1]
            sign = self._interval(factor)
            if sign.low is not None and sign.low >= 0:
                ends = self._ends(name, not low)
            elif sign.high is not None and sign.high <= 0:
                ends = self._ends(name, low)
            else:
                continue
            for end in ends:
                result = intersect(result, self._interval(rest + factor * end))
            break
        return Interval(result.low, None) if low else Interval(None, result.high)

    def _ends(self, name: str, upper: bool) -> tuple[Expr | int, ...]:
        """What the symbol is at most, or at least."""
        bounds = self._symbol_interval(name)
        end = bounds.high if upper else bounds.low
        limits = self._limits[name] if upper else ()
        return limits if end is None else (*limits, end)

    def _depends_on(self, expression: Expr, name: str) -> bool:
        """Whether the expression, or a limit of one of its symbols, holds the symbol."""
        return name in expression.free_symbols or any(
            self._depends_on(limit, name)
            for other in expression.free_symbols
            for limit in self._limits.get(other, ())
        )


def _linear(expression: Expr) -> tuple[str | None, int, int]:
    """(s, a, b) with expression = a*s + b for a symbol s and integers, or (None, 0, 0)."""
    offset = expression.constant_term
    terms = (expression - offset).terms
    if len(terms) == 1:
        monomial, size = terms[0]
        name = from_atoms(monomial.atoms).symbol_name
        if name is not None:
            return name, size, offset
    return None, 0, 0


def _primitive(difference: Expr) -> Expr:
    """The non-zero expression divided by the greatest common divisor of its coefficients."""
    factor = gcd(*(size for _, size in difference.terms))
    return from_terms({monomial: size // factor for monomial, size in difference.terms})


def _occurs(atom: Atom, expression: Expr) -> bool:
    return any(
        inner is atom or any(_occurs(atom, operand) for operand in inner.operands)
        for monomial, _ in expression.terms
        for inner in monomial.atoms
    )
