"""Sums of products of labelled tensors: what MatMul, Einsum and attention have in common.

A :class:`Labelled` tensor names its axes; axes of equal name are one index. Sizes are unified
first (an axis known to be 1 is dropped where the index is longer elsewhere), so that a broadcast
axis of one operand is a free axis of the contraction and nothing is copied. Start with
:func:`matmul`; may import what ``build`` imports.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tilewright.ir.graph import Node, node
from tilewright.ir.make import transpose
from tilewright.ir.primitives import Contract, Map
from tilewright.ops.build import Builder
from tilewright.shape import Expr, Truth, constant


@dataclass(frozen=True)
class Labelled:
    """A tensor whose axis i is the index named ``labels[i]``; no name occurs twice."""

    node: Node
    labels: tuple[str, ...]

    def axis(self, label: str) -> int:
        """Position of an index."""
        return self.labels.index(label)

    def size(self, label: str) -> Expr:
        """Size of an index."""
        return self.node.shape[self.axis(label)]


def with_size(b: Builder, x: Node, axis: int, size: Expr | int) -> Node:
    """``x`` with the size of one axis written differently; the caller knows that they agree."""
    sizes: list[Expr | int] = list(x.shape)
    sizes[axis] = size
    return b.reshape(x, sizes)


def agree(b: Builder, x: Node, x_axis: int, y: Node, y_axis: int, what: str) -> tuple[Node, Node]:
    """``x`` and ``y`` after demanding that an axis of each has the same size."""
    b.context.require_equal(x.shape[x_axis], y.shape[y_axis], what)
    size = _plainer(b.scope.resolve(x.shape[x_axis]), b.scope.resolve(y.shape[y_axis]))
    return with_size(b, x, x_axis, size), with_size(b, y, y_axis, size)


def _plainer(a: Expr, b: Expr) -> Expr:
    return b if b.is_constant else a


def contract(
    b: Builder,
    left: Node,
    right: Node,
    summed: Sequence[tuple[int, int]],
    batch: Sequence[tuple[int, int]] = (),
) -> Node:
    """``Contract`` after making the paired sizes agree (guarded where they are not known to)."""
    for i, j in (*batch, *summed):
        left, right = agree(b, left, i, right, j, "sizes of a product differ")
    return node(Contract(tuple(batch), tuple(summed)), left, right)


def matmul(b: Builder, left: Node, right: Node) -> Node:
    """ONNX MatMul (numpy.matmul) of operands of rank 1 and up."""
    left_batch, right_batch = max(left.rank - 2, 0), max(right.rank - 2, 0)
    batch = [f"b{i}" for i in range(max(left_batch, right_batch))]
    rows = ["m"] if left.rank > 1 else []
    columns = ["n"] if right.rank > 1 else []
    x = Labelled(left, (*batch[len(batch) - left_batch :], *rows, "k"))
    y = Labelled(right, (*batch[len(batch) - right_batch :], "k", *columns))
    return sum_of_products(b, [x, y], [*batch, *rows, *columns], frozenset(batch))


def sum_of_products(
    b: Builder, parts: Sequence[Labelled], output: Sequence[str], broadcasting: Collection[str]
) -> Node:
    """The product of ``parts`` with every index outside of ``output`` summed over.

    Sizes of an index in ``broadcasting`` may be 1 at run time in one part only; those of other
    indices must agree unless one is known to be 1 now.
    """
    sizes = {label: constant(1) for label in output}
    unified = _unify(b, parts, broadcasting, sizes)
    result = unified[0]
    for position, part in enumerate(unified[1:], start=2):
        later = {label for other in unified[position:] for label in other.labels}
        result = _product(b, result, part, later | set(output))
    result = _reduced(b, result, set(output))
    order = [label for label in output if label in result.labels]
    moved = transpose(result.node, [result.axis(label) for label in order])
    return b.reshape(moved, [sizes[label] for label in output])


def _unify(
    b: Builder, parts: Sequence[Labelled], broadcasting: Collection[str], sizes: dict[str, Expr]
) -> list[Labelled]:
    """Parts whose indices have one size each, without axes that only repeat; fills ``sizes``."""
    labels = list(dict.fromkeys(label for part in parts for label in part.labels))
    for label in labels:
        candidates = [p.size(label) for p in parts if label in p.labels]
        if label in broadcasting:
            (sizes[label],) = b.joint_shape([(c,) for c in candidates])
        else:
            sizes[label] = _common_size(b, label, candidates)
    return [_conform(b, part, sizes) for part in parts]


def _common_size(b: Builder, label: str, candidates: list[Expr]) -> Expr:
    longer = [c for c in candidates if b.scope.is_equal(c, 1) is not Truth.YES]
    if not longer:
        return constant(1)
    for other in longer[1:]:
        b.context.require_equal(longer[0], other, f"sizes of index {label} differ")
    resolved = [b.scope.resolve(c) for c in longer]
    return next((r for r in resolved if r.is_constant), resolved[0])


def _conform(b: Builder, part: Labelled, sizes: dict[str, Expr]) -> Labelled:
    """``part`` with the common sizes: repeating axes dropped, undecided ones repeated."""
    kept: list[str] = []
    own: list[Expr] = []
    wanted: list[Expr] = []
    for label, size in zip(part.labels, part.node.shape, strict=True):
        if b.scope.is_equal(size, 1) is Truth.YES and b.scope.is_equal(sizes[label], 1) is not (
            Truth.YES
        ):
            continue
        kept.append(label)
        same = b.scope.is_equal(size, sizes[label]) is Truth.YES
        own.append(sizes[label] if same else size)
        wanted.append(sizes[label])
    squeezed = b.reshape(part.node, own)
    return Labelled(b.broadcast(squeezed, wanted, range(len(wanted))), tuple(kept))


def _reduced(b: Builder, x: Labelled, needed: Collection[str]) -> Labelled:
    axes = [a for a, label in enumerate(x.labels) if label not in needed]
    kept = tuple(label for label in x.labels if label in needed)
    return Labelled(b.reduce("sum", x.node, axes), kept)


def _product(b: Builder, left: Labelled, right: Labelled, needed: Collection[str]) -> Labelled:
    """Two parts multiplied; indices of neither ``needed`` nor another part are summed over."""
    left = _reduced(b, left, {*needed, *right.labels})
    right = _reduced(b, right, {*needed, *left.labels})
    shared = [label for label in left.labels if label in right.labels]
    batch = [label for label in shared if label in needed]
    summed = [label for label in shared if label not in needed]
    if not summed:
        return _elementwise(b, left, right)
    pairs = {label: (left.axis(label), right.axis(label)) for label in shared}
    primitive = Contract(tuple(pairs[x] for x in batch), tuple(pairs[x] for x in summed))
    free = [x for x in (*left.labels, *right.labels) if x not in shared]
    return Labelled(node(primitive, left.node, right.node), (*batch, *free))


def _elementwise(b: Builder, left: Labelled, right: Labelled) -> Labelled:
    added = [label for label in right.labels if label not in left.labels]
    labels = (*left.labels, *added)
    sizes = [*left.node.shape, *(right.size(label) for label in added)]
    in_order = [label for label in labels if label in right.labels]
    moved = transpose(right.node, [right.axis(label) for label in in_order])
    x = b.broadcast(left.node, sizes, range(left.node.rank))
    y = b.broadcast(moved, sizes, [labels.index(label) for label in in_order])
    return Labelled(node(Map("multiply"), x, y), labels)
