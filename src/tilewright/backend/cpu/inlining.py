"""Putting functions of whole vectors where the vectoriser has called them.

See ``vector_functions``, which makes them. Imports only llvmlite. Start with :func:`inline_calls`.
"""

from __future__ import annotations

import llvmlite.binding as llvm

PREFIX = "vector."  # of the names of all these functions


def inline_calls(module: llvm.ModuleRef, passes: llvm.PassBuilder) -> None:
    """Put every such function of an optimised module where it is called."""
    found = [f for f in module.functions if f.name.startswith(PREFIX) and not f.is_declaration]
    if not found:
        return
    for function in found:
        function.linkage = "internal"
        function.add_function_attribute("alwaysinline")
    manager = llvm.create_new_module_pass_manager()
    manager.add_always_inliner_pass()
    manager.add_global_dead_code_eliminate_pass()
    manager.run(module, passes)
