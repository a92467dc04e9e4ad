"""Affine access: how a contraction's operands lie in memory, seen through layout primitives.

An operand can be read in place when the offset of its element is affine in the flattened row (m or
n) and depth (k), after following Reshape, Transpose, Broadcast and Slice down to memory. Start with
:func:`contraction_access`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tilewright.ir.graph import Node
from tilewright.ir.primitives import Constant, Contract, Pad, Reshape, Transpose
from tilewright.ir.views import Index, declare_index, is_view, linear, pull_back, push_forward
from tilewright.shape import Expr, Scope, Truth, constant, product, symbol

Axes = Sequence[tuple[str, Expr]]


@dataclass(frozen=True)
class Access:
    """Offset in ``source``: ``base`` (of the batch element) + m * ``row`` + k * ``depth``."""

    source: Node
    base: Expr
    row: Expr
    depth: Expr

    def is_in_words(self, size: int) -> bool:
        """Whether ``size`` elements that follow each other along k lie in a word of their own."""
        whole = all(offset % size is constant(0) for offset in (self.base, self.row))
        return size == 1 or (whole and self.depth is constant(1))


@dataclass(frozen=True)
class ContractionAccess:
    """Named axes of a contraction, and each operand's access or None if it is not affine.

    Of the positions along k, so many are in the right operand's memory: what it was filled up with
    to whole words of narrow elements is zero, and need not be. ``left_index`` and ``right_index``
    are the elements of the operands by these names.
    """

    batch: tuple[tuple[str, Expr], ...]
    rows: tuple[tuple[str, Expr], ...]
    columns: tuple[tuple[str, Expr], ...]
    summed: tuple[tuple[str, Expr], ...]
    left_index: Index
    right_index: Index
    left: Access | None
    right: Access | None
    filled: Expr


def follow_views(
    node: Node, index: Index, memory: Collection[Node], scope: Scope
) -> tuple[Node, Index]:
    """The first node that is no view (or is in memory), and the index there."""
    while is_view(node) and node not in memory:
        index = tuple(scope.resolve(i) for i in pull_back(node, index, scope))
        node = node.inputs[0]
    return node, index


def below_reshapes(node: Node, memory: Collection[Node]) -> Node:
    """The first node of the same elements in the same order that is in memory or no Reshape."""
    while isinstance(node.primitive, Reshape) and node not in memory:
        node = node.inputs[0]
    return node


def flat_stride(slopes: dict[str, Expr], axes: Axes, scope: Scope) -> Expr | None:
    """The stride of the row-major flattening of ``axes``, or None if there is not one."""
    zero = constant(0)
    stride: Expr | None = None
    span = zero
    for name, size in reversed(list(axes)):
        if size.is_constant and size.value <= 1:  # its index never moves
            continue
        slope = slopes.get(name, zero)
        if stride is None:
            stride = slope
        elif scope.is_equal(slope, span) is not Truth.YES:
            return None
        span = slope * size
    return zero if stride is None else stride


def affine_access(
    node: Node,
    index: Index,
    axes: tuple[Axes, Axes, Axes],
    memory: Collection[Node],
    scope: Scope,
) -> Access | None:
    """The access of ``node`` at ``index`` over (batch, row, depth) axes.

    Where a batch element begins may depend on its number in any way: heads that share their keys
    do not lie one after the other.
    """
    batch, rows, depth = axes
    source, position = follow_views(node, index, memory, scope)
    offset = scope.resolve(linear(position, source.shape))
    affine = offset.affine([name for name, _ in (*rows, *depth)])
    if affine is None:
        return None
    slopes, base = affine
    row, deep = flat_stride(slopes, rows, scope), flat_stride(slopes, depth, scope)
    if row is None or deep is None:
        return None
    if not {name for name, _ in batch}.isdisjoint((*row.free_symbols, *deep.free_symbols)):
        return None
    return Access(source, base, row, deep)


def _named(prefix: str, sizes: Sequence[Expr], scope: Scope) -> tuple[tuple[str, Expr], ...]:
    named = tuple((f"_{prefix}{i}", size) for i, size in enumerate(sizes))
    for name, size in named:
        declare_index(scope, name, size)
    return named


def _unfilled(operand: Node, memory: Collection[Node]) -> Node:
    """What is filled up with zeros behind its ends, if it is not in memory with these."""
    primitive = operand.primitive
    if not isinstance(primitive, Pad) or operand in memory:
        return operand
    fill = operand.inputs[1].primitive
    behind = all(size is constant(0) for size in primitive.low)
    zero = isinstance(fill, Constant) and not fill.array.any()
    return operand.inputs[0] if behind and zero else operand


def operand_index(
    contract: Node, side: int, batch: Sequence[Expr], own: Sequence[Expr], summed: Sequence[Expr]
) -> Index:
    """An index of operand ``side`` of a Contract, given places along its kinds of axes."""
    primitive, rank = contract.primitive, contract.inputs[side].rank
    assert isinstance(primitive, Contract)
    at = dict(zip([pair[side] for pair in primitive.batch], batch, strict=True))
    at |= zip([pair[side] for pair in primitive.summed], summed, strict=True)
    at |= zip([axis for axis in range(rank) if axis not in at], own, strict=True)
    return tuple(at[axis] for axis in range(rank))


def contraction_access(
    node: Node, scope: Scope, memory: Collection[Node] = ()
) -> ContractionAccess:
    """Axes and operand accesses of a Contract, given which nodes are in ``memory``."""
    primitive = node.primitive
    assert isinstance(primitive, Contract)
    left, right = node.inputs
    facts = scope.copy()
    pairs = primitive.batch + primitive.summed
    batch = _named("b", [left.shape[i] for i, _ in primitive.batch], facts)
    summed = _named("k", [left.shape[i] for i, _ in primitive.summed], facts)
    left_free = [a for a in range(left.rank) if a not in [i for i, _ in pairs]]
    right_free = [a for a in range(right.rank) if a not in [j for _, j in pairs]]
    rows = _named("m", [left.shape[a] for a in left_free], facts)
    columns = _named("n", [right.shape[a] for a in right_free], facts)
    shared, m, n, deep = ([symbol(s) for s, _ in axes] for axes in (batch, rows, columns, summed))
    left_index = operand_index(node, 0, shared, m, deep)
    right_index = operand_index(node, 1, shared, n, deep)
    filled = product([size for _, size in summed])
    if primitive.sums is not None and len(summed) == 1:
        ((_, axis),) = primitive.summed
        inner = _unfilled(right, memory)
        only_depth = all(
            a == axis or size is whole
            for a, (size, whole) in enumerate(zip(inner.shape, right.shape, strict=True))
        )
        if only_depth:
            right, filled = inner, inner.shape[axis]
    return ContractionAccess(
        batch,
        rows,
        columns,
        summed,
        left_index,
        right_index,
        affine_access(left, left_index, (batch, rows, summed), memory, facts),
        affine_access(right, right_index, (batch, columns, summed), memory, facts),
        filled,
    )


def is_stored_view(view: Node, base: Node, scope: Scope, to_channels_first: bool = False) -> bool:
    """Whether the results of ``base`` can be stored directly as ``view``, which is made of them.

    Every node between is a Reshape or Transpose, the place of an element is affine in the axes of
    ``base``, and its last axis keeps stride 1; with ``to_channels_first`` the last view may also be
    a Transpose of the last axis to the second place, the only one then.
    """
    chain: list[Node] = []
    while view is not base:
        if not isinstance(view.primitive, Reshape | Transpose):
            return False
        chain.append(view)
        view = view.inputs[0]
    facts = scope.copy()
    axes = _named("x", base.shape, facts)
    index: Index = tuple(symbol(name) for name, _ in axes)
    is_stored = True
    for current in reversed(chain):
        index = push_forward(current, index, facts)
        found = _keeps_last(index, current, axes, facts)
        if found is None:
            return False
        is_stored = found or (to_channels_first and _puts_channels_first(current))
    return is_stored


def _keeps_last(
    index: Index, view: Node, axes: Sequence[tuple[str, Expr]], facts: Scope
) -> bool | None:
    """Whether the last axis has stride 1 in a view at ``index``; None if that is not affine."""
    affine = facts.resolve(linear(index, view.shape)).affine([name for name, _ in axes])
    if affine is None:
        return None
    slope = affine[0].get(axes[-1][0], constant(0)) if axes else constant(1)
    return slope.is_constant and slope.value == 1


def _puts_channels_first(view: Node) -> bool:
    return view.primitive == Transpose((0, view.rank - 1, *range(1, view.rank - 1)))


def stored_view(
    node: Node,
    users: dict[Node, list[Node]],
    roots: Collection[Node],
    scope: Scope,
    to_channels_first: bool = False,
) -> Node:
    """The last view of ``node`` that can be stored directly with its last axis contiguous.

    Follows single users that are Reshape or Transpose while the element's place stays affine in the
    axes of ``node`` and its last axis keeps stride 1; with ``to_channels_first`` also through a
    Transpose of the last axis to the second place.
    """
    facts = scope.copy()
    axes = _named("x", node.shape, facts)
    index: Index = tuple(symbol(name) for name, _ in axes)
    best = current = node
    while current not in roots:
        following = users[current]
        if len(following) != 1 or not isinstance(following[0].primitive, Reshape | Transpose):
            break
        current = following[0]
        index = push_forward(current, index, facts)
        keeps = _keeps_last(index, current, axes, facts)
        if keeps is None:
            break
        if keeps:
            best = current
        elif to_channels_first and _puts_channels_first(current) and best is node:
            return current
    return best
