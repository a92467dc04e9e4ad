"""Products of the domain com.microsoft: quantised ones, and weights of a few bits in blocks.

Quantised products are exact in int32, as standard ones are; scales and a bias come after. Weights
of a few bits are bytes less their zero points, times scales, block by block; ``rewrite`` decides in
what products read them. Start with :func:`_exact`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.make import transpose
from tilewright.ops.build import Builder, array, cast
from tilewright.ops.contributed import channels_first, channels_last, contributed, standard
from tilewright.ops.linear import contract, matmul
from tilewright.ops.operands import expand_to, widen
from tilewright.ops.quantised_linear import centred, requantised
from tilewright.ops.record import NoRule, RuleContext
from tilewright.ops.sizes import scalar_of
from tilewright.ops.types import require_native
from tilewright.shape import constant
from tilewright.support.errors import InvalidModelError


def _begin(context: RuleContext) -> Builder:
    require_native(context)
    return Builder(context)


def _single(b: Builder, index: int) -> Node:
    """Operand ``index``, which holds one number."""
    return scalar_of(b, b.context.operand(index))


def _exact(b: Builder, left: Node, right: Node, zeros: tuple[int, int]) -> Node:
    """The product of bytes less their zero points, which are optional operands ``zeros``."""
    first, second = (b.context.optional(i) for i in zeros)
    first = None if first is None else scalar_of(b, first)
    return matmul(b, centred(b, left, first), centred(b, right, second))


def _with_bias(b: Builder, x: Node, bias: int) -> Node:
    given = b.context.optional(bias)
    return x if given is None else b.add(x, expand_to(b, given, x.shape, "the bias"))


@contributed("MatMulIntegerToFloat")
def _matmul_integer_to_float(context: RuleContext) -> Sequence[Node]:
    b = _begin(context)
    product = _exact(b, context.operand(0), context.operand(1), (4, 5))
    scale = b.multiply(_single(b, 2), context.operand(3))
    return [_with_bias(b, b.multiply(cast(product, DType.FLOAT32), scale), 6)]


@contributed("DynamicQuantizeMatMul")
def _dynamic_quantize_matmul(context: RuleContext) -> Sequence[Node]:
    """The first operand becomes bytes by its own range, as DynamicQuantizeLinear says."""
    b = _begin(context)
    data, scale, zero = standard(context, "DynamicQuantizeLinear", [context.operand(0)], {}, 3)
    right = centred(b, context.operand(1), context.optional(3))
    product = cast(matmul(b, centred(b, data, zero), right), DType.FLOAT32)
    return [_with_bias(b, b.multiply(product, b.multiply(scale, context.operand(2))), 4)]


@contributed("QGemm")
def _quantised_gemm(context: RuleContext) -> Sequence[Node]:
    """Floats, or bytes where there are a scale and a zero point of the result."""
    b = _begin(context)
    left, right, added = context.operand(0), context.operand(3), context.optional(6)
    if left.rank != 2 or right.rank != 2:
        raise InvalidModelError("QGemm needs matrices", where=context.where)
    left_axis = 0 if context.integer("transA", 0) else 1
    right_axis = 1 if context.integer("transB", 0) else 0
    zero = context.optional(5)
    if zero is not None and zero.rank == 1 and right_axis == 1:
        zero = b.unsqueeze(zero, [1])
    product = contract(
        b,
        centred(b, left, _single(b, 2)),
        centred(b, right, zero),
        [(left_axis, right_axis)],
    )
    if added is not None:
        product = b.add(product, expand_to(b, added, product.shape, "operand C"))
    scale = b.multiply(b.multiply(_single(b, 1), context.operand(4)), context.number("alpha", 1.0))
    if context.optional(7) is None:
        return [b.multiply(cast(product, DType.FLOAT32), scale)]
    return [requantised(b, product, scale, _single(b, 7), _single(b, 8))]


@contributed("QLinearConv")
def _convolution(context: RuleContext) -> Sequence[Node]:
    """The standard operator, and one whose data have the channels last."""
    if not context.integer("channels_last", 0):
        return standard(context, "QLinearConv", context.inputs)
    moved = [channels_first(context.operand(0)), *context.inputs[1:]]
    (made,) = standard(context, "QLinearConv", moved)
    return [channels_last(made)]


# ---------------------------------------------------------------- weights of a few bits


@contributed("MatMulNBits", computes=False)
def _matmul_bits(context: RuleContext) -> Sequence[Node]:
    """Weights [N, blocks, bytes] of 2, 4 or 8 bits, scaled per block of the K that are summed."""
    b = _begin(context)
    if context.optional(4) is not None:
        raise NoRule("the order of groups is an operand", where=context.where)
    if context.integer("weight_prepacked", 0):
        raise NoRule("the weights are packed for a GPU", where=context.where)
    x = widen(context.operand(0))
    out = matmul(b, x, transpose(_weights(b), [1, 0]))
    bias = context.optional(5)
    if bias is not None:
        out = b.add(out, expand_to(b, cast(bias, out.dtype), out.shape, "the bias"))
    return [cast(out, context.operand(0).dtype)]


def _weights(b: Builder) -> Node:
    """The weights [N, K] as floats, made of constants."""
    context = b.context
    bits, block = context.integer("bits", 4), context.integer("block_size")
    rows, depth = context.integer("N"), context.integer("K")
    if bits not in (2, 4, 8):
        raise NoRule(f"weights of {bits} bits", where=context.where)
    if block < 1 or block * bits % 8 or rows < 1 or depth < 1:
        message = f"{rows} x {depth} weights of {bits} bits in blocks of {block}"
        raise InvalidModelError(message, where=context.where)
    packed, scales = context.constant(1), context.constant(2)
    if packed is None or scales is None:
        raise NoRule("the weights or their scales are not constant", where=context.where)
    blocks = -(-depth // block)
    values = _unpacked(packed.reshape(-1), bits)
    if values.size != rows * blocks * block or scales.size != rows * blocks:
        message = (
            f"{packed.size} bytes and {scales.size} scales do not fit {rows} x {depth} weights"
        )
        raise InvalidModelError(message, where=context.where)
    whole = cast(array(values.reshape(rows, blocks, block), DType.UINT8), DType.FLOAT32)
    zeros = array(_zero_points(context, rows, blocks, bits), DType.FLOAT32)
    factor = array(scales.reshape(rows, blocks, 1), DType.FLOAT32)
    centred = b.subtract(whole, b.expand(zeros, whole.shape))
    made = b.multiply(centred, b.expand(factor, whole.shape))
    flat = b.reshape(made, [constant(rows), constant(blocks * block)])
    return b.slice_axis(flat, 1, 0, constant(depth))


def _zero_points(context: RuleContext, rows: int, blocks: int, bits: int) -> np.ndarray:
    """One per block, [rows, blocks, 1] or a number: floats, or packed as the weights are."""
    given = context.optional(3)
    if given is None:
        return np.array(1 << (bits - 1), np.float32)
    found = context.constant(3)
    if found is None:
        raise NoRule("the zero points are not constant", where=context.where)
    if not given.dtype.is_float:
        found = _unpacked(found.reshape(rows, -1), bits)[:, :blocks]
    return found.astype(np.float32).reshape(rows, blocks, 1)


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """Numbers of ``bits`` bits out of bytes, the lowest ones first, along the last axis."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    apart = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return apart.reshape(*packed.shape[:-1], -1)
