"""A primitive graph as text, one line per node, for people and for golden tests.

    graph model(x: float32[batch, 4])
      0 <= batch <= 65536
      %0: float32[4] = constant 5f0c…            # weights
      %1: float32[batch, 4] = broadcast %0, shape=[batch, 4], axes=[1]
      return y = %1

Start with :func:`print_graph`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from tilewright.ir.codes import Codes
from tilewright.ir.graph import Graph, Node
from tilewright.ir.primitives import Constant, Input, Opaque, Primitive, TensorType
from tilewright.shape import Expr

MOST_ELEMENTS = 8  # of a constant that are printed
_COMMENT_COLUMN = 72  # where comments begin


def print_graph(graph: Graph, *, labels: bool = False) -> str:
    """The text of a graph; with ``labels`` every line says which operator it comes from."""
    names = node_names(graph)
    order = [n for n in names if not isinstance(n.primitive, Input)]
    parameters = ", ".join(f"{names[i]}: {i.type}" for i in graph.inputs)
    lines = [f"graph {graph.name}({parameters})"]
    lines += [f"  {line}" for line in _facts(graph)]
    bound = {b.source: b.symbols for b in graph.bindings}
    for current in order:
        line = f"  {names[current]}: {current.type} = {node_text(current, names)}"
        comment = graph.labels.get(current) if labels else None
        lines.append(line if comment is None else f"{line:<{_COMMENT_COLUMN}}  # {comment}")
        if current in bound:
            lines.append(f"  bind {', '.join(bound[current])} = {names[current]}")
    for value in graph.inputs:
        if value in bound:
            lines.append(f"  bind {', '.join(bound[value])} = {names[value]}")
    outputs = ", ".join(f"{name} = {names[value]}" for name, value in graph.outputs)
    lines.append(f"  return {outputs}")
    return "\n".join(lines) + "\n"


def node_names(graph: Graph) -> dict[Node, str]:
    """What the nodes are called in the text: inputs by their name, the others %n in order."""
    names: dict[Node, str] = {}
    for value in graph.inputs:
        assert isinstance(value.primitive, Input)
        names[value] = value.primitive.name
    order = [n for n in graph.nodes() if not isinstance(n.primitive, Input)]
    return names | {current: f"%{number}" for number, current in enumerate(order)}


def _facts(graph: Graph) -> list[str]:
    used = {s for i in graph.inputs for e in i.shape for s in e.free_symbols}
    out: list[str] = []
    for name, (low, high, multiple) in graph.scope.symbols.items():
        if name not in used:
            continue
        start = "" if low is None else f"{low} <= "
        end = "" if high is None else f" <= {high}"
        step = "" if multiple == 1 else f", multiple of {multiple}"
        out.append(f"{start}{name}{end}{step}")
    named = {s for n in graph.nodes() for e in n.shape for s in e.free_symbols}
    for name, expression in graph.scope.definitions.items():
        if name in named:
            out.append(f"{name} = {expression}")
    return out + [f"require {guard.condition}" for guard in graph.guards]


def node_text(current: Node, names: dict[Node, str]) -> str:
    """The right-hand side of a node's line: primitive, operands, attributes."""
    primitive = current.primitive
    name = snake_case(type(primitive).__name__)
    match primitive:
        case Constant(codes=Codes() as codes, digest=digest):
            kind = f"{codes.bits} bits in blocks of {codes.block}"
            return f"{name} #{digest.hex()[:12]} of {kind}"
        case Constant(array=array, digest=digest):
            return f"{name} {_contents(array, digest)}"
        case Opaque(operator=operator, serial=serial):
            name = f"{name} {operator}" + (f" #{serial}" if serial else "")
        case _:
            pass
    parts = [names[i] for i in current.inputs]
    parts += [f"{key}={text}" for key, text in _attributes(primitive)]
    return f"{name} {', '.join(parts)}" if parts else name


def snake_case(name: str) -> str:
    """``GatherElements`` as ``gather_elements``; ``GatherND`` as ``gather_nd``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _contents(array: np.ndarray[Any, Any], digest: bytes) -> str:
    if array.size <= MOST_ELEMENTS:
        return str(array.tolist())
    return f"<{digest.hex()[:12]}>"


def attributes_of(node: Node) -> list[tuple[str, str]]:
    """The attributes of a node's primitive as text, contents of a constant by their digest."""
    primitive = node.primitive
    if isinstance(primitive, Constant):
        coded = primitive.codes is not None
        return [("value", "codes" if coded else _contents(primitive.array, primitive.digest))]
    return _attributes(primitive)


def _attributes(primitive: Primitive) -> list[tuple[str, str]]:
    if isinstance(primitive, Opaque):
        return [("outputs", _value(primitive.outputs))] if len(primitive.outputs) > 1 else []
    given = [(item.name, getattr(primitive, item.name)) for item in fields(primitive)]
    return [(name, _value(value)) for name, value in given if value is not None]


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        members: Sequence[Any] = value
        return f"[{', '.join(_value(member) for member in members)}]"
    if isinstance(value, Expr | TensorType):
        return str(value)
    return str(getattr(value, "value", value))
