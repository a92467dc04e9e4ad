"""Which kernels are stitched, and that the others stay as they are."""

from __future__ import annotations

from support.graph_kit import F32, Space, apply, softmax
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Contract, Transpose
from tilewright.plan.greedy import plan_greedily


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
