"""Where the least or the greatest element of a row lies, as two reductions or as one search.

The first reduction finds the element, the second the first or last position of one that equals it.
Both run along vectors, which a search that carries a position beside its element does only where
vectors lie across rows: there `searched` finds the two reductions again, and `Search` says how to
go over the elements once. Start with :func:`best_position`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.ir.dtype import DType
from tilewright.ir.primitives import ArgReduce
from tilewright.ir.tile import Apply, Convert, IndexValue, Local, Loop, Value
from tilewright.ir.tile_structure import structure_of
from tilewright.ir.tile_walk import ExpressionMap
from tilewright.ir.views import Index
from tilewright.shape import Expr, constant, symbol

Nest = Callable[[str, Callable[[Index], Value], DType], Value]


def best_position(
    primitive: ArgReduce,
    row: tuple[Expr, DType],
    kept: DType,
    element: Callable[[Index], Value],
    nest: Nest,
) -> Value:
    """The position as int64 in a ``row`` of some length and type.

    Meanwhile positions are ``kept`` in a type that holds the length; a narrow one fills vectors
    with more of them. ``nest(kind, inner, dtype)`` reduces ``inner`` over the row. A NaN is better
    than any number, as in numpy. Of no elements the result is no position.
    """
    length, dtype = row
    best = nest(primitive.kind, element, dtype)

    def position(k: Index) -> Value:
        is_best = _is_best(element(k), best)
        other = place_of(constant(-1) if primitive.last else length, kept)
        return Apply("select", (is_best, place_of(k[0], kept), other), kept)

    found = nest("maximum" if primitive.last else "minimum", position, kept)
    return found if kept is DType.INT64 else Convert(found, DType.INT64)


@dataclass(frozen=True)
class Search:
    """One pass over the elements of a row: the best so far, and where it is.

    ``element`` is read in a loop, whose best is the least or the greatest (``kind``); of equal ones
    the ``last`` counts, or the first.
    """

    kind: str
    last: bool
    element: Value

    @property
    def dtype(self) -> DType:
        """Of the elements."""
        return self.element.dtype

    def is_best(self, value: Value, best: Value) -> Value:
        """Whether a value is the best of its row."""
        return _is_best(value, best)

    def replaces(self, best: Value, element: Value) -> Value:
        """Whether an element is to take the place of the best of those before it."""
        # Every order is false for what is no number, whether asked or denied.
        is_max = self.kind == "maximum"
        if self.last:
            pair = (best, element) if is_max else (element, best)
            found: Value = Apply("less_equal", pair, DType.BOOL)
            if not element.dtype.is_float:
                return found
            return Apply("logical_or", (found, _is_nan(element)), DType.BOOL)
        pair = (element, best) if is_max else (best, element)
        found = _not(Apply("less_equal", pair, DType.BOOL))
        if not element.dtype.is_float:
            return found
        return Apply("logical_and", (found, _not(_is_nan(best))), DType.BOOL)


def searched(best: Loop, place: Loop) -> Search | None:
    """The search that two loops make, of which the second looks for what the first has found."""
    if best.body or place.body or (best.begin, best.end) != (place.begin, place.end):
        return None
    if len(best.accumulators) != 1 or len(place.accumulators) != 1:
        return None
    (extreme,), (position,) = best.accumulators, place.accumulators
    if extreme.kind not in ("maximum", "minimum") or position.kind not in ("maximum", "minimum"):
        return None
    last = position.kind == "maximum"
    here, kept = symbol(place.variable), position.value.dtype
    element = ExpressionMap.substitution({best.variable: here}).value(extreme.value)
    value = Local(extreme.name, extreme.value.dtype)
    if not isinstance(position.value, Apply) or position.value.function != "select":
        return None
    *looked_for, _ = position.value.operands
    wanted = (_is_best(element, value), place_of(here, kept))
    if structure_of(tuple(looked_for)) != structure_of(wanted):
        return None
    return Search(extreme.kind, last, extreme.value)


def place_of(position: Expr, kept: DType) -> Value:
    """A position in the type in which positions are kept."""
    value = IndexValue(position)
    return value if kept is DType.INT64 else Convert(value, kept)


def _is_best(value: Value, best: Value) -> Value:
    """Whether a value is the best of its row; one that is no number is, whichever it is."""
    same = Apply("equal", (value, best), DType.BOOL)
    if not value.dtype.is_float:
        return same
    return Apply("logical_or", (same, _is_nan(value)), DType.BOOL)


def _is_nan(value: Value) -> Value:
    return Apply("is_nan", (value,), DType.BOOL)


def _not(value: Value) -> Value:
    return Apply("logical_not", (value,), DType.BOOL)
