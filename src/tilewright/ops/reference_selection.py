"""What finds elements: onnx's reference sorts all for TopK, and loops over pairs of boxes.

Imports runtime, numpy and onnx. Start with :class:`TopK`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from tilewright.runtime import _native

Array = np.ndarray[Any, Any]

_NATIVE = "bBhHiIlLqQfd"  # what the extension compares as it is


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
    ) -> tuple[Array, Array]:
        wanted = int(np.asarray(k if count is None else count).reshape(()))
        along = -1 if axis is None else axis
        is_last = along in (-1, data.ndim - 1)
        rows = data if is_last else np.moveaxis(data, along, -1)
        if not 0 <= wanted <= rows.shape[-1]:
            raise ValueError(f"{wanted} of {rows.shape[-1]} elements along axis {along}")
        height, shape = math.prod(rows.shape[:-1]), (*rows.shape[:-1], wanted)
        flat = np.ascontiguousarray(rows.reshape(height, rows.shape[-1]))
        best = np.empty((height, wanted), np.int64)
        # Half floats, of either kind, are in the order of the floats that they equal.
        keys = flat if flat.dtype.char in _NATIVE else flat.astype(np.float32)
        _native.best_places(keys, best, largest != 0)
        begins = np.arange(height)[:, None] * rows.shape[-1]
        values = flat.reshape(-1)[begins + best].reshape(shape)
        best = best.reshape(shape)
        if is_last:
            return values, best
        return np.moveaxis(values, -1, along), np.moveaxis(best, -1, along)


class NonMaxSuppression(OpRun):
    """NonMaxSuppression that keeps its boxes side by side and compares many at once.

    Of equal scores the first box is taken; boxes without area suppress none, as in ONNX Runtime.
    """

    op_domain = ""

    def _run(  # type: ignore[override]
        self,
        boxes: Array,
        scores: Array,
        most: Array | None = None,
        overlap: Array | None = None,
        least: Array | None = None,
        center_point_box: int | None = None,
    ) -> tuple[Array]:
        limit = float(0 if overlap is None else overlap.reshape(()))
        if not 0 <= limit <= 1:
            raise ValueError(f"iou_threshold is {limit}, which is not from 0 to 1")
        found = _native.suppressed_boxes(
            np.ascontiguousarray(boxes),
            np.ascontiguousarray(scores),
            0 if most is None else int(most.reshape(())),
            limit,
            None if least is None else float(least.reshape(())),
            center_point_box == 1,
        )
        return (np.frombuffer(found, np.int64).reshape(-1, 3),)


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


__all__ = ["NonMaxSuppression", "NonZero", "TopK"]
