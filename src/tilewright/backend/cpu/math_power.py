"""``power``: x**y with the special cases of IEEE 754's pow, without branches.

float32 goes through float64. float64 takes the logarithm as a sum of two numbers with about 64
significant bits, because the exponential multiplies the relative error of its argument by the
argument. Imports ``math_arithmetic``, ``math_exponential`` and ``math_tables``.
"""

from __future__ import annotations

import math

from llvmlite import ir

from tilewright.backend.cpu import math_tables as tables
from tilewright.backend.cpu.math_arithmetic import Arithmetic
from tilewright.backend.cpu.math_exponential import (
    decompose,
    exponential,
    finite_logarithm,
)

Pair = tuple[ir.Value, ir.Value]


def _multiply_pairs(a: Arithmetic, x: Pair, y: Pair) -> Pair:
    product, lost = a.two_product(x[0], y[0])
    cross = a.multiply_add(x[0], y[1], a.multiply(x[1], y[0]))
    return product, a.add(lost, cross)


def _precise_logarithm(a: Arithmetic, x: ir.Value) -> Pair:
    """log(x) as a pair for positive finite x."""
    k, f = decompose(a, x)
    two = a.constant(2.0)
    denominator = a.add(f, two)
    denominator_low = a.subtract(f, a.subtract(denominator, two))
    ratio = a.divide(f, denominator)
    product, lost = a.two_product(ratio, denominator)
    missing = a.subtract(a.subtract(f, product), lost)
    missing = a.subtract(missing, a.multiply(ratio, denominator_low))
    s = (ratio, a.divide(missing, denominator))
    z = _multiply_pairs(a, s, s)
    tail = a.multiply(z[0], a.polynomial(z[0], tables.POWER_RATIO_DOUBLE))
    high, low = tables.TWO_THIRDS
    factor, factor_low = a.two_sum(a.constant(high), tail)
    cubic = _multiply_pairs(
        a, _multiply_pairs(a, s, z), (factor, a.add(factor_low, a.constant(low)))
    )
    log2_high, log2_low = tables.LOG2_DOUBLE
    total, first = a.two_sum(a.scale(k, log2_high), a.add(s[0], s[0]))
    total, second = a.two_sum(total, cubic[0])
    rest = a.add(a.add(first, second), a.multiply_add(k, a.constant(log2_low), cubic[1]))
    return total, a.add(rest, a.add(s[1], s[1]))


def _magnitude_double(a: Arithmetic, x: ir.Value, y: ir.Value) -> ir.Value:
    """x**y for positive finite x; any y, also infinite."""
    # Beyond 2**80 every power except of one over- or underflows, and products stay finite.
    y = a.at_least(a.at_most(y, 2.0**80), -(2.0**80))
    high, low = _precise_logarithm(a, x)
    product, lost = a.two_product(y, high)
    lost = a.multiply_add(y, low, lost)
    lost = a.select(a.compare("<", a.absolute(product), 2000.0), lost, a.constant(0.0))
    return exponential(a, product, correction=lost)


def _magnitude_mixed(a: Arithmetic, x: ir.Value, y: ir.Value) -> ir.Value:
    y = a.at_least(a.at_most(y, 2.0**80), -(2.0**80))
    return exponential(a, a.multiply(y, finite_logarithm(a, x, True)), mixed=True)


def _power(a: Arithmetic, x: ir.Value, y: ir.Value, mixed: bool) -> ir.Value:
    build = a.builder
    size = a.absolute(x)
    zero, one = a.constant(0.0), a.constant(1.0)
    value = (_magnitude_mixed if mixed else _magnitude_double)(a, size, y)
    rising = a.compare(">", y, 0.0)
    is_zero, is_infinite = a.compare("==", size, 0.0), a.compare("==", size, math.inf)
    value = a.select(is_zero, a.select(rising, zero, a.infinity), value)
    value = a.select(is_infinite, a.select(rising, a.infinity, zero), value)
    whole = a.compare("==", a.truncate(y), y)
    half = a.scale(y, 0.5)
    odd = build.and_(whole, build.not_(a.compare("==", a.truncate(half), half)))
    value = a.copy_sign(value, a.select(odd, x, one))
    # A negative number has real powers only of whole exponents; an infinity or zero has all.
    ordinary = build.not_(build.or_(is_infinite, build.or_(is_zero, whole)))
    value = a.select(build.and_(a.compare("<", x, 0.0), ordinary), a.nan, value)
    value = a.select(build.fcmp_unordered("uno", x, y), a.nan, value)
    certain = build.or_(a.compare("==", y, 0.0), a.compare("==", x, 1.0))
    return a.select(certain, one, value)


def power(a: Arithmetic, x: ir.Value, y: ir.Value) -> ir.Value:
    """x**y."""
    if not a.single:
        return _power(a, x, y, False)
    return a.narrow(_power(a.wide(), a.widen(x), a.widen(y), True))
