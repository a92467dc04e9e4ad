"""Products of com.microsoft: quantised ones, and weights of a few bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.operator_harness import Array, fission
from support.runtime_peer import DOMAIN, byte_range, check_contributed
from tilewright.ops.record import NoRule

pytestmark = pytest.mark.peers

TYPES = [np.uint8, np.int8]
PAIRS = [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)]


def _bytes(dtype: Any, *shape: int, seed: int = 0) -> Array:
    low, high = byte_range(dtype)
    made = np.random.default_rng(seed).integers(low, high + 1, shape)
    return np.asarray(made).astype(dtype)


def _floats(*shape: int, seed: int = 0) -> Array:
    return np.asarray(np.random.default_rng(seed).normal(0, 1, shape), np.float32)


def _scale(value: float) -> Array:
    return np.array(value, np.float32)


def _form(dtype: Any, columns: int | None) -> tuple[Array, Array]:
    """A scale and a zero point, or one of each for every column."""
    middle = (int(np.iinfo(dtype).max) + int(np.iinfo(dtype).min) + 1) // 2
    if columns is None:
        return _scale(0.02), np.array(middle + 3, dtype)
    scales = np.linspace(0.01, 0.03, columns, dtype=np.float32)
    return scales, (middle + np.arange(columns) % 5).astype(dtype)


@pytest.mark.parametrize("types", PAIRS)
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_integer_products_to_floats(with_bias: bool, per_column: bool, types: Any) -> None:
    def operands(left: tuple[int, ...], right: tuple[int, ...]) -> list[Array | None]:
        scale, zero = _form(types[1], right[-1] if per_column else None)
        own_scale, own_zero = _form(types[0], None)
        bias = _floats(right[-1]) if with_bias else None
        left_bytes = _bytes(types[0], *left, seed=1)
        return [
            left_bytes, _bytes(types[1], *right, seed=2), own_scale, scale, own_zero, zero, bias,
        ]  # fmt: skip

    also = [operands((1, 1), (1, 1)), operands((0, 3), (3, 2)), operands((17, 40), (40, 33))]
    first = operands((2, 5), (5, 4))
    check_contributed("MatMulIntegerToFloat", first, relative=1e-6, also=also)
    batch = [operands((1, 7, 8), (8, 3))]
    first = operands((2, 5, 4), (4, 6))
    check_contributed("MatMulIntegerToFloat", first, relative=1e-6, also=batch)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_products_of_what_is_quantised_first(
    with_bias: bool, per_column: bool, dtype: type
) -> None:
    def operands(left: tuple[int, ...], right: tuple[int, ...]) -> list[Array | None]:
        scale, zero = _form(dtype, right[-1] if per_column else None)
        bias = _floats(right[-1]) if with_bias else None
        return [_floats(*left, seed=1), _bytes(dtype, *right, seed=2), scale, zero, bias]

    also = [operands((1, 1, 1), (1, 1)), operands((3, 17, 40), (40, 33))]
    first = operands((2, 5, 4), (4, 6))
    check_contributed("DynamicQuantizeMatMul", first, relative=1e-6, also=also)


@pytest.mark.parametrize("types", PAIRS)
@pytest.mark.parametrize(
    ("attributes", "per_column"),
    [({}, False), ({"transB": 1}, True), ({"transA": 1, "alpha": 0.5}, True)],
)
@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("with_c", [False, True])
def test_quantised_gemm(
    with_c: bool, quantised: bool, attributes: dict[str, Any], per_column: bool, types: Any
) -> None:
    def operands(rows: int, depth: int, columns: int) -> list[Array | None]:
        left = (depth, rows) if attributes.get("transA") else (rows, depth)
        right = (columns, depth) if attributes.get("transB") else (depth, columns)
        scale, zero = _form(types[1], columns if per_column else None)
        own_scale, own_zero = _form(types[0], None)
        added = np.arange(-columns, columns, 2, dtype=np.int32) * 1000 if with_c else None
        result = [_scale(2.0), _form(types[0], None)[1]] if quantised else [None, None]
        return [
            _bytes(types[0], *left, seed=1), own_scale, own_zero,
            _bytes(types[1], *right, seed=2), scale, zero, added, *result,
        ]  # fmt: skip

    also = [operands(1, 1, 1), operands(17, 40, 33)]
    check_contributed(
        "QGemm", operands(3, 5, 4), attributes, relative=None if quantised else 1e-6, also=also
    )


@pytest.mark.parametrize("last", [0, 1])
def test_quantised_convolution(last: int) -> None:
    def operands(*shape: int) -> list[Array | None]:
        weights = _bytes(np.int8, 6, shape[3 if last else 1], 3, 3, seed=2)
        scales = np.linspace(0.01, 0.03, 6, dtype=np.float32)
        return [
            _bytes(np.uint8, *shape), _scale(0.02), np.array(120, np.uint8),
            weights, scales, np.zeros(6, np.int8),
            _scale(0.5), np.array(128, np.uint8), np.arange(-300, 300, 100, dtype=np.int32),
        ]  # fmt: skip

    attributes = {"channels_last": last, "pads": [1, 1, 1, 1], "strides": [2, 2]}
    also = [operands(1, 3, 3, 3), operands(2, 9, 8, 7)]
    check_contributed("QLinearConv", operands(2, 4, 6, 5), attributes, also=also)


def _blocks(
    bits: int, rows: int, depth: int, block: int, zeros: str, dtype: Any = np.float32
) -> list[Array | None]:
    """Operands 1 to 3 of MatMulNBits."""
    random = np.random.default_rng(3)
    count = -(-depth // block)
    packed = random.integers(0, 256, (rows, count, block * bits // 8)).astype(np.uint8)
    scales = random.uniform(0.01, 0.1, (rows, count)).astype(dtype)
    points: Array | None = None
    if zeros == "packed":
        points = random.integers(0, 256, (rows, -(-count * bits // 8))).astype(np.uint8)
    elif zeros == "floats":
        points = random.uniform(0, 1 << bits, (rows, count)).astype(dtype)
    return [packed, scales, points]


# ONNX Runtime has no kernel for 8 bits with zero points in floats.
FEW_BITS = [(4, "none"), (4, "packed"), (4, "floats"), (8, "none"), (8, "packed")]


@pytest.mark.parametrize(("bits", "zeros"), FEW_BITS)
@pytest.mark.parametrize(
    ("rows", "depth", "block"), [(8, 64, 32), (5, 40, 16), (3, 100, 32), (133, 200, 16)]
)
def test_weights_of_a_few_bits(bits: int, rows: int, depth: int, block: int, zeros: str) -> None:
    weights = _blocks(bits, rows, depth, block, zeros)
    attributes = {"bits": bits, "block_size": block, "N": rows, "K": depth}
    check_contributed(
        "MatMulNBits",
        [_floats(2, 5, depth), *weights, None, _floats(rows)],
        attributes,
        constants=(1, 2, 3, 5),
        length=depth,
        also=[[_floats(b, s, depth), *weights, None, _floats(rows)] for b, s in ((1, 1), (3, 17))],
    )


def test_weights_of_a_few_bits_by_halves() -> None:
    weights = _blocks(4, 8, 64, 32, "packed", np.float16)
    attributes = {"bits": 4, "block_size": 32, "N": 8, "K": 64}
    x = _floats(3, 64).astype(np.float16)
    check_contributed("MatMulNBits", [x, *weights], attributes, constants=(1, 2, 3), relative=4e-3)


def test_weights_that_are_not_known_are_refused() -> None:
    operands = [_floats(3, 64), *_blocks(4, 8, 64, 32, "none")]
    attributes = {"bits": 4, "block_size": 32, "N": 8, "K": 64}
    with pytest.raises(NoRule, match="not constant"):
        fission("MatMulNBits", operands, attributes, opset=1, domain=DOMAIN)
