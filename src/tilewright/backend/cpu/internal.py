"""The type of pointers, and functions that only others of their module call."""

from __future__ import annotations

from llvmlite import ir

POINTER = ir.PointerType()


def internal_function(module: ir.Module, name: str, kind: ir.FunctionType) -> ir.Function:
    """A function that only others of the module call."""
    function = ir.Function(module, kind, name)
    function.linkage = "internal"
    function.attributes.add("nounwind")
    return function
