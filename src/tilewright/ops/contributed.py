"""What rules of the domain com.microsoft share: their registration, and standard rules as parts.

ONNX Runtime and its tools put operators of that domain into models: fusions of standard operators,
and quantised forms of them. Start with :func:`standard`; may import what ``record`` imports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tilewright.ir.graph import Node
from tilewright.ir.make import transpose
from tilewright.ops.record import AttributeValue, Rule, RuleContext, find_operator, operator
from tilewright.support.errors import InternalError

DOMAIN = "com.microsoft"
# Operators that ONNX Runtime writes into the standard domain, which lacks them at some opsets.
ADDED = ("LayerNormalization", "SimplifiedLayerNormalization")
OPSET = 24  # of the standard operators that stand for parts of others


def contributed(name: str, *, computes: bool = True) -> Callable[[Rule], Rule]:
    """Register a rule of the domain com.microsoft; see :func:`tilewright.ops.record.operator`."""
    return operator(name, domain=DOMAIN, computes=computes)


def standard(
    context: RuleContext,
    name: str,
    inputs: Sequence[Node | None],
    attributes: Mapping[str, AttributeValue] | None = None,
    outputs: int = 1,
) -> Sequence[Node]:
    """What the rule of a standard operator makes of operands, in the place of the whole node.

    Without ``attributes`` the operator has those of the node.
    """
    row = find_operator("", name, OPSET)
    if row is None:
        raise InternalError(f"there is no rule for {name}", where=context.where)
    return row.rule(part(context, name, inputs, attributes, outputs))


def part(
    context: RuleContext,
    name: str,
    inputs: Sequence[Node | None],
    attributes: Mapping[str, AttributeValue] | None = None,
    outputs: int = 1,
) -> RuleContext:
    """The node of a standard operator in the place of the whole node; see :func:`standard`."""
    return replace(
        context,
        operator=name,
        inputs=tuple(inputs),
        attributes=context.attributes if attributes is None else dict(attributes),
        output_count=outputs,
        opset=OPSET,
    )


def channels_first(x: Node) -> Node:
    """[N, spatial…, C] as [N, C, spatial…]."""
    return transpose(x, [0, x.rank - 1, *range(1, x.rank - 1)])


def channels_last(x: Node) -> Node:
    """[N, C, spatial…] as [N, spatial…, C]."""
    return transpose(x, [0, *range(2, x.rank), 1])
