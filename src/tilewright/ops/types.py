"""Checks of operand types that several families of rules share."""

from __future__ import annotations

from tilewright.ops.record import NoRule, RuleContext


def require_native(context: RuleContext) -> None:
    """Raise ``NoRule`` when an operand has a type that generated kernels do not handle."""
    for index, operand in enumerate(context.inputs):
        if operand is not None and not operand.dtype.is_native:
            message = f"operand {index} has type {operand.dtype.value}"
            raise NoRule(message, where=context.where)
