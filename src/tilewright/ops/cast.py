"""Rules that change only the element type, or nothing at all in inference.

Types that kernels do not handle (strings, 8-bit and narrower floats, 4-bit integers) have no rule.
Start with :func:`cast_to`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ops.build import Builder, cast, scalar
from tilewright.ops.onnx_types import element_type
from tilewright.ops.record import NoRule, RuleContext, operator
from tilewright.ops.types import require_native


@operator("Cast", since=6, computes=False)
def cast_to(context: RuleContext) -> Sequence[Node]:
    """Every element converted to the type of the attribute ``to``."""
    require_native(context)
    return [cast(context.operand(0), element_type(context.integer("to"), where=context.where))]


@operator("CastLike", computes=False)
def cast_like(context: RuleContext) -> Sequence[Node]:
    """Every element converted to the type of operand 1."""
    require_native(context)
    return [cast(context.operand(0), context.operand(1).dtype)]


@operator("Identity", computes=False)
def identity(context: RuleContext) -> Sequence[Node]:
    """The operand itself, of any type."""
    return [context.operand(0)]


@operator("Dropout", since=7, computes=False)
def dropout(context: RuleContext) -> Sequence[Node]:
    """The operand itself and a mask that keeps everything; training that drops has no rule."""
    x = context.operand(0)
    training = context.optional(2) is not None and any(
        context.static_integers(2, "the training mode")
    )
    ratio = context.constant(1)
    if training and (ratio is None or ratio.any()):
        raise NoRule("training mode draws random numbers", where=context.where)
    if context.output_count == 1:
        return [x]
    return [x, Builder(context).expand(scalar(True, DType.BOOL), x.shape)]
