"""DietCode and FTuner: what they keep, and how their costs tell the runtime which to take."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.policy import POLICIES, BlockSizes, Chosen, Extents, Problem, Space
from tilewright.policy.space import BLOCK_COLUMNS, BLOCK_DEPTH, BLOCK_ROWS
from tilewright.policy.tree import Cut, Leaf, grow
from tilewright.shape import Expr, Scope, ceil_div, constant, maximum, symbol
from tilewright.target import preset

M, T = symbol("m"), symbol("_threads")


def problem() -> Problem:
    """m × 256 sums over 64, where a block costs what it computes, and something by itself."""
    scope = Scope()
    scope.declare("m", 0, 2048)
    tasks = ceil_div(M, BLOCK_ROWS) * ceil_div(constant(256), BLOCK_COLUMNS)
    each = BLOCK_ROWS * BLOCK_COLUMNS * 64 * 30 + 20000 + BLOCK_DEPTH
    price = ceil_div(maximum(tasks, 1), T) * each
    blocks = tuple(
        BlockSizes(rows, columns, 64) for rows in (6, 12, 48, 96, 384) for columns in (64, 128, 256)
    )
    space = Space(price, blocks, Extents(constant(1), M, constant(256), constant(64)))
    return Problem((space,), (), scope, "_threads", preset("zen3"))


def cheapest(chosen: Chosen, m: int, threads: int) -> tuple[int, BlockSizes]:
    (kept,) = chosen.kept
    costs = [k.cost.evaluate({"m": m, "_threads": threads}) for k in kept]
    return min(costs), kept[costs.index(min(costs))].sizes


def test_the_tree_of_dietcode_names_one_category_for_every_shape() -> None:
    chosen = POLICIES["dietcode"].choose(problem())
    (kept,) = chosen.kept
    assert not chosen.with_others and 2 <= len(kept) <= 15
    for m in (0, 1, 5, 100, 777, 2048):
        for threads in (1, 2, 7, 64):
            costs = [k.cost.evaluate({"m": m, "_threads": threads}) for k in kept]
            assert sorted(costs) == [0] + [1] * (len(kept) - 1)
    few, many = (cheapest(chosen, 48, t)[1] for t in (1, 32))
    assert many.rows * many.columns < few.rows * few.columns, "small blocks fill the waves"


def test_ftuner_prefers_what_pads_little_and_fills_the_cores() -> None:
    chosen = POLICIES["ftuner"].choose(problem())
    assert not chosen.with_others
    for m, threads in ((384, 1), (768, 2), (6, 4), (2048, 8)):
        cost, sizes = cheapest(chosen, m, threads)
        assert 0 <= cost <= 20000
        padded = -(-m // sizes.rows) * sizes.rows
        assert m / padded >= 0.5, "the filter's least share"


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_a_deep_tree_knows_what_it_has_seen(seed: int, depth: int) -> None:
    generator = np.random.default_rng(seed)
    samples = generator.integers(0, 50, (2, 40))
    categories = ((samples[0] > 20).astype(np.int64) * 2) + (samples[1] > 33)
    _, categories = np.unique(categories, return_inverse=True)
    tree = grow(("a", "b"), samples, categories, np.ones(40, np.int64), depth)
    expression: Expr = tree.expression()
    found = [expression.evaluate({"a": int(a), "b": int(b)}) for a, b in zip(*samples, strict=True)]
    wrong = sum(f != c for f, c in zip(found, categories, strict=True))
    assert wrong == 0 if depth >= 4 else wrong <= 30


def test_what_cannot_be_told_apart_is_the_heavier_category() -> None:
    samples = np.zeros((1, 3), np.int64)
    categories, weights = np.array([0, 1, 1]), np.array([5, 1, 1])
    assert grow(("a",), samples, categories, weights, 4) == Leaf(0)
    told = grow(("a",), np.array([[1, 2, 3]]), categories, weights, 4)
    assert told == Cut("a", 1, Leaf(0), Leaf(1))


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_results_do_not_depend_on_the_policy(policy: str) -> None:
    sizes = (["m", "k"], ["k", "n"], ["m", "n"])
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip("aby", sizes, strict=True)
    ]
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    graph = helper.make_graph([node], "product", values[:2], values[2:])
    opset = [helper.make_opsetid("", 17)]
    source: onnx.ModelProto = helper.make_model(graph, opset_imports=opset, ir_version=8)
    model = tw.compile(source, policy=policy)  # pyright: ignore[reportArgumentType]
    generator = np.random.default_rng(3)
    for m, n, k in ((0, 3, 2), (1, 1, 1), (7, 65, 33), (97, 31, 128), (3, 5, 0), (200, 129, 257)):
        a, b = (generator.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
        expected = a.astype(np.float64) @ b.astype(np.float64)
        bound = 2e-7 * (k + 1) * (np.abs(a) @ np.abs(b) + 1e-30)
        assert np.all(np.abs(model(a, b) - expected) <= bound)
