"""Element types and value types of ONNX, and ours.

:func:`element_type` and :func:`data_type` translate one into the other; :func:`type_proto` writes
the type of a node for onnx's shape inference. May import ``ir`` and onnx.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ops.onnx_types import DTYPES
from tilewright.support.errors import InvalidModelError, UnsupportedError

LARGEST_SIZE = (1 << 63) - 1  # of an axis in ONNX's messages
_TO_ONNX: dict[DType, int] = {dtype: number for number, dtype in DTYPES.items()}


def element_type(number: int, where: str) -> DType:
    """The element type for a number of onnx's ``TensorProto.DataType``."""
    found = DTYPES.get(int(number))
    if found is not None:
        return found
    if int(number) == onnx.TensorProto.UNDEFINED:
        raise InvalidModelError("the element type is missing", where=where)
    raise UnsupportedError(
        f"element type {number} is not known", where=where, hint="use a newer tilewright"
    )


def data_type(dtype: DType) -> int:
    """The number of onnx's ``TensorProto.DataType`` for an element type (not OBJECT)."""
    return _TO_ONNX[dtype]


def type_proto(
    value: Node, objects: Mapping[Node, onnx.TypeProto], *, shaped: bool = True
) -> onnx.TypeProto:
    """The ONNX type of a value; ``objects`` holds those of sequences, optionals and maps.

    Symbolic sizes become ``dim_param`` texts. Without ``shaped`` only the element type is given.
    """
    if value.dtype is DType.OBJECT:
        return objects[value]
    out = onnx.TypeProto()
    tensor = out.tensor_type
    tensor.elem_type = data_type(value.dtype)
    if shaped:
        tensor.shape.SetInParent()
        for size in value.shape:
            entry = tensor.shape.dim.add()
            if size.is_constant and size.value <= LARGEST_SIZE:
                entry.dim_value = size.value
            elif not size.is_constant:
                entry.dim_param = str(size)
    return out
