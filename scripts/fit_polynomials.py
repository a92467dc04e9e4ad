"""Fit the polynomials of ``math_tables`` and ``math_lookup_tables`` and write these modules.

Every row is a weighted minimax problem: the polynomial P of the given degree that minimises the
largest ``|weight(t) * (target(t) - P(t))|`` on an interval, found with the Remez exchange in
60-digit arithmetic and rounded to the precision it is evaluated in. The weight turns the error of P
into a relative error of the function that uses it. Run ``python scripts/fit_polynomials.py``; the
printed number is minus the binary logarithm of the error after rounding. Needs mpmath.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import mpmath
from mpmath import mp, mpf

mp.dps = 60
Function = Callable[[mpf], mpf]
STEPS = 16  # of the tables that a register of 16 elements holds
FOLDER = Path(__file__).parent.parent / "src/tilewright/backend/cpu"


@dataclass(frozen=True)
class Problem:
    """One polynomial: evaluated in ``bits`` (32 or 64) arithmetic, on [low, high]."""

    name: str
    meaning: str
    target: Function
    weight: Function
    low: mpf
    high: mpf
    degree: int
    bits: int


def _evaluate(coefficients: list[mpf], t: mpf) -> mpf:
    return mpmath.polyval(coefficients[::-1], t)


def _solve(problem: Problem, points: list[mpf]) -> list[mpf]:
    size = problem.degree + 2
    matrix = mpmath.matrix(size, size)
    right = mpmath.matrix(size, 1)
    for row, t in enumerate(points):
        weight = problem.weight(t)
        for power in range(size - 1):
            matrix[row, power] = weight * t**power
        matrix[row, size - 1] = (-1) ** row
        right[row] = weight * problem.target(t)
    solution = mpmath.lu_solve(matrix, right)
    return [solution[i] for i in range(size - 1)]


def _extremes(errors: list[mpf], grid: list[mpf], count: int) -> list[mpf]:
    """One point of largest error per run of equal signs; the best ``count`` neighbouring runs."""
    best: list[int] = []
    for i, error in enumerate(errors):
        if best and (errors[best[-1]] > 0) == (error > 0):
            if abs(error) > abs(errors[best[-1]]):
                best[-1] = i
        else:
            best.append(i)
    while len(best) > count:
        drop = 0 if abs(errors[best[0]]) < abs(errors[best[-1]]) else len(best) - 1
        best.pop(drop)
    return [grid[i] for i in best]


def _round(value: mpf, bits: int) -> float:
    number = float(value)
    return number if bits == 64 else struct.unpack("f", struct.pack("f", number))[0]


def _round_up(value: mpf) -> float:
    """The smallest float32 that is not less than a positive value."""
    near = struct.pack("f", float(value))
    if mpf(struct.unpack("f", near)[0]) >= value:
        return struct.unpack("f", near)[0]
    return struct.unpack("f", struct.pack("I", struct.unpack("I", near)[0] + 1))[0]


def fit(problem: Problem) -> tuple[list[float], float]:
    """The rounded coefficients, constant first, and the bits of accuracy that they reach."""
    count = problem.degree + 2
    middle, half = (problem.high + problem.low) / 2, (problem.high - problem.low) / 2
    steps = 40 * count
    grid = [middle - half * mpmath.cos(mp.pi * (i + mpf("0.5")) / steps) for i in range(steps)]
    targets = [problem.target(t) for t in grid]
    weights = [problem.weight(t) for t in grid]
    points = [middle - half * mpmath.cos(mp.pi * (i + mpf("0.5")) / count) for i in range(count)]
    exact: list[mpf] = []
    for _ in range(12):
        exact = _solve(problem, points)
        errors = [
            w * (f - _evaluate(exact, t)) for t, f, w in zip(grid, targets, weights, strict=True)
        ]
        new = _extremes(errors, grid, count)
        if len(new) < count or new == points:
            break
        points = new
    rounded = [_round(c, problem.bits) for c in exact]
    terms = [mpf(c) for c in rounded]
    worst = max(
        abs(w * (f - _evaluate(terms, t))) for t, f, w in zip(grid, targets, weights, strict=True)
    )
    return rounded, float(-mpmath.log(worst, 2))


def _exponential(r: mpf) -> mpf:
    return (mpmath.expm1(r) - r) / r**2


def _logarithm(f: mpf) -> mpf:
    return (mpmath.log1p(f) - f + f**2 / 2) / f**3


def _logarithm_step(r: mpf) -> mpf:
    return (mpmath.log1p(r) - r) / r**2


def _logarithm_step_weight(r: mpf) -> mpf:
    return r**2 / mpmath.log1p(r)


def _logarithm_ratio(z: mpf) -> mpf:
    s = mpmath.sqrt(z)
    return (2 * mpmath.atanh(s) - 2 * s) / (s * z)


def _power_ratio(z: mpf) -> mpf:
    s = mpmath.sqrt(z)
    return (2 * mpmath.atanh(s) - 2 * s - 2 * s * z / 3) / (s * z * z)


def _power_ratio_weight(z: mpf) -> mpf:
    s = mpmath.sqrt(z)
    return s * z * z / (2 * mpmath.atanh(s))


def _odd(function: Function) -> Function:
    """P of ``function(x) = x + x**3 P(x**2)``."""

    def target(z: mpf) -> mpf:
        x = mpmath.sqrt(z)
        return (function(x) - x) / (x * z)

    return target


def _odd_weight(function: Function) -> Function:
    def weight(z: mpf) -> mpf:
        x = mpmath.sqrt(z)
        return x * z / function(x)

    return weight


def _cosine(z: mpf) -> mpf:
    return (mpmath.cos(mpmath.sqrt(z)) - 1 + z / 2) / z**2


def _cosine_weight(z: mpf) -> mpf:
    return z**2 / mpmath.cos(mpmath.sqrt(z))


def _error_small(z: mpf) -> mpf:
    x = mpmath.sqrt(z)
    return mpmath.erf(x) / x - 1


def _error_small_weight(z: mpf) -> mpf:
    x = mpmath.sqrt(z)
    return x / mpmath.erf(x)


def _error_large(x: mpf) -> mpf:
    return mpmath.log(mpmath.erfc(x))


def _exponential_weight(r: mpf) -> mpf:
    return r**2 / mpmath.exp(r)


def _logarithm_weight(f: mpf) -> mpf:
    return f**3 / mpmath.log1p(f)


def _logarithm_ratio_weight(z: mpf) -> mpf:
    s = mpmath.sqrt(z)
    return s * z / (2 * mpmath.atanh(s))


def _problems() -> list[Problem]:
    half_log2 = mpmath.log(2) / 2 * mpf("1.0001")
    root = mpmath.sqrt(2)
    quarter = (mp.pi / 4 * mpf("1.0001")) ** 2
    eighth = mpmath.tan(mp.pi / 8) ** 2 * mpf("1.0001")
    ratio = ((root - 1) / (root + 1)) ** 2 * mpf("1.0001")
    zero = mpf(10) ** -12
    exp_text = "exp(r) = 1 + r + r**2 P(r), |r| <= log(2)/2"
    log_text = "log(1+f) = f - f**2/2 + f**3 P(f), sqrt(1/2) <= 1+f <= sqrt(2)"
    ratio_text = "log((1+s)/(1-s)) = 2 s + s**3 P(s**2), |s| <= 3 - sqrt(8)"
    rows: list[Problem] = []

    def add(name: str, text: str, target: Function, weight: Function, low: mpf, high: mpf) -> None:
        for suffix, bits, degree in _DEGREES[name]:
            label = f"{name}_{suffix}"
            rows.append(Problem(label, text, target, weight, low, high, degree, bits))

    add("EXPONENTIAL", exp_text, _exponential, _exponential_weight, -half_log2, half_log2)
    low, high = (1 / root - 1) * mpf("1.0001"), (root - 1) * mpf("1.0001")
    add("LOGARITHM", log_text, _logarithm, _logarithm_weight, low, high)
    add("LOGARITHM_RATIO", ratio_text, _logarithm_ratio, _logarithm_ratio_weight, zero, ratio)
    power_text = "log((1+s)/(1-s)) = 2 s + 2/3 s**3 + s**5 P(s**2), |s| <= 3 - sqrt(8)"
    add("POWER_RATIO", power_text, _power_ratio, _power_ratio_weight, zero, ratio)
    odd = (
        ("SINE", "sin", mpmath.sin, quarter, "|x| <= pi/4"),
        ("ARC_TANGENT", "atan", mpmath.atan, eighth, "|x| <= tan(pi/8)"),
        ("ARC_SINE", "asin", mpmath.asin, mpf("0.2501"), "|x| <= 1/2"),
        ("HYPERBOLIC_SINE", "sinh", mpmath.sinh, mpf(1), "|x| <= 1"),
        ("HYPERBOLIC_TANGENT", "tanh", mpmath.tanh, mpf("0.391"), "|x| <= 5/8"),
    )
    for name, short, function, high, interval in odd:
        text = f"{short}(x) = x + x**3 P(x**2), {interval}"
        add(name, text, _odd(function), _odd_weight(function), zero, high)
    cos_text = "cos(x) = 1 - x**2/2 + x**4 P(x**2), |x| <= pi/4"
    add("COSINE", cos_text, _cosine, _cosine_weight, zero, quarter)
    erf_text = "erf(x) = x + x P(x**2), |x| <= 1"
    add("ERROR_SMALL", erf_text, _error_small, _error_small_weight, zero, mpf(1))
    large_text = "erf(x) = 1 - exp(P(x)), 1 <= x <= "
    for suffix, bits, degree, high in (("SINGLE", 32, 8, 4), ("DOUBLE", 64, 19, 6)):
        text = large_text + str(high)
        label = f"ERROR_LARGE_{suffix}"
        args = (text, _error_large, mpmath.erfc, mpf(1), mpf(high), degree, bits)
        rows.append(Problem(label, *args))
    return rows


# Per polynomial: SINGLE is evaluated in float32, DOUBLE in float64 for float64 results, MIXED in
# float64 for float32 results.
_DEGREES: dict[str, tuple[tuple[str, int, int], ...]] = {
    "EXPONENTIAL": (("SINGLE", 32, 4), ("MIXED", 64, 4), ("DOUBLE", 64, 9)),
    "LOGARITHM": (("SINGLE", 32, 8),),
    "LOGARITHM_RATIO": (("MIXED", 64, 3), ("DOUBLE", 64, 6)),
    "POWER_RATIO": (("DOUBLE", 64, 7),),
    "SINE": (("MIXED", 64, 3), ("DOUBLE", 64, 6)),
    "COSINE": (("MIXED", 64, 2), ("DOUBLE", 64, 5)),
    "ARC_TANGENT": (("MIXED", 64, 5), ("DOUBLE", 64, 11)),
    "ARC_SINE": (("MIXED", 64, 6), ("DOUBLE", 64, 13)),
    "HYPERBOLIC_SINE": (("MIXED", 64, 3), ("DOUBLE", 64, 7)),
    "HYPERBOLIC_TANGENT": (("SINGLE", 32, 5), ("DOUBLE", 64, 11)),
    "ERROR_SMALL": (("SINGLE", 32, 6), ("DOUBLE", 64, 13)),
}

_HEADER = '''"""Coefficients of the polynomials in the elementary functions, constant term first.

Written by ``scripts/fit_polynomials.py``, which states the approximation problem of each row and
solves it; do not edit by hand. Above each row: what the polynomial P stands for, and the accuracy
after rounding. SINGLE rows are evaluated in float32, DOUBLE rows in float64, and MIXED rows in
float64 for float32 results.
"""

from __future__ import annotations

'''


@dataclass(frozen=True)
class Pieces:
    """f(k step + u) = V[k] + u + u P[k](u) for |u| <= step/2 and k below ``number``.

    Beyond ``limit`` the function is 1 in float32. The step is the one near the least possible that
    has values V[k] next to numbers of float32.
    """

    name: str
    function: Function
    limit: mpf
    number: int
    degree: int

    def step(self) -> float:
        """The width of a piece."""
        least = self.limit / (self.number - mpf("0.501"))
        first = struct.unpack("I", struct.pack("f", float(least)))[0] + 1
        candidates = (struct.unpack("f", struct.pack("I", first + i))[0] for i in range(2000))
        return min(candidates, key=self._distance)

    def _distance(self, step: float) -> float:
        """What rounding V loses, relative to the least value of each piece."""
        with mpmath.workdps(20):
            values = [self.function(mpf(step) * k) for k in range(1, self.number)]
            least = [self.function(mpf(step) * (k - 0.5)) for k in range(1, self.number)]
            pairs = zip(values, least, strict=True)
            return max(float(abs(_round(v, 32) - v) / low) for v, low in pairs)

    def rows(self) -> tuple[list[list[float]], float]:
        """V, then the coefficients of P, constant first: one number for each k; the accuracy."""
        step = mpf(self.step())
        columns: list[list[float]] = []
        accuracy = math.inf
        for k in range(self.number):
            centre, half = k * step, step / 2 * mpf("1.001")
            value = self.function(centre)
            target, weight = self._piece(centre, value)
            low = -half if k else mpf(10) ** -9
            problem = Problem("", "", target, weight, low, half, self.degree, 32)
            coefficients, reached = fit(problem)
            columns.append([_round(value, 32), *coefficients])
            accuracy = min(accuracy, reached)
        return [list(row) for row in zip(*columns, strict=True)], accuracy

    def _piece(self, centre: mpf, value: mpf) -> tuple[Function, Function]:
        def target(u: mpf) -> mpf:
            return (self.function(centre + u) - value) / u - 1

        def weight(u: mpf) -> mpf:
            return u / self.function(centre + u)

        return target, weight


def _logarithm_steps() -> tuple[list[float], list[float]]:
    """Factors c that bring a mantissa in [3/4, 3/2) near 1, by its first four bits; -log(c).

    Next to 1 the factor is 1. The others are those near the middle's inverse whose logarithm lies
    next to a number of float32.
    """
    factors: list[float] = []
    for bits in range(STEPS):
        low = 1 + mpf(bits) / STEPS
        middle = low + mpf(1) / (2 * STEPS)
        if bits in (0, STEPS - 1):
            factors.append(1.0)
            continue
        first = struct.unpack("I", struct.pack("f", float((1 if bits < 8 else 2) / middle)))[0]
        near = [struct.unpack("f", struct.pack("I", first + i))[0] for i in range(-1000, 1000)]
        factors.append(min(near, key=lambda c: abs(_round(-mpmath.log(c), 32) + mpmath.log(c))))
    return factors, [_round(-mpmath.log(c), 32) + 0.0 for c in factors]


def _split(value: mpf, bits: tuple[int, ...]) -> tuple[float, ...]:
    """Pieces that sum to ``value``: each but the last truncated to so many binary digits."""
    pieces: list[float] = []
    rest = value
    for width in bits:
        step = mpf(2) ** (int(mpmath.floor(mpmath.log(rest, 2))) + 1 - width)
        pieces.append(float(mpmath.floor(rest / step) * step))
        rest -= pieces[-1]
    return (*pieces, float(rest))


def _split_singles(value: mpf) -> tuple[float, ...]:
    """Three numbers of float32, each nearest to what those before it leave."""
    pieces: list[float] = []
    for _ in range(3):
        pieces.append(_round(value - sum(map(mpf, pieces)), 32))
    return tuple(pieces)


def _turns(shift: int) -> tuple[float, ...]:
    """Pieces whose product with a 24-bit number is exact in float64, but for the last."""
    value = (mpf(2) ** shift * 2 / mp.pi + 2) % 4 - 2
    return tuple(-p if value < 0 else p for p in _split(abs(value), (29, 29)))


def _constants() -> list[tuple[str, str, tuple[float, ...]]]:
    log2 = mpmath.log(2)
    pieces = "pieces of {}; a product of all but the last with a {} is exact"
    return [
        ("LOG2_SINGLE", pieces.format("log(2)", "10-bit integer"), _split(log2, (14,))),
        ("LOG2_DOUBLE", pieces.format("log(2)", "20-bit integer"), _split(log2, (33,))),
        ("TWO_THIRDS", "2/3 as a sum", _split(mpf(2) / 3, (53,))),
        ("QUARTER_PI", "pi/4 as a sum", _split(mp.pi / 4, (53,))),
        ("HALF_PI", "pi/2 as a sum", _split(mp.pi / 2, (53, 53))),
        *(
            (f"TURNS_{shift}", f"2**{shift} * 2/pi modulo 4 as a sum", _turns(shift))
            for shift in (0, 27, 54, 81)
        ),
    ]


_LOOKUP_HEADER = '''"""Tables of elementary functions that vector registers hold, all of float32.

Written by ``scripts/fit_polynomials.py``; do not edit by hand. A row has as many entries as a
register has elements, or belongs to one that has. Polynomials have the constant term first; above
each what it stands for, and the accuracy after rounding.
"""

from __future__ import annotations

'''


def _row(name: str, text: str, values: Sequence[float]) -> str:
    numbers = "".join(f"    {v!r},\n" for v in values)
    return f"# {text}\n{name}: tuple[float, ...] = (\n{numbers})\n"


def _fitted(problem: Problem) -> str:
    coefficients, accuracy = fit(problem)
    print(f"{problem.name:24} degree {problem.degree:2} accuracy 2**-{accuracy:.1f}")
    return _row(problem.name, f"{problem.meaning}; error 2**-{accuracy:.1f}", coefficients)


def _width(pieces: Pieces) -> str:
    return f"# The width of a step\n{pieces.name}_WIDTH = {pieces.step()!r}\n"


def _error_rows() -> Iterator[str]:
    for number, degree in ((16, 5), (8, 7)):
        pieces = Pieces(f"ERROR_PIECES_{number}", mpmath.erf, mpf("4"), number, degree)
        rows, accuracy = pieces.rows()
        print(f"{pieces.name:24} degree {degree:2} accuracy 2**-{accuracy:.1f}")
        yield _width(pieces)
        yield f"# erf(k width + u) = V[k] + u + u P[k](u), |u| <= width/2, k < {number}\n"
        yield f"# V, then P; error 2**-{accuracy:.1f}\n"
        yield f"{pieces.name}: tuple[tuple[float, ...], ...] = (\n"
        yield from (f"    ({', '.join(map(repr, row))}),\n" for row in rows)
        yield ")\n"


def _tangent_rows() -> Iterator[str]:
    for number, degree in ((16, 3), (8, 5)):
        name = f"TANGENT_STEPS_{number}"
        pieces = Pieces(name, mpmath.tanh, mpf("9.011"), number, degree)
        width = mpf(pieces.step())
        yield _width(pieces)
        values = [mpmath.tanh(k * width) for k in range(number)]
        steps = [*(_round(v, 32) for v in values[:-1]), _round_up(values[-1])]
        text = "tanh(k width), the last rounded up, so that large arguments give exactly 1"
        yield _row(name, text, steps)
        text = "1 - tanh(k width)**2"
        yield _row(f"TANGENT_SLOPES_{number}", text, [_round(1 - v**2, 32) for v in values])
        text = "tanh(x) = x + x**3 P(x**2), |x| <= width/2"
        zero, high = mpf(10) ** -12, (width / 2 * mpf("1.001")) ** 2
        target, weight = _odd(mpmath.tanh), _odd_weight(mpmath.tanh)
        name = f"TANGENT_WITHIN_{number}"
        yield _fitted(Problem(name, text, target, weight, zero, high, degree, 32))


def _lookup_parts() -> Iterator[str]:
    yield _LOOKUP_HEADER
    singles = _split_singles(mp.pi / 2)
    yield _row("HALF_PI_SINGLE", "pi/2 as a sum of float32", singles)
    powers = [_round(mpf(2) ** (mpf(k) / STEPS), 32) for k in range(STEPS)]
    yield _row("EXPONENTIAL_STEPS", f"2**(k/{STEPS})", powers)
    factors, logarithms = _logarithm_steps()
    text = "c[k], by the first bits k of a mantissa in [3/4, 3/2)"
    yield _row("LOGARITHM_FACTORS", text, factors)
    yield _row("LOGARITHM_STEPS", "-log(c[k])", logarithms)
    yield from map(_fitted, _lookup_problems())
    yield from _error_rows()
    yield from _tangent_rows()


def _lookup_problems() -> list[Problem]:
    step = mpmath.log(2) / (2 * STEPS) * mpf("1.0001")
    low, high = -1 / mpf(31), mpf(1) / 16
    quarter = (mp.pi / 4 * mpf("1.0001")) ** 2
    zero = mpf(10) ** -12
    text = f"exp(r) = 1 + r + r**2 P(r), |r| <= log(2)/{2 * STEPS}"
    args = (_exponential, _exponential_weight, -step, step, 1, 32)
    rows = [Problem("EXPONENTIAL_WITHIN", text, *args)]
    text = "log(1+r) = r + r**2 P(r), -1/31 <= r <= 1/16"
    args = (_logarithm_step, _logarithm_step_weight, low, high, 4, 32)
    rows.append(Problem("LOGARITHM_WITHIN", text, *args))
    text = "sin(x) = x + x**3 P(x**2), |x| <= pi/4"
    args = (_odd(mpmath.sin), _odd_weight(mpmath.sin), zero, quarter, 2, 32)
    rows.append(Problem("SINE_SINGLE", text, *args))
    text = "cos(x) = 1 - x**2/2 + x**4 P(x**2), |x| <= pi/4"
    args = (_cosine, _cosine_weight, zero, quarter, 2, 32)
    rows.append(Problem("COSINE_SINGLE", text, *args))
    return rows


def main() -> None:
    """Fit every row and write the table modules."""
    constants = [_row(name, text, values) for name, text, values in _constants()]
    parts = [_HEADER, *constants, *map(_fitted, _problems())]
    (FOLDER / "math_tables.py").write_text("".join(parts))
    (FOLDER / "math_lookup_tables.py").write_text("".join(_lookup_parts()))


if __name__ == "__main__":
    main()
