"""Arguments of a call as numpy arrays that kernels can use: the slow path of the extension.

An argument that is a row-major array of the right dtype never comes here. All others are converted
where nothing is lost, and refused with a sentence otherwise. Imports ``support``, numpy, ml_dtypes
and the extension. Start reading at :func:`as_tensor`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

import ml_dtypes
import numpy as np

from tilewright.runtime import _native
from tilewright.runtime.arguments import BY_MAPPING
from tilewright.runtime.program import NATIVE_ITEM_SIZES
from tilewright.support.arguments import show
from tilewright.support.errors import InputError, ResourceError
from tilewright.support.text import format_count

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
    """``value`` as a numpy array of ``dtype`` and ``rank``, in whatever order its elements lie.

    ``name`` and ``expected`` are for errors. Values of dtype "object" pass unchanged. Raises
    InputError.
    """
    if dtype == "object":
        return value
    array = as_array(name, value, dtype, expected)
    if dtype == "string":
        if array.dtype.kind not in "OUS" and array.size:
            raise _wrong_type(name, array, expected)
    elif array.dtype.newbyteorder("=") != native_dtype(dtype):
        raise _wrong_type(name, array, expected)
    if array.ndim != rank:
        axes = format_count(array.ndim, "axis", "axes")
        raise InputError(
            f"Input '{name}' has {axes} {list(array.shape)}, but should have {rank}",
            where=f"input '{name}'",
            hint=f"Give an array of {expected}",
        )
    return array


def row_major(name: str, array: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """The array row-major, aligned and in native byte order; a copy where it is not.

    Raises ResourceError.
    """
    try:
        return np.require(array, native_dtype(dtype), ["C", "A"])
    except MemoryError as error:
        raise ResourceError(
            f"Input '{name}' is not row-major, and there is no memory for a copy of its "
            f"{array.nbytes} bytes.",
            where=f"input '{name}'",
            hint="Use smaller dimensions",
        ) from error


def _wrong_type(name: str, array: np.ndarray[Any, Any], expected: str) -> InputError:
    wanted = expected.partition("[")[0]
    return InputError(
        f"Input '{name}' has elements of {array.dtype.name}, but {wanted} is expected.",
        where=f"input '{name}'",
        hint=f"Give an array of {expected}, such as array.astype('{wanted}')",
    )


def as_writable(name: str, value: Any, dtype: str, rank: int, expected: str) -> Any:
    """The memory of ``value`` as an array that kernels can write to, for output ``name``.

    Raises InputError for what would have to be copied.
    """
    where = f"output '{name}'"
    if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
        array = cast("np.ndarray[Any, Any]", value).view(np.ndarray)
    elif hasattr(value, "__dlpack__") and not isinstance(value, np.generic | np.ndarray):
        array = _from_dlpack(f"The array given for output '{name}'", where, value, expected, True)
    else:
        raise InputError(
            f"The value given for output '{name}' is {_kind(value)}, which cannot be written to",
            where=where,
            hint=f"Give a numpy array or a tensor of {expected}",
        )
    problem = None
    if array.dtype != native_dtype(dtype):
        order = "" if array.dtype.isnative else " in the other byte order"
        problem = f"has elements of {array.dtype.name}{order}, but the result has {dtype}"
    elif array.ndim != rank:
        axes = format_count(array.ndim, "axis", "axes")
        problem = f"has {axes} {list(array.shape)}, but the result has {rank}"
    elif not array.flags.writeable:
        problem = "is read-only"
    elif not (array.flags.c_contiguous and array.flags.aligned):
        problem = "is not row-major and aligned"
    if problem is not None:
        raise InputError(
            f"The array given for output '{name}' {problem}",
            where=where,
            hint=f"Give a writable row-major array of {expected}",
        )
    return array


def as_array(name: str, value: Any, dtype: str, expected: str) -> np.ndarray[Any, Any]:
    """``value`` as a numpy array of whatever type and shape it has. Raises InputError."""
    where = f"input '{name}'"
    if isinstance(value, np.ma.MaskedArray):
        if np.ma.is_masked(value):
            raise InputError(
                f"Input '{name}' is a masked array with masked elements, which have no value",
                where=where,
                hint="Give array.filled(value)",
            )
        value = cast("Any", value).data
    if isinstance(value, np.ndarray):
        # Of subclasses, such as np.matrix, the elements count.
        return cast("np.ndarray[Any, Any]", value).view(np.ndarray)
    if hasattr(value, "__dlpack__") and not isinstance(value, np.generic):
        return _from_dlpack(f"Input '{name}'", where, value, expected, False)
    if isinstance(value, Mapping):
        raise InputError(
            f"Input '{name}' is {_kind(value)}, but {expected} is expected",
            where=where,
            hint=BY_MAPPING,
        )
    if value is None:
        raise InputError(
            f"Input '{name}' is None, but {expected} is expected",
            where=where,
            hint=f"Give an array of {expected}",
        )
    if dtype != "string" and isinstance(value, bytes | bytearray):
        raise InputError(
            f"Input '{name}' is plain memory of {format_count(len(value), 'byte')}, "
            f"but {expected} is expected",
            where=where,
            hint="Give an array; numpy.frombuffer makes one of bytes",
        )
    if dtype != "string" and isinstance(value, str | os.PathLike):
        raise InputError(
            f"Input '{name}' is the text {show(os.fspath(value))}, but {expected} is expected",
            where=where,
            hint="Give an array; numpy.load reads one from an .npy file",
        )
    try:
        array = np.asarray(cast("Any", value))
    # Whatever a value of another library raises when it is read.
    except Exception as error:
        raise InputError(
            f"Input '{name}' cannot be read as an array: {error}",
            where=where,
            hint=f"Give an array of {expected}",
        ) from error
    # Nothing says what the elements of an empty list would be.
    is_empty_list = isinstance(value, list | tuple) and not array.size
    return array.astype(native_dtype(dtype)) if is_empty_list else array


def _kind(value: Any) -> str:
    """What a value is, for people."""
    if isinstance(value, dict):
        return "a dictionary"
    return f"of type {type(value).__module__}.{type(value).__qualname__}"


def _from_dlpack(
    what: str, where: str, value: Any, expected: str, is_written: bool
) -> np.ndarray[Any, Any]:
    # Libraries choose freely what they raise for tensors they do not export.
    try:
        value = _unmarked(value, is_written)
        device = value.__dlpack_device__()[0]
        capsule = _capsule(value) if device in _HOST_DEVICES else None
        array = (
            None if capsule is None else _native.from_dlpack(capsule, _DLPACK_DTYPES, is_written)
        )
    except Exception as error:
        raise InputError(
            f"{what} cannot be taken over through DLPack: {error}",
            where=where,
            hint=f"Give a plain tensor of {expected}, such as tensor.detach()",
        ) from error
    if array is None:
        raise InputError(
            f"{what} is on another device, but the model runs on the CPU",
            where=where,
            hint="Give a copy in main memory, such as tensor.cpu()",
        )
    return array


def _unmarked(value: Any, is_written: bool) -> Any:
    """The tensor with the numbers in its memory.

    Of the imaginary part of a conjugate, PyTorch only notes that they are the negative of what is
    there, which DLPack has no word for. Raises ValueError where results are to be written there.
    """
    if not hasattr(value, "is_neg") or not value.is_neg():
        return value
    if is_written:
        raise ValueError("it is a view of the negative of its memory")
    return value.resolve_neg()


def _capsule(value: Any) -> Any:
    """The capsule of version 1, which says what is read-only, or that of before."""
    try:
        return value.__dlpack__(max_version=(1, 0))
    except TypeError:
        return value.__dlpack__()
