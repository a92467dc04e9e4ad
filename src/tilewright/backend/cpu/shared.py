"""Functions that kernels of all models share, each written and compiled in a module of its own.

A kernel's module only declares what it calls of them: register tiles, products, transpositions.
Most are compiled by themselves and linked. Those whose results do not fit the registers of a call
are optimised by themselves and become a part of each caller. Start with :class:`SharedFunction`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir


@dataclass(frozen=True, eq=False)
class SharedFunction:
    """A function that ``write`` fills as ``name`` says and nothing else.

    ``convention`` is LLVM's name of how it is called, ``distinct`` are the positions of pointers to
    what no other pointer leads to, ``inlined`` says that it becomes a part of its callers.
    """

    name: str
    kind: ir.FunctionType
    write: Callable[[ir.Function], None]
    convention: str = ""
    distinct: tuple[int, ...] = ()
    inlined: bool = False


class KernelModule(ir.Module):
    """A module whose functions call shared ones; ``shared`` are those that they call, by name.

    Who fills it with ``straight`` code says so (see ``ModuleText``).
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.shared: dict[str, SharedFunction] = {}
        self.straight = False

    @property
    def compiled(self) -> list[SharedFunction]:
        """Those of them that are linked."""
        return [shared for shared in self.shared.values() if not shared.inlined]

    @property
    def inlined(self) -> list[SharedFunction]:
        """Those of them that become a part of their callers."""
        return [shared for shared in self.shared.values() if shared.inlined]

    def take_apart(self) -> None:
        """Forget all instructions, which are of no use once the module is written.

        They hold each other, so that only the garbage collector would find them, much later.
        """
        for function in self.functions:
            for block in function.blocks:
                for instruction in block.instructions:
                    vars(instruction).clear()
                vars(block).clear()
            function.blocks.clear()


def shared_function(module: ir.Module, shared: SharedFunction) -> ir.Function:
    """The function as a module calls it, declared on first use; a :class:`KernelModule`."""
    found = module.globals.get(shared.name)
    if isinstance(found, ir.Function):
        return found
    assert isinstance(module, KernelModule)
    module.shared[shared.name] = shared
    function = _declared(module, shared)
    if shared.inlined:  # it only reads; this is known of others when they are called, too late here
        function.attributes.add("readonly")
    return function


def shared_module(shared: SharedFunction) -> KernelModule:
    """The module that defines the function, for those that only call it."""
    module = KernelModule(shared.name)
    shared.write(_declared(module, shared))
    return module


def _declared(module: ir.Module, shared: SharedFunction) -> ir.Function:
    function = ir.Function(module, shared.kind, shared.name)
    function.attributes.add("nounwind")
    function.calling_convention = shared.convention
    for position in shared.distinct:
        function.args[position].add_attribute("noalias")
    return function
