"""LinearAttention: a state of outer products, updated token by token and read by queries.

Without the delta correction the recurrence has a closed form: masked products of queries and keys
with the decay between their positions. With it the tokens are unrolled, which needs their number.
Start with ``_linear_attention``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Scan
from tilewright.ops.attention import merge_heads, over_root, split_heads
from tilewright.ops.build import Builder, cast, scalar
from tilewright.ops.linear import agree, contract, with_size
from tilewright.ops.operands import expand_to
from tilewright.ops.record import NoRule, RuleContext, operator
from tilewright.ops.types import require_native
from tilewright.shape import Expr, Truth, constant
from tilewright.support.errors import InvalidModelError

LONGEST = 64  # tokens that are unrolled


@dataclass(frozen=True)
class _Operands:
    """Everything by key head, in one type.

    ``query`` [B, H, G, T, K] (G query heads share a key head), ``key`` [B, H, T, K], ``value``
    [B, H, T, V], ``state`` [B, H, K, V], ``decay`` [B, H, T, 1 or K], ``rate`` [B, H, T, 1].
    """

    query: Node
    key: Node
    value: Node
    state: Node
    decay: Node | None
    rate: Node | None

    @property
    def length(self) -> Expr:
        """Number of tokens."""
        return self.key.shape[2]


@operator("LinearAttention", since=27, computes=False)
def _linear_attention(context: RuleContext) -> Sequence[Node]:
    b = Builder(context)
    require_native(context)
    rule = context.text("update_rule", "gated_delta")
    if rule not in ("linear", "gated", "delta", "gated_delta"):
        raise InvalidModelError(f"'update_rule' is {rule!r}", where=context.where)
    query, past = context.operand(0), context.optional(3)
    x = _operands(b, rule)
    out, state = _unrolled(b, x) if x.rate is not None else _closed(b, x)
    batch, heads, group, length, size = out.shape
    merged = merge_heads(b, b.reshape(out, [batch, heads * group, length, size]))
    kept = query.dtype if past is None else past.dtype
    return [cast(merged, query.dtype), cast(state, kept)][: max(context.output_count, 1)]


# ---------------------------------------------------------------- operands


def _operands(b: Builder, rule: str) -> _Operands:
    context = b.context
    dtype = DType.FLOAT64 if context.operand(0).dtype is DType.FLOAT64 else DType.FLOAT32
    heads, shared = context.integer("q_num_heads"), context.integer("kv_num_heads")
    if heads < 1 or shared < 1 or heads % shared:
        message = f"{heads} query heads for {shared} key heads"
        raise InvalidModelError(message, where=context.where)
    query = split_heads(b, cast(context.operand(0), dtype), heads)
    key = split_heads(b, cast(context.operand(1), dtype), shared)
    value = split_heads(b, cast(context.operand(2), dtype), shared)
    for axis in (0, 2, 3):
        query, key = agree(b, query, axis, key, axis, f"queries and keys differ on axis {axis}")
    for axis in (0, 2):
        key, value = agree(b, key, axis, value, axis, f"keys and values differ on axis {axis}")
    batch, _, length, size = key.shape
    query = b.reshape(query, [batch, shared, heads // shared, length, size])
    return _Operands(
        _scaled(b, query),
        key,
        value,
        _state(b, key, value),
        _decay(b, key, shared) if rule.startswith("gated") else None,
        _rate(b, key, shared) if rule.endswith("delta") else None,
    )


def _scaled(b: Builder, query: Node) -> Node:
    scale = b.context.number("scale", 0.0)
    if scale:
        return b.multiply(query, scale)
    return over_root(b, query, query.shape[-1])


def _state(b: Builder, key: Node, value: Node) -> Node:
    past = b.context.optional(3)
    shape = [key.shape[0], key.shape[1], key.shape[3], value.shape[3]]
    if past is None:
        return b.expand(scalar(0, key.dtype), shape)
    for axis, size in enumerate(shape):
        b.context.require_equal(past.shape[axis], size, f"axis {axis} of the past state")
    return b.reshape(cast(past, key.dtype), shape)


def _per_token(b: Builder, operand: int, key: Node, heads: int, what: str) -> Node:
    """Operand [B, T, H * n] as [B, H, T, n]."""
    given = cast(b.context.operand(operand), key.dtype)
    if b.scope.is_equal(given.shape[2], 1) is Truth.YES:
        given = b.broadcast(given, [*given.shape[:2], heads], range(3))
    split = split_heads(b, given, heads)
    for axis in (0, 2):
        _, split = agree(b, key, axis, split, axis, f"{what} does not fit the keys")
    return split


def _decay(b: Builder, key: Node, heads: int) -> Node:
    decay = _per_token(b, 4, key, heads, "the decay")
    if b.scope.is_equal(decay.shape[3], 1) is Truth.YES:
        return with_size(b, decay, 3, 1)
    return expand_to(b, decay, key.shape, "the decay")


def _rate(b: Builder, key: Node, heads: int) -> Node:
    given = b.context.operand(5)
    message = "the update rate needs an entry per head, or one"
    if b.scope.is_equal(given.shape[2], 1) is not Truth.YES:
        b.context.require_equal(given.shape[2], constant(heads), message)
    return with_size(b, _per_token(b, 5, key, heads, "the update rate"), 3, 1)


# ---------------------------------------------------------------- without correction


def _closed(b: Builder, x: _Operands) -> tuple[Node, Node]:
    """Outputs [B, H, G, T, V] and the last state for any number of tokens."""
    scores = _scores(b, x)
    seen = b.map("less_equal", b.iota([x.length] * 2, 1), b.iota([x.length] * 2, 0))
    scores = b.select(seen, scores, 0.0)
    out = contract(b, scores, x.value, [(4, 2)], [(0, 0), (1, 1)])
    query, key, state = x.query, x.key, x.state
    if x.decay is not None:
        total = node(Scan("sum", 2, exclusive=False, reverse=False), x.decay)
        following = node(Scan("sum", 2, exclusive=True, reverse=True), x.decay)
        query = b.multiply(query, b.unsqueeze(b.map("exponential", total), [2]))
        key = b.multiply(key, b.map("exponential", following))
        whole = b.map("exponential", b.reduce("sum", x.decay, [2]))
        state = b.multiply(state, b.unsqueeze(whole, [3]))
    out = b.add(out, contract(b, query, x.state, [(4, 2)], [(0, 0), (1, 1)]))
    return out, b.add(state, contract(b, key, x.value, [(2, 2)], [(0, 0), (1, 1)]))


def _scores(b: Builder, x: _Operands) -> Node:
    """[B, H, G, T, T]: products of queries and keys, decayed over the tokens between them."""
    one = constant(1)
    if x.decay is None:
        return contract(b, x.query, x.key, [(4, 3)], [(0, 0), (1, 1)])
    total = node(Scan("sum", 2, exclusive=False, reverse=False), x.decay)
    batch, heads, length, width = total.shape
    ends = b.reshape(total, [batch, heads, one, length, one, width])
    starts = b.reshape(total, [batch, heads, one, one, length, width])
    factor = b.map("exponential", b.subtract(ends, starts))
    if b.scope.is_equal(width, 1) is Truth.YES:
        scores = contract(b, x.query, x.key, [(4, 3)], [(0, 0), (1, 1)])
        return b.multiply(scores, b.reshape(factor, [batch, heads, one, length, length]))
    size = x.key.shape[3]
    query = b.reshape(x.query, [*x.query.shape[:4], one, size])
    key = b.reshape(x.key, [batch, heads, one, one, length, size])
    return b.reduce("sum", b.multiply(b.multiply(query, key), factor), [5])


# ---------------------------------------------------------------- with correction


def _unrolled(b: Builder, x: _Operands) -> tuple[Node, Node]:
    """Outputs [B, H, G, T, V] and the last state, token by token."""
    length = b.scope.resolve(x.length)
    if not length.is_constant or not 0 < length.value <= LONGEST:
        message = f"the delta rule for {length} tokens; 1 to {LONGEST} are unrolled"
        raise NoRule(message, where=b.context.where)
    assert x.rate is not None
    state = x.state
    outputs: list[Node] = []
    for time in range(length.value):
        query, key, value, rate = (
            _token(b, n, time, axis)
            for n, axis in ((x.query, 3), (x.key, 2), (x.value, 2), (x.rate, 2))
        )
        if x.decay is not None:
            factor = b.map("exponential", _token(b, x.decay, time, 2))
            state = b.multiply(state, b.unsqueeze(factor, [3]))
        known = contract(b, key, state, [(2, 2)], [(0, 0), (1, 1)])
        added = b.multiply(rate, b.subtract(value, known))
        state = b.add(state, b.multiply(b.unsqueeze(key, [3]), b.unsqueeze(added, [2])))
        out = contract(b, query, state, [(3, 2)], [(0, 0), (1, 1)])
        outputs.append(b.unsqueeze(out, [3]))
    return b.concat(outputs, 3), state


def _token(b: Builder, x: Node, time: int, axis: int) -> Node:
    """Entry ``time`` of an axis, which disappears."""
    cut = b.slice_axis(x, axis, time, 1)
    return b.reshape(cut, [*x.shape[:axis], *x.shape[axis + 1 :]])
