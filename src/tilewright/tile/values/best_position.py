"""Where the least or the greatest element of a row lies, as two reductions.

The first finds the element, the second the first or last position of one that equals it. Both run
along vectors, which a search that carries a position beside its element does not. Start with
:func:`best_position`.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir.dtype import DType
from tilewright.ir.primitives import ArgReduce
from tilewright.ir.tile import Apply, Convert, IndexValue, Value
from tilewright.ir.views import Index
from tilewright.shape import Expr, constant

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
        other = _index(constant(-1) if primitive.last else length, kept)
        return Apply("select", (is_best, _index(k[0], kept), other), kept)

    found = nest("maximum" if primitive.last else "minimum", position, kept)
    return found if kept is DType.INT64 else Convert(found, DType.INT64)


def _index(expression: Expr, dtype: DType) -> Value:
    value = IndexValue(expression)
    return value if dtype is DType.INT64 else Convert(value, dtype)


def _is_best(value: Value, best: Value) -> Value:
    """Whether a value is the best of its row; one that is no number is, whichever it is."""
    same = Apply("equal", (value, best), DType.BOOL)
    if not value.dtype.is_float:
        return same
    return Apply("logical_or", (same, Apply("is_nan", (value,), DType.BOOL)), DType.BOOL)
