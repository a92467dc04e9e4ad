"""Trigonometric functions and their inverses, without branches.

All of them compute in float64; float32 rounds the result once, except for whole registers of usual
arguments of the sine and cosine, which stay in float32. Arguments of any size are reduced
exactly for float32; those of float64 up to 2**45, beyond which accuracy fades, and 2**50, beyond
which the results are NaNs. Imports
``math_arithmetic``, ``math_exponential`` and ``math_tables``; start with :func:`sine`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from llvmlite import ir

from tilewright.backend.cpu import math_lookup_tables as lookup_tables
from tilewright.backend.cpu import math_tables as tables
from tilewright.backend.cpu.math_arithmetic import Arithmetic
from tilewright.backend.cpu.math_exponential import through_double
from tilewright.backend.cpu.vector_functions import unless_rare

NEAR = 2.0**15  # arguments up to which three numbers of float32 are enough for pi/2


@dataclass(frozen=True)
class _Reduced:
    """n pi/2 + angle + tail, |angle| <= pi/4; the low bits of ``pattern`` are those of n."""

    angle: ir.Value
    tail: ir.Value
    pattern: ir.Value


def _reduce_double(a: Arithmetic, x: ir.Value) -> _Reduced:
    # Farther out even n has lost its last bit; a NaN is better than a number out of nowhere.
    x = a.select(a.compare("<", a.absolute(x), 2.0**50), x, a.nan)
    n, pattern = a.shifted_round(a.scale(x, 2 / math.pi))
    first, second, third = tables.HALF_PI
    product, rest = a.two_product(n, a.constant(first))
    r, lost = a.two_sum(a.subtract(x, product), a.negate(rest))
    product, rest = a.two_product(n, a.constant(second))
    r, more = a.two_sum(r, a.negate(product))
    low = a.multiply_add(n, a.constant(-third), a.subtract(a.add(lost, more), rest))
    total = a.add(r, low)
    return _Reduced(total, a.add(a.subtract(r, total), low), pattern)


def _reduce_mixed(a: Arithmetic, x: ir.Value) -> _Reduced:
    """For x of at most 24 significant bits, of any size.

    x = y 2**shift with |y| < 2**50, whole if shift > 0: but for whole turns, x 2/pi is y times
    (2**shift 2/pi mod 4). That factor comes in pieces with which y has exact products.
    """
    size = a.absolute(x)
    factors: list[ir.Value] = [a.constant(1.0), *(a.constant(part) for part in tables.TURNS_0)]
    for shift, turns in ((27, tables.TURNS_27), (54, tables.TURNS_54), (81, tables.TURNS_81)):
        beyond = a.compare(">=", size, 2.0 ** (shift + 23))
        others = (2.0**-shift, *turns)
        factors = [
            a.select(beyond, a.constant(other), factor)
            for other, factor in zip(others, factors, strict=True)
        ]
    y = a.multiply(x, factors[0])
    total, first = _drop_whole(a, a.multiply(y, factors[1]))
    part, second = _drop_whole(a, a.multiply(y, factors[2]))
    total, lost = a.two_sum(total, part)
    total, third = _drop_whole(a, total)
    total = a.add(total, a.multiply_add(y, factors[3], lost))
    pattern = a.builder.add(a.builder.add(first, second), third)
    return _Reduced(a.scale(total, math.pi / 2), a.constant(0.0), pattern)


def _drop_whole(a: Arithmetic, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(x - n, bits whose low part is n) for the integer n nearest to x."""
    n, pattern = a.shifted_round(x)
    return a.subtract(x, n), pattern


def _reduce(a: Arithmetic, x: ir.Value, mixed: bool) -> _Reduced:
    return _reduce_mixed(a, x) if mixed else _reduce_double(a, x)


def _sine_and_cosine(a: Arithmetic, reduced: _Reduced, mixed: bool) -> tuple[ir.Value, ir.Value]:
    """sin and cos of angle + tail."""
    r, tail = reduced.angle, reduced.tail
    z = a.multiply(r, r)
    half = a.scale(z, 0.5)
    near = a.subtract(a.constant(1.0), half)
    sine_terms = tables.SINE_MIXED if mixed else tables.SINE_DOUBLE
    cosine_terms = tables.COSINE_MIXED if mixed else tables.COSINE_DOUBLE
    small = a.multiply_add(a.multiply(r, z), a.polynomial(z, sine_terms), a.multiply(tail, near))
    rest = a.subtract(a.subtract(a.constant(1.0), near), half)
    rest = a.subtract(rest, a.multiply(r, tail))
    rest = a.multiply_add(a.multiply(z, z), a.polynomial(z, cosine_terms), rest)
    return a.add(r, small), a.add(near, rest)


def _quadrant(a: Arithmetic, x: ir.Value, mixed: bool, turn: int) -> ir.Value:
    """sin(x + turn pi/2)."""
    reduced = _reduce(a, x, mixed)
    sine_value, cosine_value = _sine_and_cosine(a, reduced, mixed)
    return _of_quadrant(a, reduced.pattern, turn, (sine_value, cosine_value))


def _of_quadrant(
    a: Arithmetic, pattern: ir.Value, turn: int, values: tuple[ir.Value, ir.Value]
) -> ir.Value:
    """sin(x + turn pi/2) from the (sine, cosine) of what is left of x."""
    build = a.builder
    quadrant = build.add(pattern, a.integer(turn)) if turn else pattern
    even = build.icmp_unsigned("==", build.and_(quadrant, a.integer(1)), a.integer(0))
    value = a.select(even, *values)
    flip = build.shl(build.and_(quadrant, a.integer(2)), a.integer(a.bits - 2))
    return a.from_bits(build.xor(a.to_bits(value), flip))


def _sine(a: Arithmetic, x: ir.Value, mixed: bool) -> ir.Value:
    return a.select(a.compare("==", x, 0.0), x, _quadrant(a, x, mixed, 0))


def _cosine(a: Arithmetic, x: ir.Value, mixed: bool) -> ir.Value:
    return _quadrant(a, x, mixed, 1)


def _tangent(a: Arithmetic, x: ir.Value, mixed: bool) -> ir.Value:
    reduced = _reduce(a, x, mixed)
    sine_value, cosine_value = _sine_and_cosine(a, reduced, mixed)
    build = a.builder
    even = build.icmp_unsigned("==", build.and_(reduced.pattern, a.integer(1)), a.integer(0))
    top = a.select(even, sine_value, a.negate(cosine_value))
    bottom = a.select(even, cosine_value, sine_value)
    return a.select(a.compare("==", x, 0.0), x, a.divide(top, bottom))


def _near(a: Arithmetic, x: ir.Value, turn: int) -> ir.Value:
    """sin(x + turn pi/2) of a register of float32 with 0 <= x <= ``NEAR``.

    All but the last of the three subtractions are exact (Cody and Waite): x - n high has no more
    digits than high.
    """
    n, pattern = a.rounded_product(x, 2 / math.pi)
    r = x
    for part in lookup_tables.HALF_PI_SINGLE:
        r = a.multiply_add(n, a.constant(-part), r)
    z = a.multiply(r, r)
    sine_value = a.multiply_add(a.multiply(r, z), a.polynomial(z, lookup_tables.SINE_SINGLE), r)
    terms = (1.0, -0.5, *lookup_tables.COSINE_SINGLE)
    return _of_quadrant(a, pattern, turn, (sine_value, a.polynomial(z, terms)))


def register_sine(a: Arithmetic, x: ir.Value) -> ir.Value:
    """sin(x) of a register of float32."""
    size = a.absolute(x)
    sign = a.builder.and_(a.to_bits(x), a.integer(1 << (a.bits - 1)))
    value = a.from_bits(a.builder.xor(a.to_bits(_near(a, size, 0)), sign))
    is_far = a.compare(">", size, NEAR)
    return unless_rare(a, (x,), value, is_far, (f"any_sine.{a.lanes}", sine))


def register_cosine(a: Arithmetic, x: ir.Value) -> ir.Value:
    """cos(x) of a register of float32."""
    size = a.absolute(x)
    is_far = a.compare(">", size, NEAR)
    return unless_rare(a, (x,), _near(a, size, 1), is_far, (f"any_cosine.{a.lanes}", cosine))


def sine(a: Arithmetic, x: ir.Value) -> ir.Value:
    """sin(x)."""
    return through_double(a, x, _sine)


def cosine(a: Arithmetic, x: ir.Value) -> ir.Value:
    """cos(x)."""
    return through_double(a, x, _cosine)


def tangent(a: Arithmetic, x: ir.Value) -> ir.Value:
    """tan(x)."""
    return through_double(a, x, _tangent)


def _arc_tangent(a: Arithmetic, x: ir.Value, mixed: bool) -> ir.Value:
    size = a.absolute(x)
    one = a.constant(1.0)
    # atan(x) = pi/2 + atan(-1/x) = pi/4 + atan((x-1)/(x+1)).
    far = a.compare(">", size, math.tan(3 * math.pi / 8))
    middle = a.compare(">", size, math.tan(math.pi / 8))
    top = a.select(middle, a.subtract(size, one), size)
    bottom = a.select(middle, a.add(size, one), one)
    t = a.divide(a.select(far, a.constant(-1.0), top), a.select(far, size, bottom))
    z = a.multiply(t, t)
    terms = tables.ARC_TANGENT_MIXED if mixed else tables.ARC_TANGENT_DOUBLE
    high, low = tables.QUARTER_PI
    zero = a.constant(0.0)
    base = a.select(far, a.constant(2 * high), a.select(middle, a.constant(high), zero))
    base_low = a.select(far, a.constant(2 * low), a.select(middle, a.constant(low), zero))
    rest = a.multiply_add(a.multiply(t, z), a.polynomial(z, terms), base_low)
    return a.copy_sign(a.add(base, a.add(t, rest)), x)


def _folded_arc_sine(
    a: Arithmetic, x: ir.Value, mixed: bool
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """(whether |x| > 1/2, u, asin(u) - u) with u = sqrt((1-|x|)/2) then, else u = |x|."""
    size = a.absolute(x)
    outer = a.compare(">", size, 0.5)
    folded = a.scale(a.subtract(a.constant(1.0), size), 0.5)
    z = a.select(outer, folded, a.multiply(size, size))
    u = a.select(outer, a.square_root(folded), size)
    terms = tables.ARC_SINE_MIXED if mixed else tables.ARC_SINE_DOUBLE
    return outer, u, a.multiply(a.multiply(u, z), a.polynomial(z, terms))


def _arc_sine(a: Arithmetic, x: ir.Value, mixed: bool) -> ir.Value:
    outer, u, rest = _folded_arc_sine(a, x, mixed)
    high, low = (2 * part for part in tables.QUARTER_PI)
    # pi/2 - 2 asin(u), smallest parts first.
    tail = a.subtract(a.constant(low), a.add(rest, rest))
    value = a.add(a.subtract(a.constant(high), a.add(u, u)), tail)
    return a.copy_sign(a.select(outer, value, a.add(u, rest)), x)


def _arc_cosine(a: Arithmetic, x: ir.Value, mixed: bool) -> ir.Value:
    outer, u, rest = _folded_arc_sine(a, x, mixed)
    high, low = (2 * part for part in tables.QUARTER_PI)
    negative = a.compare("<", x, 0.0)
    twice, twice_rest = a.add(u, u), a.add(rest, rest)
    # pi - 2 asin(u) or 2 asin(u) outside, pi/2 - asin(x) inside.
    left = a.subtract(
        a.constant(2 * high), a.subtract(twice, a.subtract(a.constant(2 * low), twice_rest))
    )
    signed, signed_rest = a.copy_sign(u, x), a.copy_sign(rest, x)
    inside = a.subtract(
        a.constant(high), a.subtract(signed, a.subtract(a.constant(low), signed_rest))
    )
    return a.select(outer, a.select(negative, left, a.add(twice, twice_rest)), inside)


def arc_tangent(a: Arithmetic, x: ir.Value) -> ir.Value:
    """atan(x)."""
    return through_double(a, x, _arc_tangent)


def arc_sine(a: Arithmetic, x: ir.Value) -> ir.Value:
    """asin(x), a NaN outside [-1, 1]."""
    return through_double(a, x, _arc_sine)


def arc_cosine(a: Arithmetic, x: ir.Value) -> ir.Value:
    """acos(x), a NaN outside [-1, 1]."""
    return through_double(a, x, _arc_cosine)
