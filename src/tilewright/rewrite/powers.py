"""Powers with fractional exponents as square roots, where no operand has a sign.

Roots keep what ``power`` makes of zeros, infinities and NaN only where an operand has no sign bit:
(-0.0)^0.5 is 0.0 and (-∞)^0.5 is ∞, which square roots are not. May import ``shape`` and ``ir``.
Start with :func:`fractional_power`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Broadcast, Map, Reduce, Reshape, Slice, Transpose, Window
from tilewright.rewrite.build import contents, filled, is_map, single_value
from tilewright.rewrite.facts import Facts

_DEEPEST = 32  # operands below each other that are looked at for a sign


class _Range(NamedTuple):
    """Exponents of two: operands above ``high`` are multiplied by 2^down first, those below ``low``
    by 2^up, so that neither they to the power 1.5 nor their roots leave the normal numbers."""

    low: int
    high: int
    down: int
    up: int


_RANGES = {DType.FLOAT32: _Range(-40, 60, -64, 96), DType.FLOAT64: _Range(-400, 600, -512, 768)}


def fractional_power(x: Node, facts: Facts) -> Node | None:
    """a ^ 0.5 → √a; a ^ 0.25 → √√a; a ^ 0.75 → √(a * √a), scaled so that nothing overflows; for
    -0.5 and -0.25 one over that; of floats without a sign, at most two units in the last place off.
    """
    if x.dtype not in _RANGES:
        return None
    a, exponent = x.inputs
    value = single_value(exponent)
    if value is None or float(value) not in (0.5, 0.25, 0.75, -0.5, -0.25):
        return None
    if not has_no_sign(a):
        return None
    match abs(float(value)):
        case 0.5:
            found = _root(a)
        case 0.25:
            found = _root(_root(a))
        case _:
            found = _three_quarters(a)
    return found if value > 0 else node(Map("divide"), filled(1.0, x), found)


def _root(a: Node) -> Node:
    return node(Map("square_root"), a)


def _three_quarters(a: Node) -> Node:
    """√(s*a * √(s*a)) * s^-0.75 with a power of two s that keeps the product in range."""
    limits = _RANGES[a.dtype]
    scale, back = _power_of_two(a, 0), _power_of_two(a, 0)
    cases = [(node(Map("less"), _power_of_two(a, limits.high), a), limits.down)]
    if not _is_at_least(a, 2.0**limits.low):
        cases.append((node(Map("less"), a, _power_of_two(a, limits.low)), limits.up))
    for condition, shift in cases:
        scale = node(Map("select"), condition, _power_of_two(a, shift), scale)
        back = node(Map("select"), condition, _power_of_two(a, -shift * 3 // 4), back)
    scaled = node(Map("multiply"), a, scale)
    product = node(Map("multiply"), scaled, _root(scaled))
    return node(Map("multiply"), _root(product), back)


def _power_of_two(like: Node, exponent: int) -> Node:
    return filled(2.0**exponent, like)


def _is_at_least(a: Node, bound: float) -> bool:
    """Whether ``a`` is the sum of something without a sign and a constant not below ``bound``."""
    if not is_map(a, "add"):
        return False
    for number, other in (a.inputs, a.inputs[::-1]):
        value = single_value(number)
        if value is not None and value >= bound and has_no_sign(other):
            return True
    return False


def has_no_sign(x: Node) -> bool:
    """Whether every element that is a number is surely 0.0 or more, and not -0.0."""
    return _has_no_sign(x, _DEEPEST)


def _has_no_sign(x: Node, depth: int) -> bool:
    if depth == 0 or not x.dtype.is_float:
        return False
    array = contents(x)
    if array is not None:
        return not bool(np.signbit(array.astype(np.float64)).any())
    match x.primitive:
        case Map():
            return _map_has_no_sign(x, depth - 1)
        case Window(kind="sum") | Reduce(kind="sum"):
            return _has_no_sign(x.inputs[0], depth - 1)
        case Reshape() | Transpose() | Broadcast() | Slice():
            return _has_no_sign(x.inputs[0], depth - 1)
        case _:
            return False


def _map_has_no_sign(x: Node, depth: int) -> bool:
    assert isinstance(x.primitive, Map)
    match x.primitive.function:
        case "absolute" | "exponential":
            return True
        case "multiply" if x.inputs[0] is x.inputs[1]:
            return True
        case "add" | "multiply" | "divide" | "square_root" | "minimum":
            return all(_has_no_sign(operand, depth) for operand in x.inputs)
        case "maximum":
            values = [single_value(operand) for operand in x.inputs]
            return any(value is not None and value > 0 for value in values)
        case _:
            return False
