"""Element types of tensors: names, widths, classes, and their numpy twins.

A *native* type is one that generated kernels load and store. The others (8-bit and narrower floats,
4-bit integers, complex numbers, strings, and any Python value) pass only between operators that run
on the ONNX reference evaluator. Read :class:`DType` first.
"""

from __future__ import annotations

from enum import Enum

import ml_dtypes
import numpy as np
import numpy.typing as npt

_NUMPY: dict[str, object] = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8e5m2": ml_dtypes.float8_e5m2,
    "float8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "float8e8m0": ml_dtypes.float8_e8m0fnu,
    "float4e2m1": ml_dtypes.float4_e2m1fn,
    "int4": ml_dtypes.int4,
    "uint4": ml_dtypes.uint4,
    "int2": ml_dtypes.int2,
    "uint2": ml_dtypes.uint2,
    "string": object,
    "object": object,
}


class DType(Enum):
    """An element type; the value is the name used in programs and artifacts."""

    BOOL = "bool"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"
    FLOAT8E4M3FN = "float8e4m3fn"
    FLOAT8E4M3FNUZ = "float8e4m3fnuz"
    FLOAT8E5M2 = "float8e5m2"
    FLOAT8E5M2FNUZ = "float8e5m2fnuz"
    FLOAT8E8M0 = "float8e8m0"
    FLOAT4E2M1 = "float4e2m1"
    INT4 = "int4"
    UINT4 = "uint4"
    INT2 = "int2"
    UINT2 = "uint2"
    STRING = "string"
    OBJECT = "object"

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The numpy dtype that holds such elements."""
        return np.dtype(_NUMPY.get(self.value, self.value))  # type: ignore[arg-type]

    @property
    def is_native(self) -> bool:
        """Whether generated kernels handle this type."""
        return self in _NATIVE

    @property
    def is_float(self) -> bool:
        """Native floating-point types."""
        return self in _FLOATS

    @property
    def is_half(self) -> bool:
        """Types stored in 16 bits and computed in float32."""
        return self in (DType.FLOAT16, DType.BFLOAT16)

    @property
    def is_signed(self) -> bool:
        """Signed native integers."""
        return self in (DType.INT8, DType.INT16, DType.INT32, DType.INT64)

    @property
    def is_unsigned(self) -> bool:
        """Unsigned native integers, bool excluded."""
        return self in (DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64)

    @property
    def is_integer(self) -> bool:
        """Native integers, bool excluded."""
        return self.is_signed or self.is_unsigned

    @property
    def bytes(self) -> int:
        """Bytes of one element of a native type."""
        return self.numpy.itemsize

    @staticmethod
    def of(dtype: npt.DTypeLike) -> DType:
        """The element type of a numpy dtype; strings and objects become STRING.

        Raises ``KeyError`` for a dtype that no tensor type names.
        """
        normal = np.dtype(dtype)
        if normal.kind in "OUST":
            return DType.STRING
        return _BY_NUMPY[normal]


_FLOATS = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)
_NATIVE = (
    DType.BOOL,
    DType.INT8,
    DType.INT16,
    DType.INT32,
    DType.INT64,
    DType.UINT8,
    DType.UINT16,
    DType.UINT32,
    DType.UINT64,
    *_FLOATS,
)
_BY_NUMPY: dict[np.dtype[np.generic], DType] = {
    d.numpy: d for d in DType if d not in (DType.STRING, DType.OBJECT)
}
TILE_TYPES = (DType.FLOAT32, DType.FLOAT64)  # sums of which register tiles are made
# Element types whose products are summed in a wider type, several in each word of a register.
NARROW = {
    (DType.BFLOAT16, DType.BFLOAT16): DType.FLOAT32,
    (DType.UINT8, DType.INT8): DType.INT32,
}
