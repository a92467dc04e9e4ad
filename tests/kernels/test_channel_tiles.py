"""Convolution in many groups in register tiles, whatever the price, channels first and last."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest

from support.graph_kit import F32, F64, Space, apply, check, data, fixed, kinds, mostly_slow, scalar
from support.window_cases import WindowCase
from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.backend.cpu.machine import LEVELS, host_level
from tilewright.cost import Machine
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Broadcast, Convolve, Transpose
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import constant
from tilewright.target import Target, preset
from tilewright.tile import lower
from tilewright.tile.lower import lower_kernel
from tilewright.tile.variants import THREADS, Variant

pytestmark = pytest.mark.sampled(8)

SPATIAL = ("h", "w")
TILED = tuple(dict.fromkeys(("avx2", host_level().name)))


@dataclass(frozen=True)
class Case(WindowCase):
    """One geometry, the same along both axes; so many channels of data and results in a group."""

    channels: int = 16
    members: int = 1
    made: int = 1

    def rows(self) -> list[dict[str, int]]:
        """Maps without elements, smaller than the window, of a tile and a task and one off it."""
        reach = max(k - 1 for k in self.kernel) * self.dilation
        extents = [(1, 1), (0, 5), (3, 0), (reach, 7), (7, 8), (17, 9), (2, 67), (16, 64)]
        names = ("n", *SPATIAL[: len(self.kernel)])
        return [dict(zip(names, (2, *e), strict=False)) for e in extents] + [
            dict(zip(names, (0, 5, 5), strict=False))
        ]


CASES = (
    Case("three", (3, 3), channels=19, padding=1, after=1),
    Case("five", (5, 5), channels=32, padding=2, after=2),
    Case("five-stride", (5, 5), channels=24, stride=2, padding=2, after=2),
    Case("valid", (4, 2), channels=5),
    Case("seven-dilated", (7, 7), channels=21, dilation=3, padding=9, after=9),
    Case("beyond", (3, 3), channels=9, padding=5, after=4),
    Case("thirteen", (13, 13), channels=17, padding=6, after=6),
    Case("far", (3, 3), channels=8, stride=3, dilation=2, padding=1, after=3),
    Case("rows", (1, 23), channels=12, padding=11, after=11),
    Case("thirty-one", (31, 31), channels=3, padding=15, after=15),
    Case("line", (9,), channels=18, padding=4, after=4),
    Case("one", (1, 1), channels=1),
)

GROUPED = (
    Case("fours", (3, 3), channels=76, members=4, made=4, padding=1, after=1),
    Case("eights-stride", (3, 3), channels=40, members=8, made=8, stride=2, padding=1, after=1),
    Case("twice", (3, 3), channels=9, made=2, padding=1, after=1),
    Case("five-twice", (5, 5), channels=27, members=3, made=2, padding=2, after=2),
    Case("uneven", (5, 2), channels=15, members=3, made=5, dilation=2, padding=2, after=3),
    Case("line", (9,), channels=36, members=2, made=3, padding=4, after=4),
    Case("one", (1, 1), channels=34, members=2, made=7),
)


def always(kernel: Kernel, target: Target) -> bool:
    del kernel, target
    return True


@pytest.fixture
def tiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register tiles wherever they are possible."""
    monkeypatch.setattr(lower, "is_surely_best", always)


def convolved(space: Space, case: Case, last: bool, dtype: DType = F32) -> Node:
    sizes = [space.dimension(name) for name in SPATIAL[: len(case.kernel)]]
    batch, rank = space.dimension("n"), len(case.kernel)
    shape = (*sizes, case.channels) if last else (case.channels, *sizes)
    x = space.input("x", dtype, batch, *shape)
    groups = case.channels // case.members
    weights = fixed(data(dtype, (groups * case.made, case.members, *case.kernel), 3))
    made = Convolve(
        (case.stride,) * rank, (case.dilation,) * rank, (1,) * rank,
        (constant(case.padding),) * rank, case.sizes(sizes), groups, last,
    )  # fmt: skip
    return node(made, x, weights)


def biased(made: Node, last: bool) -> Node:
    axis = made.rank - 1 if last else 1
    bias = fixed(data(F32, (made.shape[axis].value,), 5))
    return apply("add", made, node(Broadcast(made.shape, (axis,)), bias))


def clipped(made: Node) -> Node:
    return apply("minimum", apply("maximum", made, scalar(0.0)), scalar(6.0))


def taps(case: Case) -> int:
    total = 1
    for count in case.kernel:
        total *= count
    return total


@pytest.mark.usefixtures("tiled")
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("case", mostly_slow(CASES, "five-stride", "three"))
def test_depthwise_with_bias_and_clamp(case: Case, last: bool) -> None:
    space = Space()
    graph = space.graph(clipped(biased(convolved(space, case, last), last)))
    scale = taps(case) ** 0.5  # of the sums, which the clamp hides
    compiled = check(graph, case.rows(), length=taps(case), scale=scale, levels=TILED)
    assert kinds(compiled) == ["window"]


@pytest.mark.usefixtures("tiled")
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("case", mostly_slow(GROUPED, "eights-stride", "uneven"))
def test_groups_with_bias_and_clamp(case: Case, last: bool) -> None:
    space, length = Space(), taps(case) * case.members
    graph = space.graph(clipped(biased(convolved(space, case, last), last)))
    check(graph, case.rows(), length=length, scale=length**0.5, levels=TILED)


@pytest.mark.usefixtures("tiled")
@pytest.mark.parametrize("case", [GROUPED[3]])
def test_results_leave_with_the_channels_first(case: Case) -> None:
    space, length = Space(), taps(case) * case.members
    made = clipped(biased(convolved(space, case, last=True), last=True))
    graph = space.graph(node(Transpose((0, 3, 1, 2)), made))
    compiled = check(graph, case.rows(), length=length, scale=length**0.5, levels=TILED)
    assert kinds(compiled) == ["contraction"]


def test_few_channels_in_a_group_are_compared_and_many_are_products() -> None:
    few, many = (
        Case("groups", (3, 3), channels=32 * members, members=members, made=members, padding=1,
             after=1)
        for members in (4, 16)
    )  # fmt: skip
    space, other = Space(), Space()
    assert "tiles" in names(convolved(space, few, last=True), space)
    assert "tiles" not in names(convolved(other, many, last=True), other)


@pytest.mark.slow
@pytest.mark.usefixtures("tiled")
@pytest.mark.parametrize("case", [CASES[1], GROUPED[0]])
def test_residual_and_several_results(case: Case) -> None:
    space = Space()
    made = convolved(space, case, last=True)
    total = apply("add", biased(made, last=True), space.input("residual", F32, *made.shape))
    graph = space.graph(clipped(total), total, made)
    check(graph, case.rows(), length=taps(case) * case.members, levels=TILED)


@pytest.mark.slow
@pytest.mark.usefixtures("tiled")
@pytest.mark.parametrize("last", [False, True])
def test_depthwise_of_float64(last: bool) -> None:
    space, case = Space(), CASES[1]
    made = convolved(space, case, last, F64)
    check(space.graph(made), case.rows(), length=taps(case), levels=TILED)


def variants(made: Node, space: Space) -> tuple[Variant, ...]:
    """The variants of the only kernel of a graph."""
    graph = space.graph(made)
    (kernel,) = plan_greedily(graph).kernels
    machine = Machine(preset("zen4"))
    tile = register_tile(LEVELS["avx512"])
    return lower_kernel(kernel, graph.scope, tile, machine=machine).variants


def names(made: Node, space: Space) -> list[str]:
    return [variant.name for variant in variants(made, space)]


def test_many_taps_with_the_channels_last_need_no_comparison() -> None:
    space = Space()
    assert names(convolved(space, CASES[1], last=True), space) == ["tiles"]


def test_few_taps_strides_and_part_of_a_vector_are_compared() -> None:
    few = Case("three", (3, 3), channels=32, padding=1, after=1)
    part = Case("five", (5, 5), channels=24, padding=2, after=2)
    apart = Case("five-stride", (5, 5), channels=32, stride=2, padding=2, after=2)
    for case in (few, part, apart):
        space = Space()
        assert names(convolved(space, case, last=True), space) == ["loops", "tiles"]


def test_what_each_pixel_reads_is_not_read_by_channels() -> None:
    """Images with the channels first are turned: what else is read of every pixel is not."""
    space = Space()
    made = convolved(space, CASES[1], last=False)
    residual = space.input("residual", F32, *made.shape)
    assert names(biased(made, last=False), Space()) == ["loops", "tiles"]
    assert names(apply("add", made, residual), space) == ["loops"]


def test_more_taps_are_tiles_with_the_channels_first() -> None:
    """Transposing the image costs as much for few taps as for many."""

    def cost(side: int, name: str) -> int:
        space, last = Space(), False
        case = Case("square", (side, side), channels=64, padding=side // 2, after=side // 2)
        sizes = {"n": 1, "h": 112, "w": 112, THREADS: 1}
        made = variants(convolved(space, case, last), space)
        return next(v.cost.evaluate(sizes) for v in made if v.name == name)

    shares = [cost(side, "tiles") / cost(side, "loops") for side in (3, 5, 7, 13)]
    assert all(more < less for less, more in pairwise(shares))
    assert shares[0] > 1 > shares[-1]
