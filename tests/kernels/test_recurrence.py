"""Recurrent networks over sequences of any length, as kernels, against loops in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from support import turns
from support.graph_kit import Compiled, compare_outputs
from support.operator_harness import Array, compare
from support.recurrent_networks import GATES, STATES, naive, sigmoid
from support.tile_runs import TileRun
from tilewright.backend.cpu.machine import host_levels
from tilewright.frontend.onnx import import_model
from tilewright.plan.prepare import prepare
from tilewright.rewrite import simplify
from tilewright.tile.lower import LoweredKernel
from tilewright.tile.variants import THREADS

SIZES = [(1, 1), (0, 3), (5, 0), (2, 7), (3, 8), (9, 33)]  # steps and rows
Sizes = tuple[int, int]


def _weights(name: str, directions: int, inputs: int, hidden: int) -> dict[str, Array]:
    """Weights with which states neither vanish nor grow."""
    random = np.random.default_rng(hidden)
    gates = GATES[name]
    shapes = {
        "w": (directions, gates * hidden, inputs),
        "r": (directions, gates * hidden, hidden),
        "b": (directions, 2 * gates * hidden),
        "p": (directions, 3 * hidden),
    }
    return {
        key: (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        for key, shape in shapes.items()
    }


def _model(name: str, weights: dict[str, Array], attributes: dict[str, Any]) -> onnx.ModelProto:
    """One operator whose steps and rows are known in a call only."""
    directions, _, inputs = weights["w"].shape
    hidden = weights["r"].shape[2]
    states = [f"h{i}" for i in range(STATES[name])]
    reads = ["x", "w", "r", "b", "lengths", *states, *(["p"] if name == "LSTM" else [])]
    writes = ["y", *(f"last_{state}" for state in states)]
    made = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(name, reads, writes, hidden_size=hidden, **attributes)],
        "recurrent",
        [
            made("x", TensorProto.FLOAT, ["steps", "rows", inputs]),
            made("lengths", TensorProto.INT32, ["rows"]),
            *(made(s, TensorProto.FLOAT, [directions, "rows", hidden]) for s in states),
        ],
        [made(w, TensorProto.FLOAT, None) for w in writes],
        [numpy_helper.from_array(weights[key], key) for key in ("w", "r", "b", "p")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=9)


def _feeds(name: str, weights: dict[str, Array], sizes: Sizes) -> dict[str, Array]:
    steps, rows = sizes
    random = np.random.default_rng(steps)
    directions, _, inputs = weights["w"].shape
    hidden = weights["r"].shape[2]
    lengths = random.integers(0, steps + 1, rows)
    lengths[:1] = steps
    states = {
        f"h{i}": random.standard_normal((directions, rows, hidden)).astype(np.float32)
        for i in range(STATES[name])
    }
    x = random.standard_normal((steps, rows, inputs)).astype(np.float32)
    return {"x": x, "lengths": lengths.astype(np.int32), **states}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("sizes", [(3, 5), (16, 40)])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("name", "reset_first"), [("GRU", 0), ("GRU", 1), ("LSTM", 0), ("RNN", 0)])
def test_every_length(name: str, reset_first: int, direction: str, sizes: Sizes) -> None:
    attributes: dict[str, Any] = {"direction": direction}
    if name == "GRU":
        attributes["linear_before_reset"] = reset_first
    weights = _weights(name, 2 if direction == "bidirectional" else 1, *sizes)
    model = tw.compile(_model(name, weights, attributes), fallback="error")
    for shape in SIZES:
        feeds = _feeds(name, weights, shape)
        found = list(model.run(feeds).values())
        for index in range(weights["w"].shape[0]):
            one = {key: value[index : index + 1] for key, value in weights.items()}
            states = [feeds[f"h{i}"][index : index + 1] for i in range(STATES[name])]
            operands = [feeds["x"], one["w"], one["r"], one["b"], None, *states, one["p"]]
            backward = direction == "reverse" or index == 1
            lengths = feeds["lengths"].astype(int)
            wanted = naive(name, operands, lengths, backward, bool(reset_first))
            own = [found[0][:, index], *(state[index] for state in found[1:])]
            for got, expected in zip(own, wanted, strict=True):
                # Every step rounds a sum over its inputs and its states.
                compare(got, expected, length=sum(sizes) * max(shape[0], 1))


def test_weights_that_are_inputs_and_halves() -> None:
    """Weights need not be constants; halves are computed in float32."""
    hidden, inputs = 5, 3
    made = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("RNN", ["x", "w", "r"], ["y"], activations=["Sigmoid"])],
        "recurrent",
        [
            made("x", TensorProto.FLOAT16, ["steps", "rows", inputs]),
            made("w", TensorProto.FLOAT16, [1, hidden, inputs]),
            made("r", TensorProto.FLOAT16, [1, hidden, hidden]),
        ],
        [made("y", TensorProto.FLOAT16, None)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=9)
    model = tw.compile(proto, fallback="error")
    random = np.random.default_rng(1)
    for steps, rows in SIZES:
        shapes = ((steps, rows, inputs), (1, hidden, inputs), (1, hidden, hidden))
        x, w, r = (random.standard_normal(shape).astype(np.float16) for shape in shapes)
        wide = [v.astype(np.float64) for v in (x, w[0], r[0])]
        state, wanted = np.zeros((rows, hidden)), np.zeros((steps, 1, rows, hidden))
        for step in range(steps):
            state = sigmoid(wide[0][step] @ wide[1].T + state @ wide[2].T)
            wanted[step, 0] = state
        compare(model(x, w, r), wanted.astype(np.float16), length=2)


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("sizes", [(3, 40), (2, 70)])
@pytest.mark.parametrize("variant", ["rows", "units"])
def test_machine_code_is_what_the_tile_program_means(name: str, sizes: Sizes, variant: str) -> None:
    """With panels of weights that are not full, and rows and units that do not come out even."""
    weights = _weights(name, 1, *sizes)
    attributes = {"linear_before_reset": 1} if name == "GRU" else {}
    graph = prepare(simplify(import_model(_model(name, weights, attributes)).graph))

    def number(lowered: LoweredKernel) -> int:
        names = [v.name for v in lowered.variants]
        return names.index(variant) if variant in names else 0

    for level in turns.taken([level for level in host_levels() if level.serves(None)]):
        compiled = Compiled(graph, (level.name,))
        run = TileRun(graph, compiled.levels[level.name].lowered)
        choices = compiled.levels[level.name].program.choices
        chosen = {c.symbol: c.names.index(variant) for c in choices if variant in c.names}
        assert chosen
        for steps, rows in SIZES:
            given, feeds = {"steps": steps, "rows": rows}, _feeds(name, weights, (steps, rows))
            want = run.outputs(feeds, {**given, THREADS: 2}, number)
            got = compiled.guarded(level.name, feeds, given, chosen=chosen, pieces=2)
            compare_outputs(graph, got, want, (sum(sizes) * (steps + 1), 4.0), f"{steps}, {rows}")


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_that_share_the_units_of_each_step(threads: int) -> None:
    """Long sequences of few rows, with as many threads as there are processors, and with more."""
    weights = _weights("LSTM", 1, 4, 200)
    model = tw.compile(_model("LSTM", weights, {}), num_threads=threads)
    for steps, rows in ((90, 1), (7, 3)):
        feeds = _feeds("LSTM", weights, (steps, rows))
        used = [k for k in model.explain(steps=steps, rows=rows) if k.variant == "units"]
        assert bool(used) is (threads > 1)
        states = [feeds["h0"], feeds["h1"]]
        operands = [feeds["x"], weights["w"], weights["r"], weights["b"], None, *states]
        wanted = naive("LSTM", [*operands, weights["p"]], feeds["lengths"].astype(int), False)
        for _ in range(5):
            found = list(model.run(feeds).values())
            own = [found[0][:, 0], *(state[0] for state in found[1:])]
            for got, expected in zip(own, wanted, strict=True):
                compare(got, expected, length=204 * steps)
