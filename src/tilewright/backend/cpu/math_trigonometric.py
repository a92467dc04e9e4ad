"""Trigonometric functions and their inverses, without branches.

All of them compute in float64; float32 rounds the result once. Arguments are reduced by multiples
of pi/2 held to 150 bits, so arguments up to 1e6 in size lose nothing. Imports
``math_arithmetic``, ``math_exponential`` and ``math_tables``; start with :func:`sine`.
"""

from __future__ import annotations

import math

from llvmlite import ir

from tilewright.backend.cpu import math_tables as tables
from tilewright.backend.cpu.math_arithmetic import Arithmetic
from tilewright.backend.cpu.math_exponential import through_double


def _reduce(a: Arithmetic, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """x = n pi/2 + r + tail with |r| <= pi/4: (r, tail, bits whose low part is n)."""
    n, pattern = a.shifted_round(a.scale(x, 2 / math.pi), 0)
    first, second, third, fourth = tables.HALF_PI
    r = a.multiply_add(n, a.constant(-first), x)
    r, lost = a.two_sum(r, a.scale(n, -second))
    r, more = a.two_sum(r, a.scale(n, -third))
    low = a.multiply_add(n, a.constant(-fourth), a.add(lost, more))
    total = a.add(r, low)
    return total, a.add(a.subtract(r, total), low), pattern


def _sine_and_cosine(
    a: Arithmetic, r: ir.Value, tail: ir.Value, mixed: bool
) -> tuple[ir.Value, ir.Value]:
    """sin and cos of r + tail for |r| <= pi/4."""
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
    r, tail, pattern = _reduce(a, x)
    sine_value, cosine_value = _sine_and_cosine(a, r, tail, mixed)
    build = a.builder
    quadrant = build.add(pattern, a.integer(turn)) if turn else pattern
    even = build.icmp_unsigned("==", build.and_(quadrant, a.integer(1)), a.integer(0))
    value = a.select(even, sine_value, cosine_value)
    flip = build.shl(build.and_(quadrant, a.integer(2)), a.integer(a.bits - 2))
    return a.from_bits(build.xor(a.to_bits(value), flip))


def _sine(a: Arithmetic, x: ir.Value, mixed: bool) -> ir.Value:
    return a.select(a.compare("==", x, 0.0), x, _quadrant(a, x, mixed, 0))


def _cosine(a: Arithmetic, x: ir.Value, mixed: bool) -> ir.Value:
    return _quadrant(a, x, mixed, 1)


def _tangent(a: Arithmetic, x: ir.Value, mixed: bool) -> ir.Value:
    r, tail, pattern = _reduce(a, x)
    sine_value, cosine_value = _sine_and_cosine(a, r, tail, mixed)
    build = a.builder
    even = build.icmp_unsigned("==", build.and_(pattern, a.integer(1)), a.integer(0))
    top = a.select(even, sine_value, a.negate(cosine_value))
    bottom = a.select(even, cosine_value, sine_value)
    return a.select(a.compare("==", x, 0.0), x, a.divide(top, bottom))


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
