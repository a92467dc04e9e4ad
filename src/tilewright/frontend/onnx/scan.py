"""Looking at a model's nodes before importing them: unknown operators, captured values.

:func:`require_known` refuses at once every operator that nothing could run; :func:`captured_values`
lists the outer values that the sub-graphs of a node read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import onnx_ir

from tilewright.ops import contributed
from tilewright.ops.record import OPERATORS
from tilewright.ops.schema import find_schema
from tilewright.support.errors import InvalidModelError, UnsupportedError

LONGEST_EQUATION = 1000  # characters of an Einsum's; longer ones are refused
_TERM = r"\s*(?:[A-Za-z]\s*)*(?:\.\.\.\s*)?(?:[A-Za-z]\s*)*"
_EQUATION = re.compile(rf"{_TERM}(?:,{_TERM})*(?:->{_TERM})?\Z")
RANDOM = (
    "Bernoulli",
    "Dropout",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
)


def subgraphs(node: onnx_ir.Node) -> list[onnx_ir.Graph]:
    """The graphs in the attributes of a node."""
    out: list[onnx_ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == onnx_ir.AttributeType.GRAPH:
            out.append(attribute.as_graph())
        elif attribute.type == onnx_ir.AttributeType.GRAPHS:
            out.extend(attribute.as_graphs())
    return out


def all_nodes(graph: onnx_ir.Graph | onnx_ir.Function) -> Iterator[onnx_ir.Node]:
    """The nodes of a graph and of the graphs inside of them."""
    for node in graph:
        yield node
        for inner in subgraphs(node):
            yield from all_nodes(inner)


def require_known(model: onnx_ir.Model) -> None:
    """Raise ``UnsupportedError`` listing every operator that is no function and not ONNX's.

    Also raises ``InvalidModelError`` for attributes on which onnx's inference would not end.
    """
    unknown: dict[str, int] = {}
    bodies: list[tuple[onnx_ir.Graph | onnx_ir.Function, dict[str, int]]] = [
        (model.graph, dict(model.opset_imports)),
        *((f, dict(f.opset_imports)) for f in model.functions.values()),
    ]
    for body, opsets in bodies:
        for node in all_nodes(body):
            _check_attributes(node)
            domain = "" if node.domain == "ai.onnx" else node.domain
            if node.op_identifier() in model.functions or (domain, node.op_type) in OPERATORS:
                continue
            opset = opsets.get(domain, opsets.get(node.domain, 1))
            if find_schema(domain, node.op_type, opset) is None:
                name = f"{domain}::{node.op_type}" if domain else node.op_type
                unknown[name] = unknown.get(name, 0) + 1
    if unknown:
        listing = ", ".join(f"{name} ({count})" for name, count in sorted(unknown.items()))
        raise UnsupportedError(
            "operators are not supported, as they are neither ONNX's nor functions of the model: "
            f"{listing}",
            where=model.graph.name,
            hint=_hint(unknown),
        )


def _hint(unknown: Iterable[str]) -> str:
    """What to try where operators are not supported: tools put some into models afterwards."""
    if all(name.startswith(f"{contributed.DOMAIN}::") for name in unknown):
        return (
            "use the model as it was before ONNX Runtime's tools optimised or quantised it, or "
            "tell these to leave such operators out; the documentation lists those that are known"
        )
    if any(name.startswith(f"{contributed.DOMAIN}.nchwc::") for name in unknown):
        return (
            "ONNX Runtime has chosen a layout for one machine, as ORT_ENABLE_ALL does it: use the "
            "model as it was before, or save it with ORT_ENABLE_EXTENDED at most"
        )
    return (
        "export with standard operators, add functions to the model that define these, or run the "
        "part of the model around them elsewhere"
    )


def _check_attributes(node: onnx_ir.Node) -> None:
    """What onnx's inference trusts: it would not end, or end the process."""
    where = f'{node.op_type} "{node.name}"'
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        value = attribute.value
        if attribute.type == onnx_ir.AttributeType.STRING and not isinstance(value, str):
            raise InvalidModelError(f"attribute {attribute.name!r} is not text", where=where)
        if node.op_type == "Einsum" and isinstance(value, str) and not _is_equation(value):
            raise InvalidModelError(f"{value!r} is not an equation", where=where)
        given = len(node.outputs)
        if node.op_type == "Split" and attribute.name == "num_outputs" and value != given:
            message = f"the node has {given} outputs, but num_outputs is {value}"
            raise InvalidModelError(message, where=where)


def _is_equation(text: str) -> bool:
    return len(text) <= LONGEST_EQUATION and _EQUATION.match(text) is not None


def captured_values(node: onnx_ir.Node) -> list[onnx_ir.Value]:
    """Outer values that the sub-graphs of ``node`` read, in the order of their first use."""
    captured: dict[onnx_ir.Value, None] = {}
    for graph in subgraphs(node):
        inside: set[onnx_ir.Value] = set()
        _collect(graph, inside)
        for inner in all_nodes(graph):
            for value in inner.inputs:
                if value is not None and value not in inside:
                    captured[value] = None
        for value in graph.outputs:
            if value not in inside:
                captured[value] = None
    return list(captured)


def _collect(graph: onnx_ir.Graph, inside: set[onnx_ir.Value]) -> None:
    inside.update(graph.inputs)
    inside.update(graph.initializers.values())
    for node in graph:
        inside.update(node.outputs)
        for inner in subgraphs(node):
            _collect(inner, inside)


def is_random(node: onnx_ir.Node) -> bool:
    """Whether two calls of the same node may differ."""
    if node.op_type in RANDOM:
        return True
    return any(inner.op_type in RANDOM for graph in subgraphs(node) for inner in all_nodes(graph))
