"""Operators that the runtime computes itself, as no loop of a kernel describes them.

Such an operator is an opaque node like one that runs on the reference, which also says what it
means; its step tells the runtime to compute it. Start with :func:`built_in_step`.
"""

from __future__ import annotations

import onnx

from tilewright.ir.graph import Graph, Node
from tilewright.ir.primitives import Opaque
from tilewright.runtime.built_in import ATTRIBUTES, BuiltInStep


def built_in_step(call: Node) -> BuiltInStep | None:
    """The step of an opaque node that the runtime computes itself; None for others."""
    primitive = call.primitive
    assert isinstance(primitive, Opaque)
    known = ATTRIBUTES.get(primitive.operator)
    types = (*primitive.outputs, *(operand.type for operand in call.inputs))
    if known is None or not all(t.dtype.is_native for t in types):
        return None
    graph = onnx.load_model_from_string(primitive.payload).graph
    item = graph.node[0]
    names = [given.name for given in graph.input]
    given = {a.name: a.i for a in item.attribute}
    return BuiltInStep(
        primitive.operator,
        tuple(names.index(name) if name else None for name in item.input),
        tuple(list(item.output).index(result.name) for result in graph.output),
        tuple(given.get(name, otherwise) for name, otherwise in known),
    )


def built_in_payloads(graph: Graph) -> dict[Node, tuple[bytes, tuple[Node, ...]]]:
    """The payloads of the steps of all nodes of a graph that the runtime computes itself."""
    calls = [call for call in graph.nodes() if isinstance(call.primitive, Opaque)]
    steps = {call: built_in_step(call) for call in calls}
    return {call: (step.payload(), ()) for call, step in steps.items() if step is not None}
