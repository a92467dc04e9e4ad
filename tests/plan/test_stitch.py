"""Which kernels are stitched, and that the others stay as they are."""

from __future__ import annotations

import pytest
from onnx import parser

from support.graph_kit import F32, Space, apply, data, fixed, scalar, softmax
from tilewright.frontend.onnx import import_model
from tilewright.ir.graph import Node, node
from tilewright.ir.kernel import Kernel, KernelKind
from tilewright.ir.primitives import Contract, Convolve, Transpose, Window
from tilewright.ir.row_product import row_product_of
from tilewright.ir.window_product import window_product_of
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.prepare import prepare
from tilewright.rewrite import simplify
from tilewright.shape import constant


class Rows:
    def __init__(self, turned: bool = False) -> None:
        self.space = Space()
        m, n, d = self.space.dimensions("m n d")
        queries, keys = self.space.input("q", F32, m, d), self.space.input("k", F32, n, d)
        self.values = self.space.input("v", F32, *((d, n) if turned else (n, d)))
        self.scores = node(Contract((), ((1, 1),)), queries, keys)
        self.weights = softmax(self.scores)

    def kinds(self, *others: Node) -> list[str]:
        summed = 0 if self.values.shape[0] is self.scores.shape[1] else 1
        context = node(Contract((), ((1, summed),)), self.weights, self.values)
        plan = plan_greedily(self.space.graph(context, *others))
        return sorted(kernel.kind.value for kernel in plan.kernels)


def test_an_attention_is_one_kernel() -> None:
    assert Rows().kinds() == ["attention"]


def test_scores_and_weights_that_are_results_stay_in_memory() -> None:
    for other in ("scores", "weights"):
        rows = Rows()
        assert rows.kinds(getattr(rows, other)) == ["contraction", "contraction", "rows"]


def test_weights_with_another_reader_stay_in_memory() -> None:
    rows = Rows()
    other = node(Transpose((1, 0)), apply("exponential", rows.weights))
    assert "attention" not in rows.kinds(other)


def test_values_that_do_not_lie_along_their_width_are_not_stitched() -> None:
    assert "attention" not in Rows(turned=True).kinds()


@pytest.mark.parametrize("heads", [8, 2])
@pytest.mark.parametrize("mask", ["", "float[s, t] m", "bool[b, 1, s, t] m", "float[b, 8, s, t] m"])
@pytest.mark.parametrize("causal", [0, 1])
def test_the_operator_is_one_kernel(heads: int, mask: str, causal: int) -> None:
    """With any mask, and with heads that share keys."""
    given = f", {mask}" if mask else ""
    model = parser.parse_model(
        f"""<ir_version: 11, opset_import: ["": 24]>
        one (float[b, 8, s, 64] q, float[b, {heads}, t, 64] k, float[b, {heads}, t, 64] v{given})
            => (float[b, 8, s, 64] y)
        {{ y = Attention <is_causal = {causal}> (q, k, v{", m" if mask else ""}) }}"""
    )
    plan = plan_greedily(prepare(simplify(import_model(model).graph)))
    assert [kernel.kind.value for kernel in plan.kernels] == ["attention"]


# ---------------------------------------------------------------- rows of products


class Projection:
    """A product by constant weights, and its softmax."""

    def __init__(self) -> None:
        self.space = Space()
        x = self.space.input("x", F32, self.space.dimension("m"), 24)
        self.scores = node(Contract((), ((1, 0),)), x, fixed(data(F32, (24, 24))))
        self.weights = softmax(self.scores)

    def kernels(self, *outputs: Node) -> list[Kernel]:
        return list(plan_greedily(self.space.graph(*outputs)).kernels)


def test_a_product_and_its_softmax_are_one_kernel() -> None:
    rows = Projection()
    (kernel,) = rows.kernels(rows.weights)
    assert kernel.kind is KernelKind.ROW_PRODUCT
    parts = row_product_of(kernel)
    assert parts is not None and parts.shown is rows.scores
    assert (parts.first.outputs, parts.last.reads) == ((rows.scores,), (rows.scores,))


def test_a_product_that_is_a_result_too_is_one_of_the_whole() -> None:
    rows = Projection()
    (kernel,) = rows.kernels(rows.weights, rows.scores)
    assert set(kernel.outputs) == {rows.weights, rows.scores}


def test_a_later_reader_of_the_product_comes_after_the_whole() -> None:
    rows = Projection()
    later = node(Contract((), ((1, 1),)), rows.scores, rows.weights)
    kernels = rows.kernels(later)
    assert kernels[0].kind is KernelKind.ROW_PRODUCT
    assert kernels[0].outputs == (rows.scores, rows.weights)


def test_a_reader_that_the_rows_wait_for_keeps_both_apart() -> None:
    rows = Projection()
    again = node(Contract((), ((1, 0),)), rows.scores, fixed(data(F32, (24, 24), 4)))
    kernels = rows.kernels(softmax(apply("multiply", rows.scores, softmax(again, (0,)))))
    assert [k.seed for k in kernels].count(rows.scores) == 1
    assert next(k for k in kernels if k.seed is rows.scores).kind is KernelKind.CONTRACTION


# ---------------------------------------------------------------- windows over products


def convolved(x: Node, channels: int, taps: int = 1) -> Node:
    """A convolution with the channels last that keeps the size of the image."""
    weights = fixed(data(F32, (channels, x.shape[-1].value, taps, taps), 3))
    low = (constant(taps // 2),) * 2
    return node(Convolve((1, 1), (1, 1), (1, 1), low, x.shape[1:3], 1, True), x, weights)


def pooled(x: Node, taps: int = 3) -> Node:
    sizes = (x.shape[1] // 2, x.shape[2] // 2)
    made = Window("maximum", (taps, taps), (2, 2), (1, 1), (constant(0),) * 2, sizes, 1)
    return node(made, x)


def planned(space: Space, *outputs: Node) -> list[str]:
    plan = plan_greedily(space.graph(*outputs))
    return sorted(kernel.kind.value for kernel in plan.kernels)


def image(space: Space) -> Node:
    n, h, w = space.dimensions("n h w")
    return space.input("x", F32, n, h, w, 8)


def test_windows_over_the_pixels_of_a_convolution_are_one_kernel_with_it() -> None:
    space = Space()
    shown = apply("maximum", convolved(image(space), 16), scalar(0.0))
    (kernel,) = plan_greedily(space.graph(pooled(shown))).kernels
    assert kernel.kind is KernelKind.WINDOW_PRODUCT
    parts = window_product_of(kernel)
    assert parts is not None and parts.shown is shown
    assert (parts.first.outputs, parts.last.reads) == ((shown,), (shown,))


def test_pixels_that_others_read_keep_windows_apart() -> None:
    space = Space()
    shown = convolved(image(space), 16, taps=3)
    assert planned(space, pooled(shown), shown) == ["contraction", "window"]
    again = node(
        Window("sum", (3, 3), (1, 1), (1, 1), (constant(1),) * 2, shown.shape[1:3], 1), shown
    )
    assert "window product" not in planned(space, apply("add", shown, again))
