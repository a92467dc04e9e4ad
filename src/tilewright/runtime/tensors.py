"""Arguments of a call as numpy arrays that kernels can use: the slow path of the extension.

An argument that is a row-major array of the right dtype never comes here. All others are converted
where nothing is lost, and refused with a sentence otherwise. Imports ``support``, numpy, ml_dtypes
and the extension. Start reading at :func:`as_tensor`.
"""

from __future__ import annotations

from typing import Any, cast

import ml_dtypes
import numpy as np

from tilewright.runtime import _native
from tilewright.runtime.program import NATIVE_ITEM_SIZES
from tilewright.support.errors import InputError, ResourceError

# Element types of which numpy knows no other way to make the dtype than through ml_dtypes.
_EXTENDED = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8e5m2": ml_dtypes.float8_e5m2,
    "float8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "float8e8m0": ml_dtypes.float8_e8m0fnu,
    "float4e2m1": ml_dtypes.float4_e2m1fn,
    "int2": ml_dtypes.int2,
    "uint2": ml_dtypes.uint2,
    "int4": ml_dtypes.int4,
    "uint4": ml_dtypes.uint4,
}
_PYTHON_VALUES = ("string", "object")
_HOST_DEVICES = (1, 3)  # main memory, and main memory that a GPU can reach
_DLPACK_KINDS = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}


def native_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of an element type, "string" and "object" being Python objects."""
    if name in _PYTHON_VALUES:
        return np.dtype(object)
    return np.dtype(_EXTENDED.get(name, name))


def _dlpack_dtypes() -> dict[tuple[int, int], np.dtype[Any]]:
    table: dict[tuple[int, int], np.dtype[Any]] = {}
    for name in [*NATIVE_ITEM_SIZES, "complex64", "complex128"]:
        dtype = native_dtype(name)
        kind = _DLPACK_KINDS[name.rstrip("0123456789")]
        table[kind, dtype.itemsize * 8] = dtype
    return table


_DLPACK_DTYPES = _dlpack_dtypes()


def as_tensor(name: str, value: Any, dtype: str, rank: int, expected: str) -> Any:
    """``value`` as a row-major, aligned numpy array of ``dtype`` and ``rank``.

    ``name`` and ``expected`` are for errors. Values of dtype "object" pass unchanged. Raises
    InputError.
    """
    if dtype == "object":
        return value
    array = _as_array(name, value, expected)
    if dtype == "string":
        if array.dtype.kind not in "OUS" and array.size:
            raise _wrong_type(name, array, expected)
    elif array.dtype.newbyteorder("=") != native_dtype(dtype):
        raise _wrong_type(name, array, expected)
    if array.ndim != rank:
        raise InputError(
            f"Input '{name}' has {array.ndim} axes {list(array.shape)}, but {rank} are expected.",
            where=f"input '{name}'",
            hint=f"an array of {expected}",
        )
    if dtype == "string":
        return array
    # Row-major, aligned and in native byte order; a copy only where it is not.
    try:
        return np.require(array, native_dtype(dtype), ["C", "A"])
    except MemoryError as error:
        raise ResourceError(
            f"Input '{name}' is not row-major, and there is no memory for a copy of its "
            f"{array.nbytes} bytes.",
            where=f"input '{name}'",
            hint="smaller dimensions",
        ) from error


def _wrong_type(name: str, array: np.ndarray[Any, Any], expected: str) -> InputError:
    wanted = expected.partition("[")[0]
    return InputError(
        f"Input '{name}' has elements of {array.dtype.name}, but {wanted} is expected.",
        where=f"input '{name}'",
        hint=f"an array of {expected}, such as array.astype('{wanted}')",
    )


def _as_array(name: str, value: Any, expected: str) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray):
        return cast("np.ndarray[Any, Any]", value)
    if hasattr(value, "__dlpack__") and not isinstance(value, np.generic):
        return _from_dlpack(name, value, expected)
    try:
        return np.asarray(cast("Any", value))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"Input '{name}' cannot be read as an array: {error}.",
            where=f"input '{name}'",
            hint=f"an array of {expected}",
        ) from error


def _from_dlpack(name: str, value: Any, expected: str) -> np.ndarray[Any, Any]:
    where = f"input '{name}'"
    if value.__dlpack_device__()[0] not in _HOST_DEVICES:
        raise InputError(
            f"Input '{name}' is on another device, but the model runs on the CPU.",
            where=where,
            hint="a copy in main memory, such as tensor.cpu()",
        )
    try:
        return _native.from_dlpack(value.__dlpack__(), _DLPACK_DTYPES)
    # Libraries choose freely what they raise for tensors they do not export.
    except Exception as error:
        raise InputError(
            f"Input '{name}' cannot be taken over through DLPack: {error}.",
            where=where,
            hint=f"a plain tensor of {expected}, such as tensor.detach()",
        ) from error
