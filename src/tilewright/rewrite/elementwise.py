"""Rules of Map and Cast that hold element by element, bit by bit unless the formula says otherwise.

Signed zeros and NaN are kept: x + 0.0 turns -0.0 into 0.0 and so stays, x + -0.0 goes. May import
``shape`` and ``ir``. Start with :func:`neutral_operand`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Cast, Map
from tilewright.rewrite.build import filled, function_of, is_map, is_number, single_value
from tilewright.rewrite.facts import Facts
from tilewright.rewrite.parts import element
from tilewright.shape import Truth

IDEMPOTENT = (
    "maximum", "minimum", "logical_and", "logical_or", "bitwise_and", "bitwise_or"
)  # fmt: skip
INVOLUTIONS = ("negate", "logical_not", "bitwise_not")
MANTISSA = {DType.FLOAT16: 11, DType.BFLOAT16: 8, DType.FLOAT32: 24, DType.FLOAT64: 53}


def cast_to_own_type(x: Node, facts: Facts) -> Node | None:
    """Cast(a, type of a) → a."""
    return x.inputs[0] if x.dtype is x.inputs[0].dtype else None


def cast_of_lossless_cast(x: Node, facts: Facts) -> Node | None:
    """Cast(Cast(a, wider), t) → Cast(a, t), the inner one keeping every value.

    From half precision only the way back is dropped: kernels convert those to float32 only.
    """
    operand = x.inputs[0]
    if not isinstance(operand.primitive, Cast):
        return None
    source = operand.inputs[0]
    if not _keeps_values(source.dtype, operand.dtype):
        return None
    if x.dtype is source.dtype:
        return source
    return None if source.dtype.is_half else node(Cast(x.dtype), source)


def _keeps_values(source: DType, target: DType) -> bool:
    """Whether every value of one native type is one of the other."""
    if source is target or not (source.is_native and target.is_native):
        return source is target
    if source is DType.BOOL:
        return True
    if source.is_integer:
        bits = source.bytes * 8 - int(source.is_signed)
        if target.is_float:
            return bits <= MANTISSA[target] and target is not DType.FLOAT16
        fits = bits <= target.bytes * 8 - int(target.is_signed)
        return target.is_integer and fits and (target.is_signed or not source.is_signed)
    widens = target in (DType.FLOAT32, DType.FLOAT64) and source is not DType.FLOAT64
    return source.is_float and widens and MANTISSA[target] >= MANTISSA[source]


def neutral_operand(x: Node, facts: Facts) -> Node | None:
    """a * 1, a / 1, a - 0, a + 0 (of floats: a + -0.0), a ^ 1 → a."""
    function = function_of(x)
    a, b = x.inputs
    if _is_neutral(function, b):
        return a
    return b if function in ("multiply", "add") and _is_neutral(function, a) else None


def _is_neutral(function: str, operand: Node) -> bool:
    value = single_value(operand)
    if value is None:
        return False
    if function in ("multiply", "divide", "power"):
        return bool(value == 1)
    if not operand.dtype.is_float:
        return bool(value == 0)
    return bool(value == 0) and bool(np.signbit(value)) == (function == "add")


def twice_the_same(x: Node, facts: Facts) -> Node | None:
    """maximum(a, a), and(a, a) … → a; select(c, a, a) → a."""
    if is_map(x, "select") and x.inputs[1] is x.inputs[2]:
        return x.inputs[1]
    return x.inputs[0] if not is_map(x, "select") and x.inputs[0] is x.inputs[1] else None


def involution(x: Node, facts: Facts) -> Node | None:
    """-(-a), not not a → a."""
    operand = x.inputs[0]
    return operand.inputs[0] if operand.primitive == x.primitive else None


def select_by_known(x: Node, facts: Facts) -> Node | None:
    """select(true, a, b) → a; select(false, a, b) → b; select(not c, a, b) → select(c, b, a)."""
    condition, a, b = x.inputs
    value = single_value(condition)
    if value is not None:
        return a if value else b
    if is_map(condition, "logical_not"):
        return node(x.primitive, condition.inputs[0], b, a)
    return None


def logic_with_known(x: Node, facts: Facts) -> Node | None:
    """and(a, true), or(a, false), xor(a, false) → a; and(a, false) → false; or(a, true) → true."""
    if x.inputs[0].dtype is not DType.BOOL:
        return None
    function = function_of(x)
    for known, other in (x.inputs, x.inputs[::-1]):
        value = single_value(known)
        if value is None:
            continue
        if bool(value) == (function == "logical_and"):
            return other
        if function == "logical_xor":
            return node(Map("logical_not"), other)
        return filled(bool(value), x)
    return None


def small_power(x: Node, facts: Facts) -> Node | None:
    """a ^ 2 → a * a, a ^ 3 → a * a * a, a ^ -1 → 1 / a, a ^ -2 → (1 / a) * (1 / a), of floats.

    The cube and the last one are rounded once more; the square of a would leave the normal numbers
    where its reciprocal does not.
    """
    if not x.dtype.is_float:
        return None
    a, exponent = x.inputs
    value = single_value(exponent)
    if value is None or value not in (-2, -1, 2, 3):
        return None
    base = a if value > 0 else node(Map("divide"), filled(1.0, x), a)
    if value == -1:
        return base
    square = node(Map("multiply"), base, base)
    return node(Map("multiply"), square, base) if value == 3 else square


def division_by_power_of_two(x: Node, facts: Facts) -> Node | None:
    """a / 2^k → a * 2^-k, of floats, both powers being normal numbers."""
    if not x.dtype.is_float:
        return None
    value = single_value(x.inputs[1])
    if value is None or not is_power_of_two(value, x.dtype):
        return None
    reciprocal = filled(1.0 / float(value), x.inputs[1])
    return node(Map("multiply"), x.inputs[0], reciprocal)


def scaled_quotient(x: Node, facts: Facts) -> Node | None:
    """a / c * d → a * (d / c), of floats and constants c and d: as many roundings, no division."""
    if not is_map(x.inputs[0], "divide") or not x.dtype.is_float:
        return None
    quotient, factor = x.inputs
    c, d = single_value(quotient.inputs[1]), single_value(factor)
    if c is None or d is None or not float(c) or x.dtype not in (DType.FLOAT32, DType.FLOAT64):
        return None
    ratio = abs(float(d) / float(c))
    limits = np.finfo(np.float32 if x.dtype is DType.FLOAT32 else np.float64)
    if not float(limits.tiny) <= ratio <= float(limits.max):
        return None
    return node(Map("multiply"), quotient.inputs[0], filled(float(d) / float(c), factor))


def is_power_of_two(value: Any, dtype: DType) -> bool:
    """Whether a float is ± a power of two whose reciprocal is a normal number of the type too."""
    number = float(value)
    if number == 0 or not math.isfinite(number) or abs(math.frexp(number)[0]) != 0.5:
        return False
    exponent = math.frexp(number)[1] - 1
    limit = {DType.FLOAT16: 14, DType.FLOAT64: 1022}.get(dtype, 126)
    return abs(exponent) <= limit


def comparison_with_itself(x: Node, facts: Facts) -> Node | None:
    """a < a → false; a = a, a ≤ a → true, of integers (NaN differs from itself)."""
    if x.inputs[0] is not x.inputs[1]:
        return None
    if is_map(x, "less"):
        return filled(False, x)
    return None if x.inputs[0].dtype.is_float else filled(True, x)


def comparison_of_positions(x: Node, facts: Facts) -> Node | None:
    """Comparison of positions and sizes → true or false, where the scope proves it everywhere."""
    if x.inputs[0].dtype is not DType.INT64:
        return None
    if any(is_number(size, 0) for size in x.shape):
        return None
    index = tuple(facts.position(axis, size) for axis, size in enumerate(x.shape))
    a, b = (element(i, index, facts) for i in x.inputs)
    if a is None or b is None:
        return None
    scope = facts.indexed
    ask = {"equal": scope.is_equal, "less": scope.is_less, "less_equal": scope.is_less_equal}
    truth = ask[function_of(x)](a, b)
    return None if truth is Truth.UNKNOWN else filled(truth is Truth.YES, x)
