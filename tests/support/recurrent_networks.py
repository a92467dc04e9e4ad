"""Operands of RNN, GRU and LSTM, and what they mean: loops over rows and steps in float64."""

from __future__ import annotations

import numpy as np

from support.operator_harness import Array

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STATES = {"RNN": 1, "GRU": 1, "LSTM": 2}
Operands = list[Array | None]


def _random(*shape: int, seed: int = 0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) / 2).astype(np.float32)


def operands(
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


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def naive(
    name: str, given: Operands, lengths: Array, backward: bool, reset_first: bool = False
) -> list[Array]:
    """One direction, each sequence by itself, in float64: Y [S, B, H] and the final states."""
    x, w, r, bias = (np.asarray(v, np.float64) for v in given[:4])
    w, r, bias = w[0], r[0], bias[0]
    hidden = r.shape[1]
    wb, rb = np.split(bias, 2)
    states = [np.asarray(v, np.float64)[0].copy() for v in given[5 : 5 + STATES[name]]]
    y = np.zeros((x.shape[0], x.shape[1], hidden))
    p = np.asarray(given[7], np.float64)[0] if name == "LSTM" else np.zeros(3 * hidden)
    p_i, p_o, p_f = np.split(p, 3)
    for n in range(x.shape[1]):
        order = range(lengths[n])
        for t in reversed(order) if backward else order:
            h = states[0][n]
            if name == "RNN":
                h = np.tanh(x[t, n] @ w.T + h @ r.T + wb + rb)
            elif name == "GRU":
                a, c = x[t, n] @ w.T + wb, h @ r.T + rb
                z = sigmoid(a[:hidden] + c[:hidden])
                e = sigmoid(a[hidden : 2 * hidden] + c[hidden : 2 * hidden])
                if reset_first:
                    u = e * c[2 * hidden :]
                else:
                    u = (e * h) @ r[2 * hidden :].T + rb[2 * hidden :]
                h = (1 - z) * np.tanh(a[2 * hidden :] + u) + z * h
            else:
                cell = states[1][n]
                i, o, f, c = np.split(x[t, n] @ w.T + h @ r.T + wb + rb, 4)
                cell_next = sigmoid(f + p_f * cell) * cell + sigmoid(i + p_i * cell) * np.tanh(c)
                h = sigmoid(o + p_o * cell_next) * np.tanh(cell_next)
                states[1][n] = cell_next
            states[0][n] = h
            y[t, n] = h
    return [v.astype(np.float32) for v in (y, *states)]
