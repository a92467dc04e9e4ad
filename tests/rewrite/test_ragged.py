"""Graphs of padded batches as graphs of packed sequences, in numpy: what runs where, and refusals.

Needs nothing but the package.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from support.graph_kit import F32, I64, Space, apply, data, fixed, scalar, spread
from support.random_graphs import build, fill
from tilewright.compile_bodies import ragged_step
from tilewright.ir.carried import carried
from tilewright.ir.evaluate import evaluate, evaluate_node
from tilewright.ir.graph import Graph, Node, mapped, node, same
from tilewright.ir.primitives import (
    Broadcast,
    Contract,
    Dimension,
    Gather,
    Input,
    Iota,
    Opaque,
    Project,
    Reduce,
    Reshape,
    Slice,
    Transpose,
)
from tilewright.rewrite import simplify
from tilewright.rewrite.ragged import OPERATOR, RaggedGraph, split_ragged
from tilewright.runtime.ragged import RaggedOperator
from tilewright.shape import Expr, Guard, constant, less_equal
from tilewright.support.errors import UnsupportedError

Array = np.ndarray[Any, Any]
LENGTHS = ([3, 1, 5], [0, 2], [], [4], [1, 1, 1, 1])


def name_of(given: Node) -> str:
    assert isinstance(given.primitive, Input)
    return given.primitive.name


def run_packed(ragged: RaggedGraph, inputs: dict[str, Array], lengths: Sequence[int]) -> list[Any]:
    """The outputs of every sequence, with the runtime's operator around bodies in numpy."""
    graph = ragged.graph
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
    batch, sequence, total = (str(s) for s in ("a", "b", "positions"))
    sizes = {batch: len(lengths), total: int(ends[-1])}
    given = {**inputs, name_of(graph.inputs[-1]): ends}
    values: dict[Node, Any] = {}
    for current in graph.nodes():
        operands = [values[i] for i in current.inputs]
        if not isinstance(current.primitive, Project):
            operands = [value[0] if isinstance(value, tuple) else value for value in operands]
        if isinstance(current.primitive, Opaque) and current.primitive.operator == OPERATOR:
            body = ragged.bodies[current.primitive.serial]

            def call(
                found: Sequence[Array], out: Sequence[Array | None], body: Any = body
            ) -> list[Array]:
                feeds = {f"x{n}": array for n, array in enumerate(found)}
                length = next(
                    array.shape[i.shape.index(symbol)]
                    for array, i in zip(found, body.graph.inputs, strict=True)
                    for symbol in i.shape
                    if str(symbol) == sequence
                )
                made = list(evaluate(body.graph, feeds, {sequence: length}).values())
                for place, value in zip(out, made, strict=True):
                    if place is not None:
                        place[...] = value
                return made

            values[current] = tuple(RaggedOperator(ragged_step(body), call)(operands))
        else:
            values[current] = evaluate_node(current, operands, sizes, given, None)
    made: list[Any] = []
    for (_, root), share in zip(graph.outputs, ragged.outputs, strict=True):
        value = values[root]
        value = value[0] if isinstance(value, tuple) else value
        if share.part == "whole":
            made.append([value] * len(lengths))
        elif share.part == "sequences":
            made.append([value.take([n], share.axis) for n in range(len(lengths))])
        else:
            made.append([value.take(range(x, y), share.axis) for x, y in pairwise(ends)])
    return made


def assert_same_for_each(graph: Graph, ragged: RaggedGraph, lengths: Sequence[int]) -> None:
    """Packed, every sequence gets what the graph makes of it in a batch of its own."""
    singles: list[dict[str, Array]] = []
    for number, length in enumerate(lengths):
        sizes = {"a": 1, "b": length}
        shapes = {name_of(i): tuple(e.evaluate(sizes) for e in i.shape) for i in graph.inputs}
        dtypes = {name_of(i): i.dtype for i in graph.inputs}
        chance = np.random.default_rng(number)
        singles.append(
            {
                name: fill(name, dtypes[name], shape)
                if dtypes[name] is I64
                else chance.standard_normal(shape).astype(np.float32)
                for name, shape in shapes.items()
            }
        )
    packed: dict[str, Array] = {}
    for given, share in zip(graph.inputs, ragged.inputs, strict=True):
        name = name_of(given)
        sizes = {"a": 1, "b": 0}
        none = np.empty([e.evaluate(sizes) for e in given.shape], given.dtype.numpy)
        if share.part == "sequences":
            none = none.take([], share.axis)
        parts = [none, *(single[name] for single in singles)]
        packed[name] = parts[-1] if share.part == "whole" else np.concatenate(parts, share.axis)
    with np.errstate(all="ignore"):
        got = run_packed(ragged, packed, lengths)
        for number, length in enumerate(lengths):
            want = evaluate(graph, singles[number], {"a": 1, "b": length})
            for (name, expected), output in zip(want.items(), got, strict=True):
                shaped = output[number].reshape(expected.shape)
                np.testing.assert_allclose(shaped, expected, 1e-3, 1e-4, err_msg=name)


def without_lengths_alone(graph: Graph) -> Graph:
    """The graph with a table in the place of its input that has the length and no batch."""

    def change(current: Node, operands: tuple[Node, ...]) -> Node:
        if isinstance(current.primitive, Input) and current.primitive.name == "y":
            zero, one = (constant(0),), (constant(1),)
            return node(Slice(zero, current.shape, one), fixed(data(F32, (64,))))
        return same(current, operands)

    changed = mapped(graph, change)
    inputs = tuple(i for i in graph.inputs if name_of(i) != "y")
    return Graph(graph.name, inputs, changed.outputs, graph.scope, labels=changed.labels)


@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_are_split_or_refused(seed: int) -> None:
    """What is not refused gives each sequence what it gets alone; both happen often."""
    chance = np.random.default_rng(seed)
    bodies = taken = 0
    for _ in range(60):
        graph = build(chance.integers(0, 1 << 16, 60).tolist(), int(chance.integers(2, 7)))
        graph = without_lengths_alone(graph)
        if chance.integers(2):
            graph = simplify(graph)
        try:
            ragged = split_ragged(graph, "a", "b")
        except UnsupportedError as error:
            assert error.hint is not None
            continue
        taken += 1
        bodies += bool(ragged.bodies)
        for lengths in LENGTHS:
            assert_same_for_each(graph, ragged, lengths)
    assert taken > 5 and bodies > 2


# ---------------------------------------------------------------- what runs where


class Model:
    """Inputs x [a, b, 8] and row [a, 8], and layers around them."""

    def __init__(self) -> None:
        self.space = Space()
        self.a, self.b = self.space.dimensions("a b")
        self.x = self.space.input("x", F32, self.a, self.b, constant(8))
        self.row = self.space.input("row", F32, self.a, constant(8))

    def dense(self, x: Node) -> Node:
        return node(Contract((), ((x.rank - 1, 0),)), x, fixed(data(F32, (8, 8)) * 0.3))

    def heads(self, x: Node) -> Node:
        parts = node(Reshape((self.a, self.b, constant(2), constant(4))), x)
        return node(Transpose((0, 2, 1, 3)), parts)

    def attention(self, x: Node) -> Node:
        q, k, v = (self.heads(self.dense(part)) for part in (x, apply("negate", x), x))
        scores = node(Contract(((0, 0), (1, 1)), ((3, 3),)), q, k)
        top = spread(node(Reduce("maximum", (3,)), scores), scores.shape, (0, 1, 2))
        powers = apply("exponential", apply("subtract", scores, top))
        total = spread(node(Reduce("sum", (3,)), powers), scores.shape, (0, 1, 2))
        context = node(Contract(((0, 0), (1, 1)), ((3, 2),)), apply("divide", powers, total), v)
        joined = node(
            Reshape((self.a, self.b, constant(8))), node(Transpose((0, 2, 1, 3)), context)
        )
        return apply("add", x, self.dense(joined))

    def split(self, *outputs: Node) -> RaggedGraph:
        graph = self.space.graph(*outputs)
        ragged = split_ragged(graph, "a", "b")
        for lengths in LENGTHS:
            assert_same_for_each(graph, ragged, lengths)
        return ragged


def test_only_attention_is_cut_into_sequences() -> None:
    model = Model()
    once = model.attention(model.x)
    ragged = model.split(model.attention(once))
    assert len(ragged.bodies) == 1  # the layers are alike
    calls = [n for n in ragged.graph.nodes() if isinstance(n.primitive, Opaque)]
    assert len(calls) == 2
    (body,) = ragged.bodies
    products = [n for n in body.graph.nodes() if isinstance(n.primitive, Contract)]
    assert len(products) == 2  # those with weights run packed
    assert {share.part for share in (*body.operands, *body.results)} == {"positions"}
    # Heads are split and joined in the body, so that slices of what it reads are contiguous.
    assert all(share.axis == 1 for share in (*body.operands, *body.results))


def test_positions_are_looked_up_in_a_body() -> None:
    model = Model()
    table = fixed(data(F32, (64, 8)))
    zero, one = constant(0), constant(1)
    rows = node(Slice((zero, zero), (model.b, constant(8)), (one, one)), table)
    every = node(Broadcast((model.a, model.b, constant(8)), (1, 2)), rows)
    ragged = model.split(model.dense(apply("add", model.x, every)))
    (body,) = ragged.bodies
    assert len(body.graph.nodes()) == 2 and len(body.graph.inputs) == 1


def test_what_each_sequence_has_once_runs_for_all_of_them() -> None:
    model = Model()
    mean = node(Reduce("sum", (1,)), model.x)
    classes = model.dense(apply("add", mean, model.row))
    ragged = model.split(classes)
    assert ragged.outputs[0].part == "sequences"
    (body,) = ragged.bodies
    assert not any(isinstance(n.primitive, Contract) for n in body.graph.nodes())


def test_rows_are_given_to_bodies() -> None:
    model = Model()
    every = node(Broadcast(model.x.shape, (0, 2)), model.row)
    ragged = model.split(model.dense(apply("add", model.x, every)))
    (body,) = ragged.bodies
    assert "sequences" in {share.part for share in body.operands}


def test_several_results_of_a_body() -> None:
    model = Model()
    running = node(Reduce("maximum", (1,)), model.x)
    least = node(Reduce("minimum", (1,)), model.x)
    ragged = model.split(model.dense(running), model.dense(least), model.x)
    assert len(ragged.bodies) == 1 and len(ragged.bodies[0].results) == 2
    assert any(isinstance(n.primitive, Project) for n in ragged.graph.nodes())


def test_guards_are_checked_where_their_sizes_are_known() -> None:
    model = Model()
    most = Guard(less_equal(model.b, 16), "sequence is too long")
    batch = Guard(less_equal(model.a, 9), "too many sequences")
    graph = model.space.graph(model.attention(model.x))
    guarded = Graph(graph.name, graph.inputs, graph.outputs, graph.scope, guards=(most, batch))
    ragged = split_ragged(guarded, "a", "b")
    assert ragged.graph.guards == (batch,)
    assert ragged.bodies[0].graph.guards == (most,)


# ---------------------------------------------------------------- refusals


def shifted(model: Model, size: Expr) -> Node:
    shape = (model.a, model.b, constant(8))
    counted = node(Dimension(size))
    return apply("add", model.x, spread(node_as_float(counted), shape))


def node_as_float(x: Node) -> Node:
    from tilewright.ir.primitives import Cast

    return node(Cast(F32), x)


@pytest.mark.parametrize(
    ("case", "problem"),
    [
        ("mean", "mixes sequences"),
        ("count", "depends on the number of sequences"),
        ("number", "depends on the number of a sequence"),
        ("pick", "mixes sequences"),
        ("pairs", "mixes sequences"),
        ("order", "mixes sequences"),
    ],
)
def test_what_mixes_sequences_is_refused(case: str, problem: str) -> None:
    model = Model()
    x = model.x
    made = {
        "mean": lambda: apply("add", x, spread(node(Reduce("sum", (0,)), x), x.shape, (1, 2))),
        "count": lambda: shifted(model, model.a),
        "number": lambda: apply("add", x, node_as_float(node(Iota(x.shape, 0)))),
        "pick": lambda: node(Gather(0), x, node(Dimension(constant(0)))),
        "pairs": lambda: node(Contract((), ((2, 1),)), x, model.row),
        "order": lambda: node(Reshape((model.b * model.a, constant(8))),
                              node(Transpose((1, 0, 2)), x)),
    }[case]()  # fmt: skip
    with pytest.raises(UnsupportedError, match=problem):
        split_ragged(model.space.graph(made), "a", "b")


def test_results_for_pairs_of_positions_are_refused() -> None:
    model = Model()
    pairs = node(Contract(((0, 0),), ((2, 2),)), model.x, model.x)
    with pytest.raises(UnsupportedError, match="An output has neither") as caught:
        split_ragged(model.space.graph(pairs), "a", "b")
    assert "out" in str(caught.value.where)


def test_an_input_of_lengths_alone_is_refused() -> None:
    model = Model()
    places = model.space.input("places", F32, model.b)
    made = apply("add", model.x, spread(places, model.x.shape, (1,)))
    with pytest.raises(UnsupportedError, match="an input without the size a"):
        split_ragged(model.space.graph(made), "a", "b")


def test_a_length_may_be_used_as_a_number() -> None:
    model = Model()
    ragged = model.split(model.dense(shifted(model, model.b)))
    assert len(ragged.bodies) == 1


def test_an_axis_is_carried_through_reshapes() -> None:
    model = Model()
    x = node(Reshape((model.a * model.b, constant(8))), model.x)
    assert carried(x, 0, 0) == 0  # it begins with the batch
    assert carried(x, 0, 1) is None
    assert carried(node(Reshape((model.a, model.b, constant(8))), x), 0, 0) == 0
    assert carried(node(Reshape((model.a, constant(1), model.b, constant(8))), x), 0, 0) == 0
    assert scalar(0.0).rank == 0
