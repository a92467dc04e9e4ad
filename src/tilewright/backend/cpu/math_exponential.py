"""Exponentials, logarithms, hyperbolic functions and powers, without branches.

Every function takes an :class:`Arithmetic` and values of its width. float32 versions of functions
that rarely matter for speed compute in float64 and round once. The tests state and check accuracy.
Imports ``math_arithmetic`` and ``math_tables``; start with :func:`exponential`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from llvmlite import ir

from tilewright.backend.cpu import math_tables as tables
from tilewright.backend.cpu.math_arithmetic import Arithmetic

Unary = Callable[[Arithmetic, ir.Value, bool], ir.Value]


def through_double(a: Arithmetic, x: ir.Value, function: Unary) -> ir.Value:
    """``function(arithmetic, x, mixed)`` in float64, with ``mixed`` true for a float32 value.

    A mixed evaluation needs results only a little better than float32.
    """
    if not a.single:
        return function(a, x, False)
    return a.narrow(function(a.wide(), a.widen(x), True))


def _rest(a: Arithmetic, x: ir.Value, n: ir.Value) -> ir.Value:
    """x - n log(2)."""
    high, low = tables.LOG2_SINGLE if a.single else tables.LOG2_DOUBLE
    r = a.multiply_add(n, a.constant(-high), x)
    return a.multiply_add(n, a.constant(-low), r)


def _reduce(
    a: Arithmetic, x: ir.Value, offset: int, mixed: bool, correction: ir.Value | None = None
) -> tuple[ir.Value, ir.Value]:
    """x + correction = n log(2) + r: (exp(r) - 1, bits whose low part is n + offset)."""
    n, pattern = a.rounded_product(x, 1 / math.log(2), offset=offset)
    r = _rest(a, x, n)
    if correction is not None:
        r = a.add(r, correction)
    coefficients = tables.EXPONENTIAL_SINGLE if a.single else tables.EXPONENTIAL_DOUBLE
    if mixed:
        coefficients = tables.EXPONENTIAL_MIXED
    p = a.polynomial(r, coefficients)
    return a.multiply_add(a.multiply(r, r), p, r), pattern


def exponential(
    a: Arithmetic,
    x: ir.Value,
    *,
    shift: int = 0,
    mixed: bool = False,
    correction: ir.Value | None = None,
) -> ir.Value:
    """exp(x + correction) * 2**shift, with overflow to infinity and gradual underflow."""
    low, high = (-104.0, 90.0) if a.single else (-746.0, 711.0)
    x = a.at_least(a.at_most(x, high), low)
    p, pattern = _reduce(a, x, 2 * a.bias + shift, mixed, correction)
    # Two factors, because 2**n itself may be no normal number.
    half = a.builder.lshr(pattern, a.integer(1))
    other = a.builder.sub(pattern, half)
    value = a.add(p, a.constant(1.0))
    return a.multiply(a.multiply(value, a.power_of_two(half)), a.power_of_two(other))


def decay(a: Arithmetic, x: ir.Value) -> ir.Value:
    """exp(x) of what is not positive, and 0 where that is no normal number."""
    # Of the least x, the bits of the power of two are those of 0.
    x = a.at_least(x, -a.bias * math.log(2))
    n, pattern = a.rounded_product(x, 1 / math.log(2), offset=a.bias)
    r = _rest(a, x, n)
    coefficients = tables.EXPONENTIAL_SINGLE if a.single else tables.EXPONENTIAL_DOUBLE
    p = a.polynomial(r, (1.0, 1.0, *coefficients))
    return a.multiply(p, a.power_of_two(pattern))


def bounded_exponential(a: Arithmetic, x: ir.Value) -> ir.Value:
    """exp(x) where the caller knows that the result is a normal number (or x a NaN)."""
    p, pattern = _reduce(a, x, a.bias, mixed=False)
    scale = a.power_of_two(pattern)
    return a.multiply_add(p, scale, scale)


def hyperbolic_tangent(a: Arithmetic, x: ir.Value) -> ir.Value:
    """tanh(x): an odd polynomial below 5/8, and 1 - 2 / (exp(2 x) + 1) above."""
    size = a.at_most(a.absolute(x), 10.0 if a.single else 22.0)
    z = a.multiply(size, size)
    terms = tables.HYPERBOLIC_TANGENT_SINGLE if a.single else tables.HYPERBOLIC_TANGENT_DOUBLE
    small = a.multiply_add(a.multiply(size, z), a.polynomial(z, terms), size)
    one, two = a.constant(1.0), a.constant(2.0)
    e = bounded_exponential(a, a.add(size, size))
    large = a.subtract(one, a.divide(two, a.add(e, one)))
    return a.copy_sign(a.select(a.compare("<", size, 0.625), small, large), x)


def _hyperbolic_sine(a: Arithmetic, x: ir.Value, mixed: bool) -> ir.Value:
    size = a.absolute(x)
    half = exponential(a, size, shift=-1, mixed=mixed)
    large = a.subtract(half, a.divide(a.constant(0.25), half))
    coefficients = tables.HYPERBOLIC_SINE_MIXED if mixed else tables.HYPERBOLIC_SINE_DOUBLE
    z = a.multiply(x, x)
    small = a.multiply_add(a.multiply(x, z), a.polynomial(z, coefficients), x)
    return a.select(a.compare("<", size, 1.0), small, a.copy_sign(large, x))


def _hyperbolic_cosine(a: Arithmetic, x: ir.Value, mixed: bool) -> ir.Value:
    half = exponential(a, a.absolute(x), shift=-1, mixed=mixed)
    return a.add(half, a.divide(a.constant(0.25), half))


def hyperbolic_sine(a: Arithmetic, x: ir.Value) -> ir.Value:
    """sinh(x)."""
    return through_double(a, x, _hyperbolic_sine)


def hyperbolic_cosine(a: Arithmetic, x: ir.Value) -> ir.Value:
    """cosh(x)."""
    return through_double(a, x, _hyperbolic_cosine)


def decompose(a: Arithmetic, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """x = 2**k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)): (k, f), for positive finite x."""
    smallest = 2.0 ** (1 - a.bias)
    tiny = a.compare("<", x, smallest)
    scaled = a.select(tiny, a.scale(x, 2.0**a.mantissa), x)
    root = a.pattern(math.sqrt(0.5))
    moved = a.builder.add(a.to_bits(scaled), a.integer(a.pattern(1.0) - root))
    exponent = a.builder.lshr(moved, a.integer(a.mantissa))
    kept = a.builder.and_(moved, a.integer((1 << a.mantissa) - 1))
    f = a.subtract(a.from_bits(a.builder.add(kept, a.integer(root))), a.constant(1.0))
    # An or with the bits of 2**mantissa makes a float of a small integer without a conversion.
    base = 2.0**a.mantissa
    raw = a.from_bits(a.builder.or_(exponent, a.integer(a.pattern(base))))
    subnormal = a.constant(base + a.bias + a.mantissa)
    k = a.subtract(raw, a.select(tiny, subnormal, a.constant(base + a.bias)))
    return k, f


def _finish_logarithm(a: Arithmetic, x: ir.Value, value: ir.Value) -> ir.Value:
    """Put in what a logarithm is at zero, infinity, below zero and for a NaN."""
    value = a.select(a.compare("==", x, float("inf")), x, value)
    value = a.select(a.compare("==", x, 0.0), a.constant(-math.inf), value)
    return a.select(a.builder.fcmp_unordered("<", x, a.constant(0.0)), a.nan, value)


def _logarithm_single(a: Arithmetic, x: ir.Value) -> ir.Value:
    k, f = decompose(a, x)
    high, low = tables.LOG2_SINGLE
    square = a.multiply(f, f)
    cubic = a.multiply(a.multiply(f, square), a.polynomial(f, tables.LOGARITHM_SINGLE))
    small = a.multiply_add(k, a.constant(low), cubic)
    small = a.multiply_add(square, a.constant(-0.5), small)
    return a.multiply_add(k, a.constant(high), a.add(small, f))


def finite_logarithm(
    a: Arithmetic, x: ir.Value, mixed: bool, correction: ir.Value | None = None
) -> ir.Value:
    """log(x) + correction in float64, for positive finite x and a tiny correction."""
    k, f = decompose(a, x)
    high, low = tables.LOG2_DOUBLE
    s = a.divide(f, a.add(f, a.constant(2.0)))
    z = a.multiply(s, s)
    coefficients = tables.LOGARITHM_RATIO_MIXED if mixed else tables.LOGARITHM_RATIO_DOUBLE
    # log(1+f) = f - s (f - z P(z)) and f - s f = f - h + s h with h = f**2/2.
    half = a.multiply(a.scale(f, 0.5), f)
    rest = a.multiply_add(z, a.polynomial(z, coefficients), half)
    small = a.scale(k, low)
    if correction is not None:
        small = a.add(small, correction)
    tail = a.subtract(half, a.multiply_add(s, rest, small))
    return a.subtract(a.scale(k, high), a.subtract(tail, f))


def logarithm(a: Arithmetic, x: ir.Value) -> ir.Value:
    """log(x)."""
    value = _logarithm_single(a, x) if a.single else finite_logarithm(a, x, False)
    return _finish_logarithm(a, x, value)


def _logarithm_of_one_plus(a: Arithmetic, x: ir.Value, mixed: bool) -> ir.Value:
    """log(1 + x) for x > -1 or x = infinity; -infinity at -1, else a NaN."""
    u = a.add(x, a.constant(1.0))
    # What the addition lost; nothing that matters once 1 is lost itself.
    lost = a.subtract(x, a.subtract(u, a.constant(1.0)))
    lost = a.select(a.compare("<", x, 2.0**53), a.divide(lost, u), a.constant(0.0))
    return _finish_logarithm(a, u, finite_logarithm(a, u, mixed, lost))


def _area_hyperbolic_sine(a: Arithmetic, x: ir.Value, mixed: bool) -> ir.Value:
    size = a.absolute(x)
    # log(2) + log(1 + (|x| - 1)) for large arguments, whose squares may overflow.
    large = a.compare(">", size, 2.0**30)
    inner = a.select(large, a.constant(1.0), size)
    square = a.multiply(inner, inner)
    root = a.square_root(a.add(square, a.constant(1.0)))
    moderate = a.add(inner, a.divide(square, a.add(root, a.constant(1.0))))
    value = _logarithm_of_one_plus(
        a, a.select(large, a.subtract(size, a.constant(1.0)), moderate), mixed
    )
    value = a.add(value, a.select(large, a.constant(math.log(2)), a.constant(0.0)))
    return a.copy_sign(value, x)


def _area_hyperbolic_cosine(a: Arithmetic, x: ir.Value, mixed: bool) -> ir.Value:
    large = a.compare(">", x, 2.0**30)
    t = a.subtract(a.select(large, a.constant(1.0), x), a.constant(1.0))
    root = a.square_root(a.multiply_add(t, t, a.add(t, t)))
    less_one = a.subtract(x, a.constant(1.0))
    value = _logarithm_of_one_plus(a, a.select(large, less_one, a.add(t, root)), mixed)
    value = a.add(value, a.select(large, a.constant(math.log(2)), a.constant(0.0)))
    return a.select(a.compare("<", x, 1.0), a.nan, value)


def _area_hyperbolic_tangent(a: Arithmetic, x: ir.Value, mixed: bool) -> ir.Value:
    size = a.absolute(x)
    ratio = a.divide(a.add(size, size), a.subtract(a.constant(1.0), size))
    value = a.copy_sign(a.scale(_logarithm_of_one_plus(a, ratio, mixed), 0.5), x)
    return a.select(a.compare(">", size, 1.0), a.nan, value)


def area_hyperbolic_sine(a: Arithmetic, x: ir.Value) -> ir.Value:
    """asinh(x)."""
    return through_double(a, x, _area_hyperbolic_sine)


def area_hyperbolic_cosine(a: Arithmetic, x: ir.Value) -> ir.Value:
    """acosh(x)."""
    return through_double(a, x, _area_hyperbolic_cosine)


def area_hyperbolic_tangent(a: Arithmetic, x: ir.Value) -> ir.Value:
    """atanh(x)."""
    return through_double(a, x, _area_hyperbolic_tangent)


def error_function(a: Arithmetic, x: ir.Value) -> ir.Value:
    """erf(x): a polynomial below one, and one minus the exponential of another above."""
    size = a.at_most(a.absolute(x), 4.0 if a.single else 6.0)
    small_terms = tables.ERROR_SMALL_SINGLE if a.single else tables.ERROR_SMALL_DOUBLE
    large_terms = tables.ERROR_LARGE_SINGLE if a.single else tables.ERROR_LARGE_DOUBLE
    small = a.multiply_add(size, a.polynomial(a.multiply(size, size), small_terms), size)
    tail = bounded_exponential(a, a.polynomial(size, large_terms))
    large = a.subtract(a.constant(1.0), tail)
    return a.copy_sign(a.select(a.compare("<", size, 1.0), small, large), x)
