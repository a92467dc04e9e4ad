"""When two constants are the same: digests of small ones, samples and comparison of large ones.

Most weights are thus never read before they are used. Imports numpy. Start with :func:`digest_of`.
"""

from __future__ import annotations

import hashlib
from typing import Any, cast

import numpy as np

Array = np.ndarray[Any, Any]

_SAMPLES, _TOGETHER = 4, 8  # samples by which large constants are told apart; elements of each
_LARGE = 1 << 16  # bytes
_PART = 1 << 20  # bytes compared at a time


def kept(array: Array) -> Array:
    """The array as a constant holds it.

    It is copied only if it is not contiguous, and not even then if it is large and transposed.
    """
    if _is_large(array) and _is_dense(array):
        return array
    return np.ascontiguousarray(array).reshape(array.shape)


def is_writable(array: Array) -> bool:
    """Whether the array, or one that it is a view of, can be written to."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return True
        owner = cast("Any", owner).base
    if owner is None:
        return False
    try:
        return not memoryview(owner).readonly
    except TypeError:
        return True  # an owner that says nothing


def digest_of(array: Array) -> bytes:
    """Sixteen bytes that are equal for equal contents; of a large array, for equal samples."""
    if _is_large(array):
        # Few places, as each may be a page that is read for it alone.
        places = np.linspace(0, array.size - _TOGETHER, _SAMPLES).astype(np.int64)
        places = (places[:, np.newaxis] + np.arange(_TOGETHER)).reshape(-1)
        content = array[np.unravel_index(places, array.shape)].tobytes()
    else:
        content = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
    return hashlib.blake2b(content, digest_size=16).digest()


def same_contents(first: Array, second: Array) -> bool:
    """Whether arrays of one type, shape and digest hold the same bits."""
    if first is second or not _is_large(first):
        return True
    if first.ctypes.data == second.ctypes.data and first.strides == second.strides:
        return True
    step = max(1, _PART * len(first) // first.nbytes)
    return all(
        np.array_equal(_bits(first[at : at + step]), _bits(second[at : at + step]))
        for at in range(0, len(first), step)
    )


def _bits(array: Array) -> Array:
    """Integers in the place of numbers, since a NaN is not equal to itself."""
    sizes = {2: np.uint16, 4: np.uint32, 8: np.uint64}
    kind = sizes.get(array.itemsize, np.uint8)
    return array.view(kind) if array.itemsize <= 8 else np.ascontiguousarray(array).view(kind)


def _is_large(array: Array) -> bool:
    return array.nbytes > _LARGE and array.dtype != object


def _is_dense(array: Array) -> bool:
    """Whether the elements lie side by side, in whatever order of the axes."""
    order = np.argsort([-stride for stride in array.strides], kind="stable")
    return bool(array.transpose(order).flags.c_contiguous)
