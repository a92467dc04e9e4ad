"""RNN, GRU and LSTM, unrolled and not: options and lengths against loops and the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from support.operator_harness import Array, check_node, compare, fission, run
from support.recurrent_networks import GATES, STATES, Operands, naive, sigmoid
from support.recurrent_networks import operands as _operands
from tilewright.ir.graph import Graph
from tilewright.ir.primitives import Recurrence
from tilewright.ops.record import NoRule
from tilewright.ops.reference import evaluate_payload
from tilewright.support.errors import InvalidModelError


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", sorted(GATES))
def test_sequences_of_different_lengths(name: str, backward: bool) -> None:
    operands = _operands(name, 5, 3, 1)
    operands[4] = np.array([5, 2, 0], np.int32)
    expected = naive(name, operands, np.array([5, 2, 0]), backward)
    wanted = [expected[0][:, None], *(v[None] for v in expected[1:])]
    attributes = {"hidden_size": 4, "direction": "reverse" if backward else "forward"}
    check_node(
        name, operands, attributes, 14, len(wanted), symbolic=False, expected=wanted, length=8
    )


@pytest.mark.parametrize("reset_first", [0, 1])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("name", sorted(GATES))
def test_both_directions(name: str, batch_first: bool, reset_first: int) -> None:
    operands = _operands(name, 4, 2, 2, batch_first)
    attributes: dict[str, Any] = {
        "hidden_size": 4, "direction": "bidirectional", "layout": int(batch_first),
    }  # fmt: skip
    if name == "GRU":
        attributes["linear_before_reset"] = reset_first

    def one(index: int) -> Operands:
        out: Operands = []
        for i, v in enumerate(operands):
            if v is None or i == 0:
                out.append(v if v is None or not batch_first else v.swapaxes(0, 1))
            else:
                moved = v.swapaxes(0, 1) if batch_first and i in (5, 6) else v
                out.append(moved[index : index + 1])
        return out

    full = np.array([4, 4])
    runs = [naive(name, one(i), full, bool(i), bool(reset_first)) for i in (0, 1)]
    y = np.stack([runs[0][0], runs[1][0]], axis=1)
    finals = [np.stack([a, c]) for a, c in zip(runs[0][1:], runs[1][1:], strict=True)]
    if batch_first:
        y, finals = y.transpose(2, 0, 1, 3), [f.swapaxes(0, 1) for f in finals]
    check_node(
        name, operands, attributes, 14, 1 + len(finals), symbolic=False,
        expected=[y, *finals], length=8,
    )  # fmt: skip


def _lengths_unknown(name: str, attributes: dict[str, Any]) -> Graph:
    """The graph of operands whose sizes are symbols, but those of the weights."""
    given = _operands(name, 3, 2, 1)
    given[4] = np.array([3, 1], np.int32)
    weights = [1, 2, 3, *([7] if name == "LSTM" else [])]
    return fission(
        name, given, attributes, opset=14, outputs=1 + STATES[name], constants=weights
    )  # fmt: skip


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("reset_first", [0, 1])
@pytest.mark.parametrize("name", sorted(GATES))
def test_sequences_of_unknown_length(name: str, reset_first: int, backward: bool) -> None:
    attributes: dict[str, Any] = {"hidden_size": 4}
    attributes["direction"] = "reverse" if backward else "forward"
    if name == "GRU":
        attributes["linear_before_reset"] = reset_first
    graph = _lengths_unknown(name, attributes)
    assert sum(isinstance(n.primitive, Recurrence) for n in graph.nodes()) == 1
    for steps, lengths in ((5, [5, 2, 0]), (1, [1]), (0, [0, 0]), (3, []), (67, [67, 31])):
        operands = _operands(name, steps, len(lengths), 1)
        operands[4] = np.array(lengths, np.int32)
        wanted = naive(name, operands, np.array(lengths, int), backward, bool(reset_first))
        expected = [wanted[0][:, None], *(v[None] for v in wanted[1:])]
        given = [None if i in (1, 2, 3, 7) else v for i, v in enumerate(operands)]
        for found, other in zip(run(graph, given), expected, strict=True):
            compare(found, other, length=8 * max(steps, 1))


def test_what_is_unrolled() -> None:
    """A few steps, which other work can join, and more of states whose number is unknown."""
    few = fission("LSTM", _operands("LSTM", 4, 2, 1), {}, opset=14, outputs=3, symbolic=False)
    assert not any(isinstance(n.primitive, Recurrence) for n in few.nodes())
    operands = _operands("LSTM", 3, 2, 1)
    with pytest.raises(NoRule, match="unrolled"):
        fission("LSTM", operands, {}, opset=14, outputs=3)


def test_operands_left_out_are_zeros() -> None:
    x, w, r = _operands("LSTM", 3, 2, 1)[:3]
    check_node("LSTM", [x, w, r], {"hidden_size": 4}, 14, 3, symbolic=False, length=8)


def test_activations_with_parameters_clip_and_coupled_gates() -> None:
    operands = _operands("RNN", 2, 2, 1)
    graph = fission(
        "RNN", operands, {"activations": ["LeakyRelu"], "activation_alpha": [0.5], "clip": 0.3},
        opset=14, symbolic=False,
    )  # fmt: skip
    x, w, r, bias, _, h = (np.asarray(v, np.float64) for v in operands)
    state, rows = h[0], []
    for t in range(2):
        total = x[t] @ w[0].T + state @ r[0].T + bias[0, :4] + bias[0, 4:]
        total = np.clip(total, -0.3, 0.3)
        state = np.where(total < 0, 0.5 * total, total)
        rows.append(state)
    compare(run(graph, operands)[0], np.stack(rows)[:, None].astype(np.float32), length=8)


@pytest.mark.parametrize(
    ("name", "alpha", "beta", "function"),
    [
        ("Affine", 0.5, 0.25, lambda v: 0.5 * v + 0.25),
        ("Elu", 0.5, None, lambda v: np.where(v < 0, 0.5 * np.expm1(v), v)),
        ("HardSigmoid", 0.3, 0.4, lambda v: np.clip(0.3 * v + 0.4, 0, 1)),
        ("Relu", None, None, lambda v: np.maximum(v, 0)),
        ("ScaledTanh", 0.5, 2.0, lambda v: 0.5 * np.tanh(2.0 * v)),
        ("Sigmoid", None, None, sigmoid),
        ("Softplus", None, None, lambda v: np.log1p(np.exp(v))),
        ("Softsign", None, None, lambda v: v / (1 + np.abs(v))),
        ("ThresholdedRelu", 0.2, None, lambda v: np.where(v > 0.2, v, 0)),
    ],
)
def test_activation(name: str, alpha: float | None, beta: float | None, function: Any) -> None:
    x, w, r = _operands("RNN", 1, 5, 1)[:3]
    assert x is not None and w is not None
    attributes: dict[str, Any] = {"activations": [name]}
    if alpha is not None:
        attributes["activation_alpha"] = [alpha]
    if beta is not None:
        attributes["activation_beta"] = [beta]
    expected = function(x[0].astype(np.float64) @ w[0].T.astype(np.float64))
    wanted = expected.astype(np.float32)[None, None]
    check_node("RNN", [x, w, r], attributes, 14, symbolic=False, expected=[wanted], length=8)


def test_what_does_not_fit() -> None:
    operands = _operands("GRU", 2, 2, 1)
    for attributes in (
        {"hidden_size": 5},
        {"direction": "sideways"},
        {"direction": "bidirectional"},
    ):
        with pytest.raises(InvalidModelError):
            fission("GRU", operands, attributes, opset=14, symbolic=False)
    with pytest.raises(NoRule):
        fission("GRU", operands, {"activations": ["Mystery", "Tanh"]}, opset=14, symbolic=False)


def _not_unrolled(name: str, operands: Operands, attributes: dict[str, Any]) -> list[Array]:
    """All outputs, by what runs sequences of unknown length."""
    reads = [f"x{i}" for i in range(len(operands))]
    results = ["y", "y_h", "y_c"][: 1 + STATES[name]]
    made = [
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None)
        for n in (*reads, *results)
    ]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(name, reads, results, **attributes)],
        "recurrent",
        made[: len(reads)],
        made[len(reads) :],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)])
    return evaluate_payload(model.SerializeToString(), [np.asarray(v) for v in operands])


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("reset_first", [0, 1])
@pytest.mark.parametrize("name", sorted(GATES))
def test_lengths_of_rows_where_sequences_are_not_unrolled(
    name: str, reset_first: int, directions: int
) -> None:
    """What the reference evaluator takes for as long as the longest row."""
    attributes: dict[str, Any] = {"hidden_size": 4}
    attributes["direction"] = "bidirectional" if directions == 2 else "reverse"
    if name == "GRU":
        attributes["linear_before_reset"] = reset_first
    for steps, lengths in ((5, [5, 2, 0]), (1, [1]), (0, [0, 0]), (3, [])):
        operands = _operands(name, steps, len(lengths), directions)
        operands[4] = np.array(lengths, np.int32)
        found = _not_unrolled(name, operands, attributes)
        for index in range(directions):
            own = [
                v if v is None or i == 0 else v[index : index + 1] for i, v in enumerate(operands)
            ]
            backward = index == 1 or directions == 1
            wanted = naive(name, own, np.array(lengths, int), backward, bool(reset_first))
            made = [found[0][:, index], *(state[index] for state in found[1:])]
            for got, expected in zip(made, wanted, strict=True):
                compare(np.asarray(got), expected, length=8)


@pytest.mark.parametrize("activation", ["Relu", "Elu", "HardSigmoid", "Softplus", "ScaledTanh"])
def test_activations_where_sequences_are_not_unrolled(activation: str) -> None:
    operands = _operands("RNN", 2, 5, 1)[:3]
    attributes = {"activations": [activation], "clip": 0.4}
    unrolled = fission("RNN", operands, attributes, opset=14, symbolic=False)
    (found, _) = _not_unrolled("RNN", operands, attributes)
    compare(found, run(unrolled, operands)[0], length=8)
