"""Kernels of one value for every element of their results: elementwise work and layout.

A tile has the last axis of the results, and the axis along which operands lie side by side where
that is another one: both are read and written in runs, and the tile is turned in between. Start
with :func:`write_elements`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.backend.gpu.axes import Axis, Placer
from tilewright.backend.gpu.kernel import TileSize, TritonKernel
from tilewright.backend.gpu.tile import Tile
from tilewright.backend.gpu.writer import Term, Writer
from tilewright.ir.kernel import Kernel
from tilewright.ir.tile import Store
from tilewright.ir.tile_walk import value_loads
from tilewright.shape import Expr, constant
from tilewright.tile.loops.loops import store_elements
from tilewright.tile.nests import collapse, target_buffers
from tilewright.tile.values.lowering import Lowering

AREA = 4096  # elements of a tile: what 4 warps hold
SIDE = 64  # elements of a tile along an axis beside another one


def write_elements(kernel: Kernel, lowering: Lowering) -> TritonKernel:
    """The kernel of an elementwise or layout kernel."""
    writer, targets = Writer(lowering), target_buffers(kernel)
    variables = store_elements(kernel, lowering, targets)
    levels = [lowering.close() for _ in variables][::-1]
    body = [*lowering.blocks[0].statements, *(part for level in levels for part in level)]
    variables, merged = collapse(lowering, variables, writer.stores(body))
    stores = writer.stores(merged)
    along = [_axis_of_runs(stores, variables), *variables[-1:]]
    across = [variable for variable in variables if variable not in along]
    placer = Placer(writer)
    names, inside, blocks = dict[str, Term](), dict[int, str](), ["1", "1"]
    for dimension, name in ((1, "columns"), (0, "rows")):
        variable = along[dimension] if dimension < len(along) else None
        if variable is None:
            continue
        axis = Axis("n" if dimension else "m", (variable,))
        alone = along[0] is None
        size = TileSize(name.upper(), axis.extent, AREA if alone else SIDE)
        first = placer.cut(axis, size)
        found, inside[dimension] = placer.along(axis, first, size.name, dimension)
        names |= found
        blocks[dimension] = size.name
    names |= placer.rest(Axis("outer", tuple(across)))
    tile = Tile(writer, (blocks[0], blocks[1]), inside, names)
    for store in stores:
        tile.store(store, frozenset(inside))
    return writer.kernel("elements", kernel, targets, list(writer.tiles))


def _axis_of_runs(
    stores: Sequence[Store], variables: Sequence[tuple[str, Expr]]
) -> tuple[str, Expr] | None:
    """The other variable along which most operands lie side by side, else the last but one."""
    names = [name for name, _ in variables]
    runs = dict.fromkeys(names[:-1], 0)
    for store in stores:
        for load in value_loads(store.value):
            affine = load.offset.affine(names)
            for name in runs:
                if affine is not None and affine[0].get(name) is constant(1):
                    runs[name] += 1
    return max(reversed(variables[:-1]), key=lambda v: runs[v[0]], default=None)
