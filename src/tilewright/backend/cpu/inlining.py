"""Putting functions where optimised code calls them, which were optimised by themselves.

They are functions of whole vectors, which the vectoriser has called (see ``vector_functions``), and
those of other modules (see ``shared``). What is large and the same in many kernels is optimised
once in this way. Imports only llvmlite. Start with :func:`inline_calls`.
"""

from __future__ import annotations

from collections.abc import Sequence

import llvmlite.binding as llvm

PREFIX = "vector."  # of the names of all functions of whole vectors


def inline_calls(
    module: llvm.ModuleRef, passes: llvm.PassBuilder, others: Sequence[llvm.ModuleRef]
) -> None:
    """Put every such function of an optimised module, and of ``others``, where it is called.

    The others are optimised modules of its context, whose functions all become a part of it.
    """
    found = [f for f in module.functions if f.name.startswith(PREFIX) and not f.is_declaration]
    names: set[str] = set()
    for other in others:
        names |= {function.name for function in other.functions if not function.is_declaration}
        module.link_in(other)
    found += [function for function in module.functions if function.name in names]
    if not found:
        return
    for function in found:
        function.linkage = "internal"
        function.add_function_attribute("alwaysinline")
    manager = llvm.create_new_module_pass_manager()
    manager.add_always_inliner_pass()
    manager.add_global_dead_code_eliminate_pass()
    manager.run(module, passes)
