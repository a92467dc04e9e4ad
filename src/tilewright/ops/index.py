"""Rules that read or write elements at computed positions: Gather…, Scatter…, OneHot, and kin.

Read ``_gather`` and ``_scatter_elements``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import (
    ArgReduce,
    Broadcast,
    Constant,
    GatherElements,
    GatherND,
    Reshape,
    ScatterElements,
    ScatterND,
    Shape,
)
from tilewright.ops.build import Builder, array, cast, dimension
from tilewright.ops.record import NoRule, RuleContext, operator
from tilewright.ops.sizes import data_operand, scalar_of, size_of, whole_numbers
from tilewright.shape import Expr, constant, less_equal, product

MOST_RANKED = 8  # elements that are compared with each other; the runtime chooses among more sooner
REDUCTIONS = {"none": "none", "add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}


@operator("Gather", computes=False)
def _gather(context: RuleContext) -> Sequence[Node]:
    data = data_operand(context)
    builder = Builder(context)
    axis = builder.axis(context.integer("axis", 0), data.rank)
    return [builder.gather(data, context.operand(1), axis)]


@operator("GatherElements", since=11, computes=False)
def _gather_elements(context: RuleContext) -> Sequence[Node]:
    data, indices = _as_vector(data_operand(context)), _as_vector(context.operand(1))
    axis = Builder(context).axis(context.integer("axis", 0), data.rank)
    _require_within(context, indices.shape, data.shape, axis)
    picked = node(GatherElements(axis), data, cast(indices, DType.INT64))
    return [Builder(context).reshape(picked, context.operand(1).shape)]


def _as_vector(x: Node) -> Node:
    """``x``, or a vector of one element in place of a scalar, which has no axis to go along."""
    return x if x.rank else node(Reshape((constant(1),)), x)


def _require_within(context: RuleContext, inner: Shape, outer: Shape, axis: int) -> None:
    for position, (size, limit) in enumerate(zip(inner, outer, strict=True)):
        if position != axis:
            message = f"the indices are longer than the data on axis {position}"
            context.require(less_equal(size, limit), message)


@operator("GatherND", since=11, computes=False)
def _gather_nd(context: RuleContext) -> Sequence[Node]:
    data = data_operand(context)
    indices = cast(context.operand(1), DType.INT64)
    batch = context.integer("batch_dims", 0)
    _require_known_depth(context, indices)
    for axis in range(batch):
        message = f"data and indices differ on batch axis {axis}"
        context.require_equal(data.shape[axis], indices.shape[axis], message)
    return [node(GatherND(batch), data, indices)]


def _require_known_depth(context: RuleContext, indices: Node) -> int:
    depth = context.scope.resolve(indices.shape[-1])
    if not depth.is_constant or not indices.shape[-1].is_constant:
        message = f"the last axis of the indices must have a known size, not {depth}"
        raise NoRule(message, where=context.where)
    return depth.value


def _fit(context: RuleContext, x: Node, shape: Shape, what: str) -> Node:
    """``x`` as a node of exactly ``shape``; sizes that are not known to agree are guarded."""
    for axis, (size, wanted) in enumerate(zip(x.shape, shape, strict=True)):
        context.require_equal(size, wanted, f"{what} on axis {axis}")
    return Builder(context).reshape(x, shape)


def _reduction(context: RuleContext) -> str:
    name = context.text("reduction", "none")
    if name not in REDUCTIONS:
        raise NoRule(f"there is no scatter reduction {name!r}", where=context.where)
    return REDUCTIONS[name]


@operator("ScatterElements", since=11, computes=False)
def _scatter_elements(context: RuleContext) -> Sequence[Node]:
    builder, shape = Builder(context), data_operand(context).shape
    data, indices, updates = (_as_vector(context.operand(i)) for i in range(3))
    axis = builder.axis(context.integer("axis", 0), data.rank)
    _require_within(context, indices.shape, data.shape, axis)
    updates = _fit(context, updates, indices.shape, "indices and updates differ")
    indices = builder.reshape(cast(indices, DType.INT64), updates.shape)
    primitive = ScatterElements(axis, _reduction(context))
    return [builder.reshape(_scatter(primitive, data, indices, updates), shape)]


@operator("ScatterND", since=11, computes=False)
def _scatter_nd(context: RuleContext) -> Sequence[Node]:
    data = data_operand(context)
    indices = cast(context.operand(1), DType.INT64)
    depth = _require_known_depth(context, indices)
    shape = indices.shape[:-1] + data.shape[depth:]
    updates = _fit(context, context.operand(2), shape, "updates do not fit data and indices")
    return [_scatter(ScatterND(_reduction(context)), data, indices, updates)]


def _scatter(
    primitive: ScatterElements | ScatterND, data: Node, indices: Node, updates: Node
) -> Node:
    """16-bit floats are combined in float32 where they are combined at all."""
    if primitive.reduction == "none" or not data.dtype.is_half:
        return node(primitive, data, indices, updates)
    wide = node(primitive, cast(data, DType.FLOAT32), indices, cast(updates, DType.FLOAT32))
    return cast(wide, data.dtype)


@operator("TensorScatter", since=24, computes=False)
def _tensor_scatter(context: RuleContext) -> Sequence[Node]:
    cache = data_operand(context)
    builder = Builder(context)
    axis = builder.axis(context.integer("axis", -2), cache.rank)
    shape = list(cache.shape)
    shape[axis] = context.operand(1).shape[axis]
    update = _fit(context, context.operand(1), tuple(shape), "cache and update differ")
    context.require(less_equal(shape[axis], cache.shape[axis]), "the update exceeds the cache")
    position = builder.iota(update.shape, axis)
    given = context.optional(2)
    if given is not None:
        context.require_equal(given.shape[0], cache.shape[0], "a write index per sample")
        starts = builder.broadcast(cast(given, DType.INT64), update.shape, [0])
        position = builder.add(position, starts)
    if context.text("mode", "linear") == "circular":
        position = builder.map("remainder", position, dimension(cache.shape[axis]))
    return [node(ScatterElements(axis, "none"), cache, position, update)]


@operator("OneHot", since=9, computes=False)
def _one_hot(context: RuleContext) -> Sequence[Node]:
    data_operand(context)
    indices, values = cast(context.operand(0), DType.INT64), context.operand(2)
    builder = Builder(context)
    depth = size_of(context, whole_numbers(context, 1)[0], "the depth")
    axis = builder.axis(context.integer("axis", -1), indices.rank + 1)
    shape = [*indices.shape[:axis], depth, *indices.shape[axis:]]
    kept = [a for a in range(len(shape)) if a != axis]
    negative = builder.map("less", indices, 0)
    positive = builder.select(negative, builder.add(indices, dimension(depth)), indices)
    hit = builder.map("equal", builder.broadcast(positive, shape, kept), builder.iota(shape, axis))
    off, on = (scalar_of(builder, builder.slice_axis(values, 0, i, 1)) for i in (0, 1))
    return [builder.select(hit, on, off)]


@operator("ReverseSequence", since=10, computes=False)
def _reverse_sequence(context: RuleContext) -> Sequence[Node]:
    data = data_operand(context)
    builder = Builder(context)
    time = builder.axis(context.integer("time_axis", 0), data.rank)
    batch = builder.axis(context.integer("batch_axis", 1), data.rank)
    lengths = cast(context.operand(1), DType.INT64)
    context.require_equal(lengths.shape[0], data.shape[batch], "a length per sample")
    length = builder.broadcast(lengths, data.shape, [batch])
    position = builder.iota(data.shape, time)
    mirrored = builder.subtract(builder.subtract(length, 1), position)
    index = builder.select(builder.map("less", position, length), mirrored, position)
    return [node(GatherElements(time), data, index)]


@operator("Compress", since=9, computes=False)
def _compress(context: RuleContext) -> Sequence[Node]:
    data = data_operand(context)
    condition = context.constant(1)
    if condition is None:
        raise NoRule("the condition decides the size when it is known", where=context.where)
    builder = Builder(context)
    kept = array(np.nonzero(condition.reshape(-1))[0], DType.INT64)
    if not context.has("axis"):
        return [builder.gather(builder.reshape(data, [product(data.shape)]), kept, 0)]
    return [builder.gather(data, kept, builder.axis(context.integer("axis"), data.rank))]


@operator("NonZero", since=9, computes=False)
def _non_zero(context: RuleContext) -> Sequence[Node]:
    """Positions of a tensor filled with one known value: all or none. Old exports count so."""
    data = data_operand(context)
    known = context.constant(0)
    if known is not None:
        return [array(np.stack(np.nonzero(known)).reshape(known.ndim, -1), DType.INT64)]
    fill = data.inputs[0].primitive if isinstance(data.primitive, Broadcast) else None
    if not isinstance(fill, Constant) or fill.array.size != 1 or data.rank == 0:
        raise NoRule("the data decides how many elements are found", where=context.where)
    builder = Builder(context)
    if not fill.array.any():
        return [array(np.zeros((data.rank, 0)), DType.INT64)]
    count = product(data.shape)
    rows = [builder.reshape(builder.iota(data.shape, a), [1, count]) for a in range(data.rank)]
    return [builder.concat(rows, 0)]


@operator("TopK", since=10, computes=False)
def _top_k(context: RuleContext) -> Sequence[Node]:
    data = data_operand(context)
    builder = Builder(context)
    axis = builder.axis(context.integer("axis", -1), data.rank)
    size, (count, *_) = builder.scope.resolve(data.shape[axis]), context.static_integers(1, "k")
    few = size.is_constant and size.value <= MOST_RANKED
    if data.dtype is DType.BOOL or not (count == 1 or (few and 0 < count <= size.value)):
        raise NoRule("more than one greatest element per row needs a sort", where=context.where)
    is_largest = context.integer("largest", 1) != 0
    if count == 1:
        context.require(less_equal(1, size), f"axis {axis} holds no element to choose")
        best = _greatest(data, axis) if is_largest else _least(builder, data, axis)
        index = builder.unsqueeze(best, [axis])
    else:
        index = _first(builder, _ranks(builder, data, axis, is_largest), axis, count)
    return [node(GatherElements(axis), data, index), index]


def _greatest(data: Node, axis: int) -> Node:
    """Where the greatest elements are, the first of equal ones."""
    return node(ArgReduce("maximum", axis, False), data)


def _least(b: Builder, data: Node, axis: int) -> Node:
    """Where the least elements are, the first of equal ones.

    What is not a number is the greatest, so that it is found only where there is nothing else.
    """
    if not data.dtype.is_float:
        return node(ArgReduce("minimum", axis, False), data)
    numbers = b.select(b.map("is_nan", data), np.inf, data)
    least = b.reduce("minimum", numbers, [axis], keep=True)
    return _greatest(cast(b.map("equal", data, least), DType.INT32), axis)


def _ranks(b: Builder, data: Node, axis: int, is_largest: bool) -> Node:
    """How many elements along ``axis`` come before each; of equal ones the first comes first.

    What is not a number is the greatest, as in numpy.
    """
    one, other = b.unsqueeze(data, [axis + 1]), b.unsqueeze(data, [axis])  # is one before other?
    low, high = (other, one) if is_largest else (one, other)
    before, same = b.map("less", low, high), b.map("equal", low, high)
    if data.dtype.is_float:
        unknown = b.map("is_nan", high)
        before = b.map(
            "logical_or",
            before,
            b.map("logical_and", unknown, b.map("logical_not", b.map("is_nan", low))),
        )
        same = b.map("logical_or", same, b.map("logical_and", unknown, b.map("is_nan", low)))
    places = (_places(b, data.rank + 1, at, data.shape[axis]) for at in (axis, axis + 1))
    before = b.map("logical_or", before, b.map("logical_and", same, b.map("less", *places)))
    return b.reduce("sum", cast(before, DType.INT32), [axis])


def _first(b: Builder, ranks: Node, axis: int, count: int) -> Node:
    """Where the elements of the ranks below ``count`` are, in order."""
    rank, size = ranks.rank + 1, ranks.shape[axis]
    wanted = cast(_places(b, rank, axis + 1, constant(count)), DType.INT32)
    found = b.map("equal", b.unsqueeze(ranks, [axis + 1]), wanted)
    place = cast(_places(b, rank, axis, size), DType.INT32)
    return cast(b.reduce("sum", b.select(found, place, 0), [axis]), DType.INT64)


def _places(b: Builder, rank: int, axis: int, size: Expr) -> Node:
    """Positions along one of ``rank`` axes, the others of which have one element."""
    return b.iota([size if at == axis else 1 for at in range(rank)], axis)
