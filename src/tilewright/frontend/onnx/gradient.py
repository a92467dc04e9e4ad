"""The Gradient operator: derivatives of one value of the graph, as primitives.

Reverse accumulation over the primitives between the value and its variables. Covers the smooth
elementwise functions, reductions by sum, broadcasts, reshapes and transposes; another primitive on
the way is a ``NoRule``. May import ``ir``, ``ops`` and ``shape``. Start with :func:`gradient`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.ir.graph import Node, node, topological
from tilewright.ir.primitives import Broadcast, Map, Reduce, Reshape, Shape, Transpose
from tilewright.ops.build import scalar
from tilewright.ops.record import NoRule


def gradient(value: Node, variables: Mapping[Node, Node], where: str) -> list[Node]:
    """d sum(value) / d variable for every variable, each replaced by the node it is mapped to.

    Raises ``NoRule`` where a primitive without a derivative lies on the way.
    """
    moved = _substituted(value, variables)
    wanted = list(variables.values())
    order = topological([moved])
    active = _depending(order, wanted)
    adjoints: dict[Node, Node] = {moved: _filled(1.0, moved)}
    for current in reversed(order):
        if current not in adjoints or current not in active or current in wanted:
            continue
        for operand, share in _shares(current, adjoints[current], where):
            if operand in active:
                known = adjoints.get(operand)
                adjoints[operand] = share if known is None else node(Map("add"), known, share)
    return [adjoints.get(w) or _filled(0.0, w) for w in wanted]


def _substituted(value: Node, variables: Mapping[Node, Node]) -> Node:
    made: dict[Node, Node] = {}
    for current in topological([value]):
        inputs = tuple(made[i] for i in current.inputs)
        same = inputs == current.inputs
        made[current] = variables.get(current) or (
            current if same else node(current.primitive, *inputs)
        )
    return made[value]


def _depending(order: Sequence[Node], variables: Sequence[Node]) -> set[Node]:
    found = set(variables)
    for current in order:
        if any(i in found for i in current.inputs):
            found.add(current)
    return found


def _filled(number: float, like: Node) -> Node:
    return node(Broadcast(like.shape, ()), scalar(number, like.dtype))


def _map(function: str, *operands: Node) -> Node:
    return node(Map(function), *operands)


Share = tuple[Node, Node]


def _shares(current: Node, adjoint: Node, where: str) -> list[Share]:
    """Each operand of ``current`` with its part of the derivative."""
    x = current.inputs
    match current.primitive:
        case Map(function=function):
            if function not in _DERIVATIVES:
                raise NoRule(f"{function} has no derivative here", where=where)
            return list(zip(x, _DERIVATIVES[function](x, current, adjoint), strict=True))
        case Broadcast(axes=axes):
            return [(x[0], _unbroadcast(x[0].shape, axes, adjoint))]
        case Reduce(kind="sum", axes=axes):
            kept = tuple(a for a in range(x[0].rank) if a not in axes)
            return [(x[0], node(Broadcast(x[0].shape, kept), adjoint))]
        case Reshape():
            return [(x[0], node(Reshape(x[0].shape), adjoint))]
        case Transpose(permutation=permutation):
            inverse = tuple(permutation.index(a) for a in range(len(permutation)))
            return [(x[0], node(Transpose(inverse), adjoint))]
        case primitive:
            name = type(primitive).__name__
            raise NoRule(f"{name} has no derivative here", where=where)


def _unbroadcast(shape: Shape, axes: tuple[int, ...], adjoint: Node) -> Node:
    """Sum over what was repeated."""
    repeated = tuple(
        a
        for a in range(adjoint.rank)
        if a not in axes or shape[axes.index(a)] is not adjoint.shape[a]
    )
    out = node(Reduce("sum", repeated), adjoint) if repeated else adjoint
    return out if out.shape == shape else node(Reshape(shape), out)


Derivative = Callable[[tuple[Node, ...], Node, Node], tuple[Node, ...]]


def _quotient(x: tuple[Node, ...], y: Node, g: Node) -> tuple[Node, ...]:
    share = _map("divide", g, x[1])
    return (share, _map("negate", _map("multiply", share, y)))


def _tanh(x: tuple[Node, ...], y: Node, g: Node) -> tuple[Node, ...]:
    del x
    return (_map("multiply", g, _map("subtract", _filled(1.0, y), _map("multiply", y, y))),)


def _square_root(x: tuple[Node, ...], y: Node, g: Node) -> tuple[Node, ...]:
    del x
    return (_map("divide", g, _map("add", y, y)),)


_DERIVATIVES: dict[str, Derivative] = {
    "add": lambda x, y, g: (g, g),
    "subtract": lambda x, y, g: (g, _map("negate", g)),
    "multiply": lambda x, y, g: (_map("multiply", g, x[1]), _map("multiply", g, x[0])),
    "divide": _quotient,
    "negate": lambda x, y, g: (_map("negate", g),),
    "exponential": lambda x, y, g: (_map("multiply", g, y),),
    "logarithm": lambda x, y, g: (_map("divide", g, x[0]),),
    "sine": lambda x, y, g: (_map("multiply", g, _map("cosine", x[0])),),
    "cosine": lambda x, y, g: (_map("negate", _map("multiply", g, _map("sine", x[0]))),),
    "hyperbolic_tangent": _tanh,
    "square_root": _square_root,
}
