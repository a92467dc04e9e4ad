"""Functions of one byte, which code looks up, at every length and for every byte."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from support.graph_kit import F32, Array, Space, apply, check, scalar
from tilewright.backend.cpu.machine import host_levels
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Cast, Concat

INT8, UINT8 = DType.INT8, DType.UINT8
LENGTHS = (0, 1, 7, 31, 32, 33, 63, 64, 65, 127, 128, 129, 257, 997, 4097)
LEVELS = [level.name for level in host_levels() if level.is_usual and not level.dots]


def sigmoid(x: Node) -> Node:
    power = apply("exponential", apply("negate", x))
    return apply("divide", scalar(1.0), apply("add", power, scalar(1.0)))


FUNCTIONS: dict[str, Callable[[Node], Node]] = {
    "tangent": lambda x: apply("hyperbolic_tangent", x),
    "sigmoid": sigmoid,
    "product": lambda x: apply("multiply", x, sigmoid(x)),
    "error": lambda x: apply("error_function", x),
}


def dequantised(x: Node, scale: float, zero: float) -> Node:
    return apply("multiply", apply("subtract", node(Cast(F32), x), scalar(zero)), scalar(scale))


def quantised(x: Node, dtype: DType, scale: float, zero: float) -> Node:
    limits = np.iinfo(dtype.value)
    whole = apply("add", apply("round_even", apply("divide", x, scalar(scale))), scalar(zero))
    held = apply("maximum", whole, scalar(float(limits.min)))
    return node(Cast(dtype), apply("minimum", held, scalar(float(limits.max))))


def every_byte(name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
    count = int(np.prod(shape))
    return (np.arange(count) * 37 % 256).astype(np.uint8).view(dtype.numpy).reshape(shape)


@pytest.mark.parametrize("dtypes", [(UINT8, UINT8), (INT8, UINT8), (UINT8, INT8)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_a_byte(name: str, dtypes: tuple[DType, DType]) -> None:
    space = Space()
    x = space.input("x", dtypes[0], space.dimension("n"))
    made = FUNCTIONS[name](dequantised(x, 0.031, 100.0 if dtypes[0] is UINT8 else -3.0))
    graph = space.graph(quantised(made, dtypes[1], 0.0117, 7.0))
    check(graph, [{"n": n} for n in LENGTHS], fill=every_byte, levels=LEVELS)


def test_rows_parts_and_another_operand() -> None:
    """Parts of a concatenation with scales of their own, and bytes in a larger value."""
    space = Space()
    rows, a, b = space.dimensions("rows a b")
    x, y = space.input("x", INT8, rows, a), space.input("y", INT8, rows, b)
    parts = [
        quantised(sigmoid(dequantised(part, scale, 3.0)), INT8, 0.0079, -9.0)
        for part, scale in ((x, 0.031), (y, 0.057))
    ]
    most = apply("maximum", parts[0], x)
    cases = [{"rows": r, "a": n, "b": m} for r, n, m in ((3, 5, 70), (2, 64, 0), (5, 129, 33))]
    check(space.graph(node(Concat(1), *parts), most), cases, fill=every_byte, levels=LEVELS)
