"""RNN, GRU and LSTM in numpy, for sequences that are not unrolled.

The reference evaluator takes every sequence for as long as the longest one and knows three
activations. Here rows keep their states beyond their own length, where outputs are 0, and every
activation of the standard is there. The products with the inputs are one for all steps. May import
numpy and onnx. Start with :class:`_Recurrent`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

Array = np.ndarray[Any, Any]
Activation = Callable[[Array], Array]

# The standard's defaults of alpha and beta; None where the function has none.
PARAMETERS: dict[str, tuple[float | None, float | None]] = {
    "affine": (1.0, 0.0),
    "elu": (1.0, None),
    "hardsigmoid": (0.2, 0.5),
    "leakyrelu": (0.01, None),
    "relu": (None, None),
    "scaledtanh": (1.0, 1.0),
    "sigmoid": (None, None),
    "softplus": (None, None),
    "softsign": (None, None),
    "tanh": (None, None),
    "thresholdedrelu": (1.0, None),
}


def _sigmoid(x: Array) -> Array:
    # The same as 1 / (1 + exp(-x)), without an overflow.
    return 0.5 * (1 + np.tanh(0.5 * x))


def _activation(name: str, alpha: float, beta: float) -> Activation:
    table: dict[str, Activation] = {
        "affine": lambda x: alpha * x + beta,
        "elu": lambda x: np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x),
        "hardsigmoid": lambda x: np.clip(alpha * x + beta, 0, 1),
        "leakyrelu": lambda x: np.where(x < 0, alpha * x, x),
        "relu": lambda x: np.maximum(x, 0),
        "scaledtanh": lambda x: alpha * np.tanh(beta * x),
        "sigmoid": _sigmoid,
        "softplus": lambda x: np.logaddexp(x, 0),
        "softsign": lambda x: x / (1 + np.abs(x)),
        "tanh": np.tanh,
        "thresholdedrelu": lambda x: np.where(x > alpha, x, 0),
    }
    return table[name]


class _Direction:
    """One direction of an operator: its weights, and what a step computes."""

    def __init__(self, owner: _Recurrent, index: int, operands: Sequence[Array | None]) -> None:
        w, r, b, p = (None if operand is None else operand[index] for operand in operands)
        assert w is not None and r is not None, "weights are not optional"
        hidden = r.shape[-1]
        bias = np.zeros(2 * len(r), r.dtype) if b is None else b
        self.weights, self.recurrent = w.T, r.T
        self.input_bias, self.recurrent_bias = bias[: len(r)], bias[len(r) :]
        self.peepholes = np.zeros(3 * hidden, r.dtype) if p is None else p
        self.functions = owner.functions[index * owner.used : (index + 1) * owner.used]
        self.clip, self.options = owner.clip, owner.options

    def apply(self, number: int, x: Array) -> Array:
        """Activation ``number`` of what is clipped first."""
        if self.clip > 0:
            x = np.clip(x, -self.clip, self.clip)
        return self.functions[number](x)


class _Recurrent(OpRun):
    """What the three operators share: options, directions, lengths and layouts."""

    op_domain = ""
    used = 1  # activations of a direction
    states = 1
    defaults: tuple[str, ...] = ()
    functions: list[Activation]
    clip: float
    options: dict[str, Any]

    def step(self, d: _Direction, x: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        """The states after one step of [B, G] inputs."""
        raise NotImplementedError

    def _run(self, *operands: Array | None, **options: Any) -> tuple[Array, ...]:  # type: ignore[override]
        given = [*operands, *[None] * (8 - len(operands))]
        x, w, r, b, lengths = given[:5]
        assert x is not None and w is not None and r is not None, "operands are checked before"
        firsts, peepholes = given[5 : 5 + self.states], given[7] if self.states == 2 else None
        batch_first = bool(options.get("layout"))
        x = np.swapaxes(x, 0, 1) if batch_first else x
        direction = options.get("direction") or "forward"
        count, (steps, batch), hidden = len(w), x.shape[:2], r.shape[-1]
        self.clip, self.options = float(options.get("clip") or 0), options
        self.functions = self._functions(count)
        ends = np.full(batch, steps) if lengths is None else np.asarray(lengths)
        y = np.zeros((steps, count, batch, hidden), x.dtype)
        finals = [np.zeros((count, batch, hidden), x.dtype) for _ in range(self.states)]
        for index in range(count):
            d = _Direction(self, index, (w, r, b, peepholes))
            inputs = x @ d.weights + d.input_bias
            state = tuple(_first(f, index, batch_first, finals[0][0]) for f in firsts)
            order = range(steps)
            for time in reversed(order) if direction == "reverse" or index == 1 else order:
                following = self.step(d, inputs[time], state)
                going = (time < ends)[:, None]
                y[time, index] = np.where(going, following[0], 0)
                state = tuple(
                    np.where(going, new, old) for new, old in zip(following, state, strict=True)
                )
            for final, last in zip(finals, state, strict=True):
                final[index] = last
        if batch_first:
            y, finals = y.transpose(2, 0, 1, 3), [f.transpose(1, 0, 2) for f in finals]
        made = tuple(v.astype(x.dtype, copy=False) for v in (y, *finals))
        return made[: max(1, len(self.output))]

    def _functions(self, count: int) -> list[Activation]:
        """The activations of all directions; alphas and betas are for those that use them."""
        names = list(self.options.get("activations") or self.defaults * count)
        alphas = list(self.options.get("activation_alpha") or [])
        betas = list(self.options.get("activation_beta") or [])
        made: list[Activation] = []
        for name in names:
            alpha, beta = PARAMETERS[name.lower()]
            alpha = alphas.pop(0) if alpha is not None and alphas else alpha
            beta = betas.pop(0) if beta is not None and betas else beta
            made.append(_activation(name.lower(), alpha or 0.0, beta or 0.0))
        return made


def _first(given: Array | None, index: int, batch_first: bool, zeros: Array) -> Array:
    if given is None:
        return np.zeros_like(zeros)
    return given[:, index] if batch_first else given[index]


class RNN(_Recurrent):
    """One activation of the inputs and the state."""

    defaults = ("Tanh",)

    def step(self, d: _Direction, x: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        """See :meth:`_Recurrent.step`."""
        return (d.apply(0, x + state[0] @ d.recurrent + d.recurrent_bias),)


class GRU(_Recurrent):
    """Gates: update z, reset r, and the proposed state h."""

    used, defaults = 2, ("Sigmoid", "Tanh")

    def step(self, d: _Direction, x: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        """See :meth:`_Recurrent.step`."""
        (hidden,) = state
        size = hidden.shape[1]
        gates, proposal = slice(0, 2 * size), slice(2 * size, None)
        both = d.apply(0, x[:, gates] + hidden @ d.recurrent[:, gates] + d.recurrent_bias[gates])
        update, reset = both[:, :size], both[:, size:]
        weights, bias = d.recurrent[:, proposal], d.recurrent_bias[proposal]
        if d.options.get("linear_before_reset"):
            kept = reset * (hidden @ weights + bias)
        else:
            kept = (reset * hidden) @ weights + bias
        return ((1 - update) * d.apply(1, x[:, proposal] + kept) + update * hidden,)


class LSTM(_Recurrent):
    """Gates: input i, output o, forget f, and the proposed cell c."""

    used, states, defaults = 3, 2, ("Sigmoid", "Tanh", "Tanh")

    def step(self, d: _Direction, x: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        """See :meth:`_Recurrent.step`."""
        hidden, cell = state
        total = x + hidden @ d.recurrent + d.recurrent_bias
        i, o, f, c = np.split(total, 4, axis=1)
        seen_i, seen_o, seen_f = np.split(d.peepholes, 3)
        entering = d.apply(0, i + seen_i * cell)
        coupled = bool(d.options.get("input_forget"))
        kept = 1 - entering if coupled else d.apply(0, f + seen_f * cell)
        following = kept * cell + entering * d.apply(1, c)
        leaving = d.apply(0, o + seen_o * following)
        return leaving * d.apply(2, following), following
