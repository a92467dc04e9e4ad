"""Constant weights that stay whole numbers of few bits until a product reads them.

A weight is *quantised* if it is whole numbers known when compiling, less zero points or not, times
scales, whatever views stand between those and the product: DequantizeLinear, MatMulNBits, and the
same written out. What repeats a scale says to which blocks of the depth it belongs. That is found
by following the number of each scale through its views, so that it does not depend on what training
made of the numbers. Folding would turn such weights into floats of four to eight times the size.
Start with :func:`weights_in_codes`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.ir.codes import WIDTHS, WORD, Codes
from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import evaluate_node
from tilewright.ir.graph import Graph, Node, expressions_of, mapped, node, same
from tilewright.ir.primitives import Cast, Constant, Contract, Input
from tilewright.ir.views import is_view
from tilewright.rewrite.build import Array, contents, is_map, reshape, static_shape

LEAST = 1 << 14  # elements: floats of fewer stay in a near cache, and need no unpacking
LEAST_BLOCK = 16  # elements along the depth that share a scale
BYTES = (DType.INT8, DType.UINT8)
BYTE = 256  # numbers that a byte may be


def weights_in_codes(graph: Graph, least: int = LEAST) -> Graph:
    """The graph whose products read quantised weights of ``least`` elements as :class:`Codes`.

    Those are products of float32 without batch axes whose right operand is quantised, with finite
    scales, whole zero points, and blocks of the depth that fill whole words.
    """

    def change(current: Node, operands: tuple[Node, ...]) -> Node:
        found = same(current, operands)
        primitive = found.primitive
        if not isinstance(primitive, Contract) or primitive.sums is not None or primitive.batch:
            return found
        shape = static_shape(found.inputs[1])
        if found.dtype is not DType.FLOAT32 or shape is None or math.prod(shape) < least:
            return found
        weights = _quantised(found.inputs[1])
        codes = None if weights is None else weights.codes([j for _, j in primitive.summed])
        return found if codes is None else _with_codes(found, primitive, codes)

    return mapped(graph, change)


def _with_codes(x: Node, primitive: Contract, codes: Codes) -> Node:
    """The product by weights [columns…, depth…] that are held as codes."""
    data, weights = x.inputs
    summed = [j for _, j in primitive.summed]
    free = [axis for axis in range(weights.rank) if axis not in summed]
    sizes = tuple(weights.shape[axis] for axis in (*free, *summed))
    held = reshape(node(Constant.of_codes(codes)), sizes)
    pairs = tuple((i, len(free) + place) for place, (i, _) in enumerate(primitive.summed))
    return node(replace(primitive, summed=pairs), data, held)


@dataclass(frozen=True)
class _Parameter:
    """Constant ``values``, flat, and at every element of the weights the number of one of them."""

    values: Array
    numbers: Array


@dataclass(frozen=True)
class _Quantised:
    """(``integers`` - ``zero``) * ``scale`` in the shape of the weights; no zero is 0."""

    integers: Array
    zero: _Parameter | None
    scale: _Parameter

    def codes(self, summed: Sequence[int]) -> Codes | None:
        """As a matrix whose rows are columns of the product; None if blocks do not fit words."""
        free = [axis for axis in range(self.integers.ndim) if axis not in summed]
        depth = math.prod(self.integers.shape[axis] for axis in summed)
        if not depth or not self.integers.size or not np.isfinite(self.scale.values).all():
            return None

        def matrix(array: Array) -> Array:
            return array.transpose(*free, *summed).reshape(-1, depth)

        given = [p for p in (self.scale, self.zero) if p is not None]
        numbers = [matrix(parameter.numbers) for parameter in given]
        block = math.gcd(*(_block(n) for n in numbers))
        offset = BYTE // 2 if self.integers.dtype == np.int8 else 0
        found = [p.values[n[:, :: block or depth]] for p, n in zip(given, numbers, strict=True)]
        zeros = found[1] if self.zero is not None else np.zeros(1)
        if not (np.isfinite(zeros).all() and (zeros == np.rint(zeros)).all()):
            return None
        for bits in WIDTHS:
            low = offset and 1 << (bits - 1)
            whole = block or -(-depth // (WORD // bits)) * (WORD // bits)
            shifted = _bytes(zeros + low, BYTE)
            integers = _bytes(self.integers.astype(np.int16) + low, 1 << bits)
            fits = whole >= LEAST_BLOCK and whole % (WORD // bits) == 0
            if integers is not None and shifted is not None and fits:
                single = self.zero is None or self.zero.values.size == 1
                point = int(shifted.reshape(-1)[0]) if single else np.ascontiguousarray(shifted)
                scales = np.ascontiguousarray(found[0], np.float32)
                codes = np.ascontiguousarray(matrix(integers))
                return Codes(codes, scales, point, whole, bits)
        return None


def _bytes(array: Array, end: int) -> Array | None:
    """Whole numbers as bytes if all are from 0 to below ``end``."""
    fits = array.min(initial=0) >= 0 and array.max(initial=0) < end
    return array.astype(np.uint8) if fits else None


def _block(numbers: Array) -> int:
    """How many elements of a row have the same parameter at a time; 0 if all of them do."""
    changes = np.flatnonzero((numbers[:, 1:] != numbers[:, :-1]).any(0)) + 1
    return int(np.gcd.reduce(changes, initial=0))


def _quantised(x: Node) -> _Quantised | None:
    """``x`` as whole numbers with parameters, if it is that."""
    core, views = _below_views(x)
    known = all(e.is_constant for view in views for e in expressions_of(view))
    if not known or not is_map(core, "multiply"):
        return None
    for inner, factor in (core.inputs, core.inputs[::-1]):
        scale, found = _parameter(factor, views), _centred(inner)
        if scale is None or found is None:
            continue
        integers, zero = found
        point = None if zero is None else _parameter(zero, views)
        if zero is None or point is not None:
            return _Quantised(_viewed(integers, views), point, scale)
    return None


def _centred(x: Node) -> tuple[Array, Node | None] | None:
    """The bytes and the zero point of what is not scaled yet, in float32 or whole."""
    while isinstance(x.primitive, Cast) and x.inputs[0].dtype not in BYTES:
        if x.dtype is not DType.FLOAT32 or x.inputs[0].dtype is not DType.INT32:
            return None
        x = x.inputs[0]
    zero = None
    if is_map(x, "subtract"):
        x, zero = x.inputs
    if not isinstance(x.primitive, Cast) or x.dtype not in (DType.INT32, DType.FLOAT32):
        return None
    inner, views = _below_views(x.inputs[0])
    array = contents(inner)
    known = all(e.is_constant for view in views for e in expressions_of(view))
    if array is None or not known or inner.dtype not in BYTES:
        return None
    return _viewed(array, views), zero


def _parameter(x: Node, views: Sequence[Node]) -> _Parameter | None:
    """A constant that casts, broadcasts and other views bring into the shape of the weights."""
    steps = list[Node]()
    casts = list[Node]()
    while is_view(x) or isinstance(x.primitive, Cast):
        (casts if isinstance(x.primitive, Cast) else steps).append(x)
        x = x.inputs[0]
    values = contents(x)
    if values is None or not all(e.is_constant for step in steps for e in expressions_of(step)):
        return None
    numbers = np.arange(values.size, dtype=np.int32).reshape(values.shape)
    for cast in reversed(casts):
        values = np.asarray(evaluate_node(cast, [values], {}, {}, None))
    return _Parameter(values.reshape(-1), _viewed(numbers, [*views, *steps]))


def _below_views(x: Node) -> tuple[Node, list[Node]]:
    """What is not a view, and the views of it, the last one first."""
    views = list[Node]()
    while is_view(x):
        views.append(x)
        x = x.inputs[0]
    return x, views


def _viewed(array: Array, views: Sequence[Node]) -> Array:
    for view in reversed(views):
        array = _evaluated(view, array)
    return array


def _evaluated(view: Node, array: Array) -> Array:
    """A view of an array, whatever the type of what it is a view of in the graph."""
    source = node(Input("", DType.of(array.dtype), view.inputs[0].shape))
    return np.asarray(evaluate_node(node(view.primitive, source), [array], {}, {}, None))
