"""Operators of opsets before 13, rewritten to their form of opset 13.

Most changes moved an attribute to an operand. :func:`modernise` returns the operator as rules know
it; an operator whose meaning did not change passes through. May import ``ir``, ``ops``, numpy and
onnx.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Constant, Reshape
from tilewright.ops.record import AttributeValue
from tilewright.shape import constant, product

OLDEST_RULES = 13  # the opset for which rules are written; nodes of older ones are made new


@dataclass(frozen=True)
class Call:
    """An operator with its operands and attributes, as a rule will see it.

    ``flatten`` is the axis at which the first operand is folded to two axes, or None.
    """

    name: str
    operands: tuple[Node | None, ...]
    attributes: dict[str, AttributeValue]
    flatten: int | None = None


def _literal(values: Any, dtype: DType = DType.INT64) -> Node:
    return node(Constant.of(np.asarray(values, dtype=dtype.numpy), dtype))


def _without(call: Call, *names: str) -> dict[str, AttributeValue]:
    return {k: v for k, v in call.attributes.items() if k not in names}


def _to_operand(name: str) -> Callable[[Call], Call]:
    """The integer attribute ``name`` becomes the second operand."""

    def change(call: Call) -> Call:
        if name not in call.attributes:
            return call
        operands = [*call.operands, *[None] * (2 - len(call.operands))]
        operands[1] = _literal(call.attributes[name])
        return replace(call, operands=tuple(operands), attributes=_without(call, name))

    return change


def _clip(call: Call) -> Call:
    data = call.operands[0]
    if data is None:
        return call
    bounds = [
        _literal(call.attributes[name], data.dtype) if name in call.attributes else None
        for name in ("min", "max")
    ]
    return replace(call, operands=(data, *bounds), attributes=_without(call, "min", "max"))


def _pad(call: Call) -> Call:
    data = call.operands[0]
    pads = call.attributes.get("pads", call.attributes.get("paddings"))
    if data is None or pads is None:
        return call
    value = _literal(call.attributes.get("value", 0.0), data.dtype)
    kept = _without(call, "pads", "paddings", "value")
    return replace(call, operands=(data, _literal(pads), value), attributes=kept)


def _slice(call: Call) -> Call:
    given = [call.attributes.get(name) for name in ("starts", "ends", "axes")]
    operands = tuple(None if g is None else _literal(g) for g in given)
    kept = _without(call, "starts", "ends", "axes")
    return replace(call, operands=(*call.operands[:1], *operands), attributes=kept)


def _softmax(call: Call) -> Call:
    axis = int(call.attributes.get("axis", 1))  # type: ignore[call-overload]
    return replace(call, attributes={**call.attributes, "axis": -1}, flatten=axis)


def _batch_normalization(call: Call) -> Call:
    """``spatial=0`` has parameters for every element of an example, here of one long axis."""
    kept = _without(call, "spatial", "is_test", "consumed_inputs")
    if call.attributes.get("spatial", 1):
        return replace(call, attributes=kept)
    data, *given = call.operands
    parameters = (p and node(Reshape((product(p.shape),)), p) for p in given)
    return replace(call, operands=(data, *parameters), attributes=kept, flatten=1)


def _dropout(call: Call) -> Call:
    return replace(call, attributes=_without(call, "ratio", "is_test"))


def _upsample(call: Call) -> Call:
    data = call.operands[0] if call.operands else None
    scales = call.operands[1] if len(call.operands) > 1 else None
    if "scales" in call.attributes:
        scales = _literal(call.attributes["scales"], DType.FLOAT32)
    if "height_scale" in call.attributes and "width_scale" in call.attributes:
        both = [call.attributes[name] for name in ("height_scale", "width_scale")]
        scales = _literal([1.0, 1.0, *both], DType.FLOAT32)
    mode = call.attributes.get("mode", "nearest")
    mode = "linear" if mode == "bilinear" else mode
    attributes: dict[str, AttributeValue] = {
        "mode": mode,
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    return Call("Resize", (data, None, scales), attributes)


def _cast(call: Call) -> Call:
    """Before 6, a type has the name that it has in onnx's messages."""
    name = call.attributes.get("to")
    if not isinstance(name, str) or name not in dict(onnx.TensorProto.DataType.items()):
        return call
    number = onnx.TensorProto.DataType.Value(name)
    return replace(call, attributes={**call.attributes, "to": number})


def _resize(call: Call) -> Call:
    return _upsample(call)


def _old_broadcast(call: Call) -> Call:
    """``broadcast`` and ``axis``: the second operand is aligned to axes from ``axis`` on."""
    if len(call.operands) != 2:
        return call
    kept = _without(call, "broadcast", "axis", "consumed_inputs")
    left, right = call.operands[0], call.operands[1]
    axis = call.attributes.get("axis")
    if axis is not None and left is not None and right is not None and right.rank:
        start = int(axis) % max(left.rank, 1)  # type: ignore[call-overload]
        trailing = left.rank - start - right.rank
        if trailing > 0:
            right = node(Reshape((*right.shape, *[constant(1)] * trailing)), right)
    return replace(call, operands=(left, right), attributes=kept)


def _channel_slope(call: Call) -> Call:
    """PRelu before 7: a slope of one axis belongs to the channels."""
    data, slope = call.operands[0], call.operands[1]
    if data is not None and slope is not None and slope.rank == 1 and data.rank > 2:
        slope = node(Reshape((*slope.shape, *[constant(1)] * (data.rank - 2))), slope)
    return replace(call, operands=(data, slope))


def _concat(call: Call) -> Call:
    return replace(call, attributes={"axis": 1, **call.attributes})


def _forget(*names: str) -> Callable[[Call], Call]:
    def change(call: Call) -> Call:
        return replace(call, attributes=_without(call, *names))

    return change


def _rename(name: str) -> Callable[[Call], Call]:
    def change(call: Call) -> Call:
        return replace(call, name=name)

    return change


# Operator -> (first opset that no longer needs the change, the change), oldest change first.
_CHANGES: dict[str, tuple[tuple[int, Callable[[Call], Call]], ...]] = {
    "Squeeze": ((13, _to_operand("axes")),),
    "Unsqueeze": ((13, _to_operand("axes")),),
    "ReduceSum": ((13, _to_operand("axes")),),
    "Split": ((13, _to_operand("split")),),
    "Softmax": ((13, _softmax),),
    "LogSoftmax": ((13, _softmax),),
    "Hardmax": ((13, _softmax),),
    "Dropout": ((12, _dropout),),
    "Clip": ((11, _clip),),
    "Pad": ((11, _pad),),
    "Resize": ((11, _resize),),
    "Scatter": ((11, _rename("ScatterElements")),),
    "Slice": ((10, _slice),),
    "TopK": ((10, _to_operand("k")),),
    "Upsample": ((10, _upsample),),
    "BatchNormalization": ((9, _batch_normalization),),
    "Gemm": ((7, _forget("broadcast")),),
    "Cast": ((6, _cast),),
    "PRelu": ((7, _channel_slope),),
    "Reshape": ((5, _to_operand("shape")),),
    "Concat": ((4, _concat),),
    **{
        name: ((7, _old_broadcast),)
        for name in (
            "Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less",
        )
    },
}  # fmt: skip


def modernise(call: Call, opset: int) -> Call:
    """``call`` of the default domain at ``opset`` as opset 13 would write it."""
    for until, change in _CHANGES.get(call.name, ()):
        if opset < until:
            call = change(call)
    return call


def flattened(call: Call) -> tuple[tuple[Node | None, ...], Callable[[Node], Node]]:
    """The operands with the first one folded to two axes at ``call.flatten``, and the way back."""
    data = call.operands[0] if call.operands else None
    if call.flatten is None or data is None:
        return call.operands, _unchanged
    axis = call.flatten + data.rank if call.flatten < 0 else call.flatten
    shape = data.shape
    folded = node(Reshape((product(shape[:axis]), product(shape[axis:]))), data)

    def restore(out: Node) -> Node:
        return node(Reshape(shape), out)

    return (folded, *call.operands[1:]), restore


def _unchanged(out: Node) -> Node:
    return out
