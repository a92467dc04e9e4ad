"""Which results of a graph a plan may put into memory, and what is always computed in its place.

An *anchor* is a node that some plan would store. Everything else is a part of the anchors that read
it, by rules under which no plan is worse for it:

* what is made of positions and numbers alone, at little cost, is computed where it is used;
* a broadcast that elementwise operations read stands for what it repeats;
* an elementwise step that one other of the same shape reads, and whose elements are not smaller, is
  a part of that one;
* what is picked or moved for one elementwise step, and what is computed for one concatenation, is a
  part of its reader unless either could end a product: each element is computed once there as well;
* what ends a long chain of operations is in memory (``chains``);
* a product, window or reduction that one elementwise step of its shape reads ends with that step,
  unless the step would then end two of them, or a library has a kernel for the product alone.

Start with :class:`Anchors`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tilewright.ir.graph import Graph, Node, topological, users
from tilewright.ir.kernel import KernelKind
from tilewright.ir.primitives import (
    Broadcast,
    Cast,
    Concat,
    Constant,
    Contract,
    Convolve,
    Dimension,
    Input,
    Iota,
    Map,
    Project,
    Reduce,
    Window,
)
from tilewright.plan.chains import ends_of_chains
from tilewright.plan.inline import cost, is_light, is_simple
from tilewright.plan.legality import fits_epilogue, wanted_in_memory
from tilewright.plan.seeds import kind_to_seed

POSITIONS_LIMIT = 64  # operations on positions that are repeated, or are in tables of their own


def _none(_: Node) -> bool:
    return False


class Anchors:
    """The anchors of a graph, in its order, and what each of them reads."""

    def __init__(
        self, graph: Graph, joined: bool = True, apart: Callable[[Node], bool] = _none
    ) -> None:
        """Without ``joined`` every node is an anchor that can be one.

        Products that are ``apart`` end with nothing: something computes them faster alone.
        """
        self.graph = graph
        self._apart = apart
        nodes = graph.nodes()
        self.order = {node: number for number, node in enumerate(nodes)}
        self.given = {n for n in nodes if _is_given(n)}
        self._users = users(nodes)
        self._roots = set(graph.roots)
        self._ends = ends_of_chains(nodes)[1]
        self._inner = self._of_positions(nodes)
        if joined:
            self._join(nodes)
        else:
            self._inner -= self._wanted_in_memory(nodes)
        self.nodes = tuple(n for n in nodes if n not in self.given and n not in self._inner)
        self.number = {node: number for number, node in enumerate(self.nodes)}
        self.memory = frozenset({*self.given, *self.nodes})
        self.body = {node: self._body(node) for node in self.nodes}
        self._readers: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        self._holders: dict[Node, list[Node]] = {}
        for node in self.nodes:
            for operand in self.operands(node):
                self._readers[operand].append(node)
            for member in self.body[node]:
                self._holders.setdefault(member, []).append(node)

    def operands(self, anchor: Node) -> list[Node]:
        """The anchors that one reads, or whose contents decide its sizes, in their order."""
        found: dict[Node, None] = {}
        for member in self.body[anchor]:
            for read in (*member.inputs, *self.graph.sizes_from(member)):
                source = read.inputs[0] if isinstance(read.primitive, Project) else read
                if source in self.number and source is not anchor:
                    found[source] = None
        return list(found)

    def readers(self, anchor: Node) -> list[Node]:
        """The anchors that read one, in their order."""
        return self._readers[anchor]

    def holding(self, nodes: Iterable[Node]) -> list[Node]:
        """The first anchors that nodes are parts of, or are themselves."""
        return [self._holders[node][0] for node in nodes if node in self._holders]

    # ------------------------------------------------------------ which nodes are none

    def _of_positions(self, nodes: list[Node]) -> set[Node]:
        """Nodes that are made of numbers and positions alone, and cost little."""
        found: set[Node] = set()
        for node in nodes:
            if node in self._roots or node in self.given or node in self._ends:
                continue
            if isinstance(node.primitive, Constant | Dimension | Iota):
                found.add(node)
            elif node.inputs and is_light(node) and found.issuperset(node.inputs):
                found |= {node} if cost(node, ()) <= POSITIONS_LIMIT else set()
        return found

    def _wanted_in_memory(self, nodes: list[Node]) -> set[Node]:
        """Parts of others that one of these cannot compute where it uses them."""
        memory = frozenset(nodes) - self._inner
        found: set[Node] = set()
        for node in nodes:
            found |= wanted_in_memory(node, memory, self.graph.scope) & self._inner
        return found

    def _join(self, nodes: list[Node]) -> None:
        """Add what is a part of the node that reads it; the first of two products of one reader."""
        heavy: dict[Node, int] = {}
        for node in nodes:
            if node in self.given or node in self._inner:
                continue
            heavy[node] = sum(heavy.get(i, 0) for i in {*node.inputs} if i in self._inner)
            heavy[node] += isinstance(node.primitive, Contract | Convolve | Window | Reduce)
            if node in self._roots or node in self._ends or not self._is_part(node):
                continue
            others = [i for u in self._users[node] for i in u.inputs if i is not node]
            if heavy[node] and any(heavy.get(o, 0) for o in others if o in self._inner):
                continue
            self._inner.add(node)

    def _is_part(self, node: Node) -> bool:
        readers = self._users[node]
        if not readers:
            return False
        if isinstance(node.primitive, Broadcast):
            return all(isinstance(r.primitive, Map) for r in readers)
        if len(readers) != 1:
            return False
        (reader,) = readers
        if is_light(node) and not isinstance(node.primitive, Map | Cast):
            return isinstance(reader.primitive, Map | Concat) and not self._ends_product(reader)
        if isinstance(reader.primitive, Concat):
            return is_light(node) and not self._ends_product(node)
        if not isinstance(reader.primitive, Map | Cast):
            return False
        if not _fits(reader, node) or node.dtype.bytes < reader.dtype.bytes:
            return False
        if isinstance(node.primitive, Map | Cast):
            return True
        if isinstance(node.primitive, Reduce):
            return True
        seeds = isinstance(node.primitive, Contract | Convolve | Window)
        if not seeds or kind_to_seed(node) in (None, KernelKind.LOOPS) or self._apart(node):
            return False
        memory = {*self.given, *reader.inputs} - self._inner
        return all(is_simple(operand, memory) for operand in reader.inputs if operand is not node)

    def _ends_product(self, reader: Node) -> bool:
        """Whether a node reads, with nothing in memory between, what is not light."""
        stack, seen = list(reader.inputs), set[Node]()
        while stack:
            current = stack.pop()
            if current in seen or current in self.given:
                continue
            seen.add(current)
            if not is_light(current):
                return True
            if current in self._inner:
                stack += current.inputs
        return False

    def _body(self, anchor: Node) -> tuple[Node, ...]:
        def inner(current: Node) -> tuple[Node, ...]:
            return tuple(i for i in current.inputs if i not in self.memory)

        return tuple(topological((anchor,), inner))


def _is_given(node: Node) -> bool:
    """Whether a node is in memory anyway."""
    if isinstance(node.primitive, Constant):
        return node.rank > 0
    return isinstance(node.primitive, Input | Project)


def _fits(reader: Node, node: Node) -> bool:
    return fits_epilogue(reader, node) and not node.dtype.is_half


__all__ = ["Anchors"]
