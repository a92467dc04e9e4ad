"""What the greedy planner puts into one kernel."""

from __future__ import annotations

import numpy as np
import pytest

from support.graph_kit import softmax
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Binding, Graph, Node, node
from tilewright.ir.kernel import KernelKind, Plan
from tilewright.ir.primitives import (
    Broadcast,
    Cast,
    Constant,
    Contract,
    Convolve,
    Dimension,
    Gather,
    Input,
    Map,
    Pad,
    Reduce,
    Reshape,
    Transpose,
)
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.prepare import prepare
from tilewright.shape import Expr, Scope, constant
from tilewright.tile.alike import outline_key


class Sketch:
    """A graph under construction with two symbolic sizes."""

    def __init__(self) -> None:
        self.scope = Scope()
        self.batch = self.scope.declare("batch", 0, 64)
        self.sequence = self.scope.declare("sequence", 0, 512)
        self.inputs: list[Node] = []

    def input(self, *shape: Expr | int) -> Node:
        sizes = tuple(constant(s) if isinstance(s, int) else s for s in shape)
        made = node(Input(f"x{len(self.inputs)}", DType.FLOAT32, sizes))
        self.inputs.append(made)
        return made

    def weights(self, *shape: int) -> Node:
        values = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
        return node(Constant.of(values))

    def plan(self, *outputs: Node) -> Plan:
        named = tuple((f"y{i}", o) for i, o in enumerate(outputs))
        return plan_greedily(prepare(Graph("sketch", tuple(self.inputs), named, self.scope)))


def dense(x: Node, weights: Node, bias: Node) -> Node:
    product = node(Contract((), ((x.rank - 1, 0),)), x, weights)
    return node(Map("add"), product, node(Broadcast(product.shape, (x.rank - 1,)), bias))


def test_softmax_is_one_row_kernel() -> None:
    sketch = Sketch()
    plan = sketch.plan(softmax(sketch.input(sketch.batch, sketch.sequence)))
    assert [k.kind for k in plan.kernels] == [KernelKind.ROWS]


@pytest.mark.parametrize(("axis", "kinds"), [(0, "rows"), (1, "loops rows")])
def test_what_is_looked_up_along_rows_is_stored_before_them(axis: int, kinds: str) -> None:
    """An embedding is not: one position serves a whole row."""
    sketch = Sketch()
    table = sketch.input(sketch.sequence, sketch.sequence)
    at = node(Input("at", DType.INT64, (sketch.batch,)))
    sketch.inputs.append(at)
    plan = sketch.plan(softmax(node(Gather(axis), table, at)))
    assert [k.kind.value for k in plan.kernels] == kinds.split()


@pytest.mark.parametrize(("last", "kinds"), [(96, "loops rows"), (None, "rows")])
def test_what_is_divided_along_rows_is_stored_before_them(last: int | None, kinds: str) -> None:
    """One factor for each column of a matrix, whose rows are groups of it then.

    Where these have as many columns as the matrix, nothing is divided.
    """
    sketch = Sketch()
    columns = sketch.scope.declare("columns", 1, 4096)
    x, factors = sketch.input(sketch.batch, columns), sketch.input(columns)
    scaled = node(Map("multiply"), x, node(Broadcast(x.shape, (1,)), factors))
    width = columns if last is None else sketch.scope.declare("width", 1, last)
    groups = sketch.batch if last is None else sketch.batch * columns // width
    rows = node(Reshape((groups, width)), scaled)
    mean = node(Reduce("sum", (1,)), rows)
    centred = node(Map("subtract"), rows, node(Broadcast(rows.shape, (0,)), mean))
    plan = sketch.plan(centred)
    assert [k.kind.value for k in plan.kernels] == kinds.split()


@pytest.mark.parametrize(("sweeps", "kinds"), [(1, "rows"), (2, "loops rows")])
def test_what_one_sweep_looks_up_is_not_stored(sweeps: int, kinds: str) -> None:
    sketch = Sketch()
    table = sketch.input(sketch.sequence, sketch.sequence)
    at = node(Input("at", DType.INT64, (sketch.batch,)))
    sketch.inputs.append(at)
    found = node(Gather(1), table, at)
    total = node(Reduce("sum", (1,)), found)
    centred = node(Map("subtract"), found, node(Broadcast(found.shape, (0,)), total))
    plan = sketch.plan(total if sweeps == 1 else centred)
    assert [k.kind.value for k in plan.kernels] == kinds.split()


def test_bias_activation_and_residual_join_the_contraction() -> None:
    sketch = Sketch()
    x = sketch.input(sketch.batch, sketch.sequence, 64)
    residual = sketch.input(sketch.batch, sketch.sequence, 32)
    y = node(Map("hyperbolic_tangent"), dense(x, sketch.weights(64, 32), sketch.weights(32)))
    plan = sketch.plan(node(Map("add"), y, residual))
    assert [k.kind for k in plan.kernels] == [KernelKind.CONTRACTION]


def test_reductions_of_the_same_rows_are_one_kernel() -> None:
    # The extremes of all elements, as for a scale: of rows first, then of what the rows have left.
    sketch = Sketch()
    x = sketch.input(sketch.batch, sketch.sequence)
    of_rows = {kind: node(Reduce(kind, (1,)), x) for kind in ("maximum", "minimum")}
    of_all = {kind: node(Reduce(kind, (0,)), part) for kind, part in of_rows.items()}
    plan = sketch.plan(node(Map("subtract"), *of_all.values()))
    seeds = [kernel.seeds for kernel in plan.kernels]
    assert seeds == [tuple(of_rows.values()), tuple(of_all.values())]


def test_a_sum_that_is_used_again_is_written_by_the_row_kernel() -> None:
    sketch = Sketch()
    a, b = (sketch.input(sketch.batch, sketch.sequence, 64) for _ in range(2))
    total = node(Map("add"), a, b)
    plan = sketch.plan(softmax(total), total)
    rows = [k for k in plan.kernels if k.kind is KernelKind.ROWS]
    assert len(rows) == 1
    assert len(plan.kernels) <= 2


def test_merged_heads_are_stored_in_place() -> None:
    """Probabilities times values, heads merged: the contraction stores the merged layout."""
    sketch = Sketch()
    probabilities = sketch.input(sketch.batch, 12, sketch.sequence, sketch.sequence)
    values = sketch.input(sketch.batch, 12, sketch.sequence, 64)
    context = node(Contract(((0, 0), (1, 1)), ((3, 2),)), probabilities, values)
    moved = node(Transpose((0, 2, 1, 3)), context)
    merged = node(Reshape((sketch.batch, sketch.sequence, constant(768))), moved)
    plan = sketch.plan(dense(merged, sketch.weights(768, 16), sketch.weights(16)))
    assert [k.kind for k in plan.kernels] == [KernelKind.CONTRACTION] * 2
    assert plan.kernels[0].outputs == (merged,)


def test_heads_of_pixels_are_stored_in_place_for_a_convolution() -> None:
    """That asks for the transposition below the reshape, which nothing else reads."""
    sketch = Sketch()
    weights = sketch.input(sketch.batch, 4, 64, 64)
    values = sketch.input(sketch.batch, 4, 64, 32)
    context = node(Contract(((0, 0), (1, 1)), ((3, 2),)), weights, values)
    moved = node(Transpose((0, 2, 1, 3)), context)
    image = node(Reshape((sketch.batch, constant(8), constant(8), constant(128))), moved)
    convolve = Convolve(
        (1, 1), (1, 1), (1, 1), (constant(0),) * 2, (constant(8),) * 2, 1, channels_last=True
    )
    plan = sketch.plan(node(convolve, image, sketch.weights(16, 128, 1, 1)))
    assert [k.kind for k in plan.kernels] == [KernelKind.CONTRACTION] * 2
    assert plan.kernels[0].outputs == (image,)
    assert_in_order(sketch, plan)


@pytest.mark.parametrize(("channels", "kernels"), [(3, 1), (24, 2)])
def test_what_is_turned_and_padded_is_turned_by_itself(channels: int, kernels: int) -> None:
    # Elements that a copy pads are moved one by one, which few of a pixel gain nothing by.
    sketch = Sketch()
    x = sketch.input(sketch.batch, channels, sketch.sequence, 7)
    turned = node(Transpose((0, 2, 3, 1)), x)
    edge = (constant(0), constant(1), constant(1), constant(0))
    padded = node(Pad(edge, edge), turned, node(Constant.of(np.array(120, np.float32))))
    plan = sketch.plan(padded)
    assert len(plan.kernels) == kernels
    assert (turned in plan.kernels[0].outputs) == (kernels == 2)


def test_a_costly_value_wanted_twice_goes_to_memory() -> None:
    sketch = Sketch()
    x = sketch.input(sketch.batch, sketch.sequence)
    costly = node(Map("power"), node(Map("exponential"), x), x)
    left = node(Reduce("sum", (1,)), costly)
    right = node(Reduce("maximum", (0,)), costly)
    plan = sketch.plan(left, right)
    assert sum(costly in kernel.body for kernel in plan.kernels) == 1
    assert sum(costly in kernel.reads for kernel in plan.kernels) >= 1


def test_a_cheap_value_wanted_twice_is_computed_twice() -> None:
    sketch = Sketch()
    x = sketch.input(sketch.batch, sketch.sequence)
    cheap = node(Map("negate"), x)
    plan = sketch.plan(node(Reduce("sum", (1,)), cheap), node(Reduce("maximum", (0,)), cheap))
    assert all(cheap in kernel.body for kernel in plan.kernels)


@pytest.mark.parametrize("layers", [1, 3])
def test_every_kernel_reads_what_was_written_before(layers: int) -> None:
    sketch = Sketch()
    x = sketch.input(sketch.batch, sketch.sequence, 32)
    current = x
    for _ in range(layers):
        hidden = dense(current, sketch.weights(32, 32), sketch.weights(32))
        current = node(Map("add"), softmax(hidden), current)
    assert_in_order(sketch, sketch.plan(current))


def assert_in_order(sketch: Sketch, plan: Plan) -> None:
    written: set[Node] = set(sketch.inputs)
    for kernel in plan.kernels:
        for source in kernel.reads:
            assert isinstance(source.primitive, Constant) or source in written
        written |= set(kernel.outputs)


def products(sketch: Sketch) -> tuple[Node, Node]:
    left, right, third, fourth = (sketch.input(sketch.batch, sketch.batch) for _ in range(4))
    made = [node(Contract((), ((1, 0),)), *pair) for pair in ((left, right), (third, fourth))]
    return made[0], made[1]


@pytest.mark.parametrize("rows", [False, True])
def test_two_kernels_do_not_need_each_other(rows: bool) -> None:
    """p + s may join p, and s + tp may join s, but not both: tp is made of p."""
    sketch = Sketch()
    p, s = products(sketch)
    if rows:
        s = softmax(sketch.input(sketch.batch, sketch.batch))
    tp = node(Transpose((1, 0)), p)
    plan = sketch.plan(tp, node(Map("add"), p, s), node(Map("add"), s, tp))
    assert_in_order(sketch, plan)


def test_a_kernel_does_not_join_what_reads_it_through_a_third() -> None:
    sketch = Sketch()
    p, s = products(sketch)
    through = node(Map("add"), s, node(Transpose((1, 0)), p))
    last = node(Map("multiply"), p, softmax(through))
    plan = sketch.plan(last, node(Map("negate"), s))
    assert_in_order(sketch, plan)


def test_a_kernel_does_not_name_a_size_that_is_read_from_it() -> None:
    sketch = Sketch()
    p, _ = products(sketch)
    count = node(Cast(DType.INT64), node(Reduce("sum", (0, 1)), p))
    learnt = sketch.scope.declare("learnt", 0)
    size = node(Cast(DType.FLOAT32), node(Dimension(learnt)))
    last = node(Map("add"), p, node(Broadcast(p.shape, ()), size))
    graph = Graph(
        "late", tuple(sketch.inputs), (("y", last),), sketch.scope, (Binding(count, ("learnt",)),)
    )
    plan = plan_greedily(prepare(graph))
    makes = {o: i for i, kernel in enumerate(plan.kernels) for o in kernel.outputs}
    assert makes[p] < makes[count] < makes[last]


def test_an_output_that_is_an_input_is_copied() -> None:
    sketch = Sketch()
    x = sketch.input(sketch.batch)
    plan = sketch.plan(x, x)
    outputs = [o for k in plan.kernels for o in k.outputs]
    assert len(set(outputs)) == 2
    assert x not in outputs


@pytest.mark.parametrize("reader", ["elementwise", "product"])
def test_bytes_are_stored_where_readers_make_floats_of_them(reader: str) -> None:
    """A requantised product is stored once, in bytes, unless a tile needs floats in memory."""
    sketch = Sketch()
    product = node(Contract((), ((1, 0),)), sketch.input(sketch.batch, 8), sketch.weights(8, 16))
    stored = node(Cast(DType.UINT8), node(Map("round_even"), product))
    wide = node(Cast(DType.FLOAT32), stored)
    scale = node(Broadcast(wide.shape, (1,)), sketch.weights(16))
    back = node(Map("multiply"), wide, scale)
    if reader == "product":
        plan = sketch.plan(node(Contract((), ((1, 0),)), back, sketch.weights(16, 4)))
        assert [k.outputs for k in plan.kernels[:-1]] == [(back,)]
        return
    other = node(Contract((), ((1, 0),)), sketch.input(sketch.batch, 8), sketch.weights(8, 16))
    plan = sketch.plan(node(Map("add"), other, back))
    assert {o for k in plan.kernels for o in k.outputs} >= {stored}
    assert len(plan.kernels) == 2


def test_a_convolution_does_not_gather_what_lies_apart() -> None:
    """With its channels first it reads a transposition that is stored, not one by one."""
    sketch = Sketch()
    image = sketch.input(sketch.batch, 8, 8, 16)  # channels last
    convolve = Convolve((1, 1), (1, 1), (1, 1), (constant(0),) * 2, (constant(8),) * 2, 1)
    turned = node(Transpose((0, 3, 1, 2)), image)
    moved = sketch.plan(node(convolve, turned, sketch.weights(16, 16, 1, 1)))
    assert [kernel.kind for kernel in moved.kernels] == [KernelKind.LOOPS, KernelKind.CONTRACTION]
    assert moved.kernels[0].outputs == (turned,)


def test_how_a_read_tensor_was_computed_is_no_part_of_a_kernel() -> None:
    sketch = Sketch()
    weights, bias = sketch.weights(16, 16), sketch.weights(16)
    x = sketch.input(sketch.batch, 16)
    first = dense(x, weights, bias)
    second = dense(first, weights, bias)
    kernels = sketch.plan(first, second).kernels
    assert len(kernels) == 2
    assert outline_key(kernels[0]) == outline_key(kernels[1])


def test_sums_read_bytes_through_views_and_are_a_part_of_the_rows_that_make_them() -> None:
    """Neither the bytes of a product nor those of a softmax are stored as integers once more."""
    sketch = Sketch()
    dense_bytes = node(
        Cast(DType.UINT8),
        node(Contract((), ((1, 0),)), sketch.input(sketch.batch, 8), sketch.weights(8, 64)),
    )
    wide = node(Cast(DType.INT32), dense_bytes)
    heads = node(Reshape((sketch.batch, constant(4), constant(16))), wide)
    plan = sketch.plan(node(Reduce("sum", (2,)), heads))
    assert plan.kernels[0].outputs == (dense_bytes,)

    sketch = Sketch()
    rows = node(Cast(DType.UINT8), softmax(sketch.input(sketch.batch, sketch.sequence)))
    plan = sketch.plan(rows, node(Reduce("sum", (1,)), node(Cast(DType.INT32), rows)))
    assert [k.kind for k in plan.kernels] == [KernelKind.ROWS]
