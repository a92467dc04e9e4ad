"""Rules of reductions: what is done before and after one reduce primitive.

Axes are an attribute or an operand, depending on the opset; over no elements each kind gives its
neutral element. Start with :func:`reduction_axes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import ArgReduce
from tilewright.ops.build import Builder, cast
from tilewright.ops.operands import numeric
from tilewright.ops.record import Rule, RuleContext, operator
from tilewright.shape import equal, less, logical_or, product

Body = Callable[[Builder, Node, tuple[int, ...], bool], Node]


def reduction_axes(builder: Builder, x: Node) -> tuple[int, ...]:
    """The axes to reduce, increasing; all of them where none are given, unless told not to."""
    context = builder.context
    if context.has("axes"):
        given = context.integer_list("axes")
    elif context.optional(1) is not None:
        given = context.static_integers(1, "the reduced axes")
    else:
        given = []
    if x.rank == 0 or (not given and context.integer("noop_with_empty_axes", 0)):
        return ()
    axes = given or list(range(x.rank))
    return tuple(sorted({builder.axis(a, x.rank) for a in axes}))


def _reduction(body: Body) -> Rule:
    def rule(context: RuleContext) -> Sequence[Node]:
        builder, x = numeric(context)
        keep = bool(context.integer("keepdims", 1))
        result = body(builder, x, reduction_axes(builder, x), keep)
        return [cast(result, x.dtype)]

    return rule


def _plain(kind: str) -> Body:
    def body(builder: Builder, x: Node, axes: tuple[int, ...], keep: bool) -> Node:
        return builder.reduce(kind, x, axes, keep)

    return body


def _mean(builder: Builder, x: Node, axes: tuple[int, ...], keep: bool) -> Node:
    if not x.dtype.is_float:
        count = product([x.shape[a] for a in axes])
        kept = product([size for a, size in enumerate(x.shape) if a not in axes])
        some = logical_or(less(0, count), equal(kept, 0))
        builder.context.require(some, "the mean of no integers has no value")
    return builder.mean(x, axes, keep)


def _sum_of_magnitudes(builder: Builder, x: Node, axes: tuple[int, ...], keep: bool) -> Node:
    return builder.reduce("sum", builder.map("absolute", x), axes, keep)


def _sum_of_squares(builder: Builder, x: Node, axes: tuple[int, ...], keep: bool) -> Node:
    return builder.reduce("sum", builder.multiply(x, x), axes, keep)


def _euclidean(builder: Builder, x: Node, axes: tuple[int, ...], keep: bool) -> Node:
    squares = _sum_of_squares(builder, x, axes, keep)
    return builder.map("square_root", _as_float(squares))


def _log_sum(builder: Builder, x: Node, axes: tuple[int, ...], keep: bool) -> Node:
    return builder.map("logarithm", _as_float(builder.reduce("sum", x, axes, keep)))


def _log_sum_exp(builder: Builder, x: Node, axes: tuple[int, ...], keep: bool) -> Node:
    """log(sum(exp(x - m))) + m with m the maximum, or 0 where that is infinite."""
    work = _as_float(x)
    greatest = builder.reduce("maximum", work, axes, keep=True)
    finite = builder.select(builder.map("is_infinite", greatest), 0.0, greatest)
    grown = builder.map("exponential", builder.subtract(work, finite))
    summed = builder.map("logarithm", builder.reduce("sum", grown, axes, keep=True))
    result = builder.add(summed, finite)
    if keep:
        return result
    return builder.reshape(result, [s for a, s in enumerate(result.shape) if a not in axes])


def _as_float(x: Node) -> Node:
    """Integers in float64: roots and logarithms are of floats."""
    return x if x.dtype.is_float else cast(x, DType.FLOAT64)


BODIES: dict[str, Body] = {
    "ReduceL1": _sum_of_magnitudes,
    "ReduceL2": _euclidean,
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": _plain("maximum"),
    "ReduceMean": _mean,
    "ReduceMin": _plain("minimum"),
    "ReduceProd": _plain("product"),
    "ReduceSum": _plain("sum"),
    "ReduceSumSquare": _sum_of_squares,
}
for _name, _body in BODIES.items():
    operator(_name)(_reduction(_body))


def _index_of(kind: str) -> Rule:
    def rule(context: RuleContext) -> Sequence[Node]:
        builder, x = numeric(context)
        axis = builder.axis(context.integer("axis", 0), x.rank)
        context.require(less(0, x.shape[axis]), f"axis {axis} has no elements to choose from")
        last = bool(context.integer("select_last_index", 0))
        found = node(ArgReduce(kind, axis, last), x)
        return [builder.unsqueeze(found, [axis]) if context.integer("keepdims", 1) else found]

    return rule


operator("ArgMax")(_index_of("maximum"))
operator("ArgMin")(_index_of("minimum"))
