"""From a planned kernel to its tile programs. Start with :func:`lower_kernel`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.cost import Machine
from tilewright.ir.kernel import Kernel, KernelKind
from tilewright.ir.primitives import Convolve, Reduce
from tilewright.ir.tile import TileProgram
from tilewright.policy import POLICIES, Policy
from tilewright.rewrite.precision import Narrower, never_narrowed
from tilewright.shape import Scope, constant
from tilewright.target import Target, preset
from tilewright.tile.attention.variants import attention_variants
from tilewright.tile.convolutions.convolution import lower_convolution
from tilewright.tile.library import with_libraries
from tilewright.tile.loops.joined import lower_concat
from tilewright.tile.loops.loops import (
    lower_across_rows,
    lower_in_pieces,
    lower_in_rows,
    lower_loops,
    lower_other_order,
)
from tilewright.tile.loops.recurrence import lower_recurrence
from tilewright.tile.loops.scan import lower_scan
from tilewright.tile.loops.scatter import lower_scatter
from tilewright.tile.passes.borders import with_borders
from tilewright.tile.passes.byte_tables import with_byte_tables
from tilewright.tile.passes.checks import with_checks_first
from tilewright.tile.passes.gather_rows import with_gather_rows
from tilewright.tile.passes.lookahead import with_lookahead
from tilewright.tile.passes.masks import with_masks
from tilewright.tile.passes.repeats import with_repeats
from tilewright.tile.passes.rows_together import with_rows_together
from tilewright.tile.passes.streams import with_streams
from tilewright.tile.passes.tables import with_tables
from tilewright.tile.prices import priced, with_costs
from tilewright.tile.products.frame import RegisterTile
from tilewright.tile.products.variants import best_somewhere, contraction_variants
from tilewright.tile.rows.columns import lower_columns
from tilewright.tile.rows.rows import lower_rows
from tilewright.tile.stitched.variants import row_product_variants
from tilewright.tile.stitched.window_variants import window_product_variants
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import Accuracy, LoweredStep, Once, Variant, made_anew
from tilewright.tile.windows.kept_axes import lower_kept_axes
from tilewright.tile.windows.many_groups import channel_tiles, is_surely_best
from tilewright.tile.windows.turned_windows import turned_windows
from tilewright.tile.windows.windows import lower_windows

_LOOPS: dict[KernelKind, Callable[[Kernel, Lowering], TileProgram]] = {
    KernelKind.LOOPS: lower_loops,
    KernelKind.CONCAT: lower_concat,
    KernelKind.SCAN: lower_scan,
}

_Way = Callable[[Kernel, Lowering], TileProgram | None]
# Blocks along another axis than the last one, few columns as rows, many short rows across, and rows
# that are searched in pieces, where sizes decide between them.
_OTHERS: dict[str, _Way] = {
    "other order": lower_other_order,
    "columns": lower_in_rows,
    "turned": lower_across_rows,
    "pieces": lower_in_pieces,
}


@dataclass(frozen=True)
class LoweredKernel:
    """A kernel and the variants to compute it, among which the runtime chooses for every shape."""

    kernel: Kernel
    variants: tuple[Variant, ...]


def lower_kernel(
    kernel: Kernel,
    scope: Scope,
    tile: RegisterTile,
    accuracy: Accuracy = Accuracy.STANDARD,
    machine: Machine | None = None,
    policy: Policy = POLICIES["auto"],
    narrower: Narrower = never_narrowed,
    once: Once = made_anew,
) -> LoweredKernel:
    """The variants of any kernel that is not run by the reference; at least one.

    Their costs are those of ``machine``, any x86-64 processor unless it is given; ``policy``
    chooses the block sizes of products, ``narrower`` says which of them may be computed in fewer
    bits, and ``once`` keeps parts of kernels for others. Kernels of libraries that are registered
    are among the variants.
    """
    machine = machine or Machine(preset("x86-64"))
    made = _generated(kernel, scope, tile, accuracy, machine, policy, narrower, once)
    variants = with_lookahead(made.variants, machine.core.loops.ahead)
    return replace(made, variants=with_libraries(kernel, variants, scope, machine))


def _generated(
    kernel: Kernel, scope: Scope, tile: RegisterTile, accuracy: Accuracy, machine: Machine,
    policy: Policy, narrower: Narrower, once: Once,
) -> LoweredKernel:  # fmt: skip

    def fresh() -> Lowering:
        return Lowering(kernel, scope)

    if kernel.kind is KernelKind.ATTENTION:
        return LoweredKernel(kernel, attention_variants(kernel, scope, tile, machine, once))
    if kernel.kind is KernelKind.ROW_PRODUCT:
        return LoweredKernel(
            kernel, row_product_variants(kernel, scope, tile, machine, policy, narrower, once)
        )
    if kernel.kind is KernelKind.WINDOW_PRODUCT:

        def alone(part: Kernel) -> tuple[Variant, ...]:
            made = _generated(part, scope, tile, accuracy, machine, policy, narrower, once)
            return with_costs(made.variants, machine)

        return LoweredKernel(
            kernel, window_product_variants(kernel, scope, tile, machine, alone, once)
        )
    if kernel.kind is KernelKind.CONTRACTION:
        if isinstance(kernel.seed.primitive, Convolve):
            tiles = _tiles(kernel, fresh, machine)
            if tiles and is_surely_best(kernel, machine.target):
                return LoweredKernel(kernel, tiles)
            products = lower_convolution(kernel, fresh, tile, accuracy, machine, policy, narrower)
            others = (*products, *priced(tiles, machine))
            return LoweredKernel(kernel, best_somewhere(others) if tiles else products)
        return LoweredKernel(
            kernel, contraction_variants(kernel, fresh, tile, machine, policy, narrower)
        )
    if kernel.kind is KernelKind.ROWS:
        return LoweredKernel(kernel, lower_rows(kernel, fresh, machine))
    if kernel.kind is KernelKind.WINDOW and isinstance(kernel.seed.primitive, Reduce):
        return LoweredKernel(kernel, lower_columns(kernel, fresh, machine))
    if kernel.kind is KernelKind.SCATTER:
        return LoweredKernel(kernel, lower_scatter(kernel, fresh, machine))
    if kernel.kind is KernelKind.RECURRENCE:
        return LoweredKernel(kernel, lower_recurrence(kernel, fresh, tile, machine))
    variants = _loops(kernel, fresh, machine)
    # Where nothing is chosen, an estimate of the work is enough for the number of threads, and is
    # evaluated sooner.
    return LoweredKernel(kernel, priced(variants, machine) if len(variants) > 1 else variants)


def _loops(kernel: Kernel, fresh: Callable[[], Lowering], machine: Machine) -> tuple[Variant, ...]:
    if kernel.kind is KernelKind.WINDOW:
        return _windows(kernel, fresh, machine)
    lowering = fresh()
    program = _LOOPS[kernel.kind](kernel, lowering)
    steps = with_byte_tables(_steps(program, lowering, kernel, machine.target), machine)
    if kernel.kind in (KernelKind.LOOPS, KernelKind.CONCAT):
        steps = with_masks(with_streams(kernel, steps, lowering.scope, machine.target), machine)
    plain = Variant("loops", steps, constant(0))
    if kernel.kind is not KernelKind.LOOPS:
        return (plain,)
    others = [_other(name, way, kernel, fresh(), machine) for name, way in _OTHERS.items()]
    return (plain, *(variant for found in others for variant in found))


def _other(
    name: str, way: _Way, kernel: Kernel, lowering: Lowering, machine: Machine
) -> tuple[Variant, ...]:
    """A variant by another way through the same nest, where there is one."""
    program = way(kernel, lowering)
    if program is None:
        return ()
    steps = with_byte_tables(_steps(program, lowering, kernel, machine.target), machine)
    return (Variant(name, with_masks(steps, machine), constant(0)),)


def _steps(
    program: TileProgram, lowering: Lowering, kernel: Kernel, target: Target
) -> tuple[LoweredStep, ...]:
    program = with_repeats(program, lowering)
    program = with_borders(program, lowering)
    *first, last = with_tables(program, lowering, kernel.outputs)
    last = with_rows_together(with_gather_rows(last, lowering), lowering, target)
    return (*first, with_checks_first(last, lowering))


def _windows(
    kernel: Kernel, fresh: Callable[[], Lowering], machine: Machine
) -> tuple[Variant, ...]:
    """Vectors along rows or channels, across small images, and register tiles of many taps."""
    tiles = _tiles(kernel, fresh, machine)
    if tiles and is_surely_best(kernel, machine.target):
        return tiles
    joined = lower_kept_axes(kernel, fresh)
    if joined is not None:
        own = _variant("loops", *joined, kernel, machine.target)
        return (replace(own, steps=with_masks(own.steps, machine)),)
    lowering = fresh()
    plain = lower_windows(kernel, lowering)
    found = [_variant("loops", plain, lowering, kernel, machine.target)]
    lowering = fresh()
    turned = turned_windows(kernel, lowering, plain)
    if turned is not None:
        found.append(_variant("turned", turned, lowering, kernel, machine.target))
    return (*found, *tiles)


def _tiles(kernel: Kernel, fresh: Callable[[], Lowering], machine: Machine) -> tuple[Variant, ...]:
    """Register tiles of convolutions in many groups, where they fit."""
    lowering = fresh()
    program = channel_tiles(kernel, lowering, machine.target)
    return (
        () if program is None else (_variant("tiles", program, lowering, kernel, machine.target),)
    )


def _variant(
    name: str, program: TileProgram, lowering: Lowering, kernel: Kernel, target: Target
) -> Variant:
    return Variant(name, _steps(program, lowering, kernel, target), constant(0))
