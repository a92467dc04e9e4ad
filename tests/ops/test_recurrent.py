"""RNN, GRU and LSTM, unrolled: options, directions and lengths against loops and the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from support.operator_harness import Array, check_node, compare, fission, run
from tilewright.ops.record import NoRule
from tilewright.ops.reference import evaluate_payload
from tilewright.support.errors import InvalidModelError

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STATES = {"RNN": 1, "GRU": 1, "LSTM": 2}
Operands = list[Array | None]


def _random(*shape: int, seed: int = 0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) / 2).astype(np.float32)


def _operands(
    name: str, steps: int, batch: int, directions: int, batch_first: bool = False
) -> Operands:
    """X, W, R, B, sequence_lens (none), initial states, and peepholes for LSTM."""
    gates, size, hidden = GATES[name], 3, 4
    states: list[Array | None] = [
        _random(*((batch, directions) if batch_first else (directions, batch)), hidden, seed=5 + i)
        for i in range(STATES[name])
    ]
    peepholes: Operands = [_random(directions, 3 * hidden, seed=9)] if name == "LSTM" else []
    return [
        _random(*((batch, steps) if batch_first else (steps, batch)), size, seed=1),
        _random(directions, gates * hidden, size, seed=2),
        _random(directions, gates * hidden, hidden, seed=3),
        _random(directions, 2 * gates * hidden, seed=4),
        None,
        *states,
        *peepholes,
    ]


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def naive(
    name: str, operands: Operands, lengths: Array, backward: bool, reset_first: bool = False
) -> list[Array]:
    """One direction, each sequence by itself, in float64: Y [S, B, H] and the final states."""
    x, w, r, bias = (np.asarray(v, np.float64) for v in operands[:4])
    w, r, bias = w[0], r[0], bias[0]
    hidden = r.shape[1]
    wb, rb = np.split(bias, 2)
    states = [np.asarray(v, np.float64)[0].copy() for v in operands[5 : 5 + STATES[name]]]
    y = np.zeros((x.shape[0], x.shape[1], hidden))
    p = np.asarray(operands[7], np.float64)[0] if name == "LSTM" else np.zeros(3 * hidden)
    p_i, p_o, p_f = np.split(p, 3)
    for n in range(x.shape[1]):
        order = range(lengths[n])
        for t in reversed(order) if backward else order:
            h = states[0][n]
            if name == "RNN":
                h = np.tanh(x[t, n] @ w.T + h @ r.T + wb + rb)
            elif name == "GRU":
                a, c = x[t, n] @ w.T + wb, h @ r.T + rb
                z = _sigmoid(a[:hidden] + c[:hidden])
                e = _sigmoid(a[hidden : 2 * hidden] + c[hidden : 2 * hidden])
                if reset_first:
                    u = e * c[2 * hidden :]
                else:
                    u = (e * h) @ r[2 * hidden :].T + rb[2 * hidden :]
                h = (1 - z) * np.tanh(a[2 * hidden :] + u) + z * h
            else:
                cell = states[1][n]
                i, o, f, c = np.split(x[t, n] @ w.T + h @ r.T + wb + rb, 4)
                cell_next = _sigmoid(f + p_f * cell) * cell + _sigmoid(i + p_i * cell) * np.tanh(c)
                h = _sigmoid(o + p_o * cell_next) * np.tanh(cell_next)
                states[1][n] = cell_next
            states[0][n] = h
            y[t, n] = h
    return [v.astype(np.float32) for v in (y, *states)]


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


def test_batches_of_unknown_size_and_longer_sequences() -> None:
    operands = _operands("LSTM", 3, 2, 1)
    with pytest.raises(NoRule, match="unrolled"):
        fission("LSTM", operands, {"hidden_size": 4}, opset=14, outputs=3)
    with pytest.raises(NoRule, match="65 steps"):
        fission(
            "LSTM", _operands("LSTM", 65, 1, 1), {"hidden_size": 4}, opset=14, outputs=3,
            symbolic=False,
        )  # fmt: skip


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
        ("Sigmoid", None, None, _sigmoid),
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
