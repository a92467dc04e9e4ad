"""Matrix products with all that is done to operands and results: prologue, sums, epilogue.

A program has a tile of rows and columns, and goes over the depth tile by tile. Start with
:func:`write_product`.
"""

from __future__ import annotations

from tilewright.backend.gpu.axes import Axis, Placer, merged
from tilewright.backend.gpu.kernel import TYPES, TileSize, TritonKernel
from tilewright.backend.gpu.tile import BOTH, Tile
from tilewright.backend.gpu.writer import Term, Writer
from tilewright.ir.access import contraction_access
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Contract
from tilewright.ir.tile import Local, Store, TileBuffer, Value
from tilewright.ir.views import Index
from tilewright.shape import constant
from tilewright.tile.nests import target_buffers
from tilewright.tile.products.contraction import result_stores
from tilewright.tile.products.frame import declare
from tilewright.tile.values.lowering import Lowering

# Of a tile, and the sums that a thread holds: matrix units need larger tiles to be kept busy, and
# have operands in shared memory, where other products have them in registers beside the sums.
SIDE, DEPTH, SUMS = 64, 32, 16
UNIT_SIDE, UNIT_DEPTH, UNIT_SUMS = 128, 64, 128
LEAST = 16  # of each axis: what the instructions of matrix units need


def write_product(kernel: Kernel, lowering: Lowering) -> TritonKernel:
    """The kernel of a Contract with its epilogue."""
    writer, contract = Writer(lowering), kernel.seed
    if not isinstance(contract.primitive, Contract):
        raise writer.unsupported("it is a convolution")
    access = contraction_access(contract, lowering.scope, lowering.memory)
    groups = (access.batch, access.rows, access.columns, access.summed)
    batch, rows, columns, _ = (declare(lowering, axes) for axes in groups)
    operands = [
        held("left", lowering.value(contract.inputs[0], access.left_index)),
        held("right", lowering.value(contract.inputs[1], access.right_index)),
    ]
    index = tuple(map(lowering.scope.resolve, (*batch, *rows, *columns)))
    know(lowering, contract, index, Local("sums", contract.dtype))
    targets = target_buffers(kernel)
    moves = [*lowering.blocks[0].statements, *operands, *result_stores(lowering, targets, index)]
    names = ("batch", "m", "n", "k")
    made = [Axis(name, axes) for name, axes in zip(names, groups, strict=True)]
    axes, body = merged(lowering, made, writer.stores(moves))
    _write(writer, contract, axes, writer.stores(body))
    sums = UNIT_SUMS if on_matrix_units(contract) else SUMS
    return writer.kernel("product", kernel, targets, ("ROWS", "COLUMNS"), sums)


def _write(writer: Writer, contract: Node, axes: list[Axis], moves: list[Store]) -> None:
    outer, m, n, k = axes
    left, right, *results = moves
    side, most = (UNIT_SIDE, UNIT_DEPTH) if on_matrix_units(contract) else (SIDE, DEPTH)
    columns, rows, depth = (
        TileSize("COLUMNS", n.extent, side, LEAST),
        TileSize("ROWS", m.extent, side, LEAST),
        TileSize("DEPTH", k.extent, most, LEAST),
    )
    placer = Placer(writer)
    first_column, first_row = placer.cut(n, columns), placer.cut(m, rows)
    scalars = placer.rest(outer)
    of_rows, row_inside = placer.along(m, first_row, rows.name, 0)
    of_columns, column_inside = placer.along(n, first_column, columns.name, 1)
    sums = TYPES[contract.dtype][0]
    writer.line(f"sums = tl.zeros(({rows.name}, {columns.name}), {sums})")
    writer.tile(depth)
    with writer.loop(f"for first in range(0, {placer.extent(k)}, {depth.name}):"):
        across, inside = placer.along(k, "first", depth.name, 1, "k_left")
        tile = Tile(
            writer, (rows.name, depth.name), {0: row_inside, 1: inside},
            scalars | of_rows | across,
        )  # fmt: skip
        one = tile.operand(left.value)
        down, inside = placer.along(k, "first", depth.name, 0, "k_right")
        tile = Tile(
            writer, (depth.name, columns.name), {0: inside, 1: column_inside},
            scalars | of_columns | down,
        )  # fmt: skip
        writer.line(f"sums = {dot(writer, one, tile.operand(right.value), contract, 'sums')}")
    tile = Tile(
        writer, (rows.name, columns.name), {0: row_inside, 1: column_inside},
        scalars | of_rows | of_columns, {"sums": Term("sums", BOTH)},
    )  # fmt: skip
    for result in results:
        tile.store(result, BOTH)


def on_matrix_units(product: Node) -> bool:
    """Whether it is multiplied by other units than those of elementwise work."""
    return all(operand.dtype is DType.BFLOAT16 for operand in product.inputs)


def held(name: str, value: Value) -> Store:
    """A value on a tile of its own."""
    return Store(TileBuffer(name, value.dtype, scratch=True), constant(0), value)


def know(lowering: Lowering, node: Node, index: Index, value: Value) -> None:
    """Element ``index`` of a node is that from now on."""
    lowering.cached[node] = lambda asked: value if asked == index else None


def dot(
    writer: Writer,
    left: str,
    right: str,
    product: Node,
    sums: str | None = None,
    split: bool = False,
) -> str:
    """The product of two tiles, in the precision of their type, added to sums if there are any.

    With ``split``, matrix units multiply elements of float32 as sums of two shorter numbers each,
    of which the product of the smaller ones, 2^-22 of the result, is left out.
    """
    types = {*(operand.dtype for operand in product.inputs), product.dtype}
    if not all(dtype.is_float for dtype in types) or DType.FLOAT16 in types:
        raise writer.unsupported(f"it is a product of {product.inputs[0].dtype.value}")
    given = f"{left}, {right}" if sums is None else f"{left}, {right}, {sums}"
    precision = "tf32x3" if split and types == {DType.FLOAT32} else "ieee"
    return f'tl.dot({given}, input_precision="{precision}", out_dtype={TYPES[product.dtype][0]})'
