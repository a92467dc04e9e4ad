"""Products whose operands hold several elements in a word: bfloat16, and bytes summed exactly."""

from __future__ import annotations

import numpy as np
import pytest

from support.graph_kit import (
    BOTH_LEVELS,
    F32,
    WIDE,
    Space,
    apply,
    check,
    data,
    fixed,
    mostly_slow,
    scalar,
)
from tilewright.backend.cpu.generate import CodeGenerator
from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.backend.cpu.machine import LEVELS, assembly, host_level
from tilewright.backend.cpu.shared import KernelModule, shared_module
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Cast, Contract, Convolve, Map
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import constant
from tilewright.tile.lower import lower_kernel

pytestmark = pytest.mark.sampled(8)

BF16, U8, S8, I32 = DType.BFLOAT16, DType.UINT8, DType.INT8, DType.INT32
ROWS = (0, 1, 2, 3, 4, 5, 7, 8, 9, 33, 97)
# Products of bytes have an instruction for each width, which wide vectors on AVX2 lack.
# On a processor that has the instructions, the level that uses them as well.
LEVELS_TESTED = {
    kind: tuple(dict.fromkeys((*BOTH_LEVELS, host_level(kind.value).name, *others)))
    for kind, others in ((BF16, (WIDE,)), (U8, ()))
}


def product(left: DType, depth: int, columns: int, transposed: bool = False) -> Graph:
    """Rows of ``depth`` elements by a constant, with a light epilogue."""
    space = Space()
    x = space.input("x", left, space.dimension("m"), depth)
    right, sums = (BF16, F32) if left is BF16 else (S8, I32)
    shape = (columns, depth) if transposed else (depth, columns)
    weights = fixed(data(right, shape, low=-128, high=127))
    made = node(Contract((), ((1, 1 if transposed else 0),), sums), x, weights)
    if sums is I32:
        made = node(Cast(F32), node(Map("add"), made, made))
    return space.graph(apply("maximum", made, scalar(0.0)))


@pytest.mark.slow
@pytest.mark.parametrize("left", [BF16, U8], ids=lambda dtype: dtype.value)
@pytest.mark.parametrize(
    "size", mostly_slow([(4, 1), (8, 16), (36, 17), (64, 65), (1204, 130)], "(8,16)")
)
def test_products_at_edges(left: DType, size: tuple[int, int]) -> None:
    depth, columns = size

    def fill(_: str, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
        return data(dtype, shape, low=0, high=255)

    cases = [{"m": m} for m in ROWS]
    graph = product(left, depth, columns, transposed=columns == 65)
    check(graph, cases, length=depth, fill=fill, levels=LEVELS_TESTED[left])


@pytest.mark.slow
@pytest.mark.parametrize("left", [BF16, U8], ids=lambda dtype: dtype.value)
@pytest.mark.parametrize(
    "shape",
    mostly_slow([(17, 32, 1, 1), (20, 24, 3, 1), (16, 36, 3, 2), (5, 400, 1, 2)], "(16,36,3,2)"),
)
def test_convolutions(left: DType, shape: tuple[int, int, int, int]) -> None:
    columns, channels, taps, stride = shape
    space = Space()
    batch, height = space.dimension("n"), space.dimension("h", low=taps)
    x = space.input("x", left, batch, height, 9, channels)
    right, sums = (BF16, F32) if left is BF16 else (S8, I32)
    weights = fixed(data(right, (columns, channels, taps, taps), low=-128, high=127))
    low = taps // 2 if left is BF16 else 0
    sizes = tuple((s + 2 * low - taps) // stride + 1 for s in (height, constant(9)))
    primitive = Convolve(
        (stride,) * 2, (1, 1), (1, 1), (constant(low),) * 2, sizes, 1, channels_last=True, sums=sums
    )
    graph = space.graph(apply("maximum", node(primitive, x, weights), scalar(0, sums)))
    cases = [{"n": n, "h": h} for n, h in ((0, 5), (1, 3), (1, 9), (3, 7))]

    def fill(_: str, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
        return data(dtype, shape, low=0, high=255)

    levels = LEVELS_TESTED[left]
    check(graph, cases, length=channels * taps * taps, fill=fill, levels=levels)


@pytest.mark.slow
def test_the_largest_bytes_do_not_saturate() -> None:
    space = Space()
    x = space.input("x", U8, space.dimension("m"), 64)
    weights = np.full((64, 40), -128, np.int8)
    weights[:, ::2] = 127
    graph = space.graph(node(Contract((), ((1, 0),), I32), x, fixed(weights)))
    check(
        graph,
        [{"m": 1}, {"m": 9}],
        fill=lambda _, dtype, shape: np.full(shape, 255, dtype.numpy),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("left", "level", "instruction"),
    [(BF16, "avx512-bf16", "vdpbf16ps"), (U8, "avx512-vnni", "vpdpbusd"), (U8, "avx2", "vpmaddwd")],
)
def test_instructions_for_such_products_are_used(left: DType, level: str, instruction: str) -> None:
    text = _assembly(product(left, 64, 64), level)
    assert text.count(instruction) >= 24


def _assembly(graph: Graph, level: str) -> str:
    plan = plan_greedily(graph)
    code = CodeGenerator(LEVELS[level])
    for kernel in plan.kernels:
        found = lower_kernel(kernel, graph.scope, register_tile(LEVELS[level]))
        for step in found.variants[0].steps:
            code.add(step.program)
    module = KernelModule("kernels")
    for unit in code.units.values():
        unit.write(module)
    tiles = [shared_module(shared) for shared in module.shared.values()]
    return "\n".join(assembly(part, LEVELS[level]) for part in (module, *tiles))


def test_operands_of_other_types_are_refused() -> None:
    space = Space()
    x: Node = space.input("x", BF16, 4, 4)
    with pytest.raises(ValueError, match="products of"):
        node(Contract((), ((1, 0),), I32), x, x)
