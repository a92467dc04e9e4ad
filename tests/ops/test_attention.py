"""Attention, RotaryEmbedding and LinearAttention: all options, one graph for many lengths."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from support.operator_harness import Array, check_node, compare, fission, reference, run
from tilewright.ir.graph import topological
from tilewright.ir.primitives import Broadcast, Contract
from tilewright.ops.record import NoRule
from tilewright.support.errors import DimensionError, InvalidModelError

Operands = list[Array | None]


def _random(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _heads(
    batch: int, heads: int, shared: int, length: int, total: int, size: int = 8, value: int = 6
) -> Operands:
    return [
        _random(batch, heads, length, size),
        _random(batch, shared, total, size, seed=1),
        _random(batch, shared, total, value, seed=2),
    ]


def _same_for_all(
    sets: list[Operands], attributes: dict[str, Any], outputs: int = 1, opset: int = 25
) -> None:
    check_node(
        "Attention", sets[0], attributes, opset, outputs, length=32, relative=2e-5, also=sets[1:]
    )


SIZES = [(2, 4, 5), (1, 1, 1), (3, 5, 2), (2, 1, 7)]  # batch, queries, keys


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("opset", [23, 24, 25])
def test_four_axes(opset: int, causal: int) -> None:
    sets = [_heads(n, 3, 3, s, t) for n, s, t in SIZES]
    _same_for_all(sets, {"is_causal": causal}, opset=opset)


@pytest.mark.parametrize("shared", [1, 2, 6])
def test_shared_heads_of_three_axes(shared: int) -> None:
    sets: list[Operands] = [
        [_random(n, s, 48), _random(n, t, 8 * shared, seed=1), _random(n, t, 4 * shared, seed=2)]
        for n, s, t in SIZES
    ]
    attributes = {"q_num_heads": 6, "kv_num_heads": shared, "scale": 0.25, "softcap": 2.0}
    _same_for_all(sets, attributes)


def test_shared_heads_are_not_repeated() -> None:
    operands = _heads(2, 6, 2, 4, 5)
    graph = fission("Attention", operands, {}, opset=25, symbolic=False)
    products = [n for n in graph.nodes() if isinstance(n.primitive, Contract)]
    assert len(products) == 2
    assert all(len(n.primitive.batch) == 2 for n in products if isinstance(n.primitive, Contract))
    read = topological([product.inputs[1] for product in products])
    assert not any(isinstance(n.primitive, Broadcast) for n in read)


MASKS: list[tuple[int, ...]] = [(4, 5), (1, 5), (3, 4, 5), (1, 1, 4, 5), (2, 1, 4, 5), (2, 3, 4, 5)]


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("kind", [bool, np.float32])
@pytest.mark.parametrize("shape", MASKS)
def test_masks(shape: tuple[int, ...], kind: Any, causal: int) -> None:
    operands = _heads(2, 3, 3, 4, 5)
    mask = _random(*shape, seed=3)
    mask = mask > -0.5 if kind is bool else mask
    # The reference takes the number of queries from the mask, so it gets one that is spread out.
    spread = [*operands, np.broadcast_to(mask, (2, 3, 4, 5))]
    attributes = {"is_causal": causal}
    expected = reference("Attention", spread, attributes, opset=25)
    check_node(
        "Attention", [*operands, mask], attributes, 25, expected=expected, length=32, relative=2e-5
    )


@pytest.mark.parametrize("kind", [bool, np.float32])
def test_a_mask_shorter_than_the_keys_hides_the_rest(kind: Any) -> None:
    sets: list[Operands] = []
    for length, width in [(4, 5), (4, 3), (1, 2)]:
        mask = _random(length, width, seed=3)
        sets.append([*_heads(2, 3, 3, length, 5), mask > -0.5 if kind is bool else mask])
    _same_for_all(sets, {})
    graph = fission("Attention", sets[0], {}, opset=25)
    too_long = [*_heads(2, 3, 3, 4, 5), np.ones((4, 6), bool) if kind is bool else _random(4, 6)]
    with pytest.raises(DimensionError, match="mask"):
        run(graph, too_long)


def test_a_query_that_sees_nothing_gives_zeros() -> None:
    operands = _heads(1, 1, 1, 3, 4)
    mask = np.ones((3, 4), bool)
    mask[1] = False
    graph = fission(
        "Attention", [*operands, mask], {"qk_matmul_output_mode": 3}, opset=25, outputs=4
    )
    out, _, _, weights = run(graph, [*operands, mask])
    assert not out[0, 0, 1].any() and not weights[0, 0, 1].any()
    np.testing.assert_allclose(weights[0, 0, [0, 2]].sum(axis=-1), 1, rtol=1e-6)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("with_mask", [False, True])
def test_past_and_scores(with_mask: bool, mode: int) -> None:
    sets: list[Operands] = []
    for batch, length, past in [(2, 3, 4), (1, 1, 0), (3, 1, 6), (2, 2, 1)]:
        mask = _random(length, past + length, seed=5) > -1 if with_mask else None
        sets.append(
            [
                *_heads(batch, 4, 2, length, length),
                mask,
                _random(batch, 2, past, 8, seed=3),
                _random(batch, 2, past, 6, seed=4),
            ]
        )
    # The raw scores of mode 0 are those before the cap; the reference gives those after it.
    cap = {"softcap": 3.0} if mode else {}
    _same_for_all(sets, {"is_causal": 1, "qk_matmul_output_mode": mode, **cap}, outputs=4)


def test_raw_scores_are_not_capped() -> None:
    operands = _heads(1, 2, 2, 3, 4)
    graph = fission("Attention", operands, {"softcap": 0.5, "scale": 1.0}, opset=25, outputs=4)
    query, key, _ = (np.asarray(x, np.float64) for x in operands)
    expected = np.einsum("bhsd,bhtd->bhst", query, key).astype(np.float32)
    compare(run(graph, operands)[3], expected, length=8)


@pytest.mark.parametrize(("left", "right"), [(2, -1), (-1, 1), (2, 0), (0, 2)])
@pytest.mark.parametrize("causal", [0, 1])
def test_windows(causal: int, left: int, right: int) -> None:
    sets = [_heads(n, 2, 2, s, t) for n, s, t in SIZES]
    attributes = {"left_window_size": left, "right_window_size": right, "is_causal": causal}
    _same_for_all(sets, attributes)


@pytest.mark.parametrize("causal", [0, 1])
def test_valid_lengths_of_an_external_cache(causal: int) -> None:
    sets: list[Operands] = []
    for batch, length, total in [(2, 3, 6), (1, 1, 4), (3, 4, 4)]:
        valid = np.arange(batch) % total + 1
        sets.append([*_heads(batch, 2, 2, length, total), None, None, None, valid])
    _same_for_all(sets, {"is_causal": causal, "left_window_size": 3})


def test_halves_and_other_precisions() -> None:
    operands = _heads(2, 4, 2, 3, 5)
    exact = reference("Attention", operands, {}, opset=25)[0]
    for dtype in (np.float16, ml_dtypes.bfloat16):
        halves = [None if x is None else x.astype(dtype) for x in operands]
        wide = [None if x is None else x.astype(np.float32) for x in halves]
        wanted = reference("Attention", wide, {}, opset=25)[0].astype(dtype)
        compare(run(fission("Attention", halves, {}, opset=25), halves)[0], wanted)
    got = run(fission("Attention", operands, {"softmax_precision": 11}, opset=25), operands)[0]
    compare(got, exact, relative=1e-5)
    mixed: Operands = [operands[0], operands[1], halves[2]]
    past: Operands = [None, _random(2, 2, 1, 8), _random(2, 2, 1, 6).astype(ml_dtypes.bfloat16)]
    graph = fission("Attention", [*mixed, *past], {}, opset=25, outputs=3)
    types = [y.dtype for y in run(graph, [*mixed, *past])]
    assert types == [np.float32, np.float32, ml_dtypes.bfloat16]


def test_no_keys_and_no_queries() -> None:
    graph = fission("Attention", _heads(1, 2, 2, 2, 2), {}, opset=25)
    assert not run(graph, _heads(1, 2, 2, 3, 0))[0].any()
    assert run(graph, _heads(1, 2, 2, 0, 3))[0].shape == (1, 2, 0, 6)
    assert run(graph, _heads(0, 2, 2, 3, 3))[0].shape == (0, 2, 3, 6)


def test_heads_that_do_not_fit() -> None:
    with pytest.raises(InvalidModelError):
        fission("Attention", _heads(1, 3, 2, 2, 2), {}, opset=25, symbolic=False)
    graph = fission("Attention", _heads(1, 4, 2, 2, 2), {}, opset=25)
    with pytest.raises(DimensionError, match="heads"):
        run(graph, _heads(1, 3, 2, 2, 2))


# ---------------------------------------------------------------- rotary embedding


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rotated", [0, 4])
@pytest.mark.parametrize("with_positions", [False, True])
def test_rotary_embedding(with_positions: bool, rotated: int, interleaved: int) -> None:
    attributes = {"interleaved": interleaved, "rotary_embedding_dim": rotated, "num_heads": 3}
    half = (rotated or 8) // 2
    for rank in (3, 4):
        sets: list[Operands] = []
        for batch, length in [(2, 5), (1, 1), (3, 2)]:
            shape = (batch, 3, length, 8) if rank == 4 else (batch, length, 24)
            table = (16, half) if with_positions else (batch, length, half)
            operands: Operands = [_random(*shape), _random(*table, seed=1), _random(*table, seed=2)]
            if with_positions:
                operands.append(np.random.default_rng(3).integers(0, 16, (batch, length)))
            sets.append(operands)
        check_node("RotaryEmbedding", sets[0], attributes, 23, also=sets[1:], relative=1e-6)


# ---------------------------------------------------------------- linear attention


def _linear_operands(
    rule: str, batch: int, length: int, past: bool, width: int, heads: int, shared: int
) -> Operands:
    key, value = 4, 3
    operands: Operands = [
        _random(batch, length, heads * key),
        _random(batch, length, shared * key, seed=1) / 2,
        _random(batch, length, shared * value, seed=2),
        _random(batch, shared, key, value, seed=3) if past else None,
        -np.abs(_random(batch, length, shared * width, seed=4)) if "gated" in rule else None,
    ]
    if "delta" in rule:
        operands.append(np.abs(np.tanh(_random(batch, length, shared, seed=5))))
    return operands


@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize(("rule", "width"), [("linear", 1), ("gated", 1), ("gated", 4)])
@pytest.mark.parametrize("past", [False, True])
def test_linear_attention_of_unknown_length(past: bool, rule: str, width: int, heads: int) -> None:
    sets = [
        _linear_operands(rule, batch, length, past, width, heads, 2)
        for batch, length in [(2, 5), (1, 1), (3, 9)]
    ]
    attributes = {"update_rule": rule, "q_num_heads": heads, "kv_num_heads": 2}
    check_node(
        "LinearAttention", sets[0], attributes, 27, 2, also=sets[1:], length=16, relative=1e-5
    )


@pytest.mark.parametrize(("rule", "width"), [("delta", 1), ("gated_delta", 1), ("gated_delta", 4)])
@pytest.mark.parametrize("length", [1, 6])
def test_linear_attention_with_correction(length: int, rule: str, width: int) -> None:
    operands = _linear_operands(rule, 2, length, True, width, 4, 2)
    attributes = {"update_rule": rule, "q_num_heads": 4, "kv_num_heads": 2, "scale": 0.5}
    check_node(
        "LinearAttention", operands, attributes, 27, 2, symbolic=False, length=16, relative=1e-5
    )
    with pytest.raises(NoRule, match="unrolled"):
        fission("LinearAttention", operands, attributes, opset=27, outputs=2)


def test_linear_attention_keeps_the_state_type() -> None:
    operands = _linear_operands("linear", 1, 3, True, 1, 2, 2)
    halves: Operands = [
        None if x is None else x if i == 3 else x.astype(np.float16) for i, x in enumerate(operands)
    ]
    attributes = {"update_rule": "linear", "q_num_heads": 2, "kv_num_heads": 2}
    graph = fission("LinearAttention", halves, attributes, opset=27, outputs=2)
    assert [y.dtype for y in run(graph, halves)] == [np.float16, np.float32]


def test_every_option_at_once() -> None:
    for causal, left, bias in product((0, 1), (-1, 2), (False, True)):
        operands = [*_heads(2, 4, 2, 3, 3), _random(3, 7, seed=6) if bias else None]
        operands += [_random(2, 2, 4, 8, seed=3), _random(2, 2, 4, 6, seed=4)]
        _same_for_all([operands], {"is_causal": causal, "left_window_size": left}, outputs=3)
