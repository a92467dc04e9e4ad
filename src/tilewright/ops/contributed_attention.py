"""Attention of the domain com.microsoft, with and without projections, and its rotation.

Operands become heads, masks become numbers that are added to scores, and the standard Attention
does the rest. A padded key has ``mask_filter_value`` added to its score, which is finite: where no
key of a row counts, all of them do, and no row is empty. Start with :func:`_attended`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ops.attention import attention, merge_heads, split_heads
from tilewright.ops.build import Builder, cast, dimension, scalar
from tilewright.ops.contributed import contributed, part, standard
from tilewright.ops.linear import matmul, with_size
from tilewright.ops.operands import expand_to
from tilewright.ops.quantised_linear import centred
from tilewright.ops.record import AttributeValue, NoRule, RuleContext
from tilewright.ops.sizes import require_multiple, scalar_of
from tilewright.ops.types import require_native
from tilewright.shape import Expr, Truth, constant, equal, logical_or
from tilewright.support.errors import InvalidModelError

MASKED = -10000.0  # what is added to scores of padded keys, unless the node says otherwise


@dataclass(frozen=True)
class _Heads:
    """Queries, keys and values [B, heads, length, features], and keys and values before them."""

    query: Node
    key: Node
    value: Node
    past: tuple[Node, Node] | None = None


def _attended(
    b: Builder, heads: _Heads, added: Node | None, attributes: dict[str, AttributeValue]
) -> list[Node]:
    """The result [B, S, heads * features], and all keys and values."""
    past = heads.past or (None, None)
    operands = [heads.query, heads.key, heads.value, added, *past]
    if b.context.number("scale", 0.0):
        attributes = {**attributes, "scale": b.context.number("scale")}
    made = attention(part(b.context, "Attention", operands, attributes, 3), clears=False)
    return [merge_heads(b, made[0]), *made[1:]]


def _is_set(context: RuleContext, name: str) -> bool:
    """Whether an integer attribute, by default 0 or -1, asks for something."""
    return context.integer(name, 0) > 0


# ---------------------------------------------------------------- masks


def _padding(b: Builder, mask: Node | None, heads: _Heads) -> Node | None:
    """What a mask of padded keys adds to scores: [B, 1, 1 or S, T]."""
    if mask is None:
        return None
    batch, length, total = heads.query.shape[0], heads.query.shape[2], _total(b, heads)
    if mask.rank == 1:
        seen = _between(b, mask, batch, total)
    elif mask.rank in (2, 3):
        middle = [length] if mask.rank == 3 else []
        for size, wanted in zip(mask.shape, [batch, *middle, total], strict=True):
            b.context.require_equal(wanted, size, "the mask does not fit queries and keys")
        sizes = [batch, 1, *(middle or [1]), total]
        seen = b.map("less", 0, b.reshape(mask, sizes))
    else:
        raise NoRule(f"a mask with {mask.rank} axes", where=b.context.where)
    filtered = b.context.number("mask_filter_value", MASKED)
    return b.select(seen, scalar(0.0, DType.FLOAT32), scalar(filtered, DType.FLOAT32))


def _between(b: Builder, mask: Node, batch: Expr, total: Expr) -> Node:
    """Keys before the ends that a vector tells, and from the starts on that may follow them."""
    size = mask.shape[0]
    if b.scope.is_equal(size, batch) is Truth.YES:
        bounds = [mask]
    elif b.scope.is_equal(size, batch * 2) is Truth.YES:
        bounds = [b.slice_axis(mask, 0, 0, batch), b.slice_axis(mask, 0, batch, batch)]
    else:
        where = b.context.where
        raise NoRule(f"a mask of {size} numbers for a batch of {batch}", where=where)
    key = cast(b.iota([1, 1, 1, total], 3), mask.dtype)
    columns = [b.reshape(bound, [batch, 1, 1, 1]) for bound in bounds]
    seen = b.map("less", key, columns[0])
    if len(columns) == 1:
        return seen
    return b.map("logical_and", seen, b.map("less_equal", columns[1], key))


def _total(b: Builder, heads: _Heads) -> Expr:
    before = heads.past[0].shape[2] if heads.past else constant(0)
    return b.scope.resolve(before + heads.key.shape[2])


def _added(b: Builder, heads: _Heads, mask: int, bias: int) -> Node | None:
    """What operands ``mask`` and ``bias`` add to scores together."""
    parts = [_padding(b, b.context.optional(mask), heads), b.context.optional(bias)]
    given = [part for part in parts if part is not None]
    return b.add(*given) if len(given) == 2 else next(iter(given), None)


# ---------------------------------------------------------------- projections included


@contributed("Attention")
def _attention(context: RuleContext) -> Sequence[Node]:
    """Queries, keys and values are one product with weights that lie side by side."""
    b = Builder(context)
    require_native(context)
    _demand_plain_past(context)
    product = matmul(b, context.operand(0), context.operand(1))
    bias = context.optional(2)
    if bias is not None:
        product = b.add(product, expand_to(b, bias, product.shape, "the bias"))
    return _self_attention(b, product, mask=3, past=4, bias=5)


def _demand_plain_past(context: RuleContext) -> None:
    if _is_set(context, "past_present_share_buffer"):
        raise NoRule("past and present share a buffer", where=context.where)
    if _is_set(context, "do_rotary"):
        raise NoRule("queries and keys are to be rotated", where=context.where)


@contributed("QAttention")
def _quantised_attention(context: RuleContext) -> Sequence[Node]:
    """The same with a product of bytes, exact in int32, whose scales and bias come after."""
    b = Builder(context)
    require_native(context)
    _demand_plain_past(context)
    zero = context.optional(6)
    left = centred(b, context.operand(0), None if zero is None else scalar_of(b, zero))
    product = matmul(b, left, centred(b, context.operand(1), context.optional(7)))
    scale = b.multiply(scalar_of(b, context.operand(3)), context.operand(4))
    numbers = b.multiply(cast(product, DType.FLOAT32), scale)
    numbers = b.add(numbers, expand_to(b, context.operand(2), numbers.shape, "the bias"))
    return _self_attention(b, numbers, mask=5, past=8, bias=9)


def _self_attention(b: Builder, product: Node, *, mask: int, past: int, bias: int) -> list[Node]:
    """``product`` holds queries, keys and values side by side; numbers of optional operands."""
    context = b.context
    count = context.integer("num_heads")
    sizes = [constant(s) for s in context.integer_list("qkv_hidden_sizes", [])]
    if not sizes:
        message = f"{product.shape[2]} features are no queries, keys and values of one size"
        sizes = [require_multiple(context, product.shape[2], 3, message)] * 3
    parts = [
        split_heads(b, b.slice_axis(product, 2, start, size), count)
        for start, size in zip((0, sizes[0], sizes[0] + sizes[1]), sizes, strict=True)
    ]
    before = context.optional(past)
    halves = None if before is None else (_half(b, before, 0), _half(b, before, 1))
    heads = _Heads(parts[0], parts[1], parts[2], halves)
    causal = context.integer("unidirectional", 0)
    out, key, value = _attended(b, heads, _added(b, heads, mask, bias), {"is_causal": causal})
    if context.output_count < 2:
        return [out]
    return [out, b.concat([b.unsqueeze(key, [0]), b.unsqueeze(value, [0])], 0)]


def _half(b: Builder, past: Node, index: int) -> Node:
    """The keys or the values of a past [2, B, heads, length, features]."""
    return b.reshape(b.slice_axis(past, 0, index, 1), past.shape[1:])


# ---------------------------------------------------------------- projections done


@contributed("MultiHeadAttention")
def _multi_head_attention(context: RuleContext) -> Sequence[Node]:
    b = Builder(context)
    require_native(context)
    if context.optional(8) is not None or context.optional(9) is not None:
        raise NoRule("past and present share a buffer, or beams do", where=context.where)
    if context.output_count > 3:
        raise NoRule("scores are asked for", where=context.where)
    past = context.optional(6), context.optional(7)
    heads = _Heads(*_projected(b, context.integer("num_heads")))
    if past[0] is not None and past[1] is not None:
        heads = _Heads(heads.query, heads.key, heads.value, (past[0], past[1]))
    causal = context.integer("unidirectional", 0)
    made = _attended(b, heads, _added(b, heads, 4, 5), {"is_causal": causal})
    return made[: max(context.output_count, 1)]


def _projected(b: Builder, count: int) -> tuple[Node, Node, Node]:
    """Queries, keys and values as heads, however they are packed, with their bias."""
    context = b.context
    query, key, value = context.operand(0), context.optional(1), context.optional(2)
    bias = context.optional(3)
    if query.rank == 5:
        query, key, value = (_packed(b, query, i) for i in range(3))
    elif key is not None and key.rank == 5:
        key, value = _packed(b, key, 0), _packed(b, key, 1)
    if key is None or value is None:
        raise InvalidModelError("keys or values are missing", where=context.where)
    if key.rank == 4 and bias is not None:
        raise NoRule("a bias with keys that are heads already", where=context.where)
    parts = [query, key, value]
    if bias is not None:
        start: Expr = constant(0)
        for index, part in enumerate(parts):
            size = part.shape[2]
            own = b.slice_axis(bias, 0, start, size)
            parts[index] = b.add(part, expand_to(b, own, part.shape, "the bias"))
            start = start + size
        context.require_equal(bias.shape[0], start, "the bias does not fit the features")
    first, second, third = (p if p.rank == 4 else split_heads(b, p, count) for p in parts)
    return first, second, third


def _packed(b: Builder, x: Node, index: int) -> Node:
    """Part ``index`` of [B, S, heads, parts, features], as [B, S, heads * features]."""
    batch, length, heads, _, features = x.shape
    return b.reshape(b.slice_axis(x, 3, index, 1), [batch, length, heads * features])


# ---------------------------------------------------------------- rotations


@contributed("RotaryEmbedding")
def _rotary_embedding(context: RuleContext) -> Sequence[Node]:
    b = Builder(context)
    require_native(context)
    if _is_set(context, "is_packed_batching"):
        raise NoRule("sequences of a batch lie side by side", where=context.where)
    if context.number("scale", 1.0) != 1.0:
        raise NoRule("there is a scale", where=context.where)
    x, positions, cosine = context.operand(0), context.operand(1), context.operand(2)
    width = context.integer("rotary_embedding_dim", 0)
    count = context.integer("num_heads", 0)
    if x.rank == 3 and not count:
        # The tables tell the size of a head.
        size = b.scope.resolve(cosine.shape[1])
        features = b.scope.resolve(x.shape[2])
        if width or not (size.is_constant and features.is_constant and size.value):
            raise NoRule("the number of heads is not known", where=context.where)
        count = features.value // (2 * size.value)
    if positions.rank == 1:
        length = x.shape[2] if x.rank == 4 else x.shape[1]
        positions = b.add(scalar_of(b, positions), b.iota([1, length], 1))
    attributes: dict[str, AttributeValue] = {
        "num_heads": count,
        "rotary_embedding_dim": width,
        "interleaved": context.integer("interleaved", 0),
    }
    operands = [x, cosine, context.operand(3), positions]
    return standard(context, "RotaryEmbedding", operands, attributes)


# ---------------------------------------------------------------- shared keys with a past


@contributed("GroupQueryAttention")
def _group_query_attention(context: RuleContext) -> Sequence[Node]:
    """New keys and values follow those of before, which fill their buffer to its end."""
    b = Builder(context)
    require_native(context)
    _demand_plain_cache(context)
    heads = _grouped(b)
    total = _demand_whole_past(b, heads)
    heads = _rotated(b, _normalised(b, heads))
    attributes: dict[str, AttributeValue] = {
        "is_causal": context.integer("causal", 1),
        "softcap": context.number("softcap", 0.0),
        "left_window_size": max(context.integer("local_window_size", -1), 0) - 1,
    }
    bias = context.optional(10)
    if bias is not None:
        bias = with_size(b, bias, 3, total)
    made = _attended(b, heads, bias, attributes)
    return made[: max(context.output_count, 1)]


def _demand_plain_cache(context: RuleContext) -> None:
    if any(context.optional(i) is not None for i in (12, 13)):
        raise NoRule("the cache is quantised", where=context.where)
    if _is_set(context, "sliding_window_cache"):
        raise NoRule("the cache holds a window", where=context.where)
    if context.optional(11) is not None or _is_set(context, "smooth_softmax"):
        raise NoRule("something else is added to the softmax's sum", where=context.where)
    if _is_set(context, "qk_output") or context.output_count > 3:
        raise NoRule("scores are asked for", where=context.where)


def _grouped(b: Builder) -> _Heads:
    """Heads out of operands that lie apart, or side by side in one."""
    context = b.context
    counts = context.integer("num_heads"), context.integer("kv_num_heads")
    parts = [context.operand(0), context.optional(1), context.optional(2)]
    if parts[1] is None:
        whole, every = parts[0], counts[0] + 2 * counts[1]
        assert whole is not None
        message = f"{whole.shape[2]} features are not those of {every} heads"
        size = require_multiple(context, whole.shape[2], every, message)
        starts = (0, size * counts[0], size * (counts[0] + counts[1]))
        widths = (size * counts[0], size * counts[1], size * counts[1])
        parts = [b.slice_axis(whole, 2, at, n) for at, n in zip(starts, widths, strict=True)]
    query, key, value = (part for part in parts if part is not None)
    past = context.optional(3), context.optional(4)
    return _Heads(
        split_heads(b, query, counts[0]),
        split_heads(b, key, counts[1]),
        split_heads(b, value, counts[1]),
        None if past[0] is None or past[1] is None else (past[0], past[1]),
    )


def _demand_whole_past(b: Builder, heads: _Heads) -> Expr:
    """Demand that all of the past counts in every row of the batch; the number of all keys.

    Without a past, rows may be shorter: what is behind their end is seen by no query before it.
    """
    context = b.context
    before = heads.past[0].shape[2] if heads.past else constant(0)
    total = _total(b, heads)
    given = context.integers(6)
    if len(given) != 1:
        raise InvalidModelError("the number of keys is no single number", where=context.where)
    message = "past keys and new ones are not as many as total_sequence_length says"
    context.require_equal(given[0], total, message)
    if b.scope.is_equal(before, 0) is not Truth.YES:
        last = b.map("equal", cast(context.operand(5), DType.INT64), dimension(total - 1))
        other = cast(b.map("logical_not", last), DType.INT64)
        count = context.bind(b.reduce("sum", other, range(other.rank))).item()
        message = "rows of the batch have pasts of different lengths"
        context.require(logical_or(equal(before, 0), equal(count, 0)), message)
    return total


def _normalised(b: Builder, heads: _Heads) -> _Heads:
    """Queries and new keys over the root of their mean square, if there are scales for that."""
    query_scale, key_scale = b.context.optional(14), b.context.optional(15)
    if query_scale is None or key_scale is None:
        return heads
    attributes: dict[str, AttributeValue] = {"epsilon": b.context.number("qk_norm_epsilon", 1e-6)}
    (query,) = standard(b.context, "RMSNormalization", [heads.query, query_scale], attributes)
    (key,) = standard(b.context, "RMSNormalization", [heads.key, key_scale], attributes)
    return _Heads(query, key, heads.value, heads.past)


def _rotated(b: Builder, heads: _Heads) -> _Heads:
    """Queries and new keys turned by the angles of their positions, if the node says so."""
    context = b.context
    if not context.integer("do_rotary", 0):
        return heads
    tables = context.operand(7), context.operand(8)
    width = b.scope.resolve(tables[0].shape[1] * 2)
    if not width.is_constant:
        raise NoRule("the number of angles is not known", where=context.where)
    positions = context.optional(9)
    if positions is None:
        before = heads.past[0].shape[2] if heads.past else constant(0)
        positions = b.add(b.iota([1, heads.query.shape[2]], 1), dimension(before))
    attributes: dict[str, AttributeValue] = {
        "rotary_embedding_dim": width.value,
        "interleaved": context.integer("rotary_interleaved", 0),
    }
    query, key = (
        standard(context, "RotaryEmbedding", [x, *tables, positions], attributes)[0]
        for x in (heads.query, heads.key)
    )
    return _Heads(query, key, heads.value, heads.past)
