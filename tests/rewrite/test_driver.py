"""The driver: shared nodes, labels, bindings, types, the trace, order and termination."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.rewrite_cases import MN, line, shifted, to, turned, x, y
from support.rewrite_harness import (
    M,
    N,
    apply,
    assert_identical,
    fill,
    graph_of,
    scope,
    shape,
    simplified,
    spread,
    tensor,
    value,
    values,
)
from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import evaluate
from tilewright.ir.graph import Binding, Graph, Node, node
from tilewright.ir.primitives import (
    Constant,
    Contract,
    Map,
    Opaque,
    Project,
    Reduce,
    Reshape,
    TensorType,
    Transpose,
)
from tilewright.ir.verify import VerificationError
from tilewright.rewrite import Facts, Rule, simplify
from tilewright.shape import Guard, symbol


def test_a_node_without_rule_is_the_same_graph() -> None:
    graph = graph_of(apply("add", x(), y()))
    assert simplify(graph).roots == graph.roots


def test_it_is_a_fixed_point() -> None:
    root = apply("multiply", turned(turned(x(), 1, 0), 1, 0), fill(1.0, x()))
    once, _ = simplified(root)
    assert once.outputs[0][1] is x()
    assert simplify(once).roots == once.roots


def test_new_nodes_take_the_label_of_what_they_replace() -> None:
    root = apply("exponential", turned(apply("negate", x()), 1, 0))
    graph = replace(graph_of(root), labels={root: "Exp_7", root.inputs[0]: "Transpose_6"})
    after = simplify(graph)
    made = [n for n in after.nodes() if n.primitive == Map("exponential")]
    assert [after.label(n) for n in made] == ["Exp_7"]
    assert after.label(after.outputs[0][1]) == "Exp_7"
    assert set(after.labels) <= set(after.nodes())


def test_bindings_guards_and_inputs_are_kept() -> None:
    facts = scope()
    facts.declare("s", 0, 10)
    count = tensor("count", dtype=DType.INT64)
    source = shifted(count, 0)
    root = spread(tensor("v"), (symbol("s"),))
    guard = Guard(symbol("s") + 1, "The size s must not be -1.")
    unused = tensor("unused", M)
    graph = Graph(
        "g", (count, tensor("v"), unused), (("out", root),), facts,
        (Binding(source, ("s",)),), (guard,),
    )  # fmt: skip
    after = simplify(graph)
    assert after.bindings == (Binding(count, ("s",)),)
    assert (after.inputs, after.guards, after.scope) == (graph.inputs, graph.guards, facts)
    inputs = {"count": np.array(3), "v": np.array(2.0, dtype=np.float32), "unused": np.zeros(2)}
    assert evaluate(after, inputs, {"m": 2})["out"].tolist() == [2.0, 2.0, 2.0]


def test_opaque_operators_are_rebuilt_on_simplified_operands() -> None:
    outputs = (TensorType(DType.FLOAT32, MN), TensorType(DType.FLOAT32, MN))
    operand = turned(turned(x(), 1, 0), 1, 0)
    call = node(Opaque("Mystery", b"payload", outputs, 3), operand)
    root = apply("add", node(Project(1, outputs[1]), call), call)
    after, _ = simplified(root)
    found = [n for n in after.nodes() if isinstance(n.primitive, Opaque)]
    assert [n.inputs for n in found] == [(x(),)]
    assert found[0].primitive == call.primitive


def test_trace_tells_rule_and_both_nodes() -> None:
    seen: list[tuple[str, Node, Node]] = []
    root = turned(x(), 0, 1)
    simplify(graph_of(root), trace=lambda *entry: seen.append(entry))
    assert ("transpose_by_identity", root, x()) in seen


def test_a_rule_that_changes_the_type_is_caught() -> None:
    def wrong(before: Node, facts: Facts) -> Node | None:
        """a → Reduce(a)."""
        return node(Reduce("sum", (0,)), before.inputs[0])

    with pytest.raises(AssertionError, match="wrong"):
        simplify(graph_of(apply("negate", x())), rules=(Rule((Map,), wrong),))


def test_rules_that_undo_each_other_are_caught() -> None:
    def forth(before: Node, facts: Facts) -> Node | None:
        """-a → |a|, which is wrong, but of the same type."""
        swap = {"negate": "absolute", "absolute": "negate"}
        assert isinstance(before.primitive, Map)
        return node(Map(swap[before.primitive.function]), *before.inputs)

    with pytest.raises(VerificationError, match="undo"):
        simplify(graph_of(apply("negate", x())), rules=(Rule((Map,), forth),))


def test_rules_that_do_not_end_are_caught() -> None:
    seen: set[int] = set()

    def once_a_pass(before: Node, facts: Facts) -> Node | None:
        """c → c + 1, once with the facts of every pass."""
        if id(facts) in seen:
            return None
        seen.add(id(facts))
        kept.append(facts)
        assert isinstance(before.primitive, Constant)
        return value(before.primitive.array + 1)

    kept: list[Facts] = []
    with pytest.raises(VerificationError, match="do not end"):
        simplify(graph_of(apply("negate", value(1.0))), rules=(Rule((Constant,), once_a_pass),))


def test_shapes_that_only_the_scope_knows_to_be_equal_are_kept_to_the_letter() -> None:
    facts = scope()
    facts.assume_equal(symbol("n"), symbol("m"))

    def drop(before: Node, facts: Facts) -> Node | None:
        """-a → Reshape to the same size by its other name."""
        return node(Reshape(shape(M)), tensor("v", M))

    root = apply("negate", tensor("v", N))
    after = simplify(graph_of(root, facts), rules=(Rule((Map,), drop),))
    assert after.outputs[0][1].shape == root.shape


@pytest.mark.slow
def test_deep_graphs_need_no_recursion() -> None:
    current = x()
    for _ in range(3000):
        current = apply("exponential", turned(current, 1, 0))
    after, _ = simplified(current)
    assert sum(isinstance(n.primitive, Transpose) for n in after.nodes()) == 0
    assert len(after.nodes()) == 3001


def attention() -> Node:
    """Queries and keys of two heads from [m, n, 6], and softmax's numerator, as exporters write."""

    def projected(name: str) -> Node:
        weights = tensor(name, 6, 6)
        flat = to(shape(M * N, 6), tensor("tokens", M, N, 6))
        made = to(shape(M, N, 6), node(Contract((), ((1, 0),)), flat, weights))
        split = turned(to(shape(M, N, 2, 3), made), 0, 2, 1, 3)
        return apply("multiply", split, fill(0.7, split))

    query, key = projected("q"), projected("k")
    flat = turned(to(shape(M * 2, N, 3), key), 0, 2, 1)
    turned_key = to(shape(M, 2, 3, N), flat)
    scores = node(Contract(((0, 0), (1, 1)), ((3, 2),)), query, turned_key)
    seen = apply("less_equal", spread(line(N), shape(N, N), 1), spread(line(N), shape(N, N), 0))
    mask = spread(to(shape(1, 1, N, N), seen), scores.shape, 0, 1, 2, 3)
    hidden = apply("select", mask, scores, fill(-1e9, scores))
    top = to(shape(M, 2, N, 1), node(Reduce("maximum", (3,)), hidden))
    return apply("exponential", apply("subtract", hidden, spread(top, scores.shape, 0, 1, 2, 3)))


def test_attention_has_no_views_between_its_contractions() -> None:
    root = attention()
    after, _ = simplified(root)
    kinds = [type(n.primitive) for n in after.nodes()]
    assert kinds.count(Transpose) == 0
    assert kinds.count(Reshape) == 2
    for sizes in ({"m": 2, "n": 5}, {"m": 1, "n": 1}, {"m": 0, "n": 3}):
        before_values = values(graph_of(root), {**sizes, "k": 0})
        assert_identical(before_values, values(after, {**sizes, "k": 0}))
