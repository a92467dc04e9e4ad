"""Loop and SequenceMap by other operators, where their bodies need no sequence.

A loop that appends to sequences stacks (``appended``). SequenceMap over known elements is its body
for each of them, and over others the loop by which ONNX defines it. Start with :func:`by_tensors`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

import onnx
import onnx_ir

from tilewright.frontend.onnx.appended import Known, stacking
from tilewright.frontend.onnx.boundary import THIRD_PARTY
from tilewright.frontend.onnx.functions import definition
from tilewright.frontend.onnx.scan import captured_values
from tilewright.frontend.onnx.sequence_parts import parts_of
from tilewright.frontend.onnx.sequences import (
    element_type,
    elements_of,
    parts_of_stack,
    sequence_of,
)
from tilewright.frontend.onnx.state import CallFrame, State, Use
from tilewright.frontend.onnx.tensor_types import type_proto
from tilewright.frontend.onnx.values import serialised
from tilewright.ir.graph import Node
from tilewright.ops.schema import find_schema
from tilewright.support.errors import UnsupportedError

MOST_MAPPED = 64  # elements for each of which a body is written out, and has to be compiled

Results = list[Node | None]


class Importing(Protocol):
    """What an import offers here; see ``importer``."""

    state: State

    def value(self, frame: CallFrame, value: onnx_ir.Value, where: str) -> Node:
        """The node of a value."""
        ...

    def body(self, nodes: Iterable[onnx_ir.Node], frame: CallFrame) -> None:
        """Import nodes in their order."""
        ...

    def call(
        self,
        proto: onnx.FunctionProto,
        given: dict[str, onnx.AttributeProto],
        operands: tuple[Node | None, ...],
        frame: CallFrame,
        where: str,
        *,
        counted: bool,
    ) -> Sequence[Node | None]:
        """Import the body of a function for one call."""
        ...


def by_tensors(importing: Importing, use: Use) -> Results | None:
    """The outputs of an operator whose bodies handle sequences; None where they need one."""
    ways = {"Loop": [_stacking], "SequenceMap": [_one_by_one, _by_loop]}.get(use.name, [])
    state = importing.state
    for way in ways:
        known = state.checkpoint()
        try:
            made = way(importing, use)
        except UnsupportedError:
            made = None
        if made is not None:
            return made
        state.restore(known)
    return None


def _stacking(importing: Importing, use: Use) -> Results | None:
    """A loop that appends to sequences, if all that it appends to one has the same shape."""
    sequences = {i: elements_of(o) for i, o in enumerate(use.operands)}
    known = {
        i: Known(len(elements), element_type(importing.state, use.operands[i]))
        for i, elements in sequences.items()
        if elements is not None
    }
    if not known or len(use.operands) < len(use.item.inputs):
        return None
    names, values = _captured(importing, use)
    form = stacking(serialised(use.item, use.where), known, names)
    if form is None:
        return None
    given: list[Node | None] = []
    for index, operand in enumerate(use.operands):
        elements = sequences[index]
        given += [operand] if elements is None else elements
    scope, guards = importing.state.scope, importing.state.facts.guards
    symbols, demands = frozenset(scope.symbols), len(guards)
    operands = (*given, *values)
    made = importing.call(form.function, {}, operands, use.frame, use.where, counted=False)
    if any(k.count for k in known.values()) and len(guards) > demands:
        return None  # the first elements have this shape in some calls only
    out: Results = [None] * len(use.item.outputs)
    for index, value in zip(form.outputs, made, strict=True):
        out[index] = value
        if index in form.stacked and value is not None:
            out[index] = parts_of_stack(importing.state, use, value, symbols)
        if out[index] is None:
            return None
    return out


def _captured(importing: Importing, use: Use) -> tuple[list[str], list[Node]]:
    """What the bodies of an operator read of the graph around it, by name."""
    captured = captured_values(use.item)
    nodes = [importing.value(use.frame, value, use.where) for value in captured]
    return [value.name or "" for value in captured], nodes


def _one_by_one(importing: Importing, use: Use) -> Results | None:
    """The body of SequenceMap for each element, where all are known."""
    body = use.attributes.get("body")
    given = [(o, elements_of(o)) for o in use.operands]
    count = len(given[0][1] or ()) if given else 0
    if not isinstance(body, onnx_ir.Graph) or not 0 < count <= MOST_MAPPED:
        return None
    if any(elements is not None and len(elements) < count for _, elements in given):
        return None
    rows: list[list[Node]] = []
    for number in range(count):
        counted = use.frame.counted and number == 0
        frame = replace(use.frame, values=dict(use.frame.values), counted=counted)
        for value, (operand, elements) in zip(body.inputs, given, strict=True):
            element = operand if elements is None else elements[number]
            if element is None or not element.dtype.is_native:
                return None
            frame.values[value] = element
        importing.body(body, frame)
        rows.append([importing.value(frame, value, use.where) for value in body.outputs])
    columns = zip(*rows, strict=True)
    made = [sequence_of(importing.state, use, column) for column in columns]
    return None if None in made else made


def _by_loop(importing: Importing, use: Use) -> Results | None:
    """SequenceMap by its definition, whose loop may be one that stacks."""
    schema = find_schema(use.domain, use.item.op_type, use.opset)
    proto = serialised(use.item, use.where)
    if schema is None:
        return None
    types = [
        onnx.TypeProto() if o is None else type_proto(o, importing.state.objects)
        for o in use.operands
    ]
    try:
        function = definition(schema, proto, use.opset, types)
    except THIRD_PARTY:
        return None
    if function is None:
        return None
    names, values = _captured(importing, use)
    function.input.extend(names)
    given = {a.name: a for a in proto.attribute}
    operands = (*use.operands, *values)
    made = importing.call(function, given, operands, use.frame, use.where, counted=False)
    # Of a loop that does not stack less is known than of the operator itself.
    return [*made] if all(parts_of(sequence) is not None for sequence in made) else None
