"""Sums and factors that pass through products (Korch, section 3 and figures 2 and 9).

May import ``shape`` and ``ir``. Start with :func:`sum_as_column`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node, topological
from tilewright.ir.primitives import (
    Broadcast,
    Concat,
    Constant,
    Contract,
    Dimension,
    Map,
    Pad,
    Reduce,
    Transpose,
)
from tilewright.rewrite.alternatives import ResultAxes, View, free_axes, with_operand
from tilewright.rewrite.build import (
    broadcast,
    elements,
    filled,
    is_one,
    literal,
    reshape,
    single_value,
    slice_axis,
    transpose,
)
from tilewright.rewrite.orders import inverse
from tilewright.shape import Truth, constant
from tilewright.shape import product as product_of


def sum_as_column(view: View) -> Iterator[Mapping[Node, Node]]:
    """Contract(a, b), Reduce(a) → slices of Contract(a, [b 1]), both summing the same axes of a.

    A column of ones is appended to b: the sum is a product with ones, done by the one that reads a
    anyway.
    """
    for total in view.nodes:
        primitive = total.primitive
        if not isinstance(primitive, Reduce) or primitive.kind != "sum":
            continue
        inner, _ = _below_turn(total.inputs[0])
        readers = view.readers[inner]
        turned = [r for turn in readers if _is_turn(turn) for r in view.readers[turn]]
        for product in dict.fromkeys((*readers, *turned)):
            for side in range(2):
                alike = _sums_alike(product, side, total)
                if alike and total not in topological([product.inputs[1 - side]]):
                    yield _with_column(product, side, total)


def _is_turn(x: Node) -> bool:
    """Whether a node is a transposition."""
    return isinstance(x.primitive, Transpose)


def _below_turn(x: Node) -> tuple[Node, tuple[int, ...]]:
    """What a transposition reads, and where in ``x`` each of its axes is."""
    if isinstance(x.primitive, Transpose):
        return x.inputs[0], inverse(x.primitive.permutation)
    return x, tuple(range(x.rank))


def _sums_alike(product: Node, side: int, total: Node) -> bool:
    """Whether a plain product sums the same axes of operand ``side`` as ``total`` does."""
    primitive, reduced = product.primitive, total.primitive
    if not isinstance(primitive, Contract) or primitive.sums is not None:
        return False
    assert isinstance(reduced, Reduce)
    (inner, place), (own, own_place) = map(_below_turn, (product.inputs[side], total.inputs[0]))
    if inner is not own or product.dtype.is_half or not product.dtype.is_float:
        return False
    summed = {place.index(pair[side]) for pair in primitive.summed}
    one_column = len(free_axes(product, 1 - side)) == 1
    return one_column and summed == {own_place.index(axis) for axis in reduced.axes}


def _with_column(product: Node, side: int, total: Node) -> Mapping[Node, Node]:
    other = product.inputs[1 - side]
    (column,) = free_axes(product, 1 - side)
    places = ResultAxes.of(product)
    axis = places.of_side(1 - side)[column]
    high = [constant(int(a == column)) for a in range(other.rank)]
    low = (constant(0),) * other.rank
    wider = node(Pad(low, tuple(high)), other, literal(1.0, product.dtype))
    whole = with_operand(product, 1 - side, wider)
    size = product.shape[axis]
    sums = slice_axis(whole, axis, size, constant(1))
    sums = reshape(sums, (*whole.shape[:axis], *whole.shape[axis + 1 :]))
    # The product may have the axes that the sum keeps in another order.
    assert isinstance(total.primitive, Reduce)
    (_, place), (_, own) = map(_below_turn, (product.inputs[side], total.inputs[0]))
    left = [a for a in range(len(own)) if a not in total.primitive.axes]
    target = [places.of_side(side)[place[own.index(a)]] for a in left]
    return {
        product: slice_axis(whole, axis, constant(0), size),
        total: transpose(sums, [t - (t > axis) for t in target]),
    }


def column_as_sum(view: View) -> Iterator[Mapping[Node, Node]]:
    """Contract(a, [b 1]) → [Contract(a, b) Reduce(a)], where the ones are padded to b.

    The other way round than :func:`sum_as_column`: b need not be copied to have one more column.
    """
    for product in view.nodes:
        primitive = product.primitive
        if not isinstance(primitive, Contract) or primitive.sums is not None:
            continue
        for side in range(2):
            operand = product.inputs[side]
            inner, column = _without_column(product.inputs[1 - side])
            if inner is None or free_axes(product, 1 - side) != [column]:
                continue
            places = ResultAxes.of(product)
            axis = places.of_side(1 - side)[column]
            axes = tuple(sorted(pair[side] for pair in primitive.summed))
            total = node(Reduce("sum", axes), operand)
            kept = [a for a in range(operand.rank) if a not in axes]
            order = sorted(range(len(kept)), key=lambda i: places.of_side(side)[kept[i]])
            shape = (*product.shape[:axis], constant(1), *product.shape[axis + 1 :])
            line = reshape(transpose(total, order), shape)
            yield _joined(product, axis, [with_operand(product, 1 - side, inner), line], view)


def _without_column(x: Node) -> tuple[Node | None, int]:
    """What is padded by a single 1 at the end of one axis to make ``x``, and the axis."""
    padded = x.inputs[0] if isinstance(x.primitive, Transpose) else x
    primitive = padded.primitive
    if not isinstance(primitive, Pad) or single_value(padded.inputs[1]) != 1:
        return None, 0
    wide = [a for a, size in enumerate(primitive.high) if size is not constant(0)]
    plain = all(size is constant(0) for size in primitive.low)
    if not plain or len(wide) != 1 or not is_one(primitive.high[wide[0]]):
        return None, 0
    inner, column = padded.inputs[0], wide[0]
    if isinstance(x.primitive, Transpose):
        order = x.primitive.permutation
        return transpose(inner, order), order.index(column)
    return inner, column


def _joined(product: Node, axis: int, parts: Sequence[Node], view: View) -> Mapping[Node, Node]:
    """Parts of a product in its place, also below transpositions: what reads one part finds it."""
    instead = {product: node(Concat(axis), *parts)}
    for reader in view.readers[product]:
        if isinstance(reader.primitive, Transpose):
            order = reader.primitive.permutation
            turned = [transpose(part, order) for part in parts]
            instead[reader] = node(Concat(order.index(axis)), *turned)
    return instead


def product_of_parts(view: View) -> Iterator[Mapping[Node, Node]]:
    """Contract([a b], c) → [Contract(a, c) Contract(b, c)], joined along an axis that stays."""
    for product in view.nodes:
        if not isinstance(product.primitive, Contract):
            continue
        for side, joined in enumerate(product.inputs):
            if not isinstance(joined.primitive, Concat):
                continue
            if joined.primitive.axis in free_axes(product, side):
                axis = ResultAxes.of(product).of_side(side)[joined.primitive.axis]
                parts = [with_operand(product, side, part) for part in joined.inputs]
                yield _joined(product, axis, parts, view)


def exchanged_operands(view: View) -> Iterator[Mapping[Node, Node]]:
    """Contract(a, b) → Transpose(Contract(b, a)), where the result is transposed: two turns less.

    The rows of the one are the columns of the other, and results come in the order in which they
    are read. Which of the operands should have rows depends on their sizes.
    """
    for product in view.nodes:
        primitive = product.primitive
        if not isinstance(primitive, Contract) or primitive.sums is not None:
            continue
        if not any(map(_is_turn, view.readers[product])):
            continue
        left, right = product.inputs
        batch, summed = (
            tuple((j, i) for i, j in pairs) for pairs in (primitive.batch, primitive.summed)
        )
        made = node(Contract(batch, summed), right, left)
        first = len(primitive.batch)
        columns, rows = len(free_axes(product, 1)), len(free_axes(product, 0))
        order = (*range(first), *range(first + columns, first + columns + rows))
        yield {product: transpose(made, (*order, *range(first, first + columns)))}


def factor_after_product(view: View) -> Iterator[Mapping[Node, Node]]:
    """Contract(a / r, b) → Contract(a, b) / r, r the same along all summed axes; so for a * r.

    Only where the result may have fewer elements than a: there are fewer divisions then.
    A sum over nothing stays 0. Where r is 0, what was infinite or no number may be the other.
    """
    for product in view.nodes:
        primitive = product.primitive
        if not isinstance(primitive, Contract) or primitive.sums is not None:
            continue
        if not product.dtype.is_float or product.dtype.is_half:
            continue
        summed = [{pair[side] for pair in primitive.summed} for side in range(2)]
        for side, operand in enumerate(product.inputs):
            scaled, place = _below_turn(operand)
            if not isinstance(scaled.primitive, Map):
                continue
            function = scaled.primitive.function
            if view.scope.is_less(product_of(product.shape), product_of(scaled.shape)) is Truth.NO:
                continue
            for data, factor in _factors(scaled, function):
                axes = tuple(place[axis] for axis in _axes(factor))
                if summed[side].isdisjoint(axes):
                    base = factor.inputs[0]
                    if function == "divide":
                        base = _unless_empty(base, product, view)
                    made = with_operand(product, side, transpose(data, inverse(place)))
                    spread = _spread_as(base, axes, product, side)
                    yield {product: node(Map(function), made, spread)}


def _factors(scaled: Node, function: str) -> list[tuple[Node, Node]]:
    """What is multiplied or divided, by a broadcast that is no mere number."""
    pairs = [(scaled.inputs[0], scaled.inputs[1])] if function in ("divide", "multiply") else []
    if function == "multiply":
        pairs.append((scaled.inputs[1], scaled.inputs[0]))
    return [
        (data, factor)
        for data, factor in pairs
        if isinstance(factor.primitive, Broadcast) and not isinstance(data.primitive, Constant)
    ]


def _axes(factor: Node) -> tuple[int, ...]:
    assert isinstance(factor.primitive, Broadcast)
    return factor.primitive.axes


def _spread_as(base: Node, axes: tuple[int, ...], product: Node, side: int) -> Node:
    """What lies along ``axes`` of operand ``side``, along those of the product."""
    places = ResultAxes.of(product).of_side(side)
    targets = [places[axis] for axis in axes]
    order = sorted(range(len(targets)), key=targets.__getitem__)
    return broadcast(transpose(base, order), product.shape, [targets[i] for i in order])


def _unless_empty(divisor: Node, product: Node, view: View) -> Node:
    """The divisor, or 1 where the product sums nothing: 0 by 0 would be no number."""
    primitive = product.primitive
    assert isinstance(primitive, Contract)
    depth = elements(product.inputs[0].shape, [i for i, _ in primitive.summed])
    if view.scope.is_less(0, depth) is Truth.YES:
        return divisor
    zero, size = literal(0, DType.INT64), node(Dimension(depth))
    some = broadcast(node(Map("less"), zero, size), divisor.shape, ())
    return node(Map("select"), some, divisor, filled(1.0, divisor))


__all__ = [
    "column_as_sum",
    "exchanged_operands",
    "factor_after_product",
    "product_of_parts",
    "sum_as_column",
]
