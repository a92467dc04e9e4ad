"""From one ONNX node to primitives by its fission rule, checked and labelled.

:func:`by_rule` returns the outputs, or the reason why there are none.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.frontend.onnx.boundary import UNFIT, summary
from tilewright.frontend.onnx.finish import input_names
from tilewright.frontend.onnx.fold import between, folded
from tilewright.frontend.onnx.legacy import OLDEST_RULES, Call, flattened, modernise
from tilewright.frontend.onnx.lint import baked_reshape, pinned
from tilewright.frontend.onnx.report import BakedSize
from tilewright.frontend.onnx.state import State, Use
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.primitives import Constant
from tilewright.ops.record import Operator, RuleContext, StructuralInput, apply_rule, find_operator
from tilewright.support.errors import InvalidModelError, UnsupportedError


def by_rule(state: State, use: Use) -> list[Node] | str:
    """The outputs of the operator's rule, or why there are none."""
    odd = [o.dtype for o in use.operands if o is not None and not o.dtype.is_native]
    if DType.STRING in odd or DType.OBJECT in odd:
        return f"operands of type {odd[0].value}"
    call, opset = Call(use.item.op_type, use.operands, use.attributes), use.opset
    try:
        if use.domain == "" and opset < OLDEST_RULES:
            call, opset = modernise(call, opset), OLDEST_RULES
        operands, restore = flattened(call)
    except UNFIT as error:
        message = f"the operator has no such form: {summary(error)}"
        raise InvalidModelError(message, where=use.where) from error
    row = find_operator(use.domain, call.name, opset)
    if row is None:
        return "there is no rule for this operator"
    known = state.facts.checkpoint()
    context = RuleContext(
        call.name, operands, call.attributes, use.output_count, opset, use.where, state.facts
    )
    made = _applied(state, row, context, restore)
    if isinstance(made, str):
        state.facts.restore(known)
        return made
    if len(made) < use.output_count:
        raise InvalidModelError(
            f"the node has {use.output_count} outputs where the operator makes {len(made)}",
            where=use.where,
            hint="check the model with onnx.checker.check_model",
        )
    accepted = _accepted(state, use, call, made, len(known.guards))
    if isinstance(accepted, str):
        state.facts.restore(known)
    return accepted


def _applied(
    state: State, row: Operator, context: RuleContext, restore: Callable[[Node], Node]
) -> list[Node] | str:
    """What the rule makes, or why it makes nothing; then its demands have to be forgotten."""
    try:
        return [restore(out) for out in apply_rule(row, context)]
    except StructuralInput as error:
        state.structural.update(dict.fromkeys(input_names(error.operand)))
        return error.message
    except UnsupportedError as error:
        return error.message
    except UNFIT as error:
        return f"the rule failed: {type(error).__name__}: {summary(error)}"


def _accepted(
    state: State, use: Use, call: Call, made: list[Node], guards: int
) -> list[Node] | str:
    """Check, fold and label what a rule made."""
    given = [o for o in use.operands if o is not None]
    region = between(made, given)
    for current in region:
        if not current.dtype.is_native and not isinstance(current.primitive, Constant):
            return f"there are no kernels for element type {current.dtype.value}"
    constant = all(isinstance(o.primitive, Constant) for o in given)
    made = [folded(out, region, state.scope, constant) for out in made]
    for current in (*region, *made):
        state.labels.setdefault(current, use.where)
    _lint(state, use, call, guards)
    return made


def _lint(state: State, use: Use, call: Call, guards: int) -> None:
    names = [d.name for d in state.dimensions]
    messages = [pinned(guard, names) for guard in state.facts.guards[guards:]]
    if call.name == "Reshape":
        messages.append(baked_reshape(call.operands, names))
    for message in messages:
        if message is not None:
            state.baked.append(BakedSize(use.where, message))
