"""Every variant of products of bytes, by force: at the edges of tiles, with the ends of the types.

Each runs between unreadable pages with poisoned results, and every integer must be exact: where
bytes are multiplied in pairs, a pair at the ends of the types must not saturate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from support.graph_kit import (
    VARIANTS,
    Compiled,
    Space,
    apply,
    data,
    fixed,
    inputs_at,
    scalar,
    spread,
)
from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.backend.cpu.machine import host_levels
from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import evaluate
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Cast, Contract, Convolve
from tilewright.rewrite.channels_last import prefer_channels_last
from tilewright.rewrite.driver import simplify
from tilewright.rewrite.integers import has_integer_products, integer_products
from tilewright.shape import constant

pytestmark = pytest.mark.sampled(8)

F32, I32, U8, S8 = DType.FLOAT32, DType.INT32, DType.UINT8, DType.INT8
Array = np.ndarray[Any, Any]
LEVELS = {level.name: level for level in host_levels() if level.serves("uint8")}
BY_LEVEL = [
    pytest.param(name, marks=[pytest.mark.slow] if place else [])
    for place, name in enumerate(reversed(LEVELS))
]


def at_the_ends(pattern: str, name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
    """The largest everywhere, the two ends in turn, or random ones from the whole range."""
    low, high = (-128, 127) if dtype is S8 else (0, 255)
    if pattern == "random":
        return data(dtype, shape, ord(name[0]), low, high)
    made = np.full(shape, high, dtype.numpy)
    if pattern == "turns" or (pattern == "apart" and name == "y"):
        made[...] = low
    if pattern == "turns":
        made.reshape(-1)[::2] = high
    return made


def forced(compiled: Compiled, level: str) -> Iterator[dict[str, int]]:
    """What names each variant of each kernel; others are the cheapest."""
    for choice in compiled.levels[level].program.choices:
        for number in range(len(choice.costs)):
            yield {choice.symbol: number}
    if not compiled.levels[level].program.choices:
        yield {}


Compare = Callable[[Mapping[str, Array], Mapping[str, Array], str], None]


def equal(got: Mapping[str, Array], want: Mapping[str, Array], what: str) -> None:
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array, what)


def within_two_roundings(got: Mapping[str, Array], want: Mapping[str, Array], what: str) -> None:
    """A sum that is exact, converted and scaled."""
    for name, array in want.items():
        assert (np.abs(got[name] - array) <= 2.0**-22 * np.abs(array)).all(), what


def check_all(
    graph: Graph, level: str, cases: list[dict[str, int]], compare: Compare, exact: Graph
) -> None:
    """All variants at all sizes, beside what ``exact`` means."""
    compiled = Compiled(graph, (level,))
    count = 0
    for sizes, pattern in product(cases, ("random", "largest", "turns", "apart")):
        inputs = inputs_at(graph, sizes, partial(at_the_ends, pattern))
        want = evaluate(exact, inputs, sizes)
        for chosen in forced(compiled, level):
            options = VARIANTS[count % len(VARIANTS)]
            got = compiled.guarded(level, inputs, sizes, chosen=chosen, **options)
            compare(got, want, f"{sizes}, {pattern}, {chosen}")
            count += 1
    assert count > len(cases)


def edges(level: str) -> list[dict[str, int]]:
    """Nothing, one, around a register tile and a word, and primes."""
    tile = register_tile(LEVELS[level])
    rows, columns = tile.narrow_rows, tile.columns
    shapes = [
        (0, 5, 3), (3, 0, 3), (2, 2, 0), (1, 1, 1),
        (rows - 1, columns - 1, 3), (rows, columns, 4), (rows + 1, columns + 1, 5),
        (13, 2 * columns + 3, 67),
    ]  # fmt: skip
    return [{"b": 2, "m": m, "n": n, "k": k} for m, n, k in shapes]


def centred(x: Node, zero: Node | None, wide: DType = I32) -> Node:
    """Bytes minus a zero point."""
    made = node(Cast(wide), x)
    return made if zero is None else apply("subtract", made, zero)


def of_two_inputs(left: DType, right: DType, is_turned: bool, zeros: str) -> Graph:
    """Batches of matrices of bytes; zero points per row and per column, single, or none."""
    space = Space()
    b, m, n, k = space.dimensions("b m n k")
    x = space.input("x", left, b, m, k)
    y = space.input("y", right, *((b, n, k) if is_turned else (b, k, n)))
    p = q = None
    if zeros == "axes":
        p = spread(node(Cast(I32), space.input("p", left, m)), x.shape, (1,))
        q = node(Cast(I32), space.input("q", right, n))
        q = spread(q, y.shape, (1 if is_turned else 2,))
    elif zeros == "single":
        p = node(Cast(I32), space.input("p", left))
        q = node(Cast(I32), space.input("q", right))
    summed = ((2, 2 if is_turned else 1),)
    return space.graph(node(Contract(((0, 0),), summed), centred(x, p), centred(y, q)))


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("left", "right", "is_turned", "zeros"),
    [
        (U8, S8, False, "none"),
        (U8, U8, True, "axes"),
        (S8, S8, False, "single"),
    ],
)
def test_products_of_two_inputs(
    level: str, left: DType, right: DType, is_turned: bool, zeros: str
) -> None:
    graph = of_two_inputs(left, right, is_turned, zeros)
    narrow = integer_products(graph)
    assert has_integer_products(narrow)
    check_all(narrow, level, edges(level), equal, graph)


def dequantised(x: Node, scale: Node, zero: Node) -> Node:
    """(x - zero) * scale."""
    return apply("multiply", centred(x, zero, F32), scale)


@pytest.mark.parametrize("level", BY_LEVEL)
@pytest.mark.parametrize(
    "zeros", [*(pytest.param(z, marks=pytest.mark.slow) for z in ((0, -128), (255, 127))), (117, 3)]
)
def test_dequantised_products_of_two_inputs(level: str, zeros: tuple[int, int]) -> None:
    """Attention scores: both sides are dequantised, the right one is transposed behind that."""
    space = Space()
    b, m, n = space.dimensions("b m n")
    k = space.dimension("k", high=1 << 16)
    operands = (space.input("x", U8, b, m, k), space.input("y", S8, b, n, k))
    left, right = (
        dequantised(x, scalar(0.5), scalar(float(z))) for x, z in zip(operands, zeros, strict=True)
    )
    graph = space.graph(node(Contract(((0, 0),), ((2, 2),)), left, right))
    narrow = integer_products(graph)
    assert has_integer_products(narrow)
    check_all(narrow, level, edges(level), within_two_roundings, graph)


def convolutions() -> Iterator[Any]:
    """Every geometry at every level; zero points take turns, so that each meets each of the two."""
    geometries, zeros = [(17, 3, 1), (64, 1, 1), (5, 3, 2)], [0, 255, 130]
    parts = product(enumerate(geometries), enumerate(zeros), enumerate(LEVELS))
    for (place, geometry), (turn, zero), (number, level) in parts:
        is_turn = (place + number) % len(zeros) == turn
        yield pytest.param(*geometry, zero, level, marks=() if is_turn else pytest.mark.combination)


@pytest.mark.slow
@pytest.mark.parametrize(("channels", "taps", "stride", "zero", "level"), list(convolutions()))
def test_convolutions_with_the_channels_first(
    channels: int, taps: int, stride: int, zero: int, level: str
) -> None:
    tile = register_tile(LEVELS[level])
    space = Space()
    batch, height = space.dimension("n"), space.dimension("h", low=taps)
    x = space.input("x", U8, batch, channels, height, 7)
    filters = at_the_ends("random", "w", S8, (tile.columns + 1, channels, taps, taps))
    filters[0], filters[1] = 127, -128
    pad = taps // 2
    sizes = tuple((s + 2 * pad - taps) // stride + 1 for s in (height, constant(7)))
    primitive = Convolve((stride,) * 2, (1, 1), (1, 1), (constant(pad),) * 2, sizes, 1)
    operands = centred(x, scalar(zero, I32)), centred(fixed(filters), scalar(-7, I32))
    graph = space.graph(node(primitive, *operands))
    narrow = prefer_channels_last(simplify(integer_products(graph)))
    products = [c.primitive for c in narrow.nodes() if isinstance(c.primitive, Convolve)]
    assert all(c.sums is I32 and c.channels_last for c in products)
    cases = [{"n": count, "h": high} for count, high in ((0, 5), (1, taps), (2, 6), (1, 11))]
    check_all(narrow, level, cases, equal, graph)
