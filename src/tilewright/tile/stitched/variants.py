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
from tilewright.policy.cover import Bound
from tilewright.policy.space import BLOCK_DEPTH, BLOCK_ROWS
from tilewright.rewrite.precision import Narrower, never_narrowed
from tilewright.shape import Expr, Scope, ceil_div, constant, maximum, product, symbol, total
from tilewright.target.core_model import WIDE_LANES
from tilewright.tile.prices import near_prices
from tilewright.tile.products.contraction import lower_contraction
from tilewright.tile.products.frame import Blocking, RegisterTile
from tilewright.tile.products.tiles import kernel_tiles
from tilewright.tile.products.variants import contraction_variants, needed
from tilewright.tile.rows.row_layouts import layouts
from tilewright.tile.rows.rows import lower_rows
from tilewright.tile.stitched.row_product import RowBlocking, lower_row_product
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import (
    THREADS,
    LoweredStep,
    Once,
    Variant,
    between,
    made_anew,
    workspace,
)

# How far what is left of all variants may be from the best of them: every one is met in each call.
CLOSE = Bound(mean=0.0005, worst=0.003, most=12)


def row_product_variants(
    kernel: Kernel,
    scope: Scope,
    tile: RegisterTile,
    machine: Machine,
    policy: Policy,
    narrower: Narrower = never_narrowed,
    once: Once = made_anew,
) -> tuple[Variant, ...]:
    """The variants of a product with what is made of its rows.

    Where ``narrower`` lets the product have fewer bits, that is one more way to compute two steps.
    ``once`` keeps the variants of the product and of the rows for other kernels.
    """
    ways = RowProductVariants(kernel, scope, tile, machine, policy, once)
    apart = ways.apart(narrower)
    together = ways.together_as_chosen(apart)
    return needed((*apart, *together), scope, machine, CLOSE) if together else apart


class RowProductVariants:
    """The ways to compute one kernel."""

    def __init__(
        self, kernel: Kernel, scope: Scope, tile: RegisterTile, machine: Machine, policy: Policy,
        once: Once = made_anew,
    ) -> None:  # fmt: skip
        parts = row_product_of(kernel)
        assert parts is not None, f"{kernel.label}: its rows are not those of a product"
        self.kernel = kernel
        self.parts = parts
        self.scope = scope
        self.tile = kernel_tiles(
            tile,
            lambda size: lower_contraction(parts.first, Lowering(parts.first, scope), size),
            scope,
            machine,
        )
        self.machine = machine
        self.policy = policy
        self._once = once
        last = parts.last
        self.rows = once(last, "rows", lambda: lower_rows(last, self._fresh(last), machine))
        self._near_prices = {rows.name: near_prices(rows.steps, machine) for rows in self.rows}
        self._steps: dict[RowBlocking, LoweredStep | None] = {}

    def _fresh(self, part: Kernel) -> Callable[[], Lowering]:
        return lambda: Lowering(part, self.scope)

    # ------------------------------------------------------------ two steps

    def apart(self, narrower: Narrower = never_narrowed) -> tuple[Variant, ...]:
        """A variant for each way to compute the product and each way to compute the rows."""
        first, shown = self.parts.first, self.parts.shown
        spaces = {} if shown in self.kernel.outputs else {shown: workspace(shown)}

        def make() -> tuple[Variant, ...]:
            return contraction_variants(
                first, self._fresh(first), self.tile, self.machine, self.policy, narrower
            )

        products = self._once(first, "product", make)
        found: list[Variant] = []
        for made in products:
            for rows in self.rows:
                steps = tuple(between(step, spaces) for step in (*made.steps, *rows.steps))
                cost = apart_time(
                    (made.cost, self._near(rows, symbol(THREADS))), product(shown.shape),
                    shown.dtype.bytes, self.machine, symbol(THREADS),
                )  # fmt: skip
                found.append(Variant(f"{made.name}; {rows.name}", steps, cost))
        return tuple(found)

    # ------------------------------------------------------------ one step

    def together_as_chosen(self, apart: Sequence[Variant]) -> tuple[Variant, ...]:
        """Whole rows in blocks that the policy takes beside two steps."""
        usual = Blocking()
        ways = [way for way in (False, True) if self._lowered(RowBlocking(usual, way))]
        if not ways:
            return ()
        chosen = self.policy.choose(self._problem(apart, tuple(map(self._space, ways))))
        if not chosen.with_others:
            return ()
        return tuple(
            self.together(_blocking(block.sizes, turned), block.cost)
            for turned, blocks in zip(ways, chosen.kept, strict=True)
            for block in blocks
        )

    def _problem(self, others: Sequence[Variant], spaces: tuple[Space, ...]) -> Problem:
        costs = tuple(variant.cost for variant in others)
        return Problem(spaces, costs, self.scope, THREADS, self.machine.target)

    def together(self, block: RowBlocking, cost: Expr | None = None) -> Variant:
        """Whole rows in blocks of these sizes, with their price unless there is another cost."""
        step = self._lowered(block)
        assert step is not None, f"{self.kernel.label}: not one program"
        nest, alone = ProductNest.of(step.program), self._alone(block.turned)
        work = contraction_work(nest, self.machine) + alone // 1000
        step = replace(step, program=replace(step.program, work=work))
        if cost is None:
            cost = self._price(nest, Blocks.of(nest), block.turned)
        sizes = f"{block.blocking.rows} x {block.blocking.depth}"
        return Variant(f"whole rows, {sizes}{', turned' if block.turned else ''}", (step,), cost)

    def _alone(self, turned: bool) -> Expr:
        """Picoseconds of all sweeps on one thread."""
        wanted = "turned" if turned else "rows"
        (rows,) = (rows for rows in self.rows if rows.name == wanted)
        return self._near(rows, 1)

    def _near(self, rows: Variant, threads: Expr | int) -> Expr:
        """Picoseconds of rows that are in cache; what it takes to reach them is counted apart."""
        prices = self._near_prices[rows.name]
        return total(price.time(self.machine, threads) for price in prices)

    def _price(self, nest: ProductNest, blocks: Blocks, turned: bool) -> Expr:
        """Picoseconds; blocks of turned rows fill vectors, but for the last one."""
        alone = self._alone(turned)
        if turned:
            tall = maximum(ceil_div(nest.m, maximum(blocks.rows, 1)), 1)
            alone = alone // tall * ceil_div(tall, WIDE_LANES) * WIDE_LANES
        return together_time(nest, alone, blocks, self.machine, symbol(THREADS))

    def _lowered(self, block: RowBlocking) -> LoweredStep | None:
        """One step with these blocks, made once; None where it is impossible or no gain."""
        if block not in self._steps:
            self._steps[block] = self._step(block)
        return self._steps[block]

    def _step(self, block: RowBlocking) -> LoweredStep | None:
        if layouts(self.parts.last):
            return None  # so short that a vector takes elements of several rows as they lie
        if block.turned and all(rows.name != "turned" for rows in self.rows):
            return None
        return lower_row_product(self.parts, self.kernel.outputs, self.scope, self.tile, block)

    def _space(self, turned: bool) -> Space:
        """Blocks of rows and of the depth that the machine allows, with all columns."""
        step = self._lowered(RowBlocking(Blocking(), turned))
        assert step is not None, f"{self.kernel.label}: not one program"
        nest = ProductNest.of(step.program)
        element = "float64" if nest.dtype.bytes == 8 else "float32"
        registers, target = nest.registers, self.machine.target
        followed = self.machine.core.streams.followed
        sizes = product_blocks(target, element, registers.rows, registers.columns, False, followed)
        blocks = dict.fromkeys(
            BlockSizes(rows, registers.columns, depth) for rows, _, depth in sizes
        )
        general = Blocks(ceil_div(nest.m, BLOCK_ROWS), constant(1), ceil_div(nest.k, BLOCK_DEPTH))
        batch = product([size for _, size in nest.batch])
        extents = Extents(batch, nest.m, nest.n, nest.k, nest.dtype.bytes)
        return Space(self._price(nest, general, turned), tuple(blocks), extents)


def _blocking(sizes: BlockSizes, turned: bool) -> RowBlocking:
    return RowBlocking(Blocking(sizes.rows, None, sizes.depth), turned)
