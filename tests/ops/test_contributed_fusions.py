"""Fused operators of com.microsoft compute what ONNX Runtime computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.operator_harness import Array, fission, run
from support.runtime_peer import DOMAIN, check_contributed
from tilewright.ops.record import NoRule

pytestmark = pytest.mark.peers

Operands = list[Array | None]


def _floats(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.asarray(np.random.default_rng(seed).normal(0, 2, shape)).astype(dtype)


# ---------------------------------------------------------------- activations


@pytest.mark.parametrize(
    ("name", "attributes"), [("Gelu", {}), ("QuickGelu", {}), ("QuickGelu", {"alpha": 1.0})]
)
def test_activations(name: str, attributes: dict[str, Any]) -> None:
    also: list[Operands] = [[_floats(0, 4)], [_floats(1, 1)], [_floats(30, 50)]]
    check_contributed(name, [_floats(3, 5)], attributes, relative=1e-6, also=also)


@pytest.mark.parametrize("name", ["BiasGelu", "FastGelu"])
def test_activations_of_biased_data(name: str) -> None:
    shapes = [(2, 3, 5), (1, 1, 1), (0, 3, 4), (4, 7, 33)]
    every: list[Operands] = [[_floats(*s), _floats(s[-1], seed=1)] for s in shapes]
    check_contributed(name, every[0], relative=2e-6, also=every[1:])
    check_contributed("FastGelu", [_floats(2, 3)], relative=2e-6)


def test_halves_are_rounded_once() -> None:
    operands: Operands = [_floats(4, 9, dtype=np.float16), _floats(9, seed=1, dtype=np.float16)]
    check_contributed("FastGelu", operands, relative=2e-3)


@pytest.mark.parametrize(
    ("activation", "parameters"),
    [
        ("Relu", []),
        ("Tanh", []),
        ("Sigmoid", []),
        ("LeakyRelu", [0.2]),
        ("HardSigmoid", [0.3, 0.4]),
        ("Clip", [-0.5, 0.75]),
    ],
)
def test_convolutions_with_an_activation(activation: str, parameters: list[float]) -> None:
    attributes = {"activation": activation, "pads": [1, 1, 1, 1]}
    if parameters:
        attributes["activation_params"] = parameters

    def operands(*shape: int) -> Operands:
        return [_floats(*shape), _floats(6, shape[1], 3, 3, seed=1), _floats(6, seed=2)]

    also = [operands(1, 1, 1, 1), operands(3, 7, 9, 4)]
    first = operands(2, 4, 6, 5)
    check_contributed("FusedConv", first, attributes, length=64, relative=1e-5, also=also)


def test_convolutions_with_a_sum() -> None:
    operands = [_floats(2, 4, 6, 5), _floats(6, 4, 1, 1), _floats(6), _floats(2, 6, 6, 5, seed=3)]
    check_contributed("FusedConv", operands, {"activation": "Relu"}, length=8, relative=1e-5)


@pytest.mark.parametrize(
    ("activation", "parameters"),
    [
        ("Relu", {}),
        ("LeakyRelu", {"activation_alpha": 0.3}),
        ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}),
        ("Tanh", {}),
    ],
)
def test_gemm_with_an_activation(activation: str, parameters: dict[str, float]) -> None:
    attributes = {"activation": activation, "transB": 1, "alpha": 0.5, **parameters}

    def operands(rows: int, depth: int, columns: int) -> Operands:
        return [_floats(rows, depth), _floats(columns, depth, seed=1), _floats(columns, seed=2)]

    also = [operands(1, 1, 1), operands(0, 3, 2), operands(17, 40, 9)]
    first = operands(3, 5, 4)
    check_contributed("FusedGemm", first, attributes, length=40, relative=1e-5, also=also)


def test_other_activations_are_refused() -> None:
    operands = [_floats(3, 5), _floats(5, 4)]
    with pytest.raises(NoRule, match="activation 'Erf'"):
        fission("FusedGemm", operands, {"activation": "Erf"}, opset=1, domain=DOMAIN)


# ---------------------------------------------------------------- products and rows


Turned = tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]
TURNED: tuple[Turned, ...] = (
    ({"alpha": 0.125}, (2, 3, 4, 5), (2, 3, 5, 6)),
    ({"transB": 1}, (2, 3, 4, 5), (2, 3, 6, 5)),
    ({"transA": 1, "alpha": 2.0}, (5, 4), (5, 6)),
    ({"transB": 1}, (2, 4, 5), (6, 5)),
)
# The batches turned, too, which the older operator cannot ask for.
TURNED_BATCHES: tuple[Turned, ...] = (
    ({"transBatchA": 1}, (4, 2, 3, 5), (2, 3, 5, 6)),
    ({"transBatchA": 1, "transA": 1, "transBatchB": 1}, (5, 2, 4), (5, 2, 6)),
    ({"transBatchB": 1, "transB": 1}, (2, 3, 4, 5), (6, 2, 3, 5)),
)
PRODUCTS = [("FusedMatMul", case) for case in (*TURNED, *TURNED_BATCHES)]
PRODUCTS += [("TransposeMatMul", case) for case in TURNED]


@pytest.mark.parametrize(("name", "case"), PRODUCTS, ids=str)
def test_products_of_what_is_turned(name: str, case: Turned) -> None:
    attributes, left, right = case
    operands: Operands = [_floats(*left), _floats(*right, seed=1)]
    ones: Operands = [np.ones_like(x)[(slice(0, 1),) * x.ndim] for x in operands if x is not None]
    check_contributed(name, operands, attributes, length=8, also=[ones])


def test_a_bias_and_a_residual() -> None:
    """ONNX Runtime has a kernel for GPUs only."""
    x, bias, skip = _floats(2, 3, 5), _floats(5, seed=1), _floats(2, 3, 5, seed=2)
    (made,) = run(fission("BiasAdd", [x, bias, skip], opset=1, domain=DOMAIN), [x, bias, skip])
    np.testing.assert_array_equal(made, x + bias + skip)


def test_elements_at_positions() -> None:
    data = _floats(4, 5, 6)
    positions = np.array([[0, 1], [3, 4], [2, 2]], np.int64)
    check_contributed("GatherND", [data, positions], fixed=(1,))


# ---------------------------------------------------------------- normalisations


@pytest.mark.parametrize("attributes", [{}, {"epsilon": 1e-3}, {"axis": 1}], ids=str)
def test_mean_squares(attributes: dict[str, Any]) -> None:
    """The operator stands in the standard domain, of which it is none."""
    name = "SimplifiedLayerNormalization"

    def operands(*shape: int) -> Operands:
        return [_floats(*shape), _floats(*shape[attributes.get("axis", -1) :], seed=1)]

    also = [operands(1, 1, 1), operands(0, 3, 4), operands(4, 9, 33)]
    first = operands(2, 3, 8)
    check_contributed(name, first, attributes, domain="", relative=1e-5, also=also)
    made = [run(fission(name, first, attributes, opset=1, domain=d), first) for d in ("", DOMAIN)]
    np.testing.assert_array_equal(made[0], made[1])


@pytest.mark.parametrize("name", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("skip_axes", [3, 2, 1])
def test_sums_that_are_standardised(skip_axes: int, bias: bool, name: str) -> None:
    has_shift = name == "SkipLayerNormalization"

    def operands(*shape: int) -> Operands:
        skip = shape[1:] if skip_axes == 2 else (1, *shape[1:]) if skip_axes == 1 else shape
        out: Operands = [_floats(*shape), _floats(*skip, seed=1), _floats(shape[-1], seed=2)]
        out += [_floats(shape[-1], seed=3)] if has_shift else []
        return [*out, _floats(shape[-1], seed=4) if bias else None]

    also = [operands(1, 1, 16), operands(4, 9, 33)]
    first = operands(2, 3, 8)
    check_contributed(name, first, {"epsilon": 1e-5}, relative=1e-5, also=also)


def test_the_sum_is_a_result() -> None:
    x, skip, scale, shift = (_floats(2, 3, 8), _floats(2, 3, 8, seed=1), _floats(8), _floats(8))
    graph = fission("SkipLayerNormalization", [x, skip, scale, shift], opset=1, outputs=4,
                    domain=DOMAIN)  # fmt: skip
    np.testing.assert_array_equal(run(graph, [x, skip, scale, shift])[3], x + skip)


@pytest.mark.parametrize("with_segments", [False, True])
@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("positions", [False, True])
def test_embeddings(positions: bool, with_mask: bool, with_segments: bool) -> None:
    words, places, segments = _floats(20, 8), _floats(12, 8, seed=1), _floats(2, 8, seed=2)

    def operands(batch: int, length: int) -> Operands:
        random = np.random.default_rng(5)
        mask = (np.arange(length) < random.integers(0, length + 1, (batch, 1))).astype(np.int32)
        return [
            random.integers(0, 20, (batch, length)).astype(np.int32),
            random.integers(0, 2, (batch, length)).astype(np.int32) if with_segments else None,
            words, places, segments if with_segments else None,
            _floats(8, seed=3), _floats(8, seed=4), mask if with_mask else None,
            random.integers(0, 12, (batch, length)).astype(np.int32) if positions else None,
        ]  # fmt: skip

    also = [operands(1, 1), operands(4, 12)]
    attributes, known = {"epsilon": 1e-6}, (2, 3, 4, 5, 6)
    for outputs in (2, 3):
        check_contributed(
            "EmbedLayerNormalization", operands(2, 5), attributes, outputs,
            constants=known, relative=1e-5, also=also,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_embeddings_of_bytes(dtype: type) -> None:
    random = np.random.default_rng(6)
    limits = np.iinfo(dtype)

    def table(*shape: int) -> Array:
        return np.asarray(random.integers(limits.min, limits.max + 1, shape)).astype(dtype)

    tables: Operands = [table(20, 8), table(12, 8), table(2, 8), table(8), table(8)]
    scales: Operands = [np.array(s, np.float32) for s in (0.02, 0.03, 0.04, 0.05, 0.06)]
    zeros: Operands = [np.array(z, dtype) for z in (3, 5, 7, 9, 11)]

    def operands(batch: int, length: int) -> Operands:
        numbers = random.integers(0, 20, (batch, length)).astype(np.int32)
        kinds = random.integers(0, 2, (batch, length)).astype(np.int32)
        return [numbers, kinds, *tables, np.ones_like(kinds), *scales, *zeros]

    also = [operands(1, 1), operands(4, 12)]
    known = (*range(2, 7), *range(8, 18))
    check_contributed(
        "QEmbedLayerNormalization", operands(2, 5), {}, 2,
        constants=known, relative=1e-5, also=also,
    )  # fmt: skip
