"""RNN, GRU and LSTM: one contraction with the inputs of all steps, then step after step.

The functions of a step are written once. A few steps are unrolled: they are applied to the states
of the batch, and what they build joins the graph around it. For longer sequences, and those whose
length is known in a call only, they are applied to leaves, which makes the body of a
``Recurrence``. Start with ``_sequences``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast as cast_type

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.make import transpose
from tilewright.ir.primitives import Input, Recurrence
from tilewright.ir.recurrence import StepProduct, Steps
from tilewright.ops.build import Builder, cast, scalar
from tilewright.ops.linear import contract
from tilewright.ops.record import NoRule, RuleContext, operator
from tilewright.ops.reference_recurrent import PARAMETERS
from tilewright.ops.types import require_native
from tilewright.shape import Expr, constant
from tilewright.support.errors import InvalidModelError

MOST_UNROLLED = 4  # steps: each is a handful of kernels, which other work can join
LONGEST = 64  # steps that are unrolled where a Recurrence cannot be: each has to be compiled

State = tuple[Node, ...]
Activation = Callable[[Node], Node]


@dataclass(frozen=True)
class Weights:
    """What a recurrent operator multiplies by, whichever way it is stored.

    ``sums`` makes, of the inputs [S, B, I], the products with the weights of one direction,
    [S, B, G * H]; ``recurrent`` holds the weights of states [directions, G * H, H].
    """

    sums: Callable[[Builder, Node, int], Node]
    recurrent: Node


@dataclass(frozen=True)
class _Direction:
    """Weights of one of ``directions``: ``recurrent`` [G * H, H], biases [G * H], activations."""

    b: Builder
    hidden: Expr
    recurrent: Node
    input_bias: Node | None
    recurrent_bias: Node | None
    peepholes: Node | None
    activations: tuple[Activation, ...]
    directions: int
    recorded: list[tuple[StepProduct, tuple[int, int]]] | None = None

    def gate(self, x: Node, index: int) -> Node:
        """Part ``index`` of the last axis, as long as the hidden state."""
        return self.b.slice_axis(x, x.rank - 1, self.hidden * index, self.hidden)

    def rows(self, index: int, count: int = 1) -> Node:
        """Recurrent weights of gates ``index`` to ``index + count``: [count * H, H]."""
        return self.b.slice_axis(self.recurrent, 0, self.hidden * index, self.hidden * count)

    def recur(self, state: Node, first: int, count: int) -> Node:
        """[B, H] times the recurrent weights of gates ``first`` to ``first + count``."""
        if self.recorded is None:
            return contract(self.b, state, self.rows(first, count), [(1, 1)])
        size = self.b.shape([1, self.hidden * count])
        sums = node(Input(f"sums{len(self.recorded)}", state.dtype, size))
        self.recorded.append((StepProduct(state, sums), (first, count)))
        return sums

    def plus_bias(self, x: Node, bias: Node | None, first: int, count: int = 1) -> Node:
        """``x`` plus the biases of gates ``first`` to ``first + count``."""
        if bias is None:
            return x
        return self.b.add(x, self.b.slice_axis(bias, 0, self.hidden * first, self.hidden * count))

    def clipped(self, x: Node) -> Node:
        """The input of an activation, limited by the attribute ``clip``."""
        if not self.b.context.has("clip"):
            return x
        limit = self.b.context.number("clip")
        return self.b.minimum(self.b.maximum(x, -limit), limit)


Step = Callable[[_Direction, Node, State], State]


@operator("RNN", since=7)
def _rnn(context: RuleContext) -> Sequence[Node]:
    return _sequences(context, _rnn_step, 1, ("Tanh",))


@operator("GRU", since=7)
def _gru(context: RuleContext) -> Sequence[Node]:
    return _sequences(context, _gru_step, 3, ("Sigmoid", "Tanh"))


@operator("LSTM", since=7)
def _lstm(context: RuleContext) -> Sequence[Node]:
    return _sequences(context, _lstm_step, 4, ("Sigmoid", "Tanh", "Tanh"))


# ---------------------------------------------------------------- steps


def _rnn_step(d: _Direction, inputs: Node, state: State) -> State:
    total = d.b.add(inputs, d.recur(state[0], 0, 1))
    total = d.plus_bias(total, d.recurrent_bias, 0)
    return (d.activations[0](d.clipped(total)),)


def _gru_step(d: _Direction, inputs: Node, state: State) -> State:
    """Gates: update z, reset r, hidden h."""
    b, (hidden,) = d.b, state
    is_linear_first = b.context.integer("linear_before_reset", 0) != 0
    count = 3 if is_linear_first else 2
    sums = d.plus_bias(d.recur(hidden, 0, count), d.recurrent_bias, 0, count)
    update, reset = (
        d.activations[0](d.clipped(b.add(d.gate(inputs, i), d.gate(sums, i)))) for i in (0, 1)
    )
    if is_linear_first:
        kept = b.multiply(reset, d.gate(sums, 2))
    else:
        kept = d.plus_bias(d.recur(b.multiply(reset, hidden), 2, 1), d.recurrent_bias, 2)
    proposed = d.activations[1](d.clipped(b.add(d.gate(inputs, 2), kept)))
    mixed = b.multiply(b.subtract(scalar(1, update.dtype), update), proposed)
    return (b.add(mixed, b.multiply(update, hidden)),)


def _lstm_step(d: _Direction, inputs: Node, state: State) -> State:
    """Gates: input i, output o, forget f, cell c."""
    b, (hidden, cell) = d.b, state
    total = d.plus_bias(b.add(inputs, d.recur(hidden, 0, 4)), d.recurrent_bias, 0, 4)

    def gate(index: int, peephole: int, seen: Node) -> Node:
        x = d.gate(total, index)
        if d.peepholes is not None:
            x = b.add(x, b.multiply(seen, d.gate(d.peepholes, peephole)))
        return d.activations[0](d.clipped(x))

    entering = gate(0, 0, cell)
    if b.context.integer("input_forget", 0):
        kept = b.subtract(scalar(1, entering.dtype), entering)
    else:
        kept = gate(2, 2, cell)
    proposed = d.activations[1](d.clipped(d.gate(total, 3)))
    following = b.add(b.multiply(kept, cell), b.multiply(entering, proposed))
    leaving = gate(1, 1, following)
    return b.multiply(leaving, d.activations[2](following)), following


# ---------------------------------------------------------------- sequences


def long_short_term_memory(context: RuleContext, weights: Weights) -> list[Node]:
    """The outputs of an LSTM with these weights; operands from the bias on are those of ONNX's."""
    return _of_weights(context, weights, _lstm_step, 4, ("Sigmoid", "Tanh", "Tanh"))


def _sequences(
    context: RuleContext, step: Step, gates: int, defaults: tuple[str, ...]
) -> list[Node]:
    """Y and the final states of a recurrent operator with ``gates`` gates."""
    require_native(context)
    recurrent = context.operand(2)
    count = _directions(context)
    for weights in (context.operand(1), recurrent):
        context.require_equal(weights.shape[0], constant(count), "the number of directions")
    rows = context.operand(1).shape[1]
    context.require_equal(rows, recurrent.shape[1], "rows of the weights differ")

    def sums(b: Builder, x: Node, index: int) -> Node:
        return contract(b, x, _part(b, context.operand(1), index), [(2, 1)])

    return _of_weights(context, Weights(sums, recurrent), step, gates, defaults)


def _directions(context: RuleContext) -> int:
    direction = context.text("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        raise InvalidModelError(f"direction is {direction!r}", where=context.where)
    return 2 if direction == "bidirectional" else 1


def _of_weights(
    context: RuleContext, weights: Weights, step: Step, gates: int, defaults: tuple[str, ...]
) -> list[Node]:
    b = Builder(context)
    batch_first = context.integer("layout", 0) != 0
    x = context.operand(0)
    x = transpose(x, [1, 0, 2]) if batch_first else x
    count = _directions(context)
    runs: list[tuple[Node, State]] = []
    for index in range(count):
        d = _direction(b, weights.recurrent, index, count, gates, defaults)
        inputs = d.plus_bias(weights.sums(b, x, index), d.input_bias, 0, gates)
        operands = (5, 6) if len(defaults) == 3 else (5,)
        shape = [inputs.shape[1], d.hidden]
        state = tuple(_initial(b, i, index, shape, x.dtype) for i in operands)
        backward = index == 1 or context.text("direction", "forward") == "reverse"
        runs.append(_run(d, inputs, state, step, backward))
    return _outputs(b, runs, batch_first)[: max(context.output_count, 1)]


def _outputs(b: Builder, runs: list[tuple[Node, State]], batch_first: bool) -> list[Node]:
    """Y [S, D, B, H] (or [B, S, D, H]), then states [D, B, H] (or [B, D, H])."""
    y = b.concat([b.unsqueeze(hidden, [1]) for hidden, _ in runs], 1)
    finals = [
        b.concat([b.unsqueeze(state[i], [0]) for _, state in runs], 0)
        for i in range(len(runs[0][1]))
    ]
    if batch_first:
        y = transpose(y, [2, 0, 1, 3])
        finals = [transpose(f, [1, 0, 2]) for f in finals]
    return [y, *finals]


def _run(
    d: _Direction, inputs: Node, state: State, step: Step, backward: bool
) -> tuple[Node, State]:
    """Hidden states [S, B, H] in the order of the input, and the final state of a direction."""
    b, length = d.b, d.b.scope.resolve(inputs.shape[0])
    is_short = length.is_constant and 0 < length.value <= MOST_UNROLLED
    if d.hidden.is_constant and d.hidden.value > 0 and not is_short:
        return _recurrence(d, inputs, state, step, backward)
    if not length.is_constant or not 0 < length.value <= LONGEST:
        message = (
            f"a sequence of {length} steps with {d.hidden} states; 1 to {LONGEST} are unrolled"
        )
        raise NoRule(message, where=b.context.where)
    return _unrolled(d, inputs, state, step, backward)


def _unrolled(
    d: _Direction, inputs: Node, state: State, step: Step, backward: bool
) -> tuple[Node, State]:
    b, lengths = d.b, d.b.context.optional(4)
    steps = b.scope.resolve(inputs.shape[0]).value
    outputs: dict[int, Node] = {}
    for time in reversed(range(steps)) if backward else range(steps):
        now = b.reshape(b.slice_axis(inputs, 0, time, 1), inputs.shape[1:])
        following = step(d, now, state)
        outputs[time] = following[0]
        if lengths is not None:
            going = b.map("less", scalar(time, DType.INT64), cast(lengths, DType.INT64))
            going = b.unsqueeze(going, [1])
            outputs[time] = b.select(going, following[0], scalar(0, inputs.dtype))
            following = tuple(
                b.select(going, new, old) for new, old in zip(following, state, strict=True)
            )
        state = following
    return b.concat([b.unsqueeze(outputs[time], [0]) for time in range(steps)], 0), state


def _recurrence(
    d: _Direction, inputs: Node, state: State, step: Step, backward: bool
) -> tuple[Node, State]:
    """The same by a Recurrence; halves are computed in float32, as its products are."""
    b, dtype = d.b, inputs.dtype
    lengths = d.b.context.optional(4)
    wide = DType.FLOAT32 if dtype.is_half else dtype
    d = replace(
        d,
        recurrent=cast(d.recurrent, wide),
        recurrent_bias=None if d.recurrent_bias is None else cast(d.recurrent_bias, wide),
        peepholes=None if d.peepholes is None else cast(d.peepholes, wide),
    )
    given = [x for x in (d.recurrent_bias, d.peepholes) if x is not None]
    ragged: list[Node] = []
    if lengths is not None:
        message = "the lengths and the batch differ"
        b.context.require_equal(lengths.shape[0], inputs.shape[1], message)
        ragged = [cast(b.reshape(lengths, [inputs.shape[1]]), DType.INT64)]
    body, gates = _body(d, inputs.shape[2], len(state), wide, step)
    history = node(
        Recurrence(body, backward, bool(ragged), d.directions),
        cast(inputs, wide),
        *(transpose(d.rows(first, count), [1, 0]) for first, count in gates),
        *ragged,
        *(cast(s, wide) for s in state),
        *given,
    )
    length, batch = inputs.shape[:2]
    y = b.slice_axis(history, 0, 0 if backward else 1, length)
    y = b.reshape(b.slice_axis(y, 2, 0, 1), [length, batch, d.hidden])
    if ragged:
        going = b.map("less", b.iota([length, batch, 1], 0), b.unsqueeze(ragged[0], [1]))
        y = b.select(going, y, 0.0)
    end = b.slice_axis(history, 0, 0 if backward else length, 1)
    finals = [b.reshape(b.slice_axis(end, 2, i, 1), [batch, d.hidden]) for i in range(len(state))]
    return cast(y, dtype), tuple(cast(f, dtype) for f in finals)


def _body(
    d: _Direction, width: Expr, states: int, dtype: DType, step: Step
) -> tuple[Steps, list[tuple[int, int]]]:
    """A step of one row, applied to leaves, and of each product the first gate and how many."""

    def leaf(name: str, *shape: Expr) -> Node:
        return node(Input(name, dtype, shape))

    one = constant(1)
    bias = None if d.recurrent_bias is None else leaf("bias", *d.recurrent_bias.shape)
    peepholes = None if d.peepholes is None else leaf("peepholes", *d.peepholes.shape)
    recorded: list[tuple[StepProduct, tuple[int, int]]] = []
    inner = replace(d, recurrent_bias=bias, peepholes=peepholes, recorded=recorded)
    inputs = leaf("inputs", one, width)
    before = tuple(leaf(f"state{i}", one, d.hidden) for i in range(states))
    following = step(inner, inputs, before)
    extras = tuple(x for x in (bias, peepholes) if x is not None)
    products = tuple(product for product, _ in recorded)
    return Steps(inputs, before, extras, products, following), [gates for _, gates in recorded]


def _part(b: Builder, x: Node, index: int) -> Node:
    """Entry ``index`` of the first axis, which disappears."""
    return b.reshape(b.slice_axis(x, 0, index, 1), x.shape[1:])


def _initial(b: Builder, operand: int, index: int, shape: list[Expr], dtype: DType) -> Node:
    given = b.context.optional(operand)
    if given is None:
        return b.expand(scalar(0, dtype), shape)
    if b.context.integer("layout", 0):
        given = transpose(given, [1, 0, 2])
    for axis, size in enumerate(shape, start=1):
        b.context.require_equal(given.shape[axis], size, f"axis {axis} of an initial state")
    return b.reshape(_part(b, given, index), shape)


def _direction(
    b: Builder, recurrent: Node, index: int, count: int, gates: int, defaults: tuple[str, ...]
) -> _Direction:
    context = b.context
    hidden = b.scope.resolve(recurrent.shape[2])
    if context.has("hidden_size"):
        size = constant(context.integer("hidden_size"))
        context.require_equal(hidden, size, "hidden_size and the weights differ")
        hidden = size
    context.require_equal(recurrent.shape[1], hidden * gates, "rows of the recurrent weights")
    bias = context.optional(3)
    biases: tuple[Node | None, Node | None] = (None, None)
    if bias is not None:
        context.require_equal(bias.shape[1], hidden * (2 * gates), "the length of the bias")
        own = _part(b, bias, index)
        biases = (
            b.slice_axis(own, 0, 0, hidden * gates),
            b.slice_axis(own, 0, hidden * gates, hidden * gates),
        )
    peepholes = context.optional(7) if len(defaults) == 3 else None
    if peepholes is not None:
        context.require_equal(peepholes.shape[1], hidden * 3, "the number of peepholes")
        peepholes = _part(b, peepholes, index)
    own_weights = b.reshape(_part(b, recurrent, index), [hidden * gates, hidden])
    activations = _activations(b, index, defaults, count)
    return _Direction(b, hidden, own_weights, *biases, peepholes, activations, count)


# ---------------------------------------------------------------- activations


def _activations(
    b: Builder, index: int, defaults: tuple[str, ...], count: int
) -> tuple[Activation, ...]:
    """The activations of direction ``index``; alphas and betas are given to those that use them."""
    context = b.context
    given = cast_type(list[bytes | str], context.attributes.get("activations", []))
    names = [_text(name) for name in given] or list(defaults) * count
    if len(names) != len(defaults) * count:
        message = f"{len(names)} activations instead of {len(defaults) * count}"
        raise InvalidModelError(message, where=context.where)
    alphas, betas = _numbers(b, "activation_alpha"), _numbers(b, "activation_beta")
    made: list[Activation] = []
    for name in names:
        if name.lower() not in PARAMETERS:
            raise NoRule(f"activation {name!r}", where=context.where)
        alpha, beta = PARAMETERS[name.lower()]
        alpha = alphas.pop(0) if alpha is not None and alphas else alpha
        beta = betas.pop(0) if beta is not None and betas else beta
        made.append(_activation(b, name.lower(), alpha or 0.0, beta or 0.0))
    size = len(defaults)
    return tuple(made[index * size : (index + 1) * size])


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _numbers(b: Builder, name: str) -> list[float]:
    return [float(v) for v in cast_type(list[float], b.context.attributes.get(name, []))]


def _activation(b: Builder, name: str, alpha: float, beta: float) -> Activation:
    def apply(x: Node) -> Node:
        match name:
            case "affine":
                return b.add(b.multiply(x, alpha), beta)
            case "elu":
                below = b.multiply(b.subtract(b.map("exponential", x), 1.0), alpha)
                return b.select(b.map("less", x, 0.0), below, x)
            case "hardsigmoid":
                straight = b.add(b.multiply(x, alpha), beta)
                return b.minimum(b.maximum(straight, 0.0), 1.0)
            case "leakyrelu":
                return b.select(b.map("less", x, 0.0), b.multiply(x, alpha), x)
            case "relu":
                return b.maximum(x, 0.0)
            case "scaledtanh":
                return b.multiply(b.map("hyperbolic_tangent", b.multiply(x, beta)), alpha)
            case "sigmoid":
                powers = b.map("exponential", b.map("negate", x))
                return b.divide(scalar(1, x.dtype), b.add(powers, 1.0))
            case "softplus":
                return _softplus(b, x)
            case "softsign":
                return b.divide(x, b.add(b.map("absolute", x), 1.0))
            case "tanh":
                return b.map("hyperbolic_tangent", x)
            case _:
                return b.select(b.map("less", scalar(alpha, x.dtype), x), x, 0.0)

    return apply


def _softplus(b: Builder, x: Node) -> Node:
    powers = b.map("exponential", b.map("negate", b.map("absolute", x)))
    return b.add(b.maximum(x, 0.0), b.map("logarithm", b.add(powers, 1.0)))
