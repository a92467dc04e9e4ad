"""Kernels of other libraries as variants of those that are generated here.

After Korch (section 4), whose candidates include kernels of vendors: a registered kernel says for
which kernels of a plan it may stand, what it is given and what it takes, and becomes one more
variant of these. So the planner counts with it, and the runtime takes it at the shapes where its
price is the least. Start with :func:`register`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.cost import Machine
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Contract
from tilewright.ir.tile import TileBuffer, TileProgram
from tilewright.runtime.library_kernels import FAILED, PREFIX, LibraryFunction, provide, withdraw
from tilewright.shape import Expr, Scope, as_expr, product
from tilewright.support.errors import InputError
from tilewright.tile.prices import with_costs
from tilewright.tile.variants import THREADS, ExternalFunction, LoweredStep, Variant


@dataclass(frozen=True)
class LibraryCall:
    """How a library's kernel computes a kernel of a plan.

    It is given ``sizes``, then the tensors ``operands``, which lie in memory in row-major order,
    and the kernel's outputs to write. ``tasks`` are shared out among threads; each call is for
    some of them. ``price`` is the time in picoseconds of all, with ``THREADS`` threads.
    """

    operands: tuple[Node, ...]
    sizes: tuple[Expr, ...]
    price: Expr
    tasks: Expr | int = 1


@dataclass(frozen=True)
class LibraryKernel:
    """A kernel of another library.

    ``fits`` is asked for every kernel of a plan, with what is known of its sizes and the machine,
    and gives None where the library's cannot stand for it. ``function`` is the address of a C
    function or a Python one, see :func:`tilewright.runtime.library_kernels.provide`; it is given
    ``sizes`` numbers and ``tensors`` addresses.
    """

    name: str
    fits: Callable[[Kernel, Scope, Machine], LibraryCall | None]
    function: LibraryFunction | int
    sizes: int
    tensors: int


@dataclass(frozen=True)
class MatrixProduct:
    """A kernel that is a product of two matrices in memory and nothing else.

    ``left`` is [rows, depth] and ``right`` [depth, columns], both in row-major order, as is the
    result; axes before the last one of ``left`` count as rows.
    """

    left: Node
    right: Node
    rows: Expr
    columns: Expr
    depth: Expr

    @staticmethod
    def of(kernel: Kernel) -> MatrixProduct | None:
        """The product that a kernel is; None if it is more or something else."""
        (*others, output) = kernel.outputs
        primitive = output.primitive
        if others or kernel.body != (output,) or not isinstance(primitive, Contract):
            return None
        left, right = output.inputs
        if primitive.batch or right.rank != 2 or primitive.summed != ((left.rank - 1, 0),):
            return None
        if output.dtype is not DType.FLOAT32 or left.dtype is not output.dtype:
            return None
        rows = product(left.shape[:-1])
        return MatrixProduct(left, right, rows, right.shape[1], right.shape[0])


_registered: dict[str, LibraryKernel] = {}


def register(kernel: LibraryKernel) -> None:
    """Count with a library's kernel in every compilation from now on, and when loading artifacts.

    Raises InputError where another one has its name.
    """
    if kernel.name in _registered:
        raise InputError(
            f"There is a library kernel {kernel.name!r} already",
            hint="Give it another name, or unregister that one first",
        )
    provide(kernel.name, kernel.function, kernel.sizes, kernel.tensors)
    _registered[kernel.name] = kernel


def unregister(name: str) -> None:
    """Do not count with a kernel any more, and do not load artifacts that call it."""
    _registered.pop(name, None)
    withdraw(name)


def with_libraries(
    kernel: Kernel, variants: tuple[Variant, ...], scope: Scope, machine: Machine
) -> tuple[Variant, ...]:
    """The variants of a kernel with those of the libraries that are registered."""
    found = [
        _variant(library, call, kernel)
        for library in _registered.values()
        if (call := library.fits(kernel, scope, machine)) is not None
    ]
    return (*with_costs(variants, machine), *found) if found else variants


def is_computed(node: Node, scope: Scope, machine: Machine) -> bool:
    """Whether a library has a kernel for one node alone, whose operands are in memory."""
    alone = Kernel((node,), (node,), tuple(dict.fromkeys(node.inputs)), (node,), "alone")
    return any(library.fits(alone, scope, machine) for library in _registered.values())


def _variant(library: LibraryKernel, call: LibraryCall, kernel: Kernel) -> Variant:
    where = f"library kernel {library.name}"
    if len(call.sizes) != library.sizes:
        raise InputError(f"{len(call.sizes)} sizes are given, not {library.sizes}", where=where)
    tensors = (*call.operands, *kernel.outputs)
    if len(tensors) != library.tensors:
        raise InputError(f"{len(tensors)} tensors are given, not {library.tensors}", where=where)
    for operand in call.operands:
        if operand not in kernel.reads:
            raise InputError(f"{operand!r} is not in memory for {kernel.label}", where=where)
    buffers = tuple(TileBuffer(f"t{n}", node.dtype) for n, node in enumerate(tensors))
    program = TileProgram(
        buffers, len(kernel.outputs), (("_task", as_expr(call.tasks)),), (), (), (FAILED,),
        call.price.substitute({THREADS: 1}) // 1000 + 1,
    )  # fmt: skip
    external = ExternalFunction(PREFIX + library.name, call.sizes)
    step = LoweredStep(program, call.operands, kernel.outputs, external)
    return Variant(library.name, (step,), call.price)


__all__ = [
    "LibraryCall",
    "LibraryKernel",
    "MatrixProduct",
    "is_computed",
    "register",
    "unregister",
    "with_libraries",
]
