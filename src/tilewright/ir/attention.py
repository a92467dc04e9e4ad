"""Attention among primitives: a product, a softmax of its rows, and a product with the result.

    scores[b, m, n]  = sum over d of queries[b, m, d] * keys[b, n, d]
    shown[b, m, n]   = any elementwise function of the scores (a scale, a mask, a cap)
    weights[b, m, n] = exp(shown - maximum over n) / sum over n of that
    context[b, m, d] = sum over n of weights[b, m, n] * values[b, n, d]

Such a group of nodes can be computed block of keys by block of keys, with a running maximum and a
running sum for each row, so that scores are never in memory (M. Milakov, N. Gimelshein, "Online
normalizer calculation for softmax", 2018). It is found by its structure alone. Start with
:func:`attention_of`.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, ancestors
from tilewright.ir.primitives import Broadcast, Constant, Contract, Map, Reduce
from tilewright.ir.tile import Apply, Guarded, Literal, Value
from tilewright.shape import Expr


@dataclass(frozen=True)
class Attention:
    """The nodes of an attention.

    ``cleared`` says that weights which are no numbers count as 0, ``guarded`` that those of a row
    do of which all is shown as minus infinity.
    """

    scores: Node
    shown: Node
    maximum: Node
    total: Node
    weights: Node
    context: Node
    cleared: bool
    guarded: bool

    @property
    def seeds(self) -> tuple[Node, ...]:
        """What shapes the loops of a kernel that computes it."""
        return self.scores, self.maximum, self.total, self.context


def context_of(attention: Attention, divided: Value, total: Value, has_keys: Expr) -> Value:
    """An element of the context, 0 where there are no keys.

    ``divided`` is a sum by its row's ``total``. What counts as 0 besides is said by the attention.
    """
    dtype = attention.context.dtype
    zero: Value = Literal(0.0, dtype)
    made = divided
    if attention.cleared:
        some = Apply("less", (zero, total), DType.BOOL)
        made = Apply("select", (some, made, zero), dtype)
    if attention.guarded:
        none = Apply("equal", (total, zero), DType.BOOL)
        made = Apply("select", (none, zero, made), dtype)
    if has_keys.is_constant:
        return made if has_keys.value else zero
    return Guarded(has_keys, made, zero)


def attention_of(scores: Node, context: Node, within: Collection[Node]) -> Attention | None:
    """The attention that ``context`` ends and ``scores`` begins, if it is one.

    Between them are nodes in ``within`` only.
    """
    weights = context.inputs[0]
    quotient = _below_clearing(weights)
    if quotient is None or not _is_map(quotient, "divide"):
        return None
    exponential, (total, divides) = quotient.inputs[0], _of_rows(quotient.inputs[1], "sum")
    if total is None or total.inputs[0] is not exponential:
        return None
    if not _is_map(exponential, "exponential"):
        return None
    difference = exponential.inputs[0]
    if not _is_map(difference, "subtract"):
        return None
    shown, (maximum, subtracts) = difference.inputs[0], _of_rows(difference.inputs[1], "maximum")
    if maximum is None or maximum.inputs[0] is not shown or shown.shape != scores.shape:
        return None
    if divides is not subtracts:
        return None
    cleared = weights is not quotient
    found = Attention(scores, shown, maximum, total, weights, context, cleared, divides)
    return found if _is_whole(found, within) and _fits(found) else None


def _is_map(node: Node, function: str) -> bool:
    return isinstance(node.primitive, Map) and node.primitive.function == function


def _below_clearing(weights: Node) -> Node | None:
    """The quotient of which ``weights`` are, or are with 0 in the place of what is no number."""
    if not _is_map(weights, "select"):
        return weights
    condition, cleared, quotient = weights.inputs
    zero = _number(cleared) == 0
    asks = _is_map(condition, "is_nan") and condition.inputs[0] is quotient
    return quotient if zero and asks else None


GUARDS = {"maximum": (-math.inf, 0.0), "sum": (0.0, 1.0)}  # what is found, and taken in its place


def _of_rows(broadcast: Node, kind: str) -> tuple[Node | None, bool]:
    """The reduction over the last axis that is broadcast to whole rows again, and if it is guarded.

    Of a row in which nothing counts, the maximum is minus infinity and the sum 0.
    """
    nothing = None, False
    if not isinstance(broadcast.primitive, Broadcast):
        return nothing
    reduction, rank = broadcast.inputs[0], broadcast.rank
    if broadcast.primitive.axes != tuple(range(rank - 1)):
        return nothing
    guarded = _is_map(reduction, "select")
    if guarded:
        condition, instead, reduction = reduction.inputs
        bound, value = GUARDS[kind]
        asks = _is_map(condition, "equal") and condition.inputs[0] is reduction
        if not asks or _number(condition.inputs[1]) != bound or _number(instead) != value:
            return nothing
    match reduction.primitive:
        case Reduce(kind=own, axes=axes) if own == kind and axes == (rank - 1,):
            return reduction, guarded
        case _:
            return nothing


def _number(node: Node) -> float | None:
    """The number that a node repeats, if it does."""
    while isinstance(node.primitive, Broadcast):
        node = node.inputs[0]
    primitive = node.primitive
    return float(primitive.array) if isinstance(primitive, Constant) and node.rank == 0 else None


def _is_whole(attention: Attention, within: Collection[Node]) -> bool:
    """Whether only nodes of the group lie between the seeds."""
    between = ancestors(attention.weights, within.__contains__)
    return {attention.scores, attention.maximum, attention.total} <= between


def _fits(attention: Attention) -> bool:
    """Whether rows and batch elements of both products are the same, and keys one last axis."""
    first, second = attention.scores.primitive, attention.context.primitive
    if not isinstance(first, Contract) or not isinstance(second, Contract):
        return False
    plain = first.sums is None and second.sums is None
    batch = [i for i, _ in second.batch] == list(range(len(first.batch)))
    keys = attention.scores.inputs[1].rank - len(first.batch) - len(first.summed) == 1
    summed = [i for i, _ in second.summed] == [attention.weights.rank - 1]
    types = {n.dtype for n in (*attention.seeds, attention.shown, attention.weights)}
    return plain and batch and keys and summed and len(types) == 1
