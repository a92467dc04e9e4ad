"""Contractions of transposed and flattened operands: which axes they can read as they are stored.

A fully connected layer behind convolutions sums over [C, H, W] as one axis. Where the data is
stored as [H, W, C], the rows of constant weights are permuted when compiling instead of the data
at every call. May import ``shape`` and ``ir``. Start with :func:`contract_of_flattened`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Constant, Contract, Reshape, Shape, Transpose
from tilewright.ir.views import groups
from tilewright.rewrite.build import Array, contents, is_one, reshape
from tilewright.rewrite.facts import Facts
from tilewright.rewrite.orders import Order, inverse
from tilewright.shape import Expr


@dataclass(frozen=True)
class Run:
    """Neighbouring axes that stay neighbours: their product, and their new position."""

    size: int
    position: int


@dataclass(frozen=True)
class Flattening:
    """A reshape of the stored data to ``shape``.

    Axis i of the reshape that is replaced has become axis ``places[i]``; where the elements along
    it have another order, ``runs[i]`` says which.
    """

    shape: Shape
    places: tuple[int, ...]
    runs: dict[int, tuple[Run, ...]]


def contract_of_flattened(x: Node, facts: Facts) -> Node | None:
    """Contract(Reshape(Transpose(a)), W) → Contract(Reshape(a), W'), W' being W with other rows.

    The reshape merges transposed axes to a summed one; W is constant and used only here.
    """
    assert isinstance(x.primitive, Contract)
    for side, view in enumerate(x.inputs):
        weights = x.inputs[1 - side]
        array = contents(weights)
        if array is None or not facts.used_once(weights) or not isinstance(view.primitive, Reshape):
            continue
        moved = view.inputs[0]
        if not isinstance(moved.primitive, Transpose):
            continue
        order = inverse(moved.primitive.permutation)
        found = flattening(x, side, view, order)
        if found is None:
            continue
        for pair in x.primitive.summed:
            if pair[side] in found.runs:
                array = _permuted_rows(array, pair[1 - side], found.runs[pair[side]])
        data = reshape(moved.inputs[0], found.shape)
        constant = node(Constant.of(array, weights.dtype))
        rows = [
            tuple(_placed(pair, side, found.places) for pair in row)
            for row in (x.primitive.batch, x.primitive.summed)
        ]
        operands = (data, constant) if side == 0 else (constant, data)
        return node(replace(x.primitive, batch=rows[0], summed=rows[1]), *operands)
    return None


def _placed(pair: tuple[int, int], side: int, places: tuple[int, ...]) -> tuple[int, int]:
    left, right = pair
    return (places[left], right) if side == 0 else (left, places[right])


def _permuted_rows(array: Array, axis: int, runs: tuple[Run, ...]) -> Array:
    """The array with its elements along ``axis`` in the order of the runs' positions."""
    split = array.reshape(
        *array.shape[:axis], *(run.size for run in runs), *array.shape[axis + 1 :]
    )
    order = sorted(range(len(runs)), key=lambda i: runs[i].position)
    last = range(axis + len(runs), split.ndim)
    permuted = split.transpose(*range(axis), *(axis + i for i in order), *last)
    return permuted.reshape(array.shape)


def keeps_free_axes(x: Node, side: int, order: Order) -> bool:
    """Whether an operand of a contraction, stored in ``order``, has its free axes in their order.

    Such an operand can be read as it is stored, the paired axes being named by position.
    """
    paired = _paired(x, side)
    free = [axis for axis in order if axis not in paired]
    return free == sorted(free)


def _paired(x: Node, side: int) -> set[int]:
    assert isinstance(x.primitive, Contract)
    return {pair[side] for pair in x.primitive.batch + x.primitive.summed}


def flattening(x: Node, side: int, view: Node, order: Order) -> Flattening | None:
    """How operand ``side`` of a contraction, a Reshape, follows from data stored in ``order``.

    None where elements would have to move, other than along summed axes.
    """
    assert isinstance(x.primitive, Contract)
    source, target = view.inputs[0].shape, view.shape
    summed = {pair[side] for pair in x.primitive.summed}
    stored = [axis for axis in order if not is_one(source[axis])]
    parts: list[tuple[int, list[int]]] = []
    first: list[int] = []
    runs: dict[int, tuple[Run, ...]] = {}
    for left, right in groups(source, target):
        positions = [stored.index(axis) for axis in left if not is_one(source[axis])]
        wide = [axis for axis in right if not is_one(target[axis])]
        if not positions:
            if wide:
                return None
            (parts[-1][1] if parts else first).extend(right)
            continue
        start = min(positions)
        if sorted(positions) != list(range(start, start + len(positions))) or not right:
            return None
        if positions != sorted(positions):
            sizes = [source[stored[position]] for position in positions]
            found = _runs(sizes, positions, target[wide[0]]) if len(wide) == 1 else None
            if found is None or wide[0] not in summed:
                return None
            runs[wide[0]] = found
        parts.append((start, right))
    parts.sort(key=lambda part: part[0])
    axes = (*first, *(axis for _, right in parts for axis in right))
    if not keeps_free_axes(x, side, axes):
        return None
    return Flattening(tuple(target[axis] for axis in axes), inverse(axes), runs)


def _runs(sizes: list[Expr], positions: list[int], merged: Expr) -> tuple[Run, ...] | None:
    """The runs of axes that stay together; the size of one may follow from all the others."""
    if not merged.is_constant or merged.value == 0:
        return None
    products: list[Expr] = []
    starts: list[int] = []
    for i, (size, position) in enumerate(zip(sizes, positions, strict=True)):
        if i and position == positions[i - 1] + 1:
            products[-1] = products[-1] * size
        else:
            products.append(size)
            starts.append(position)
    known = math.prod(p.value for p in products if p.is_constant)
    unknown = sum(not p.is_constant for p in products)
    if unknown > 1 or known == 0 or merged.value % known or (not unknown and merged.value != known):
        return None
    rest = merged.value // known
    return tuple(
        Run(p.value if p.is_constant else rest, start)
        for p, start in zip(products, starts, strict=True)
    )
