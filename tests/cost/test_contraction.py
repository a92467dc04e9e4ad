"""The modelled time of contractions: positive, growing with the work, the same natively."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.graph_kit import fixed
from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.backend.cpu.machine import LEVELS
from tilewright.backend.cpu.program import CompiledProgram, build_program, lowering_of
from tilewright.cost import Blocks, Machine, contraction_time
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, node
from tilewright.ir.primitives import Contract, Convolve, Input
from tilewright.ir.product_nest import ProductNest
from tilewright.plan.greedy import plan_greedily
from tilewright.runtime.artifact import ArtifactContents
from tilewright.runtime.model import CompiledModel
from tilewright.shape import Scope, constant
from tilewright.target import preset, preset_names
from tilewright.tile.lower import lower_kernel
from tilewright.tile.variants import THREADS, Variant

SIZES = st.integers(1, 3000)


@pytest.fixture(scope="module")
def product() -> CompiledProgram:
    """[m, k] by [k, n] with every size unknown."""
    scope = Scope()
    m, n, k = (scope.declare(name, 0, 1 << 20) for name in "mnk")
    x, y = node(Input("x", DType.FLOAT32, (m, k))), node(Input("y", DType.FLOAT32, (k, n)))
    made = node(Contract((), ((1, 0),)), x, y)
    graph = Graph("product", (x, y), (("z", made),), scope)
    return build_program(graph, plan_greedily(graph), LEVELS["x86-64"])


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(m=SIZES, n=SIZES, k=SIZES, threads=st.integers(1, 16))
def test_more_work_costs_more(product: CompiledProgram, m: int, n: int, k: int, threads: int):
    (choice,) = product.program.choices
    for cost in choice.costs:
        small = cost.evaluate({"m": m, "n": n, "k": k, THREADS: threads})
        assert small > 0
        # A few times as large may fill vectors that a part of one did not, and cost less.
        large = cost.evaluate({"m": 16 * m, "n": 16 * n, "k": 16 * k, THREADS: threads})
        assert large > small


@pytest.mark.slow
def test_the_cheapest_variant_is_taken(product: CompiledProgram) -> None:
    (choice,) = product.program.choices
    contents = ArtifactContents(
        {"x86-64": product.program}, {"x86-64": product.image}, {"x86-64": product.constants}
    )
    model = CompiledModel.from_contents(contents, num_threads=2)
    for m, n, k in ((1, 1, 1), (7, 300, 20), (500, 40, 900), (2000, 2000, 64), (3, 4096, 4096)):
        sizes = {"m": m, "n": n, "k": k}
        costs = [cost.evaluate({**sizes, THREADS: 2}) for cost in choice.costs]
        (used,) = model.explain(**sizes)
        assert used.variant == choice.names[costs.index(min(costs))]
        x, y = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
        assert (model(x, y) == k).all()


@pytest.mark.parametrize("name", [n for n in preset_names() if preset(n).kind == "cpu"])
def test_every_processor_has_a_model(name: str) -> None:
    line = Machine(preset(name)).line(DType.FLOAT32, 16, 6)
    assert line.at(6) >= line.at(1) > 0


def batched(machine: Machine) -> tuple[Variant, ...]:
    """The variants of [b, m, k] by [b, k, n] with every size unknown."""
    scope = Scope()
    b, m, n, k = (scope.declare(name, 0, 1 << 20) for name in "bmnk")
    x, y = (node(Input(name, DType.FLOAT32, shape)) for name, shape in
            (("x", (b, m, k)), ("y", (b, k, n))))  # fmt: skip
    made = node(Contract(((0, 0),), ((2, 1),)), x, y)
    graph = Graph("products", (x, y), (("z", made),), scope)
    (kernel,) = plan_greedily(graph).kernels
    return lowering_of(graph, LEVELS["avx512"], machine=machine).lowered(kernel).variants


def test_rows_on_pages_of_their_own_are_read_more_slowly_than_a_stream() -> None:
    """Of eight rows by a matrix beyond the last cache, of which hardware follows few at a time."""
    machine = Machine(preset("zen4"))
    sizes = {"b": 7, "m": 8, "n": 1674, "k": 2698, THREADS: 1}
    streamed = 4 * 7 * 1674 * 2698 / machine.target.levels[-1].bandwidth
    for variant in batched(machine):
        *_, depth = variant.name.split(" x ")
        if "packed" not in variant.name and int(depth) > machine.core.streams.followed:
            cost = variant.cost.evaluate(sizes)
            assert cost > 1.8 * machine.picoseconds(streamed), variant.name


def test_few_rows_at_a_time_stream_a_matrix_that_one_row_is_multiplied_with() -> None:
    """What is chosen reads rows of columns that hardware follows, at the speed of memory."""
    machine = Machine(preset("zen4"))
    sizes = {"b": 1, "m": 1, "n": 4096, "k": 4096, THREADS: 1}
    streamed = machine.picoseconds(4 * 4096 * 4096 / machine.target.levels[-1].bandwidth)
    best = min(batched(machine), key=lambda variant: variant.cost.evaluate(sizes))
    *_, depth = best.name.split(" x ")
    assert int(depth) <= machine.core.streams.followed
    assert streamed < best.cost.evaluate(sizes) < 1.5 * streamed


def test_memory_reads_and_writes_the_lines_of_large_results() -> None:
    machine = Machine(preset("zen4"))
    sizes = {"b": 12, "m": 3346, "n": 2248, "k": 2, THREADS: 1}
    moved = 2 * 4 * 12 * 3346 * 2248 / machine.target.levels[-1].bandwidth
    for variant in batched(machine):
        assert variant.cost.evaluate(sizes) > machine.picoseconds(moved), variant.name


def test_tasks_with_results_in_memory_wait_for_their_first_lines() -> None:
    """Many small blocks cost more than few large ones, although as much is written."""
    sizes = {"b": 48, "m": 526, "n": 808, "k": 5, THREADS: 1}
    costs = {v.name: v.cost.evaluate(sizes) for v in batched(Machine(preset("zen4")))}
    blocks = {n: [int(s) for s in n.split(",")[0].split(" x ")] for n in costs if n != "dots"}
    small = min(blocks, key=lambda name: blocks[name][0] * blocks[name][1])
    large = max(blocks, key=lambda name: blocks[name][0] * blocks[name][1])
    assert costs[small] > 1.1 * costs[large]


def weighted(machine: Machine) -> tuple[Variant, ...]:
    """The variants of [m, 300] by a constant [300, 400]."""
    scope = Scope()
    x = node(Input("x", DType.FLOAT32, (scope.declare("m", 0, 1 << 20), constant(300))))
    made = node(Contract((), ((1, 0),)), x, fixed(np.zeros((300, 400), np.float32)))
    graph = Graph("weighted", (x,), (("z", made),), scope)
    (kernel,) = plan_greedily(graph).kernels
    return lowering_of(graph, LEVELS["avx512"], machine=machine).lowered(kernel).variants


def test_weights_come_from_where_those_of_a_call_lie() -> None:
    """Of one row, which waits for nothing else: its weights fit a cache, those of the call none."""
    machine = Machine(preset("zen4"))
    near, far = (
        min(v.cost.evaluate({"m": 1, THREADS: 1}) for v in weighted(each))
        for each in (machine, replace(machine, constants=1 << 28))
    )
    moved = machine.picoseconds(4 * 300 * 400 / machine.target.levels[-1].bandwidth)
    assert near < moved < far


@pytest.mark.parametrize("name", [n for n in preset_names() if preset(n).kind == "cpu"])
def test_nothing_is_read_faster_for_being_unforeseen(name: str) -> None:
    assert Machine(preset(name)).unforeseen >= 2


def test_what_is_one_task_takes_no_less_and_no_more_on_several_threads() -> None:
    sizes = {"b": 1, "m": 6, "n": 16, "k": 3000}
    for variant in batched(Machine(preset("zen4"))):
        if variant.name != "dots":
            one, two = (variant.cost.evaluate({**sizes, THREADS: threads}) for threads in (1, 2))
            assert one == two, variant.name


def test_a_row_is_no_faster_for_shallow_blocks() -> None:
    """It reads each panel once, so that a block's pages are as far away as all others."""
    machine = Machine(preset("zen4"))
    sizes = {"b": 1, "m": 1, "n": 903, "k": 1230}
    nest = ProductNest.of(batched(machine)[0].steps[-1].program)
    costs = [
        contraction_time(nest, machine, 1, Blocks(constant(1), constant(1), constant(depth)))
        for depth in (1, 4, 16)
    ]
    times = [cost.evaluate(sizes) for cost in costs]
    assert times == sorted(times)


def test_tiles_with_a_part_of_their_columns_cost_little_more_than_whole_ones() -> None:
    """They are finished in registers under a mask; through memory it was two thirds more."""
    machine = Machine(preset("zen4"))
    part, whole = (
        min(v.cost.evaluate({"b": 1, "m": 2000, "n": n, "k": 5, THREADS: 1})
            for v in batched(machine) if v.name != "dots")
        for n in (15, 16)
    )  # fmt: skip
    assert whole < part < 1.4 * whole


def test_rows_of_many_images_begin_anew_in_each() -> None:
    """Pixels of images of 2x2 are copied four at a time where those of all images are joined."""
    scope = Scope()
    images = scope.declare("images", 1, 71)
    shape = (images, *map(constant, (46, 2, 2)))
    data = node(Input("x", DType.FLOAT32, shape))
    weights = fixed(np.ones((5, 46, 1, 1), np.float32))
    one, none = (1, 1), (constant(0), constant(0))
    made = node(Convolve(one, one, one, none, shape[2:], 1), data, weights)
    graph = Graph("convolution", (data,), (("z", made),), scope)
    (kernel,) = plan_greedily(graph).kernels
    machine = Machine(preset("zen4"))
    lowered = lower_kernel(kernel, scope, register_tile(LEVELS["avx512"]), machine=machine)
    sizes = {"images": 7, THREADS: 2}
    joined, others = (
        [v.cost.evaluate(sizes) for v in lowered.variants if ("joined" in v.name) is joins]
        for joins in (True, False)
    )
    assert all(price > 1.2 * min(others) for price in joined)
