"""Axes that a reshape merges stay apart until another one splits what was merged.

Exporters write a normalisation of groups of channels as ``[N, C, H, W] → [N, G, C/G*H*W]``, means
over the last axis, and the way back. As long as the axes are merged, they have one order only: no
other order of storage passes. Here the region between such reshapes gets the axes that both sides
have, ``[N, G, C/G, H, W]``, and means over several of them. Not a rule, as nothing becomes smaller
by it: it is a form of the graph in which :mod:`~tilewright.rewrite.channels_last` sees further.
May import ``shape`` and ``ir``. Start with :func:`finer_axes`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise

from tilewright.ir.graph import Graph, Node, mapped, node, same, users
from tilewright.ir.primitives import Broadcast, Cast, Map, Reduce, Reshape, Shape
from tilewright.ir.views import groups
from tilewright.rewrite.build import broadcast, is_one, reshape
from tilewright.shape import Expr, constant, exact_quotient

# For each axis of a shape, the sizes whose product it is; their order is that of the elements.
_Pieces = tuple[tuple[Expr, ...], ...]


def finer_axes(graph: Graph) -> Graph:
    """The same graph with finer axes between reshapes that merge and reshapes that split them."""
    regions = _regions(graph)
    if not regions:
        return graph
    finer = _Finer(regions)
    built = mapped(graph, finer.change)
    labels = dict(built.labels)
    for x, made in finer.made.items():
        if x in graph.labels:
            labels.setdefault(made, graph.labels[x])
    return replace(built, labels=labels)


def _regions(graph: Graph) -> dict[Node, _Pieces]:
    """The nodes that get finer axes, and what their axes consist of.

    A region begins at a reshape, goes on through maps, reductions and broadcasts, and is taken if
    it has a reduction over axes that the reshape merged and ends in reshapes that split them again.
    """
    read_by = users(graph.nodes())
    taken: dict[Node, _Pieces] = {}
    for x in graph.nodes():
        if x in taken or not isinstance(x.primitive, Reshape):
            continue
        pieces = common_axes(x.inputs[0].shape, x.shape)
        if pieces is None or all(len(sizes) == 1 for sizes in pieces):
            continue
        members: dict[Node, _Pieces] = {x: pieces}
        is_reduced, is_split = False, False
        waiting = [x]
        while waiting:
            current = waiting.pop()
            own = members[current]
            for user in read_by[current]:
                if isinstance(user.primitive, Reduce):
                    is_reduced |= any(len(own[axis]) > 1 for axis in user.primitive.axes)
                if isinstance(user.primitive, Reshape):
                    split = common_axes(user.shape, current.shape)
                    is_split |= split == own and any(len(sizes) > 1 for sizes in own)
                following = _passed_on(user, own)
                if following is not None and user not in members:
                    members[user] = following
                    waiting.append(user)
        if is_reduced and is_split and not any(member in taken for member in members):
            taken |= members
    return taken


def _passed_on(user: Node, pieces: _Pieces) -> _Pieces | None:
    """What the axes of a node consist of whose operand's consist of these; None: a region ends."""
    match user.primitive:
        case Map() | Cast():
            return pieces
        case Reduce(axes=axes):
            kept = tuple(sizes for axis, sizes in enumerate(pieces) if axis not in axes)
            # What is left of a normalisation has nothing that anyone merged.
            return kept if any(len(sizes) > 1 for sizes in kept) else None
        case Broadcast(shape=shape, axes=axes):
            made: list[tuple[Expr, ...]] = [(size,) for size in shape]
            for axis, sizes, size in zip(axes, pieces, user.inputs[0].shape, strict=True):
                if len(sizes) > 1 and size is not shape[axis]:
                    return None
                made[axis] = sizes if size is shape[axis] else (shape[axis],)
            return tuple(made)
        case _:
            return None


def common_axes(source: Shape, target: Shape) -> _Pieces | None:
    """Of what the axes of ``target`` consist so that axes of ``source`` do, too; None if unknown.

    Of [N, 64, H, W] and [N, 8, 8*H*W]: [N], [8] and [8, H, W].
    """
    pieces: list[tuple[Expr, ...]] = [() for _ in target]
    for left, right in groups(source, target):
        sizes, here = [source[axis] for axis in left], constant(1)
        for axis in right:
            room = target[axis]
            while not is_one(room):
                while is_one(here):
                    if not sizes:
                        return None
                    here = sizes.pop(0)
                rest = exact_quotient(room, here)
                if rest is not None:
                    pieces[axis] += (here,)
                    room, here = rest, constant(1)
                    continue
                rest = exact_quotient(here, room)
                if rest is None:
                    return None
                pieces[axis] += (room,)
                room, here = constant(1), rest
        if not all(map(is_one, (here, *sizes))):
            return None
    return tuple(found or (size,) for found, size in zip(pieces, target, strict=True))


class _Finer:
    """Makes the nodes of regions in finer axes, and for all others in their own."""

    def __init__(self, regions: dict[Node, _Pieces]) -> None:
        self.regions = regions
        self.made: dict[Node, Node] = {}  # those of regions

    def change(self, x: Node, operands: tuple[Node, ...]) -> Node:
        """``x`` on new operands of the same shapes, and in its own shape, for :func:`mapped`."""
        pieces = self.regions.get(x)
        if pieces is not None:
            self.made[x] = self._member(x, operands, pieces)
            return reshape(self.made[x], x.shape)
        if x.inputs and x.inputs[0] in self.made:
            operand = self.made[x.inputs[0]]
            if isinstance(x.primitive, Reshape):
                return reshape(operand, x.shape)
            if isinstance(x.primitive, Reduce):
                return reshape(self._reduced(x.primitive, x.inputs[0]), x.shape)
        return same(x, operands)

    def _member(self, x: Node, operands: tuple[Node, ...], pieces: _Pieces) -> Node:
        if isinstance(x.primitive, Reshape):
            return reshape(self.made.get(x.inputs[0], operands[0]), _joined(pieces))
        if isinstance(x.primitive, Reduce):
            return self._reduced(x.primitive, x.inputs[0])
        if isinstance(x.primitive, Broadcast):
            return self._spread(x, self.made[x.inputs[0]], pieces)
        rows = zip(x.inputs, operands, strict=True)
        return node(x.primitive, *(self._finer(before, made, pieces) for before, made in rows))

    def _reduced(self, reduce: Reduce, operand: Node) -> Node:
        places = _places(self.regions[operand])
        axes = tuple(place for axis in reduce.axes for place in places[axis])
        return node(Reduce(reduce.kind, axes), self.made[operand])

    def _finer(self, before: Node, made: Node, pieces: _Pieces) -> Node:
        """An operand, whose axes consist of ``pieces``, in those."""
        if self.regions.get(before) == pieces:
            return self.made[before]
        if isinstance(before.primitive, Broadcast):
            source, shape = before.inputs[0], before.shape
            rows = list(zip(before.primitive.axes, source.shape, strict=True))
            if all(size is shape[axis] or len(pieces[axis]) == 1 for axis, size in rows):
                own = tuple(pieces[axis] if size is shape[axis] else (size,) for axis, size in rows)
                if self.regions.get(source) == own:
                    return self._spread(before, self.made[source], pieces)
                if isinstance(made.primitive, Broadcast):
                    return self._spread(before, reshape(made.inputs[0], _joined(own)), pieces)
        return reshape(made, _joined(pieces))

    def _spread(self, x: Node, operand: Node, pieces: _Pieces) -> Node:
        """A broadcast like ``x`` of an operand in finer axes."""
        assert isinstance(x.primitive, Broadcast)
        places = _places(pieces)
        axes = [place for axis in x.primitive.axes for place in places[axis]]
        return broadcast(operand, _joined(pieces), axes)


def _joined(pieces: _Pieces) -> Shape:
    return tuple(size for sizes in pieces for size in sizes)


def _places(pieces: _Pieces) -> list[range]:
    """Which of the finer axes each axis consists of."""
    ends = list(accumulate(map(len, pieces), initial=0))
    return [range(begin, end) for begin, end in pairwise(ends)]
