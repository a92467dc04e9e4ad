"""The graphs of which the GPU tests make kernels: one for each shape of loops.

Start with :func:`every_kind`.
"""

from __future__ import annotations

import numpy as np

from support.graph_kit import F32, Space, apply, scalar, spread
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Cast, Contract, Dimension, Iota, Reduce, Transpose
from tilewright.shape import product


def every_kind() -> dict[str, tuple[Graph, dict[str, int]]]:
    """A graph of one kernel for each kind of the GPU's, and sizes as in a transformer."""
    return {
        "product": (dense_gelu(Space()), {"b": 8, "m": 128, "n": 3072, "k": 768}),
        "softmax": (softmax_of_rows(Space()), {"b": 4096, "c": 1000}),
        "normalisation": (normalised(Space(), (2,)), {"a": 8, "b": 128, "c": 768}),
        "attention": (attention(Space(), "tensor"), {"b": 8, "h": 12, "m": 384, "n": 384}),
        "elements": (transposed_sum(Space()), {"b": 8, "m": 384, "n": 768}),
    }


def row_wise(kind: str, x: Node) -> Node:
    """A reduction over the last axis, broadcast to whole rows again."""
    return spread(node(Reduce(kind, (x.rank - 1,)), x), x.shape, tuple(range(x.rank - 1)))


def softmax(x: Node) -> Node:
    """Of the last axis."""
    powers = apply("exponential", apply("subtract", x, row_wise("maximum", x)))
    return apply("divide", powers, row_wise("sum", powers))


def gelu(x: Node) -> Node:
    """By the error function."""
    error = apply("error_function", apply("multiply", x, spread(scalar(0.5**0.5), x.shape)))
    half = apply("multiply", x, spread(scalar(0.5), x.shape))
    return apply("multiply", half, apply("add", spread(scalar(1.0), x.shape), error))


def dense_gelu(space: Space, dtype: DType = F32) -> Graph:
    """x[b, m, k] times w[k, n], both of a type and summed in float32, a bias and GELU."""
    b, m, n, k = space.dimensions("b m n k")
    x, w = space.input("x", dtype, b, m, k), space.input("w", dtype, k, n)
    sums = node(Contract((), ((2, 0),), None if dtype is F32 else F32), x, w)
    return space.graph(gelu(apply("add", sums, spread(space.input("bias", F32, n), sums.shape))))


def softmax_of_rows(space: Space) -> Graph:
    """The softmax of x[b, c]."""
    return space.graph(softmax(space.input("x", F32, *space.dimensions("b c"))))


def normalised(space: Space, axes: tuple[int, ...]) -> Graph:
    """x[a, b, c] with mean 0 and variance 1 over some axes, times weights plus a bias along c."""
    shape = space.dimensions("a b c")
    x = space.input("x", F32, *shape)
    kept = tuple(a for a in range(3) if a not in axes)
    count = node(Cast(F32), node(Dimension(product([shape[a] for a in axes]))))

    def mean(value: Node) -> Node:
        total = spread(node(Reduce("sum", axes), value), x.shape, kept)
        return apply("divide", total, spread(count, x.shape))

    centred = apply("subtract", x, mean(x))
    variance = mean(apply("multiply", centred, centred))
    root = apply("square_root", apply("add", variance, spread(scalar(1e-3), x.shape)))
    weight, bias = (spread(space.input(name, F32, shape[2]), x.shape) for name in "wv")
    return space.graph(
        apply("add", apply("multiply", apply("divide", centred, root), weight), bias)
    )


def attention(space: Space, mask: str, depth: int = 64, width: int = 64) -> Graph:
    """Of several heads, with no mask, one in a tensor of keys, or a causal one."""
    b, h, m, n = space.dimensions("b h m n")
    queries = space.input("q", F32, b, m, h, depth)
    keys, values = space.input("k", F32, b, h, n, depth), space.input("v", F32, b, h, n, width)
    turned = node(Transpose((0, 2, 1, 3)), queries)
    scores = node(Contract(((0, 0), (1, 1)), ((3, 3),)), turned, keys)
    scores = apply("multiply", scores, spread(scalar(depth**-0.5), scores.shape))
    if mask == "tensor":
        scores = apply("add", scores, spread(space.input("mask", F32, b, n), scores.shape, (0, 3)))
    if mask == "causal":
        row, key = node(Iota(scores.shape, 2)), node(Iota(scores.shape, 3))
        hidden = spread(scalar(-np.inf), scores.shape)
        scores = apply("select", apply("less_equal", key, row), scores, hidden)
    context = node(Contract(((0, 0), (1, 1)), ((3, 2),)), softmax(scores), values)
    return space.graph(node(Transpose((0, 2, 1, 3)), context))


def transposed_sum(space: Space) -> Graph:
    """(x[b, m, n] + r[n]) * c[b, m, 1], stored as [n, b, m]."""
    b, m, n = space.dimensions("b m n")
    x, row = space.input("x", F32, b, m, n), space.input("r", F32, n)
    column = space.input("c", F32, b, m, 1)
    made = apply("multiply", apply("add", x, spread(row, x.shape)), spread(column, x.shape))
    return space.graph(node(Transpose((2, 0, 1)), made))
