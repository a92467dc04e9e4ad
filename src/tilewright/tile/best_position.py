"""Where the least or the greatest element of a row lies, as two reductions.

The first finds the element, the second the first or last position of one that equals it. Both run
along vectors, which a search that carries a position beside its element does not. Start with
:func:`best_position`.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir.dtype import DType
from tilewright.ir.primitives import ArgReduce
from tilewright.ir.tile import Apply, IndexValue, Value
from tilewright.ir.views import Index
from tilewright.shape import Expr, constant

Nest = Callable[[str, Callable[[Index], Value], DType], Value]


def best_position(
    primitive: ArgReduce,
    row: tuple[Expr, DType],
    element: Callable[[Index], Value],
    nest: Nest,
) -> Value:
    """The position as int64 in a ``row`` of some length and type.

    ``nest(kind, inner, dtype)`` reduces ``inner`` over the row. A NaN is better than any number, as
    in numpy. Of no elements the result is no position.
    """
    length, dtype = row
    best = nest(primitive.kind, element, dtype)

    def position(k: Index) -> Value:
        other = IndexValue(constant(-1) if primitive.last else length)
        is_best = _equal(element(k), best)
        return Apply("select", (is_best, IndexValue(k[0]), other), DType.INT64)

    return nest("maximum" if primitive.last else "minimum", position, DType.INT64)


def _equal(value: Value, best: Value) -> Value:
    """Whether two values are the same number, or both none."""
    same = Apply("equal", (value, best), DType.BOOL)
    if not value.dtype.is_float:
        return same
    neither = tuple(Apply("is_nan", (each,), DType.BOOL) for each in (value, best))
    return Apply("logical_or", (same, Apply("logical_and", neither, DType.BOOL)), DType.BOOL)
