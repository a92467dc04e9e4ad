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
from tilewright.shape import Expr, Truth, ceil_div, constant, less, less_equal, maximum, minimum
from tilewright.support.errors import InvalidModelError

LEAST_GAIN = 7  # times less depth of two steps' products, which are small and move points twice


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
    """The transform along ``axis`` with ``length`` points, by products with tables of rotations."""
    half = length // 2 + 1
    taken = half if inverse and onesided else length
    given = half if onesided and not inverse else length
    signal = _fitted(b, x, axis, b.scope.resolve(taken))
    factors = None if inverse and onesided else _factors(length)
    if factors is None:
        components = signal.shape[-1].value
        table = _table(b, signal.dtype, [taken, given], length, components, inverse, onesided)
        product = contract(b, signal, table, [(axis, 0), (signal.rank - 1, 1)])
    else:
        others = [a for a in range(signal.rank - 1) if a != axis]
        moved = transpose(signal, [*others, axis, signal.rank - 1])
        product = _in_two_steps(b, moved, factors, b.scope.resolve(given), inverse)
    # [other axes…, points, components]: the points go back to where they were.
    order = list(range(product.rank))
    order.insert(axis, order.pop(product.rank - 2))
    return transpose(product, order)


def _factors(length: Expr) -> tuple[int, int] | None:
    """Two factors of a length with which two steps are far less work than one; None without."""
    if not length.is_constant or length.value < 1:
        return None
    points = length.value
    first = next(n for n in range(math.isqrt(points), 0, -1) if points % n == 0)
    second = points // first
    return (first, second) if LEAST_GAIN * (first + second) <= points else None


def _in_two_steps(
    b: Builder, signal: Node, factors: tuple[int, int], given: Expr, inverse: bool
) -> Node:
    """The first ``given`` points of the transform of [other axes…, first * second, components].

    Point j = second * j1 + j2 goes into point k = k1 + first * k2: transforms over j1 first, then
    over j2, whose rotations are those of j2 * k (Cooley and Tukey, 1965).
    """
    first, second = map(constant, factors)
    others, (points, components) = signal.shape[:-2], signal.shape[-2:]
    rank = len(others)
    parts = b.reshape(signal, [*others, first, second, components])
    table = _table(b, signal.dtype, [first, first], first, components.value, inverse, False)
    inner = contract(b, parts, table, [(rank, 0), (rank + 2, 1)])  # [others…, j2, k1, 2]
    rows = ceil_div(given, first)
    sizes = [first, second, rows]
    k = b.add(b.iota(sizes, 0), b.multiply(b.iota(sizes, 2), dimension(first)))
    turns = b.map("remainder", b.multiply(b.iota(sizes, 1), k), dimension(points))
    whole = cast(dimension(second), signal.dtype)
    factor = b.divide(scalar(1, signal.dtype), whole) if inverse else None
    outer = _rotations(b, turns, points, signal.dtype, (2, 2), factor)
    made = contract(b, inner, outer, [(rank, 1), (rank + 2, 2)], [(rank + 1, 0)])
    # [k1, others…, k2, 2]
    order = [*range(1, rank + 2), 0, rank + 2]
    made = b.reshape(transpose(made, order), [*others, rows * first, 2])
    return with_size(b, b.slice_axis(made, rank, 0, given), rank, given)


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
    factor: Node | None = None
    if inverse:
        factor = b.divide(scalar(1, dtype), cast(dimension(length), dtype))
        if onesided:
            # Every frequency but the first and the middle one stands for two.
            doubled = b.map("remainder", b.multiply(count, 2), dimension(length))
            alone = b.map("equal", doubled, scalar(0, DType.INT64))
            weight = b.select(alone, scalar(1, dtype), scalar(2, dtype))
            factor = b.multiply(weight, factor)
    outputs = 1 if inverse and onesided else 2
    return _rotations(b, turns, length, dtype, (components, outputs), factor)


def _rotations(
    b: Builder, turns: Node, length: Expr, dtype: DType, parts: tuple[int, int],
    factor: Node | None,
) -> Node:  # fmt: skip
    """[…, components, given, components out] of turns […, given] by parts of the circle.

    Forwards, or backwards with the ``factor`` of an inverse transform.
    """
    components, outputs = parts
    cosine, sine = (
        b.gather(_circle(b, function, length, dtype), turns, 0) for function in ("cosine", "sine")
    )
    if factor is not None:
        cosine, sine = b.multiply(cosine, factor), b.multiply(sine, factor)
    opposite = b.map("negate", sine)
    from_real = [cosine, opposite if factor is None else sine]
    from_imaginary = [sine if factor is None else opposite, cosine]
    rows = [from_real[:outputs], from_imaginary[:outputs]][:components]
    last = turns.rank
    columns = [b.concat([b.unsqueeze(part, [last]) for part in row], last) for row in rows]
    return b.concat([b.unsqueeze(column, [last - 1]) for column in columns], last - 1)


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
