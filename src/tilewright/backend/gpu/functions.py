"""The scalar functions of ``ir.scalar`` in Triton.

What Triton's language computes on a GPU and under its interpreter alike is used; functions that
only a library of one vendor has are left out. Start with :func:`applied`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.backend.gpu.kernel import TYPES
from tilewright.ir.dtype import DType

_ALL = "propagate_nan=tl.PropagateNan.ALL"

# Functions of the text itself, in the order in which they need each other.
HELPERS = {
    "floor_divide": '''

@triton.jit
def floor_divide(a, b):
    """The quotient rounded down, which // of the language does for equal signs only."""
    a += 0 * b  # a tensor, if it was a number
    quotient = a // b
    return quotient - tl.where((quotient * b != a) & ((a < 0) != (b < 0)), 1, 0)''',
    "floor_remainder": '''

@triton.jit
def floor_remainder(a, b):
    """What is left of a floor division; it has the sign of the divisor."""
    return a - floor_divide(a, b) * b''',
    "greatest": '''

@triton.jit
def greatest(rows):
    """The greatest element of every row, NaN if one is."""
    is_nan = tl.max((rows != rows).to(tl.int32), axis=1, keep_dims=True)
    return tl.where(is_nan > 0, float("nan"), tl.max(rows, axis=1, keep_dims=True))''',
    "least": '''

@triton.jit
def least(rows):
    """The least element of every row, NaN if one is."""
    is_nan = tl.max((rows != rows).to(tl.int32), axis=1, keep_dims=True)
    return tl.where(is_nan > 0, float("nan"), tl.min(rows, axis=1, keep_dims=True))''',
    "hyperbolic_tangent": '''

@triton.jit
def hyperbolic_tangent(x):
    """A polynomial near 0 (Cephes, tanhf.c), else from the exponential."""
    size = tl.abs(x)
    square = x * x
    near = -5.70498872745e-3 * square + 2.06390887954e-2
    near = near * square - 5.37397155531e-2
    near = near * square + 1.33314422036e-1
    near = near * square - 3.33332819422e-1
    far = 1.0 - 2.0 / (tl.exp(2.0 * size) + 1.0)
    return tl.where(size < 0.625, x + x * square * near, tl.where(x < 0.0, -far, far))''',
}

# Formats of functions that are written alike for all types that they are applied to.
_FORMATS = {
    "absolute": "tl.abs({0})",
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})",
    "exponential": "tl.exp({0})",
    "decay": "tl.exp({0})",
    "logarithm": "tl.log({0})",
    "sine": "tl.sin({0})",
    "cosine": "tl.cos({0})",
    "error_function": "tl.erf({0})",
    "logical_not": "{0} == 0",
    "bitwise_not": "~{0}",
    "is_nan": "{0} != {0}",
    "is_infinite": 'tl.abs({0}) == float("inf")',
    "add": "{0} + {1}",
    "subtract": "{0} - {1}",
    "multiply": "{0} * {1}",
    "logical_and": "{0} & {1}",
    "logical_or": "{0} | {1}",
    "logical_xor": "{0} ^ {1}",
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_xor": "{0} ^ {1}",
    "equal": "{0} == {1}",
    "less": "{0} < {1}",
    "less_equal": "{0} <= {1}",
    "select": "tl.where({0}, {1}, {2})",
}
# Functions of two elements that a reduction folds with, too; NaN wins.
_FLOATS = {
    "maximum": f"tl.maximum({{0}}, {{1}}, {_ALL})",
    "minimum": f"tl.minimum({{0}}, {{1}}, {_ALL})",
    "negate": "-{0}",
    "divide": "{0} / {1}",
    "square_root": "tl.sqrt({0})",
}
_INTEGERS = {
    "maximum": "tl.maximum({0}, {1})",
    "minimum": "tl.minimum({0}, {1})",
    "negate": "-{0}",
    "divide": "{0} // {1}",
}
_SINGLES = {
    "square_root": "tl.sqrt_rn({0})",
    "hyperbolic_tangent": "hyperbolic_tangent({0})",
}


def applied(function: str, operands: Sequence[str], dtype: DType) -> str | None:
    """Text of a scalar function of operands, the last one of ``dtype``; None if there is none."""
    found = _FORMATS.get(function)
    if dtype is DType.FLOAT32:
        found = _SINGLES.get(function, found)
    if found is None and dtype.is_float:
        found = _FLOATS.get(function)
    if found is None and dtype.is_integer:
        found = _INTEGERS.get(function)
    return None if found is None else found.format(*operands)


def literal(value: float | int | bool, dtype: DType) -> str:
    """Text of a number; one of float32 takes the type of what it meets."""
    if dtype.is_float:
        number = float(value)
        text = repr(number)
        if number != number or number in (float("inf"), float("-inf")):
            text = f'float("{number}")'
    else:
        text = str(int(value))
    return text if dtype is DType.FLOAT32 else f"tl.full((), {text}, {TYPES[dtype][0]})"


def identity(kind: str, dtype: DType) -> float | int:
    """What a reduction of a kind begins with."""
    if kind == "sum":
        return 0
    if dtype.is_float:
        return float("-inf") if kind == "maximum" else float("inf")
    bits = 8 * dtype.bytes - (0 if dtype.is_unsigned else 1)
    least, most = (0 if dtype.is_unsigned else -(1 << bits)), (1 << bits) - 1
    return least if kind == "maximum" else most
