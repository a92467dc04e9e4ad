"""MatMul, Gemm and Einsum as contractions.

Batch axes that one operand does not have (or that are known to be 1) become free axes of the
other, so that ``[B, S, K] x [K, N]`` is one contraction without a batch. Start with ``_einsum``;
the work is done by ``linear``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph import Node, node
from tilewright.ir.make import transpose
from tilewright.ir.primitives import Slice
from tilewright.ops.build import Builder
from tilewright.ops.linear import Labelled, contract, matmul, sum_of_products, with_size
from tilewright.ops.record import NoRule, RuleContext, operator
from tilewright.ops.types import require_native
from tilewright.shape import constant
from tilewright.support.errors import InvalidModelError


@operator("MatMul")
def _matmul(context: RuleContext) -> Sequence[Node]:
    left, right = context.operand(0), context.operand(1)
    require_native(context)
    if not left.rank or not right.rank:
        raise InvalidModelError("MatMul needs operands of rank 1 and up", where=context.where)
    return [matmul(Builder(context), left, right)]


@operator("Gemm")
def _gemm(context: RuleContext) -> Sequence[Node]:
    """alpha * A' * B' + beta * C, with A and B matrices that may be stored transposed.

    Where beta is 0, C is not read: its NaNs do not count.
    """
    b = Builder(context)
    require_native(context)
    left, right, added = context.operand(0), context.operand(1), context.optional(2)
    if left.rank != 2 or right.rank != 2:
        raise InvalidModelError("Gemm needs matrices", where=context.where)
    left_axis = 0 if context.integer("transA", 0) else 1
    right_axis = 1 if context.integer("transB", 0) else 0
    product = contract(b, left, right, [(left_axis, right_axis)])
    product = _scaled(b, product, context.number("alpha", 1.0))
    if added is None:
        return [product]
    beta = context.number("beta", 1.0)
    fitted = _fitted(b, _scaled(b, added, beta), product)
    return [product if beta == 0.0 else b.add(product, fitted)]


def _scaled(b: Builder, x: Node, factor: float) -> Node:
    if factor == 1.0:
        return x
    if not x.dtype.is_float and not factor.is_integer():
        message = f"an integer product cannot be scaled by {factor}"
        raise NoRule(message, where=b.context.where)
    return b.multiply(x, factor)


def _fitted(b: Builder, added: Node, product: Node) -> Node:
    """C must broadcast to the product, and never the product to C."""
    if added.rank > 2:
        raise InvalidModelError("operand C of Gemm has more than 2 axes", where=b.context.where)
    shape = b.joint_shape([product.shape, added.shape])
    for axis, (joint, size) in enumerate(zip(shape, product.shape, strict=True)):
        b.context.require_equal(joint, size, f"axis {axis} of C does not fit the product")
    return b.expand(added, product.shape)


@operator("Einsum")
def _einsum(context: RuleContext) -> Sequence[Node]:
    b = Builder(context)
    require_native(context)
    operands = [context.operand(i) for i in range(len(context.inputs))]
    terms, output = _parse_equation(context, [o.rank for o in operands])
    parts = [_without_repeats(b, o, t) for o, t in zip(operands, terms, strict=True)]
    known = {label for part in parts for label in part.labels}
    missing = [label for label in output if label not in known]
    if missing:
        message = f"index {missing[0]!r} of the result occurs in no operand"
        raise InvalidModelError(message, where=context.where)
    broadcasting = frozenset(label for label in known if label.startswith("."))
    return [sum_of_products(b, parts, output, broadcasting)]


def _parse_equation(context: RuleContext, ranks: list[int]) -> tuple[list[list[str]], list[str]]:
    """Index names of every operand's axes and of the result's; an ellipsis gives ``.0``, ``.1``…"""
    equation = context.text("equation").replace(" ", "")
    head, arrow, tail = equation.partition("->")
    texts = head.split(",")
    if len(texts) != len(ranks):
        message = f"{equation!r} has {len(texts)} terms for {len(ranks)} operands"
        raise InvalidModelError(message, where=context.where)
    named = [len(text.replace("...", "")) for text in texts]
    extra = [rank - count for rank, count in zip(ranks, named, strict=True)]
    widest = max((e for e, text in zip(extra, texts, strict=True) if "..." in text), default=0)
    for text, e in zip(texts, extra, strict=True):
        if e < 0 or (e > 0 and "..." not in text):
            message = f"term {text!r} does not fit an operand of rank {len(text) + e}"
            raise InvalidModelError(message, where=context.where)
    terms = [_labels(text, e, widest) for text, e in zip(texts, extra, strict=True)]
    if arrow:
        return terms, _labels(tail, widest, widest)
    letters = "".join(texts).replace("...", "")
    once = sorted(letter for letter in set(letters) if letters.count(letter) == 1)
    return terms, [f".{i}" for i in range(widest)] + once


def _labels(text: str, count: int, widest: int) -> list[str]:
    """Index names of one term whose ellipsis stands for the last ``count`` of ``widest`` axes."""
    before, dots, after = text.partition("...")
    ellipsis = [f".{i}" for i in range(widest - count, widest)] if dots else []
    return [*before, *ellipsis, *after]


def _without_repeats(b: Builder, x: Node, labels: list[str]) -> Labelled:
    """``x`` with the diagonal taken for every index that occurs twice."""
    names = list(labels)
    repeated = next((label for label in names if names.count(label) > 1), None)
    while repeated is not None:
        first = names.index(repeated)
        second = names.index(repeated, first + 1)
        x = _diagonal(b, x, first, second)
        names = [n for a, n in enumerate(names) if a not in (first, second)] + [repeated]
        repeated = next((label for label in names if names.count(label) > 1), None)
    return Labelled(x, tuple(names))


def _diagonal(b: Builder, x: Node, first: int, second: int) -> Node:
    """Elements whose index is the same on both axes, as a last axis: every (n + 1)-th of n * n."""
    b.context.require_equal(x.shape[first], x.shape[second], "axes of a diagonal differ")
    size = b.scope.resolve(x.shape[first])
    kept = [a for a in range(x.rank) if a not in (first, second)]
    square = with_size(b, transpose(x, [*kept, first, second]), x.rank - 1, size)
    lead = list(square.shape[:-2])
    flat = b.reshape(square, [*lead, size * size])
    ones = [constant(1)] * len(lead)
    zeros = (constant(0),) * flat.rank
    steps = b.shape([*ones, size + 1])
    return node(Slice(zeros, b.shape([*lead, size]), steps), flat)
