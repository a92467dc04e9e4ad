"""The primitive graph: interned nodes, and the graph that names its inputs and outputs.

A node is a primitive applied to nodes. Nodes are interned: the same primitive on the same operands
is the same object, so that common subexpressions are shared by construction and ``is`` compares
meaning. Types are derived when a node is made. Read :class:`Node`, then :class:`Graph`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

from tilewright.ir.dtype import DType
from tilewright.ir.primitives import Primitive, Shape, TensorType
from tilewright.shape import Guard, Scope


class Node:
    """A primitive applied to operands; ``type`` is derived. Made only by :func:`node`."""

    __slots__ = ("__weakref__", "inputs", "primitive", "type")
    _interned: ClassVar[weakref.WeakValueDictionary[tuple[object, ...], Node]] = (
        weakref.WeakValueDictionary()
    )
    _lock: ClassVar[threading.Lock] = threading.Lock()

    primitive: Primitive
    inputs: tuple[Node, ...]
    type: TensorType

    @property
    def shape(self) -> Shape:
        """Symbolic sizes of the axes."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.type.dtype

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.type.shape)

    def __repr__(self) -> str:
        return f"<{type(self.primitive).__name__} {self.type}>"


def node(primitive: Primitive, *inputs: Node) -> Node:
    """The node of ``primitive`` applied to ``inputs``; raises ``PrimitiveError`` if they misfit."""
    key = (type(primitive), primitive, inputs)
    with Node._lock:  # pyright: ignore[reportPrivateUsage]
        found = Node._interned.get(key)  # pyright: ignore[reportPrivateUsage]
        if found is not None:
            return found
        made = object.__new__(Node)
        made.primitive = primitive
        made.inputs = inputs
        made.type = primitive.result(*(i.type for i in inputs))
        Node._interned[key] = made  # pyright: ignore[reportPrivateUsage]
        return made


@dataclass(frozen=True)
class Binding:
    """Symbols that take the integer contents of ``source`` (row-major) once it is computed."""

    source: Node
    symbols: tuple[str, ...]


@dataclass(frozen=True)
class Graph:
    """A program: inputs in call order, named outputs, and the facts about its symbols.

    ``guards`` must hold for every call; each is checked once all of its symbols are bound.
    """

    name: str
    inputs: tuple[Node, ...]
    outputs: tuple[tuple[str, Node], ...]
    scope: Scope
    bindings: tuple[Binding, ...] = ()
    guards: tuple[Guard, ...] = ()
    labels: dict[Node, str] = field(default_factory=dict[Node, str], compare=False)

    @property
    def roots(self) -> tuple[Node, ...]:
        """Nodes that must be computed: outputs, then sources of bindings."""
        return tuple(n for _, n in self.outputs) + tuple(b.source for b in self.bindings)

    def nodes(self) -> list[Node]:
        """All nodes reachable from the roots, operands first, in a deterministic order."""
        return topological(self.roots)

    def label(self, wanted: Node) -> str:
        """Where a node comes from: the model's operator, for people."""
        return self.labels.get(wanted, type(wanted.primitive).__name__.lower())


def mapped(graph: Graph, change: Callable[[Node, tuple[Node, ...]], Node]) -> Graph:
    """The graph with ``change(node, its new operands)`` in the place of every node.

    Names are kept; ``change`` must keep the meaning of nodes, on which guards and scope depend.
    """
    made: dict[Node, Node] = {}
    labels = dict(graph.labels)
    for current in graph.nodes():
        made[current] = change(current, tuple(made[i] for i in current.inputs))
        if made[current] is not current and current in labels:
            labels.setdefault(made[current], labels[current])
    return replace(
        graph,
        outputs=tuple((name, made[root]) for name, root in graph.outputs),
        bindings=tuple(Binding(made[b.source], b.symbols) for b in graph.bindings),
        labels=labels,
    )


def same(current: Node, operands: tuple[Node, ...]) -> Node:
    """A node on other operands, itself on its own."""
    return current if operands == current.inputs else node(current.primitive, *operands)


def topological(roots: Iterable[Node]) -> list[Node]:
    """Every node reachable from ``roots``, operands before users, each once."""
    order: list[Node] = []
    done: set[Node] = set()
    for root in roots:
        stack: list[tuple[Node, Iterator[Node]]] = [(root, iter(root.inputs))]
        if root in done:
            continue
        done.add(root)
        while stack:
            current, remaining = stack[-1]
            following = next((n for n in remaining if n not in done), None)
            if following is None:
                order.append(current)
                stack.pop()
            else:
                done.add(following)
                stack.append((following, iter(following.inputs)))
    return order


def users(nodes: Iterable[Node]) -> dict[Node, list[Node]]:
    """For every node, the nodes among ``nodes`` that read it (once per operand)."""
    table: dict[Node, list[Node]] = {}
    for current in nodes:
        table.setdefault(current, [])
        for operand in current.inputs:
            table.setdefault(operand, []).append(current)
    return table
