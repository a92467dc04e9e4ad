"""DFT and STFT as contractions with cosines and sines, and the windows used with them.

Complex numbers are a last axis of 2 (1 for real ones). Angles are reduced by integer arithmetic
before they become floats, so long transforms stay exact. Start with ``_transform``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from onnx import TensorProto

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.make import transpose
from tilewright.ops.build import Builder, cast, dimension, scalar
from tilewright.ops.linear import contract, with_size
from tilewright.ops.onnx_types import element_type
from tilewright.ops.record import RuleContext, operator
from tilewright.ops.sizes import size_of
from tilewright.ops.types import require_native
from tilewright.shape import Expr, Truth, constant, less, less_equal, maximum, minimum
from tilewright.support.errors import InvalidModelError


@operator("DFT", since=17)
def _dft_17(context: RuleContext) -> Sequence[Node]:
    """Before opset 20: the axis is an attribute, by default the second."""
    return [_dft(context, context.integer("axis", 1))]


@operator("DFT", since=20)
def _dft_20(context: RuleContext) -> Sequence[Node]:
    """From opset 20 on: the axis is an operand, by default the last but one."""
    has_axis = context.optional(2) is not None
    axis = context.static_integers(2, "the axis of DFT")[0] if has_axis else -2
    return [_dft(context, axis)]


def _dft(context: RuleContext, axis: int) -> Node:
    b = Builder(context)
    require_native(context)
    x = context.operand(0)
    axis = axis + x.rank if axis < 0 else axis
    if not 0 <= axis < x.rank - 1:
        raise InvalidModelError(f"axis {axis} of a signal of rank {x.rank}", where=context.where)
    inverse = context.integer("inverse", 0) != 0
    onesided = context.integer("onesided", 0) != 0
    if context.optional(1) is not None:
        length = context.integers(1)[0]
    elif inverse and onesided:
        length = (x.shape[axis] - 1) * 2
    else:
        length = x.shape[axis]
    return _transform(b, _complex(b, x), axis, b.scope.resolve(length), inverse, onesided)


def _complex(b: Builder, x: Node) -> Node:
    """``x`` with a last axis that is known to be 1 (real) or 2."""
    size = b.scope.resolve(x.shape[-1])
    if size.is_constant and size.value in (1, 2):
        return with_size(b, x, x.rank - 1, size)
    zeros = [constant(0)] * (x.rank - 1)
    b.context.require(less_equal(1, size), "a signal has one or two components")
    b.context.require(less_equal(size, 2), "a signal has one or two components")
    padded = b.pad(x, [*zeros, constant(0)], [*zeros, maximum(0, 2 - size)])
    return with_size(b, padded, x.rank - 1, 2)


def _transform(b: Builder, x: Node, axis: int, length: Expr, inverse: bool, onesided: bool) -> Node:
    """The transform along ``axis`` with ``length`` points: one contraction with a matrix."""
    half = length // 2 + 1
    taken = half if inverse and onesided else length
    given = half if onesided and not inverse else length
    signal = _fitted(b, x, axis, b.scope.resolve(taken))
    components = signal.shape[-1].value
    table = _table(b, signal.dtype, [taken, given], length, components, inverse, onesided)
    product = contract(b, signal, table, [(axis, 0), (signal.rank - 1, 1)])
    # [other axes…, points, components]: the points go back to where they were.
    order = list(range(product.rank))
    order.insert(axis, order.pop(product.rank - 2))
    return transpose(product, order)


def _fitted(b: Builder, x: Node, axis: int, size: Expr) -> Node:
    """``x`` cut or filled with zeros to ``size`` along ``axis``."""
    own = b.scope.resolve(x.shape[axis])
    if b.scope.is_equal(own, size) is Truth.YES:
        return with_size(b, x, axis, size)
    kept = b.scope.resolve(minimum(own, size))
    cut = b.slice_axis(x, axis, 0, kept)
    high = [constant(0)] * x.rank
    high[axis] = b.scope.resolve(size - kept)
    return with_size(b, b.pad(cut, [0] * x.rank, high), axis, size)


def _table(
    b: Builder, dtype: DType, sizes: Sequence[Expr], length: Expr, components: int,
    inverse: bool, onesided: bool,
) -> Node:  # fmt: skip
    """[taken, components, given, components out]: cosines and sines, with their factors."""
    b.context.require(less(0, length), "a transform needs at least one point")
    count = b.iota(sizes, 0)
    turns = b.map("remainder", b.multiply(count, b.iota(sizes, 1)), dimension(length))
    cosine, sine = (
        b.gather(_circle(b, function, length, dtype), turns, 0) for function in ("cosine", "sine")
    )
    if inverse:
        factor = b.divide(scalar(1, dtype), cast(dimension(length), dtype))
        if onesided:
            # Every frequency but the first and the middle one stands for two.
            doubled = b.map("remainder", b.multiply(count, 2), dimension(length))
            alone = b.map("equal", doubled, scalar(0, DType.INT64))
            weight = b.select(alone, scalar(1, dtype), scalar(2, dtype))
            factor = b.multiply(weight, factor)
        cosine, sine = b.multiply(cosine, factor), b.multiply(sine, factor)
    opposite = b.map("negate", sine)
    from_real = [cosine, sine if inverse else opposite]
    from_imaginary = [opposite if inverse else sine, cosine]
    outputs = 1 if inverse and onesided else 2
    rows = [from_real[:outputs], from_imaginary[:outputs]][:components]
    columns = [b.concat([b.unsqueeze(part, [2]) for part in row], 2) for row in rows]
    return b.concat([b.unsqueeze(column, [1]) for column in columns], 1)


def _circle(b: Builder, function: str, length: Expr, dtype: DType) -> Node:
    """Cosines or sines of ``length`` angles around the circle, rounded from float64."""
    angle = b.multiply(cast(b.iota([length], 0), DType.FLOAT64), 2 * math.pi)
    return cast(b.map(function, b.divide(angle, cast(dimension(length), DType.FLOAT64))), dtype)


@operator("STFT", since=17)
def _stft(context: RuleContext) -> Sequence[Node]:
    """[batch, samples, components] to [batch, frames, points, 2]."""
    b = Builder(context)
    require_native(context)
    signal, window = _complex(b, context.operand(0)), context.optional(2)
    step = context.integers(1)[0]
    if context.optional(3) is not None:
        length = context.integers(3)[0]
    elif window is not None:
        length = window.shape[0]
    else:
        length = signal.shape[1]
    length = b.scope.resolve(length)
    context.require(less(0, step), "frame_step must be positive")
    context.require(less_equal(length, signal.shape[1]), "the signal is shorter than a frame")
    frames = b.scope.resolve((signal.shape[1] - length) // step + 1)
    sizes = [frames, length]
    positions = b.add(b.multiply(b.iota(sizes, 0), dimension(step)), b.iota(sizes, 1))
    cut = b.gather(signal, positions, 1)
    if window is not None:
        context.require_equal(window.shape[0], length, "the window does not fit the frames")
        cut = b.multiply(cut, b.reshape(window, [length, 1]))
    onesided = context.integer("onesided", 1) != 0
    return [_transform(b, cut, 2, length, inverse=False, onesided=onesided)]


# ---------------------------------------------------------------- windows


@operator("HannWindow", since=17)
def _hann_window(context: RuleContext) -> Sequence[Node]:
    return [_cosine_window(context, (0.5, -0.5))]


@operator("HammingWindow", since=17)
def _hamming_window(context: RuleContext) -> Sequence[Node]:
    return [_cosine_window(context, (25 / 46, -21 / 46))]


@operator("BlackmanWindow", since=17)
def _blackman_window(context: RuleContext) -> Sequence[Node]:
    return [_cosine_window(context, (0.42, -0.5, 0.08))]


def _cosine_window(context: RuleContext, terms: Sequence[float]) -> Node:
    """The sum of ``terms[i]`` * cos(2 pi i n / period) over a window of the size given."""
    b = Builder(context)
    number = context.integer("output_datatype", TensorProto.FLOAT)
    dtype = element_type(number, where=context.where)
    size = size_of(context, context.integers(0)[0], "the size of a window")
    period = size if context.integer("periodic", 1) else size - 1
    computed = DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32
    position = b.multiply(cast(b.iota([size], 0), computed), 2 * math.pi)
    angle = b.divide(position, cast(dimension(period), computed))
    out = b.expand(scalar(terms[0], computed), [size])
    for multiple, factor in enumerate(terms[1:], start=1):
        turned = angle if multiple == 1 else b.multiply(angle, float(multiple))
        out = b.add(out, b.multiply(b.map("cosine", turned), factor))
    return cast(out, dtype)
