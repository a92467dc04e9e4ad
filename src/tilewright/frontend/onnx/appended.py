"""Loops that append to sequences, as loops that stack what they append.

A state that is a sequence is left out, and what every turn inserts at its end becomes a result of
the turn, which the loop stacks; the sequence is the parts of that. So such a loop can be compiled,
if all that it appends has one shape. Start with :func:`stacking`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tilewright.frontend.onnx.opaque import inner_graphs, names_in, unused

_STATES = 2  # operands of a Loop in front of its states
_CONDITION = 1  # results of a body in front of its states


@dataclass(frozen=True)
class Known:
    """How many elements a sequence has, and their type as ONNX numbers it."""

    count: int
    element_type: int


@dataclass(frozen=True)
class Stacking:
    """A Loop as a function that stacks.

    Its parameters are the operands of the loop, a sequence by its elements one by one, and then the
    values that the body captures. Its results are the ``outputs`` of the loop that have a name;
    those of ``stacked`` are tensors in the place of sequences, which are their parts.
    """

    function: onnx.FunctionProto
    outputs: tuple[int, ...]
    stacked: frozenset[int]


def stacking(
    loop: onnx.NodeProto, sequences: Mapping[int, Known], captured: Sequence[str]
) -> Stacking | None:
    """The form of a loop some of whose operands are sequences.

    None if a turn does anything but append to them. The body of ``loop`` is changed.
    """
    (body,) = inner_graphs(loop)
    states = [place - _STATES for place in sorted(sequences)]
    if len(body.input) != len(loop.input) or not states or states[0] < 0:
        return None
    appended: list[str] = []
    for state in states:
        element = _taken_out(body, state)
        if element is None:
            return None
        appended.append(element)
    taken = names_in([body]) | set(captured)
    for state in reversed(states):
        del body.input[_STATES + state], body.output[_CONDITION + state]
    for state, element in zip(states, appended, strict=True):
        own = unused("appended", taken)
        body.node.append(helper.make_node("Identity", [element], [own]))
        kind = sequences[_STATES + state].element_type
        body.output.append(helper.make_tensor_value_info(own, kind, None))
    counts = {place: known.count for place, known in sequences.items()}
    parameters = [
        [unused(f"operand_{place}", taken) for _ in range(counts.get(place, 1))]
        for place in range(len(loop.input))
    ]
    return _function(loop, states, parameters, captured, taken)


def _taken_out(body: onnx.GraphProto, state: int) -> str | None:
    """What every turn appends to a state, which nothing else reads and which is no more made."""
    made = {name: item for item in body.node for name in item.output if name}
    before, after = body.input[_STATES + state].name, body.output[_CONDITION + state].name
    chain = [*_copies(after, made)]
    insert = made.get(chain[-1])
    if insert is None or insert.op_type != "SequenceInsert" or any(insert.input[2:]):
        return None  # it is no sequence, or what is inserted has a place of its own
    sequence, element = insert.input[:2]
    chain += _copies(sequence, made)
    if chain[-1] != before:
        return None
    kept = [item for item in body.node if not set(chain).intersection(item.output)]
    rest = onnx.GraphProto(input=body.input, output=body.output, node=kept)
    del rest.input[_STATES + state], rest.output[_CONDITION + state]
    if names_in([rest]).union([element]).intersection(chain):
        return None
    del body.node[:]
    body.node.extend(rest.node)
    return element


def _copies(name: str, made: Mapping[str, onnx.NodeProto]) -> Iterator[str]:
    """A value, and all that it is a copy of."""
    yield name
    while name in made and made[name].op_type == "Identity":
        name = made[name].input[0]
        yield name


def _function(
    loop: onnx.NodeProto,
    states: Sequence[int],
    parameters: Sequence[Sequence[str]],
    captured: Sequence[str],
    taken: set[str],
) -> Stacking:
    """A loop without these states, and what it stacks behind what they begin with."""
    results = [unused(f"output_{i}", taken) for i in range(len(loop.output))]
    stacks = [unused("stack", taken) for _ in states]
    axes = unused("axes", taken)
    first = helper.make_node(
        "Constant", [], [axes], value=numpy_helper.from_array(np.zeros(1, np.int64))
    )
    inner = onnx.NodeProto()
    inner.CopyFrom(loop)
    inner.input[:] = [
        own[0] if name else ""
        for place, (name, own) in enumerate(zip(loop.input, parameters, strict=True))
        if place - _STATES not in states
    ]
    kept = (i for i in range(len(results)) if i not in states)
    inner.output[:] = [results[i] if loop.output[i] else "" for i in kept] + stacks
    nodes = [first, inner]
    for state, stack in zip(states, stacks, strict=True):
        rows: list[str] = []
        for element in parameters[_STATES + state]:
            rows.append(unused("row", taken))
            nodes.append(helper.make_node("Unsqueeze", [element, axes], [rows[-1]]))
        nodes.append(helper.make_node("Concat", [*rows, stack], [results[state]], axis=0))
    outputs = tuple(i for i, name in enumerate(loop.output) if name)
    function = helper.make_function(
        "", "stacking", [name for own in parameters for name in own] + [*captured],
        [results[i] for i in outputs], nodes, [],
    )  # fmt: skip
    return Stacking(function, outputs, frozenset(states).intersection(outputs))
