"""Attention in one kernel: how scores are shown, layouts, edge sizes, numbers at the edge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.graph_kit import (
    BOOL,
    F32,
    F64,
    I64,
    WIDE,
    Space,
    apply,
    check,
    default_fill,
    kinds,
    mostly_slow,
    scalar,
    softmax,
    spread,
)
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Broadcast, Contract, Iota, Reshape, Transpose
from tilewright.shape import constant
from tilewright.tile import lower
from tilewright.tile.attention import variants
from tilewright.tile.attention.variants import attention_variants
from tilewright.tile.variants import Variant

pytestmark = pytest.mark.sampled(8)

Array = np.ndarray[Any, Any]
BLOCKS = ((192, 192), (32, 256))  # rows and keys; vectors have 4 to 16 elements
EDGES = [
    {"b": b, "h": h, "m": m, "n": n}
    for b, h, m, n in (
        (1, 1, 1, 1), (0, 2, 3, 4), (2, 2, 0, 5), (1, 2, 5, 0), (1, 1, 17, 191), (1, 2, 31, 192),
        (2, 1, 33, 193), (1, 1, 127, 257), (1, 1, 193, 16),
    )
]  # fmt: skip
FEW = [EDGES[number] for number in (0, 2, 3, 6)]
LARGE = [{"b": 1, "h": 2, "m": 300, "n": 391}]


class Heads:
    """Queries, keys and values of several heads, [b, h, rows, width]."""

    def __init__(self, dtype: DType = F32, depth: int = 24, width: int = 40) -> None:
        self.space = Space()
        self.b, self.h, self.m, self.n = self.space.dimensions("b h m n")
        self.queries = self.space.input("q", dtype, self.b, self.h, self.m, depth)
        self.keys = self.space.input("k", dtype, self.b, self.h, self.n, depth)
        self.values = self.space.input("v", dtype, self.b, self.h, self.n, width)

    @property
    def scores(self) -> Node:
        return node(Contract(((0, 0), (1, 1)), ((3, 3),)), self.queries, self.keys)

    def context(self, weights: Node) -> Node:
        return node(Contract(((0, 0), (1, 1)), ((3, 2),)), weights, self.values)


@pytest.fixture(autouse=True)
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes one of the variants, the first unless a test names another by its number."""

    number = getattr(request, "param", 0)

    def only(*arguments: Any) -> tuple[Variant, ...]:
        return (attention_variants(*arguments)[number // len(BLOCKS)],)

    monkeypatch.setattr(lower, "attention_variants", only)
    block = BLOCKS[number % len(BLOCKS)]
    monkeypatch.setattr(variants, "attention_blocks", lambda *_: (block,))


@pytest.mark.slow
@pytest.mark.parametrize("variant", [0, 1, 2], indirect=True)
def test_all_edge_sizes() -> None:
    heads = Heads()
    made = check(heads.space.graph(heads.context(softmax(heads.scores))), EDGES + LARGE, length=400)
    assert kinds(made) == ["attention"]


@pytest.mark.parametrize("levels", mostly_slow([("avx2",), (WIDE,)], ""))
def test_tiles_of_other_levels(levels: tuple[str, ...]) -> None:
    heads = Heads(depth=64, width=64)
    graph = heads.space.graph(heads.context(softmax(heads.scores)))
    check(graph, EDGES + LARGE, length=400, levels=levels)


@pytest.mark.parametrize("width", mostly_slow([1, 7, 16, 33, 64, 80, 128], "7"))
def test_widths_of_values(width: int) -> None:
    heads = Heads(width=width, depth=width)
    graph = heads.space.graph(heads.context(softmax(heads.scores)))
    # Weights err by what scores do, whose magnitude grows as the square root of the depth.
    check(graph, FEW, length=200, scale=max(1.0, 4 * width**0.5))


@pytest.mark.slow
def test_doubles() -> None:
    heads = Heads(F64)
    check(heads.space.graph(heads.context(softmax(heads.scores))), FEW, length=200)


def _of_keys(heads: Heads, scores: Node) -> Node:
    mask = heads.space.input("mask", F32, heads.b, heads.n)
    return apply("add", scores, spread(mask, scores.shape, (0, 3)))


def _of_pairs(heads: Heads, scores: Node) -> Node:
    return apply("add", scores, heads.space.input("bias", F32, heads.h, heads.m, heads.n))


def _of_flags(heads: Heads, scores: Node) -> Node:
    flags = heads.space.input("flags", BOOL, heads.m, heads.n)
    return apply("select", spread(flags, scores.shape), scores, spread(scalar(-1e9), scores.shape))


def _causal(heads: Heads, scores: Node) -> Node:
    shape = (heads.m, heads.n)
    before = apply("less_equal", node(Iota(shape, 1)), node(Iota(shape, 0)))
    return apply("select", spread(before, scores.shape), scores, spread(scalar(-1e9), scores.shape))


def _capped(heads: Heads, scores: Node) -> Node:
    bent = apply("hyperbolic_tangent", apply("divide", scores, scalar(5.0)))
    return apply("multiply", bent, scalar(5.0))


SHOWN = [_of_keys, _of_pairs, _of_flags, _causal, _capped]


@pytest.mark.slow
@pytest.mark.parametrize("show", SHOWN)
def test_what_is_shown_of_scores(show: Any) -> None:
    heads = Heads()
    shown = show(heads, apply("multiply", heads.scores, scalar(0.2)))
    made = check(heads.space.graph(heads.context(softmax(shown))), FEW, length=300, scale=16)
    assert kinds(made)[-1] == "attention"


@pytest.mark.slow
def test_heads_that_share_keys() -> None:
    space = Space()
    b, g, m, n = space.dimensions("b g m n")
    queries = space.input("q", F32, b, g * 3, m, constant(16))
    keys, values = (space.input(name, F32, b, n, g, constant(16)) for name in "kv")

    def shared(x: Node) -> Node:
        turned = node(Transpose((0, 2, 1, 3)), x)
        repeated = node(Broadcast((b, g, constant(3), n, constant(16)), (0, 1, 3, 4)), turned)
        return node(Reshape((b, g * 3, n, constant(16))), repeated)

    scores = node(Contract(((0, 0), (1, 1)), ((3, 3),)), queries, shared(keys))
    weights = softmax(apply("multiply", scores, scalar(0.25)))
    context = node(Contract(((0, 0), (1, 1)), ((3, 2),)), weights, shared(values))
    merged = node(Reshape((b, m, g * 48)), node(Transpose((0, 2, 1, 3)), context))
    cases = [{"b": s["b"], "g": s["h"], "m": s["m"], "n": s["n"]} for s in FEW]
    assert kinds(check(space.graph(merged), cases, length=200)) == ["attention"]


@pytest.mark.slow
def test_an_epilogue_and_several_axes_of_rows() -> None:
    space = Space()
    b, h, m, n = space.dimensions("b h m n")
    queries = space.input("q", F32, b, h, m, constant(16))
    keys, values = (space.input(name, F32, b, n, constant(16)) for name in "kv")
    bias = space.input("bias", F32, constant(16))
    scores = node(Contract(((0, 0),), ((3, 2),)), queries, keys)
    context = node(Contract(((0, 0),), ((3, 1),)), softmax(scores), values)
    graph = space.graph(apply("maximum", apply("add", context, bias), scalar(0.0)))
    assert kinds(check(graph, FEW, length=200)) == ["attention"]


def _cleared(weights: Node) -> Node:
    nothing = spread(scalar(0.0), weights.shape)
    return apply("select", apply("is_nan", weights), nothing, weights)


@pytest.mark.slow
@pytest.mark.parametrize("cleared", [False, True])
def test_rows_without_a_key_that_counts(cleared: bool) -> None:
    """Where all scores of a row are minus infinity, its weights are no numbers, or cleared 0."""

    def fill(name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
        made = default_fill(name, dtype, shape)
        if name == "bias":
            made[:, ::2] = -np.inf
            made[..., : shape[-1] // 2] = -np.inf  # nor does any of the first keys count
        return made

    heads = Heads()
    weights = softmax(_of_pairs(heads, heads.scores))
    weights = _cleared(weights) if cleared else weights
    cases = [{"b": 1, "h": 2, "m": 5, "n": 300}, {"b": 1, "h": 1, "m": 3, "n": 0}]
    made = check(heads.space.graph(heads.context(weights)), cases, length=300, fill=fill)
    assert kinds(made) == ["attention"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [np.nan, np.inf, 3e38, -3e38])
def test_scores_at_the_edge_of_numbers(number: float) -> None:
    def fill(name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
        made = default_fill(name, dtype, shape)
        if name == "bias" and made.size:
            made[0, -1, -1] = number
        return made

    heads = Heads()
    graph = heads.space.graph(heads.context(softmax(_of_pairs(heads, heads.scores))))
    check(graph, [{"b": 1, "h": 2, "m": 5, "n": 300}], length=300, fill=fill)


@pytest.mark.slow
def test_scores_that_someone_else_reads_are_not_stitched() -> None:
    heads = Heads()
    scores = heads.scores
    graph = heads.space.graph(heads.context(softmax(scores)), scores)
    assert "attention" not in kinds(check(graph, FEW, length=200))


@pytest.mark.slow
@pytest.mark.parametrize("low", [-np.inf, -1e9])
@pytest.mark.parametrize("past", [0, 70])
def test_keys_that_no_row_of_a_block_sees(low: float, past: int) -> None:
    """Whole blocks of keys are hidden from the first rows, and all keys from none."""
    heads = Heads()
    shape = (heads.m, heads.n)
    until = apply("add", node(Iota(shape, 0)), spread(scalar(past, I64), shape))
    seen = apply("less_equal", node(Iota(shape, 1)), until)
    hidden = spread(scalar(low), heads.scores.shape)
    shown = apply("select", spread(seen, heads.scores.shape), heads.scores, hidden)
    cases = [{"b": 1, "h": 2, "m": m, "n": n} for m, n in ((1, 1), (200, 500), (300, 193), (5, 0))]
    check(heads.space.graph(heads.context(softmax(shown))), cases, length=300, scale=16)


@pytest.mark.slow
def test_rows_whose_scores_are_lower_than_what_hides() -> None:
    """Hidden keys have all the weight then, those of other blocks as well."""

    def fill(name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
        if name == "v":
            return default_fill(name, dtype, shape)
        made = np.ones(shape, np.float32)
        if name == "q":
            made[..., 1::2, :] *= -1e8  # scores of -2.4e9, but for every other row
        return made

    heads = Heads()
    shown = _causal(heads, heads.scores)
    cases = [{"b": 1, "h": 1, "m": 20, "n": 400}]
    check(heads.space.graph(heads.context(softmax(shown))), cases, length=400, fill=fill)
