"""Steps that work element by element: arithmetic with broadcasting, comparisons, casts, Where."""

from __future__ import annotations

import numpy as np
from onnx import helper

from .builder import Builder, Rejected, Value

UNARY = (
    "Abs", "Neg", "Relu", "Tanh", "Sigmoid", "Erf", "Sin", "Cos", "Floor", "Ceil", "Round",
    "Sign", "Exp", "Softplus", "Elu", "Selu", "LeakyRelu", "HardSigmoid", "HardSwish", "Mish",
    "Celu", "ThresholdedRelu", "Softsign", "Shrink", "Identity", "Atan", "Sinh", "Asinh",
    "Sqrt", "Log", "Reciprocal", "Tan", "Gelu", "Swish",
)  # fmt: skip
SINCE = {"Gelu": 20, "Swish": 24}
ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Add", "Mul", "Pow", "Mod", "PRelu")
COMPARISONS = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
CASTS = (
    "float32", "float16", "float64", "int64", "int32", "int8", "uint8", "bool", "float32",
    "float32",
)  # fmt: skip


def unary(b: Builder) -> None:
    value = b.pick_float()
    operator = b.chance.choice(UNARY)
    if SINCE.get(operator, 0) > b.opset:
        raise Rejected("of a later opset")
    if operator in ("Sqrt", "Log", "Reciprocal") and b.flip(0.9):
        value = b.node("Abs", value)
        value = b.node("Add", value, b.constant(0.5, value.dtype.name))
    attributes: dict[str, object] = {}
    if operator == "Gelu":
        attributes["approximate"] = b.chance.choice(("none", "tanh"))
    if operator in ("Elu", "LeakyRelu", "HardSigmoid") and b.flip():
        attributes["alpha"] = b.chance.choice((0.1, 0.5, 2.0))
    b.node(operator, value, **attributes)


def integer_unary(b: Builder) -> None:
    value = b.pick(lambda v: v.is_integer)
    b.node(b.chance.choice(("Neg", "Abs", "Sign", "BitwiseNot", "Relu", "Identity")), value)


def arithmetic(b: Builder) -> None:
    value = b.pick(lambda v: v.is_float or v.is_integer)
    operator = b.chance.choice(ARITHMETIC)
    other = value if b.flip(0.06) else b.partner(value)
    if value.is_float:
        _float_arithmetic(b, operator, value, other)
    else:
        _integer_arithmetic(b, operator, value, other)


def _float_arithmetic(b: Builder, operator: str, value: Value, other: Value) -> None:
    if operator == "Mod":
        if any(a is not None and (a == 0).any() for a in other.arrays):
            raise Rejected("a remainder of a division by zero")
        b.node("Mod", value, other, fmod=1)
    elif operator == "Pow":
        exponent = b.chance.choice((2.0, 3.0, 0.5, -1.0, 1.0, 0.0, 1.5))
        if exponent not in (2.0, 3.0):
            value = b.node("Add", b.node("Abs", value), b.constant(0.5, value.dtype.name))
        b.node("Pow", value, b.constant(exponent, b.chance.choice((value.dtype.name, "float32"))))
    elif operator == "PRelu":
        if any(
            x is not None and y is not None and np.broadcast_shapes(x.shape, y.shape) != x.shape
            for x, y in zip(value.arrays, other.arrays, strict=True)
        ):
            raise Rejected("the slope broadcasts one way")
        b.node("PRelu", value, other)
    else:
        pair = (value, other) if b.flip() else (other, value)
        b.node(operator, *pair)


def _integer_arithmetic(b: Builder, operator: str, value: Value, other: Value) -> None:
    if operator in ("Div", "Mod"):
        if any(a is not None and (a == 0).any() for a in other.arrays):
            other = b.node("Max", other, b.constant(1, other.dtype.name))
        b.node(operator, value, other)
    elif operator in ("Pow", "PRelu"):
        b.node(b.chance.choice(("BitwiseAnd", "BitwiseOr", "BitwiseXor")), value, other)
    else:
        pair = (value, other) if b.flip() else (other, value)
        b.node(operator, *pair)


def shift(b: Builder) -> None:
    value = b.pick(lambda v: v.dtype.kind == "u")
    amount = b.constant(b.chance.randrange(0, 8), value.dtype.name)
    b.node("BitShift", value, amount, direction=b.chance.choice(("LEFT", "RIGHT")))


def variadic(b: Builder) -> None:
    value = b.pick_float()
    others = [b.partner(value) for _ in range(b.chance.choice((1, 2)))]
    b.node(b.chance.choice(("Sum", "Mean", "Max", "Min")), value, *others)


def compare(b: Builder) -> None:
    value = b.pick(lambda v: v.is_float or v.is_integer)
    b.node(b.chance.choice(COMPARISONS), value, b.partner(value))


def classify(b: Builder) -> None:
    b.node(b.chance.choice(("IsNaN", "IsInf")), b.pick_float())


def boolean(b: Builder) -> None:
    value = b.pick(lambda v: v.dtype.kind == "b")
    if b.flip(0.3):
        b.node("Not", value)
    else:
        b.node(b.chance.choice(("And", "Or", "Xor")), value, b.partner(value))


def where(b: Builder) -> None:
    if b.flip(0.3):
        value = b.pick(lambda v: v.is_float or v.is_integer)
        condition = b.node(b.chance.choice(COMPARISONS), value, b.partner(value))
    else:
        condition = b.pick(lambda v: v.dtype.kind == "b")
    value = b.partner(condition, b.chance.choice(("float32", "float32", "int64")))
    other = b.partner(value)
    pair = (value, other) if b.flip() else (other, value)
    b.node("Where", condition, *pair)


def cast(b: Builder) -> None:
    value = b.pick()
    to = np.dtype(b.chance.choice(CASTS))
    if to == value.dtype:
        raise Rejected("that type already")
    if to.kind in "iu":
        _check_range(value, to)
    if b.flip(0.1):
        b.node("CastLike", value, b.constant(0, to.name))
    else:
        b.node("Cast", value, to=_onnx_type(to))


def _check_range(value: Value, to: np.dtype) -> None:
    """A float beyond the integers of a type may become anything; integers wrap."""
    limits = np.iinfo(to)
    for array in value.arrays:
        if array is None or array.dtype.kind != "f":
            continue
        if not np.isfinite(array).all():
            raise Rejected("no integer")
        if array.size and (array.min() <= limits.min - 1 or array.max() >= limits.max):
            raise Rejected("outside the range of the type")


def clip(b: Builder) -> None:
    value = b.pick(lambda v: v.is_float or v.dtype == np.int64)
    low = b.constant(b.chance.choice((-1, 0)), value.dtype.name)
    high = b.constant(b.chance.choice((1, 3)), value.dtype.name)
    choice = b.chance.randrange(3)
    b.node("Clip", value, None if choice == 1 else low, None if choice == 2 else high)


def _onnx_type(dtype: np.dtype) -> int:
    return helper.np_dtype_to_tensor_dtype(dtype)


STEPS = {
    unary: 10,
    integer_unary: 2,
    arithmetic: 16,
    shift: 1,
    variadic: 2,
    compare: 3,
    classify: 1,
    boolean: 2,
    where: 4,
    cast: 5,
    clip: 2,
}
