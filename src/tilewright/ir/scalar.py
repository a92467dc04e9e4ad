"""The scalar functions that ``Map`` applies to every element.

One row per function: arity, how the result's element type follows from the operands', and the numpy
meaning. Any function of one byte has a row as well: its name says what it gives for each of them.
Backends have one emitter per row. Half-precision operands never reach a scalar function: fission
computes them in float32. Read ``SCALAR_FUNCTIONS``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType

Array = np.ndarray[Any, Any]

# The function that takes one more element into a reduction of each kind.
COMBINE = {"sum": "add", "product": "multiply", "maximum": "maximum", "minimum": "minimum"}

# What tile programs have beside the functions of one element: products of two, plus a third.
MULTIPLY_ADD = "multiply_add"  # rounded once or twice
MULTIPLY_ADD_PAIRS = "multiply_add_pairs"  # the sum of both products of words of two int16 each
HALF_WORD = 16  # bits of either number of such a word
SIMPLE_FUNCTIONS = frozenset(  # of one instruction for floats
    ("add", "subtract", "multiply", "divide", "maximum", "minimum", "negate")
)
DIVISIONS = ("divide", "remainder", "truncated_remainder")  # by 0, integers have no result


@dataclass(frozen=True)
class ScalarFunction:
    """One function: ``result`` is "same" (as the operands), "bool", or "select" (as the last two).

    ``cost`` is a rough number of machine operations per element, for plans.
    """

    name: str
    arity: int
    result: str
    meaning: Callable[..., Array]
    cost: int = 1


def _truncated_division(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return a / b
    quotient = a // b
    remainder = a - quotient * b
    return quotient + ((remainder != 0) & ((a < 0) != (b < 0))).astype(a.dtype)


def _python_remainder(a: Array, b: Array) -> Array:
    return np.mod(a, b)


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.power(a, b)
    power = np.power(a, np.maximum(b, 0).astype(a.dtype))
    inverse = np.where(np.abs(a) == 1, np.where(b % 2 == 0, a * a, a), 0)
    return np.where(b < 0, inverse, power).astype(a.dtype)


_erf_ufunc = np.frompyfunc(math.erf, 1, 1)


def _erf(a: Array) -> Array:
    return np.asarray(_erf_ufunc(a.astype(np.float64))).astype(a.dtype)


def _shift_left(a: Array, b: Array) -> Array:
    return np.where(b < a.dtype.itemsize * 8, np.left_shift(a, b), 0).astype(a.dtype)


def _shift_right(a: Array, b: Array) -> Array:
    return np.where(b < a.dtype.itemsize * 8, np.right_shift(a, b), 0).astype(a.dtype)


def _pair_products(a: Array, b: Array) -> Array:
    """Of words of 32 bits: the products of their lower and of their upper halves, with signs."""
    left, right = (np.asarray(x, np.int32) for x in (a, b))
    low = [np.right_shift(np.left_shift(x, HALF_WORD), HALF_WORD) for x in (left, right)]
    high = [np.right_shift(x, HALF_WORD) for x in (left, right)]
    return low[0] * low[1] + high[0] * high[1]


ADDING: dict[str, Callable[[Any, Any, Any], Any]] = {
    MULTIPLY_ADD: lambda a, b, c: a * b + c,
    MULTIPLY_ADD_PAIRS: lambda a, b, c: _pair_products(a, b) + c,
}

_TABLE = (
    ScalarFunction("negate", 1, "same", np.negative),
    ScalarFunction("absolute", 1, "same", np.abs),
    ScalarFunction("sign", 1, "same", np.sign),
    ScalarFunction("floor", 1, "same", np.floor),
    ScalarFunction("ceil", 1, "same", np.ceil),
    ScalarFunction("round_even", 1, "same", np.rint),
    ScalarFunction("truncate", 1, "same", np.trunc),
    ScalarFunction("square_root", 1, "same", np.sqrt, 6),
    ScalarFunction("exponential", 1, "same", np.exp, 14),
    ScalarFunction("decay", 1, "same", np.exp, 9),  # of what is not positive
    ScalarFunction("logarithm", 1, "same", np.log, 18),
    ScalarFunction("sine", 1, "same", np.sin, 20),
    ScalarFunction("cosine", 1, "same", np.cos, 20),
    ScalarFunction("tangent", 1, "same", np.tan, 40),
    ScalarFunction("arc_sine", 1, "same", np.arcsin, 25),
    ScalarFunction("arc_cosine", 1, "same", np.arccos, 25),
    ScalarFunction("arc_tangent", 1, "same", np.arctan, 25),
    ScalarFunction("hyperbolic_sine", 1, "same", np.sinh, 30),
    ScalarFunction("hyperbolic_cosine", 1, "same", np.cosh, 30),
    ScalarFunction("hyperbolic_tangent", 1, "same", np.tanh, 20),
    ScalarFunction("area_hyperbolic_sine", 1, "same", np.arcsinh, 40),
    ScalarFunction("area_hyperbolic_cosine", 1, "same", np.arccosh, 40),
    ScalarFunction("area_hyperbolic_tangent", 1, "same", np.arctanh, 40),
    ScalarFunction("error_function", 1, "same", _erf, 22),
    ScalarFunction("logical_not", 1, "bool", np.logical_not),
    ScalarFunction("bitwise_not", 1, "same", np.bitwise_not),
    ScalarFunction("is_nan", 1, "bool", np.isnan),
    ScalarFunction("is_infinite", 1, "bool", np.isinf),
    ScalarFunction("add", 2, "same", np.add),
    ScalarFunction("subtract", 2, "same", np.subtract),
    ScalarFunction("multiply", 2, "same", np.multiply),
    ScalarFunction("divide", 2, "same", _truncated_division, 5),
    ScalarFunction("remainder", 2, "same", _python_remainder, 12),
    ScalarFunction("truncated_remainder", 2, "same", np.fmod, 12),
    ScalarFunction("power", 2, "same", _power, 40),
    ScalarFunction("maximum", 2, "same", np.maximum),
    ScalarFunction("minimum", 2, "same", np.minimum),
    ScalarFunction("logical_and", 2, "bool", np.logical_and),
    ScalarFunction("logical_or", 2, "bool", np.logical_or),
    ScalarFunction("logical_xor", 2, "bool", np.logical_xor),
    ScalarFunction("bitwise_and", 2, "same", np.bitwise_and),
    ScalarFunction("bitwise_or", 2, "same", np.bitwise_or),
    ScalarFunction("bitwise_xor", 2, "same", np.bitwise_xor),
    ScalarFunction("shift_left", 2, "same", _shift_left),
    ScalarFunction("shift_right", 2, "same", _shift_right),
    ScalarFunction("equal", 2, "bool", np.equal),
    ScalarFunction("less", 2, "bool", np.less),
    ScalarFunction("less_equal", 2, "bool", np.less_equal),
    ScalarFunction("select", 3, "select", np.where),
)

_LOOKUP = "table_"  # begins the names of functions of one byte
_BYTE_VALUES = 256  # of 8 bits


def table_name(table: bytes) -> str:
    """The name of the function of one byte that gives ``table[byte]``."""
    assert len(table) == _BYTE_VALUES
    return _LOOKUP + table.hex()


@lru_cache(maxsize=256)
def table_of(function: str) -> bytes | None:
    """What a function of one byte gives for each; None for any other function."""
    if not function.startswith(_LOOKUP):
        return None
    try:
        table = bytes.fromhex(function.removeprefix(_LOOKUP))
    except ValueError:
        return None
    return table if len(table) == _BYTE_VALUES else None


def _looked_up(table: bytes, a: Array) -> Array:
    return np.frombuffer(table, np.uint8)[a.view(np.uint8)].view(a.dtype)


class _Functions(dict[str, ScalarFunction]):
    """Rows by name; a function of one byte, whose name says all of it, has one when asked for."""

    def __missing__(self, name: str) -> ScalarFunction:
        table = table_of(name)
        if table is None:
            raise KeyError(name)
        return ScalarFunction(name, 1, "same", partial(_looked_up, table))

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and table_of(name) is not None)


SCALAR_FUNCTIONS: dict[str, ScalarFunction] = _Functions((row.name, row) for row in _TABLE)


def result_type(function: ScalarFunction, operands: tuple[DType, ...]) -> DType:
    """The element type of ``function`` applied to operands of these types.

    Raises ``ValueError`` when their number or types do not fit.
    """
    if len(operands) != function.arity:
        raise ValueError(f"{function.name} takes {function.arity} operands, not {len(operands)}")
    values = operands[1:] if function.result == "select" else operands
    if function.result == "select" and operands[0] is not DType.BOOL:
        raise ValueError(f"select needs a bool condition, not {operands[0].value}")
    if any(v is not values[0] for v in values):
        names = ", ".join(v.value for v in values)
        raise ValueError(f"{function.name} needs operands of one type, not {names}")
    return DType.BOOL if function.result == "bool" else values[0]
