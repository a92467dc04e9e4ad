"""The matrices of Winograd's convolution, exactly, and their application to values.

``size`` neighbouring outputs of a convolution with so many ``taps`` follow from
``size + taps - 1`` products: y = At [(G g) * (Bt d)], and in two dimensions
Y = At [(G g Gt) * (Bt d B)] A (Cook and Toom's multiplication of polynomials at all points but one
and at infinity, transposed). Points come in pairs of opposite sign, whose rows share most of their
terms. With a stride of two, elements at even positions meet every second tap, which are a
convolution without stride, and those at odd positions the others, which are another one. Start with
:func:`transforms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.tile import Apply, Literal, Value

Array = np.ndarray[Any, Any]
Matrix = tuple[tuple[Fraction, ...], ...]
# By their number. All entries of Bt and At are float32 numbers, and the least error of such points:
# of five, 0, 1 and 2 with their opposites, as is usual, have twice as much.
POINTS: dict[int, tuple[Fraction, ...]] = {
    3: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(1, 2), Fraction(-1), Fraction(2)),
    5: (Fraction(0), Fraction(5, 8), Fraction(-5, 8), Fraction(3, 2), Fraction(-3, 2)),
}


@dataclass(frozen=True)
class Form:
    """``size`` outputs per axis of a convolution with ``taps`` per axis and a ``stride``."""

    size: int
    taps: int
    stride: int

    @property
    def step(self) -> int:
        """Elements from a tile's first one to the next tile's."""
        return self.size * self.stride

    @property
    def products(self) -> int:
        """Products per axis, and elements that a tile reads."""
        return self.step - self.stride + self.taps


@dataclass(frozen=True)
class Transforms:
    """``result`` is At, [size, products]; ``taps`` G, [products, taps]; ``data`` Bt, square."""

    result: Matrix
    taps: Matrix
    data: Matrix


@cache
def transforms(form: Form) -> Transforms:
    """The matrices of a form with a stride of 1 or 2."""
    made = {1: _neighbouring, 2: _alternating}[form.stride]
    return made(form.size, form.taps)


def _alternating(size: int, count: int) -> Transforms:
    """Stride 2: every second tap on even positions, then the others on odd ones."""
    even, odd = _neighbouring(size, (count + 1) // 2), _neighbouring(size, count // 2)
    result = tuple((*row, *other) for row, other in zip(even.result, odd.result, strict=True))
    parts = (even, 0), (odd, 1)
    taps = [_spread(row, first, count) for part, first in parts for row in part.taps]
    length = 2 * size + count - 2
    data = [_spread(row, first, length) for part, first in parts for row in part.data]
    return Transforms(result, tuple(taps), tuple(data))


def _spread(row: Sequence[Fraction], first: int, length: int) -> tuple[Fraction, ...]:
    """``row`` at every second place from ``first`` on, zeros elsewhere."""
    made = [Fraction(0)] * length
    made[first : first + 2 * len(row) : 2] = row
    return tuple(made)


def _neighbouring(size: int, count: int) -> Transforms:
    """Stride 1, with ``count`` taps."""
    zero, one = Fraction(0), Fraction(1)
    if count == 1:
        unit = tuple(tuple(one if i == j else zero for j in range(size)) for i in range(size))
        return Transforms(unit, ((one,),) * size, unit)
    points = POINTS[size + count - 2]
    last = (zero,) * (count - 1) + (one,)
    result = tuple((*(p**i for p in points), one if i == size - 1 else zero) for i in range(size))
    taps: list[tuple[Fraction, ...]] = []
    data: list[tuple[Fraction, ...]] = []
    for place, point in enumerate(points):
        others = points[:place] + points[place + 1 :]
        scale = one
        for other in others:
            scale *= point - other
        taps.append(tuple(point**k / scale for k in range(count)))
        data.append((*_polynomial(others), zero))
    return Transforms(result, (*taps, last), (*data, _polynomial(points)))


def _polynomial(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Coefficients of the product of (x - root), that of x**0 first."""
    made = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *made]
        made = [a - root * b for a, b in zip(shifted, [*made, Fraction(0)], strict=True)]
    return tuple(made)


@dataclass(frozen=True)
class TransformedWeights:
    """Weights [O, C, taps, taps] as [products^2, C, groups, O / groups], rounded once."""

    form: Form
    groups: int

    def sizes(self, given: tuple[int, ...]) -> tuple[int, ...]:
        """See :class:`~tilewright.tile.variants.Transform`."""
        outputs, channels = given[:2]
        return self.form.products**2, channels, self.groups, outputs // self.groups

    def applied(self, array: Array) -> Array:
        """See :class:`~tilewright.tile.variants.Transform`."""
        matrix = np.array(transforms(self.form).taps, np.float64)
        with np.errstate(all="ignore"):  # weights may hold anything
            wide = array.transpose(2, 3, 1, 0).astype(np.float64)
            down = matrix @ wide.reshape(self.form.taps, -1)
            along = matrix @ down.reshape(len(matrix), self.form.taps, -1)
            return along.reshape(self.sizes(array.shape)).astype(array.dtype)


# ---------------------------------------------------------------- on values


def apply_rows(matrix: Matrix, values: Sequence[Value], dtype: DType) -> list[Value]:
    """``matrix`` times the vector ``values``, with what two rows have in common computed once."""
    made: dict[int, Value] = {}
    for first, row in enumerate(matrix):
        if first in made:
            continue
        second = _partner(matrix, first)
        if second is None:
            made[first] = _combination(row, values, dtype)
            continue
        signs = [a == b for a, b in zip(row, matrix[second], strict=True)]
        even = _combination([c if s else Fraction(0) for c, s in zip(row, signs, strict=True)],
                            values, dtype)  # fmt: skip
        odd = _combination([Fraction(0) if s else c for c, s in zip(row, signs, strict=True)],
                           values, dtype)  # fmt: skip
        made[first] = Apply("add", (even, odd), dtype)
        made[second] = Apply("subtract", (even, odd), dtype)
    return [made[place] for place in range(len(matrix))]


def apply_columns(matrix: Matrix, values: Sequence[Value], dtype: DType) -> list[Value]:
    """The same where the columns, not the rows, come in pairs of opposite signs."""
    pairs, single = _column_pairs(matrix)
    sums: dict[tuple[int, int], tuple[Value, Value]] = {}
    for first, second in pairs:
        both = (values[first], values[second])
        sums[first, second] = (Apply("add", both, dtype), Apply("subtract", both, dtype))
    made: list[Value] = []
    for row in matrix:
        terms = [(row[place], values[place]) for place in single]
        for (first, second), (plus, minus) in sums.items():
            terms.append((row[first], plus if row[first] == row[second] else minus))
        made.append(_combination([c for c, _ in terms], [v for _, v in terms], dtype))
    return made


def _partner(matrix: Matrix, first: int) -> int | None:
    """The row after ``first`` that differs from it in some signs alone, and not in all."""
    row = matrix[first]
    for second in range(first + 1, len(matrix)):
        pairs = list(zip(row, matrix[second], strict=True))
        same = sum(a == b != 0 for a, b in pairs)
        if all(abs(a) == abs(b) for a, b in pairs) and 0 < same < sum(a != 0 for a in row):
            return second
    return None


def _column_pairs(matrix: Matrix) -> tuple[list[tuple[int, int]], list[int]]:
    turned = tuple(zip(*matrix, strict=True))
    pairs: list[tuple[int, int]] = []
    left = list(range(len(turned)))
    for first in range(len(turned)):
        second = _partner(turned, first) if first in left else None
        if second is not None:
            pairs.append((first, second))
            left = [place for place in left if place not in (first, second)]
    return pairs, left


def _combination(coefficients: Sequence[Fraction], values: Sequence[Value], dtype: DType) -> Value:
    """The sum of the products; ones and zeros cost nothing, a negative one is subtracted."""
    terms = [(c, v) for c, v in zip(coefficients, values, strict=True) if c != 0]
    terms.sort(key=lambda term: term[0] < 0)
    total: Value | None = None
    for coefficient, value in terms:
        size = float(coefficient if total is None else abs(coefficient))
        scaled = value
        if size != 1.0:
            scaled = Apply("multiply", (value, Literal(size, dtype)), dtype)
        if total is None:
            total = scaled
        else:
            total = Apply("add" if coefficient > 0 else "subtract", (total, scaled), dtype)
    assert total is not None
    return total
