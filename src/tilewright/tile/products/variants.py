"""All variants to compute a contraction, with their modelled costs.

The same code at other block sizes is another variant, and so is a right operand that is packed
although it could be read in place: a policy takes them from all that the machine allows, by their
prices over the whole range of sizes. Of sizes that are all known when compiling, only variants stay
that are best for some number of threads. Start with :func:`contraction_variants`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilewright.cost import Blocks, Machine, contraction_time, contraction_work
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Constant
from tilewright.ir.product_nest import ProductNest
from tilewright.policy import BlockSizes, Extents, Kept, Policy, Problem, Space
from tilewright.policy.candidates import product_blocks
from tilewright.policy.cover import Bound, cover
from tilewright.policy.prices import other_prices, samples_of
from tilewright.policy.space import BLOCK_COLUMNS, BLOCK_DEPTH, BLOCK_ROWS
from tilewright.rewrite.precision import Narrower, never_narrowed
from tilewright.shape import (
    Expr,
    Scope,
    ceil_div,
    evaluate_all,
    less_equal,
    product,
    select,
    symbol,
)
from tilewright.tile.narrow import narrow_kernel
from tilewright.tile.prices import shared_out
from tilewright.tile.products.block_sizes import column_blocks, least_rows, row_blocks
from tilewright.tile.products.contraction import lower_contraction
from tilewright.tile.products.dots import WIDEST, dots_time, lower_dots
from tilewright.tile.products.few_rows import few_rows_variant
from tilewright.tile.products.frame import Blocking, RegisterTile
from tilewright.tile.products.split_depth import combine_time, longest_part, lower_split_depth
from tilewright.tile.products.swapped import lower_swapped
from tilewright.tile.products.tiles import kernel_tiles
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import THREADS, LoweredStep, Variant

FEW_COLUMNS = WIDEST  # up to which other roles or dot products may beat the register tile
DEEP = 4096  # from where on k may be cut
# At which a variant has to win to be kept: each at most one and a half times the one before.
_THREAD_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)

Fresh = Callable[[], Lowering]
Steps = tuple[LoweredStep, ...]


def contraction_variants(
    kernel: Kernel,
    fresh: Fresh,
    tile: RegisterTile,
    machine: Machine,
    policy: Policy,
    narrower: Narrower = never_narrowed,
) -> tuple[Variant, ...]:
    """The variants to compute a Contract with its epilogue; ``fresh`` makes a lowering for each.

    ``narrower`` says which products may be computed in fewer bits as well.
    """
    few = few_rows_variant(kernel, fresh, tile, machine)
    usual = tile
    if few is None:
        tile = kernel_tiles(
            tile, lambda size: lower_contraction(kernel, fresh(), size), fresh().scope, machine
        )

    def lower(blocking: Blocking) -> Steps:
        return (lower_contraction(kernel, fresh(), tile, blocking),)

    ways, nest = plain_ways(lower)
    others: list[Variant] = []
    if few is not None:
        others = [few]
    elif nest.product.narrow is None:
        swapped = _swapped(kernel, fresh, tile, machine, nest)
        ways = ways if swapped is None else (*ways, swapped)
        others = _other_variants(kernel, fresh, tile, machine, nest)
    scope = fresh().scope
    ways = (*ways, *_narrow_ways(kernel, scope, usual, machine, narrower))
    choice = Choice(machine, policy, scope)
    return best_somewhere(choice.blocked_variants(ways, others))


@dataclass(frozen=True)
class Way:
    """One way to compute a product at any block sizes; the last step is the product.

    ``priced`` adds to the price of the product what else the way costs.
    """

    name: str
    lower: Callable[[Blocking], Steps]
    packed: bool = False
    priced: Callable[[Expr], Expr] = lambda price: price

    def nest(self) -> ProductNest:
        """The product, at the usual block sizes."""
        return ProductNest.of(self.lower(Blocking(packed=self.packed))[-1].program)


def plain_ways(lower: Callable[[Blocking], Steps]) -> tuple[tuple[Way, ...], ProductNest]:
    """The right operand as it lies, and packed where it need not be; the nest of the first."""
    way = Way("", lower)
    nest = way.nest()
    if nest.is_packing:
        return (replace(way, name=", packed", packed=True),), nest
    if nest.right.panel:
        return (way,), nest
    return (way, Way(", packed", lower, packed=True)), nest


def _narrow_ways(
    kernel: Kernel, scope: Scope, tile: RegisterTile, machine: Machine, narrower: Narrower
) -> tuple[Way, ...]:
    """The same product over narrow operands, for each way to convert its data first."""
    narrow = narrow_kernel(kernel, narrower)
    if narrow is None:
        return ()

    def way(prepared: Variant) -> Way:
        def lower(blocking: Blocking) -> Steps:
            made = lower_contraction(
                narrow.product, Lowering(narrow.product, scope), tile, blocking
            )
            return (*prepared.steps, narrow.placed(made))

        return Way(f", {prepared.name}", lower, priced=lambda price: price + prepared.cost)

    return tuple(way(prepared) for prepared in narrow.prepared(scope, machine))


@dataclass(frozen=True)
class Choice:
    """What chooses block sizes, for which machine, among which sizes."""

    machine: Machine
    policy: Policy
    scope: Scope

    def blocked_variants(
        self, ways: Sequence[Way], others: Sequence[Variant] = ()
    ) -> tuple[Variant, ...]:
        """A variant for each of the block sizes that the policy takes, then ``others``."""
        spaces = tuple(self._space(way) for way in ways)
        prices, target = tuple(v.cost for v in others), self.machine.target
        chosen = self.policy.choose(Problem(spaces, prices, self.scope, THREADS, target))
        made = tuple(
            self._variant(way, kept)
            for way, all_kept in zip(ways, chosen.kept, strict=True)
            for kept in all_kept
        )
        return (*made, *others) if chosen.with_others else made

    def _space(self, way: Way) -> Space:
        """The block sizes that the machine allows; of those that come to the same, one."""
        nest = way.nest()
        element = "float64" if nest.dtype.bytes == 8 else "float32"
        tile, target = nest.registers, self.machine.target
        found: dict[tuple[int, ...], BlockSizes] = {}
        extents = (nest.m, nest.n - tile.columns // 2, nest.k)
        followed = self.machine.core.streams.followed
        for sizes in product_blocks(target, element, tile.rows, tile.columns, way.packed, followed):
            # The numbers of blocks, as `_blocks` has them, along axes whose size is known.
            key = tuple(
                max(-(-extent.value // size), 1) if extent.is_constant else size
                for extent, size in zip(extents, sizes, strict=True)
            )
            found.setdefault(key, BlockSizes(*sizes))
        general = _blocks(nest, BLOCK_ROWS, BLOCK_COLUMNS, BLOCK_DEPTH)
        price = contraction_time(nest, self.machine, symbol(THREADS), general)
        batch = product([size for _, size in nest.batch])
        whole = Extents(batch, nest.m, nest.n, nest.k, nest.dtype.bytes)
        return Space(way.priced(price), tuple(found.values()), whole)

    def _variant(self, way: Way, kept: Kept) -> Variant:
        sizes = kept.sizes
        blocking = Blocking(sizes.rows, sizes.columns, sizes.depth, way.packed)
        *before, last = way.lower(blocking)
        work = contraction_work(ProductNest.of(last.program), self.machine)
        last = shared_out(last, work)
        name = f"{sizes.rows} x {sizes.columns} x {sizes.depth}{way.name}"
        return Variant(name, (*before, last), kept.cost)


def _blocks(nest: ProductNest, rows: Expr, columns: Expr, depth: Expr) -> Blocks:
    """The numbers of blocks; shorter expressions than the program's balanced sizes give."""
    each = product([size for _, size in nest.batch])
    least = least_rows(nest.registers.rows, nest.is_packing)
    down = row_blocks(nest.m, rows, least, each, nest.rows_first)
    across = column_blocks(nest.n, columns, nest.registers.columns, down * each)
    return Blocks(down, across, ceil_div(nest.k, depth))


def _swapped(
    kernel: Kernel, fresh: Fresh, tile: RegisterTile, machine: Machine, plain: ProductNest
) -> Way | None:
    """Exchanged roles, where few columns or a constant left operand say that they may pay."""
    left = kernel.seed.inputs[0]
    few = plain.n.is_constant and plain.n.value <= FEW_COLUMNS
    if not few and not isinstance(left.primitive, Constant):
        return None
    if lower_swapped(kernel, fresh, tile) is None:
        return None

    def lower(blocking: Blocking) -> Steps:
        steps = lower_swapped(kernel, fresh, tile, blocking)
        assert steps is not None, f"{kernel.label}: the roles could be exchanged before"
        return steps

    def priced(price: Expr) -> Expr:
        # Panels of weights that few rows share stream by, and hide behind little work.
        return price + select(
            less_equal(plain.n, FEW_COLUMNS), 0, price // machine.core.streams.swapped_part
        )

    return Way(", swapped", lower, priced=priced)


def _other_variants(
    kernel: Kernel, fresh: Fresh, tile: RegisterTile, machine: Machine, plain: ProductNest
) -> list[Variant]:
    """Variants with code of their own, where the sizes known when compiling say they may pay."""
    found: list[Variant] = []
    threads = symbol(THREADS)
    few = plain.n.is_constant and plain.n.value <= FEW_COLUMNS
    dots = lower_dots(kernel, fresh, tile) if few or plain.is_packing else None
    if dots is not None:
        (step,), (cost, alone) = dots, dots_time(kernel, tile, machine, threads)
        step = shared_out(step, alone // 1000 + 1)
        found.append(Variant("dots", (step,), cost))
    split = lower_split_depth(kernel, fresh, tile) if few and _may_be_deep(plain.k) else None
    if split is not None:
        deepest = ProductNest.of(longest_part(split[0].program))
        cost = contraction_time(deepest, machine, threads)
        found.append(Variant("split depth", split, cost + combine_time(kernel, machine)))
    return found


def _may_be_deep(depth: Expr) -> bool:
    return not depth.is_constant or depth.value >= DEEP


def best_somewhere(variants: Sequence[Variant]) -> tuple[Variant, ...]:
    """All variants, or of those whose sizes are known the ones that are best for some threads."""
    if any(name != THREADS for variant in variants for name in variant.cost.free_symbols):
        return tuple(variants)
    costs = [evaluate_all((v.cost for v in variants), {THREADS: t}) for t in _THREAD_COUNTS]
    winners = {row.index(min(row)) for row in costs}
    return tuple(variant for number, variant in enumerate(variants) if number in winners)


def needed(
    variants: Sequence[Variant], scope: Scope, machine: Machine, close: Bound
) -> tuple[Variant, ...]:
    """The fewest that are as ``close`` to the best of all, by their prices, at all sizes."""
    costs = tuple(variant.cost for variant in variants)
    problem = Problem((), costs, scope, THREADS, machine.target)
    prices = other_prices(problem, samples_of(problem))
    return tuple(variants[number] for number in cover(prices, prices[:0], close))
