"""Solving dimensions from the shapes of actual inputs, and the guards that the shapes must pass.

A `BindingPlan` is plain data, made once per model: from which input and axis each symbol is read,
and by which formula; the runtime carries it out natively, `BindingPlan.solve` is its reference. May
import the rest of the package. Start reading at :func:`bind_inputs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tilewright.shape.bounds import SymbolFacts
from tilewright.shape.encode import LEAST, MOST
from tilewright.shape.expr import Atom, Expr, as_expr, from_terms, rebuild, symbol
from tilewright.shape.functions import equal, less_equal, logical_and
from tilewright.shape.guards import Guard, values_of
from tilewright.shape.interval import Interval, intersect
from tilewright.shape.scope import Scope
from tilewright.shape.table import Operation
from tilewright.support.errors import DimensionError
from tilewright.support.text import format_count


@dataclass(frozen=True)
class InputPattern:
    """An input as the model states it: its name and an expression for each axis."""

    name: str
    shape: tuple[Expr, ...]


@dataclass(frozen=True)
class SymbolSource:
    """How one symbol is found: `formula` over the size of an axis and symbols found before.

    The size is the symbol `size_symbol(input_index, axis)`. Both are None where the symbol follows
    from others by an equality or a definition of the scope.
    """

    symbol: str
    input_index: int | None
    axis: int | None
    formula: Expr


@dataclass(frozen=True)
class BindingPlan:
    """Sources in the order of solving, and guards; a guard is checked once its symbols are known.

    Guards may also name symbols that no input determines: these are checked where such a symbol
    gets its value, while the model runs.
    """

    inputs: tuple[InputPattern, ...]
    sources: tuple[SymbolSource, ...]
    guards: tuple[Guard, ...]

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols that the inputs determine, in the order of solving."""
        return tuple(source.symbol for source in self.sources)

    def solve(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """The value of each symbol; :class:`DimensionError` where the shapes do not fit."""
        environment = self._sizes(shapes)
        waiting = _check(self.guards, environment)
        for source in self.sources:
            environment[source.symbol] = source.formula.evaluate(environment)
            waiting = _check(waiting, environment)
        return {name: environment[name] for name in self.symbols}

    def _sizes(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        if len(shapes) != len(self.inputs):
            raise DimensionError(
                f"{len(shapes)} shapes are given for {len(self.inputs)} inputs",
                hint="give a shape for each of " + ", ".join(x.name for x in self.inputs),
            )
        sizes: dict[str, int] = {}
        for index, (pattern, shape) in enumerate(zip(self.inputs, shapes, strict=True)):
            if len(shape) != len(pattern.shape):
                expected = ", ".join(str(size) for size in pattern.shape)
                raise DimensionError(
                    f'input "{pattern.name}" has {format_count(len(shape), "axis", "axes")}, but '
                    f"the model states {len(pattern.shape)}: ({expected})."
                )
            for axis, size in enumerate(shape):
                sizes[str(size_symbol(index, axis))] = size
        return sizes


def _check(guards: Iterable[Guard], environment: dict[str, int]) -> list[Guard]:
    """Check the guards whose symbols are all known; give the others."""
    waiting: list[Guard] = []
    for guard in guards:
        if all(name in environment for name in guard.condition.free_symbols):
            guard.check(environment)
        else:
            waiting.append(guard)
    return waiting


def size_symbol(input_index: int, axis: int) -> Expr:
    """The symbol that stands for the actual size of an axis of an input."""
    return symbol(f"_size.{input_index}.{axis}")


class RangeOrigin(Protocol):
    """The range that a dimension was imported with, and where it comes from.

    ``origin`` is "given" by the user, implied by the "model" by a demand that ``reason`` states, or
    the "default".
    """

    @property
    def name(self) -> str: ...
    @property
    def low(self) -> int: ...
    @property
    def high(self) -> int | None: ...
    @property
    def origin(self) -> str: ...
    @property
    def reason(self) -> str: ...


def bind_inputs(
    patterns: Sequence[InputPattern],
    scope: Scope,
    declared: Iterable[RangeOrigin] = (),
    demands: Iterable[Guard] = (),
) -> BindingPlan:
    """Plan how the symbols of the patterns are found from actual sizes.

    A dimension that is a symbol by itself fixes it; what is left is solved from dimensions with one
    unknown symbol that can be inverted exactly (2*n + 1; n//2 for a multiple of 2), then from the
    equalities and definitions of the scope. Equalities give values to ``declared`` symbols too that
    the patterns name no more, because the model needs them to equal others. Every other dimension
    becomes a guard, and so does each fact of the scope. ``demands`` are guards of the model; they
    come before equalities of the scope, most of which they are the source of, as they say what
    needs it. Raises :class:`DimensionError` where a symbol is determined by nothing.
    """
    binder = _Binder(patterns, scope, declared)
    binder.solve_symbols()
    binder.guard_dimensions()
    binder.guard_bounds()
    binder.guards.extend(demands)
    binder.guard_equalities()
    return BindingPlan(tuple(patterns), tuple(binder.sources.values()), tuple(binder.guards))


class _Binder:
    """The state of one planning: sources by symbol, and the guards so far."""

    def __init__(
        self, patterns: Sequence[InputPattern], scope: Scope, declared: Iterable[RangeOrigin]
    ) -> None:
        self.origins = {origin.name: origin for origin in declared}
        self.patterns = patterns
        self.scope = scope
        self.sources: dict[str, SymbolSource] = {}
        self.guards: list[Guard] = []
        self.derived: set[int] = set()
        self.named = {
            name for pattern in patterns for size in pattern.shape for name in size.free_symbols
        }.union(self.origins)
        self.axes = [
            (index, axis, dimension)
            for index, pattern in enumerate(patterns)
            for axis, dimension in enumerate(pattern.shape)
        ]

    def solve_symbols(self) -> None:
        for index, axis, dimension in self.axes:
            name = dimension.symbol_name
            if name is not None and name not in self.sources:
                self._add(SymbolSource(name, index, axis, size_symbol(index, axis)))
        while self._solve_another():
            pass
        for index, axis, dimension in self.axes:
            for name in dimension.free_symbols:
                if name not in self.sources:
                    raise DimensionError(
                        f'nothing determines dimension "{name}": {dimension} cannot be solved '
                        "for it, and it stands by itself in no input",
                        where=self._place(index, axis),
                        hint=f'give "{name}" an axis of its own, or declare what it is a multiple '
                        "of, so that the division is exact",
                    )

    def _solve_another(self) -> bool:
        """Find a source for one more symbol."""
        for index, axis, dimension in self.axes:
            name = self._only_unknown(dimension)
            if name is not None:
                formula = self._solve_for(name, dimension, size_symbol(index, axis))
                if formula is not None:
                    self._add(SymbolSource(name, index, axis, formula))
                    return True
        for name, expression in self.scope.definitions.items():
            if name not in self.sources and self.sources.keys() >= set(expression.free_symbols):
                self._add(SymbolSource(name, None, None, expression))
                return True
        for position, (left, right) in enumerate(self.scope.assumptions):
            name = self._only_unknown(left - right)
            # A symbol of no input gets its value while the model runs: the equality is a guard.
            if name is not None and name in self.named:
                formula = self._solve_for(name, left - right, as_expr(0))
                if formula is not None:
                    self._add(SymbolSource(name, None, None, formula))
                    self.derived.add(position)
                    return True
        return False

    def _only_unknown(self, expression: Expr) -> str | None:
        unknown = [name for name in expression.free_symbols if name not in self.sources]
        return unknown[0] if len(unknown) == 1 else None

    def _solve_for(self, name: str, expression: Expr, size: Expr) -> Expr | None:
        """As `_invert`, without the guards of an attempt that fails."""
        count = len(self.guards)
        formula = self._invert(expression, name, size)
        if formula is None:
            del self.guards[count:]
        return formula

    def _invert(self, expression: Expr, name: str, size: Expr) -> Expr | None:
        """The only value of the symbol for which expression = size can hold, or None."""
        split = expression.affine((name,))
        if split is not None:
            return self._divide(size - split[1], split[0][name])
        atom = _only_atom_with(expression, name)
        if atom is None or atom.operation is not Operation.FLOORDIV:
            return None
        numerator, denominator = atom.operands
        if not denominator.is_constant or self.scope.known_divisor(numerator) % denominator.value:
            return None
        marker = symbol("_quotient")
        linear = rebuild(expression, {atom: marker}).affine((str(marker),))
        if linear is None:
            return None
        quotient = self._divide(size - linear[1], linear[0][str(marker)])
        return None if quotient is None else self._invert(numerator, name, quotient * denominator)

    def _divide(self, numerator: Expr, denominator: Expr) -> Expr | None:
        """numerator//denominator; a denominator that may be zero gets a guard before it is used."""
        if not denominator.terms:
            return None
        if 0 in self.scope.bounds(denominator):
            self.guards.append(
                Guard(
                    1 - equal(denominator, 0),
                    f"The inputs do not determine every dimension, because {denominator} is zero"
                    f"{values_of(denominator.free_symbols)}.",
                )
            )
        return numerator // denominator

    def _add(self, source: SymbolSource) -> None:
        self.sources[source.symbol] = source
        if source.input_index is not None and source.axis is not None:
            self._guard_form(source.symbol, source.input_index, source.axis)
        facts = self.scope.symbols.get(source.symbol)
        if facts is not None and not self._is_implied(source.symbol, facts):
            self._guard_range(source, facts)

    def _is_implied(self, name: str, facts: SymbolFacts) -> bool:
        """Whether the definition of the symbol has no value that the facts forbid."""
        if name not in self.scope.definitions:
            return False
        expression = self.scope.definitions[name]
        possible, divisor = self.scope.bounds(expression), self.scope.known_divisor(expression)
        within = intersect(possible, Interval(facts.low, facts.high))
        return within == possible and divisor % facts.multiple_of == 0

    def _guard_form(self, name: str, index: int, axis: int) -> None:
        """A guard that the dimension from which the symbol is solved can have the actual size."""
        size, dimension = size_symbol(index, axis), self.patterns[index].shape[axis]
        if dimension.symbol_name != name:
            others = [other for other in dimension.free_symbols if other != name]
            message = (
                f"{self._place(index, axis)}: size {{{size}}} is not {dimension} "
                f'for any "{name}"{values_of(others)}.'
            )
            self.guards.append(Guard(equal(size, dimension), message))

    def _guard_range(self, source: SymbolSource, facts: SymbolFacts) -> None:
        """Guards for the range and the divisor that the symbol is declared with."""
        name = source.symbol
        value = symbol(name)
        place = self._subject(source)
        of = f' of dimension "{name}"' if self._is_direct(source) else ""
        conditions: list[Expr] = []
        # A size read from an axis is never negative.
        if facts.low is not None and not (facts.low <= 0 and self._is_direct(source)):
            conditions.append(less_equal(facts.low, value))
        if facts.high is not None:
            conditions.append(less_equal(value, facts.high))
        span, origin = Interval(facts.low, facts.high), self.origins.get(name)
        if conditions and origin is not None and origin.origin == "default":
            if facts.high == origin.high and facts.high is not None:
                message = (
                    f"{place} is outside the default range {origin.low}..{origin.high}{of}. To "
                    f'allow it, compile with dims={{"{name}": ({origin.low}, {{{name}}})}}.'
                )
                self.guards.append(Guard(conditions.pop(), message))
            # Of a range that is open above, the lower end may be the user's.
            is_declared = facts.low == origin.low and origin.low > 0
            message = (
                f"{place} is outside the declared range {span}{of}."
                if is_declared
                else f"{place} is outside the range {span}{of}, which the model needs."
            )
        elif origin is not None and origin.origin == "model":
            message = (
                f"{place} is outside the range {span}{of}, which the model implies: "
                f"{origin.reason}."
            )
        else:
            message = f"{place} is outside the declared range {span}{of}."
        if conditions:
            self.guards.append(Guard(logical_and(*conditions), message))
        if facts.multiple_of > 1:
            declared = f' for dimension "{name}"' if self._is_direct(source) else ""
            message = f"{place} is not a multiple of {facts.multiple_of}, as declared{declared}."
            self.guards.append(Guard(equal(value % facts.multiple_of, 0), message))

    def guard_dimensions(self) -> None:
        """A guard for each axis from which no symbol is solved."""
        solved = {(source.input_index, source.axis) for source in self.sources.values()}
        for index, axis, dimension in self.axes:
            if (index, axis) in solved:
                continue
            size = size_symbol(index, axis)
            place = f"{self._place(index, axis)}: size {{{size}}}"
            name = dimension.symbol_name
            if dimension.is_constant:
                message = f"{place} differs from {dimension}, which the model states."
            elif name is not None:
                message = (
                    f'{place} differs from dimension "{name}" = {{{name}}}{self._fixed_by(name)}.'
                )
            else:
                message = f"{place} differs from {dimension}{values_of(dimension.free_symbols)}."
            self.guards.append(Guard(equal(size, dimension), message))

    def guard_equalities(self) -> None:
        """Guards for the equalities of the scope."""
        for position, (left, right) in enumerate(self.scope.assumptions):
            condition = equal(left, right)
            if position not in self.derived and not condition.is_constant:
                values = values_of(condition.free_symbols)
                message = (
                    f"The model needs {left.brief} to be equal to {right.brief}, "
                    f"but they differ{values}."
                )
                self.guards.append(Guard(condition, message))

    def guard_bounds(self) -> None:
        """Guards for the symbolic bounds of the scope that 64 bits do not guarantee."""
        for expression, bounds in self.scope.known_bounds:
            conditions: list[Expr] = []
            if bounds.low is not None and bounds.low >= LEAST:
                conditions.append(less_equal(bounds.low, expression))
            if bounds.high is not None and bounds.high <= MOST:
                conditions.append(less_equal(expression, bounds.high))
            condition = logical_and(*conditions)
            if not condition.is_constant:
                message = (
                    f"The model needs {expression.brief} to be in the range {bounds}, but it is "
                    f"not{values_of(expression.free_symbols)}."
                )
                self.guards.append(Guard(condition, message))
        for name, limit in self.scope.limits:
            if name in self.sources:
                message = (
                    f'Dimension "{name}" = {{{name}}} is greater than {limit.brief}, which it is '
                    f"declared not to be{values_of(limit.free_symbols)}."
                )
                self.guards.append(Guard(less_equal(symbol(name), limit), message))

    def _is_direct(self, source: SymbolSource) -> bool:
        if source.input_index is None or source.axis is None:
            return False
        return source.formula is size_symbol(source.input_index, source.axis)

    def _place(self, index: int, axis: int) -> str:
        return f'input "{self.patterns[index].name}", axis {axis}'

    def _subject(self, source: SymbolSource) -> str:
        """The value of a symbol, and where it comes from, as the beginning of a sentence."""
        value = f"{{{source.symbol}}}"
        if source.input_index is None or source.axis is None:
            return f'Dimension "{source.symbol}" = {value}, as the model states it,'
        place = self._place(source.input_index, source.axis)
        if self._is_direct(source):
            return f"{place}: {value}"
        size = size_symbol(source.input_index, source.axis)
        return f'{place}: size {{{size}}} makes dimension "{source.symbol}" {value}, which'

    def _fixed_by(self, name: str) -> str:
        source = self.sources[name]
        if source.input_index is None:
            return ""
        input_name = self.patterns[source.input_index].name
        return f', as set by axis {source.axis} of input "{input_name}"'


def _only_atom_with(expression: Expr, name: str) -> Atom | None:
    """The atom that holds the symbol, if only one atom does."""
    found = {
        atom: None
        for monomial, _ in expression.terms
        for atom in monomial.atoms
        if name in from_terms({monomial: 1}).free_symbols and name in _names(atom)
    }
    return next(iter(found)) if len(found) == 1 else None


def _names(atom: Atom) -> tuple[str, ...]:
    if atom.operation is Operation.SYMBOL:
        return (atom.name,)
    return tuple(name for operand in atom.operands for name in operand.free_symbols)
