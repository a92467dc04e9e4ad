"""Which nodes are backbones, what their kernels look like, and which operands must be in memory."""

from __future__ import annotations

from collections.abc import Collection

from tilewright.ir.access import below_reshapes, contraction_access
from tilewright.ir.dtype import TILE_TYPES
from tilewright.ir.graph import Node
from tilewright.ir.kernel import KernelKind
from tilewright.ir.primitives import (
    Constant,
    Contract,
    Convolve,
    Reduce,
    Reshape,
    Slice,
    Transpose,
    Window,
)
from tilewright.plan.inline import cost, is_simple
from tilewright.shape import Scope, product

LEAST_COLUMNS = 8  # fewer, and each result is a loop of its own
TAP_COST = 2  # operations that may be repeated for every tap of a window
PACKING_COST = 4  # operations that may be repeated for every block that packs an operand


def kind_of_backbone(node: Node) -> KernelKind | None:
    """The kind of kernel a node seeds, or None."""
    match node.primitive:
        case Contract():
            return KernelKind.CONTRACTION if _has_tiles(node) else KernelKind.LOOPS
        case Convolve() as convolve:
            if not _has_tiles(node):
                return KernelKind.LOOPS
            kernel_known = all(size.is_constant for size in node.inputs[1].shape)
            if not kernel_known:
                return KernelKind.LOOPS
            plain = all(s == 1 for s in convolve.spread)
            per_group = node.inputs[1].shape[0].value // convolve.groups
            if plain and node.inputs[1].shape[1].value == 1 and per_group <= 2 and node.rank > 2:
                return KernelKind.WINDOW
            return KernelKind.CONTRACTION
        case Window():
            return KernelKind.WINDOW
        case Reduce():
            return KernelKind.WINDOW if _keeps_columns(node) else None
        case _:
            return None


def _has_tiles(product: Node) -> bool:
    """Whether there are register tiles for the types of a Contract or Convolve."""
    assert isinstance(product.primitive, Contract | Convolve)
    return product.dtype in TILE_TYPES or product.primitive.sums is not None


def may_end_channels_first(node: Node) -> bool:
    """Whether a convolution may write its result with the channels first, though they are last."""
    return isinstance(node.primitive, Convolve) and node.primitive.channels_last


def _as_tiles_read(node: Node, memory: Collection[Node]) -> Node:
    """What must be in memory of the data of a convolution with the channels last."""
    data = node.inputs[0]
    if kind_of_backbone(node) is not KernelKind.CONTRACTION or data in memory:
        return data
    return data.inputs[0] if _is_turned_by_line(node) else below_reshapes(data, memory)


def _is_turned_by_line(node: Node) -> bool:
    """Whether a convolution with the channels last copies lines of data that has them first.

    Each line is copied once or so and read by many taps.
    """
    primitive, data = node.primitive, node.inputs[0]
    assert isinstance(primitive, Convolve)
    if not isinstance(data.primitive, Transpose):
        return False
    taps = [size.value for size in node.inputs[1].shape[2:]]
    plain = primitive.groups == primitive.dilations[-1] == 1 and primitive.sums is None
    plain = plain and all(spread == 1 for spread in primitive.spread)
    reached = all(s <= size for s, size in zip(primitive.strides, taps, strict=True))
    order = (0, *range(2, node.rank), 1)
    first = data.primitive.permutation == order and max(taps) > 1
    return plain and reached and first and 1 <= len(taps) <= 2


def _keeps_columns(reduction: Node) -> bool:
    """Whether a Reduce over other axes than the last ones has columns to run vectors along."""
    primitive, shape = reduction.primitive, reduction.inputs[0].shape
    assert isinstance(primitive, Reduce)
    if not primitive.axes or len(shape) - 1 in primitive.axes:
        return False
    columns = product(shape[primitive.axes[-1] + 1 :])
    return not (columns.is_constant and columns.value < LEAST_COLUMNS)


def operands_for_memory(node: Node, memory: Collection[Node], scope: Scope) -> set[Node]:
    """Operands of a backbone that cannot be evaluated in place and so must be in memory."""
    match node.primitive:
        case Contract():
            return _contract_operands(node, memory, scope)
        case Convolve() as convolve:
            data, weights = node.inputs
            found = {weights}
            if convolve.channels_last and kind_of_backbone(node) is KernelKind.WINDOW:
                return found if _runs_along_channels(data, memory) else {data, weights}
            heavy = not is_simple(data, memory) or cost(data, memory) > PACKING_COST
            if convolve.channels_last:
                found.add(_as_tiles_read(node, memory))
            elif heavy:
                found.add(data)
            return found
        case Reduce():
            return set()
        case Window(trailing=trailing) if trailing:
            data = node.inputs[0]
            return set() if _runs_along_channels(data, memory) else {data}
        case _:
            data = node.inputs[0]
            simple = is_simple(data, memory) and cost(data, memory) <= TAP_COST
            return set() if simple else {data}


def _runs_along_channels(data: Node, memory: Collection[Node]) -> bool:
    """Whether every tap may evaluate ``data`` in place: cheap, and elements in memory order."""
    stack = [data]
    while stack:
        current = stack.pop()
        if current in memory:
            continue
        if isinstance(current.primitive, Transpose | Reshape | Slice):
            return False
        stack.extend(current.inputs)
    return is_simple(data, memory) and cost(data, memory) <= TAP_COST


def _contract_operands(node: Node, memory: Collection[Node], scope: Scope) -> set[Node]:
    if not _has_tiles(node):
        return {i for i in node.inputs if not is_simple(i, memory)}
    left, right = node.inputs
    found: set[Node] = set()
    access = contraction_access(node, scope, memory)
    if access.left is None:
        found.add(left)
    else:
        found.add(access.left.source)
    if access.right is not None:
        found.add(access.right.source)
    elif not is_simple(right, memory) or cost(right, memory) > PACKING_COST:
        found.add(right)
    return {f for f in found if not (isinstance(f.primitive, Constant) and f.rank > 0)}
