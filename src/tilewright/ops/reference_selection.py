"""What finds elements: onnx's reference sorts all for TopK, and loops over pairs of boxes.

It draws none from a distribution. Imports runtime, numpy and onnx. Start with :class:`TopK`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.reference.op_run import OpRun

from tilewright.runtime.built_in import compute

Array = np.ndarray[Any, Any]


class TopK(OpRun):
    """TopK that sorts what it has chosen; the reference sorts all elements first."""

    op_domain = ""

    def _run(  # type: ignore[override]
        self,
        data: Array,
        count: Array | None = None,
        k: int | None = None,
        axis: int | None = None,
        largest: int | None = None,
        sorted: int | None = None,
    ) -> tuple[Array, ...]:
        wanted = np.asarray(k if count is None else count).astype(np.int64)
        given = {"axis": axis, "largest": largest, "sorted": sorted}
        return tuple(compute("TopK", [data, wanted], **_present(given)))


class NonMaxSuppression(OpRun):
    """NonMaxSuppression that compares a box with many at once.

    Of equal scores the first box is taken; boxes without area suppress none, as in ONNX Runtime.
    """

    op_domain = ""

    def _run(  # type: ignore[override]
        self, *operands: Array | None, center_point_box: int | None = None
    ) -> tuple[Array, ...]:
        given = _present({"center_point_box": center_point_box})
        return tuple(compute("NonMaxSuppression", list(operands), **given))


class NonZero(OpRun):
    """NonZero that counts all axes as one; the reference compares along each."""

    op_domain = ""

    def _run(self, data: Array) -> tuple[Array]:  # type: ignore[override]
        if data.ndim == 0:
            return (np.zeros((0, int(data != 0)), np.int64),)
        rest = np.flatnonzero(data if data.dtype.kind in "bOUS" else data != 0)
        found = np.empty((data.ndim, len(rest)), np.int64)
        for axis in range(data.ndim - 1, 0, -1):
            outer = rest // max(data.shape[axis], 1)
            np.subtract(rest, outer * data.shape[axis], out=found[axis])
            rest = outer
        found[0] = rest
        return (found,)


class Multinomial(OpRun):
    """Classes drawn by their probabilities, whose logarithms are given up to a sum; [batch, drawn].

    The same for every call where there is a seed.
    """

    op_domain = ""

    def _run(  # type: ignore[override]
        self,
        logarithms: Array,
        dtype: int | None = None,
        sample_size: int | None = None,
        seed: float | None = None,
    ) -> tuple[Array]:
        kind = tensor_dtype_to_np_dtype(TensorProto.INT32 if dtype is None else dtype)
        drawn = 1 if sample_size is None else sample_size
        given = logarithms.astype(np.float64)
        # Not numpy's newer generators, which may draw others from one version to the next.
        source = np.random.RandomState(None if seed is None else int(seed))
        made = np.empty((len(given), drawn), kind)
        for row, values in enumerate(given):
            ends = np.cumsum(np.exp(values - np.max(values)))
            found = np.searchsorted(ends, source.random_sample(drawn) * ends[-1], side="right")
            made[row] = np.minimum(found, len(values) - 1)
        return (made,)


def _present(attributes: dict[str, int | None]) -> dict[str, int]:
    return {name: value for name, value in attributes.items() if value is not None}


__all__ = ["Multinomial", "NonMaxSuppression", "NonZero", "TopK"]
