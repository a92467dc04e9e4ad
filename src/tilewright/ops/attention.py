"""Attention (scaled dot products, softmax, weighted sum) and RotaryEmbedding.

Everything dissolves into contractions, maps and reductions; heads that share keys and values are
free axes of the contraction, so that nothing is repeated. Start with :func:`attention`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.make import transpose
from tilewright.ops.build import Builder, cast, dimension, scalar
from tilewright.ops.linear import agree, contract, with_size
from tilewright.ops.operands import expand_to, widen
from tilewright.ops.record import NoRule, RuleContext, operator
from tilewright.ops.sizes import require_multiple
from tilewright.ops.types import require_native
from tilewright.shape import Expr, Truth, constant, equal, less_equal, maximum
from tilewright.support.errors import InvalidModelError

_PRECISIONS = {1: DType.FLOAT32, 10: DType.FLOAT16, 11: DType.FLOAT64, 16: DType.BFLOAT16}


@dataclass(frozen=True)
class _Heads:
    """Queries [B, Hq, S, D], keys [B, Hk, T, D] and values [B, Hk, T, E] with agreeing sizes.

    ``past`` is the number of keys before the new ones.
    """

    query: Node
    key: Node
    value: Node
    past: Expr

    @property
    def score_shape(self) -> tuple[Expr, ...]:
        """[B, Hq, S, T]."""
        return (*self.query.shape[:3], self.key.shape[2])


@operator("Attention", since=23, computes=False)
def _attention(context: RuleContext) -> Sequence[Node]:
    return attention(context)


def attention(context: RuleContext, *, clears: bool = True) -> Sequence[Node]:
    """The result, all keys, all values and the scores of a node.

    With ``clears``, a query that sees no key gets zeros; else there is none, or it gets no numbers.
    """
    b = Builder(context)
    require_native(context)
    query, value = context.operand(0), context.operand(2)
    if query.rank not in (3, 4):
        raise InvalidModelError(f"queries of rank {query.rank}", where=context.where)
    heads = _heads(b)
    scores = _scores(b, heads)
    captured = scores
    scores = _capped(b, scores)
    mode = context.integer("qk_matmul_output_mode", 0)
    captured = scores if mode == 1 else captured
    scores, may_be_empty = _masked(b, heads, scores)
    captured = scores if mode == 2 else captured
    weights = _softmax(b, scores, may_be_empty and clears)
    captured = weights if mode == 3 else captured
    out = _packed(b, _weighted(b, heads, weights), query.rank)
    outputs = [
        cast(out, query.dtype),
        cast(heads.key, context.operand(1).dtype),
        cast(heads.value, value.dtype),
        cast(b.reshape(captured, heads.score_shape), query.dtype),
    ]
    return outputs[: max(context.output_count, 1)]


# ---------------------------------------------------------------- operands


def _heads(b: Builder) -> _Heads:
    context = b.context
    query, key, value = (widen(context.operand(i)) for i in range(3))
    if query.rank == 3:
        query_heads = context.integer("q_num_heads")
        shared_heads = context.integer("kv_num_heads")
        query = split_heads(b, query, query_heads)
        key, value = split_heads(b, key, shared_heads), split_heads(b, value, shared_heads)
    key, value = _alike(b, cast(key, query.dtype), cast(value, query.dtype))
    query, key = agree(b, query, 0, key, 0, "batches of queries and keys differ")
    query, key = agree(b, query, 3, key, 3, "head sizes of queries and keys differ")
    value = with_size(b, value, 0, key.shape[0])
    past_key, past_value = context.optional(4), context.optional(5)
    past: Expr = constant(0)
    if past_key is not None and past_value is not None:
        past_key, past_value = _alike(b, cast(past_key, query.dtype), cast(past_value, query.dtype))
        past = past_key.shape[2]
        key, value = b.concat([past_key, key], 2), b.concat([past_value, value], 2)
        query, key = agree(b, query, 0, key, 0, "batches of queries and keys differ")
        query, key = agree(b, query, 3, key, 3, "head sizes of queries and keys differ")
        key, value = _alike(b, key, value)
    return _Heads(query, key, value, past)


def _alike(b: Builder, key: Node, value: Node) -> tuple[Node, Node]:
    """Keys and values with the same batch, number of heads and length."""
    for axis, what in ((0, "batches"), (1, "heads"), (2, "lengths")):
        key, value = agree(b, key, axis, value, axis, f"{what} of keys and values differ")
    return key, value


def split_heads(b: Builder, x: Node, heads: int) -> Node:
    """[B, S, H * D] as [B, H, S, D]."""
    message = f"{x.shape[2]} features cannot be split into {heads} heads"
    size = require_multiple(b.context, x.shape[2], heads, message)
    sizes = [x.shape[0], x.shape[1], constant(heads), size]
    return transpose(b.reshape(x, sizes), [0, 2, 1, 3])


def merge_heads(b: Builder, x: Node) -> Node:
    """[B, H, S, D] as [B, S, H * D]."""
    batch, heads, length, size = x.shape
    return b.reshape(transpose(x, [0, 2, 1, 3]), [batch, length, heads * size])


def _packed(b: Builder, out: Node, rank: int) -> Node:
    return merge_heads(b, out) if rank == 3 else out


def _group(b: Builder, x: Node, shared: Expr) -> Node:
    """[B, Hq, S, …] as [B, Hk, Hq / Hk, S, …]: query heads by the key head they share."""
    message = f"{x.shape[1]} query heads for {shared} key heads"
    batch, heads, *rest = x.shape
    if shared.is_constant and shared.value > 0:
        group = require_multiple(b.context, heads, shared.value, message)
    else:
        b.context.require(equal(heads % shared, 0), message)
        group = heads // shared
    return b.reshape(x, [batch, shared, group, *rest])


# ---------------------------------------------------------------- scores


def _scores(b: Builder, heads: _Heads) -> Node:
    """[B, Hq, S, T]: scaled products of queries and keys.

    Where heads share keys, [B, Hk, Hq / Hk, S, T] until the values are summed: one attention.
    """
    if b.context.has("scale"):
        query = b.multiply(heads.query, b.context.number("scale"))
    else:
        query = over_root(b, heads.query, heads.query.shape[3])
    if b.scope.is_equal(query.shape[1], heads.key.shape[1]) is Truth.YES:
        query = with_size(b, query, 1, heads.key.shape[1])
        return contract(b, query, heads.key, [(3, 3)], [(0, 0), (1, 1)])
    grouped = _group(b, query, heads.key.shape[1])
    return contract(b, grouped, heads.key, [(4, 3)], [(0, 0), (1, 1)])


def over_root(b: Builder, x: Node, size: Expr) -> Node:
    """``x`` divided by the square root of ``size``."""
    known = b.scope.resolve(size)
    if known.is_constant and known.value > 0:
        return b.multiply(x, known.value**-0.5)
    return b.divide(x, b.map("square_root", cast(dimension(known), x.dtype)))


def _capped(b: Builder, scores: Node) -> Node:
    cap = b.context.number("softcap", 0.0)
    if cap <= 0:
        return scores
    return b.multiply(b.map("hyperbolic_tangent", b.divide(scores, cap)), cap)


def _weighted(b: Builder, heads: _Heads, weights: Node) -> Node:
    """[B, Hq, S, E]: values summed with the weights of scores."""
    out = contract(b, weights, heads.value, [(weights.rank - 1, 2)], [(0, 0), (1, 1)])
    return b.reshape(out, [*heads.query.shape[:3], heads.value.shape[3]])


# ---------------------------------------------------------------- masks


def _masked(b: Builder, heads: _Heads, scores: Node) -> tuple[Node, bool]:
    """Scores with -inf where a key is not seen, and whether a query may see no key at all."""
    context = b.context
    mask, valid = context.optional(3), context.optional(6)
    may_be_empty = False
    if mask is not None:
        scores = _with_mask(b, heads, scores, mask)
        may_be_empty = True
    allowed = _positions_allowed(b, heads, valid)
    if valid is not None:
        index = b.iota([1, 1, 1, heads.key.shape[2]], 3)
        allowed.append(b.map("less", index, _per_batch(b, valid)))
        may_be_empty = True
    if allowed:
        together = allowed[0]
        for other in allowed[1:]:
            together = b.map("logical_and", together, other)
        together = b.unsqueeze(together, [2]) if scores.rank == 5 else together
        scores = b.select(together, scores, scalar(-np.inf, scores.dtype))
    windowed = context.integer("left_window_size", -1) >= 0
    return scores, may_be_empty or windowed


def _per_batch(b: Builder, valid: Node) -> Node:
    return b.reshape(cast(valid, DType.INT64), [valid.shape[0], 1, 1, 1])


def _positions_allowed(b: Builder, heads: _Heads, valid: Node | None) -> list[Node]:
    """Conditions [1 or B, 1, S, T] on the positions of query and key."""
    context = b.context
    left = context.integer("left_window_size", -1)
    right = context.integer("right_window_size", -1)
    causal = context.integer("is_causal", 0) != 0
    right = 0 if causal else right
    if left < 0 and right < 0:
        return []
    length, total = heads.query.shape[2], heads.key.shape[2]
    if valid is not None:
        offset = b.subtract(_per_batch(b, valid), dimension(length))
    else:
        offset = dimension(heads.past)
    query = b.add(b.iota([1, 1, length, 1], 2), offset)
    key = b.iota([1, 1, 1, total], 3)
    allowed: list[Node] = []
    if right >= 0:
        allowed.append(b.map("less_equal", key, b.add(query, right) if right else query))
    if left >= 0:
        allowed.append(b.map("less_equal", b.subtract(query, left), key))
    return allowed


def _with_mask(b: Builder, heads: _Heads, scores: Node, mask: Node) -> Node:
    """Scores with a bool or float mask, which may be shorter than the keys."""
    total = heads.key.shape[2]
    if mask.dtype is DType.BOOL:
        fill = scalar(False, DType.BOOL)
    else:
        mask = cast(mask, scores.dtype)
        fill = scalar(-np.inf, mask.dtype)
    size = b.scope.resolve(mask.shape[-1])
    if b.scope.is_equal(size, total) is not Truth.YES:
        b.context.require(less_equal(size, total), "the mask is longer than the keys")
        zeros = [constant(0)] * mask.rank
        padded = b.pad(mask, zeros, [*zeros[1:], maximum(0, total - size)], fill)
        mask = with_size(b, padded, mask.rank - 1, total)
    mask = b.reshape(expand_to(b, mask, heads.score_shape, "the mask"), scores.shape)
    if mask.dtype is DType.BOOL:
        return b.select(mask, scores, scalar(-np.inf, scores.dtype))
    return b.add(scores, mask)


def _softmax(b: Builder, scores: Node, may_be_empty: bool) -> Node:
    """Softmax over the last axis; a row without any key gives zeros."""
    precision = b.context.integer("softmax_precision", 1)
    if precision not in _PRECISIONS:
        raise NoRule(f"softmax_precision {precision}", where=b.context.where)
    wide = cast(scores, DType.FLOAT64) if precision == 11 else scores
    axis = scores.rank - 1
    highest = b.reduce("maximum", wide, [axis], keep=True)
    if may_be_empty:
        empty = b.map("equal", highest, scalar(-np.inf, wide.dtype))
        highest = b.select(empty, scalar(0, wide.dtype), highest)
    powers = b.map("exponential", b.subtract(wide, highest))
    summed = b.reduce("sum", powers, [axis], keep=True)
    if may_be_empty:
        summed = b.select(b.map("equal", summed, 0.0), scalar(1, wide.dtype), summed)
    return cast(b.divide(powers, summed), scores.dtype)


# ---------------------------------------------------------------- rotary embedding


@operator("RotaryEmbedding", since=23)
def _rotary_embedding(context: RuleContext) -> Sequence[Node]:
    """Pairs of features turned by an angle that depends on the position."""
    b = Builder(context)
    require_native(context)
    x = context.operand(0)
    position_axis = 2 if x.rank == 4 else 1
    if x.rank == 4:
        heads = x
    else:
        count = context.integer("num_heads")
        message = f"{x.shape[2]} features cannot be split into {count} heads"
        size = require_multiple(context, x.shape[2], count, message)
        heads = b.reshape(x, [x.shape[0], x.shape[1], constant(count), size])
    turned_size = context.integer("rotary_embedding_dim", 0)
    whole = heads.shape[3]
    rotated = constant(turned_size) if turned_size else whole
    half = require_multiple(context, rotated, 2, "the number of rotated features must be even")
    cosine, sine = (_angles(b, i, heads, position_axis, half) for i in (1, 2))
    turned = b.slice_axis(heads, 3, 0, rotated)
    interleaved = context.integer("interleaved", 0) != 0
    first, second = _pairs(b, turned, half, interleaved)
    real = b.subtract(b.multiply(cosine, first), b.multiply(sine, second))
    imaginary = b.add(b.multiply(sine, first), b.multiply(cosine, second))
    if interleaved:
        stacked = b.concat([b.unsqueeze(real, [4]), b.unsqueeze(imaginary, [4])], 4)
        parts = [b.reshape(stacked, turned.shape)]
    else:
        parts = [real, imaginary]
    if b.scope.is_equal(rotated, whole) is not Truth.YES:
        context.require(less_equal(rotated, whole), "more features are rotated than there are")
        parts.append(b.slice_axis(heads, 3, rotated, whole - rotated))
    return [b.reshape(b.concat(parts, 3), x.shape)]


def _pairs(b: Builder, turned: Node, half: Expr, interleaved: bool) -> tuple[Node, Node]:
    """The two members of every pair of rotated features, each [.., .., .., half]."""
    if not interleaved:
        return b.slice_axis(turned, 3, 0, half), b.slice_axis(turned, 3, half, half)
    pairs = b.reshape(turned, [*turned.shape[:3], half, constant(2)])
    first, second = b.slice_axis(pairs, 4, 0, 1), b.slice_axis(pairs, 4, 1, 1)
    sizes = [*turned.shape[:3], half]
    return b.reshape(first, sizes), b.reshape(second, sizes)


def _angles(b: Builder, operand: int, heads: Node, position_axis: int, half: Expr) -> Node:
    """Cosines or sines repeated to [.., .., .., half] over the heads."""
    context = b.context
    table, positions = context.operand(operand), context.optional(3)
    if positions is not None:
        table = b.gather(table, positions, 0)
    context.require_equal(table.shape[2], half, "the cosine or sine table does not fit")
    head_axis = 3 - position_axis
    target = [*heads.shape[:3], half]
    spread = b.unsqueeze(b.reshape(table, [*table.shape[:2], half]), [head_axis])
    return expand_to(b, spread, b.shape(target), "the cosine or sine table")
