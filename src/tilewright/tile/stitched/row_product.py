"""A product whose tasks have whole rows, and reduce them while they are in cache.

The product is that of any other kernel, with all columns in a block. Its epilogue leaves what is
shown of the sums in scratch, and the sweeps of a row kernel go over the rows of the block there
before the task ends: they are what is stored of the stage of blocks.

    stage parallel _m, parallel _n          all columns are one block
      stage reduction _k
        product … finished by the epilogue  what is shown, into scratch
      store
        for each row: sweeps                reductions, results of rows and of elements

Start with :func:`lower_row_product`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.ir.graph import Node
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.row_product import RowProduct
from tilewright.ir.stage_axis import NEVER
from tilewright.ir.tile import Load, Loop, Statement, Store, TileBuffer, Value
from tilewright.ir.views import Index, declare_index, linear, unflatten
from tilewright.shape import Expr, Scope, constant, symbol
from tilewright.target.core_model import spread_elements
from tilewright.tile.products.contraction import lower_contraction
from tilewright.tile.products.frame import Blocking, RegisterTile
from tilewright.tile.rows.parts import write_whole
from tilewright.tile.rows.row_columns import RowRange
from tilewright.tile.rows.row_layouts import Layout
from tilewright.tile.rows.rows_along import Rows
from tilewright.tile.rows.stages import NotOneLoopError, RowStages
from tilewright.tile.rows.turned_rows import TurnedRows
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import LoweredStep

BEGIN, END, ROW, COLUMN = (symbol(name) for name in ("_m0", "_m1", "_m", "_n"))


@dataclass(frozen=True)
class RowBlocking:
    """Blocks of a product with all columns, and whether vectors run across its rows.

    They run along a row unless blocks of rows are ``turned`` through register squares.
    """

    blocking: Blocking
    turned: bool = False


def lower_row_product(
    parts: RowProduct, outputs: Sequence[Node], scope: Scope, tile: RegisterTile, block: RowBlocking
) -> LoweredStep | None:
    """The step that writes ``outputs`` of both parts; None where that is impossible.

    It is where the results of the product lie in another order than its rows, where the rows look
    up positions, which is done in steps of its own, and where they cannot be turned but should.
    """
    lowering = Lowering(parts.first, scope)
    step = lower_contraction(parts.first, lowering, tile, replace(block.blocking, whole=True))
    given = len(lowering.buffers)
    nest = ProductNest.of(step.program)
    written = step.program.buffers[-step.program.results :]
    firsts = dict(zip(parts.first.outputs, written, strict=True))
    own = firsts[parts.shown]
    if not any(store.buffer is own for store in nest.finish.stores):
        return None  # it is moved out of the block in another order
    following = lowering.continued(parts.last, scope)
    wide = nest.columns.block + spread_elements(own.dtype.bytes)
    shown = following.scratch_buffer(own.dtype, nest.rows.block * wide)
    rows = _Rows(parts, following, nest, shown, wide)
    try:
        statements = rows.turned() if block.turned else rows.along()
    except NotOneLoopError:
        return None
    if parts.shown in lowering.buffers or lowering.checks:
        return None
    kept = parts.shown in outputs
    stores: list[Store] = []
    for store in nest.finish.stores:
        if store.buffer is own:
            stores.append(Store(shown, (ROW - BEGIN) * wide + COLUMN, store.value))
        if store.buffer is not own or kept:
            stores.append(store)
    product = replace(
        nest.product, target=replace(nest.finish, stores=tuple(stores), streamed=NEVER)
    )
    steps = replace(nest.steps, body=(product,))
    program = nest.with_blocks(
        replace(nest.blocks, body=(steps,), store=(*nest.blocks.store, *statements))
    )
    targets = firsts | rows.stages.targets
    results = tuple(targets[output] for output in outputs)
    packed = program.buffers[given : -program.results]
    program = replace(
        program,
        buffers=(*lowering.buffers.values(), *packed, *results),
        results=len(results),
        scratch=(*program.scratch, *lowering.scratch[lowering.scratch.index(shown) :]),
        checks=tuple(lowering.checks),
    )
    return LoweredStep(program, (*lowering.buffers, *step.reads[given:]), tuple(outputs))


class _Rows:
    """The rows of a block, whose elements are in ``shown``, ``wide`` apart from row to row."""

    def __init__(
        self, parts: RowProduct, lowering: Lowering, nest: ProductNest, shown: TileBuffer,
        wide: Expr,
    ) -> None:  # fmt: skip
        self.parts = parts
        self.lowering = lowering
        self.nest = nest
        self.shown = shown
        self.wide = wide
        self.stages = RowStages(parts.last, lowering)
        first = len(parts.first.outputs)
        self.stages.targets = {
            o: TileBuffer(f"o{first + i}", o.dtype) for i, o in enumerate(parts.last.outputs)
        }
        self.stages.written = dict(self.stages.targets)
        for end in (BEGIN, END):
            lowering.scope.declare(str(end), 0)
        self.batch = [declare_index(lowering.scope, name, size) for name, size in nest.batch]

    def turned(self) -> tuple[Statement, ...]:
        """A loop over blocks of rows that are turned, so that vectors run across them."""
        lowering, space = self.lowering, self.stages.space
        lead = [axis for axis in space.kept if axis < len(self.batch)]
        reduced = tuple(axis for axis in space.wide if axis in space.axes)
        layout = Layout(tuple(lead), reduced, space.kept[len(lead) :], ())
        fixed = {axis: self.batch[axis] for axis in lead}
        task = _TurnedBlock(self, layout, RowRange(fixed, BEGIN, END))
        write_whole(task)
        inner = lowering.close()
        outer = lowering.close()
        ((number, blocks),) = task.grid
        loop = Loop(number, constant(0), blocks, (*outer, *inner))
        return (*lowering.blocks[0].statements, loop)

    def along(self) -> tuple[Statement, ...]:
        """What is the same for all rows of the block, and a loop over these."""
        lowering, batch = self.lowering, self.batch
        lowering.open()
        row = lowering.variable(self.nest.m)
        place = self._place(batch, row)
        lowering.cached[self.parts.shown] = lambda index: self._element(index, place, row)
        write_whole(Rows(self.stages, False, place))
        inner = lowering.close()
        outer = lowering.close()
        loop = Loop(str(row), BEGIN, END, (*outer, *inner))
        return (*lowering.blocks[0].statements, loop)

    def _place(self, batch: Sequence[Expr], row: Expr) -> dict[int, Expr]:
        """Where a row of the product lies along the axes of the space that are not reduced."""
        space, resolve = self.stages.space, self.lowering.scope.resolve
        own = [axis for axis in space.kept if axis >= len(batch)]
        axes = [("", space.shape[axis]) for axis in own]
        places = dict(zip(own, map(resolve, unflatten(row, axes)), strict=True))
        return {axis: batch[axis] for axis in space.kept if axis < len(batch)} | places

    def _element(self, index: Index, place: dict[int, Expr], row: Expr) -> Value | None:
        """An element of the row."""
        space, resolve = self.stages.space, self.lowering.scope.resolve
        if any(index[axis] is not resolve(own) for axis, own in place.items()):
            return None
        axes = [axis for axis in space.wide if axis in space.axes]
        column = linear([index[a] for a in axes], tuple(space.shape[a] for a in axes))
        return Load(self.shown, resolve((row - BEGIN) * self.wide + column))


class _TurnedBlock(TurnedRows):
    """Rows of a block of the product, which are turned out of its scratch."""

    def __init__(self, rows: _Rows, layout: Layout, given: RowRange) -> None:
        self.own = rows
        super().__init__(rows.stages, layout, given)

    def source(self, node: Node) -> tuple[TileBuffer, Expr, Expr]:
        """Where the first row of the block lies, and how far it is to the next one."""
        own = self.own
        if node is not own.parts.shown:
            return super().source(node)
        return own.shown, (self.first - BEGIN) * own.wide, own.wide
