"""Extremes of windows over dequantised tensors are those of their bytes, dequantised.

Bytes minus a zero point, times a positive scale, grow with the bytes, and so do their roundings:
the largest of them is made of the largest byte. Bytes take a quarter of the memory, and a vector
holds four times as many. Start with :func:`pooled_bytes`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, mapped, node, same
from tilewright.ir.primitives import Cast, Map, Window
from tilewright.rewrite.build import filled, is_map, label
from tilewright.rewrite.quantised import BYTES, single_number
from tilewright.shape import Scope, Truth, constant

Step = tuple[str, float]  # a function of a number and this one


def pooled_bytes(graph: Graph) -> Graph:
    """The graph with maxima and minima of windows taken before bytes become floats."""
    labels: dict[Node, str] = {}

    def change(current: Node, operands: tuple[Node, ...]) -> Node:
        found = same(current, operands)
        made = _pooled(found, graph.scope)
        if made is None:
            return found
        label(made, graph.label(current), labels)
        return made

    changed = mapped(graph, change)
    return replace(changed, labels=labels | dict(changed.labels))


def _pooled(x: Node, scope: Scope) -> Node | None:
    window = x.primitive
    if not isinstance(window, Window) or window.kind not in ("maximum", "minimum"):
        return None
    source, steps = _made_of_bytes(x.inputs[0])
    if source is None or not _is_full(window, x, scope):
        return None
    made = node(Cast(DType.FLOAT32), node(window, source))
    for function, number in reversed(steps):
        made = node(Map(function), made, filled(number, made))
    return made


def _made_of_bytes(x: Node) -> tuple[Node | None, list[Step]]:
    """The bytes that float32 ``x`` grows with, and how it is made of them, the last step first."""
    steps: list[Step] = []
    while is_map(x, "multiply", "subtract", "add") and x.dtype is DType.FLOAT32:
        assert isinstance(x.primitive, Map)
        function, number = x.primitive.function, single_number(x.inputs[1])
        if number is None or not math.isfinite(number) or (function == "multiply" and number <= 0):
            return None, []
        steps.append((function, number))
        x = x.inputs[0]
    is_cast = isinstance(x.primitive, Cast) and x.dtype is DType.FLOAT32
    return (x.inputs[0], steps) if is_cast and x.inputs[0].dtype in BYTES else (None, [])


def _is_full(window: Window, x: Node, scope: Scope) -> bool:
    """Whether every window holds an element: of none, there is no byte that says so."""
    operand = x.inputs[0]
    axes = range(operand.rank)[window.windowed(operand.rank)]
    for place, axis in enumerate(axes):
        low, made = window.low[place], window.sizes[place]
        last = (made - 1) * window.strides[place] - low
        reaches = scope.is_less_equal(low, constant(window.kernel[place] - 1))
        begins = scope.is_less_equal(last, operand.shape[axis] - 1)
        if window.dilations[place] != 1 or not reaches is begins is Truth.YES:
            return False
    return True


__all__ = ["pooled_bytes"]
