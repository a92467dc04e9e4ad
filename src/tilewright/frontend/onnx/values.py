"""Attribute values and constant tensors of an ``onnx_ir`` model as Python and numpy values.

:func:`attribute_value` gives what rules expect; :func:`tensor_array` a checked array.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir

from tilewright.frontend.onnx.boundary import third_party
from tilewright.frontend.onnx.tensor_types import element_type
from tilewright.ir.contents import is_writable
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Constant
from tilewright.ops.record import AttributeValue
from tilewright.support.arguments import show
from tilewright.support.errors import InputError, InvalidModelError, UnsupportedError

Array = np.ndarray[Any, Any]
_TENSOR = onnx_ir.AttributeType.TENSOR
_DATA = ("float_data", "int32_data", "int64_data", "string_data", "double_data", "uint64_data")
_KEEP_SHAPE = ("Cast", "CastLike", "Identity")  # of their first operand


def tensor_array(tensor: onnx_ir.TensorProtocol, where: str) -> Array:
    """The contents of a tensor; strings as an object array of ``str``.

    It is a copy where the memory of a tensor, as of a model that is an object, can be written to.
    """
    with third_party("a tensor cannot be read", where=where):
        dtype = element_type(tensor.dtype.value, where)
    sizes = tuple(s for s in tensor.shape if isinstance(s, int))
    if len(sizes) != len(tensor.shape) or any(s < 0 for s in sizes):
        raise InvalidModelError(f"a tensor has the sizes {list(sizes)}", where=where)
    if math.prod(sizes) and not _has_data(tensor):
        raise InvalidModelError(
            f"a tensor of the sizes {list(sizes)} has no data",
            where=where,
            hint="export or download the model again, with its weights",
        )
    with third_party("a tensor's data does not fit its type and sizes", where=where):
        array = np.asarray(tensor.numpy())
        if array.size != math.prod(sizes):
            raise ValueError(f"{array.size} elements for the sizes {list(sizes)}")
        if dtype is DType.STRING:
            return text_array(array.reshape(-1).tolist()).reshape(sizes)
        return array.astype(dtype.numpy, copy=is_writable(array)).reshape(sizes)


def _has_data(tensor: onnx_ir.TensorProtocol) -> bool:
    """Whether there is anything to read: onnx-ir makes zeros of a message that holds nothing."""
    proto = getattr(tensor, "raw", None)
    if not isinstance(proto, onnx.TensorProto):
        return True
    return proto.HasField("raw_data") or any(len(getattr(proto, name)) for name in _DATA)


def text_array(values: list[bytes | str]) -> Array:
    """Strings as a numpy object array of ``str``."""
    out = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        out[index] = value.decode("utf-8") if isinstance(value, bytes) else value
    return out


def attribute_value(attribute: onnx_ir.Attr, where: str) -> AttributeValue:
    """What a rule gets for an attribute: numbers, text, arrays, lists, or the graph object."""
    if attribute.is_ref():
        message = f"attribute {attribute.name!r} refers to one of a function, but is in none"
        raise InvalidModelError(message, where=where)
    if attribute.type == _TENSOR:
        with third_party("a tensor cannot be read", where=where):
            tensor = attribute.as_tensor()
        return tensor_array(tensor, where)
    value: Any = attribute.value
    if isinstance(value, tuple):
        return list(value)
    return value


def constant_value(attributes: dict[str, AttributeValue], where: str) -> Node:
    """The node of ONNX's Constant operator."""
    if len(attributes) != 1:
        raise InvalidModelError("a Constant needs exactly one value", where=where)
    name, value = next(iter(attributes.items()))
    raw: Any = value
    match name:
        case "value":
            return array_node(raw)
        case "value_float":
            return array_node(np.array(raw, dtype=np.float32))
        case "value_floats":
            return array_node(np.array(raw, dtype=np.float32))
        case "value_int" | "value_ints":
            return array_node(np.array(raw, dtype=np.int64))
        case "value_string":
            return array_node(text_array([raw]).reshape(()))
        case "value_strings":
            return array_node(text_array(raw))
        case _:
            raise InvalidModelError(f"a Constant with the attribute {name!r}", where=where)


def array_node(array: Array) -> Node:
    """The constant node of an array."""
    return node(Constant.of(array, DType.of(array.dtype)))


def proto_of_value(value: onnx_ir.Value) -> onnx.TypeProto | None:
    """The type that the model states for a value, or None."""
    if value.type is None:
        return None
    with third_party("a stated type cannot be read", where=f'value "{value.name}"'):
        proto = onnx_ir.serde.serialize_value(value).type
    return proto if proto.WhichOneof("value") else None


def stated_type(value: onnx_ir.Value) -> onnx.TypeProto | None:
    """The type that the model states for a value, or None; perhaps a shape without element type.

    Exports often state nothing about what a function of theirs gives, but do state the type of the
    Cast behind it, which has the same shape.
    """
    proto = proto_of_value(value)
    if proto is not None and (not proto.HasField("tensor_type") or _shape_of(proto) is not None):
        return proto
    pending, seen = [value], {value}
    while pending:
        for use in pending.pop().uses():
            item = use.node
            if use.idx or item.domain not in ("", "ai.onnx") or item.op_type not in _KEEP_SHAPE:
                continue
            result = item.outputs[0]
            shape = _shape_of(proto_of_value(result))
            if shape is not None:
                proto = onnx.TypeProto() if proto is None else proto
                proto.tensor_type.shape.CopyFrom(shape)
                return proto
            if result not in seen:
                seen.add(result)
                pending.append(result)
    return proto


def _shape_of(proto: onnx.TypeProto | None) -> onnx.TensorShapeProto | None:
    if proto is None or not proto.HasField("tensor_type"):
        return None
    return proto.tensor_type.shape if proto.tensor_type.HasField("shape") else None


def serialised(item: onnx_ir.Node, where: str) -> onnx.NodeProto:
    """The node as a message of its own."""
    with third_party("the node cannot be written", where=where):
        return onnx_ir.serde.serialize_node(item)


def normal_opsets(opsets: Mapping[str, int]) -> dict[str, int]:
    """Opset versions by domain, the default domain under the name ``""``."""
    out = {domain: version for domain, version in opsets.items() if domain != "ai.onnx"}
    if "ai.onnx" in opsets:
        out.setdefault("", opsets["ai.onnx"])
    return out


def input_sizes(value: onnx_ir.Value) -> tuple[int | str | None, ...] | None:
    """The sizes that the model states for an input; None for what is not a tensor.

    Raises ``UnsupportedError`` for an input whose rank is not stated, ``InvalidModelError`` for a
    size whose name is no text.
    """
    where = f'input "{value.name}"'
    if value.type is None:
        raise InvalidModelError("the input has no type", where=where)
    if isinstance(value.type, onnx_ir.SequenceType | onnx_ir.OptionalType):
        return None
    if not isinstance(value.type, onnx_ir.TensorType):
        raise UnsupportedError(
            "only tensors, sequences and optionals can be inputs",
            where=where,
            hint="turn the input into tensors before the model",
        )
    if value.shape is None:
        raise UnsupportedError(
            "the number of axes of the input is not stated",
            where=where,
            hint="export with a shape for the input (its sizes may be dynamic), or make the input "
            "a constant",
        )
    # A size of -1 is none: some exporters write it, and ONNX Runtime reads it so.
    sizes: list[Any] = [
        (None if size == -1 else size) if isinstance(size, int) else size.value
        for size in value.shape
    ]
    for axis, size in enumerate(sizes):
        # Protocol buffers give bytes for text that is not UTF-8, older onnx-ir passes it on.
        if isinstance(size, bytes):
            raise InvalidModelError(
                f"the name {size!r} of a dimension is not UTF-8 text", where=f"{where}, axis {axis}"
            )
    return tuple(sizes)


def constant_input(value: onnx_ir.Value, array: Array) -> Node:
    """The constant that takes the place of an input; raises ``InputError`` if it does not fit.

    It is a copy, as the caller may write to the array later.
    """
    where = f'input "{value.name}"'
    try:
        given = np.array(array)
        if given.dtype.kind in "OUS":
            given = text_array(given.reshape(-1).tolist()).reshape(given.shape)
    except Exception as error:  # a foreign type may fail in any way
        raise InputError(
            f"{show(array)} is no array", where=where, hint="Give a numpy array"
        ) from error
    try:
        dtype = DType.of(given.dtype)
    except KeyError:
        raise InputError(
            f"there are no tensors of {given.dtype}",
            where=where,
            hint="convert the array to a type of ONNX, such as float32",
        ) from None
    if isinstance(value.type, onnx_ir.TensorType):
        stated = element_type(value.type.dtype.value, where)
        if stated is not dtype:
            raise InputError(
                f"the input is {stated.value}, the given constant {dtype.value}",
                where=where,
                hint=f"convert it to {stated.value}",
            )
    sizes = () if value.shape is None else tuple(value.shape)
    fits = value.shape is None or len(sizes) == given.ndim
    for size, actual in zip(sizes, given.shape, strict=False):
        fits = fits and (not isinstance(size, int) or size in (-1, actual))
    if not fits:
        raise InputError(
            f"the given constant has the shape {list(given.shape)}, the model states "
            f"[{', '.join(map(str, sizes))}]",
            where=where,
            hint="give an array of the shape that the model states",
        )
    return array_node(given)
