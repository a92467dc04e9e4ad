"""A product that is finished block by block, found in the stages of its tile program.

Start with :meth:`ProductNest.find`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.dtype import DType
from tilewright.ir.listed_view import ListedView
from tilewright.ir.stage_axis import Role, StageAxis
from tilewright.ir.tile import (
    Finish,
    Product,
    Registers,
    RunTable,
    Stage,
    TileProgram,
    TransposeBlock,
    View,
)
from tilewright.shape import Expr, constant, maximum


@dataclass(frozen=True)
class ProductNest:
    """C[batch, m, n] = sum over k of left[batch, m, k] * right[batch, k, n], then an epilogue.

    ``blocks`` is the stage of a task's rows and columns, ``steps`` the one of the depth inside of
    it, ``product`` the only thing that is computed there.
    """

    program: TileProgram
    blocks: Stage
    steps: Stage
    product: Product
    finish: Finish

    @staticmethod
    def find(program: TileProgram) -> ProductNest | None:
        """The product of a program that is nothing else; None if it is another."""
        match program.body:
            case (Stage(axes=(rows, columns), body=(Stage(axes=(depth,)) as steps,)) as blocks,):
                roles = rows.role, columns.role, depth.role
            case _:
                return None
        if roles != (Role.PARALLEL, Role.PARALLEL, Role.REDUCTION):
            return None
        match steps.body:
            case (Product(target=Finish() as finish) as product,):
                made = ProductNest(program, blocks, steps, product, finish)
                return made if made._covers_blocks() else None
            case _:
                return None

    @staticmethod
    def of(program: TileProgram) -> ProductNest:
        """The product of a program that is known to have one."""
        found = ProductNest.find(program)
        assert found is not None, "the program is no product of blocks"
        return found

    def _covers_blocks(self) -> bool:
        """Whether the product is of whole blocks of the stages around it, called as is usual."""
        product, axes = self.product, (self.rows, self.columns, self.depth)
        bounds = (product.rows, product.columns, product.depth)
        named = [axis.stem for axis in axes] == ["_m", "_n", "_k"]
        return named and bounds == tuple(axis.bounds for axis in axes)

    @property
    def rows(self) -> StageAxis:
        """The axis of m."""
        return self.blocks.axes[0]

    @property
    def columns(self) -> StageAxis:
        """The axis of n."""
        return self.blocks.axes[1]

    @property
    def depth(self) -> StageAxis:
        """The axis of k."""
        return self.steps.axes[0]

    @property
    def m(self) -> Expr:
        """How many rows there are."""
        return self.rows.extent

    @property
    def n(self) -> Expr:
        """How many columns there are."""
        return self.columns.extent

    @property
    def has_lines(self) -> bool:
        """Whether the columns of the right operand lie side by side in lines only."""
        return isinstance(self.right, ListedView) and self.right.has_lines

    @property
    def line(self) -> Expr:
        """How many columns lie side by side: all of them, or those of a line."""
        right = self.right
        return right.line if isinstance(right, ListedView) and right.has_lines else self.n

    @property
    def lines(self) -> Expr:
        """How often there are as many columns."""
        return self.n // maximum(self.line, 1) if self.has_lines else constant(1)

    @property
    def k(self) -> Expr:
        """How deep the sums are."""
        return self.depth.extent

    @property
    def dtype(self) -> DType:
        """The type of the sums."""
        return self.product.dtype

    @property
    def registers(self) -> Registers:
        """What registers hold of them."""
        return self.finish.registers

    @property
    def batch(self) -> tuple[tuple[str, Expr], ...]:
        """The axes of the grid that are no blocks."""
        numbers = {name for axis in self.blocks.axes for name, _ in axis.counters}
        return tuple((name, size) for name, size in self.program.grid if name not in numbers)

    @property
    def rows_first(self) -> Expr:
        """Whether all blocks of some rows come before those of the next ones."""
        names = [name for name, _ in self.program.grid]
        if names.index(self.rows.number) < names.index(self.columns.number):
            return constant(1)
        return self.rows.outermost

    @property
    def left(self) -> View | RunTable:
        """The left operand."""
        return self.product.left

    @property
    def right(self) -> View:
        """The right operand."""
        return self.product.right

    @property
    def is_packing(self) -> bool:
        """Whether blocks of the right operand are packed before tiles read them."""
        return self.right.buffer.scratch

    @property
    def is_transposing(self) -> bool:
        """Whether it lies contiguous along k, so that squares of it are transposed for that."""
        return any(isinstance(part, TransposeBlock) for part in self.steps.load)

    def with_blocks(self, blocks: Stage) -> TileProgram:
        """The program with another stage of blocks."""
        return replace(self.program, body=(blocks,))
