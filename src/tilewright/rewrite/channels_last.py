"""Channels last: convolutional regions of a graph computed as [N, spatial…, C].

Not a rule: a single transposition never makes a node smaller, only a whole region pays. From every
convolution the order "channels last" spreads over all neighbours that can take it, in both
directions, until it meets the graph's edges, a node that needs its own order, or a transposition of
the model's that it cancels. A region is kept if it has more convolutions than conversions at its
edges. May import ``shape`` and ``ir``. Start with :func:`prefer_channels_last`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Binding, Graph, Node, node, users
from tilewright.ir.primitives import (
    Broadcast,
    Constant,
    Contract,
    Convolve,
    Input,
    Reshape,
    Transpose,
)
from tilewright.rewrite.build import contents
from tilewright.rewrite.driver import simplify
from tilewright.rewrite.flatten import flattening, keeps_free_axes
from tilewright.rewrite.orders import (
    Arrangement,
    Order,
    arranged,
    arrangement,
    arrangement_after,
    channels_last,
    identity,
    moves_data,
    reordered,
)

TILE_TYPES = (DType.FLOAT32, DType.FLOAT64)
FEW_CHANNELS = 4  # an input with no more of them is read through its transposition at no cost


def prefer_channels_last(graph: Graph) -> Graph:
    """A simplified graph of the same meaning whose convolutional regions have channels last.

    ``graph`` should be simplified; it is returned as it is where no region pays. Inputs, the names
    and types of outputs, the symbols of bindings, guards and scope stay as they are.
    """
    plan = _Regions(graph).worthwhile()
    return simplify(_Builder(graph, plan).built()) if plan else graph


class _Regions:
    """Which nodes are stored in which order; a node in no arrangement is stored as it is."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = graph.nodes()
        self.users = users(self.nodes)
        self.roots = dict.fromkeys(graph.roots)
        self.plan: dict[Node, Arrangement] = {}
        self._spread()

    def _spread(self) -> None:
        waiting: deque[Node] = deque()

        def take(x: Node, found: Arrangement | None) -> None:
            if found is not None and x not in self.plan:
                self.plan[x] = found
                waiting.append(x)

        for x in self.nodes:
            if isinstance(x.primitive, Convolve) and x.dtype in TILE_TYPES:
                take(x, arrangement(x, channels_last(x.rank)))
        while waiting:
            x = waiting.popleft()
            found = self.plan[x]
            for operand, order in zip(x.inputs, found.operands, strict=True):
                if order != identity(operand.rank):
                    take(operand, arrangement(operand, order))
            if found.order == identity(x.rank):
                continue
            for user in self.users[x]:
                take(user, arrangement_after(user, user.inputs.index(x), found.order))

    def order(self, x: Node) -> Order:
        """The order in which a node is stored."""
        found = self.plan.get(x)
        return identity(x.rank) if found is None else found.order

    def worthwhile(self) -> dict[Node, Arrangement]:
        """The arrangements of regions with more convolutions than conversions."""
        region = self._numbered()
        gain: dict[int, int] = {}
        for x, number in region.items():
            gain[number] = gain.get(number, 0) + self._saved(x)
        converted: dict[tuple[Node, Order], None] = {}
        for x, number in region.items():
            for conversion in self._conversions(x):
                if conversion not in converted:
                    converted[conversion] = None
                    gain[number] -= 1
        return {x: found for x, found in self.plan.items() if gain[region[x]] > 0}

    def _numbered(self) -> dict[Node, int]:
        """A number for every node of the plan, equal for those that share data in one order."""
        numbers: dict[Node, int] = {}
        for start in self.plan:
            if start in numbers:
                continue
            stack, number = [start], len(numbers)
            while stack:
                x = stack.pop()
                if x in numbers:
                    continue
                numbers[x] = number
                stack += [i for i in x.inputs if self._agree(x, i)]
                stack += [u for u in self.users[x] if self._agree(u, x)]
        return numbers

    def _agree(self, x: Node, operand: Node) -> bool:
        """Whether ``x`` takes an operand in the order, not its own, in which it is stored."""
        if x not in self.plan or operand not in self.plan:
            return False
        order = self.plan[x].operands[x.inputs.index(operand)]
        return order == self.order(operand) != identity(operand.rank)

    def _saved(self, x: Node) -> int:
        """1 for a convolution, and for a transposition that is no longer needed."""
        if isinstance(x.primitive, Transpose):
            return int(moves_data(x.inputs[0].shape, x.primitive.permutation))
        return int(isinstance(x.primitive, Convolve))

    def _conversions(self, x: Node) -> list[tuple[Node, Order]]:
        """Copies in another order that ``x``, and what reads it, need: of what, in which order."""
        found = self.plan[x]
        out: list[tuple[Node, Order]] = []
        for side, (operand, order) in enumerate(zip(x.inputs, found.operands, strict=True)):
            if self._differs(operand, order) and not self._is_free(x, side):
                out.append((operand, order))
        own = identity(x.rank)
        if self._differs(x, own):
            readers = [u for u in self.users[x] if u not in self.plan]
            if x in self.roots or not all(self._absorbs(x, u) for u in readers):
                out.append((x, own))
        return out

    def _differs(self, x: Node, order: Order) -> bool:
        stored = self.order(x)
        permutation = tuple(stored.index(axis) for axis in order)
        return moves_data(tuple(x.shape[axis] for axis in stored), permutation)

    def _is_free(self, x: Node, side: int) -> bool:
        """Whether another order of an operand costs next to nothing.

        It is known when compiling, read through a view while packing, or small beside ``x``.
        """
        operand = x.inputs[side]
        if isinstance(operand.primitive, Input) and operand.rank > 1:
            channels = operand.shape[1]
            return channels.is_constant and channels.value <= FEW_CHANNELS
        if isinstance(x.primitive, Contract):
            return keeps_free_axes(x, side, self.order(operand))
        return isinstance(x.primitive, Broadcast) or isinstance(operand.primitive, Constant)

    def _absorbs(self, x: Node, reader: Node) -> bool:
        """Whether a reader in no arrangement can take ``x`` as it is stored all the same."""
        order = self.order(x)
        if isinstance(reader.primitive, Contract):
            sides = [side for side, operand in enumerate(reader.inputs) if operand is x]
            return all(keeps_free_axes(reader, side, order) for side in sides)
        if not isinstance(reader.primitive, Reshape) or reader in self.roots:
            return False
        return all(
            isinstance(last.primitive, Contract) and self._takes_flattened(last, reader, order)
            for last in self.users[reader]
        )

    def _takes_flattened(self, x: Node, view: Node, order: Order) -> bool:
        side = x.inputs.index(view)
        weights = contents(x.inputs[1 - side])
        return weights is not None and flattening(x, side, view, order) is not None


class _Builder:
    """The graph with the nodes of a plan stored in their orders."""

    def __init__(self, graph: Graph, plan: dict[Node, Arrangement]) -> None:
        self.graph = graph
        self.plan = plan
        self.labels = dict(graph.labels)
        self.made: dict[Node, Node] = {}

    def built(self) -> Graph:
        """The graph; roots are in their own order."""
        for x in self.graph.nodes():
            found = self.plan.get(x)
            if found is None:
                operands = tuple(self._in_order(i, identity(i.rank)) for i in x.inputs)
                made = x if operands == x.inputs else node(x.primitive, *operands)
            else:
                rows = zip(x.inputs, found.operands, strict=True)
                made = arranged(x, found, tuple(self._in_order(i, order) for i, order in rows))
            self.made[x] = self._labelled(made, x)
        bindings = (Binding(self._plain(b.source), b.symbols) for b in self.graph.bindings)
        outputs = tuple((name, self._plain(root)) for name, root in self.graph.outputs)
        return replace(self.graph, outputs=outputs, bindings=tuple(bindings), labels=self.labels)

    def _plain(self, x: Node) -> Node:
        return self._in_order(x, identity(x.rank))

    def _in_order(self, x: Node, order: Order) -> Node:
        found = self.plan.get(x)
        stored = identity(x.rank) if found is None else found.order
        moved = reordered(self.made[x], tuple(stored.index(axis) for axis in order))
        return self._labelled(moved, x)

    def _labelled(self, made: Node, x: Node) -> Node:
        if x in self.labels:
            self.labels.setdefault(made, self.labels[x])
        return made
