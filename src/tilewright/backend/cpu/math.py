"""What the scalar functions mean for float32 and float64: one row per function.

The elementary functions live in the sibling modules; the short ones are here. Two tables,
``UNARY`` and ``BINARY``, map the names of ``ir.scalar`` to functions of an :class:`Arithmetic` and
values of its width. Results are values of the same width, or i1 for predicates. Half precision
never arrives here: the emitter widens it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from llvmlite import ir

from tilewright.backend.cpu import math_exponential as exponential
from tilewright.backend.cpu import math_trigonometric as trigonometric
from tilewright.backend.cpu import vector_functions
from tilewright.backend.cpu.math_arithmetic import Arithmetic, call_intrinsic
from tilewright.backend.cpu.math_lookup import register_functions
from tilewright.backend.cpu.math_power import power
from tilewright.backend.cpu.math_remainder import truncated_remainder

Unary = Callable[[Arithmetic, ir.Value], ir.Value]


def _sign(a: Arithmetic, x: ir.Value) -> ir.Value:
    value = a.select(a.compare("==", x, 0.0), a.constant(0.0), x)
    value = a.select(a.compare("<", x, 0.0), a.constant(-1.0), value)
    return a.select(a.compare(">", x, 0.0), a.constant(1.0), value)


def _logical_not(a: Arithmetic, x: ir.Value) -> ir.Value:
    return a.compare("==", x, 0.0)


def _is_infinite(a: Arithmetic, x: ir.Value) -> ir.Value:
    return a.compare("==", a.absolute(x), math.inf)


def truth(a: Arithmetic, x: ir.Value) -> ir.Value:
    """Whether a number counts as true: all but zero do, a NaN as well."""
    return a.builder.fcmp_unordered("!=", x, a.constant(0.0))


def extremum(a: Arithmetic, name: str, x: ir.Value, y: ir.Value) -> ir.Value:
    """``name`` "maximum" or "minimum"; a NaN on either side gives a NaN."""
    # Either zero may win, which saves ordering them.
    kind = a.float_type
    return call_intrinsic(a.builder, name, kind, [kind], [x, y], ("nsz",))


def _maximum(a: Arithmetic, x: ir.Value, y: ir.Value) -> ir.Value:
    return extremum(a, "maximum", x, y)


def _minimum(a: Arithmetic, x: ir.Value, y: ir.Value) -> ir.Value:
    return extremum(a, "minimum", x, y)


def _remainder(a: Arithmetic, x: ir.Value, y: ir.Value) -> ir.Value:
    rest = truncated_remainder(a, x, y)
    apart = a.builder.xor(a.compare("<", rest, 0.0), a.compare("<", y, 0.0))
    moved = a.select(apart, a.add(rest, y), rest)
    zero = a.copy_sign(a.constant(0.0), y)
    return a.select(a.compare("==", rest, 0.0), zero, moved)


def _logical_and(a: Arithmetic, x: ir.Value, y: ir.Value) -> ir.Value:
    return a.builder.and_(truth(a, x), truth(a, y))


def _logical_or(a: Arithmetic, x: ir.Value, y: ir.Value) -> ir.Value:
    return a.builder.or_(truth(a, x), truth(a, y))


def _logical_xor(a: Arithmetic, x: ir.Value, y: ir.Value) -> ir.Value:
    return a.builder.xor(truth(a, x), truth(a, y))


def _equal(a: Arithmetic, x: ir.Value, y: ir.Value) -> ir.Value:
    return a.compare("==", x, y)


def _less(a: Arithmetic, x: ir.Value, y: ir.Value) -> ir.Value:
    return a.compare("<", x, y)


def _less_equal(a: Arithmetic, x: ir.Value, y: ir.Value) -> ir.Value:
    return a.compare("<=", x, y)


def _exponential(a: Arithmetic, x: ir.Value) -> ir.Value:
    return exponential.exponential(a, x)


def _unary(name: str, emit: Unary) -> Unary:
    """``emit``, or the function of whole registers that is faster where there is one."""

    def value(a: Arithmetic, x: ir.Value) -> ir.Value:
        body = register_functions(a.level).get(name) if a.single else None
        return emit(a, x) if body is None else vector_functions.call(a, name, body, x)

    return value


UNARY: dict[str, Unary] = {
    "negate": Arithmetic.negate,
    "absolute": Arithmetic.absolute,
    "sign": _sign,
    "floor": Arithmetic.floor,
    "ceil": Arithmetic.ceil,
    "round_even": Arithmetic.round_even,
    "truncate": Arithmetic.truncate,
    "square_root": Arithmetic.square_root,
    "exponential": _unary("exponential", _exponential),
    "decay": _unary("exponential", exponential.decay),
    "logarithm": _unary("logarithm", exponential.logarithm),
    "sine": _unary("sine", trigonometric.sine),
    "cosine": _unary("cosine", trigonometric.cosine),
    "tangent": trigonometric.tangent,
    "arc_sine": trigonometric.arc_sine,
    "arc_cosine": trigonometric.arc_cosine,
    "arc_tangent": trigonometric.arc_tangent,
    "hyperbolic_sine": exponential.hyperbolic_sine,
    "hyperbolic_cosine": exponential.hyperbolic_cosine,
    "hyperbolic_tangent": _unary("hyperbolic_tangent", exponential.hyperbolic_tangent),
    "area_hyperbolic_sine": exponential.area_hyperbolic_sine,
    "area_hyperbolic_cosine": exponential.area_hyperbolic_cosine,
    "area_hyperbolic_tangent": exponential.area_hyperbolic_tangent,
    "error_function": _unary("error_function", exponential.error_function),
    "logical_not": _logical_not,
    "is_nan": Arithmetic.is_nan,
    "is_infinite": _is_infinite,
}

BINARY: dict[str, Callable[[Arithmetic, ir.Value, ir.Value], ir.Value]] = {
    "add": Arithmetic.add,
    "subtract": Arithmetic.subtract,
    "multiply": Arithmetic.multiply,
    "divide": Arithmetic.divide,
    "remainder": _remainder,
    "truncated_remainder": truncated_remainder,
    "power": power,
    "maximum": _maximum,
    "minimum": _minimum,
    "logical_and": _logical_and,
    "logical_or": _logical_or,
    "logical_xor": _logical_xor,
    "equal": _equal,
    "less": _less,
    "less_equal": _less_equal,
}
