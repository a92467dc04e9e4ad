"""Products by constant weights over narrower operands, where a user has asked for it.

With bfloat16 both operands are rounded, and products are summed in float32. With int8 every row of
the data (of a convolution: every image) gets a scale at run time and every column of the weights
one when compiling, so that the largest number in each becomes 127; rounded products are summed
exactly in int32 and scaled back. Data is shifted by 128 to be without sign, as processors multiply
such by signed weights; what that adds is known for every column. A product that can be narrowed
stays one of float32 in the graph; when kernels are lowered, its narrow form competes with it by
price. Start with :func:`narrowed`; :func:`narrowing_of` says which products have such a form, and
why others do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, mapped, node, same
from tilewright.ir.primitives import Cast, Constant, Contract, Convolve, Map, Reduce, Reshape
from tilewright.rewrite.build import Array, broadcast, filled, literal, static_shape
from tilewright.rewrite.integers import bordered
from tilewright.shape import constant, product

LEAST_COLUMNS = 16  # of the weights: for fewer, narrowing the data takes as long as it saves
FEW_CHANNELS = 16  # of a convolution, up to which whole lines are runs and no channels are words
MOST_SUMMED = 1 << 16  # products of two bytes that an int32 can hold
STEPS = 127  # on each side of 0
OFFSET = 128  # of data without sign
LEAST_SPAN = 1e-30  # of a row: below, all of it becomes 0


class Precision(Enum):
    """In what the operands of products by constant weights are held."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"

    @property
    def data(self) -> DType:
        """The type of the data; that of the weights differs from it in its sign at most."""
        return DType.UINT8 if self is Precision.INT8 else DType(self.value)


@dataclass(frozen=True)
class Narrowed:
    """A product over narrow operands: ``result`` is made of ``product``, and stands for it.

    ``conversions`` are the tensors that its data is made of, in order: one step computes those
    that stand together.
    """

    product: Node
    result: Node
    conversions: tuple[tuple[Node, ...], ...]


Narrower = Callable[[Node], "Narrowed | None"]


def never_narrowed(_: Node) -> Narrowed | None:
    """The :data:`Narrower` of float32."""
    return None


def narrower_of(precision: Precision) -> Narrower:
    """:func:`narrowed` for one precision, which computes the narrow weights of a product once."""
    known: dict[Node, Narrowed | None] = {}

    def found(x: Node) -> Narrowed | None:
        if x not in known:
            known[x] = narrowed(x, precision)
        return known[x]

    return never_narrowed if precision is Precision.FLOAT32 else found


def narrowed(x: Node, precision: Precision) -> Narrowed | None:
    """The narrow form of a Contract or Convolve in ``precision``; None where it has none.

    Those that have one are float32 Contracts without batch axes and Convolves with the channels
    last and in one group, by constants, if what is summed can be cut into words: an even (for int8:
    fourfold) depth or number of channels; in bfloat16 Contracts of two computed operands as well,
    with batch axes or not. Left operands of Contracts have the summed axes last, see
    ``plan.prepare``.
    """
    if precision is Precision.FLOAT32 or _obstacle(x, _word(precision)) is not None:
        return None
    return (_rounded if precision is Precision.BFLOAT16 else _quantised)(x)


def narrow_products(graph: Graph, precision: Precision) -> Graph:
    """The graph with the narrow form of all products that have one, whatever is faster."""
    if precision is Precision.FLOAT32:
        return graph

    def change(current: Node, operands: tuple[Node, ...]) -> Node:
        found = same(current, operands)
        if not isinstance(found.primitive, Contract | Convolve):
            return found
        narrow = narrowed(found, precision)
        return found if narrow is None else narrow.result

    return mapped(graph, change)


def _word(precision: Precision) -> int:
    """How many elements lie in a word."""
    return DType.FLOAT32.bytes // precision.data.bytes


@dataclass(frozen=True)
class Narrowing:
    """How many products of a graph may be narrowed, and how many may not, by the reason."""

    narrowed: int
    kept: dict[str, int]


def narrowing_of(graph: Graph, precision: Precision) -> Narrowing | None:
    """Which products of a graph have a narrow form; None where nothing is to be narrowed."""
    if precision is Precision.FLOAT32:
        return None
    word = _word(precision)
    products = [x for x in graph.nodes() if isinstance(x.primitive, Contract | Convolve)]
    reasons = [_obstacle(x, word) for x in products]
    kept = Counter(reason for reason in reasons if reason is not None)
    return Narrowing(len(products) - kept.total(), dict(sorted(kept.items())))


def _obstacle(x: Node, word: int) -> str | None:
    """Why a product cannot have operands of which ``word`` fit 32 bits, None if it can."""
    assert isinstance(x.primitive, Contract | Convolve)
    if x.dtype is not DType.FLOAT32 or x.primitive.sums is not None:
        return "its elements are not float32"
    weights = _weights(x)
    if weights is None:
        return _obstacle_of_computed(x, word)
    if not np.isfinite(weights).all():
        return "its weights are not all finite"
    summed = int(np.prod([weights.shape[axis] for axis in _summed_of_weights(x)]))
    if summed == 0 or weights.size // summed < LEAST_COLUMNS:
        return f"its weights have fewer than {LEAST_COLUMNS} columns"
    if word == 4 and summed > MOST_SUMMED:
        return f"it sums up more than {MOST_SUMMED} products"
    if isinstance(x.primitive, Contract):
        return _obstacle_of_contract(x, x.primitive, summed, word)
    return _obstacle_of_convolve(x.primitive, weights.shape[1], word)


def _obstacle_of_computed(x: Node, word: int) -> str | None:
    """The same for two operands that are known at run time only; bfloat16 needs no scales."""
    if word != 2 or not isinstance(x.primitive, Contract):
        return "both operands are known at run time only"
    left, summed = x.inputs[0], [i for i, _ in x.primitive.summed]
    if summed != list(range(left.rank))[-len(summed) :]:
        return "its left operand is not in rows of the depth"
    depth = product([left.shape[i] for i in summed])
    return None if depth % word is constant(0) else f"its depth is not a multiple of {word}"


def _obstacle_of_contract(x: Node, primitive: Contract, summed: int, word: int) -> str | None:
    last = [i for i, _ in primitive.summed]
    if last != list(range(x.inputs[0].rank))[-len(last) :] or primitive.batch:
        return "it is a batch of products"
    return f"its depth is not a multiple of {word}" if summed % word else None


def _obstacle_of_convolve(primitive: Convolve, channels: int, word: int) -> str | None:
    if primitive.groups > 1 or any(size > 1 for size in primitive.spread):
        return "it is a convolution in groups or a transposed one"
    if not primitive.channels_last:
        return "it is a convolution that keeps its channels first"
    if channels <= FEW_CHANNELS:
        return f"it is a convolution of at most {FEW_CHANNELS} channels"
    return f"its channels are not a multiple of {word}" if channels % word else None


def _weights(x: Node) -> Array | None:
    """The weights of a product as an array if they are constant, those held as codes included."""
    held = x.inputs[1]
    while isinstance(held.primitive, Reshape):
        held = held.inputs[0]
    shape = static_shape(x.inputs[1])
    if not isinstance(held.primitive, Constant) or shape is None:
        return None
    return held.primitive.array.reshape(shape)


def _summed_of_weights(x: Node) -> tuple[int, ...]:
    """The axes of the weights that a product sums over."""
    if isinstance(x.primitive, Contract):
        return tuple(j for _, j in x.primitive.summed)
    return tuple(range(1, x.inputs[1].rank))


def _rounded(x: Node) -> Narrowed:
    """Both operands in bfloat16."""
    assert isinstance(x.primitive, Contract | Convolve)
    array = _weights(x)
    left, right = (node(Cast(DType.BFLOAT16), operand) for operand in x.inputs)
    conversions: tuple[tuple[Node, ...], ...] = ((left,), (right,))
    if array is not None:
        right = node(Constant.of(array.astype(DType.BFLOAT16.numpy)))
        conversions = ((left,),)
    made = node(replace(x.primitive, sums=DType.FLOAT32), left, right)
    return Narrowed(made, made, tuple(dict.fromkeys(conversions)))


def _quantised(x: Node) -> Narrowed:
    """Data in uint8, weights in int8, the sums scaled back."""
    data = x.inputs[0]
    primitive, array, axes = x.primitive, _weights(x), _summed_of_weights(x)
    assert isinstance(primitive, Contract | Convolve) and array is not None
    whole, column_scale = _quantised_weights(array, axes)
    lead = data.rank - len(axes) if isinstance(primitive, Contract) else 1
    narrow, row_scale = _quantised_rows(data, lead)
    conversions: tuple[tuple[Node, ...], ...] = ((narrow, row_scale),)
    if isinstance(primitive, Convolve):
        taps = array.shape[2:]
        outer, primitive = bordered(narrow, taps, primitive, literal(OFFSET, DType.UINT8))
        conversions += ((outer,),) if outer is not narrow else ()
        narrow = outer
    sums = node(replace(primitive, sums=DType.INT32), narrow, node(Constant.of(whole)))
    columns = tuple(range(x.rank - column_scale.ndim, x.rank))
    shift = OFFSET * whole.astype(np.int32).sum(axes, dtype=np.int32)
    shifted = broadcast(node(Constant.of(shift)), x.shape, columns)
    exact = node(Cast(DType.FLOAT32), node(Map("subtract"), sums, shifted))
    by_row = broadcast(row_scale, x.shape, tuple(range(lead)))
    by_column = broadcast(node(Constant.of(column_scale)), x.shape, columns)
    result = node(Map("multiply"), node(Map("multiply"), exact, by_row), by_column)
    return Narrowed(sums, result, conversions)


def _quantised_weights(array: Array, summed: tuple[int, ...]) -> tuple[Array, Array]:
    """Weights as int8, and the scale of every column."""
    span = np.maximum(np.abs(array).max(summed, keepdims=True), LEAST_SPAN)
    scale = (span / STEPS).astype(np.float32)
    whole = np.clip(np.rint(array / scale), -STEPS, STEPS).astype(np.int8)
    return whole, scale.squeeze(summed)


def _quantised_rows(x: Node, lead: int) -> tuple[Node, Node]:
    """``x`` as uint8 around ``OFFSET``, and the scale of every row along the ``lead`` axes."""
    rows, rest = tuple(range(lead)), tuple(range(lead, x.rank))
    largest = node(Reduce("maximum", rest), node(Map("absolute"), x))
    span = node(Map("maximum"), largest, filled(LEAST_SPAN, largest))
    inverse = node(Map("divide"), filled(STEPS, span), span)
    steps = node(Map("multiply"), x, broadcast(inverse, x.shape, rows))
    whole = node(Map("add"), node(Map("round_even"), steps), filled(OFFSET, x))
    scale = node(Map("multiply"), span, filled(1 / STEPS, span))
    return node(Cast(DType.UINT8), whole), scale


__all__ = [
    "Narrowed",
    "Narrower",
    "Narrowing",
    "Precision",
    "narrow_products",
    "narrowed",
    "narrower_of",
    "narrowing_of",
    "never_narrowed",
]
