"""Integer division in every width, at every level, against numpy: exact, whatever the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from llvmlite import ir

from tilewright.backend.cpu import machine
from tilewright.backend.cpu.convert import integer_limits
from tilewright.backend.cpu.emitter import Emitter
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import DIVISIONS, SCALAR_FUNCTIONS

Array = np.ndarray[Any, Any]
INTEGERS = [dtype for dtype in DType if dtype.is_native and dtype.is_integer]
LEVELS = [level for level in machine.host_levels() if not level.dots]
COUNT = 1 << 12


def numbers(dtype: DType, seed: int) -> Array:
    """Numbers of any length: limits, powers of two and their neighbours, of both signs."""
    random, bits = np.random.default_rng(seed), 8 * dtype.bytes
    least, most = integer_limits(dtype)
    whole = random.integers(least, most, COUNT, dtype.numpy, endpoint=True)
    shorter = whole >> random.integers(0, bits, COUNT).astype(dtype.numpy)
    powers = np.left_shift(
        np.array(1, dtype.numpy), random.integers(0, bits, COUNT).astype(dtype.numpy)
    )
    near = powers + random.integers(0, 5, COUNT).astype(dtype.numpy) - np.array(2, dtype.numpy)
    ends = np.array([least, most, least + 1, most - 1, 0, 1, 2, 3], object)
    if dtype.is_signed:
        ends = np.concatenate([ends, [-1, -2, -3, least // 2, least // 3]])
    made = np.stack([shorter, near, random.choice(ends, COUNT).astype(dtype.numpy)])
    return made[random.integers(0, 3, COUNT), np.arange(COUNT)]


def operands(dtype: DType, seed: int) -> tuple[Array, Array]:
    """Dividends, half of them next to a multiple of their divisor, and divisors that are not 0."""
    random, y = np.random.default_rng(seed), numbers(dtype, seed)
    y = np.where(y == 0, 1, y).astype(dtype.numpy)
    x, quotient = numbers(dtype, seed + 1), numbers(dtype, seed + 2)
    with np.errstate(all="ignore"):
        beside = (
            y * quotient
            + random.integers(0, 3, COUNT).astype(dtype.numpy)
            - np.array(1, dtype.numpy)
        )
    return np.where(random.random(COUNT) < 0.5, beside, x).astype(dtype.numpy), y


def meaning(function: str, x: Array, y: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(SCALAR_FUNCTIONS[function].meaning(x, y)).astype(x.dtype)


def body(function: str, dtype: DType, known: int | None = None) -> Any:
    """The function of two loaded numbers, or of one and a divisor known when compiling."""

    def write(emitter: Emitter, values: Sequence[ir.Value], index: ir.Value) -> ir.Value:
        divisor = values[1] if known is None else emitter.constant(known, dtype)
        return emitter.apply(function, dtype, [values[0], divisor])

    return write


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_quotients_and_remainders_are_exact(loops: Any, level: machine.Level, dtype: DType) -> None:
    module, widths = ir.Module("test"), (1, 2, 8, 64)
    for function in DIVISIONS:
        for lanes in widths:
            name = f"{function}.{lanes}"
            loops.add(module, name, level, [dtype] * 2, dtype, body(function, dtype), lanes)
    address = loops.load(module, level)
    for seed in (1, 11):
        x, y = operands(dtype, seed)
        for function in DIVISIONS:
            expected = meaning(function, x, y)
            for lanes in widths:
                found = loops.call(address(f"{function}.{lanes}"), [x, y], dtype.numpy)
                np.testing.assert_array_equal(found, expected, f"{function}, {lanes} lanes")


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize("dtype", [DType.INT64, DType.INT32, DType.UINT64], ids=str)
def test_division_by_known_numbers(loops: Any, level: machine.Level, dtype: DType) -> None:
    least, most = integer_limits(dtype)
    divisors = [1, 2, 3, 7, 10, 1 << 20, 1_000_003, most, most // 2 + 2]
    divisors += [-1, -2, -10, -1_000_003, least, least + 1] if dtype.is_signed else []
    module = ir.Module("test")
    cases = [(f, known, lanes) for f in DIVISIONS for known in divisors for lanes in (1, 8)]
    for function, known, lanes in cases:
        name = f"{function}.{known}.{lanes}"
        loops.add(module, name, level, [dtype], dtype, body(function, dtype, known), lanes)
    address = loops.load(module, level)
    for function, known, lanes in cases:
        y = np.full(COUNT, known, dtype.numpy)
        with np.errstate(all="ignore"):
            x = np.where(np.arange(COUNT) % 2, numbers(dtype, 5), y * numbers(dtype, 6))
        found = loops.call(address(f"{function}.{known}.{lanes}"), [x], dtype.numpy)
        np.testing.assert_array_equal(found, meaning(function, x, y), f"{function} by {known}")


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize("dtype", [DType.INT32, DType.UINT32, DType.INT64], ids=str)
def test_registers_of_short_numbers(loops: Any, level: machine.Level, dtype: DType) -> None:
    """As many digits as float32 has and one less or more, next to multiples of their divisors."""
    random = np.random.default_rng(3)
    ends = (1 << 24) - 2 + random.integers(0, 4, COUNT)
    divisors = np.maximum(1, random.integers(0, 1 << 24, COUNT) >> random.integers(0, 24, COUNT))
    multiples = ends // divisors * divisors + random.integers(-1, 2, COUNT)
    for sign_x, sign_y in ((1, 1), (-1, 1), (1, -1), (-1, -1)):
        if min(sign_x, sign_y) < 0 and not dtype.is_signed:
            continue
        for dividend in (ends, multiples, divisors - 1):
            x = (np.maximum(dividend, 0) * sign_x).astype(dtype.numpy)
            y = (divisors * sign_y).astype(dtype.numpy)
            for function in DIVISIONS:
                found = loops.run(function, level, [x, y], level.lanes(4))
                np.testing.assert_array_equal(found, meaning(function, x, y), function)


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_what_would_trap_does_not(loops: Any, level: machine.Level) -> None:
    """By 0 like by 1, and the least number by -1 wraps, beside others in one register."""
    for dtype in (DType.INT32, DType.INT64):
        least, _ = integer_limits(dtype)
        x = np.resize(np.array([least, 5, least, 7], dtype.numpy), 64)
        y = np.resize(np.array([-1, 0, 0, 2], dtype.numpy), 64)
        made = loops.run("divide", level, [x, y], 8)
        np.testing.assert_array_equal(made[:4], np.array([least, 5, least, 3], dtype.numpy))
        np.testing.assert_array_equal(made, np.resize(made[:4], 64))
