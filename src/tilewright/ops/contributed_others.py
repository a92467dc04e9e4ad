"""Operators of com.microsoft beside fusions of ONNX Runtime: triangles, distances, groups.

Those of diffusion models (:func:`_group_norm` and the gated activation) have kernels for GPUs only
in ONNX Runtime. Start with :func:`_distances`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph import Node
from tilewright.ir.make import transpose
from tilewright.ops.build import cast
from tilewright.ops.contributed import channels_first, channels_last, contributed, standard
from tilewright.ops.linear import matmul
from tilewright.ops.normalisation import EPSILON
from tilewright.ops.operands import expand_to, numeric, widen
from tilewright.ops.record import NoRule, RuleContext
from tilewright.support.errors import InvalidModelError


@contributed("Trilu", computes=False)
def _triangle(context: RuleContext) -> Sequence[Node]:
    """Before opset 14, PyTorch's exports had it in this domain."""
    return standard(context, "Trilu", context.inputs)


@contributed("CDist")
def _distances(context: RuleContext) -> Sequence[Node]:
    """Euclidean distances of all rows of [m, k] to all of [n, k], or their squares: [m, n]."""
    b, left = numeric(context)
    right = context.operand(1)
    metric = context.text("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        raise NoRule(f"the metric {metric!r}", where=context.where)
    if left.rank != 2 or right.rank != 2:
        raise InvalidModelError("distances are those of rows of matrices", where=context.where)
    own, other = (b.reduce("sum", b.multiply(x, x), [1], keep=True) for x in (left, right))
    products = matmul(b, left, transpose(right, [1, 0]))
    squares = b.subtract(b.add(own, transpose(other, [1, 0])), b.multiply(products, 2.0))
    squares = b.maximum(squares, 0.0)
    return [squares if metric == "sqeuclidean" else b.map("square_root", squares)]


@contributed("GroupNorm", computes=False)
def _group_norm(context: RuleContext) -> Sequence[Node]:
    """Groups of channels standardised, scaled and shifted by channel, and perhaps through SiLU."""
    _, x = numeric(context)
    return [_normalised_groups(context, x)]


@contributed("SkipGroupNorm", computes=False)
def _skip_group_norm(context: RuleContext) -> Sequence[Node]:
    """As ``GroupNorm`` of a sum with operand 3, of [N, C] also, and a bias; and the sum."""
    b, x = numeric(context)
    total = widen(x)
    channel = x.rank - 1 if _is_last(context) else 1
    for index in (3, 4):
        given = context.optional(index)
        if given is None:
            continue
        given = cast(given, total.dtype)
        if given.rank < x.rank:
            axes = [0, channel] if given.rank == 2 else [channel]
            given = b.unsqueeze(given, [axis for axis in range(x.rank) if axis not in axes])
        total = b.add(total, expand_to(b, given, total.shape, "what is added"))
    total = cast(total, x.dtype)
    return [_normalised_groups(context, total), total][: max(context.output_count, 1)]


def _is_last(context: RuleContext) -> bool:
    return bool(context.integer("channels_last", 1))


def _normalised_groups(context: RuleContext, x: Node) -> Node:
    is_last = _is_last(context)
    data = channels_first(widen(x)) if is_last else widen(x)
    factors = [cast(context.operand(index), data.dtype) for index in (1, 2)]
    attributes = {
        "num_groups": context.integer("groups"),
        "epsilon": context.number("epsilon", EPSILON),
    }
    (made,) = standard(context, "GroupNormalization", [data, *factors], attributes)
    if context.integer("activation", 0):
        (made,) = standard(context, "Swish", [made], {})
    return cast(channels_last(made) if is_last else made, x.dtype)


@contributed("BiasSplitGelu")
def _gated_gelu(context: RuleContext) -> Sequence[Node]:
    """Data plus a bias; one half of its last axis times the other half through GELU."""
    b, x = numeric(context)
    total = b.add(x, expand_to(b, context.operand(1), x.shape, "the bias"))
    attributes = {"axis": -1, "num_outputs": 2}
    left, right = standard(context, "Split", [total], attributes, outputs=2)
    (gate,) = standard(context, "Gelu", [right], {})
    return [b.multiply(left, gate)]
