"""Which nodes seed a kernel: those whose loops shape it.

Start with :func:`kind_to_seed`.
"""

from __future__ import annotations

from tilewright.ir.dtype import TILE_TYPES
from tilewright.ir.graph import Node
from tilewright.ir.kernel import KernelKind, kind_of_seed
from tilewright.ir.primitives import Contract, Convolve, Reduce, Window
from tilewright.shape import product

LEAST_COLUMNS = 8  # fewer, and each result is a loop of its own


def kind_to_seed(node: Node) -> KernelKind | None:
    """The kind of kernel that a node seeds before any row does, or None.

    ``LOOPS`` says that every result is a loop of its own: there are no tiles for it.
    """
    match node.primitive:
        case Contract():
            tiled = has_tiles(node)
        case Convolve():
            tiled = has_tiles(node) and all(s.is_constant for s in node.inputs[1].shape)
        case Window():
            tiled = True
        case Reduce() if _keeps_columns(node):
            tiled = True
        case _:
            return None
    return kind_of_seed(node) if tiled else KernelKind.LOOPS


def has_tiles(product: Node) -> bool:
    """Whether there are register tiles for the types of a Contract or Convolve."""
    assert isinstance(product.primitive, Contract | Convolve)
    if product.primitive.sums is None:
        return product.dtype in TILE_TYPES
    return isinstance(product.primitive, Contract) or product.primitive.channels_last


def has_columns(reduction: Node) -> bool:
    """Whether a Reduce keeps the last axis, and reduces any."""
    primitive = reduction.primitive
    assert isinstance(primitive, Reduce)
    return bool(primitive.axes) and reduction.inputs[0].rank - 1 not in primitive.axes


def _keeps_columns(reduction: Node) -> bool:
    """Whether a Reduce over other axes than the last ones has columns to run vectors along.

    Short rows of what comes from outside are taken together (``tile.columns``).
    """
    primitive, shape = reduction.primitive, reduction.inputs[0].shape
    assert isinstance(primitive, Reduce)
    if not has_columns(reduction):
        return False
    columns = product(shape[primitive.axes[-1] + 1 :])
    are_few = columns.is_constant and columns.value < LEAST_COLUMNS
    return not are_few or not reduction.inputs[0].inputs
