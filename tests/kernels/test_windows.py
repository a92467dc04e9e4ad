"""Depthwise convolution and pooling of maps with their channels first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from support.graph_kit import F32, F64, Space, apply, check, data, fixed, kinds, mostly_slow
from support.window_cases import WindowCase
from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.backend.cpu.machine import LEVELS
from tilewright.backend.cpu.parameters import LARGEST_KEPT, parametrise
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Convolve, Window
from tilewright.ir.tile import Load, Store, TileBuffer, TileProgram
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import Expr, constant, symbol
from tilewright.tile.lower import lower_kernel
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.windows.window_lines import WindowLines

pytestmark = pytest.mark.sampled(16)

Array = np.ndarray[Any, Any]
SPATIAL = ("d", "h", "w")


@dataclass(frozen=True)
class Case(WindowCase):
    """One geometry; all but the kernel may differ from axis to axis of the last two."""

    def rows(self) -> list[dict[str, int]]:
        """No elements, fewer than the window, one more and less than a vector and than a block."""
        rank = len(self.kernel)
        extents = [(1, 1, 1), (2, 0, 5), (3, 5, 3), (1, 7, 17), (2, 15, 31), (3, 16, 33), (0, 9, 4)]
        extents += [(1, 18, 65), (2, 3, 515)]
        names = ("n", *SPATIAL[-rank:])
        return [dict(zip(names, (2, *e[-rank:]), strict=True)) for e in extents]


CASES = (
    Case("three", (3, 3), padding=1, after=1),
    Case("three-stride", (3, 3), stride=2, padding=1, after=1),
    Case("valid", (3, 2)),
    Case("two-stride", (2, 2), stride=2),
    Case("two-stride-volume", (2, 2, 2), stride=2),
    Case("three-apart", (3, 3), stride=3),
    Case("four-stride", (3, 4), stride=4),
    Case("third", (2, 4), stride=3, padding=2, after=1),
    Case("fourth", (5, 3), stride=4, padding=2, after=2),
    Case("far", (3, 3), stride=6, padding=1, after=3),
    Case("gaps", (1, 1), stride=2),
    Case("beyond", (2, 3), padding=5, after=6),
    Case("dilated", (3, 3), stride=2, dilation=3, padding=3, after=3),
    Case("seven", (7, 7), padding=3, after=3),
    Case("many-taps", (13, 9), stride=2, padding=4, after=4),
    Case("long-rows", (2, 70), padding=30, after=40),
    Case("line", (3,), stride=2, padding=1),
    Case("long-line", (90,), padding=44, after=45),
    Case("volume", (3, 2, 3), padding=1, after=1),
    Case("volume-stride", (2, 3, 2), stride=2, dilation=2, after=1),
)
QUICK = ("three-stride", "two-stride")


def maps(space: Space, case: Case, dtype: DType, channels: int) -> tuple[Node, tuple[Expr, ...]]:
    sizes = [space.dimension(name) for name in SPATIAL[-len(case.kernel) :]]
    return space.input("x", dtype, space.dimension("n"), channels, *sizes), case.sizes(sizes)


def pooling(space: Space, case: Case, kind: str, dtype: DType = F32) -> Node:
    x, sizes = maps(space, case, dtype, 3)
    rank = len(case.kernel)
    low = (constant(case.padding),) * rank
    made = Window(kind, case.kernel, (case.stride,) * rank, (case.dilation,) * rank, low, sizes)
    return node(made, x)


def depthwise(space: Space, case: Case, dtype: DType = F32, multiplier: int = 1) -> Node:
    x, sizes = maps(space, case, dtype, 3)
    rank = len(case.kernel)
    weights = fixed(data(dtype, (3 * multiplier, 1, *case.kernel), 3))
    low = (constant(case.padding),) * rank
    strides, dilations = (case.stride,) * rank, (case.dilation,) * rank
    return node(Convolve(strides, dilations, (1,) * rank, low, sizes, 3, False), x, weights)


def sprinkled(name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Normal numbers with a few NaNs, infinities and negative zeros among them."""
    made = data(dtype, shape, 3)
    flat = made.reshape(-1)
    for step, value in ((17, np.nan), (29, np.inf), (31, -np.inf), (5, -0.0)):
        flat[step - 1 :: step] = value
    return made


def taps(case: Case) -> int:
    return int(np.prod(case.kernel))


@pytest.mark.parametrize("kind", mostly_slow(["sum", "maximum", "minimum"], "maximum"))
@pytest.mark.parametrize("case", mostly_slow(CASES, *QUICK))
def test_pooling(case: Case, kind: str) -> None:
    space = Space()
    compiled = check(
        space.graph(pooling(space, case, kind)), case.rows(), length=taps(case), fill=sprinkled
    )
    assert kinds(compiled) == ["window"]


@pytest.mark.parametrize("name", ["two-stride", "two-stride-volume", "four-stride"])
def test_windows_side_by_side_are_read_in_place(name: str) -> None:
    (case,) = (case for case in CASES if case.name == name)
    space = Space()
    graph = space.graph(pooling(space, case, "maximum"))
    (kernel,) = plan_greedily(graph).kernels
    (variant,) = lower_kernel(kernel, graph.scope, register_tile(LEVELS["avx512"])).variants
    assert variant.steps[0].program.scratch == ()


def test_extremes_at_borders_take_a_line_twice() -> None:
    asked = {
        ("three", "maximum"): True,
        ("three-stride", "minimum"): True,
        ("three", "sum"): False,
        ("beyond", "maximum"): False,  # windows may lie beside the map
        ("dilated", "maximum"): False,  # the first line may be no line of the window
    }
    cases = {case.name: case for case in CASES}
    for (name, kind), is_held in asked.items():
        space = Space()
        graph = space.graph(pooling(space, cases[name], kind))
        (kernel,) = plan_greedily(graph).kernels
        assert WindowLines(kernel, Lowering(kernel, graph.scope)).is_held == is_held, name


@pytest.mark.parametrize("case", mostly_slow(CASES, *QUICK))
def test_depthwise_with_epilogue(case: Case) -> None:
    space = Space()
    made = depthwise(space, case)
    residual = space.input("residual", F32, *made.shape)
    graph = space.graph(apply("add", made, residual), made)
    compiled = check(graph, case.rows(), length=taps(case))
    assert kinds(compiled) == ["window"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8, DType.INT32, DType.FLOAT16, F64])
def test_other_types(dtype: DType) -> None:
    for case in CASES[:4]:
        space = Space()
        check(space.graph(pooling(space, case, "maximum", dtype)), case.rows())


@pytest.mark.slow
def test_depthwise_of_float64_and_several_results_per_channel() -> None:
    for dtype, multiplier in ((F64, 1), (F32, 2)):
        space = Space()
        graph = space.graph(depthwise(space, CASES[1], dtype, multiplier))
        check(graph, CASES[1].rows(), length=9)


def test_distances_in_scratch_of_one_layout_are_compiled_in() -> None:
    far = LARGEST_KEPT + 1
    place = symbol("_x") + far
    fixed_one = TileBuffer("s0", F32, True, constant(4 * far), True)
    other = TileBuffer("s1", F32, True, constant(4 * far))
    body = (Store(fixed_one, place, Load(other, place)),)
    program = TileProgram((), 0, (), body, (fixed_one, other), (), constant(1))
    general, _ = parametrise(program)
    (store,) = general.body
    assert isinstance(store, Store)
    assert store.offset is place
    assert isinstance(store.value, Load)
    assert store.value.offset is not place
