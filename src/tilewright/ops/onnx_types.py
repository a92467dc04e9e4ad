"""ONNX's numbers for element types as :class:`DType`. May import `ir` and `support`."""

from __future__ import annotations

from onnx import TensorProto

from tilewright.ir.dtype import DType
from tilewright.ops.record import NoRule

# The numbers of the ONNX file format; types missing here have no place in programs. Those that
# the oldest onnx package does not name are written out.
DTYPES: dict[int, DType] = {
    TensorProto.FLOAT: DType.FLOAT32,
    TensorProto.UINT8: DType.UINT8,
    TensorProto.INT8: DType.INT8,
    TensorProto.UINT16: DType.UINT16,
    TensorProto.INT16: DType.INT16,
    TensorProto.INT32: DType.INT32,
    TensorProto.INT64: DType.INT64,
    TensorProto.STRING: DType.STRING,
    TensorProto.BOOL: DType.BOOL,
    TensorProto.FLOAT16: DType.FLOAT16,
    TensorProto.DOUBLE: DType.FLOAT64,
    TensorProto.UINT32: DType.UINT32,
    TensorProto.UINT64: DType.UINT64,
    TensorProto.COMPLEX64: DType.COMPLEX64,
    TensorProto.COMPLEX128: DType.COMPLEX128,
    TensorProto.BFLOAT16: DType.BFLOAT16,
    TensorProto.FLOAT8E4M3FN: DType.FLOAT8E4M3FN,
    TensorProto.FLOAT8E4M3FNUZ: DType.FLOAT8E4M3FNUZ,
    TensorProto.FLOAT8E5M2: DType.FLOAT8E5M2,
    TensorProto.FLOAT8E5M2FNUZ: DType.FLOAT8E5M2FNUZ,
    24: DType.FLOAT8E8M0,
    TensorProto.FLOAT4E2M1: DType.FLOAT4E2M1,
    TensorProto.UINT4: DType.UINT4,
    TensorProto.INT4: DType.INT4,
    25: DType.UINT2,
    26: DType.INT2,
}


def element_type(number: int, *, where: str) -> DType:
    """The native element type with an ONNX number; raises ``NoRule`` for any other type."""
    found = DTYPES.get(number)
    if found is None or not found.is_native:
        name = found.value if found is not None else _name(number)
        raise NoRule(f"the result has type {name}", where=where)
    return found


def _name(number: int) -> str:
    known = number in TensorProto.DataType.values()
    return TensorProto.DataType.Name(number) if known else f"number {number}"
