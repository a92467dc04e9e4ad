"""Elementwise kernels: every function and type, casts, broadcasts, and layout around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.graph_kit import (
    BOOL,
    BOTH_LEVELS,
    F32,
    F64,
    FLOATS,
    I64,
    Compiled,
    Space,
    apply,
    check,
    data,
    mostly_slow,
    scalar,
    spread,
)
from tilewright.backend.cpu.generate import CodeGenerator
from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.backend.cpu.machine import LEVELS, assembly
from tilewright.backend.cpu.shared import KernelModule
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, node
from tilewright.ir.primitives import (
    Broadcast,
    Cast,
    Concat,
    Dimension,
    Iota,
    Map,
    Pad,
    Reshape,
    Slice,
    Transpose,
)
from tilewright.ir.scalar import SCALAR_FUNCTIONS
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import ceil_div, constant
from tilewright.tile.lower import lower_kernel

pytestmark = pytest.mark.sampled(8)

Array = np.ndarray[Any, Any]
LENGTHS = [{"n": n} for n in (0, 1, 3, 31, 64, 97)]
MATRICES = [{"a": a, "b": b} for a, b in ((0, 3), (1, 1), (5, 1), (1, 7), (3, 17), (7, 131))]
NATIVE = [d for d in DType if d.is_native]
INTEGERS = [d for d in NATIVE if d.is_integer]


@pytest.mark.parametrize("dtype", mostly_slow(NATIVE, "int8"))
def test_arithmetic_of_every_type(dtype: DType) -> None:
    space = Space()
    (n,) = space.dimensions("n")
    x, y = space.input("x", dtype, n), space.input("y", dtype, n)
    functions = ["maximum", "minimum", "equal", "less", "less_equal"]
    if dtype is BOOL:
        functions += ["logical_and", "logical_or", "logical_xor"]
    else:
        functions += ["add", "subtract", "multiply"]
    if dtype.is_integer:
        functions += ["bitwise_and", "bitwise_or", "bitwise_xor"]
    outputs = [apply(f, x, y) for f in functions]
    outputs.append(apply("select", apply("less", x, y), y, x))
    check(space.graph(*outputs), LENGTHS[:2] + LENGTHS[-1:])


@pytest.mark.parametrize("dtype", mostly_slow([F32, F64]))
def test_every_function_of_floats(dtype: DType) -> None:
    space = Space()
    (n,) = space.dimensions("n")
    x, y = space.input("x", dtype, n), space.input("y", dtype, n)
    outputs = []
    for row in SCALAR_FUNCTIONS.values():
        meaningless = row.name.startswith(("logical", "bitwise", "shift")) or row.name == "select"
        if meaningless:
            continue
        operands = (x, y)[: row.arity]
        if row.name == "power":
            operands = (apply("absolute", x), y)
        outputs.append(apply(row.name, *operands))
    # Domains are wider than most functions: NaN must appear in the same places.
    check(space.graph(*outputs), [{"n": 0}, {"n": 1}, {"n": 37}], length=16)


@pytest.mark.parametrize("dtype", mostly_slow(INTEGERS, "int32"))
def test_integer_division_and_shifts(dtype: DType) -> None:
    def fill(name: str, kind: DType, shape: tuple[int, ...]) -> Array:
        made = data(kind, shape, seed=len(name))
        return np.where(made == 0, 3, made).astype(kind.numpy) if name == "y" else made

    space = Space()
    (n,) = space.dimensions("n")
    x, y = space.input("x", dtype, n), space.input("y", dtype, n)
    functions = ["divide", "remainder", "truncated_remainder"]
    outputs = [apply(f, x, y) for f in functions]
    if dtype.is_unsigned:
        outputs += [apply("shift_left", x, y), apply("shift_right", x, y)]
    outputs.append(apply("divide", x, scalar(3, dtype)))
    check(space.graph(*outputs), LENGTHS, fill=fill)


@pytest.mark.parametrize("source", mostly_slow(NATIVE))
def test_casts(source: DType) -> None:
    space = Space()
    (n,) = space.dimensions("n")
    x = space.input("x", source, n)

    def fill(name: str, kind: DType, shape: tuple[int, ...]) -> Array:
        return np.abs(data(kind, shape)) if kind is not BOOL else data(kind, shape)

    # Numbers that every target holds: what lies outside of an integer type's range is undefined.
    targets = [t for t in NATIVE if t is not source]
    check(space.graph(*(node(Cast(t), x) for t in targets)), LENGTHS[1:4:2], fill=fill)


@pytest.mark.slow
def test_infinities_and_nans_pass_through() -> None:
    def fill(name: str, kind: DType, shape: tuple[int, ...]) -> Array:
        values = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 3e38, 1e-42]
        return np.resize(np.array(values, np.float32), shape)

    space = Space()
    (n,) = space.dimensions("n")
    x = space.input("x", F32, n)
    names = ("negate", "absolute", "sign", "floor", "exponential", "hyperbolic_tangent", "is_nan",
             "is_infinite", "square_root", "logarithm", "error_function")  # fmt: skip
    check(space.graph(*(apply(f, x) for f in names)), [{"n": 9}, {"n": 70}], fill=fill, length=16)


@pytest.mark.parametrize("dtype", mostly_slow(FLOATS, "float16", "float32"))
def test_broadcast_bias_and_activation(dtype: DType) -> None:
    space = Space()
    a, b = space.dimensions("a b")
    x, row = space.input("x", dtype, a, b), space.input("row", dtype, b)
    column = space.input("column", dtype, a)
    shifted = apply("add", x, row)
    scaled = apply("multiply", shifted, spread(column, (a, b), [0]))
    check(space.graph(apply("hyperbolic_tangent", scaled), scaled), MATRICES, length=8)


def test_broadcast_decided_at_run_time() -> None:
    space = Space()
    a, b, c = space.dimensions("a b c")
    x, y = space.input("x", F32, a, b), space.input("y", F32, c, b)
    wide = node(Broadcast((a, b), (0, 1)), y)
    cases = [{"a": 5, "b": 7, "c": 1}, {"a": 5, "b": 7, "c": 5}, {"a": 1, "b": 3, "c": 1},
             {"a": 0, "b": 3, "c": 1}]  # fmt: skip
    check(space.graph(apply("add", x, wide)), cases)


def test_scalars_and_sizes_as_values() -> None:
    space = Space()
    a, b = space.dimensions("a b")
    x = space.input("x", F32)
    space.carry(a, b)
    size = node(Cast(F32), node(Dimension(a * b + 1)))
    rows = node(Cast(F32), node(Iota((a, b), 0)))
    columns = node(Iota((a, b), 1))
    total = apply("add", rows, apply("multiply", size, x))
    check(space.graph(total, columns, apply("add", size, x)), MATRICES)


@pytest.mark.parametrize("permutation", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1)])
def test_transpose(permutation: tuple[int, ...]) -> None:
    space = Space()
    a, b, c = space.dimensions("a b c")
    x = space.input("x", F32, a, b, c)
    turned = node(Transpose(permutation), x)
    cases = [{"a": i, "b": j, "c": k} for i, j, k in ((0, 2, 3), (1, 1, 1), (2, 33, 5), (7, 3, 65))]
    check(space.graph(apply("negate", turned), apply("add", x, x)), cases)


@pytest.mark.parametrize("dtype", mostly_slow(NATIVE, "int8", "float16"))
def test_transposing_squares_of_every_type(dtype: DType) -> None:
    space = Space()
    a, b = space.dimensions("a b")
    graph = space.graph(node(Transpose((1, 0)), space.input("x", dtype, a, b)))
    # The last two have rows on lines, and the rows of the last result are pages apart.
    sizes = ((0, 3), (1, 1), (3, 4), (4, 4), (7, 8), (15, 17), (16, 16), (31, 33), (130, 70),
             (63, 64), (64, 64), (65, 63), (128, 127), (128, 131), (199, 263), (131, 96),
             (2048, 96))  # fmt: skip
    check(graph, [{"a": a, "b": b} for a, b in sizes])


def test_reshape_merges_and_splits() -> None:
    space = Space()
    a, b = space.dimensions("a b")
    x = space.input("x", F32, a, b, constant(12))
    heads = node(Reshape((a, b, constant(3), constant(4))), x)
    swapped = node(Transpose((0, 2, 1, 3)), heads)
    flat = node(Reshape((a * b * 12,)), swapped)
    merged = node(Reshape((a * b, constant(12))), x)
    check(space.graph(apply("negate", flat), apply("negate", merged), swapped), MATRICES)


def test_slices_with_steps_either_way() -> None:
    space = Space()
    a, b = space.dimension("a", 1), space.dimension("b", 4)
    x = space.input("x", I64, a, b)
    backward = node(Slice((a - 1, b - 1), (a, b), (constant(-1), constant(-1))), x)
    second = node(Slice((constant(0), constant(1)), (a, b // 2), (constant(1), constant(2))), x)
    every_third = node(
        Slice((constant(0), b - 1), (a, ceil_div(b, 3)), (constant(1), constant(-3))), x
    )
    cases = [{"a": i, "b": j} for i, j in ((1, 4), (3, 5), (2, 31), (5, 64))]
    check(space.graph(backward, second, apply("add", every_third, every_third)), cases)


def test_pad_of_computed_values() -> None:
    space = Space()
    a, b, p = space.dimensions("a b p")
    x = space.input("x", F32, a, b)
    space.carry(p)
    inner = apply("exponential", apply("add", x, x))
    padded = node(Pad((constant(1), p), (constant(2), constant(0))), inner, scalar(7.0))
    cases = [{"a": i, "b": j, "p": k} for i, j, k in ((0, 0, 0), (1, 1, 0), (3, 17, 2), (2, 64, 5))]
    check(space.graph(padded, apply("negate", padded)), cases, length=4)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_concat(axis: int) -> None:
    space = Space()
    sizes = space.dimensions("a b c")
    other = list(sizes)
    other[axis] = space.dimension("d")
    x, y = space.input("x", F32, *sizes), space.input("y", F32, *other)
    joined = node(Concat(axis), x, apply("negate", y), x)
    rows = ((0, 2, 3, 4), (1, 1, 1, 0), (2, 3, 5, 7), (3, 2, 33, 1))
    cases = [dict(zip("abcd", row, strict=True)) for row in rows]
    check(space.graph(joined, apply("add", joined, joined)), cases)


@pytest.mark.parametrize("axis", [0, 1])
def test_parts_in_memory_are_joined_as_runs(axis: int) -> None:
    """Longer than a piece of a task, as long, shorter, empty; one part twice."""
    space = Space()
    a, b = space.dimensions("a b")
    x, y = space.input("x", F32, a, b, constant(64)), space.input("y", F32, a, b, constant(64))
    joined = node(Concat(axis), x, y, node(Reshape((a, b, constant(64))), x))
    cases = [{"a": a, "b": b} for a, b in ((0, 2), (2, 0), (1, 1), (3, 21), (2, 64), (1, 65))]
    check(space.graph(joined), cases)


def test_chunks_of_long_rows() -> None:
    space = Space()
    a, b = space.dimensions("a b")
    x, y = space.input("x", F32, a, b), space.input("y", F32, b)
    total = apply("add", x, y)
    cases = [{"a": 2, "b": n} for n in (4095, 4096, 4097, 8193)] + [{"a": 5000, "b": 2}]
    check(space.graph(total), cases)


def test_select_by_position() -> None:
    """A causal mask: positions compared, not data."""
    space = Space()
    s, t = space.dimensions("s t")
    x = space.input("x", F32, s, t)
    seen = node(Map("less_equal"), node(Iota((s, t), 1)), node(Iota((s, t), 0)))
    masked = node(Map("select"), seen, x, spread(scalar(-1e9), (s, t)))
    check(space.graph(masked), [{"s": i, "t": j} for i, j in ((0, 0), (1, 1), (5, 5), (3, 40))])


@pytest.mark.parametrize("kind", [DType.UINT8, DType.INT8, DType.UINT16])
@pytest.mark.parametrize("inside", [True, False])
def test_limited_floats_become_integers_with_few_instructions(kind: DType, inside: bool) -> None:
    """Limits inside of the type spare the conversion's own; of a NaN the instruction makes 0."""
    limits = np.iinfo(kind.value)
    low, high = (limits.min, limits.max) if inside else (limits.min - 9, limits.max + 9)
    space = Space()
    x = space.input("x", F32, space.dimension("m"))
    limited = apply("minimum", apply("maximum", x, scalar(float(low))), scalar(float(high)))
    graph = space.graph(node(Cast(kind), limited))
    values = np.array([np.nan, np.inf, -np.inf, 0.9, -0.9, 1e9, low, high, 77.7] * 5, np.float32)
    want = np.nan_to_num(np.clip(values, limits.min, limits.max), nan=0.0).astype(kind.numpy)
    compiled = Compiled(graph, BOTH_LEVELS)
    for level in BOTH_LEVELS:
        got = compiled.guarded(level, {"x": values}, {"m": len(values)})
        np.testing.assert_array_equal(got["y0"], want, level)
    comparisons = {True: 0, False: 3}[inside]
    assert _vector_comparisons(graph) == comparisons


def _vector_comparisons(graph: Graph) -> int:
    """Comparisons of vectors in the one kernel of a graph, in LLVM's words."""
    return str(_module(graph, "avx2")).count("fcmp")


def _module(graph: Graph, level: str) -> KernelModule:
    """The code of the one kernel of a graph."""
    (kernel,) = plan_greedily(graph).kernels
    code = CodeGenerator(LEVELS[level])
    lowered = lower_kernel(kernel, graph.scope, register_tile(LEVELS[level]))
    code.add(lowered.variants[0].steps[0].program)
    module = KernelModule("kernels")
    for unit in code.units.values():
        unit.write(module)
    return module


def _part_of_rows(width: int) -> Graph:
    """max(x, 0) of the middle third of rows of three times ``width`` elements."""
    space = Space()
    n = space.dimension("n")
    x = space.input("x", F32, n, 3 * width)
    size = (n, constant(width))
    part = node(Slice((constant(0), constant(width)), size, (constant(1), constant(1))), x)
    return space.graph(apply("maximum", part, spread(scalar(0.0), size)))


def test_a_row_of_one_vector_is_one_vector() -> None:
    """Not single elements, as which LLVM would unroll it before it looks for vectors."""
    for level, width in (("avx512", 16), ("avx512", 12), ("avx2", 8), ("avx2", 16), ("avx2", 17)):
        text = assembly(_module(_part_of_rows(width), level), LEVELS[level])
        assert "vmaxps" in text
        assert text.count("vmaxss") < 8  # of rows that are left over
        assert "vscatter" not in text


@pytest.mark.parametrize("width", [1, 7, 8, 9, 12, 15, 16, 17, 24, 31, 33])
def test_rows_of_few_elements(width: int) -> None:
    check(_part_of_rows(width), [{"n": rows} for rows in (0, 1, 2, 17, 300)])
