"""Rules that do not always pay: each gives another form of a graph, and a price chooses.

Unlike the rules of ``rules``, which are applied wherever they can be, an *alternative* only says
where it could be applied. ``plan.rewriting`` tries the sites, prices the kernels that change and
keeps what is cheaper. May import ``shape`` and ``ir``. Start with :class:`Site`; the table of all
is :data:`~tilewright.rewrite.merging.ALTERNATIVES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from tilewright.ir.graph import Graph, Node, node, same, topological, users
from tilewright.ir.primitives import Contract
from tilewright.shape import Scope


class View:
    """A graph with the readers of its nodes, for rules that look for sites."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = graph.nodes()
        self.scope: Scope = graph.scope
        self.readers = users(self.nodes)
        self._roots = frozenset(graph.roots)

    def is_kept(self, current: Node) -> bool:
        """Whether a node must be computed whatever reads it."""
        return current in self._roots

    def used_once(self, current: Node) -> bool:
        """Whether a node has one reader and is no result."""
        return len(self.readers[current]) == 1 and not self.is_kept(current)


@dataclass(frozen=True)
class Site:
    """Where a rule can be applied: what stands in the place of some nodes.

    Replacements are made of nodes of the graph that none of the replaced nodes decides.
    """

    rule: str
    replaced: Mapping[Node, Node]


@dataclass(frozen=True)
class Alternative:
    """A rule whose sites are found by a function of its name; its docstring says before → after."""

    sites: Callable[[View], Iterator[Mapping[Node, Node]]]

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.sites.__name__

    @property
    def formula(self) -> str:
        """Before → after."""
        return self.sites.__doc__ or ""

    def found(self, view: View) -> Iterator[Site]:
        """All sites, in a deterministic order."""
        for replaced in self.sites(view):
            yield Site(self.name, replaced)


def replaced(graph: Graph, instead: Mapping[Node, Node]) -> Graph:
    """The graph with other nodes in the place of some; new ones are labelled after these."""
    made: dict[Node, Node] = {}
    labels = dict(graph.labels)
    text = ", ".join(dict.fromkeys(labels[n] for n in instead if n in labels))
    for current in topological(instead.values()) if text else ():
        labels.setdefault(current, text)
    for current in graph.nodes():
        there = instead.get(current)
        made[current] = there or same(current, tuple(made[i] for i in current.inputs))
        if current in labels:
            labels.setdefault(made[current], labels[current])
    return replace(
        graph,
        outputs=tuple((name, made[root]) for name, root in graph.outputs),
        bindings=tuple(replace(b, source=made[b.source]) for b in graph.bindings),
        labels=labels,
        measured=tuple(made[n] for n in graph.measured),
    )


@dataclass(frozen=True)
class ResultAxes:
    """Where the axes of a contraction's operands are in its result; summed ones are nowhere."""

    left: Mapping[int, int]
    right: Mapping[int, int]

    @staticmethod
    def of(product: Node) -> ResultAxes:
        """Those of a Contract: batch axes, then the free ones of the left, then of the right."""
        primitive = product.primitive
        assert isinstance(primitive, Contract)
        batch = primitive.batch
        found: list[dict[int, int]] = []
        following = len(batch)
        for side, operand in enumerate(product.inputs):
            own = {pair[side]: number for number, pair in enumerate(batch)}
            summed = {pair[side] for pair in primitive.summed}
            for axis in range(operand.rank):
                if axis not in own and axis not in summed:
                    own[axis] = following
                    following += 1
            found.append(own)
        return ResultAxes(*found)

    def of_side(self, side: int) -> Mapping[int, int]:
        """Those of the left (0) or the right (1) operand."""
        return self.right if side else self.left


def free_axes(product: Node, side: int) -> list[int]:
    """The axes of an operand of a Contract that are neither summed nor in both operands."""
    primitive = product.primitive
    assert isinstance(primitive, Contract)
    paired = {pair[side] for pair in primitive.batch + primitive.summed}
    return [axis for axis in range(product.inputs[side].rank) if axis not in paired]


def with_operand(product: Node, side: int, operand: Node) -> Node:
    """A Contract of another operand in the place of one."""
    operands = list(product.inputs)
    operands[side] = operand
    return node(product.primitive, *operands)


__all__ = ["Alternative", "ResultAxes", "Site", "View", "free_axes", "replaced", "with_operand"]
