# pyright: basic
"""What the results of a case must be: onnx's reference evaluator on numbers of 64 bits.

Where the evaluator goes element by element, which takes minutes at the sizes of a benchmark, whole
arrays take its place here; the tests put these operators beside onnx's own. May import ops, numpy
and onnx. Start with `evaluate`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from tilewright.ops.reference_corrections import CORRECTIONS

Array = np.ndarray[Any, Any]


def evaluate(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> tuple[Array, ...]:
    """The outputs of a model of f32, computed in f64 as far as its operators do so."""
    operators = {operator.__name__: operator for operator in (*CORRECTIONS, *WHOLE)}
    evaluator = ReferenceEvaluator(_widened(model), new_ops=list(operators.values()))
    wide = {
        name: array.astype(np.float64) if array.dtype == np.float32 else array
        for name, array in inputs.items()
    }
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(np.asarray(result) for result in evaluator.run(None, wide))


def _widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with f64 in the place of f32, in constants and casts."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for tensor in wide.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for node in wide.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
    return wide


def _windows(
    x: Array, extents: Sequence[int], strides: Any, pads: Any, dilations: Any, fill: float
) -> Array:
    """[batch, channels, *places, *taps] of x [batch, channels, *space], padded with ``fill``."""
    rank = len(extents)
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    pads = list(pads or [0] * 2 * rank)
    around = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]
    padded = np.pad(x, around, constant_values=fill)
    spans = [d * (k - 1) + 1 for d, k in zip(dilations, extents, strict=True)]
    windows = sliding_window_view(padded, spans, axis=tuple(range(2, 2 + rank)))
    steps = [slice(None, None, step) for step in (*strides, *dilations)]
    return windows[(slice(None), slice(None), *steps)]


class MaxPool(OpRun):
    """The maximum of windows, without indices and ceilings."""

    op_domain = ""

    def _run(  # type: ignore[override]
        self, x: Array, kernel_shape: Any = None, strides: Any = None, pads: Any = None, **_: Any
    ) -> tuple[Array]:
        windows = _windows(x, kernel_shape, strides, pads, None, -np.inf)
        return (windows.max(axis=tuple(range(x.ndim, windows.ndim))),)


class AveragePool(OpRun):
    """The mean of windows, without ceilings."""

    op_domain = ""

    def _run(  # type: ignore[override]
        self,
        x: Array,
        kernel_shape: Any = None,
        strides: Any = None,
        pads: Any = None,
        count_include_pad: int | None = None,
        **_: Any,
    ) -> tuple[Array]:
        windows = _windows(x, kernel_shape, strides, pads, None, 0.0)
        taps = tuple(range(x.ndim, windows.ndim))
        if count_include_pad:
            return (windows.mean(axis=taps),)
        ones = np.ones((1, 1, *x.shape[2:]))
        counts = _windows(ones, kernel_shape, strides, pads, None, 0.0).sum(axis=taps)
        return (windows.sum(axis=taps) / counts,)


class Conv(OpRun):
    """A depthwise convolution."""

    op_domain = ""

    def _run(  # type: ignore[override]
        self,
        x: Array,
        w: Array,
        bias: Array | None = None,
        strides: Any = None,
        pads: Any = None,
        dilations: Any = None,
        **_: Any,
    ) -> tuple[Array]:
        windows = _windows(x, w.shape[2:], strides, pads, dilations, 0.0)
        total = np.zeros(windows.shape[: x.ndim])
        for tap in np.ndindex(*w.shape[2:]):
            place = (slice(None), 0, *tap)
            spread = w[place].reshape(-1, *[1] * (x.ndim - 2))
            total += windows[(..., *tap)] * spread
        if bias is not None:
            total += bias.reshape(-1, *[1] * (x.ndim - 2))
        return (total,)


class Resize(OpRun):
    """Resizing by factors, axis after axis: nearest with floors, or linear."""

    op_domain = ""

    def _run(  # type: ignore[override]
        self,
        x: Array,
        roi: Any = None,
        scales: Array | None = None,
        sizes: Any = None,
        mode: str = "nearest",
        coordinate_transformation_mode: str = "half_pixel",
        **_: Any,
    ) -> tuple[Array]:
        assert scales is not None, "resizing by sizes is in no table"
        for axis, scale in enumerate(map(float, scales)):
            if scale != 1.0:
                places = _places(x.shape[axis], scale, coordinate_transformation_mode)
                x = _interpolated(x, axis, places, mode)
        return (x,)


def _places(extent: int, scale: float, transformation: str) -> Array:
    """Where the elements of the result lie on an axis of the data."""
    count = math.floor(extent * scale)
    index = np.arange(count, dtype=np.float64)
    match transformation:
        case "asymmetric":
            return index / scale
        case "align_corners":
            return index * (extent - 1) / max(extent * scale - 1, 1)
        case _:
            return (index + 0.5) / scale - 0.5


def _interpolated(x: Array, axis: int, places: Array, mode: str) -> Array:
    low = np.floor(places)
    last = x.shape[axis] - 1
    before = np.take(x, np.clip(low, 0, last).astype(int), axis)
    if mode == "nearest":
        return before
    after = np.take(x, np.clip(low + 1, 0, last).astype(int), axis)
    share = (places - low).reshape(-1, *[1] * (x.ndim - 1 - axis))
    return before * (1 - share) + after * share


class ScatterElements(OpRun):
    """Elements replaced, or added to."""

    op_domain = ""

    def _run(  # type: ignore[override]
        self,
        data: Array,
        indices: Array,
        updates: Array,
        axis: int = 0,
        reduction: str | None = None,
    ) -> tuple[Array]:
        out = data.copy()
        index = list(np.indices(indices.shape, sparse=True))
        index[axis] = indices
        if reduction == "add":
            np.add.at(out, tuple(index), updates)
        else:
            out[tuple(index)] = updates
        return (out,)


class GatherElements(OpRun):
    """Elements along an axis; onnx's own wants as many indices as there are elements."""

    op_domain = ""

    def _run(self, data: Array, indices: Array, axis: int = 0) -> tuple[Array]:  # type: ignore[override]
        return (np.take_along_axis(data, indices, axis),)


class GatherND(OpRun):
    """Rows by tuples of indices."""

    op_domain = ""

    def _run(  # type: ignore[override]
        self, data: Array, indices: Array, batch_dims: int = 0
    ) -> tuple[Array]:
        return (data[tuple(np.moveaxis(indices, -1, 0))],)


WHOLE: tuple[type[OpRun], ...] = (
    MaxPool,
    AveragePool,
    Conv,
    Resize,
    ScatterElements,
    GatherElements,
    GatherND,
)
