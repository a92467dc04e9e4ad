"""Loops along rows of as many elements as vectors have, one more, one less and several times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.graph_kit import BOOL, F32, F64, Space, apply, check, data, mostly_slow
from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.backend.cpu.machine import LEVELS
from tilewright.backend.cpu.parameters import parametrise
from tilewright.backend.cpu.running import running_step
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Broadcast, Cast, Reduce, Scan, Slice
from tilewright.ir.tile import Loop
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import constant
from tilewright.tile.lower import lower_kernel

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.sampled(8)

KINDS = ("sum", "product", "maximum", "minimum")
LENGTHS = (0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 80, 127, 130, 195)
TYPES = (F32, F64, DType.FLOAT16, DType.INT32, DType.INT64, DType.UINT8, BOOL)


def moderate(name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Values near 1, whose products stay in range."""
    generator = np.random.default_rng(sum(shape))
    if dtype is BOOL:
        return generator.random(shape) < 0.5
    if dtype.is_float:
        return generator.uniform(0.9, 1.1, shape).astype(dtype.numpy)
    return generator.integers(1, 3, shape).astype(dtype.numpy)


@pytest.mark.parametrize("dtype", mostly_slow(TYPES, "float32", "uint8"))
def test_rows_of_every_type(dtype: DType) -> None:
    space = Space()
    x = space.input("x", dtype, *space.dimensions("a b"))
    kinds = [k for k in KINDS if dtype is not BOOL or k in ("maximum", "minimum")]
    outputs = [node(Reduce(kind, (1,)), x) for kind in kinds]
    cases = [{"a": 3, "b": length} for length in LENGTHS]
    check(space.graph(*outputs), cases, length=200, fill=moderate)


@pytest.mark.parametrize("kind", ["maximum", "minimum", "sum"])
@pytest.mark.parametrize("dtype", [F32, F64], ids=lambda d: d.value)
def test_what_is_no_number_shows_from_every_place(kind: str, dtype: DType) -> None:
    def fill(name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
        made = data(dtype, shape)
        rows, columns = shape
        for row in range(min(rows, columns)):
            made[row, row] = np.nan
        return made

    space = Space()
    x = space.input("x", dtype, *space.dimensions("a b"))
    cases = [{"a": length + 1, "b": length} for length in (1, 16, 21, 65, 100)]
    check(space.graph(node(Reduce(kind, (1,)), x)), cases, length=100, fill=fill)


def test_sweeps_that_write_and_reduce_together() -> None:
    """A softmax, and a sum of squares of another type than what it is a sum of."""
    space = Space()
    a, b = space.dimensions("a b")
    x, bytes_ = space.input("x", F32, a, b), space.input("bytes", DType.UINT8, a, b)

    def whole(row: Any) -> Any:
        return node(Broadcast((a, b), (0,)), row)

    shifted = apply("exponential", apply("subtract", x, whole(node(Reduce("maximum", (1,)), x))))
    softmax = apply("divide", shifted, whole(node(Reduce("sum", (1,)), shifted)))
    wide = node(Cast(F64), bytes_)
    squares = node(Reduce("sum", (1,)), apply("multiply", wide, wide))
    cases = [{"a": 3, "b": length} for length in LENGTHS]
    check(space.graph(softmax, squares), cases, length=200)


@pytest.mark.parametrize("dtype", [F32, F64, DType.UINT8, BOOL], ids=lambda d: d.value)
def test_elements_some_apart_are_read_within_their_row(dtype: DType) -> None:
    """With what a stride leaves out at the end of a row, where no memory may follow."""
    space = Space()
    a, b = space.dimensions("a b")
    one = constant(1)
    outputs: list[Node] = []
    for step in (2, 3, 4, 5):
        x = space.input(f"x{step}", dtype, a, (b - 1) * step + 1)
        outputs.append(node(Slice((constant(0),) * 2, (a, b), (one, constant(step))), x))
    cases = [{"a": a, "b": b} for b in LENGTHS if b for a in (1, 3)]
    check(space.graph(*outputs), cases, fill=moderate)


@pytest.mark.parametrize("dtype", mostly_slow([F32, F64, DType.INT8, DType.FLOAT16], "float32"))
@pytest.mark.parametrize("columns", [None, 1, 3, 7, 9, 15, 31, 65], ids=str)
def test_rests_of_elementwise_rows(dtype: DType, columns: int | None) -> None:
    """Heavy and light values of parts of rows, which do not lie side by side; also with a mask."""
    space = Space()
    a, b = space.dimensions("a b")
    size = (a, b if columns is None else constant(columns))
    x = space.input("x", dtype, a, size[1] + 2)
    part = node(Slice((constant(0), constant(1)), size, (constant(1),) * 2), x)
    wide = part if dtype.is_float else node(Cast(F32), part)
    heavy = [apply(f, wide) for f in ("exponential", "error_function")]
    outputs = [*heavy, apply("power", apply("absolute", wide), wide), apply("maximum", wide, wide)]
    outputs += [apply("less", part, apply("negate", part)), apply("add", part, part)]
    lengths = LENGTHS if columns is None else (columns,)
    check(space.graph(*outputs), [{"a": 3, "b": length} for length in lengths], fill=moderate)


def test_a_running_sum_downwards_is_seen_in_the_code() -> None:
    """Of a row whose length is a constant that becomes a parameter, as of one that is a size."""
    for columns in (1023, None):
        space = Space()
        a, b = space.dimensions("a b")
        x = space.input("x", F32, a, b if columns is None else columns)
        graph = space.graph(node(Scan("sum", 1, True, True), x))
        assert _runs(graph), columns


def _runs(graph: Graph) -> bool:
    (kernel,) = plan_greedily(graph).kernels
    lowered = lower_kernel(kernel, graph.scope, register_tile(LEVELS["avx512"]))
    general, _ = parametrise(lowered.variants[0].steps[0].program)
    loops = [s for s in general.body if isinstance(s, Loop)]
    found = [step for loop in loops if (step := running_step(loop)) is not None]
    return any(step.descending for step in found)
