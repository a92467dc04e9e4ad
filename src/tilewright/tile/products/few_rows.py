"""Products of few rows by weights of few bits, straight from the words that hold them.

What such a product takes is the time to read its weights. So each is taken apart in registers and
multiplied there by all rows; a task has a block of columns, whose sums wait in scratch for the
epilogue. Start with :func:`lower_few_rows`.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.cost import Machine, few_rows_time
from tilewright.ir.access import contraction_access
from tilewright.ir.dtype import DType
from tilewright.ir.kernel import Kernel
from tilewright.ir.tile import (
    Let,
    Load,
    Loop,
    Product,
    Statement,
    Store,
    Sums,
    TileBuffer,
    TileProgram,
    View,
)
from tilewright.ir.tile_walk import ExpressionMap
from tilewright.shape import Expr, ceil_div, constant, maximum, minimum, symbol
from tilewright.tile.products.codes import CodeOperand, code_operand
from tilewright.tile.products.contraction import NANOSECONDS_SHIFT, epilogue_stores
from tilewright.tile.products.frame import Frame, RegisterTile, declare
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import THREADS, LoweredStep, Variant
from tilewright.tile.work import MANY_SHARES, MOST_COLUMNS

ROWS = 64  # of a task; products of more are for other variants


def few_rows_variant(
    kernel: Kernel, fresh: Callable[[], Lowering], tile: RegisterTile, machine: Machine
) -> Variant | None:
    """The variant of a product by codes with its cost; None for any other product."""
    made = _FewRows.of(kernel, fresh(), tile)
    if made is None:
        return None
    frame, operand = made.frame, made.operand
    cost = few_rows_time(
        (frame.m, frame.n, frame.depth), operand.codes.bits, machine, symbol(THREADS)
    )
    return Variant("few rows", (made.step(),), cost)


def lower_few_rows(
    kernel: Kernel, fresh: Callable[[], Lowering], tile: RegisterTile
) -> tuple[LoweredStep, ...] | None:
    """The step of a product by codes; None for any other product."""
    made = _FewRows.of(kernel, fresh(), tile)
    return None if made is None else (made.step(),)


class _FewRows:
    """Writes the program."""

    def __init__(self, frame: Frame, operand: CodeOperand, left: View) -> None:
        self.frame = frame
        self.operand = operand
        self.left = left
        panel = operand.panel
        share = ceil_div(ceil_div(frame.n, MANY_SHARES), panel) * panel
        self.block = maximum(minimum(share, max(MOST_COLUMNS // panel, 1) * panel), panel)

    @staticmethod
    def of(kernel: Kernel, lowering: Lowering, tile: RegisterTile) -> _FewRows | None:
        """None if the right operand is no constant of codes."""
        seed = kernel.seed
        access = contraction_access(seed, lowering.scope, lowering.memory)
        operand = code_operand(seed, access, tile.for_product(seed).columns)
        if operand is None or access.left is None:
            return None
        depth = constant(operand.codes.shape[1])
        registers = tile.for_product(seed)
        frame = Frame(kernel, lowering, registers, access.batch, access.rows, access.columns, depth)
        left, buffer = access.left, lowering.buffer(access.left.source)
        return _FewRows(frame, operand, View(buffer, left.base, left.row, left.depth))

    def step(self) -> LoweredStep:
        """The program with its buffers."""
        frame = self.frame
        lowering, kernel = frame.lowering, frame.kernel
        targets = {o: TileBuffer(f"o{i}", o.dtype) for i, o in enumerate(kernel.outputs)}
        index = [*declare(lowering, frame.rows), *declare(lowering, frame.columns)]
        stores = epilogue_stores(frame, tuple(index), targets)
        body = self._body(stores)
        assert not lowering.blocks[0].statements, f"{kernel.label}: statements in an epilogue"
        program = TileProgram(
            buffers=(*lowering.buffers.values(), *self.operand.buffers, *targets.values()),
            results=len(targets),
            grid=(("_nb", ceil_div(frame.n, self.block)), ("_mb", ceil_div(frame.m, ROWS))),
            body=body,
            scratch=tuple(lowering.scratch),
            checks=tuple(lowering.checks),
            work=(frame.m + 8) * frame.n * frame.depth // NANOSECONDS_SHIFT + 1,
        )
        reads = (*lowering.buffers, *self.operand.sources)
        return LoweredStep(program, reads, tuple(kernel.outputs))

    def _body(self, stores: tuple[Store, ...]) -> tuple[Statement, ...]:
        """The sums of a task, and the loops that finish them by ``stores``."""
        frame, left, block = self.frame, self.left, self.block
        row, column = symbol("_mb") * ROWS, symbol("_nb") * block
        rows, columns = minimum(frame.m - row, ROWS), minimum(frame.n - column, block)
        sums = frame.lowering.scratch_buffer(DType.FLOAT32, minimum(frame.m, ROWS) * block)
        product = Product(
            DType.FLOAT32,
            View(left.buffer, left.offset + row * left.row, left.row, left.depth),
            self.operand.view(column),
            (constant(0), rows),
            (constant(0), columns),
            (constant(0), frame.depth),
            Sums(sums, constant(0), block, constant(0)),
        )
        i, j = symbol("_f"), symbol("_c")
        total = Let("accumulator", Load(sums, i * block + j))
        places: dict[str, Expr] = {"_m": row + i, "_n": column + j}
        body = (total, *ExpressionMap.substitution(places).stores(stores))
        across = Loop("_c", constant(0), columns, body)
        return product, Loop("_f", constant(0), rows, (across,))


__all__ = ["few_rows_variant", "lower_few_rows"]
