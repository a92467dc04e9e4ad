"""Channels last: convolutional regions of a graph computed as [N, spatial…, C].

Not a rule: a single transposition never makes a node smaller, only a whole region pays. From every
convolution the order "channels last" spreads over all neighbours that can take it, in both
directions, until it meets the graph's edges, a node that needs its own order, or a transposition of
the model's that it cancels. A region is taken if it has more convolutions than it adds
transpositions of data. From what the model transposes where no convolution is, the order of its
operand spreads in the same way: a normalisation or a window between two transpositions needs
neither. ``plan.layouts`` decides by prices which parts of a graph have these orders; it uses
:func:`spread` and :func:`stored`. May import ``shape`` and ``ir``. Start with
:func:`prefer_channels_last`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from tilewright.ir.dtype import TILE_TYPES
from tilewright.ir.graph import Binding, Graph, Node, node, users
from tilewright.ir.primitives import (
    Broadcast,
    Constant,
    Contract,
    Convolve,
    Input,
    Reshape,
    Shape,
    Transpose,
)
from tilewright.rewrite.driver import Observe, Trace, simplify
from tilewright.rewrite.finer import finer_axes
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
from tilewright.shape import Expr

FEW_CHANNELS = 4  # an input with no more of them is read through its transposition at no cost
# Of each of several groups: vectors run across groups in either order, or hold few channels. With
# 8 of a group 3x3 layers take 0.35 to 0.67 of the time with the channels first, with 16 1.3 times
# (by themselves, Zen 4).
FEW_OF_GROUP = 8
MOST_ROUNDS = 4  # what one leaves may pay in the next: simplifying moves transpositions

NEEDED = 1 << 10  # transpositions that it is worth where tiles have no other layout
# Vectors that are copied while one is loaded, turned in registers and stored: (1.65 + 4.8 + 2.53)
# cycles beside the 2.53 of a store (Zen 4, ``target/loop_costs.py``).
TRANSPOSED = 3.5
MANY_CHANNELS = 128  # of a result: a transposed element costs as much as 16 multiply-adds or so


def prefer_channels_last(
    graph: Graph, trace: Trace | None = None, observe: Observe | None = None
) -> Graph:
    """A simplified graph of the same meaning whose convolutional regions have channels last.

    ``graph`` should be simplified; it is returned as it is where no region pays. Inputs, the names
    and types of outputs, the symbols of bindings, guards and scope stay as they are. ``trace`` and
    ``observe`` are those of :func:`simplify`.
    """
    for _ in range(MOST_ROUNDS):
        finer = finer_axes(graph)
        plan = counted(finer)
        if not plan:
            break
        built = stored(finer, plan)
        if observe is not None:
            observe("channels-last", built)
        graph = simplify(built, trace, observe=observe)
    return graph


def counted(graph: Graph) -> dict[Node, Arrangement]:
    """How the nodes are stored of all regions that gain more than the transpositions they add.

    That is what :func:`prefer_channels_last` does at once, before it looks at what it has made.
    """
    return _Regions(graph).worthwhile()


def spread(graph: Graph) -> dict[Node, Arrangement]:
    """The nodes that an order of some convolution or transposition reaches, and how it stores them.

    Where several reach a node, the first one counts, and those of convolutions come first.
    """
    found = _Spread(graph)
    found.from_convolutions()
    found.from_transpositions()
    return found.plan


def stored(graph: Graph, plan: Mapping[Node, Arrangement]) -> Graph:
    """The graph with the nodes of a plan stored in their orders, and others in their own.

    What a node reads in another order than it is stored in is transposed; results are in their own
    order.
    """
    return _Builder(graph, plan).built()


class _Spread:
    """Which nodes an order reaches, and which one; the first one that does wins."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = graph.nodes()
        self.users = users(self.nodes)
        self.plan: dict[Node, Arrangement] = {}
        self._waiting: deque[Node] = deque()

    def from_convolutions(self) -> None:
        """Spread the order of all convolutions together."""
        for x in self.nodes:
            if _is_convolution(x):
                self._take(x, arrangement(x, channels_last(x.rank)))
        self._spread()

    def from_transpositions(self) -> None:
        """Spread the order of what is transposed, from one transposition after the other."""
        for x in self.nodes:
            if isinstance(x.primitive, Transpose):
                self._take(x, arrangement_after(x, 0, identity(x.rank)))
                self._spread()

    def _take(self, x: Node, found: Arrangement | None) -> None:
        if found is not None and x not in self.plan and not _is_repeated(x, found.order):
            self.plan[x] = found
            self._waiting.append(x)

    def _spread(self) -> None:
        """Go on to the operands and readers of all that is new."""
        while self._waiting:
            x = self._waiting.popleft()
            found = self.plan[x]
            for operand, order in zip(x.inputs, found.operands, strict=True):
                if order != identity(operand.rank):
                    self._take(operand, arrangement(operand, order))
            if found.order != identity(x.rank):
                for user in self.users[x]:
                    self._take(user, arrangement_after(user, user.inputs.index(x), found.order))


class _Regions:
    """Which nodes are stored in which order, in regions that are taken or left as a whole."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = graph.nodes()
        self.users = users(self.nodes)
        self.roots = dict.fromkeys(graph.roots)
        self.plan = spread(graph)
        self.region: dict[Node, int] = {}
        self.members: list[list[Node]] = []
        self._number()
        self.taken = [True] * len(self.members)

    def _number(self) -> None:
        """Put nodes that share data in an order not its own into one region."""
        for start in self.plan:
            if start in self.region:
                continue
            stack, members = [start], list[Node]()
            while stack:
                x = stack.pop()
                if x in self.region:
                    continue
                self.region[x] = len(self.members)
                members.append(x)
                stack += [i for i in x.inputs if self._share(i, x)]
                stack += [user for user in self.users[x] if self._share(x, user)]
            self.members.append(members)

    def _share(self, x: Node, reader: Node) -> bool:
        if x not in self.plan or reader not in self.plan:
            return False
        order = self.plan[reader].operands[reader.inputs.index(x)]
        return order == self.plan[x].order != identity(x.rank)

    # ------------------------------------------------------------ which regions pay

    def worthwhile(self) -> dict[Node, Arrangement]:
        """The arrangements of regions that gain more than the transpositions they add."""
        changed = True
        while changed:
            changed = False
            for number, members in enumerate(self.members):
                if not self.taken[number]:
                    continue
                gain = sum(_gain(x) for x in members)
                with_it = self._conversions(number)
                self.taken[number] = False
                self.taken[number] = gain + self._conversions(number) > with_it
                changed |= not self.taken[number]
        return {x: found for x, found in self.plan.items() if self._planned(x)}

    def _conversions(self, number: int) -> int:
        """How much data is transposed in a region and at its edges, as regions are taken now."""
        found: dict[tuple[Node, Order], None] = {}
        own = 0
        for x in self.members[number]:
            if isinstance(x.primitive, Transpose) and not self.taken[number]:
                own += moves_data(x.inputs[0].shape, x.primitive.permutation)
            for side, operand in enumerate(x.inputs):
                self._convert(found, operand, x, side)
            for reader in self.users[x]:
                for side, operand in enumerate(reader.inputs):
                    if operand is x:
                        self._convert(found, x, reader, side)
            if x in self.roots and self._differs(x, identity(x.rank)):
                found[x, identity(x.rank)] = None
        return own + len(found)

    def _convert(
        self, found: dict[tuple[Node, Order], None], x: Node, reader: Node, side: int
    ) -> None:
        """Note what must be transposed for a reader of ``x``."""
        planned = self.plan[reader] if self._planned(reader) else None
        order = identity(x.rank) if planned is None else planned.operands[side]
        if self._differs(x, order) and not self._is_free(x, order, reader, side):
            found[x, order] = None

    def _planned(self, x: Node) -> bool:
        return x in self.plan and self.taken[self.region[x]]

    def _order(self, x: Node) -> Order:
        return self.plan[x].order if self._planned(x) else identity(x.rank)

    def _differs(self, x: Node, order: Order) -> bool:
        """Whether data moves between the order of a node and another one."""
        stored = self._order(x)
        permutation = tuple(stored.index(axis) for axis in order)
        return moves_data(tuple(x.shape[axis] for axis in stored), permutation)

    def _is_free(self, x: Node, order: Order, reader: Node, side: int) -> bool:
        """Whether a reader gets ``x`` in another order than its own at next to no cost.

        It is known when compiling, small beside the result, or the reader takes a view of it.
        """
        if isinstance(x.primitive, Input) and x.rank > 1:
            return _are_few(x.shape[1])
        if isinstance(x.primitive, Constant) or _is_repeated(x, order):
            return True
        if isinstance(reader.primitive, Contract):
            return keeps_free_axes(reader, side, self._order(x))
        if self._is_plain_reshape(reader):
            return all(self._takes_flattened(x, reader, user) for user in self.users[reader])
        return isinstance(reader.primitive, Broadcast)

    def _is_plain_reshape(self, x: Node) -> bool:
        inside = self._planned(x) or x in self.roots
        return isinstance(x.primitive, Reshape) and not inside

    def _takes_flattened(self, x: Node, view: Node, reader: Node) -> bool:
        """Whether a reader of reshaped ``x`` can read it as ``x`` is stored."""
        if not isinstance(reader.primitive, Contract):
            return False
        side = reader.inputs.index(view)
        weights = reader.inputs[1 - side]
        known = isinstance(weights.primitive, Constant)
        return known and flattening(reader, side, view, self._order(x)) is not None


def _is_convolution(x: Node) -> bool:
    """Whether ``x`` is a convolution that has register tiles."""
    primitive = x.primitive
    if not isinstance(primitive, Convolve):
        return False
    return x.dtype in TILE_TYPES or primitive.sums is not None


def _is_repeated(x: Node, order: Order) -> bool:
    """Whether ``x`` is a Broadcast in any case: in ``order``, of the same node as in its own."""
    if not isinstance(x.primitive, Broadcast):
        return False
    found = arrangement(x, order)
    return found is not None and found.operands[0] == identity(x.inputs[0].rank)


class _Builder:
    """The graph with the nodes of a plan stored in their orders."""

    def __init__(self, graph: Graph, plan: Mapping[Node, Arrangement]) -> None:
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
        measured = tuple(self.made[x] for x in self.graph.measured)
        return replace(
            self.graph,
            outputs=outputs,
            bindings=tuple(bindings),
            labels=self.labels,
            measured=measured,
        )

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


def _gain(x: Node) -> int:
    """What channels last saves at ``x``, in transpositions of a feature map.

    With them first, a convolution of several taps copies its pixels for taps; of a few channels
    that may be less than to transpose image and result. To many channels the conversions are little
    work in comparison. Groups of few channels are computed alike in both orders. One of a single
    tap has a variant with the channels last of its own, if that is better.
    """
    primitive = x.primitive
    if not isinstance(primitive, Convolve):
        return 0
    if primitive.sums is not None:
        return NEEDED
    weights = x.inputs[1].shape
    taps = not all(size.is_constant and size.value == 1 for size in weights[2:])
    if taps and _are_few(weights[1]) and _copies_little(primitive, weights):
        return 1
    in_groups = primitive.groups > 1 and _are_few(weights[1], FEW_OF_GROUP)
    per_group = weights[0].value // primitive.groups if weights[0].is_constant else 0
    many = per_group >= MANY_CHANNELS and (taps or primitive.groups > 1)
    return 3 if (taps and not in_groups) or many else 1


def _copies_little(primitive: Convolve, weights: Shape) -> bool:
    """Whether to copy lines for taps along them is less than to transpose image and result.

    For each pixel of the result, every tap along a line has a copy of as many lines as results are
    apart, or as there are taps across; a vector of every s-th element takes s loads. What is
    transposed is the image that belongs to a pixel of the result, and the pixel's channels. Windows
    that do not overlap share no lines; with the channels last they are rows of a plain product.
    """
    strides = primitive.strides
    if all(stride == 1 for stride in strides):
        return True
    if len(strides) != 2 or not all(size.is_constant for size in weights):
        return False
    outputs, channels, across, along = (size.value for size in weights)
    if across <= strides[0] or along <= strides[1]:
        return False
    copied = channels * along * min(across, strides[0]) * strides[1]
    return copied <= TRANSPOSED * (channels * strides[0] * strides[1] + outputs)


def _are_few(channels: Expr, most: int = FEW_CHANNELS) -> bool:
    return channels.is_constant and channels.value <= most
