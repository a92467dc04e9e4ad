"""Fused operators of the domain com.microsoft but attention: activations, normalisations, products.

Each is what standard operators one after the other compute; 16-bit floats are rounded once, at
the end. Start with :func:`_activated`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.make import transpose
from tilewright.ops.build import Builder, cast, scalar
from tilewright.ops.contributed import contributed, standard
from tilewright.ops.linear import matmul
from tilewright.ops.normalisation import EPSILON, standardise
from tilewright.ops.onnx_types import element_type
from tilewright.ops.operands import expand_to, numeric, require_same_shape, widen
from tilewright.ops.record import AttributeValue, NoRule, RuleContext, operator
from tilewright.shape import less_equal
from tilewright.support.errors import InvalidModelError

SKIP_EPSILON = 1e-12  # the default of ONNX Runtime's operators with a residual


# ---------------------------------------------------------------- activations


@contributed("Gelu")
def _gelu(context: RuleContext) -> Sequence[Node]:
    return standard(context, "Gelu", [context.operand(0)])


@contributed("BiasGelu")
def _gelu_of_biased(context: RuleContext) -> Sequence[Node]:
    return standard(context, "Gelu", [_biased(context, context.operand(1))])


@contributed("FastGelu")
def _fast_gelu(context: RuleContext) -> Sequence[Node]:
    """By the hyperbolic tangent, with or without a bias."""
    return standard(
        context, "Gelu", [_biased(context, context.optional(1))], {"approximate": "tanh"}
    )


@contributed("QuickGelu")
def _quick_gelu(context: RuleContext) -> Sequence[Node]:
    alpha = context.number("alpha", 1.702)
    return standard(context, "Swish", [context.operand(0)], {"alpha": alpha})


def _biased(context: RuleContext, bias: Node | None) -> Node:
    """Operand 0 plus a bias of its last axis."""
    b, x = numeric(context)
    return x if bias is None else b.add(x, expand_to(b, bias, x.shape, "the bias"))


@contributed("BiasAdd")
def _bias_add(context: RuleContext) -> Sequence[Node]:
    b, x = numeric(context)
    skip = context.operand(2)
    require_same_shape(context, x.shape, skip.shape, "the data and what is added differ in shape")
    skip = b.broadcast(skip, x.shape, range(x.rank))
    return [b.add(_biased(context, context.operand(1)), skip)]


# The names of the parameters that an activation takes, in the order of a fused operator's list.
PARAMETERS: dict[str, tuple[str, ...]] = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Gelu": (),
    "LeakyRelu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("least", "greatest"),
}


def _activated(context: RuleContext, x: Node, given: Sequence[float]) -> Node:
    """``x`` after the activation that the attribute names, with its parameters as far as given."""
    name = context.text("activation", "")
    if not name:
        return x
    if name not in PARAMETERS:
        raise NoRule(f"the activation {name!r}", where=context.where)
    if name == "Clip":
        bounds = [scalar(value, x.dtype) for value in given[:2]]
        return standard(context, name, [x, *bounds], {})[0]
    attributes = dict[str, AttributeValue](zip(PARAMETERS[name], given, strict=False))
    return standard(context, name, [x], attributes)[0]


# ---------------------------------------------------------------- products


@contributed("FusedConv")
def _fused_convolution(context: RuleContext) -> Sequence[Node]:
    """A convolution, plus operand 3, then the activation."""
    b = Builder(context)
    (made,) = standard(context, "Conv", context.inputs[:3])
    added = context.optional(3)
    if added is not None:
        require_same_shape(context, made.shape, added.shape, "the sum's operands differ in shape")
        made = b.add(made, b.broadcast(added, made.shape, range(made.rank)))
    return [_activated(context, made, _numbers(context, "activation_params"))]


def _numbers(context: RuleContext, name: str) -> list[float]:
    """A list of floats attribute."""
    given = context.attributes.get(name, [])
    if not isinstance(given, list | tuple):
        raise InvalidModelError(f"attribute {name!r} is no list", where=context.where)
    return [float(value) for value in given]


@contributed("FusedGemm")
def _fused_gemm(context: RuleContext) -> Sequence[Node]:
    (made,) = standard(context, "Gemm", context.inputs)
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    return [_activated(context, made, [context.number(n) for n in names if context.has(n)])]


@contributed("FusedMatMul")
@contributed("TransposeMatMul")
def _fused_matmul(context: RuleContext) -> Sequence[Node]:
    """alpha * A' * B': either may be stored with its last axes, or the first one, elsewhere."""
    b, left = numeric(context)
    left = _in_order(context, left, "A")
    right = _in_order(context, context.operand(1), "B")
    alpha = context.number("alpha", 1.0)
    product = matmul(b, left, right)
    return [product if alpha == 1.0 else b.multiply(product, alpha)]


def _in_order(context: RuleContext, x: Node, name: str) -> Node:
    axes = [*range(x.rank)]
    if x.rank > 1 and context.integer(f"transBatch{name}", 0):
        axes = [*axes[1:-1], 0, axes[-1]]
    if x.rank > 1 and context.integer(f"trans{name}", 0):
        axes[-2:] = axes[:-3:-1]
    return transpose(x, axes)


@contributed("GatherND", computes=False)
def _gather_elements_of_all_axes(context: RuleContext) -> Sequence[Node]:
    return standard(context, "GatherND", context.inputs, {})


# ---------------------------------------------------------------- normalisations


@operator("SimplifiedLayerNormalization", computes=False)
@contributed("SimplifiedLayerNormalization", computes=False)
def _simplified_layer_normalization(context: RuleContext) -> Sequence[Node]:
    """x / sqrt(mean(x²) + epsilon) over the axes from ``axis`` on, scaled; 1 / the root."""
    b, x = numeric(context)
    scale = context.operand(1)
    axis = b.axis(context.integer("axis", -1), x.rank)
    inverse = _inverse_root(b, widen(x), range(axis, x.rank), context.number("epsilon", EPSILON))
    stash = element_type(context.integer("stash_type", 1), where=context.where)
    made = _scaled(b, b.multiply(widen(x), inverse), scale, "the scale")
    return [cast(made, scale.dtype), cast(inverse, stash)][: max(context.output_count, 1)]


def _inverse_root(b: Builder, x: Node, axes: Sequence[int], epsilon: float) -> Node:
    square = b.mean(b.multiply(x, x), axes, keep=True)
    return b.divide(1.0, b.map("square_root", b.add(square, epsilon)))


def _scaled(b: Builder, x: Node, scale: Node, what: str) -> Node:
    return b.multiply(x, expand_to(b, cast(scale, x.dtype), x.shape, what))


@contributed("SkipLayerNormalization", computes=False)
def _skip_layer_normalization(context: RuleContext) -> Sequence[Node]:
    """Two operands and a bias added, then standardised; mean, 1 / deviation, and the sum."""
    b, x, total = _skipped(context, 4)
    epsilon = context.number("epsilon", SKIP_EPSILON)
    made, mean, inverse = standardise(b, total, [x.rank - 1], epsilon)
    made = _scaled(b, made, context.operand(2), "the scale")
    shift = context.optional(3)
    if shift is not None:
        made = b.add(made, expand_to(b, cast(shift, made.dtype), made.shape, "the shift"))
    outputs = [cast(made, x.dtype), mean, inverse, cast(total, x.dtype)]
    return outputs[: max(context.output_count, 1)]


@contributed("SkipSimplifiedLayerNormalization", computes=False)
def _skip_simplified_layer_normalization(context: RuleContext) -> Sequence[Node]:
    """Two operands and a bias added, then over the root of their mean square; see the sum."""
    b, x, total = _skipped(context, 3)
    inverse = _inverse_root(b, total, [x.rank - 1], context.number("epsilon", SKIP_EPSILON))
    made = _scaled(b, b.multiply(total, inverse), context.operand(2), "the scale")
    mean = b.mean(total, [x.rank - 1], keep=True)
    outputs = [cast(made, x.dtype), mean, inverse, cast(total, x.dtype)]
    return outputs[: max(context.output_count, 1)]


def _skipped(context: RuleContext, bias: int) -> tuple[Builder, Node, Node]:
    """Operand 0 as it is, and the sum with operand 1 and a bias, in float32 at least."""
    b, x = numeric(context)
    total = widen(x)
    for index, what in ((1, "what is added"), (bias, "the bias")):
        given = context.optional(index)
        if given is not None:
            total = b.add(total, expand_to(b, cast(given, total.dtype), total.shape, what))
    return b, x, total


# ---------------------------------------------------------------- embeddings


@contributed("EmbedLayerNormalization", computes=False)
def _embed_layer_normalization(context: RuleContext) -> Sequence[Node]:
    """Rows of tables by word, position and segment, added and standardised; words per mask."""
    b, words = numeric(context)
    tables = [context.optional(i) for i in (2, 3, 4)]
    return _embedded(b, words, tables, context.operand(5), context.operand(6), 8)


@contributed("QEmbedLayerNormalization", computes=False)
def _quantised_embed_layer_normalization(context: RuleContext) -> Sequence[Node]:
    """The same with tables, scale and shift of bytes; forms are operands 8 to 17."""
    b, words = numeric(context)
    numbers = [_dequantised(context, i) for i in range(2, 7)]
    scale, shift = numbers[3:]
    if scale is None or shift is None:
        raise InvalidModelError("the scale or the shift is missing", where=context.where)
    return _embedded(b, words, numbers[:3], scale, shift, len(context.inputs))


def _dequantised(context: RuleContext, index: int) -> Node | None:
    """Operand ``index`` of five, whose scale stands 6 places behind it, its zero point 11."""
    data = context.optional(index)
    if data is None:
        return None
    parts = [data, context.operand(index + 6), context.operand(index + 11)]
    return standard(context, "DequantizeLinear", parts, {})[0]


def _embedded(
    b: Builder,
    words: Node,
    tables: Sequence[Node | None],
    scale: Node,
    shift: Node,
    position_ids: int,
) -> list[Node]:
    """``tables`` are those of words, positions and segments, the last one optional."""
    context = b.context
    table, positions, segments = tables
    if table is None or positions is None:
        raise InvalidModelError("a table of embeddings is missing", where=context.where)
    numbers = context.optional(position_ids)
    if numbers is None:
        length = words.shape[1]
        context.require(less_equal(length, positions.shape[0]), "there are fewer positions")
        numbers = b.iota([1, length], 1)
    total = b.gather(widen(table), words, 0)
    parts = [b.gather(widen(positions), numbers, 0)]
    if segments is not None:
        parts.append(b.gather(widen(segments), context.operand(1), 0))
    for part in parts:
        total = b.add(total, expand_to(b, part, total.shape, "an embedding"))
    epsilon = context.number("epsilon", SKIP_EPSILON)
    made = _scaled(b, standardise(b, total, [2], epsilon)[0], scale, "the scale")
    made = b.add(made, expand_to(b, cast(shift, made.dtype), made.shape, "the shift"))
    outputs = [cast(made, table.dtype), _word_counts(b, words), cast(total, table.dtype)]
    return outputs[: max(context.output_count, 1)]


def _word_counts(b: Builder, words: Node) -> Node:
    """How many entries of each row of the mask are 1; zeros without a mask."""
    mask = b.context.optional(7)
    if mask is None:
        return b.expand(scalar(0, DType.INT32), [words.shape[0]])
    return b.reduce("sum", cast(b.map("equal", mask, 1), DType.INT32), [1])
