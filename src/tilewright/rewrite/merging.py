"""Products of the same data become one product, whose results are slices: horizontal merging.

What is done element by element to each of the results is done to the one result before it is
sliced, so that it stays in the epilogue of the product. Readers take slices as they lie. May import
``shape`` and ``ir``. Start with :func:`products_of_one_operand`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Broadcast, Cast, Constant, Contract, Convolve, Map, Shape
from tilewright.rewrite.alternatives import View, free_axes
from tilewright.rewrite.build import Array, broadcast, contents, literal, slice_axis
from tilewright.rewrite.linear import per_axis
from tilewright.shape import constant

# Reading more takes half a millisecond, of which a kernel less saves a thousandth; and weights that
# are joined are in memory while compiling, where others stay in their file.
MOST_WEIGHTS = 1 << 22
NEUTRAL: Mapping[str, float] = {"add": 0.0, "multiply": 1.0}


def products_of_one_operand(view: View) -> Iterator[Mapping[Node, Node]]:
    """Contract(a, V), Contract(a, W) → slices of Contract(a, [V W]), V and W constant.

    Queries, keys and values of one attention are such, and the two halves of a gate.
    """
    groups: dict[tuple[object, ...], list[Node]] = {}
    for current in view.nodes:
        if isinstance(current.primitive, Contract) and _has_own_weights(current, view):
            free = free_axes(current, 1)
            if len(free) == 1:
                sizes = tuple(s for a, s in enumerate(current.inputs[1].shape) if a not in free)
                key = (current.inputs[0], current.primitive, sizes, current.inputs[1].dtype)
                groups.setdefault(key, []).append(current)
    for members in groups.values():
        for merged in _chosen(members, members[0].rank - 1):
            (axis,) = free_axes(merged[0], 1)
            yield _Merged(view, merged, merged[0].rank - 1).found(axis)


def convolutions_of_one_image(view: View) -> Iterator[Mapping[Node, Node]]:
    """Convolve(a, V), Convolve(a, W) → slices along channels of Convolve(a, [V W])."""
    groups: dict[tuple[object, ...], list[Node]] = {}
    for current in view.nodes:
        primitive = current.primitive
        if isinstance(primitive, Convolve) and primitive.groups == 1:
            data, weights = current.inputs
            if _has_own_weights(current, view):
                key = (data, primitive, weights.shape[1:], weights.dtype)
                groups.setdefault(key, []).append(current)
    for members in groups.values():
        assert isinstance(members[0].primitive, Convolve)
        axis = members[0].primitive.channel_axis
        for merged in _chosen(members, axis):
            yield _Merged(view, merged, axis).found(0)


def _chosen(members: Sequence[Node], axis: int) -> Iterator[Sequence[Node]]:
    """What may become one of products that share an operand: all, or the two narrowest.

    What is made of two can be merged with a third one again.
    """
    if len(members) > 1:
        yield members
    if len(members) > 2:
        narrowest = sorted(members, key=lambda product: product.shape[axis].value)[:2]
        yield [member for member in members if member in narrowest]


def _has_own_weights(product: Node, view: View) -> bool:
    """Whether the right operand is a constant that nothing else reads, and the left is none."""
    left, right = product.inputs
    array = contents(right)
    return (
        array is not None
        and array.size <= MOST_WEIGHTS
        and len(view.readers[right]) == 1
        and not isinstance(left.primitive, Constant)
    )


@dataclass(frozen=True)
class _Lane:
    """Nodes that do the same to each of the products' results, and the node that does it to all."""

    parts: tuple[Node, ...]
    whole: Node


class _Merged:
    """One product in the place of several, with what is done to all of their results."""

    def __init__(self, view: View, products: Sequence[Node], axis: int) -> None:
        """``axis`` is that of the results along which they become one."""
        self._view = view
        self._axis = axis
        self._products = tuple(products)
        self._sizes = [product.shape[axis].value for product in products]
        self._lanes: dict[Node, _Lane] = {}

    def found(self, along: int) -> Mapping[Node, Node]:
        """What is in the place of nodes that others read; weights are joined ``along`` an axis."""
        first = self._products[0]
        weights = [contents(product.inputs[1]) for product in self._products]
        joined = np.concatenate([w for w in weights if w is not None], along)
        constant_node = node(Constant.of(joined, first.inputs[1].dtype))
        waiting = [self._add(self._products, node(first.primitive, first.inputs[0], constant_node))]
        while waiting:
            lane = waiting.pop(0)
            waiting += self._after(lane)
        return {
            part: self._slice(part, lane)
            for part, lane in self._lanes.items()
            if self._is_read_outside(part)
        }

    def _add(self, parts: Sequence[Node], whole: Node) -> _Lane:
        lane = _Lane(tuple(parts), whole)
        self._lanes |= dict.fromkeys(parts, lane)
        return lane

    def _slice(self, part: Node, lane: _Lane) -> Node:
        number = lane.parts.index(part)
        start, size = sum(self._sizes[:number]), self._sizes[number]
        return slice_axis(lane.whole, self._axis, constant(start), constant(size))

    def _is_read_outside(self, part: Node) -> bool:
        return self._view.is_kept(part) or any(
            reader not in self._lanes for reader in self._view.readers[part]
        )

    def _after(self, lane: _Lane) -> list[_Lane]:
        """The lanes of readers that do the same to every part."""
        found: list[_Lane] = []
        for model in (r for part in lane.parts for r in self._view.readers[part]):
            if model in self._lanes or not isinstance(model.primitive, Map | Cast):
                continue
            readers = [self._like(model, part) for part in lane.parts]
            whole = self._joined(model, readers, lane)
            if whole is not None:
                parts = [p if r is None else r for p, r in zip(lane.parts, readers, strict=True)]
                found.append(self._add(parts, whole))
        return found

    def _like(self, model: Node, part: Node) -> Node | None:
        """A reader of one part that applies the same function as ``model``."""
        candidates = (r for r in self._view.readers[part] if r.primitive == model.primitive)
        return next((r for r in candidates if r not in self._lanes), None)

    def _joined(self, model: Node, readers: Sequence[Node | None], lane: _Lane) -> Node | None:
        """What is done to all parts at once; None where the readers do different things.

        Parts without such a reader have 0 added to them, or are multiplied by 1.
        """
        name = model.primitive.function if isinstance(model.primitive, Map) else ""
        present = [reader for reader in readers if reader is not None]
        if len(present) < len(readers) and (
            name not in NEUTRAL or not self._are_left_alone(readers, lane)
        ):
            return None
        if len(dict.fromkeys(present)) < len(present):
            return None
        operands: list[Node] = []
        for place in range(len(model.inputs)):
            column = [None if r is None else r.inputs[place] for r in readers]
            joined = self._operand(column, NEUTRAL.get(name), lane.whole.shape)
            if joined is None:
                return None
            operands.append(joined)
        return node(model.primitive, *operands)

    def _are_left_alone(self, readers: Sequence[Node | None], lane: _Lane) -> bool:
        """Whether no result is done anything to, of those without the reader."""
        pairs = zip(lane.parts, readers, strict=True)
        alone = [part for part, reader in pairs if reader is None]
        return not any(
            isinstance(reader.primitive, Map | Cast)
            for part in alone
            for reader in self._view.readers[part]
        )

    def _operand(
        self, column: Sequence[Node | None], neutral: float | None, shape: Shape
    ) -> Node | None:
        """One operand for all parts: of a lane, the same for all columns, or constants by column.

        None stands for a part without a reader, whose operand is its result or does not matter.
        """
        present = [operand for operand in column if operand is not None]
        lane = self._lanes.get(present[0])
        if lane is not None:
            pairs = zip(column, lane.parts, strict=True)
            fits = all(operand is None or operand is part for operand, part in pairs)
            return lane.whole if fits else None
        first = present[0]
        if not isinstance(first.primitive, Broadcast):
            return None
        base, axes = first.inputs[0], first.primitive.axes
        same = all(
            isinstance(o.primitive, Broadcast) and o.inputs[0] is base and o.primitive.axes == axes
            for o in present
        )
        if same and len(present) == len(column) and self._axis not in axes:
            return broadcast(base, shape, axes)
        parts: list[Array] = []
        for operand, size in zip(column, self._sizes, strict=True):
            values = np.array(neutral) if operand is None else per_axis(operand, self._axis)
            if values is None:
                return None
            parts.append(np.broadcast_to(values, size))
        vector = literal(np.concatenate(parts), first.dtype)
        return broadcast(vector, shape, (self._axis,))


__all__ = ["convolutions_of_one_image", "products_of_one_operand"]
