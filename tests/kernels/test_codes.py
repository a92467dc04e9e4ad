"""Products by weights of few bits: straight from their words, and unpacked block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from support.graph_kit import (
    BOTH_LEVELS,
    F32,
    WIDE,
    Compiled,
    Space,
    apply,
    check,
    compare_outputs,
    data,
    exact,
    fixed,
    inputs_at,
    mostly_slow,
    scalar,
)
from support.tile_runs import TileRun
from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.backend.cpu.machine import LEVELS, host_levels
from tilewright.cost import Machine
from tilewright.ir.codes import Codes
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Constant, Contract, Reshape
from tilewright.plan.greedy import plan_greedily
from tilewright.policy import Policy
from tilewright.rewrite.precision import Narrower
from tilewright.shape import constant
from tilewright.tile import lower
from tilewright.tile.lower import lower_kernel
from tilewright.tile.products.few_rows import lower_few_rows
from tilewright.tile.products.frame import RegisterTile
from tilewright.tile.products.split_depth import lower_plain
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import LoweredStep, PackedCodes, Variant

pytestmark = pytest.mark.sampled(20)

Lower = Callable[[Kernel, Callable[[], Lowering], RegisterTile], tuple[LoweredStep, ...] | None]
ROWS = (0, 1, 2, 3, 4, 5, 7, 13, 64, 65)
# Those with sums of narrow products compute products of floats as the level does that has none.
PLAIN_LEVELS = tuple(level.name for level in host_levels() if level.serves(None))
LEVELS_TESTED = (*dict.fromkeys((*BOTH_LEVELS, *PLAIN_LEVELS)), WIDE)
VARIANTS = {"few rows": lower_few_rows, "unpacked": lower_plain}


def codes(
    rows: int, depth: int, block: int, bits: int, zero: int | None = None, seed: int = 0
) -> Codes:
    """Weights at random; a zero point for every block unless there is one for all."""
    random = np.random.default_rng(seed + rows + depth)
    count = -(-depth // block)
    integers = random.integers(0, 1 << bits, (rows, depth)).astype(np.uint8)
    scales = random.uniform(0.01, 0.1, (rows, count)).astype(np.float32)
    points = random.integers(0, 1 << bits, (rows, count)).astype(np.uint8)
    return Codes(integers, scales, points if zero is None else zero, block, bits)


def by(weights: Codes, *rows: int) -> Graph:
    """Rows by weights, plus a bias, not below 0; ``rows`` are more axes of the data in front."""
    space = Space()
    x = space.input("x", F32, *rows, space.dimension("m"), weights.shape[1])
    held = node(Constant.of_codes(weights))
    made = node(Contract((), ((x.rank - 1, 1),)), x, held)
    bias = fixed(data(F32, (weights.shape[0],)))
    return space.graph(apply("maximum", apply("add", made, bias), scalar(0.0)))


def magnitude(weights: Codes) -> float:
    """What sums reach on the way."""
    return float(np.abs(weights.numbers()).max(initial=0)) * weights.shape[1] ** 0.5 * 4


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each way to compute a product by codes, taken for itself."""

    def only(
        kernel: Kernel,
        fresh: Callable[[], Lowering],
        tile: RegisterTile,
        machine: Machine,
        policy: Policy,
        narrower: Narrower,
    ) -> tuple[Variant, ...]:
        steps = VARIANTS[request.param](kernel, fresh, tile)
        assert steps is not None, f"{kernel.label} cannot be computed in this way"
        assert any(isinstance(read, PackedCodes) for read in steps[0].reads)
        return (Variant("forced", steps, constant(0)),)

    monkeypatch.setattr(lower, "contraction_variants", only)
    yield request.param


SIZES = [
    (64, 64, 32), (1, 16, 16), (65, 40, 16), (17, 100, 32), (130, 257, 64), (63, 131, 256),
    (96, 1040, 128), (9, 19, 24), (31, 1, 16),
]  # fmt: skip


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero", [None, 0, 8])
@pytest.mark.parametrize("size", mostly_slow(SIZES, "(65,40,16)", "(17,100,32)"))
def test_products_by_codes(
    variant: str, bits: int, zero: int | None, size: tuple[int, int, int]
) -> None:
    rows, depth, block = size
    weights = codes(rows, depth, block, bits, zero)
    cases = [{"m": m} for m in ROWS]
    check(by(weights), cases, length=depth, scale=magnitude(weights), levels=LEVELS_TESTED)


def test_tiles_leave_llvm_some_registers(variant: str) -> None:
    """Here the vectors of a tile's sums take two registers each, more than there are."""
    weights = codes(9, 19, 24, 4)
    check(by(weights), [{"m": 25}], length=19, scale=magnitude(weights), levels=(WIDE,))


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_a_batch_of_rows(variant: str, batch: int) -> None:
    weights = codes(70, 72, 24, 4)
    cases = [{"m": m} for m in (0, 1, 5, 23)]
    check(by(weights, batch), cases, length=72, scale=magnitude(weights))


def test_columns_and_depths_of_several_axes(variant: str) -> None:
    """As where a projection is cut into heads: the weights are seen through a view."""
    weights = codes(24, 48, 16, 4)
    space = Space()
    x = space.input("x", F32, space.dimension("m"), 6, 8)
    sizes = tuple(map(constant, (4, 6, 6, 8)))
    held = node(Reshape(sizes), node(Constant.of_codes(weights)))
    graph = space.graph(node(Contract((), ((1, 2), (2, 3))), x, held))
    check(graph, [{"m": m} for m in (0, 1, 9)], length=48, scale=magnitude(weights))


def test_rows_that_hold_no_numbers_stay_for_themselves(variant: str) -> None:
    """Infinities and NaN of a row do not reach another one."""
    weights = codes(40, 64, 32, 4)
    graph = by(weights)
    compiled = Compiled(graph)
    x = data(F32, (5, 64))
    x[1, 3], x[3, 60] = np.inf, np.nan
    want = exact(graph, {"x": x}, {"m": 5})["y0"]
    got = compiled.guarded(BOTH_LEVELS[-1], {"x": x}, {"m": 5})["y0"]
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    assert np.isfinite(got[[0, 2, 4]]).all()


@pytest.mark.parametrize("zero", [None, 8])
@pytest.mark.parametrize("bits", [4, 8])
def test_machine_code_is_what_the_tile_program_means(
    variant: str, bits: int, zero: int | None
) -> None:
    graph = by(codes(70, 83, 32, bits, zero))
    for level in PLAIN_LEVELS:
        compiled = Compiled(graph, (level,))
        run = TileRun(graph, compiled.levels[level].lowered)
        for m in (0, 1, 6, 66):
            inputs = inputs_at(graph, {"m": m})
            want = run.outputs(inputs, {"m": m}, lambda _: 0)
            got = compiled.guarded(level, inputs, {"m": m})
            compare_outputs(graph, got, want, (83, 200.0), f"{level} {m} rows")


def lowered(graph: Graph, level: str) -> tuple[Variant, ...]:
    (kernel,) = plan_greedily(graph).kernels
    return lower_kernel(kernel, graph.scope, register_tile(LEVELS[level])).variants


def test_few_rows_and_many_take_different_variants() -> None:
    graph = by(codes(1024, 1024, 32, 4))
    variants = lowered(graph, "avx512")

    def taken(m: int) -> str:
        sizes = {"m": m, "_threads": 2}
        costs = [variant.cost.evaluate(sizes) for variant in variants]
        return variants[costs.index(min(costs))].name

    assert [taken(m) for m in (1, 2, 8)] == ["few rows"] * 3
    assert taken(1024) != "few rows"


def test_no_variant_reads_floats_that_were_made_of_the_codes() -> None:
    """Else the artifact would hold the weights several times."""
    for level in LEVELS:
        sources: set[object] = set()
        for variant in lowered(by(codes(200, 160, 32, 4)), level):
            reads = [read for step in variant.steps for read in step.reads]
            sources |= {r for r in reads if isinstance(r, PackedCodes)}
            constants = [r for r in reads if isinstance(r, Node) and r.rank > 1]
            assert not [c for c in constants if isinstance(c.primitive, Constant)]
        assert len(sources) == 3, "words, scales and zero points, once for all variants"
