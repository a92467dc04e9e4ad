"""Functions: the model's own, and those by which ONNX defines some of its operators.

A call is expanded by importing the function's body with its parameters bound: attributes are
written into the body's nodes (in sub-graphs too) before it is read. Start with :func:`bind`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

import onnx
import onnx_ir

from tilewright.frontend.onnx.boundary import third_party

Attributes = dict[str, onnx.AttributeProto]


def bind(function: onnx.FunctionProto, given: Attributes) -> onnx_ir.Function:
    """The function with the attributes of one call written into its body.

    An attribute that is neither given nor has a default is left out of the nodes that refer to it.
    """
    attributes: Attributes = {a.name: a for a in function.attribute_proto}
    attributes.update(given)
    body = onnx.FunctionProto()
    body.CopyFrom(function)
    del body.attribute[:]
    del body.attribute_proto[:]
    _bind_nodes(body.node, attributes)
    function_name = f"function {function.domain}::{function.name}"
    with third_party("a function of the model cannot be read", where=function_name):
        return onnx_ir.serde.deserialize_function(body)


def _bind_nodes(nodes: Iterable[onnx.NodeProto], attributes: Attributes) -> None:
    for node in nodes:
        kept: list[onnx.AttributeProto] = []
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                value = attributes.get(attribute.ref_attr_name)
                if value is None:
                    continue
                bound = onnx.AttributeProto()
                bound.CopyFrom(value)
                bound.name = attribute.name
                kept.append(bound)
                continue
            for graph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                _bind_nodes(graph.node, attributes)
            kept.append(attribute)
        copies = [onnx.AttributeProto.FromString(a.SerializeToString()) for a in kept]
        del node.attribute[:]
        node.attribute.extend(copies)


def callees_first(functions: Iterable[onnx.FunctionProto]) -> list[onnx.FunctionProto]:
    """The functions in an order in which each comes after those that it calls.

    A model may list them in any order; the reference evaluator looks up only earlier ones.
    """
    own = {(function.domain, function.name): function for function in functions}
    calls = {key: [k for k in _called(own[key].node) if k in own] for key in own}
    try:
        return [own[key] for key in TopologicalSorter(calls).static_order()]
    except CycleError:  # of calls without end, which importing them tells
        return list(own.values())


def _called(nodes: Iterable[onnx.NodeProto]) -> Iterator[tuple[str, str]]:
    """The domain and name of every operator, in sub-graphs too."""
    for node in nodes:
        yield node.domain, node.op_type
        for attribute in node.attribute:
            for graph in [attribute.g, *attribute.graphs]:
                yield from _called(graph.node)


def definition(
    schema: onnx.defs.OpSchema,
    node: onnx.NodeProto,
    opset: int,
    operand_types: Sequence[onnx.TypeProto],
) -> onnx.FunctionProto | None:
    """The body by which ONNX defines the operator for these operands, or None.

    Defaults of the operator's attributes are filled in as defaults of the function's.
    """
    described: Any = schema  # onnx's stubs leave the functions out
    data = b""
    if described.has_function:
        versions = [v for v in described.function_opset_versions if v <= opset]
        if versions:
            data = described.get_function_with_opset_version(max(versions))
    elif described.has_context_dependent_function:
        versions = [v for v in described.context_dependent_function_opset_versions if v <= opset]
        if versions:
            filled = _with_defaults(schema, node)
            data = described.get_context_dependent_function_with_opset_version(
                max(versions),
                filled.SerializeToString(),
                [t.SerializeToString() for t in operand_types],
            )
    if not data:
        return None
    function = onnx.FunctionProto()
    function.ParseFromString(data)
    defaults = [
        a.default_value
        for a in schema.attributes.values()
        if a.default_value.name and a.default_value.type != onnx.AttributeProto.UNDEFINED
    ]
    del function.attribute_proto[:]
    function.attribute_proto.extend(defaults)
    return function


def _with_defaults(schema: onnx.defs.OpSchema, node: onnx.NodeProto) -> onnx.NodeProto:
    filled = onnx.NodeProto()
    filled.CopyFrom(node)
    present = {a.name for a in node.attribute}
    for attribute in schema.attributes.values():
        if attribute.name not in present and attribute.default_value.name:
            filled.attribute.append(attribute.default_value)
    return filled
