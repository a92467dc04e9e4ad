"""DynamicQuantizeLSTM of the domain com.microsoft: an LSTM whose weights are bytes.

The inputs of all steps become bytes by their own range, as in ONNX Runtime, and their product with
the weights is exact. The states stay floats: ONNX Runtime makes bytes of those that a thread has at
a time, so that its last digits depend on the number of threads and on the rest of the batch; here a
sequence gives the same result whatever is beside it. Start with :func:`_lstm`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.make import transpose
from tilewright.ops.build import Builder, cast
from tilewright.ops.contributed import contributed, standard
from tilewright.ops.linear import contract
from tilewright.ops.quantised_linear import centred
from tilewright.ops.record import RuleContext
from tilewright.ops.recurrent import Weights, long_short_term_memory
from tilewright.ops.types import require_native
from tilewright.shape import constant
from tilewright.support.errors import InvalidModelError


@contributed("DynamicQuantizeLSTM")
def _lstm(context: RuleContext) -> Sequence[Node]:
    """Weights have the gates last, and a scale and a zero point by direction or by gate."""
    require_native(context)
    b = Builder(context)
    weights, recurrent = context.operand(1), context.operand(2)
    for given in (weights, recurrent):
        context.require_equal(given.shape[2], recurrent.shape[1] * 4, "the weights of four gates")
        context.require_equal(given.shape[0], recurrent.shape[0], "the number of directions")

    def sums(b: Builder, x: Node, index: int) -> Node:
        data, scale, zero = standard(
            context, "DynamicQuantizeLinear", [_reached(b, x)], {}, outputs=3
        )
        own = b.reshape(b.slice_axis(weights, 0, index, 1), weights.shape[1:])
        right = centred(b, own, _of_direction(b, 9, index))
        product = cast(contract(b, centred(b, data, zero), right, [(2, 0)]), DType.FLOAT32)
        return b.multiply(product, b.multiply(scale, _of_direction(b, 8, index)))

    known = b.multiply(
        cast(b.subtract(cast(recurrent, DType.INT32), _spread(b, 11, recurrent)), DType.FLOAT32),
        _spread(b, 10, recurrent),
    )
    return long_short_term_memory(context, Weights(sums, transpose(known, [0, 2, 1])))


def _reached(b: Builder, x: Node) -> Node:
    """The inputs up to the longest sequence's end: what lies behind it has no part in the range."""
    lengths = b.context.optional(4)
    if lengths is None:
        return x
    longest = b.maximum(b.reduce("maximum", cast(lengths, DType.INT64), [0]), 0)
    return b.select(b.map("less", b.iota(x.shape, 0), longest), x, 0.0)


def _parameter(b: Builder, operand: int) -> Node:
    """A scale or a zero point, [directions] or [directions, 4 * H]."""
    found = b.context.operand(operand)
    if found.rank not in (1, 2):
        message = f"operand {operand} has {found.rank} axes: it is by direction or by gate"
        raise InvalidModelError(message, where=b.context.where)
    directions = b.context.operand(2).shape[0]
    b.context.require_equal(found.shape[0], directions, f"the directions of operand {operand}")
    return found


def _of_direction(b: Builder, operand: int, index: int) -> Node:
    """A scale or a zero point of one direction: a number, or one for each column."""
    found = _parameter(b, operand)
    return b.reshape(b.slice_axis(found, 0, index, 1), found.shape[1:])


def _spread(b: Builder, operand: int, weights: Node) -> Node:
    """A scale or a zero point of all directions, as large as the weights [directions, H, 4 * H]."""
    found = _parameter(b, operand)
    whole = found if found.dtype.is_float else cast(found, DType.INT32)
    sizes = [found.shape[0], constant(1), *(found.shape[1:] or [constant(1)])]
    return b.expand(b.reshape(whole, sizes), weights.shape)
