"""The stages of a product of blocks: tasks of rows and columns, steps of the depth, register tiles.

Start with :func:`product_program`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.cost.operands import Blocks, are_asked_for
from tilewright.ir.listed_view import ListedView
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.stage_axis import NEVER, Role, StageAxis
from tilewright.ir.tile import (
    Finish,
    Product,
    Registers,
    RunTable,
    Stage,
    Statement,
    Store,
    TileBuffer,
    TileProgram,
    View,
)
from tilewright.shape import Expr, less_equal, logical_and
from tilewright.shape import product as product_of
from tilewright.target.core_model import NEAR_OPERAND_BYTES
from tilewright.tile.moves.staged import StagedResult
from tilewright.tile.products.frame import Frame, narrow_type


@dataclass(frozen=True)
class Loaded:
    """An operand that statements pack, or say where it lies, for each block before tiles read it.

    In ``load`` the bounds of blocks are named "_m0", "_m1", "_n0", "_n1", "_k0" and "_k1". A left
    operand is loaded once for all of the depth, a right one for each block of it. ``packed`` are
    the buffers that were packed when compiling of what ``load`` reads.
    """

    view: View | RunTable
    load: tuple[Statement, ...]
    packed: tuple[TileBuffer, ...] = ()

    @property
    def scratch(self) -> tuple[TileBuffer, ...]:
        """The memory of a task that the view needs."""
        view, buffers = self.view, [self.view.buffer]
        if isinstance(view, RunTable):
            buffers = [b for b in (view.table, view.shifts, view.zeros, view.buffer) if b]
        elif isinstance(view, ListedView):
            buffers = [view.shifts, view.buffer]
        return tuple(buffer for buffer in buffers if buffer.scratch)


@dataclass(frozen=True)
class BlockSizes:
    """Rows, columns and depth of a block: rows and columns are multiples of the register tile's.

    With a table of runs, the depth is a multiple of its run. Where ``rows_first`` is not 0, all
    blocks of some rows come before those of the next ones, or else all blocks of some columns.
    """

    rows: Expr
    columns: Expr
    depth: Expr
    rows_first: Expr = NEVER


def product_program(
    frame: Frame,
    blocks: BlockSizes,
    operands: tuple[View | Loaded, View | Loaded],
    stores: tuple[Store, ...],
    memory: tuple[tuple[TileBuffer, ...], tuple[TileBuffer, ...]],
    work: Expr,
    staged: Sequence[StagedResult] = (),
    streamed: Expr = NEVER,
) -> TileProgram:
    """The program of a product whose ``operands`` are whole, or loaded for each block.

    ``memory`` is what it reads and what it writes; ``staged`` are the results whose ``stores`` go
    to scratch memory first. Where ``streamed`` is not 0, results go past the caches.
    """
    dtype, (reads, results) = frame.kernel.seed.dtype, memory
    first = blocks.rows_first
    either = NEVER if first.is_constant else first
    m = StageAxis("_m", frame.m, blocks.rows, Role.PARALLEL, either)
    n = StageAxis("_n", frame.n, blocks.columns, Role.PARALLEL)
    k = StageAxis("_k", frame.depth, blocks.depth, Role.REDUCTION)
    left, right = (
        side.view if isinstance(side, Loaded) else _of_block(side, axis, k)
        for side, axis in zip(operands, (m, n), strict=True)
    )
    assert isinstance(right, View), "tiles read the right operand as it lies"
    gathering, packing = (side.load if isinstance(side, Loaded) else () for side in operands)
    line = right.line if isinstance(right, ListedView) and right.has_lines else frame.n
    tail = line.value % frame.tile.columns if line.is_constant else None
    registers = Registers(frame.tile.rows, frame.tile.columns, tail)
    finish = Finish(stores, registers, streamed)
    product = Product(
        dtype, left, right, m.bounds, n.bounds, k.bounds, finish, narrow_type(frame.kernel.seed)
    )
    loaded = [buffer for side in operands if isinstance(side, Loaded) for buffer in side.scratch]
    program = TileProgram(
        buffers=(*reads, *results),
        results=len(results),
        grid=(*frame.batch, *_tasks(m, n, blocks.rows_first)),
        body=(
            Stage(
                axes=(m, n),
                load=gathering,
                body=(Stage((k,), packing, (product,)),),
                store=tuple(result.after for result in staged),
            ),
        ),
        scratch=(*loaded, *(result.buffer for result in staged)),
        checks=tuple(frame.lowering.checks),
        work=work,
    )
    return _asking(program, frame.tile.room)


def _tasks(rows: StageAxis, columns: StageAxis, rows_first: Expr) -> list[tuple[str, Expr]]:
    """The axes of the grid that count blocks, in the order in which threads go along them."""
    *around, last = rows.counters
    always = rows_first.is_constant and rows_first.value
    return [last, *columns.counters] if always else [*around, *columns.counters, last]


def _asking(program: TileProgram, room: int) -> TileProgram:
    """The program, which says where its tiles ask for rows of columns that come later."""
    nest = ProductNest.of(program)
    own = [extent for name, extent in nest.batch if name in nest.right.offset.free_symbols]
    elements = product_of([*own, nest.n, nest.k])
    far = less_equal(NEAR_OPERAND_BYTES // nest.dtype.bytes, elements)
    ahead = logical_and(far, are_asked_for(nest, Blocks.of(nest), room))
    finish = replace(nest.finish, ahead=ahead)
    steps = replace(nest.steps, body=(replace(nest.product, target=finish),))
    return nest.with_blocks(replace(nest.blocks, body=(steps,)))


def _of_block(whole: View, rows: StageAxis, depth: StageAxis) -> View:
    """The part of an operand that belongs to a block of its rows or columns and of the depth."""
    offset = whole.offset + rows.begin * whole.row + depth.begin * whole.depth
    return replace(whole, offset=offset)
