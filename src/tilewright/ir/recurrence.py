"""What one step of a :class:`Recurrence` does with a row: a small graph of vectors of known size.

Its leaves stand for what differs from step to step: the inputs of the step, the states before it,
sums of products with the weights, and vectors that are the same in all steps. Every node is one row
[1, n] but the last kind. The steps of an LSTM are such a graph, whoever computes it: numpy here,
machine code in ``tile/loops/recurrence.py``. Start with :class:`Steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.graph import Node, topological
from tilewright.ir.primitives import Input, Recurrence

Array = np.ndarray[Any, Any]
OneNode = Callable[[Node, list[Any], dict[str, int], Mapping[str, Array], None], Any]


@dataclass(frozen=True)
class StepProduct:
    """``sums`` [1, n] is ``vector`` [1, H] times weights [H, n], which are an operand each."""

    vector: Node
    sums: Node


@dataclass(frozen=True)
class Steps:
    """The states after a step, ``following``, of what its leaves stand for.

    ``products`` are in the order in which they can be computed: the vector of each depends on sums
    of earlier ones only.
    """

    inputs: Node
    states: tuple[Node, ...]
    extras: tuple[Node, ...]
    products: tuple[StepProduct, ...]
    following: tuple[Node, ...]

    def __str__(self) -> str:
        nodes = topological((*self.following, *(p.vector for p in self.products)))
        work = sum(1 for n in nodes if not isinstance(n.primitive, Input))
        return f"{len(self.products)} products and {work} nodes for {len(self.states)} states"


def recur(primitive: Recurrence, operands: Sequence[Array], one: OneNode) -> Array:
    """The numpy meaning: every row by itself, step after step; ``one`` computes a node."""
    steps = primitive.steps
    inputs, *others = operands
    weights = [others.pop(0) for _ in steps.products]
    length, batch, _ = inputs.shape
    lengths = others.pop(0) if primitive.ragged else np.full(batch, length)
    initial, extras = others[: len(steps.states)], others[len(steps.states) :]
    out = np.zeros((length + 1, batch, len(steps.states), weights[0].shape[0]), inputs.dtype)
    out[length if primitive.backward else 0] = np.stack(initial, axis=1)
    for step in range(length):
        time = length - 1 - step if primitive.backward else step
        before, after = (time + 1, time) if primitive.backward else (time, time + 1)
        for row in range(batch):
            if time >= lengths[row]:
                out[after, row] = out[before, row]
                continue
            known = {steps.inputs: inputs[time, row][None]}
            known |= {s: out[before, row, i][None] for i, s in enumerate(steps.states)}
            known |= dict(zip(steps.extras, extras, strict=True))
            for each, matrix in zip(steps.products, weights, strict=True):
                known[each.sums] = _known(each.vector, known, one) @ matrix
            for state, node in enumerate(steps.following):
                out[after, row, state] = _known(node, known, one)[0]
    return out


def _known(wanted: Node, known: dict[Node, Array], one: OneNode) -> Array:
    """A node of known leaves; what it is made of is known from then on."""
    for current in topological([wanted], lambda n: () if n in known else n.inputs):
        if current not in known:
            known[current] = one(current, [known[i] for i in current.inputs], {}, {}, None)
    return known[wanted]
