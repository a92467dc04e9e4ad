"""Depthwise convolution and pooling of maps with their channels last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from support.graph_kit import F32, F64, Space, apply, check, data, fixed, kinds, mostly_slow, scalar
from support.window_cases import WindowCase
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Broadcast, Convolve, Transpose, Window
from tilewright.ir.tile import Apply, Literal, Value
from tilewright.shape import constant
from tilewright.tile.windows.shared_parts import combined_in_pairs

pytestmark = pytest.mark.sampled(8)

Array = np.ndarray[Any, Any]
SPATIAL = ("h", "w", "d")


@dataclass(frozen=True)
class Case(WindowCase):
    """One geometry; ``after`` is the padding behind the map, ``multiplier`` results per channel."""

    channels: int = 16
    multiplier: int = 1

    def rows(self) -> list[dict[str, int]]:
        """Maps without elements, smaller than the window, and of odd sizes."""
        rank = len(self.kernel)
        reach = max(k - 1 for k in self.kernel)
        extents = [(1, 1, 1), (0, 5, 2), (reach, reach, reach), (5, 0, 1), (7, 7, 7), (13, 11, 4)]
        extents += [(2, 23, 3), (9, 1, 2)]
        names = ("n", *SPATIAL[:rank])
        cases = [dict(zip(names, (2, *e), strict=False)) for e in extents]
        return [*cases, dict(zip(names, (0, 5, 5, 5), strict=False))]


DEPTHWISE = (
    Case("three", (3, 3), padding=1, after=1),
    Case("stride", (3, 3), stride=2, padding=1, after=1),
    Case("valid", (3, 3), channels=21),
    Case("uneven", (2, 4), channels=5, padding=1, after=2),
    Case("even", (2, 2), stride=2),
    Case("beyond", (3, 3), channels=9, padding=5, after=4),
    Case("dilated", (3, 3), channels=11, dilation=3, padding=3, after=3),
    Case("dilated-stride", (3, 2), stride=2, dilation=2, padding=2),
    Case("five", (5, 5), channels=19, padding=2, after=2),
    Case("seven-stride", (7, 7), channels=8, stride=2, padding=3, after=3),
    Case("long", (1, 11), channels=8, padding=5, after=5),
    Case("pointwise", (1, 1), channels=13),
    Case("line", (3,), channels=17, padding=1, after=1),
    Case("long-line", (12,), channels=10, stride=3, padding=9),
    Case("volume", (3, 2, 3), channels=9, padding=1, after=1),
    Case("volume-stride", (2, 2, 2), channels=16, stride=2),
    Case("many-channels", (3, 3), channels=547, padding=1, after=1),
    Case("twice", (3, 3), channels=10, padding=1, after=1, multiplier=2),
    Case("twice-five", (5, 1), channels=7, stride=2, padding=2, after=2, multiplier=2),
)


def depthwise(space: Space, case: Case, dtype: DType = F32, weights: Node | None = None) -> Node:
    sizes = [space.dimension(name) for name in SPATIAL[: len(case.kernel)]]
    x = space.input("x", dtype, space.dimension("n"), *sizes, case.channels)
    if weights is None:
        shape = (case.channels * case.multiplier, 1, *case.kernel)
        weights = fixed(data(dtype, shape, 3))
    rank = len(case.kernel)
    made = Convolve(
        (case.stride,) * rank, (case.dilation,) * rank, (1,) * rank,
        (constant(case.padding),) * rank, case.sizes(sizes), case.channels, True,
    )  # fmt: skip
    return node(made, x, weights)


def biased(made: Node) -> Node:
    bias = fixed(data(F32, (made.shape[-1].value,), 5))
    return apply("add", made, node(Broadcast(made.shape, (made.rank - 1,)), bias))


def clipped(made: Node) -> Node:
    return apply("minimum", apply("maximum", made, scalar(0.0)), scalar(6.0))


def taps(case: Case) -> int:
    return int(np.prod(case.kernel))


@pytest.mark.parametrize("case", mostly_slow(DEPTHWISE, "even", "five"))
def test_depthwise_with_bias_and_clamp(case: Case) -> None:
    space = Space()
    graph = space.graph(clipped(biased(depthwise(space, case))))
    compiled = check(graph, case.rows(), length=taps(case))
    assert kinds(compiled) == ["window"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["three", "five", "twice"])
def test_residual_and_several_results(name: str) -> None:
    case = next(c for c in DEPTHWISE if c.name == name)
    space = Space()
    made = depthwise(space, case)
    residual = space.input("residual", F32, *made.shape)
    total = apply("add", biased(made), residual)
    graph = space.graph(clipped(total), total, made)
    compiled = check(graph, case.rows(), length=taps(case))
    assert kinds(compiled) == ["window"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["three", "five"])
def test_depthwise_of_float64(name: str) -> None:
    case = next(c for c in DEPTHWISE if c.name == name)
    space = Space()
    check(space.graph(depthwise(space, case, F64)), case.rows(), length=taps(case))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["three", "five", "twice"])
def test_weights_known_only_at_run_time(name: str) -> None:
    case = next(c for c in DEPTHWISE if c.name == name)
    space = Space()
    weights = space.input("weights", F32, case.channels * case.multiplier, 1, *case.kernel)
    made = depthwise(space, case, weights=weights)
    check(space.graph(made), case.rows(), length=taps(case))


@pytest.mark.slow
def test_channels_of_unknown_number_are_pooled() -> None:
    space = Space()
    h, w, c = space.dimensions("h w c")
    x = space.input("x", F32, space.dimension("n"), h, w, c)
    made = Window("sum", (3, 3), (1, 1), (1, 1), (constant(1),) * 2, (h, w), 1)
    cases = [{"n": 1, "h": 4, "w": 7, "c": c} for c in (0, 1, 7, 16, 255, 256, 257, 523)]
    check(space.graph(node(made, x)), cases, length=9)


POOLING = (
    Case("three-stride", (3, 3), channels=19, stride=2, padding=1, after=1),
    Case("two-stride", (2, 2), channels=8, stride=2),
    Case("three", (3, 3), channels=8, padding=1, after=1),
    Case("ceiling", (3, 3), channels=9, stride=2, after=1),
    Case("beyond", (2, 3), channels=8, padding=4, after=4),
    Case("dilated", (3, 3), channels=9, dilation=2, padding=2, after=2),
    Case("line", (5,), channels=3, stride=2, padding=2),
    Case("large", (6, 9), channels=12, stride=2, padding=3, after=1),
    Case("volume", (2, 3, 2), channels=7, padding=1, after=1),
)


def pooling(space: Space, case: Case, kind: str, trailing: tuple[int, ...] = ()) -> Node:
    """A window over maps with ``trailing`` and the channels last."""
    sizes = [space.dimension(name) for name in SPATIAL[: len(case.kernel)]]
    kept = (*trailing, case.channels)
    x = space.input("x", F32, space.dimension("n"), *sizes, *kept)
    rank = len(case.kernel)
    made = Window(
        kind, case.kernel, (case.stride,) * rank, (case.dilation,) * rank,
        (constant(case.padding),) * rank, case.sizes(sizes), len(kept),
    )  # fmt: skip
    return node(made, x)


def sprinkled(name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Normal numbers with a few NaNs and infinities among them."""
    made = data(dtype, shape, 3)
    flat = made.reshape(-1)
    for step, value in ((17, np.nan), (29, np.inf), (31, -np.inf)):
        flat[step - 1 :: step] = value
    return made


@pytest.mark.parametrize("kind", mostly_slow(["sum", "maximum", "minimum"], "maximum"))
@pytest.mark.parametrize("case", mostly_slow(POOLING, "two-stride"))
def test_pooling(case: Case, kind: str) -> None:
    space = Space()
    graph = space.graph(pooling(space, case, kind))
    compiled = check(graph, case.rows(), length=taps(case), fill=sprinkled)
    assert kinds(compiled) == ["window"]


def test_what_neighbouring_windows_share_is_combined_once() -> None:
    """Four windows of 3x3 have six columns of two maxima, and six more along the row."""
    columns = [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]
    read = [Literal(float(number), F32) for number in range(6)]
    count = 0

    def added(value: Value | None, places: Sequence[int]) -> Value | None:
        nonlocal count
        for place in places:
            count += value is not None
            value = read[place] if value is None else Apply("maximum", (value, read[place]), F32)
        return value

    made = combined_in_pairs(columns, added, lambda value: value)
    assert len(made) == 4 and count == 6
    assert len(combined_in_pairs(columns[:3], added, lambda value: value)) == 3
    assert combined_in_pairs([[]], added, lambda value: value) == [None]


@pytest.mark.slow
def test_several_axes_after_the_window() -> None:
    space = Space()
    case = POOLING[0]
    check(space.graph(pooling(space, case, "maximum", (3,))), case.rows(), fill=sprinkled)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8, DType.FLOAT16, DType.BFLOAT16])
def test_extremes_of_other_types(dtype: DType) -> None:
    space = Space()
    h, w = space.dimensions("h w")
    x = space.input("x", dtype, h, w, 10)
    made = Window("maximum", (3, 3), (1, 1), (1, 1), (constant(1),) * 2, (h, w), 1)
    check(space.graph(node(made, x)), [{"h": h, "w": w} for h, w in ((1, 1), (0, 3), (6, 9))])


@pytest.mark.slow
def test_a_turned_operand_is_put_in_memory_first() -> None:
    space = Space()
    h, w = space.dimensions("h w")
    x = space.input("x", F32, 6, h, w)
    made = Window("sum", (2, 2), (1, 1), (1, 1), (constant(1),) * 2, (h, w), 1)
    graph = space.graph(node(made, node(Transpose((1, 2, 0)), x)))
    compiled = check(graph, [{"h": h, "w": w} for h, w in ((1, 1), (0, 3), (6, 9))], length=4)
    assert kinds(compiled) == ["loops", "window"]
