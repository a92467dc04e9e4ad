"""Rules of Window and Convolve: padding that they do themselves, and axes that no window spans.

May import ``shape`` and ``ir``. Start with :func:`window_of_pad`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Convolve, Pad, Reshape, Shape, Slice, Window
from tilewright.rewrite.build import (
    all_numbers,
    filled,
    is_number,
    is_one,
    literal,
    only_units_differ,
    reshape,
    single_value,
)
from tilewright.rewrite.facts import Facts
from tilewright.rewrite.occupied import keeps_wide_axes
from tilewright.shape import Expr, ceil_div, constant, maximum, minimum

NEUTRAL = {"sum": 0.0, "maximum": float("-inf"), "minimum": float("inf")}

_SPARED = 2  # results for one that is computed, at least
_DEEP = 32  # channels from which a result is more work than to write it once more


@dataclass(frozen=True)
class Span:
    """What a window does along one axis; ``result`` is the size that it leaves."""

    result: Expr
    kernel: int
    stride: int
    dilation: int
    low: Expr

    @staticmethod
    def none(size: Expr) -> Span:
        """Every element of an axis its own window."""
        return Span(size, 1, 1, 1, constant(0))

    def keeps(self, size: Expr) -> bool:
        """Whether every element of an axis of this size is its own window."""
        plain = self.kernel == self.stride == 1 and is_number(self.low, 0)
        return plain and self.result is size


def spans(window: Window, shape: Shape) -> list[Span]:
    """What a window over an operand of this shape does along every axis."""
    axes = window.windowed(len(shape))
    found = [Span.none(size) for size in shape]
    found[axes] = map(
        Span, window.sizes, window.kernel, window.strides, window.dilations, window.low
    )
    return found


def window_over(kind: str, axes: Sequence[Span], trailing: int) -> Window:
    """The window with these spans along the last axes but ``trailing``."""
    return Window(
        kind,
        tuple(span.kernel for span in axes),
        tuple(span.stride for span in axes),
        tuple(span.dilation for span in axes),
        tuple(span.low for span in axes),
        tuple(span.result for span in axes),
        trailing,
    )


def window_of_pad(x: Node, facts: Facts) -> Node | None:
    """Window(Pad(a, v)) → Window(a), v being neutral (0 in sums, -∞ in maxima, ∞ in minima)."""
    padded = x.inputs[0]
    assert isinstance(x.primitive, Window)
    if not isinstance(padded.primitive, Pad):
        return None
    if not padded.dtype.is_float or single_value(padded.inputs[1]) != NEUTRAL[x.primitive.kind]:
        return None
    low = _low_of_pad(padded.primitive, x.primitive.windowed(x.rank), x.primitive.low)
    return None if low is None else node(replace(x.primitive, low=low), padded.inputs[0])


def window_of_spanned_axes(x: Node, facts: Facts) -> Node | None:
    """Window(a) → Window(a) of fewer axes, those at either end not being spanned.

    Several axes behind those that it spans may be one for vectors; along a single one they run all
    the same, and it may be short.
    """
    assert isinstance(x.primitive, Window)
    operand = x.inputs[0]
    found = spans(x.primitive, operand.shape)
    spanned = [axis for axis, size in enumerate(operand.shape) if not found[axis].keeps(size)]
    if not spanned:
        return None
    first, end = spanned[0], spanned[-1] + 1
    if sum(not is_one(size) for size in operand.shape[end:]) < 2:
        end = x.primitive.windowed(x.rank).stop
    made = window_over(x.primitive.kind, found[first:end], x.rank - end)
    return None if made == x.primitive else node(made, operand)


def convolve_of_no_channels(x: Node, facts: Facts) -> Node | None:
    """Convolve(a, W) over no channels → 0, as sums of nothing are."""
    return filled(0, x) if is_number(x.inputs[1].shape[1], 0) else None


def convolve_of_pad(x: Node, facts: Facts) -> Node | None:
    """Convolve(Pad(a, 0), W) → Convolve(a, W) with more padding of its own, a not being spread."""
    padded, weights = x.inputs
    assert isinstance(x.primitive, Convolve)
    if not isinstance(padded.primitive, Pad) or any(s != 1 for s in x.primitive.spread):
        return None
    if single_value(padded.inputs[1]) != 0:
        return None
    low = _low_of_pad(padded.primitive, x.primitive.spatial, x.primitive.low)
    return None if low is None else node(replace(x.primitive, low=low), padded.inputs[0], weights)


def pad_of_pointwise(x: Node, facts: Facts) -> Node | None:
    """Convolve(a, W) of one tap, most results being of padding → Pad(Convolve(Slice(a), W), 0).

    What is computed are the results whose tap lies inside, which a stride may have picked; the pass
    over memory that padding takes must be little beside what is spared. The largest sizes decide.
    """
    convolve, (data, weights) = x.primitive, x.inputs
    assert isinstance(convolve, Convolve)
    if not all_numbers(weights.shape[2:], 1) or any(s != 1 for s in convolve.spread):
        return None
    if all_numbers(convolve.low, 0):
        return None
    if not weights.shape[1].is_constant or weights.shape[1].value < _DEEP:
        return None
    axes = convolve.spatial
    rows = zip(convolve.low, convolve.strides, data.shape[axes], convolve.sizes, strict=True)
    parts = [_Inside.of(*row) for row in rows]
    inside, results = _largest([p.size for p in parts], facts), _largest(convolve.sizes, facts)
    if inside is None or results is None or _SPARED * inside > results:
        return None
    starts, steps = [constant(0)] * x.rank, [constant(1)] * x.rank
    sizes, low, high = list(data.shape), [constant(0)] * x.rank, [constant(0)] * x.rank
    starts[axes], sizes[axes] = [p.start for p in parts], [p.size for p in parts]
    steps[axes] = [constant(s) for s in convolve.strides]
    low[axes] = [p.before for p in parts]
    high[axes] = [s - p.before - p.size for s, p in zip(convolve.sizes, parts, strict=True)]
    cut = node(Slice(tuple(starts), tuple(sizes), tuple(steps)), data)
    ones, none = (1,) * len(parts), (constant(0),) * len(parts)
    plain = replace(convolve, strides=ones, low=none, sizes=tuple(sizes[axes]))
    return node(Pad(tuple(low), tuple(high)), node(plain, cut, weights), literal(0, x.dtype))


def _largest(sizes: Sequence[Expr], facts: Facts) -> int | None:
    """The product of the most that sizes can be, None if one may be any."""
    highs = [facts.scope.bounds(size).high for size in sizes]
    known = [high for high in highs if high is not None]
    return math.prod(known) if len(known) == len(highs) else None


@dataclass(frozen=True)
class _Inside:
    """Along one axis, the ``size`` results after ``before`` others whose tap lies inside.

    The first of them reads element ``start`` of the data.
    """

    before: Expr
    start: Expr
    size: Expr

    @staticmethod
    def of(low: Expr, stride: int, data: Expr, results: Expr) -> _Inside:
        before = minimum(ceil_div(low, stride), results)
        start = maximum(minimum(before * stride - low, data), 0)
        size = minimum(ceil_div(data - start, stride), results - before)
        return _Inside(before, start, maximum(size, 0))


def _low_of_pad(pad: Pad, axes: slice, low: Shape) -> Shape | None:
    """``low`` and that of a Pad that pads no axes but these."""
    others = [*range(axes.start), *range(axes.stop, len(pad.low))]
    if not all_numbers([amounts[a] for a in others for amounts in (pad.low, pad.high)], 0):
        return None
    return tuple(own + more for own, more in zip(low, pad.low[axes], strict=True))


def window_of_unit_axes(x: Node, facts: Facts) -> Node | None:
    """Window(Reshape(a)) → Reshape(Window(a)), only axes of size 1 being reshaped, none spanned.

    Sizes of axes that no window spans may differ where there are no elements.
    """
    view = x.inputs[0]
    assert isinstance(x.primitive, Window)
    if not isinstance(view.primitive, Reshape):
        return None
    base = view.inputs[0]
    places = [axis for axis, size in enumerate(base.shape) if not is_one(size)]
    wide = [axis for axis, size in enumerate(view.shape) if not is_one(size)]
    found = spans(x.primitive, view.shape)
    spanned = [a for a, size in enumerate(view.shape) if not found[a].keeps(size)]
    if len(places) != len(wide) or not set(spanned) <= set(wide):
        return None
    exact = only_units_differ(view)
    moved = [Span.none(size) for size in base.shape]
    for axis in spanned:
        place, size = places[wide.index(axis)], view.shape[axis]
        # Windows over an empty axis with padding would make elements of none.
        if not exact and (base.shape[place] is not size or not facts.is_less(constant(0), size)):
            return None
        moved[place] = found[axis]
    if not exact and not keeps_wide_axes(view, facts):
        return None
    first = _place(x.primitive.windowed(x.rank).start, view.shape, base.shape)
    trailing = base.rank - _place(x.rank - x.primitive.trailing, view.shape, base.shape)
    window = window_over(x.primitive.kind, moved[first : base.rank - trailing], trailing)
    return reshape(node(window, base), x.shape) if window.kernel else None


def _place(axis: int, source: Shape, target: Shape) -> int:
    """The axis of ``target`` that has as many axes longer than 1 before it."""
    wanted = sum(not is_one(size) for size in source[:axis])
    count = 0
    for place, size in enumerate(target):
        if count == wanted and not is_one(size):
            return place
        count += not is_one(size)
    return len(target)
