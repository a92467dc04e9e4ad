"""From a planned kernel to its Triton kernels. Start with :func:`triton_kernels`."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.backend.gpu.attention import write_attention, write_small_attention
from tilewright.backend.gpu.elements import write_elements
from tilewright.backend.gpu.kernel import TritonKernel
from tilewright.backend.gpu.products import write_product
from tilewright.backend.gpu.rows import write_long_rows, write_rows, write_rows_in_tiles
from tilewright.backend.gpu.writer import Writer
from tilewright.ir.kernel import Kernel, KernelKind, Plan
from tilewright.ir.row_product import row_product_of
from tilewright.shape import Scope
from tilewright.tile.values.lowering import Lowering


def launched(plan: Plan) -> Iterator[Kernel]:
    """The kernels of a plan, those of a product and its rows as the two that they are made of."""
    for kernel in plan.kernels:
        parts = row_product_of(kernel) if kernel.kind is KernelKind.ROW_PRODUCT else None
        yield from (kernel,) if parts is None else (parts.first, parts.last)


def triton_kernels(kernel: Kernel, scope: Scope) -> tuple[TritonKernel, ...]:
    """The variants of a kernel, the one to prefer first.

    Each may have no launch at some sizes, or no code on GPUs with little shared memory.

    Raises UnsupportedError for kernels that the GPU has no code for yet: those with positions read
    from data, convolutions, windows, concatenations, scatters, recurrences and
    running sums.
    """

    def fresh() -> Lowering:
        return Lowering(kernel, scope)

    match kernel.kind:
        case KernelKind.LOOPS:
            return (write_elements(kernel, fresh()),)
        case KernelKind.ROWS:
            ways = write_rows, write_long_rows, write_rows_in_tiles
            return tuple(write(kernel, fresh()) for write in ways)
        case KernelKind.CONTRACTION:
            return (write_product(kernel, fresh()),)
        case KernelKind.ATTENTION:
            return write_attention(kernel, fresh()), write_small_attention(kernel, fresh())
        case _:
            raise Writer(fresh()).unsupported(f"its kind is {kernel.kind.value}")
