"""Facts about dimensions, and what follows from them: a `Scope` resolves, bounds and decides.

Facts are ranges, multiples, upper bounds by other expressions (loop variables), equalities, and
definitions of symbols that stand for long expressions. Every answer is proved or UNKNOWN. The rules
of `resolve` are in `scoped.py`, bounds in `bounds.py`. May import the rest of the package; start
reading at :class:`Scope`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from math import gcd
from types import MappingProxyType
from typing import NoReturn

from tilewright.shape.bounds import Bounds, Declarations, SymbolFacts
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
from tilewright.shape.interval import EVERYTHING, Interval, intersect
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


def completed(definitions: Mapping[str, Expr], values: Mapping[str, int]) -> dict[str, int]:
    """``values`` of symbols, and of those that are defined by them, each by what comes before it.

    What a value is missing for is left out. Raises as ``evaluate``.
    """
    complete = dict(values)
    for name, expression in definitions.items():
        if name not in complete and complete.keys() >= set(expression.free_symbols):
            complete[name] = expression.evaluate(complete)
    return complete


class _Story:
    """What was declared and assumed so far, in order, and what expressions resolved to by it.

    Scopes with the same story share it: while a kernel is lowered, each of its variants declares
    the same loops in a copy of the graph's scope, and asks the same of them.
    """

    __slots__ = ("_following", "resolved")

    def __init__(self) -> None:
        self.resolved: dict[Expr, Expr] = {}
        self._following: dict[tuple[object, ...], _Story] = {}

    def then(self, *fact: object) -> _Story:
        """The story with one fact more."""
        found = self._following.get(fact)
        return self._following.setdefault(fact, _Story()) if found is None else found


class Scope:
    """What is known of the symbols. Declare and assume first, then ask; both may be mixed.

    A scope may be read by several threads, but declared and assumed in by one only.
    """

    def __init__(self) -> None:
        self._declared = Declarations()
        self._equalities: dict[str, Expr] = {}
        self._rewrites: dict[Atom, Expr] = {}
        self._zeros: dict[Expr, None] = {}
        self._assumptions: dict[tuple[Expr, Expr], None] = {}
        self._definitions: dict[str, Expr] = {}
        self._fresh: dict[str, int] = {}
        self._story = _Story()
        self.revision = 0  # grows whenever something is declared or assumed
        self._clear()

    def _clear(self) -> None:
        """Forget what was concluded from facts that have changed."""
        self._resolved: dict[Expr, Expr] = {}
        self._resolved_atoms: dict[Atom, Expr] = {}
        self._equal: dict[tuple[Expr, Expr], Truth] = {}
        self._bounds = Bounds(self._declared)

    def copy(self) -> Scope:
        """A scope with the same facts, in which more can be declared without touching this one."""
        other = Scope()
        other._declared = self._declared.copy()
        other._equalities = self._equalities.copy()
        other._rewrites = self._rewrites.copy()
        other._zeros = self._zeros.copy()
        other._assumptions = self._assumptions.copy()
        other._definitions = self._definitions.copy()
        other._fresh = self._fresh.copy()
        other._story = self._story
        other._clear()
        return other

    def restore(self, saved: Scope) -> None:
        """Forget all facts that were added after `saved` was copied from this scope."""
        again = saved.copy()
        self._declared = again._declared
        self._equalities = again._equalities
        self._rewrites = again._rewrites
        self._zeros = again._zeros
        self._assumptions = again._assumptions
        self._definitions = again._definitions
        self._fresh = again._fresh
        self._story = again._story
        self.revision += 1
        self._clear()

    def occupied(self, sizes: Iterable[Expr]) -> Scope | None:
        """A scope in which all of `sizes` are 1 or more too; None where one of them never is."""
        other = self.copy()
        narrowed = other._declared.occupied(map(self.resolve, sizes))
        if narrowed is None:
            return None
        other._declared = narrowed
        other._declared.asked = set()
        other._story = _Story()
        other._clear()
        return other

    # --- facts -----------------------------------------------------------------------------------

    @property
    def symbols(self) -> Mapping[str, SymbolFacts]:
        """The facts of each declared symbol, in the order of declaration."""
        return MappingProxyType(self._declared.symbols)

    @property
    def assumptions(self) -> tuple[tuple[Expr, Expr], ...]:
        """The pairs that were assumed equal, as they were given."""
        return tuple(self._assumptions)

    @property
    def definitions(self) -> Mapping[str, Expr]:
        """What each symbol stands for that :meth:`define` made, in the order of definition."""
        return MappingProxyType(self._definitions)

    def completed(self, values: Mapping[str, int]) -> dict[str, int]:
        """``values`` of symbols, and of all that are defined by them. Raises as ``evaluate``."""
        return completed(self._definitions, values)

    @property
    def independent(self) -> tuple[str, ...]:
        """The declared symbols that no definition made, in the order of declaration."""
        return tuple(name for name in self._declared.symbols if name not in self._definitions)

    @property
    def limits(self) -> tuple[tuple[str, Expr], ...]:
        """The symbols with an upper bound that is an expression, each with the bound."""
        return tuple(
            (name, limit) for name, limits in self._declared.limits.items() for limit in limits
        )

    @property
    def known_bounds(self) -> tuple[tuple[Expr, Interval], ...]:
        """Expressions whose bounds follow from equalities with bounded ones."""
        return tuple(self._declared.known.items())

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
        self.revision += 1
        self._story = self._story.then(name, low, high, multiple_of)
        if multiple_of < 1:
            raise DimensionError(f'dimension "{name}" cannot be a multiple of {multiple_of}')
        if isinstance(high, Expr) and high.is_constant:
            high = high.value
        if isinstance(high, Expr):
            if self._declared.depends_on(high, name):
                raise DimensionError(f'the upper bound {high} of "{name}" depends on itself')
            if high not in self._declared.limits.get(name, ()):
                self._declared.limits[name] = (*self._declared.limits.get(name, ()), high)
                if name in self._declared.asked:
                    self._clear()
            high = None
        old = self._declared.symbols.get(name, SymbolFacts(None, None, 1))
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
        if self._declared.symbols.get(name) != new:
            self._declared.symbols[name] = new
            if name in self._declared.asked:
                self._clear()
            if name in self._equalities:
                self._learn(self._equalities[name], Interval(least, most), divisor)
        return result

    def fresh(self, stem: str, low: int | None = 0, high: int | Expr | None = None) -> Expr:
        """Declare a symbol with a new name: the stem, `_` and the next free number."""
        number = self._fresh.get(stem, 0)
        while f"{stem}_{number}" in self._declared.symbols:
            number += 1
        self._fresh[stem] = number + 1
        return self.declare(f"{stem}_{number}", low, high)

    def define(self, stem: str, expression: Expr) -> Expr:
        """A symbol that stands for an expression from now on; the same for an equal expression.

        Only its range and its greatest known divisor are known of it, so that questions about it
        take as long as those about any symbol, however long the expression is.
        """
        resolved = self.resolve(expression)
        for name, known in self._definitions.items():
            if known is resolved:
                return symbol(name)
        bounds, divisor = self.bounds(resolved), self.known_divisor(resolved)
        made = self.fresh(stem, bounds.low, bounds.high)
        self.declare(str(made), None, multiple_of=max(divisor, 1))
        self._definitions[str(made)] = resolved
        return made

    def assume_equal(self, left: int | Expr, right: int | Expr) -> None:
        """State that two expressions are equal.

        Where one is a symbol, or a symbol can be isolated, the symbol is replaced from now on; else
        the longer one by the shorter one, if it is an operation.
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
        self.revision += 1
        self._story = self._story.then(as_expr(left), as_expr(right))
        self._assumptions[as_expr(left), as_expr(right)] = None
        isolated = self._isolate(difference, first, second)
        if isolated is not None:
            self._replace(*isolated)
            return
        sides = sorted((first, second), key=lambda side: side.length, reverse=True)
        for one, other in (sides, reversed(sides)):
            atom = one.atom
            if atom is not None and not _occurs(atom, other):
                self._rewrites[atom] = other
                self._learn(other, self._bounds.interval(one), 1)
                break
        else:
            self._zeros[_primitive(difference)] = None
        self._clear()

    def _isolate(self, difference: Expr, first: Expr, second: Expr) -> tuple[str, Expr] | None:
        """A symbol and what it equals, from difference = 0: the one declared last, if there is one.

        A side that is a symbol by itself comes before one that has to be isolated.
        """
        order = {name: position for position, name in enumerate(self._declared.symbols)}
        best: tuple[tuple[bool, int, str], Expr] | None = None
        for monomial, size in difference.terms:
            name = from_atoms(monomial.atoms).symbol_name
            if name is None or abs(size) != 1 or name in self._declared.limits:
                continue
            value = symbol(name) - difference * size
            if name in value.free_symbols:
                continue
            rank = (symbol(name) in (first, second), order.get(name, len(order)), name)
            if best is None or rank > best[0]:
                best = rank, value
        return None if best is None else (best[0][2], best[1])

    def _replace(self, name: str, value: Expr) -> None:
        facts = self._declared.symbols.get(name, SymbolFacts(None, None, 1))
        for other, expression in self._equalities.items():
            self._equalities[other] = expression.substitute({name: value})
        self._equalities[name] = value
        self._clear()
        self._learn(value, Interval(facts.low, facts.high), facts.multiple_of)

    def _learn(self, expression: Expr, bounds: Interval, divisor: int) -> None:
        """Take in that an expression lies within bounds and is a multiple of `divisor`."""
        name, scale_, offset = _linear(expression)
        actual = self._bounds.interval(expression)
        if intersect(actual, bounds).is_empty:
            raise DimensionError(
                f"{expression} has to lie in {bounds}, but lies in {actual}",
                hint="check the declared ranges against each other and against the model",
            )
        if name is None:
            known = self._declared.known.get(expression, EVERYTHING)
            self._declared.known[expression] = intersect(known, bounds)
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
        if found is None:
            found = self._told(expression)
        if found is not None:
            return found
        current = expression
        for _ in range(_ROUNDS):
            following = self._resolve_once(current)
            if following is current:
                break
            current = following
        self._resolved[expression] = self._story.resolved[expression] = current
        self._resolved[current] = self._story.resolved[current] = current
        return current

    def _told(self, expression: Expr) -> Expr | None:
        """What an expression resolved to in another scope with the same story."""
        found = self._story.resolved.get(expression)
        if found is not None:  # what follows from it may depend on all facts
            self._declared.asked.update(self._declared.symbols, expression.free_symbols)
        return found

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
            result = rule.apply(Operation.ADD, (expression,), self._bounds)
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
            bounds = self._declared.interval(atom.name)
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
            simplified = rule.apply(atom.operation, operands, self._bounds)
            if simplified is not None:
                return simplified
        return result

    def known_divisor(self, expression: Expr) -> int:
        """The greatest integer known to divide the value; 0 if the value is 0."""
        return self._bounds.known_divisor(self.resolve(expression))

    def bounds(self, expression: Expr) -> Interval:
        """A range that holds every value the expression can take."""
        resolved = self.resolve(expression)
        return intersect(self._bounds.interval(expression), self._bounds.interval(resolved))

    def divisible(self, expression: Expr, divisor: int) -> Truth:
        """Whether `divisor` (not 0) divides the value."""
        resolved = self.resolve(expression)
        size = abs(divisor)
        if size == 0:
            raise DimensionError(f"whether 0 divides {expression} makes no sense")
        if self._bounds.known_divisor(resolved) % size == 0:
            return Truth.YES
        offset = resolved.constant_term
        common = gcd(self._bounds.known_divisor(resolved - offset), size)
        if offset % common:
            return Truth.NO
        remainder = self.resolve(resolved % size)
        return self.is_equal(remainder, constant(0))

    def is_equal(self, left: int | Expr, right: int | Expr) -> Truth:
        """Whether the two have the same value wherever the facts hold."""
        key = (as_expr(left), as_expr(right))
        found = self._equal.get(key)
        if found is None:
            found = self._equal[key] = self._compared(self.resolve(key[0] - key[1]))
        return found

    def _compared(self, difference: Expr) -> Truth:
        """Whether a resolved difference is 0 wherever the facts hold."""
        if not difference.terms:
            return Truth.YES
        offset = difference.constant_term
        common = self._bounds.known_divisor(difference - offset)
        if 0 not in self._bounds.interval(difference) or (common > 1 and offset % common):
            return Truth.NO
        known = any(
            self.resolve(zero) in (_primitive(difference), -_primitive(difference))
            for zero in self._zeros
        )
        return Truth.YES if known else Truth.UNKNOWN

    def is_less(self, left: int | Expr, right: int | Expr) -> Truth:
        """Whether left < right wherever the facts hold."""
        return self.is_less_equal(as_expr(left) + 1, right)

    def is_natural(self, expression: Expr) -> bool:
        """Whether the value is 0 or more wherever the facts hold; not, whether it never is."""
        forms = (self.resolve(expression), expression)
        return any(self._bounds.proves_nonnegative(form) for form in forms)

    def is_less_equal(self, left: int | Expr, right: int | Expr) -> Truth:
        """Whether left <= right wherever the facts hold; NO where it never does."""
        difference = as_expr(right) - left
        if self.is_natural(difference):
            return Truth.YES
        forms = (self.resolve(difference), difference)
        if any(self._bounds.proves_nonnegative(-form - 1) for form in forms):
            return Truth.NO
        return Truth.UNKNOWN


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
