"""Scalar functions as ONNX operators. Start with :func:`write_map`."""

from __future__ import annotations

import numpy as np
import onnx

from tilewright.frontend.onnx.export_writer import OnnxWriter
from tilewright.ir.dtype import DType

_DIRECT = {
    "negate": "Neg",
    "absolute": "Abs",
    "sign": "Sign",
    "floor": "Floor",
    "ceil": "Ceil",
    "round_even": "Round",
    "square_root": "Sqrt",
    "exponential": "Exp",
    "logarithm": "Log",
    "sine": "Sin",
    "cosine": "Cos",
    "tangent": "Tan",
    "arc_sine": "Asin",
    "arc_cosine": "Acos",
    "arc_tangent": "Atan",
    "hyperbolic_sine": "Sinh",
    "hyperbolic_cosine": "Cosh",
    "hyperbolic_tangent": "Tanh",
    "area_hyperbolic_sine": "Asinh",
    "area_hyperbolic_cosine": "Acosh",
    "area_hyperbolic_tangent": "Atanh",
    "error_function": "Erf",
    "logical_not": "Not",
    "bitwise_not": "BitwiseNot",
    "is_nan": "IsNaN",
    "is_infinite": "IsInf",
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "power": "Pow",
    "maximum": "Max",
    "minimum": "Min",
    "logical_and": "And",
    "logical_or": "Or",
    "logical_xor": "Xor",
    "bitwise_and": "BitwiseAnd",
    "bitwise_or": "BitwiseOr",
    "bitwise_xor": "BitwiseXor",
    "equal": "Equal",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "select": "Where",
}
_UNCHANGED_INTEGERS = ("floor", "ceil", "round_even", "truncate")


def write_map(writer: OnnxWriter, function: str, x: list[str], dtype: DType) -> str:
    """The value of a scalar function; ``dtype`` is the type of its first operand."""
    if function in _UNCHANGED_INTEGERS and not dtype.is_float:
        return x[0]
    if function in _DIRECT:
        return writer.emit(_DIRECT[function], x)
    match function:
        case "truncate":
            cut = writer.emit("Floor", [writer.emit("Abs", x)])
            return writer.emit("Mul", [writer.emit("Sign", x), cut])
        case "truncated_remainder":
            return writer.emit("Mod", x, fmod=1)
        case "remainder":
            return _remainder(writer, x, dtype)
        case _:
            return _shift(writer, x, dtype, "LEFT" if function == "shift_left" else "RIGHT")


def _remainder(writer: OnnxWriter, x: list[str], dtype: DType) -> str:
    """The remainder with the sign of the divisor; ONNX has it for integers only."""
    if not dtype.is_float:
        return writer.emit("Mod", x)
    zero = writer.constant(np.array(0, dtype=dtype.numpy))
    cut = writer.emit("Mod", x, fmod=1)
    signs = [writer.emit("Less", [v, zero]) for v in (cut, x[1])]
    some = writer.emit("Not", [writer.emit("Equal", [cut, zero])])
    wrong = writer.emit("And", [some, writer.emit("Xor", signs)])
    return writer.emit("Where", [wrong, writer.emit("Add", [cut, x[1]]), cut])


def _shift(writer: OnnxWriter, x: list[str], dtype: DType, direction: str) -> str:
    """ONNX shifts unsigned integers only: signed ones are multiplied by powers of two."""
    if dtype.is_unsigned:
        return writer.emit("BitShift", x, direction=direction)
    width = writer.constant(np.array(dtype.bytes * 8, dtype=dtype.numpy))
    if direction == "LEFT":
        two = writer.constant(np.array(2, dtype=dtype.numpy))
        shifted = writer.emit("Mul", [x[0], writer.emit("Pow", [two, x[1]])])
        zero = writer.constant(np.array(0, dtype=dtype.numpy))
        return writer.emit("Where", [writer.emit("Less", [x[1], width]), shifted, zero])
    two = writer.constant(np.array(2, dtype=np.float64))
    wide = [writer.emit("Cast", [v], to=onnx.TensorProto.DOUBLE) for v in x]
    quotient = writer.emit("Div", [wide[0], writer.emit("Pow", [two, wide[1]])])
    return writer.emit("CastLike", [writer.emit("Floor", [quotient]), x[0]])
