"""All variants to compute a contraction, with their modelled costs.

The same code at other block sizes is another variant, and so is a right operand that is packed
although it could be read in place. Of sizes that are all known when compiling, only variants stay
that are best for some number of threads. Start with :func:`contraction_variants`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.cost import Blocks, Machine, contraction_time, contraction_work
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Constant
from tilewright.ir.product_nest import ProductNest
from tilewright.shape import Expr, ceil_div, less_equal, select, symbol
from tilewright.tile.products.contraction import column_blocks, lower_contraction
from tilewright.tile.products.dots import WIDEST, dots_time, lower_dots
from tilewright.tile.products.few_rows import few_rows_variant
from tilewright.tile.products.frame import Blocking, RegisterTile
from tilewright.tile.products.split_depth import combine_time, longest_part, lower_split_depth
from tilewright.tile.products.swapped import lower_swapped
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import THREADS, LoweredStep, Variant

# Each is best at some shapes: whole rows of k while few rows share a panel, blocks of k that leave
# the left operand in cache where there are many columns, and small ones that make more tasks.
_WHOLE_DEPTH = 8192
PREPARED = (
    Blocking(96, 128, _WHOLE_DEPTH),
    Blocking(96, 128, 1024),
    Blocking(192, 512, 512),
    Blocking(48, 1024, 512),
    Blocking(48, 32, 1024),
)
IN_PLACE = (
    Blocking(96, 128, 1024),
    Blocking(48, 1024, 256),
    Blocking(48, 32, 1024),
    Blocking(48, 2048, 16),  # few rows of the operand at a time, each far along: from memory
)
PACKED = (
    Blocking(1020, 64, 512, packed=True),
    Blocking(288, 256, 384, packed=True),
    Blocking(96, 32, 512, packed=True),
)
# Rows of the source lie far apart: the fewer at a time, the better, unless they are short. Then
# several panels fit the first-level cache, and results are written along whole rows of them.
TRANSPOSED = (
    Blocking(1020, 16, 1024),
    Blocking(1020, 32, 512),
    Blocking(1020, 64, 512),
    Blocking(96, 32, 512),
)
FEW_COLUMNS = WIDEST  # up to which other roles or dot products may beat the register tile
DEEP = 4096  # from where on k may be cut
STREAMING = 6  # part of the time of swapped roles that waiting for weights adds
MOVE_CYCLES = 1.0  # to transpose an element of a result or of data
_THREAD_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)

Fresh = Callable[[], Lowering]


def contraction_variants(
    kernel: Kernel, fresh: Fresh, tile: RegisterTile, machine: Machine
) -> tuple[Variant, ...]:
    """The variants to compute a Contract with its epilogue; ``fresh`` makes a lowering for each."""
    first = ProductNest.of(lower_contraction(kernel, fresh(), tile, IN_PLACE[0]).program)
    if first.is_packing:
        blockings = TRANSPOSED if first.is_transposing else PACKED
    else:
        blockings = PREPARED if first.right.panel else (*IN_PLACE, *PACKED)

    def lower(blocking: Blocking) -> LoweredStep:
        return lower_contraction(kernel, fresh(), tile, blocking)

    blocked = blocked_variants(blockings, lower, machine)
    if first.product.narrow is not None:
        return best_somewhere(blocked)
    few = few_rows_variant(kernel, fresh, tile, machine)
    if few is not None:
        return best_somewhere((*blocked, few))
    return best_somewhere((*blocked, *_other_variants(kernel, fresh, tile, machine, first)))


def blocked_variants(
    blockings: Sequence[Blocking], lower: Callable[[Blocking], LoweredStep], machine: Machine
) -> tuple[Variant, ...]:
    """A variant for each blocking that ``lower`` makes other code for."""
    found: dict[tuple[Expr | bool, ...], Variant] = {}
    for blocking in blockings:
        variant = _variant(lower(blocking), machine, blocking)
        found.setdefault(_block_sizes(variant), variant)
    return tuple(found.values())


def _other_variants(
    kernel: Kernel, fresh: Fresh, tile: RegisterTile, machine: Machine, plain: ProductNest
) -> list[Variant]:
    """Variants with code of their own, where the sizes known when compiling say they may pay."""
    found: list[Variant] = []
    threads = symbol(THREADS)
    left = kernel.seed.inputs[0]
    few = plain.n.is_constant and plain.n.value <= FEW_COLUMNS
    swapped = None
    if few or isinstance(left.primitive, Constant):
        swapped = lower_swapped(kernel, fresh, tile)
    if swapped is not None:
        (step,) = swapped
        cost = contraction_time(ProductNest.of(step.program), machine, threads)
        cost = cost + plain.m * plain.n * machine.picoseconds(MOVE_CYCLES)
        # Panels of weights that few rows share stream by, and hide behind little work.
        cost = cost + select(less_equal(plain.n, FEW_COLUMNS), 0, cost // STREAMING)
        found.append(Variant("swapped", swapped, cost))
    dots = lower_dots(kernel, fresh, tile) if few or plain.is_packing else None
    if dots is not None:
        found.append(Variant("dots", dots, dots_time(kernel, tile, machine, threads)))
    split = lower_split_depth(kernel, fresh, tile) if few and _may_be_deep(plain.k) else None
    if split is not None:
        deepest = ProductNest.of(longest_part(split[0].program))
        cost = contraction_time(deepest, machine, threads)
        found.append(Variant("split depth", split, cost + combine_time(kernel, machine)))
    return found


def _may_be_deep(depth: Expr) -> bool:
    return not depth.is_constant or depth.value >= DEEP


def _variant(step: LoweredStep, machine: Machine, blocking: Blocking) -> Variant:
    nest = ProductNest.of(step.program)
    blocks = _blocks(nest, blocking)
    cost = contraction_time(nest, machine, symbol(THREADS), blocks)
    work = contraction_work(nest, machine)
    name = f"{blocking.rows} x {blocking.columns} x {blocking.depth}"
    named = f"{name}, packed" if nest.is_packing else name
    return Variant(named, (replace(step, program=replace(step.program, work=work)),), cost)


def _block_sizes(variant: Variant) -> tuple[Expr | bool, ...]:
    """What tells variants of the same kernel apart: small sizes make some of them the same."""
    nest = ProductNest.of(variant.steps[0].program)
    return (*(axis.block for axis in (nest.rows, nest.columns, nest.depth)), nest.is_packing)


def _blocks(nest: ProductNest, blocking: Blocking) -> Blocks:
    """The numbers of blocks; shorter expressions than the program's balanced sizes give."""
    assert blocking.rows and blocking.columns and blocking.depth
    return Blocks(
        ceil_div(nest.m, blocking.rows),
        column_blocks(nest.n, blocking.columns, nest.registers.columns),
        ceil_div(nest.k, blocking.depth),
    )


def best_somewhere(variants: Sequence[Variant]) -> tuple[Variant, ...]:
    """All variants, or of those whose sizes are known the ones that are best for some threads."""
    if any(name != THREADS for variant in variants for name in variant.cost.free_symbols):
        return tuple(variants)
    costs = [[variant.cost.evaluate({THREADS: t}) for variant in variants] for t in _THREAD_COUNTS]
    winners = {row.index(min(row)) for row in costs}
    return tuple(variant for number, variant in enumerate(variants) if number in winners)
