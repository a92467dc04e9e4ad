"""Weights that stay whole numbers of few bits: which, and that they mean the same to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.graph_kit import F32, Array, Space, apply, fixed, scalar
from tilewright.ir.codes import Codes
from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import evaluate
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Broadcast, Cast, Constant, Contract, Reshape, Slice, Transpose
from tilewright.rewrite import simplify
from tilewright.rewrite.codes import weights_in_codes
from tilewright.shape import as_expr, constant

S32 = DType.INT32


def numbers(kind: Any, low: int, high: int, *shape: int) -> Array:
    return np.random.default_rng(sum(shape)).integers(low, high, shape).astype(kind)


def scales(*shape: int) -> Array:
    return np.random.default_rng(1).uniform(0.01, 0.1, shape).astype(np.float32)


def repeated(parameter: Node, axis: int, block: int, size: int) -> Node:
    """Every element ``block`` times along an axis, cut to ``size``."""
    shape = [s.value for s in parameter.shape]
    tall = [*shape[: axis + 1], block, *shape[axis + 1 :]]
    axes = tuple(a for a in range(len(tall)) if a != axis + 1)
    wide = node(Broadcast(tuple(map(as_expr, tall)), axes), parameter)
    shape[axis] *= block
    flat = node(Reshape(tuple(map(as_expr, shape))), wide)
    zeros, ones = (tuple(constant(v) for _ in shape) for v in (0, 1))
    shape[axis] = size
    return node(Slice(zeros, tuple(map(as_expr, shape)), ones), flat)


def by_blocks(integers: Array, scale: Array, zero: Array | None, block: int, wide: DType) -> Node:
    """Weights [K, N], as DequantizeLinear makes them."""
    depth = integers.shape[0]
    made = node(Cast(wide), fixed(integers))
    if zero is not None:
        point = repeated(node(Cast(wide), fixed(zero)), 0, block, depth)
        made = apply("subtract", made, point)
    made = made if wide is F32 else node(Cast(F32), made)
    return apply("multiply", made, repeated(fixed(scale), 0, block, depth))


def product(weights: Node, summed: int = 0) -> Graph:
    space = Space()
    x = space.input("x", F32, space.dimension("m"), weights.shape[summed])
    return space.graph(node(Contract((), ((1, summed),)), x, weights))


def held(graph: Graph) -> Codes | None:
    """The codes of the only product."""
    found = [n.primitive.codes for n in graph.nodes() if isinstance(n.primitive, Constant)]
    return next((codes for codes in found if codes is not None), None)


def codes_of(weights: Node, summed: int = 0) -> Codes:
    """The codes that weights become, which mean what the weights do."""
    graph = product(weights, summed)
    made = weights_in_codes(graph, least=0)
    found = held(made)
    assert found is not None
    sizes = [size.value for size in weights.shape]
    ones = np.eye(sizes[summed], dtype=np.float32)
    want, got = (evaluate(g, {"x": ones}, {"m": len(ones)})["y0"] for g in (graph, simplify(made)))
    np.testing.assert_array_equal(got, want)
    return found


@pytest.mark.parametrize("wide", [F32, S32], ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("kind", "low", "high", "bits"), [
    (np.uint8, 0, 16, 4), (np.int8, -8, 8, 4), (np.uint8, 0, 256, 8), (np.int8, -128, 128, 8),
])  # fmt: skip
@pytest.mark.parametrize(("depth", "block"), [(64, 32), (70, 16), (48, 24), (33, 64)])
def test_blocks_along_the_depth(
    depth: int, block: int, kind: Any, low: int, high: int, bits: int, zeros: bool, wide: DType
) -> None:
    count = -(-depth // block)
    zero = numbers(kind, low, high, count, 9) if zeros else None
    integers = numbers(kind, low, high, depth, 9)
    integers[:2, 0] = low, high - 1
    found = codes_of(by_blocks(integers, scales(count, 9), zero, block, wide))
    assert (found.bits, found.shape) == (bits, (9, depth))
    assert found.block == (block if count > 1 else -(-depth // (32 // bits)) * (32 // bits))
    assert isinstance(found.zeros, int) is (not zeros)


def test_blocks_as_an_axis_of_their_own_behind_views() -> None:
    """As in MatMulNBits, and where an exporter writes it out: views follow the scales."""
    integers, scale = numbers(np.uint8, 0, 16, 10, 3, 32), scales(10, 3, 1)
    shape = tuple(map(as_expr, (10, 3, 32)))
    wide = node(Broadcast(shape, (0, 1, 2)), fixed(scale))
    made = apply("multiply", node(Cast(F32), fixed(integers)), wide)
    flat = node(Reshape((constant(10), constant(96))), made)
    cut = node(Slice((constant(0),) * 2, (constant(10), constant(90)), (constant(1),) * 2), flat)
    found = codes_of(node(Transpose((1, 0)), cut))
    assert (found.shape, found.block, found.blocks, found.zeros) == ((10, 90), 32, 3, 0)
    assert codes_of(cut, summed=1).shape == (10, 90)


@pytest.mark.parametrize("axes", [(), (1,)])
def test_a_scale_for_all_or_for_each_column_is_one_block(axes: tuple[int, ...]) -> None:
    integers = numbers(np.int8, -128, 128, 50, 12)
    shape = (constant(50), constant(12))
    wide = node(Broadcast(shape, axes), fixed(scales(*[12] * len(axes))))
    found = codes_of(apply("multiply", node(Cast(F32), fixed(integers)), wide))
    assert (found.block, found.blocks, found.zeros) == (52, 1, 128)


def test_blocks_follow_from_the_graph_and_not_from_the_numbers() -> None:
    """Equal scales of neighbouring blocks are not one block."""
    integers, scale = numbers(np.uint8, 0, 16, 64, 9), np.full((2, 9), 0.5, np.float32)
    assert codes_of(by_blocks(integers, scale, None, 32, F32)).block == 32


REFUSED = {
    "a block of less than a word": (12, np.zeros((6, 9), np.uint8), 0.5),
    "a block of odd length": (27, np.zeros((3, 9), np.uint8), 0.5),
    "a scale that is infinite": (32, np.zeros((2, 9), np.uint8), np.inf),
    "a zero point that is no whole number": (32, np.full((2, 9), 7.5, np.float32), 0.5),
}


@pytest.mark.parametrize("why", REFUSED)
def test_other_weights_become_floats(why: str) -> None:
    block, zero, scale = REFUSED[why]
    integers = numbers(np.uint8, 0, 16, 64, 9)
    count = -(-64 // block)
    made = by_blocks(integers, np.full((count, 9), scale, np.float32), zero, block, F32)
    assert held(weights_in_codes(product(made), least=0)) is None


def test_small_weights_and_other_users_stay_floats() -> None:
    made = by_blocks(numbers(np.uint8, 0, 16, 64, 9), scales(2, 9), None, 32, F32)
    assert held(weights_in_codes(product(made))) is None
    space = Space()
    x = space.input("x", F32, constant(64), constant(9))
    assert held(weights_in_codes(space.graph(apply("add", x, made)), least=0)) is None


def test_rules_do_not_compute_with_codes() -> None:
    """A scaled product keeps its weights: the factor is applied elsewhere."""
    made = by_blocks(numbers(np.uint8, 0, 16, 64, 9), scales(2, 9), None, 32, F32)
    graph = product(made)
    ((name, root),) = graph.outputs
    scaled = Graph(
        "scaled", graph.inputs, ((name, apply("multiply", root, scalar(0.5))),), graph.scope
    )
    assert held(simplify(weights_in_codes(scaled, least=0))) is not None


def test_equal_codes_are_one_constant() -> None:
    def made(last: int) -> Codes:
        integers = np.arange(40000, dtype=np.uint8).reshape(200, 200) % 16
        integers[-1, -2] = last
        return Codes(integers, scales(200, 7), 8, 32, 4)

    first, second, other = (node(Constant.of_codes(made(last))) for last in (1, 1, 2))
    assert first is second
    assert first is not other
