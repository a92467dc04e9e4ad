"""Attention of com.microsoft computes what ONNX Runtime computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.operator_harness import Array, fission, run
from support.runtime_peer import DOMAIN, byte_range, check_contributed
from tilewright.ops.record import NoRule
from tilewright.support.errors import DimensionError

pytestmark = pytest.mark.peers

Operands = list[Array | None]
NEAR = 1e-5


def _floats(*shape: int, seed: int = 0) -> Array:
    return np.asarray(np.random.default_rng(seed).normal(0, 1, shape), np.float32)


def _mask(form: str, batch: int, length: int, total: int) -> Array | None:
    random = np.random.default_rng(7)
    ends = random.integers(1, total + 1, batch)
    match form:
        case "lengths":
            return ends.astype(np.int32)
        case "ends and starts":
            return np.concatenate([ends, random.integers(0, ends)]).astype(np.int32)
        case "keys":
            return (np.arange(total) < ends[:, None]).astype(np.int32)
        case "queries and keys":
            made = random.integers(0, 2, (batch, length, total))
            made[..., 0] = 1
            return made.astype(np.int32)
        case _:
            return None


# ---------------------------------------------------------------- with projections


@pytest.mark.parametrize("form", ["none", "lengths", "keys", "queries and keys"])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("with_bias", [False, True])
def test_attention(with_bias: bool, causal: int, form: str) -> None:
    def operands(batch: int, length: int) -> Operands:
        return [
            _floats(batch, length, 8), _floats(8, 24, seed=1), _floats(24, seed=2),
            _mask(form, batch, length, length), None,
            _floats(1, 2, length, length, seed=3) if with_bias else None,
        ]  # fmt: skip

    attributes = {"num_heads": 2, "unidirectional": causal}
    first, also = operands(2, 5), [operands(1, 1), operands(3, 17)]
    if form == "lengths":
        # Lengths and pairs of ends and starts differ in their number only.
        with pytest.raises(NoRule, match=r"(?i)a mask of .* numbers for a batch of"):
            fission("Attention", first, attributes, opset=1, domain=DOMAIN)
        return
    check_contributed("Attention", first, attributes, relative=NEAR, also=also)


@pytest.mark.parametrize("form", ["lengths", "ends and starts"])
def test_keys_that_a_vector_counts(form: str) -> None:
    operands = [_floats(3, 6, 8), _floats(8, 24), _floats(24), _mask(form, 3, 6, 6)]
    check_contributed("Attention", operands, {"num_heads": 2}, relative=NEAR, symbolic=False)


def test_sizes_of_queries_and_values_may_differ() -> None:
    attributes = {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 12], "scale": 0.3}
    operands = [_floats(2, 5, 8), _floats(8, 28, seed=1), _floats(28, seed=2)]
    check_contributed("Attention", operands, attributes, relative=NEAR)


@pytest.mark.parametrize("form", ["none", "keys"])
def test_attention_with_a_past(form: str) -> None:
    def operands(batch: int, length: int, before: int) -> Operands:
        return [
            _floats(batch, length, 8), _floats(8, 24, seed=1), _floats(24, seed=2),
            _mask(form, batch, length, before + length), _floats(2, batch, 2, before, 4, seed=4),
        ]  # fmt: skip

    attributes = {"num_heads": 2, "unidirectional": 1}
    also = [operands(1, 1, 9), operands(3, 2, 0)]
    first = operands(2, 3, 4)
    check_contributed("Attention", first, attributes, 2, relative=NEAR, also=also)


@pytest.mark.parametrize("per_column", [False, True])
def test_attention_of_bytes(per_column: bool) -> None:
    random = np.random.default_rng(8)
    low, high = byte_range(np.int8)
    scale = np.linspace(0.01, 0.02, 24) if per_column else np.array(0.01)
    scale = scale.astype(np.float32)

    def operands(batch: int, length: int) -> Operands:
        return [
            random.integers(0, 256, (batch, length, 8)).astype(np.uint8),
            random.integers(low, high + 1, (8, 24)).astype(np.int8), _floats(24, seed=2),
            np.array(0.01, np.float32),
            scale,
            _mask("keys", batch, length, length), np.array(128, np.uint8),
            np.zeros(24 if per_column else (), np.int8),
        ]  # fmt: skip

    also = [operands(1, 1), operands(3, 17)]
    first = operands(2, 5)
    check_contributed("QAttention", first, {"num_heads": 2}, relative=NEAR, also=also)


# ---------------------------------------------------------------- several heads


@pytest.mark.parametrize("form", ["none", "keys", "queries and keys"])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("with_scores", [False, True])
def test_heads(with_scores: bool, with_bias: bool, form: str) -> None:
    def operands(batch: int, length: int, total: int) -> Operands:
        return [
            _floats(batch, length, 8), _floats(batch, total, 8, seed=1),
            _floats(batch, total, 12, seed=2), _floats(28, seed=3) if with_bias else None,
            _mask(form, batch, length, total),
            _floats(batch, 1, length, total, seed=4) if with_scores else None,
        ]  # fmt: skip

    also = [operands(1, 1, 1), operands(3, 17, 30)]
    first = operands(2, 5, 6)
    check_contributed("MultiHeadAttention", first, {"num_heads": 2}, relative=NEAR, also=also)


def test_heads_with_a_past() -> None:
    def operands(batch: int, length: int, before: int) -> Operands:
        new = [_floats(batch, length, 8, seed=i) for i in range(3)]
        past = [_floats(batch, 2, before, 4, seed=i) for i in (3, 4)]
        return [*new, None, _mask("keys", batch, length, before + length), None, *past]

    attributes = {"num_heads": 2, "unidirectional": 1, "mask_filter_value": -1000.0}
    also = [operands(1, 1, 9), operands(3, 2, 1)]
    first = operands(2, 3, 4)
    check_contributed("MultiHeadAttention", first, attributes, 3, relative=NEAR, also=also)


@pytest.mark.parametrize("parts", [2, 3])
def test_heads_that_are_packed(parts: int) -> None:
    """ONNX Runtime has kernels for GPUs only: the same as what lies apart."""
    packed = _floats(2, 5, 2, parts, 4, seed=1)
    apart = [np.ascontiguousarray(packed[:, :, :, i]).reshape(2, 5, 8) for i in range(parts)]
    query = _floats(2, 5, 8)
    made: list[Array] = []
    for operands in (
        [packed] if parts == 3 else [query, packed],
        apart if parts == 3 else [query, *apart],
    ):
        graph = fission("MultiHeadAttention", operands, {"num_heads": 2}, opset=1, domain=DOMAIN)
        made += run(graph, operands)
    np.testing.assert_array_equal(*made)


def test_keys_that_are_heads() -> None:
    def operands(batch: int, length: int, total: int) -> Operands:
        keys = [_floats(batch, 2, total, 4, seed=i) for i in (1, 2)]
        return [_floats(batch, length, 8), *keys]

    also = [operands(1, 1, 1), operands(3, 9, 20)]
    first = operands(2, 5, 6)
    check_contributed("MultiHeadAttention", first, {"num_heads": 2}, relative=NEAR, also=also)


# ---------------------------------------------------------------- rotations


def _tables(length: int, half: int) -> Operands:
    angles = np.outer(np.arange(length), 0.5 ** np.arange(half))
    return [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("width", [0, 4])
@pytest.mark.parametrize("one_position", [False, True])
def test_rotations(one_position: bool, width: int, rank: int, interleaved: int) -> None:
    def operands(batch: int, length: int) -> Operands:
        shape = (batch, length, 16) if rank == 3 else (batch, 2, length, 8)
        positions = np.random.default_rng(9).integers(0, 30, (batch, length))
        return [
            _floats(*shape), np.array([3]) if one_position else positions,
            *_tables(40, (width or 8) // 2),
        ]  # fmt: skip

    attributes = {"interleaved": interleaved}
    if width:
        attributes |= {"rotary_embedding_dim": width, "num_heads": 2}
    elif rank == 3:
        attributes |= {"num_heads": 2}
    also = [operands(1, 1), operands(3, 9)]
    first = operands(2, 5)
    fixed = (2, 3)
    check_contributed("RotaryEmbedding", first, attributes, relative=1e-6, fixed=fixed, also=also)


# ---------------------------------------------------------------- shared keys


def _step(
    batch: int, length: int, before: int | None, *, packed: bool = False, rotary: int = 0
) -> Operands:
    """A prompt (with no past, None), or a step of a decoder after ``before`` keys."""
    total = length + (before or 0)
    keys = [_floats(batch, length, 32, seed=i) for i in (1, 2)]
    new: Operands = [_floats(batch, length, 64), *keys]
    if packed:
        new = [_floats(batch, length, 128), None, None]
    past: Operands = [None, None]
    if before is not None:
        past = [_floats(batch, 2, before, 16, seed=i) for i in (3, 4)]
    sizes: Operands = [np.full(batch, total - 1, np.int32), np.array(total, np.int32)]
    return [*new, *past, *sizes, *(_tables(64, rotary // 2) if rotary else [])]


SHARED = {"num_heads": 4, "kv_num_heads": 2}
KNOWN = (7, 8)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "attributes",
    [
        {}, {"scale": 0.5, "softcap": 2.0}, {"do_rotary": 1},
        {"do_rotary": 1, "rotary_interleaved": 1},
        {"local_window_size": 3}, {"local_window_size": 1},
    ],
    ids=str,
)  # fmt: skip
def test_shared_keys(attributes: dict[str, Any], packed: bool) -> None:
    every = {**SHARED, **attributes}
    rotary = 16 if "do_rotary" in attributes else 0
    prompts = [_step(b, s, None, packed=packed, rotary=rotary) for b, s in ((2, 6), (1, 1), (3, 9))]
    check_contributed(
        "GroupQueryAttention", prompts[0], every, 3, fixed=KNOWN, relative=NEAR, also=prompts[1:]
    )
    steps = [(2, 1, 5), (1, 1, 1), (3, 1, 20), (1, 4, 6)]
    after = [_step(*step, packed=packed, rotary=rotary) for step in steps]
    check_contributed(
        "GroupQueryAttention", after[0], every, 3, fixed=KNOWN, relative=NEAR, also=after[1:]
    )


def test_shared_keys_with_scores_added() -> None:
    def operands(batch: int, before: int) -> Operands:
        added = _floats(batch, 1, 1, before + 1, seed=6)
        return [*_step(batch, 1, before), None, None, None, added]

    first, also = operands(2, 5), [operands(1, 9)]
    check_contributed("GroupQueryAttention", first, SHARED, 3, relative=NEAR, also=also)


def test_shared_keys_that_are_standardised() -> None:
    """ONNX Runtime has a kernel for GPUs only: the same as standardising them first."""

    def standardised(x: Array, scale: Array) -> Array:
        heads = x.reshape(2, 1, -1, 16)
        root = np.sqrt((heads * heads).mean(-1, keepdims=True) + np.float32(1e-6))
        return (heads / root * scale).reshape(x.shape)

    scales = [_floats(16, seed=7), _floats(16, seed=8)]
    query, key, *rest = _step(2, 1, 5)
    assert query is not None and key is not None
    plain = [standardised(query, scales[0]), standardised(key, scales[1]), *rest]
    made: list[Array] = []
    for operands in ([query, key, *rest, *[None] * 7, *scales], plain):
        graph = fission("GroupQueryAttention", operands, SHARED, opset=1, domain=DOMAIN)
        made += run(graph, operands)
    np.testing.assert_allclose(*made, rtol=NEAR, atol=NEAR)


def test_prompts_of_different_lengths() -> None:
    """What is behind the end of a row is unspecified, before it nobody sees it."""
    operands = _step(2, 6, None)
    operands[5] = np.array([5, 3], np.int32)
    graph = fission("GroupQueryAttention", operands, SHARED, opset=1, outputs=1, domain=DOMAIN)
    whole = run(graph, operands)[0]
    cut = [x if x is None or x.ndim < 3 else x[1:, :4] for x in operands]
    cut[5:7] = [np.array([3], np.int32), np.array(4, np.int32)]
    np.testing.assert_allclose(run(graph, cut)[0][0], whole[1, :4], rtol=NEAR, atol=NEAR)


def test_pasts_of_different_lengths_are_refused_in_the_call() -> None:
    operands = _step(2, 1, 5)
    operands[5] = np.array([5, 3], np.int32)
    graph = fission("GroupQueryAttention", operands, SHARED, opset=1, outputs=3, domain=DOMAIN)
    with pytest.raises(DimensionError, match="different lengths"):
        run(graph, operands)


@pytest.mark.parametrize(
    ("name", "attributes", "message"),
    [
        ("GroupQueryAttention", {"sliding_window_cache": 1}, "the cache holds a window"),
        ("GroupQueryAttention", {"smooth_softmax": 1}, "added to the softmax"),
        ("Attention", {"do_rotary": 1}, "to be rotated"),
        ("Attention", {"past_present_share_buffer": 1}, "share a buffer"),
    ],
)
def test_what_is_refused(name: str, attributes: dict[str, Any], message: str) -> None:
    operands = _step(2, 1, 5) if name[0] == "G" else [_floats(2, 3, 8), _floats(8, 24)]
    with pytest.raises(NoRule, match=f"(?i){message}"):
        fission(name, operands, {**SHARED, **attributes}, opset=1, domain=DOMAIN)
