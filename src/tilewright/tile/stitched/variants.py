"""Variants to compute a product and what is made of its rows, with their modelled costs.

Either the two are steps of their own, each as if it was a kernel by itself, or they are one program
whose tasks have whole rows. The latter has fewer tasks and other blocks, and pays where the rows
would not stay in cache from one step to the next, or where threads meet for little work: the prices
of both say where that is. Start with :func:`row_product_variants`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.cost import Blocks, Machine, apart_time, contraction_work, together_time
from tilewright.ir.kernel import Kernel
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.row_product import row_product_of
from tilewright.policy import BlockSizes, Extents, Policy, Problem, Space
from tilewright.policy.candidates import product_blocks
from tilewright.policy.prices import other_prices, samples_of
from tilewright.policy.space import BLOCK_DEPTH, BLOCK_ROWS
from tilewright.shape import Expr, Scope, ceil_div, constant, product, symbol
from tilewright.tile.products.frame import Blocking, RegisterTile
from tilewright.tile.products.variants import contraction_variants
from tilewright.tile.rows.rows import lower_rows
from tilewright.tile.stitched.row_product import lower_row_product
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import THREADS, LoweredStep, Variant, between, workspace
from tilewright.tile.work import UNITS_PER_NANOSECOND, VECTOR_UNITS

FELT = 0.005  # a part of the time below which a variant is not worth its code


def row_product_variants(
    kernel: Kernel, scope: Scope, tile: RegisterTile, machine: Machine, policy: Policy
) -> tuple[Variant, ...]:
    """The variants of a product with what is made of its rows."""
    ways = RowProductVariants(kernel, scope, tile, machine, policy)
    apart = ways.apart()
    return (*apart, *ways.together_where_it_pays(apart))


class RowProductVariants:
    """The ways to compute one kernel."""

    def __init__(
        self, kernel: Kernel, scope: Scope, tile: RegisterTile, machine: Machine, policy: Policy
    ) -> None:
        parts = row_product_of(kernel)
        assert parts is not None, f"{kernel.label}: its rows are not those of a product"
        self.kernel = kernel
        self.parts = parts
        self.scope = scope
        self.tile = tile
        self.machine = machine
        self.policy = policy
        # Eight units of work are a vector instruction, of which a cycle takes four.
        lanes = max(1, machine.target.vector_bytes // parts.shown.dtype.bytes)
        unit = max(1, machine.picoseconds(UNITS_PER_NANOSECOND / (4 * VECTOR_UNITS * lanes)))
        self.rows = lower_rows(parts.last, self._fresh(parts.last), machine, unit)

    def _fresh(self, part: Kernel) -> Callable[[], Lowering]:
        return lambda: Lowering(part, self.scope)

    # ------------------------------------------------------------ two steps

    def apart(self) -> tuple[Variant, ...]:
        """A variant for each way to compute the product and each way to compute the rows."""
        first, shown = self.parts.first, self.parts.shown
        spaces = {} if shown in self.kernel.outputs else {shown: workspace(shown)}
        products = contraction_variants(
            first, self._fresh(first), self.tile, self.machine, self.policy
        )
        found: list[Variant] = []
        for made in products:
            for rows in self.rows:
                steps = tuple(between(step, spaces) for step in (*made.steps, *rows.steps))
                cost = apart_time(
                    (made.cost, rows.cost), product(shown.shape), shown.dtype.bytes, self.machine,
                    symbol(THREADS),
                )  # fmt: skip
                found.append(Variant(f"{made.name}; {rows.name}", steps, cost))
        return tuple(found)

    # ------------------------------------------------------------ one step

    def together_where_it_pays(self, apart: Sequence[Variant]) -> tuple[Variant, ...]:
        """Whole rows in blocks that the policy takes; none if two steps are as fast everywhere."""
        usual = self._lowered(Blocking())
        if usual is None:
            return ()
        others = tuple(variant.cost for variant in apart)
        space, target = self._space(ProductNest.of(usual.program)), self.machine.target
        problem = Problem((space,), others, self.scope, THREADS, target)
        chosen = self.policy.choose(problem)
        kept = [block for blocks in chosen.kept for block in blocks]
        if not chosen.with_others or not _pays(problem, [block.cost for block in kept]):
            return ()
        found = [self.together(Blocking(k.sizes.rows, None, k.sizes.depth)) for k in kept]
        return tuple(replace(v, cost=k.cost) for v, k in zip(found, kept, strict=True))

    def together(self, blocking: Blocking) -> Variant:
        """Whole rows in blocks of these sizes."""
        step = self._lowered(blocking)
        assert step is not None, f"{self.kernel.label}: not one program"
        nest = ProductNest.of(step.program)
        work = contraction_work(nest, self.machine) + self._alone // 1000
        step = replace(step, program=replace(step.program, work=work))
        cost = together_time(nest, self._alone, Blocks.of(nest), self.machine, symbol(THREADS))
        return Variant(f"whole rows, {blocking.rows} x {blocking.depth}", (step,), cost)

    @property
    def _alone(self) -> Expr:
        """Picoseconds of all sweeps on one thread."""
        return self.rows[0].cost.substitute({THREADS: constant(1)})

    def _lowered(self, blocking: Blocking) -> LoweredStep | None:
        return lower_row_product(self.parts, self.kernel.outputs, self.scope, self.tile, blocking)

    def _space(self, nest: ProductNest) -> Space:
        """Blocks of rows and of the depth that the machine allows, with all columns."""
        element = "float64" if nest.dtype.bytes == 8 else "float32"
        registers, target = nest.registers, self.machine.target
        sizes = product_blocks(target, element, registers.rows, registers.columns, False)
        blocks = dict.fromkeys(BlockSizes(rows, 0, depth) for rows, _, depth in sizes)
        general = Blocks(ceil_div(nest.m, BLOCK_ROWS), constant(1), ceil_div(nest.k, BLOCK_DEPTH))
        price = together_time(nest, self._alone, general, self.machine, symbol(THREADS))
        batch = product([size for _, size in nest.batch])
        extents = Extents(batch, nest.m, nest.n, nest.k, nest.dtype.bytes)
        return Space(price, tuple(blocks), extents)


def _pays(problem: Problem, costs: Sequence[Expr]) -> bool:
    """Whether one step is felt to be faster than two at some sizes."""
    samples = samples_of(problem)
    one = other_prices(replace(problem, others=tuple(costs)), samples).min(axis=0)
    two = other_prices(problem, samples).min(axis=0)
    return bool((one < (1 - FELT) * two).any())
