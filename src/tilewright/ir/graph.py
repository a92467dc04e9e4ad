"""The primitive graph: interned nodes, and the graph that names its inputs and outputs.

A node is a primitive applied to nodes. Nodes are interned: the same primitive on the same operands
is the same object, so that common subexpressions are shared by construction and ``is`` compares
meaning. Types are derived when a node is made. Read :class:`Node`, then :class:`Graph`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar

from tilewright.ir.dtype import DType
from tilewright.ir.primitives import Opaque, Primitive, Shape, TensorType
from tilewright.shape import Expr, Guard, Scope, symbol


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
    ``measured`` are opaque nodes, in the order in which they were made, that are computed for the
    sizes of their results, whether or not anything reads those.
    """

    name: str
    inputs: tuple[Node, ...]
    outputs: tuple[tuple[str, Node], ...]
    scope: Scope
    bindings: tuple[Binding, ...] = ()
    guards: tuple[Guard, ...] = ()
    labels: dict[Node, str] = field(default_factory=dict[Node, str], compare=False)
    measured: tuple[Node, ...] = ()

    @property
    def roots(self) -> tuple[Node, ...]:
        """Nodes that must be computed: outputs, sources of bindings, and what is measured."""
        bound = tuple(b.source for b in self.bindings)
        return tuple(n for _, n in self.outputs) + bound + self.measured

    def nodes(self) -> list[Node]:
        """All nodes reachable from the roots in a deterministic order.

        Operands come first, and so does what decides the sizes that a node names.
        """
        if not self.deciders:
            return topological(self.roots)
        return topological(self.roots, lambda n: n.inputs + self.sizes_from(n))

    @cached_property
    def deciders(self) -> Mapping[str, Node]:
        """For every symbol that is learnt while the graph runs, the node that it is learnt from."""
        given = {s for i in self.inputs for e in i.shape for s in e.free_symbols}
        found = {name: b.source for b in self.bindings for name in b.symbols}
        for current in self.measured:
            for name in own_sizes(current):
                if name not in given:
                    found.setdefault(name, current)
        return found

    def sizes_from(self, wanted: Node) -> tuple[Node, ...]:
        """The other nodes that decide the sizes which ``wanted`` names."""
        deciders = self.deciders
        if not deciders:
            return ()
        names = dict.fromkeys(s for e in expressions_of(wanted) for s in e.free_symbols)
        for name in tuple(names):
            names.update(dict.fromkeys(self.scope.resolve(symbol(name)).free_symbols))
        found = dict.fromkeys(deciders[name] for name in names if name in deciders)
        return tuple(n for n in found if n is not wanted)

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
        measured=tuple(made[n] for n in graph.measured),
    )


def same(current: Node, operands: tuple[Node, ...]) -> Node:
    """A node on other operands, itself on its own."""
    return current if operands == current.inputs else node(current.primitive, *operands)


def expressions_of(current: Node) -> list[Expr]:
    """The shape expressions that a node's primitive holds, its results' shapes included."""
    out: list[Expr] = list(current.shape)
    primitive = current.primitive
    values: list[Any] = [getattr(primitive, item.name) for item in fields(primitive)]
    for value in values:
        members: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
        for member in members:
            if isinstance(member, Expr):
                out.append(member)
            elif isinstance(member, TensorType):
                out.extend(member.shape)
    return out


def own_sizes(current: Node) -> tuple[str, ...]:
    """The symbols that sizes of an opaque node's results consist of: it may give them values."""
    if not isinstance(current.primitive, Opaque):
        return ()
    names = (size.symbol_name for kind in current.primitive.outputs for size in kind.shape)
    return tuple(dict.fromkeys(name for name in names if name is not None))


def _inputs(current: Node) -> tuple[Node, ...]:
    return current.inputs


def topological(
    roots: Iterable[Node], needs: Callable[[Node], tuple[Node, ...]] = _inputs
) -> list[Node]:
    """Every node reachable from ``roots``, what a node ``needs`` before it, each once."""
    order: list[Node] = []
    done: set[Node] = set()
    for root in roots:
        stack: list[tuple[Node, Iterator[Node]]] = [(root, iter(needs(root)))]
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
                stack.append((following, iter(needs(following))))
    return order


def ancestors(start: Node, is_taken: Callable[[Node], bool]) -> set[Node]:
    """Of ``start`` and what it is made of, the nodes that are taken; others end the search."""
    stack, found = [start], set[Node]()
    while stack:
        current = stack.pop()
        if current not in found and is_taken(current):
            found.add(current)
            stack += current.inputs
    return found


def users(nodes: Iterable[Node]) -> dict[Node, list[Node]]:
    """For every node, the nodes among ``nodes`` that read it (once per operand)."""
    table: dict[Node, list[Node]] = {}
    for current in nodes:
        table.setdefault(current, [])
        for operand in current.inputs:
            table.setdefault(operand, []).append(current)
    return table
