"""The numpy meaning of the linear and windowed primitives. Start with :func:`contract`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.ir.primitives import Convolve, Window

Array = np.ndarray[Any, Any]


def contract(
    left: Array,
    right: Array,
    batch: Sequence[tuple[int, int]],
    summed: Sequence[tuple[int, int]],
) -> Array:
    """Sum of products over paired axes; batch axes first, then free left, then free right."""
    left_free = _free(left.ndim, [i for i, _ in (*batch, *summed)])
    right_free = _free(right.ndim, [j for _, j in (*batch, *summed)])
    a = left.transpose([i for i, _ in batch] + left_free + [i for i, _ in summed])
    b = right.transpose([j for _, j in batch] + [j for _, j in summed] + right_free)
    lead = a.shape[: len(batch)]
    m = a.shape[len(batch) : len(batch) + len(left_free)]
    n = b.shape[len(batch) + len(summed) :]
    depth = int(np.prod(a.shape[len(batch) + len(left_free) :]))
    rows, columns = int(np.prod(m)), int(np.prod(n))
    product = np.matmul(a.reshape((*lead, rows, depth)), b.reshape((*lead, depth, columns)))
    return product.reshape((*lead, *m, *n))


def _free(rank: int, paired: Sequence[int]) -> list[int]:
    return [a for a in range(rank) if a not in paired]


def _patches(
    x: Array,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    low: Sequence[int],
    sizes: Sequence[int],
    fill: Any,
) -> Array:
    """[lead…, sizes…, kernel…]: all windows of the last axes, ``fill`` outside of ``x``."""
    lead = x.ndim - len(kernel)
    widths = [(0, 0)] * lead
    for axis, (k, s, d, before, n) in enumerate(
        zip(kernel, strides, dilations, low, sizes, strict=True)
    ):
        reach = (n - 1) * s + (k - 1) * d + 1 if n else 0
        widths.append((before, max(0, reach - before - x.shape[lead + axis])))
    padded = np.pad(x, widths, constant_values=fill)
    for axis, (k, s, d, n) in enumerate(zip(kernel, strides, dilations, sizes, strict=True)):
        positions = np.arange(n)[:, None] * s + np.arange(k)[None, :] * d
        padded = np.take(padded, positions, axis=lead + 2 * axis)
    order = list(range(lead)) + [lead + 2 * a for a in range(len(kernel))]
    return padded.transpose(order + [lead + 2 * a + 1 for a in range(len(kernel))])


def convolve(
    primitive: Convolve, data: Array, weights: Array, low: Sequence[int], sizes: Sequence[int]
) -> Array:
    """The convolution with spread, stride, dilation and groups (see ``Convolve``)."""
    if primitive.channels_last:
        first = replace(primitive, channels_last=False)
        return np.moveaxis(convolve(first, np.moveaxis(data, -1, 1), weights, low, sizes), 1, -1)
    spatial = data.shape[2:]
    spread = [max(0, (n - 1) * s + 1) for n, s in zip(spatial, primitive.spread, strict=True)]
    if spread != list(spatial):
        wide = np.zeros(data.shape[:2] + tuple(spread), dtype=data.dtype)
        wide[(slice(None), slice(None), *(slice(None, None, s) for s in primitive.spread))] = data
        data = wide
    kernel = weights.shape[2:]
    zero = data.dtype.type(0)
    windows = _patches(data, kernel, primitive.strides, primitive.dilations, low, sizes, zero)
    n, g, rank = data.shape[0], primitive.groups, len(kernel)
    grouped = windows.reshape(n, g, windows.shape[1] // g, *windows.shape[2:])
    depth = int(np.prod(weights.shape[1:]))
    columns = np.moveaxis(grouped, 2, 2 + rank).reshape(n, g, int(np.prod(sizes)), depth)
    filters = weights.reshape(g, weights.shape[0] // g, depth)
    out = np.einsum("ngpk,gok->ngop", columns, filters, optimize=True)
    return out.reshape(n, weights.shape[0], *sizes)


def window(primitive: Window, x: Array, low: Sequence[int], sizes: Sequence[int]) -> Array:
    """Windowed reduction; elements outside do not take part."""
    if primitive.trailing:
        kept = tuple(range(primitive.windowed(x.ndim).start))
        trailing = tuple(range(x.ndim - primitive.trailing, x.ndim))
        lead = tuple(range(len(kept), len(kept) + len(trailing)))
        last = replace(primitive, trailing=0)
        return np.moveaxis(window(last, np.moveaxis(x, trailing, lead), low, sizes), lead, trailing)
    from_kind = {"sum": (0, np.add), "maximum": (None, np.maximum), "minimum": (None, np.minimum)}
    fill, function = from_kind[primitive.kind]
    if fill is None:
        largest = primitive.kind == "minimum"
        if x.dtype.kind == "f":
            fill = np.inf if largest else -np.inf
        else:
            info = np.iinfo(x.dtype)
            fill = info.max if largest else info.min
    windows = _patches(
        x, primitive.kernel, primitive.strides, primitive.dilations, low, sizes, fill
    )
    axes = tuple(range(windows.ndim - len(primitive.kernel), windows.ndim))
    return function.reduce(windows, axis=axes, dtype=x.dtype)
