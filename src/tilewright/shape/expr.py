"""Integer expressions over named dimensions: interned, canonical polynomials over atoms.

An atom is a symbol or an application that is no polynomial (a floor division, a minimum, …). An
expression is a sum of integer multiples of products of atoms, like terms merged, so two expressions
with one canonical form are one object and `==` is `is`. Floor division and modulo are Python's. May
import `support`. Start reading at :class:`Expr`; the rules that simplify an application as it is
built are in `structural.py`, printing is in `printing.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NoReturn

from tilewright.shape.evaluation import evaluate
from tilewright.shape.interning import Table, remember
from tilewright.shape.order import Key, atom_key, expression_key
from tilewright.shape.printing import atom_text, expression_text, once
from tilewright.shape.table import BOOLEANS, STRUCTURAL_RULES, Operation
from tilewright.support.errors import DimensionError

_SYMBOL_NAME = re.compile(r"[^\W\d][\w.]*")
_set = object.__setattr__


class _Frozen:
    """Base of the interned classes: attributes are set once, with `_set`; copies are the object."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable; cannot set {name!r}")

    def __copy__(self) -> _Frozen:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> _Frozen:
        return self


class Atom(_Frozen):
    """A symbol (`name`) or an application (`operation` of `operands`). Interned; make no others."""

    __slots__ = ("__weakref__", "_key", "name", "operands", "operation")
    operation: Operation
    name: str
    operands: tuple[Expr, ...]
    _key: Key | None

    def __init__(self, operation: Operation, name: str, operands: tuple[Expr, ...]) -> None:
        _set(self, "operation", operation)
        _set(self, "name", name)
        _set(self, "operands", operands)
        _set(self, "_key", None)

    @property
    def key(self) -> Key:
        """By what atoms are ordered: symbols before others."""
        found = self._key
        if found is None:
            found = atom_key(self)
            _set(self, "_key", found)
        return found

    @property
    def text(self) -> str:
        """The atom as text, without brackets around it."""
        return self.key.text or once(self, atom_text)

    def __reduce__(self) -> tuple[object, ...]:
        return _intern_atom, (self.operation, self.name, self.operands)


class Monomial(_Frozen):
    """A product of atoms in canonical order, a power being a repetition. Interned."""

    __slots__ = ("__weakref__", "_key", "atoms")
    atoms: tuple[Atom, ...]
    _key: tuple[int, tuple[Key, ...]] | None

    def __init__(self, atoms: tuple[Atom, ...]) -> None:
        _set(self, "atoms", atoms)
        _set(self, "_key", None)

    @property
    def key(self) -> tuple[int, tuple[Key, ...]]:
        """By what products are ordered: those of many atoms first."""
        found = self._key
        if found is None:
            found = (-len(self.atoms), tuple(atom.key for atom in self.atoms))
            _set(self, "_key", found)
        return found


Term = tuple[Monomial, int]
_atom_key = attrgetter("key")

_ATOMS = Table[tuple[Operation, str, tuple["Expr", ...]], Atom]()
_MONOMIALS = Table[tuple[Atom, ...], Monomial]()
_EXPRESSIONS = Table[tuple[Term, ...], "Expr"]()
_PRODUCTS: dict[tuple[Monomial, Monomial], Monomial] = {}
_APPLICATIONS: dict[tuple[Operation, tuple[Expr, ...]], Expr] = {}


def _monomial(atoms: tuple[Atom, ...]) -> Monomial:
    found = _MONOMIALS.recent.get(atoms)
    return found if found is not None else _MONOMIALS.intern(atoms, Monomial(atoms))


_ONE = _monomial(())


def _intern_atom(operation: Operation, name: str, operands: tuple[Expr, ...]) -> Atom:
    key = (operation, name, operands)
    found = _ATOMS.recent.get(key)
    return found if found is not None else _ATOMS.intern(key, Atom(*key))


def _multiply_monomials(left: Monomial, right: Monomial) -> Monomial:
    if left is _ONE:
        return right
    if right is _ONE:
        return left
    found = _PRODUCTS.get((left, right))
    if found is None:
        found = _monomial(tuple(sorted(left.atoms + right.atoms, key=_atom_key)))
        remember(_PRODUCTS, (left, right), found)
    return found


def _monomial_key(term: Term) -> tuple[int, tuple[Key, ...]]:
    return term[0].key


class Expr(_Frozen):
    """An integer expression. Interned: `a is b` exactly where the canonical forms are the same.

    Combine with `+`, `-`, `*`, `//` (floor) and `%` (sign of the divisor), with an `Expr` or an
    `int` on either side. `//` and `%` by the constant zero raise :class:`DimensionError`.
    """

    __slots__ = ("__weakref__", "_free_symbols", "_key", "_length", "terms")
    terms: tuple[Term, ...]
    _free_symbols: tuple[str, ...] | None
    _key: Key | None
    _length: int | None

    def __init__(self, terms: tuple[Term, ...]) -> None:
        _set(self, "terms", terms)
        _set(self, "_free_symbols", None)
        _set(self, "_key", None)
        _set(self, "_length", None)

    @property
    def key(self) -> Key:
        """By what expressions are ordered where any order will do, as operands of a minimum."""
        found = self._key
        if found is None:
            found = expression_key(self)
            _set(self, "_key", found)
        return found

    @property
    def is_constant(self) -> bool:
        """Whether this is an integer."""
        terms = self.terms
        return not terms or (len(terms) == 1 and terms[0][0] is _ONE)

    @property
    def value(self) -> int:
        """The integer that this constant is; :class:`DimensionError` if it is not constant."""
        if not self.is_constant:
            raise DimensionError(
                f"the expression {self} is not a constant",
                hint="test is_constant first, or evaluate it with the values of its symbols",
            )
        return self.terms[0][1] if self.terms else 0

    @property
    def constant_term(self) -> int:
        """The part of the sum without any atom."""
        terms = self.terms
        return terms[-1][1] if terms and terms[-1][0] is _ONE else 0

    @property
    def atom(self) -> Atom | None:
        """The atom that this expression consists of, if it is one atom with coefficient one."""
        terms = self.terms
        if len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0].atoms) == 1:
            return terms[0][0].atoms[0]
        return None

    @property
    def symbol_name(self) -> str | None:
        """The name, if this expression is one symbol."""
        atom = self.atom
        return atom.name if atom is not None and atom.operation is Operation.SYMBOL else None

    @property
    def is_boolean(self) -> bool:
        """Whether the form shows that only 0 and 1 are possible values."""
        if self.is_constant:
            return self.value in (0, 1)
        atom = self.atom
        return atom is not None and atom.operation in BOOLEANS

    @property
    def free_symbols(self) -> tuple[str, ...]:
        """The names of the symbols, sorted."""
        found = self._free_symbols
        if found is None:
            names: set[str] = set()
            for monomial, _ in self.terms:
                for atom in monomial.atoms:
                    if atom.operation is Operation.SYMBOL:
                        names.add(atom.name)
                    for operand in atom.operands:
                        names.update(operand.free_symbols)
            found = tuple(sorted(names))
            _set(self, "_free_symbols", found)
        return found

    @property
    def length(self) -> int:
        """How many symbols and operations the text has; parts that are shared count each time."""
        found = self._length
        if found is None:
            found = 0
            for monomial, _ in self.terms:
                for atom in monomial.atoms:
                    found += 1
                    for operand in atom.operands:
                        found += operand.length
            _set(self, "_length", found)
        return found

    def __add__(self, other: Expr | int) -> Expr:
        if isinstance(other, int):
            if other == 0:
                return self
            other = constant(other)
        elif not isinstance(other, Expr):  # pyright: ignore[reportUnnecessaryIsInstance]
            return NotImplemented
        if not other.terms:
            return self
        if not self.terms:
            return other
        if other.terms[0][0] is _ONE:
            return self._shifted(other.terms[0][1])
        sums = dict(self.terms)
        for monomial, coefficient in other.terms:
            sums[monomial] = sums.get(monomial, 0) + coefficient
        return from_terms(sums)

    __radd__ = __add__

    def __neg__(self) -> Expr:
        return _intern(tuple([(monomial, -coefficient) for monomial, coefficient in self.terms]))

    def __sub__(self, other: Expr | int) -> Expr:
        return self + -other

    def __rsub__(self, other: int) -> Expr:
        return -self + other

    def __mul__(self, other: Expr | int) -> Expr:
        if isinstance(other, int):
            return self._scaled(other)
        if not isinstance(other, Expr):  # pyright: ignore[reportUnnecessaryIsInstance]
            return NotImplemented
        if not self.terms or not other.terms:
            return _ZERO
        left, right = self.terms[0], other.terms[0]
        if right[0] is _ONE:
            return self._scaled(right[1])
        if left[0] is _ONE:
            return other._scaled(left[1])
        if len(self.terms) == 1 and len(other.terms) == 1:
            return _intern(((_multiply_monomials(left[0], right[0]), left[1] * right[1]),))
        sums: dict[Monomial, int] = {}
        for left_monomial, left_coefficient in self.terms:
            for right_monomial, right_coefficient in other.terms:
                monomial = _multiply_monomials(left_monomial, right_monomial)
                sums[monomial] = sums.get(monomial, 0) + left_coefficient * right_coefficient
        return from_terms(sums)

    __rmul__ = __mul__

    def _shifted(self, offset: int) -> Expr:
        """The sum with a constant, which comes last in the canonical order."""
        terms = self.terms
        if terms[-1][0] is _ONE:
            offset += terms[-1][1]
            terms = terms[:-1]
        return _intern((*terms, (_ONE, offset)) if offset else terms)

    def _scaled(self, factor: int) -> Expr:
        if factor == 1:
            return self
        if factor == 0:
            return _ZERO
        return _intern(
            tuple([(monomial, coefficient * factor) for monomial, coefficient in self.terms])
        )

    def __floordiv__(self, other: Expr | int) -> Expr:
        return apply_operation(Operation.FLOORDIV, (self, as_expr(other)))

    def __rfloordiv__(self, other: int) -> Expr:
        return apply_operation(Operation.FLOORDIV, (constant(other), self))

    def __mod__(self, other: Expr | int) -> Expr:
        return apply_operation(Operation.MOD, (self, as_expr(other)))

    def __rmod__(self, other: int) -> Expr:
        return apply_operation(Operation.MOD, (constant(other), self))

    def __bool__(self) -> bool:
        if self.is_constant:
            return self.value != 0
        raise TypeError(f"the truth of the expression {self} is not known; ask a Scope")

    def __str__(self) -> str:
        return self.key.text or once(self, expression_text)

    @property
    def brief(self) -> str:
        """The text where it is short, and else which symbols it is a formula of."""
        return self.key.text or f"a formula of {', '.join(self.free_symbols)}"

    __repr__ = __str__

    def __reduce__(self) -> tuple[object, ...]:
        return from_products, (tuple((monomial.atoms, size) for monomial, size in self.terms),)

    def substitute(self, mapping: Mapping[str, Expr | int]) -> Expr:
        """This expression with every symbol that `mapping` names replaced, all at once."""
        known = {name: as_expr(replacement) for name, replacement in mapping.items()}
        return _substitute(self, known, {})

    def evaluate(self, environment: Mapping[str, int]) -> int:
        """The value where each symbol has its value in `environment`.

        Every operand is evaluated, those of `select` and the logical functions too, as the native
        runtime does. :class:`DimensionError` on an unbound symbol and on division by zero.
        """
        return evaluate(self, environment, {})

    def affine(self, symbols: Sequence[str]) -> tuple[dict[str, Expr], Expr] | None:
        """The coefficient of each of `symbols` (0 where absent) and the rest, or None.

        Coefficients and rest are free of `symbols`; None where the expression is not affine in
        them, that is, where one occurs within an application or in a product with another.
        """
        wanted = frozenset(symbols)
        parts: dict[str, dict[Monomial, int]] = {}
        rest: list[Term] = []
        for term in self.terms:
            owner: Atom | None = None
            for atom in term[0].atoms:
                if atom.operation is Operation.SYMBOL:
                    if atom.name in wanted:
                        if owner is not None:
                            return None
                        owner = atom
                else:
                    for operand in atom.operands:
                        if not wanted.isdisjoint(operand.free_symbols):
                            return None
            if owner is None:
                rest.append(term)
            else:
                others = tuple([atom for atom in term[0].atoms if atom is not owner])
                parts.setdefault(owner.name, {})[_monomial(others)] = term[1]
        slopes = {name: from_terms(parts[name]) if name in parts else _ZERO for name in symbols}
        return slopes, _intern(tuple(rest))


def from_products(terms: Iterable[tuple[tuple[Atom, ...], int]]) -> Expr:
    """The sum of multiples of products of atoms, of which each is in canonical order."""
    return from_terms({_monomial(atoms): coefficient for atoms, coefficient in terms})


def from_application(operation: Operation, operands: tuple[Expr, ...]) -> Expr:
    """An application that is in canonical form: no rule is tried."""
    return from_atoms((_intern_atom(operation, "", operands),))


def _intern(terms: tuple[Term, ...]) -> Expr:
    found = _EXPRESSIONS.recent.get(terms)
    return found if found is not None else _EXPRESSIONS.intern(terms, Expr(terms))


_ZERO = _intern(())


def from_terms(sums: Mapping[Monomial, int]) -> Expr:
    """The polynomial with these coefficients."""
    terms = [term for term in sums.items() if term[1]]
    if len(terms) > 1:
        terms.sort(key=_monomial_key)
    return _intern(tuple(terms))


def from_atoms(atoms: Iterable[Atom]) -> Expr:
    """The product of atoms, in any order."""
    given = tuple(atoms)
    ordered = given if len(given) < 2 else tuple(sorted(given, key=_atom_key))
    return _intern(((_monomial(ordered), 1),))


def constant(value: int) -> Expr:
    """The integer as an expression."""
    return _intern(((_ONE, int(value)),)) if value else _ZERO


def symbol(name: str) -> Expr:
    """The symbol of that name: a letter or `_`, then letters, digits, `_` and `.`.

    :class:`DimensionError` for any other name.
    """
    key = (Operation.SYMBOL, name, ())
    atom = _ATOMS.recent.get(key)
    if atom is None:
        if not (_SYMBOL_NAME.fullmatch(name) and name[0].isidentifier()):
            raise DimensionError(
                f"{name!r} cannot name a dimension",
                hint="use a letter or '_' first, then letters, digits, '_' and '.' only",
            )
        atom = _intern_atom(*key)
    return _intern(((_monomial((atom,)), 1),))


def as_expr(value: int | Expr) -> Expr:
    """An `Expr` unchanged, an integer as a constant."""
    return value if isinstance(value, Expr) else constant(value)


def apply_operation(operation: Operation, operands: tuple[Expr, ...]) -> Expr:
    """The canonical form of an application: the first rule that fits, or else a new atom."""
    key = (operation, operands)
    found = _APPLICATIONS.get(key)
    if found is None:
        for rule in STRUCTURAL_RULES[operation]:
            found = rule.apply(operation, operands)
            if found is not None:
                break
        else:
            found = from_application(operation, operands)
        remember(_APPLICATIONS, key, found)
    return found


def rebuild(expression: Expr, replace: Mapping[Atom, Expr]) -> Expr:
    """The polynomial with some of its own atoms (not those within atoms) replaced."""
    sums: dict[Monomial, int] = {}
    for monomial, coefficient in expression.terms:
        kept = [atom for atom in monomial.atoms if atom not in replace]
        if len(kept) == len(monomial.atoms):
            sums[monomial] = sums.get(monomial, 0) + coefficient
            continue
        term = _intern(((_monomial(tuple(kept)), coefficient),))
        for atom in monomial.atoms:
            if atom in replace:
                term = term * replace[atom]
        for made, size in term.terms:
            sums[made] = sums.get(made, 0) + size
    return from_terms(sums)


def _substitute(expression: Expr, known: Mapping[str, Expr], done: dict[Atom, Expr]) -> Expr:
    if known.keys().isdisjoint(expression.free_symbols):
        return expression
    replace: dict[Atom, Expr] = {}
    for monomial, _ in expression.terms:
        for atom in monomial.atoms:
            if atom in done or atom in replace:
                pass
            elif atom.operation is Operation.SYMBOL:
                if atom.name in known:
                    done[atom] = known[atom.name]
            else:
                operands = tuple(_substitute(x, known, done) for x in atom.operands)
                if operands != atom.operands:
                    done[atom] = apply_operation(atom.operation, operands)
            if atom in done:
                replace[atom] = done[atom]
    return rebuild(expression, replace)
