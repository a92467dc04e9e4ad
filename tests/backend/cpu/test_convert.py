"""Every pair of element types, against numpy, at every level that this processor runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from llvmlite import ir

from tilewright.backend.cpu import machine
from tilewright.backend.cpu.emitter import Emitter
from tilewright.ir.dtype import DType

pytestmark = pytest.mark.sampled(5)

Array = np.ndarray[Any, Any]
NATIVE = [dtype for dtype in DType if dtype.is_native]


def _convert(
    loops: Any, level: machine.Level, cases: Sequence[tuple[Array, DType]], lanes: int
) -> list[Array]:
    module = ir.Module("test")
    for number, (values, target) in enumerate(cases):
        source = DType.of(values.dtype)

        def body(
            emitter: Emitter,
            operands: Sequence[ir.Value],
            index: ir.Value,
            source: DType = source,
            target: DType = target,
        ) -> ir.Value:
            return emitter.cast(operands[0], source, target)

        loops.add(module, f"f{number}", level, [source], target, body, lanes)
    address = loops.load(module, level)
    return [
        loops.call(address(f"f{number}"), [values], target.numpy)
        for number, (values, target) in enumerate(cases)
    ]


def _values(source: DType, target: DType) -> Array:
    """Numbers of ``source`` whose conversion to ``target`` is defined; a multiple of 64."""
    random = np.random.default_rng(11)
    if source is DType.BOOL:
        return np.resize(np.array([True, False, False]), 64)
    if source.is_integer:
        limits = np.iinfo(source.numpy)
        values = random.integers(limits.min, limits.max, 250, dtype=source.numpy, endpoint=True)
        edges = np.array([limits.min, limits.max, 0, 1, limits.max - 1, limits.min + 1], object)
        return np.concatenate([values, edges.astype(source.numpy)])
    edges = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -1.5, 1e-8, -1e-8, 65504.0, 65519.0, 1e-7, 6e-8]
    if target.is_integer:
        limits = np.iinfo(target.numpy)
        low, high = max(limits.min, -6e4), min(limits.max, 6e4)
        values = np.concatenate([random.uniform(low, high, 243), np.clip(edges, low, high)])
        if source.is_half:
            values *= 0.99
    else:
        edges += [65520.0, -7e4, np.inf, -np.inf, np.nan]
        values = np.concatenate([random.normal(size=238) * 10.0 ** random.integers(-9, 6), edges])
    with np.errstate(all="ignore"):
        return np.resize(values, 256).astype(source.numpy)


def _expected(values: Array, target: DType) -> Array:
    with np.errstate(all="ignore"):
        if values.dtype == DType.BFLOAT16.numpy:
            values = values.astype(np.float32)
        return values.astype(target.numpy)


def _check_casts(loops: Any, level: machine.Level, lanes: int) -> None:
    cases = [(_values(s, t), t) for s in NATIVE for t in NATIVE]
    results = _convert(loops, level, cases, lanes)
    for (values, target), actual in zip(cases, results, strict=True):
        expected = _expected(values, target)
        if target is DType.BFLOAT16:  # numpy's testing knows no NaN of this type
            actual, expected = actual.astype(np.float32), expected.astype(np.float32)
        np.testing.assert_array_equal(
            actual, expected, err_msg=f"{level.name} {values.dtype} -> {target.value}"
        )


@pytest.mark.slow
def test_casts_match_numpy(loops: Any) -> None:
    _check_casts(loops, machine.host_level(), 8)


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 8])
def test_casts_match_at_every_level(loops: Any, lanes: int) -> None:
    for level in loops.levels():
        _check_casts(loops, level, lanes)


def test_every_half_widens_exactly(loops: Any) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    for dtype in (DType.FLOAT16, DType.BFLOAT16):
        halves = bits.view(dtype.numpy)
        for level in loops.levels():
            (actual,) = _convert(loops, level, [(halves, DType.FLOAT32)], 1)
            np.testing.assert_array_equal(actual, halves.astype(np.float32))


def test_narrowing_rounds_ties_to_even(loops: Any) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    for dtype in (DType.FLOAT16, DType.BFLOAT16):
        halves = bits.view(dtype.numpy).astype(np.float32)
        finite = np.sort(halves[np.isfinite(halves)])
        middles = (finite[1:].astype(np.float64) + finite[:-1]) / 2
        for source in (np.float32, np.float64):
            values = middles.astype(source)
            values = np.concatenate(
                [values, np.nextafter(values, np.inf), np.nextafter(values, -np.inf), finite]
            ).astype(source)
            values = np.resize(values, values.size // 64 * 64)
            for level in loops.levels():
                (actual,) = _convert(loops, level, [(values, dtype)], 1)
                np.testing.assert_array_equal(actual, _nearest(values, halves, dtype))


def _nearest(values: Array, halves: Array, dtype: DType) -> Array:
    """The nearest half to each value, by search; ties go to the even pattern."""
    step = {DType.FLOAT16: 2.0**16, DType.BFLOAT16: 2.0**128}[dtype]
    table = np.unique(halves[np.isfinite(halves)].astype(np.float64))
    wide = values.astype(np.float64)
    table = np.concatenate([[-step], table, [step]])
    upper = np.clip(np.searchsorted(table, wide), 1, table.size - 1)
    below, above = table[upper - 1], table[upper]
    even_above = np.isinf(_narrow_pattern(above, dtype)) | (
        _narrow_pattern(above, dtype).view(np.uint16) % 2 == 0
    )
    left, right = wide - below, above - wide
    chosen = np.where((right < left) | ((right == left) & even_above), above, below)
    return np.where(wide == above, above, chosen).astype(np.float32).astype(dtype.numpy)


def _narrow_pattern(values: Array, dtype: DType) -> Array:
    with np.errstate(all="ignore"):
        return values.astype(np.float32).astype(dtype.numpy)


def test_floats_become_the_nearest_representable_integer(loops: Any) -> None:
    values = np.resize(np.array([1e30, -1e30, np.inf, -np.inf, np.nan, 300.0, -300.0, -1.0]), 64)
    for level in loops.levels():
        for source in (np.float32, np.float64):
            for target in (DType.INT8, DType.INT32, DType.INT64, DType.UINT8, DType.UINT64):
                limits = np.iinfo(target.numpy)
                (actual,) = _convert(loops, level, [(values.astype(source), target)], 1)
                exact = [
                    0
                    if np.isnan(v)
                    else int(max(limits.min, min(limits.max, np.clip(v, -1e30, 1e30))))
                    for v in values.tolist()
                ]
                assert actual.tolist() == exact, (level.name, target)


def test_signs_of_zero_and_nans_survive(loops: Any) -> None:
    values = np.resize(np.array([-0.0, np.nan, -1e-40, 0.0], np.float32), 64)
    for level in loops.levels():
        for target in (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64):
            (actual,) = _convert(loops, level, [(values, target)], 1)
            wide = actual.astype(np.float64)
            assert np.signbit(wide[0]) and np.isnan(wide[1])
            assert np.signbit(wide[2]) and not np.signbit(wide[3])
