"""From a planned kernel to its tile program. Start with :func:`lower_kernel`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel, KernelKind
from tilewright.ir.primitives import Convolve
from tilewright.ir.tile import TileProgram
from tilewright.shape import Scope
from tilewright.tile.contraction import PackedConstant, RegisterTile, lower_contraction
from tilewright.tile.convolution import lower_convolution
from tilewright.tile.loops import lower_concat, lower_loops, lower_scan, lower_scatter
from tilewright.tile.lowering import Lowering
from tilewright.tile.rows import lower_rows
from tilewright.tile.windows import lower_windows


@dataclass(frozen=True)
class LoweredKernel:
    """A tile program and what its buffers are: operands read, then the kernel's outputs."""

    kernel: Kernel
    program: TileProgram
    reads: tuple[Node | PackedConstant, ...]


def lower_kernel(
    kernel: Kernel, materialised: Collection[Node], scope: Scope, tile: RegisterTile
) -> LoweredKernel:
    """The tile program of any kernel that is not run by the reference."""
    lowering = Lowering(materialised, scope, kernel.label)
    if kernel.kind is KernelKind.CONTRACTION:
        lower = lower_contraction
        if isinstance(kernel.backbone.primitive, Convolve):
            lower = lower_convolution
        program, reads = lower(kernel, lowering, tile)
        return LoweredKernel(kernel, program, tuple(reads))
    by_kind = {
        KernelKind.LOOPS: lower_loops,
        KernelKind.ROWS: lower_rows,
        KernelKind.WINDOW: lower_windows,
        KernelKind.CONCAT: lower_concat,
        KernelKind.SCATTER: lower_scatter,
        KernelKind.SCAN: lower_scan,
    }
    loops = by_kind[kernel.kind](kernel, lowering)
    return LoweredKernel(kernel, loops, tuple(lowering.buffers))
