"""One or more small graphs for every alternative, with what it is to make of each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from support.graph_kit import F32, Space, apply, fixed, scalar, softmax, spread
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Cast, Concat, Contract, Convolve, Pad, Reduce, Transpose
from tilewright.plan.prepare import prepare
from tilewright.rewrite import simplify
from tilewright.shape import constant

CHANCE = np.random.default_rng(5)
Case = tuple[str, Callable[[], Graph]]


def weights(*shape: int) -> Node:
    return fixed(CHANCE.standard_normal(shape).astype(np.float32))


def dense(x: Node, made: Node) -> Node:
    return node(Contract((), ((x.rank - 1, 0),)), x, made)


def made(space: Space, *outputs: Node) -> Graph:
    return prepare(simplify(space.graph(*outputs)))


def projections() -> Graph:
    """Three products of different widths; two have a bias, one of those a scale."""
    space = Space()
    m, n = space.dimensions("m n")
    x = space.input("x", F32, m, n, 6)
    query = apply("multiply", apply("add", dense(x, weights(6, 4)), weights(4)), scalar(0.3))
    key = dense(x, weights(6, 7))
    value = apply("add", dense(x, weights(6, 5)), weights(5))
    return made(space, query, key, value)


def gate() -> Graph:
    """One half goes through a function of its own."""
    space = Space()
    m, n = space.dimensions("m n")
    x = space.input("x", F32, m, n, 6)
    opened = apply("hyperbolic_tangent", apply("add", dense(x, weights(6, 8)), weights(8)))
    return made(space, apply("multiply", opened, dense(x, weights(6, 8))))


def activated() -> Graph:
    """The same function of every part, which reads the part twice; a common residual."""
    space = Space()
    m, n = space.dimensions("m n")
    x = space.input("x", F32, m, n, 6)
    rows = space.input("rows", F32, m, n)
    parts: list[Node] = []
    for width in (3, 1):
        part = dense(x, weights(6, width))
        part = apply("multiply", part, apply("hyperbolic_tangent", part))
        parts.append(apply("add", part, spread(rows, part.shape, (0, 1))))
    return made(space, *parts)


def convolutions() -> Graph:
    """Two convolutions of one image, with the channels first and last."""
    space = Space()
    m, n = space.dimensions("m n")
    outputs: list[Node] = []
    for last in (False, True):
        shape = (m, n, n, 4) if last else (m, 4, n, n)
        image = space.input(f"image_{last}", F32, *shape)
        window = Convolve((1, 1), (1, 1), (1, 1), (constant(1),) * 2, (n, n), 1, channels_last=last)
        for width in (2, 3):
            made_of = node(window, image, weights(width, 4, 3, 3))
            outputs.append(apply("maximum", made_of, scalar(0.0)))
    return made(space, *outputs)


def summed_rows() -> Graph:
    """A product and a sum over the same axis of its left operand, which has batch axes."""
    space = Space()
    m, n, k = space.dimensions("m n k")
    left, right = space.input("left", F32, 2, m, n, k), space.input("right", F32, 2, k, 5)
    primitive = Contract(((0, 0),), ((3, 1),))
    return made(space, node(primitive, left, right), node(Reduce("sum", (3,)), left))


def summed_columns() -> Graph:
    """The sum is over an axis of the right operand, and the batch axis is its last one."""
    space = Space()
    m, n, k = space.dimensions("m n k")
    left, right = space.input("left", F32, 3, m, k), space.input("right", F32, k, n, 3)
    primitive = Contract(((0, 2),), ((2, 0),))
    return made(space, node(primitive, left, right), node(Reduce("sum", (0,)), right))


def ones_appended(turned: bool) -> Graph:
    """Values with a column of ones, as the linear attention of EfficientViT has them."""
    space = Space()
    m, k = space.dimensions("m k")
    keys, values = space.input("keys", F32, m, k, 4), space.input("values", F32, m, k, 3)
    high = (constant(0), constant(0), constant(1))
    wider = node(Pad((constant(0),) * 3, high), values, scalar(1.0))
    if turned:
        left = node(Transpose((0, 2, 1)), wider)
        seen = node(Contract(((0, 0),), ((2, 1),)), left, keys)
    else:
        turned_keys = node(Transpose((0, 2, 1)), keys)
        seen = node(Contract(((0, 0),), ((2, 1),)), turned_keys, wider)
    return made(space, seen, node(Transpose((0, 2, 1)), seen))


def parts_of_an_operand() -> Graph:
    space = Space()
    m, n, k = space.dimensions("m n k")
    first, second = space.input("first", F32, m, k), space.input("second", F32, n, k)
    both = node(Concat(0), first, second)
    other = space.input("other", F32, k, 4)
    product = dense(both, other)
    return made(space, node(Transpose((1, 0)), product), apply("negate", product))


def divided_rows() -> Graph:
    """Rows divided by what they have in common, before few columns are made of them."""
    space = Space()
    m, k = space.dimensions("m k")
    x, rows = space.input("x", F32, m, k), space.input("rows", F32, m)
    positive = apply("add", apply("multiply", rows, rows), scalar(1.0))
    normal = apply("divide", x, spread(positive, x.shape, (0,)))
    return made(space, dense(normal, space.input("columns", F32, k, 2)))


def softmax_by_values() -> Graph:
    space = Space()
    m, k = space.dimensions("m k")
    scores = space.input("scores", F32, m, k)
    return made(space, dense(softmax(scores), space.input("values", F32, k, 3)))


def scaled_columns() -> Graph:
    """The right operand is scaled along the axis that stays; its axes are exchanged."""
    space = Space()
    m, n, k = space.dimensions("m n k")
    right, factors = space.input("right", F32, 2, n, k), space.input("factors", F32, 2, n)
    scaled = apply("multiply", right, spread(factors, right.shape, (0, 1)))
    left = space.input("left", F32, 2, m, k)
    product = node(Contract(((0, 0),), ((2, 2),)), left, scaled)
    return made(space, node(Cast(F32), product))


def turned_result() -> Graph:
    """Channels come before pixels in the result, and after them where it is read."""
    space = Space()
    m, n, k = space.dimensions("m n k")
    left, right = space.input("left", F32, 2, 3, 4, m), space.input("right", F32, 2, n, m, k)
    product = node(Contract(((0, 0),), ((3, 2),)), left, right)
    return made(space, node(Transpose((0, 3, 4, 1, 2)), product))


CASES: tuple[Case, ...] = (
    ("products_of_one_operand", projections),
    ("products_of_one_operand", gate),
    ("products_of_one_operand", activated),
    ("convolutions_of_one_image", convolutions),
    ("sum_as_column", summed_rows),
    ("sum_as_column", summed_columns),
    ("column_as_sum", lambda: ones_appended(False)),
    ("column_as_sum", lambda: ones_appended(True)),
    ("product_of_parts", parts_of_an_operand),
    ("exchanged_operands", turned_result),
    ("factor_after_product", divided_rows),
    ("factor_after_product", softmax_by_values),
    ("factor_after_product", scaled_columns),
)
