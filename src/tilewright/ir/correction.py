"""Measured times of a kernel in the place of modelled ones, as a function of the modelled time.

A kernel is timed at a few sizes, on one thread and on all. Between these its time goes with the
modelled one: a line from one measurement to the next, and beyond the least and the greatest the
quotient that was found there. The planner and the runtime evaluate the same expression, so that a
way that is chosen for some sizes is the one that a call at these sizes takes. Read
:class:`Correction`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tilewright.shape import Expr, constant, equal, maximum

_PARTS = 1 << 10  # of 1, in which slopes are counted: prices are whole numbers
_APART = 2.0  # modelled times that differ by less are one: the line between them says nothing

Knots = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Correction:
    """Picoseconds of a kernel, (modelled, measured) in ascending order, by number of threads.

    The last one serves every number of threads that has none.
    """

    curves: tuple[tuple[int, Knots], ...]

    @staticmethod
    def of_times(times: Mapping[int, Iterable[tuple[float, float]]]) -> Correction | None:
        """From (modelled, measured) times by number of threads; None where a number has none.

        Times of less than a picosecond, where there is nothing to compute, say nothing.
        """
        curves = tuple((threads, _knots(pairs)) for threads, pairs in sorted(times.items()))
        return Correction(curves) if curves and all(knots for _, knots in curves) else None

    def of(self, price: Expr, threads: Expr) -> Expr:
        """The corrected price, for a modelled one that is not negative."""
        *others, (_, last) = self.curves
        found = _along(last, price)
        for count, knots in reversed(others):
            taken = equal(threads, count)
            found = taken * _along(knots, price) + (constant(1) - taken) * found
        return found


def _knots(pairs: Iterable[tuple[float, float]]) -> Knots:
    """Pairs whose modelled times are apart, with measured times that never fall."""
    groups: list[list[tuple[float, float]]] = []
    for pair in sorted(pair for pair in pairs if min(pair) >= 1):
        if groups and pair[0] < _APART * groups[-1][0][0]:
            groups[-1].append(pair)
        else:
            groups.append([pair])
    knots: list[tuple[int, int]] = []
    for group in groups:
        modelled, measured = (round(_mean(values)) for values in zip(*group, strict=True))
        knots.append((modelled, max(measured, knots[-1][1] if knots else 1)))
    return tuple(knots)


def _mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _along(knots: Knots, price: Expr) -> Expr:
    """The line through the origin and all knots, which goes on as the last quotient does."""
    ends = [(0, 0), *knots]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(ends)]
    slopes.append(knots[-1][1] / knots[-1][0])
    parts = [round(_PARTS * slope) for slope in slopes]
    made = price * parts[0]
    for (start, _), before, after in zip(knots, parts, parts[1:], strict=False):
        made = made + maximum(price - start, 0) * (after - before)
    return made // _PARTS


__all__ = ["Correction", "Knots"]
