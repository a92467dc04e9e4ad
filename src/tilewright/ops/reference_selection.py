"""TopK and NonMaxSuppression in numpy: onnx's reference evaluator sorts all, and loops over pairs.

Imports numpy and onnx. Start with :class:`TopK`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

Array = np.ndarray[Any, Any]

TOGETHER = 64  # boxes that are compared with each other at once
SORTED_WHOLE = 4096  # elements: a sort of fewer takes less than finding which of them to sort


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
        flat = rows.reshape(height, rows.shape[-1])
        keys = _ordered(flat)
        least = _least(keys if largest == 0 else ~keys, wanted)
        best, values = least.reshape(shape), flat[np.arange(height)[:, None], least].reshape(shape)
        if is_last:
            return values, best
        return np.moveaxis(values, -1, along), np.moveaxis(best, -1, along)


def _ordered(values: Array) -> Array:
    """Integers in the same order; what is not a number is the greatest, and both zeros are one."""
    if values.dtype.kind in "iu":
        return values
    same = values + values.dtype.type(0)
    same[np.isnan(same)] = np.nan
    bits = same.view(f"i{values.dtype.itemsize}")
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)


def _least(keys: Array, count: int) -> Array:
    """Where the ``count`` least of every row are in order, of equal ones the first."""
    if count == 0 or keys.shape[0] == 0:
        return np.zeros((keys.shape[0], count), np.int64)
    if keys.size <= SORTED_WHOLE:
        return np.argsort(keys, axis=1, kind="stable")[:, :count]
    last = np.partition(keys, count - 1, axis=1)[:, count - 1 : count]
    less, equal = keys < last, keys == last
    missing = count - np.count_nonzero(less, axis=1)
    chosen = less | (equal & (np.cumsum(equal, axis=1) <= missing[:, None]))
    places = np.nonzero(chosen)[1].reshape(-1, count)
    order = np.argsort(np.take_along_axis(keys, places, axis=1), axis=1, kind="stable")
    return np.take_along_axis(places, order, axis=1)


class NonMaxSuppression(OpRun):
    """NonMaxSuppression that compares many boxes at once.

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
        count = 0 if most is None else int(most.reshape(()))
        limit = np.float32(0 if overlap is None else overlap.reshape(()))
        if not 0 <= limit <= 1:
            raise ValueError(f"iou_threshold is {limit}, which is not from 0 to 1")
        threshold = -np.inf if least is None else least.reshape(())
        found: list[tuple[int, int, int]] = []
        for batch in range(scores.shape[0] if count > 0 else 0):
            corners = _corners(boxes[batch], center_point_box == 1)
            for label, row in enumerate(scores[batch]):
                (candidates,) = np.nonzero(row > threshold if least is not None else row == row)
                order = candidates[np.argsort(-row[candidates], kind="stable")]
                taken = _not_suppressed(corners[:, order], count, limit)
                found += [(batch, label, box) for box in order[taken].tolist()]
        return (np.array(found, np.int64).reshape(-1, 3),)


def _corners(boxes: Array, centred: bool) -> Array:
    """Lower and upper ends of boxes along both axes, and their areas: [5, boxes]."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if centred:
        low, high = first - second / 2, first + second / 2
    else:
        low, high = np.minimum(first, second), np.maximum(first, second)
    area = (high - low).prod(axis=1)
    return np.ascontiguousarray(np.concatenate([low, high, area[:, None]], axis=1).T)


def _not_suppressed(boxes: Array, count: int, limit: np.float32) -> list[int]:
    """Which of the boxes, the best first, overlap with no better one that is taken."""
    taken: list[int] = []
    for begin in range(0, boxes.shape[1], TOGETHER):
        block = boxes[:, begin : begin + TOGETHER]
        hidden = np.any(np.greater(_shares(boxes[:, taken], block), limit), axis=0)
        hides = np.greater(_shares(block, block), limit)
        for place in range(block.shape[1]):
            if not hidden[place]:
                taken.append(begin + place)
                hidden |= hides[place]
                if len(taken) == count:
                    return taken
    return taken


def _shares(some: Array, others: Array) -> Array:
    """Of every box and every other one, the area in both by the area in either: [some, others]."""
    one = some[:, :, None]
    ends = np.minimum(one[2:4], others[2:4, None]) - np.maximum(one[:2], others[:2, None])
    np.maximum(ends, 0, out=ends)
    both = ends[0] * ends[1]
    union = one[4] + others[4] - both
    counts = (one[4] > 0) & (others[4] > 0) & (union > 0)
    return np.divide(both, union, out=np.zeros_like(both), where=counts)


__all__ = ["NonMaxSuppression", "TopK"]
