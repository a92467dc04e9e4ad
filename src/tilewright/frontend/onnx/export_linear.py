"""Convolutions and windows as ONNX operators.

ONNX wants their padding as attributes, where it is an expression here: operands are padded first,
and surplus results are cut off. Start with :func:`write_convolve`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from tilewright.frontend.onnx.export_writer import OnnxWriter
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.primitives import Convolve, Window
from tilewright.shape import Expr, constant, maximum, product


def _spread(
    writer: OnnxWriter, x: str, shape: Sequence[Expr], steps: Sequence[int]
) -> tuple[str, list[Expr]]:
    """Zeros between the elements of the last axes."""
    sizes = list(shape)
    for axis, step in enumerate(steps, start=len(shape) - len(steps)):
        if step == 1:
            continue
        apart = [*sizes[: axis + 1], constant(1), *sizes[axis + 1 :]]
        x = writer.emit("Reshape", [x, writer.sizes(apart)], allowzero=1)
        high = [0] * len(apart)
        high[axis + 1] = step - 1
        x = writer.emit("Pad", [x, writer.integers([0] * len(apart) + high)])
        wide = [*sizes[:axis], sizes[axis] * step, *sizes[axis + 1 :]]
        x = writer.emit("Reshape", [x, writer.sizes(wide)], allowzero=1)
        sizes[axis] = maximum((sizes[axis] - 1) * step + 1, 0)
        x = _cut(writer, x, {axis: sizes[axis]})
    return x, sizes


def _cut(writer: OnnxWriter, x: str, sizes: dict[int, Expr]) -> str:
    """The first elements of some axes."""
    axes = list(sizes)
    operands = [
        writer.integers([0] * len(axes)),
        writer.sizes([sizes[a] for a in axes]),
        writer.integers(axes),
    ]
    return writer.emit("Slice", [x, *operands])


def _padded(
    writer: OnnxWriter,
    x: str,
    shape: Sequence[Expr],
    primitive: Convolve | Window,
    kernel: Sequence[Expr],
    fill: str | None,
) -> str:
    """``x`` with all that the windows reach; at least one window fits."""
    lead = len(shape) - len(kernel)
    low = [constant(0)] * lead + list(primitive.low)
    high = [constant(0)] * lead
    for axis, taps in enumerate(kernel):
        count = maximum(primitive.sizes[axis], 1)
        reach = (count - 1) * primitive.strides[axis] + (taps - 1) * primitive.dilations[axis] + 1
        high.append(maximum(reach - primitive.low[axis] - shape[lead + axis], 0))
    operands = [x, writer.sizes((*low, *high))]
    return writer.emit("Pad", operands if fill is None else [*operands, fill])


def write_convolve(
    writer: OnnxWriter, primitive: Convolve, x: list[str], operands: Sequence[Node]
) -> str:
    """A Conv on data that is spread and padded before."""
    data, weights = operands
    shape_first, source = list(data.shape), x[0]
    if primitive.channels_last:
        rank = data.rank
        source = writer.emit("Transpose", [source], perm=[0, rank - 1, *range(1, rank - 1)])
        shape_first.insert(1, shape_first.pop())
    spread, shape = _spread(writer, source, shape_first, primitive.spread)
    padded = _padded(writer, spread, shape, primitive, weights.shape[2:], None)
    out = writer.emit(
        "Conv",
        [padded, x[1]],
        strides=list(primitive.strides),
        dilations=list(primitive.dilations),
        group=primitive.groups,
    )
    out = _cut(writer, out, {axis + 2: size for axis, size in enumerate(primitive.sizes)})
    if primitive.channels_last:
        out = writer.emit("Transpose", [out], perm=[0, *range(2, data.rank), 1])
    return out


def write_window(writer: OnnxWriter, primitive: Window, x: str, operand: Node) -> str:
    """A pooling in float64 over data padded with the neutral element."""
    axes = primitive.windowed(operand.rank)
    order = [*range(axes.start), *range(axes.stop, operand.rank), *range(axes.start, axes.stop)]
    if primitive.trailing:
        x = writer.emit("Transpose", [x], perm=order)
    shape = [operand.shape[axis] for axis in order]
    lead = shape[: axes.start + primitive.trailing]
    flat = (product(lead), constant(1), *operand.shape[axes])
    x = writer.emit("Cast", [x], to=onnx.TensorProto.DOUBLE)
    x = writer.emit("Reshape", [x, writer.sizes(flat)], allowzero=1)
    if primitive.kind == "minimum":
        x = writer.emit("Neg", [x])
    fill = 0.0 if primitive.kind == "sum" else -np.inf
    kernel = [constant(k) for k in primitive.kernel]
    neutral = writer.constant(np.array(fill, dtype=np.float64))
    x = _padded(writer, x, flat, primitive, kernel, neutral)
    x = writer.emit(
        "AveragePool" if primitive.kind == "sum" else "MaxPool",
        [x],
        kernel_shape=list(primitive.kernel),
        strides=list(primitive.strides),
        dilations=list(primitive.dilations),
    )
    if primitive.kind == "sum":
        count = float(np.prod(primitive.kernel))
        x = writer.emit("Mul", [x, writer.constant(np.array(count, dtype=np.float64))])
    elif primitive.kind == "minimum":
        x = writer.emit("Neg", [x])
    x = _cut(writer, x, {axis + 2: size for axis, size in enumerate(primitive.sizes)})
    x = writer.emit("Reshape", [x, writer.sizes((*lead, *primitive.sizes))], allowzero=1)
    if primitive.trailing:
        x = writer.emit("Transpose", [x], perm=[order.index(axis) for axis in range(operand.rank)])
    if operand.dtype is DType.FLOAT64:
        return x
    name = "FLOAT" if operand.dtype is DType.FLOAT32 else operand.dtype.name
    return writer.emit("Cast", [x], to=onnx.TensorProto.DataType.Value(name))
