"""Accuracy of the elementary functions, in units in the last place, and their vectorisation."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from llvmlite import ir

from tilewright.backend.cpu import machine
from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.math_lookup import register_functions
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import SCALAR_FUNCTIONS

Array = np.ndarray[Any, Any]

_ERF = np.vectorize(math.erf, otypes=[np.float64])

# Largest error seen over millions of arguments, rounded up: (float32, float64).
BOUNDS = {
    "square_root": (0.5, 0.5),
    "exponential": (1.0, 1.1),
    "logarithm": (1.6, 0.9),
    "sine": (1.6, 0.9),
    "cosine": (1.6, 0.9),
    "tangent": (0.51, 2.1),
    "arc_sine": (0.51, 2.2),
    "arc_cosine": (0.51, 1.6),
    "arc_tangent": (0.51, 1.9),
    "hyperbolic_sine": (0.55, 1.7),
    "hyperbolic_cosine": (0.55, 1.6),
    "hyperbolic_tangent": (2.0, 1.5),
    "area_hyperbolic_sine": (0.51, 1.9),
    "area_hyperbolic_cosine": (0.51, 1.7),
    "area_hyperbolic_tangent": (0.51, 1.9),
    # The float64 reference is itself off by up to one unit.
    "error_function": (1.3, 2.0),
}

_SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45]
# The others differ from these in sums of narrow products alone.
PLAIN = [level for level in machine.LEVELS.values() if not level.dots]


def _errors(actual: Array, reference: Array) -> Array:
    """Distance to the reference in units in its last place; infinite if special values differ."""
    with np.errstate(all="ignore"):
        expected = reference.astype(actual.dtype)
        unit = np.spacing(np.abs(expected)).astype(np.longdouble)
        errors = np.abs(actual.astype(np.longdouble) - reference) / unit
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    finite = np.isfinite(actual) & np.isfinite(expected)
    return np.where(finite, errors, np.where(same, 0.0, np.inf))


def _arguments(dtype: type[np.floating[Any]]) -> Array:
    """All binades, and more densely where the functions change; a multiple of 64 numbers."""
    random = np.random.default_rng(7)
    count = 6000
    integer = np.int32 if dtype is np.float32 else np.int64
    limits = np.iinfo(integer)
    bits = random.integers(limits.min, limits.max, count, dtype=integer, endpoint=True)
    parts: list[Array] = [
        bits.view(dtype),
        *(random.uniform(-reach, reach, count) for reach in (1, 6, 12, 120, 800)),
        random.uniform(0.5, 1.5, count),
        np.exp(random.uniform(-80, 0, count)),
        np.arange(1, 20000, 7) * (np.pi / 2),
        np.array(_SPECIAL),
        np.array([700.0, 709.8, -708.5, -745.0, -746.0, 88.72, 88.73, -87.4, -103.9, -104.0]),
    ]
    with np.errstate(all="ignore"):
        joined = np.concatenate([part.astype(dtype) for part in parts])
    return np.resize(joined, -(-joined.size // 64) * 64)


def _reference(name: str, x: Array) -> Array:
    with np.errstate(all="ignore"):
        if name == "error_function":
            return _ERF(x.astype(np.float64)).astype(np.longdouble)
        return SCALAR_FUNCTIONS[name].meaning(x.astype(np.longdouble))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_elementary_functions_are_accurate(loops: Any, dtype: type[np.floating[Any]]) -> None:
    everything = _arguments(dtype)
    for level in loops.levels():
        module = ir.Module("test")
        for name in BOUNDS:
            loops.add_function(module, name, level, DType.of(dtype))
        address = loops.load(module, level)
        for name, bounds in BOUNDS.items():
            x = everything
            if dtype is np.float64 and name in ("sine", "cosine", "tangent"):
                x = np.where(np.abs(x) > 1e13, 1.0, x)
            actual = loops.call(address(name), [x], np.dtype(dtype))
            errors = _errors(actual, _reference(name, x))
            worst = int(np.argmax(errors))
            bound = bounds[0] if dtype is np.float32 else bounds[1]
            # Numbers below the normal ones may be off by one unit: they are rounded twice.
            tiny = np.abs(actual) < np.finfo(dtype).tiny
            assert np.all(errors <= np.where(tiny, max(bound, 1.0), bound)), (
                f"{level.name} {name}({x[worst]!r}) = {actual[worst]!r}: {errors[worst]:.3f} units"
            )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_decay_is_an_exponential_without_what_is_no_normal_number(loops: Any, dtype: Any) -> None:
    bias = 127 if dtype is np.float32 else 1023
    x = -np.abs(_arguments(dtype))
    near = np.linspace(-(bias + 3), -(bias - 3), 1 << 12) * math.log(2)
    x = np.concatenate([x, near.astype(dtype), -np.linspace(0, bias, 1 << 16).astype(dtype)])
    with np.errstate(all="ignore"):
        reference = np.exp(x.astype(np.float64 if dtype is np.float32 else np.longdouble))
    smallest = np.finfo(dtype).tiny
    normal = reference >= smallest * (1 + 1e-6)
    for level in loops.levels():
        actual = loops.run("decay", level, [x], 8)
        assert np.array_equal(np.isnan(actual), np.isnan(x)), level.name
        assert _errors(actual[normal], reference[normal]).max() < 1.2, level.name
        rest = actual[~normal & ~np.isnan(x)]
        assert ((rest >= 0) & (rest <= smallest * (1 + 1e-6))).all(), level.name
        least = -(bias + np.finfo(dtype).nmant + 2) * math.log(2)
        assert not actual[x < least].any(), level.name


@pytest.mark.parametrize("name", ["sine", "exponential", "logarithm", "error_function"])
def test_vectors_and_scalars_agree(loops: Any, name: str) -> None:
    x = _arguments(np.float32)
    for level in loops.levels():
        scalar = loops.run(name, level, [x], 1)
        vector = loops.run(name, level, [x], 8)
        np.testing.assert_array_equal(scalar, vector, err_msg=level.name)


REGISTER_FUNCTIONS = sorted(
    {name for level in machine.LEVELS.values() for name in register_functions(level)}
)


@pytest.mark.slow
@pytest.mark.parametrize("name", REGISTER_FUNCTIONS)
def test_functions_of_registers_have_every_width(loops: Any, name: str) -> None:
    x = _arguments(np.float32)[: 64 * 100]
    for level in loops.levels():
        expected = loops.run(name, level, [x], 1)
        for lanes in (2, 4, 8, 16, 32):
            actual = loops.run(name, level, [x], lanes)
            np.testing.assert_array_equal(actual, expected, err_msg=f"{level.name} {lanes}")


@pytest.mark.parametrize("name", ["sine", "cosine"])
def test_rare_lanes_do_not_change_others(loops: Any, name: str) -> None:
    usual = np.random.default_rng(2).uniform(-9, 9, 64).astype(np.float32)
    mixed = usual.copy()
    mixed[::5] = 1e20
    for level in loops.levels():
        alone, beside = (loops.run(name, level, [x], 16) for x in (usual, mixed))
        others = mixed == usual
        np.testing.assert_array_equal(alone[others], beside[others], err_msg=level.name)


@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_remainders_are_exact_for_every_quotient(loops: Any, lanes: int) -> None:
    """Bit for bit what fmod gives in C, for quotients of up to 277 digits and special numbers."""
    random = np.random.default_rng(29)
    x, y = random.integers(0, 1 << 32, (2, 8192), dtype=np.uint32).view(np.float32)
    near = np.arange(1, 513, dtype=np.float32)  # quotients that are nearly integers
    x[:512], y[:512] = near * np.float32(0.1), np.float32(0.1)
    special = np.array(_SPECIAL, np.float32)
    x[512:656], y[512:656] = np.repeat(special, 12), np.tile(special, 12)
    with np.errstate(all="ignore"):
        want = np.fmod(x, y)
    for level in loops.levels():
        got = loops.run("truncated_remainder", level, [x, y], lanes)
        np.testing.assert_array_equal(got, want, err_msg=level.name)
        np.testing.assert_array_equal(
            np.signbit(got)[~np.isnan(want)], np.signbit(want)[~np.isnan(want)]
        )


@pytest.mark.parametrize("level", PLAIN, ids=[level.name for level in PLAIN])
def test_functions_of_registers_under_a_condition_vectorise(
    loops: Any, level: machine.Level
) -> None:
    def body(emitter: Emitter, values: Sequence[ir.Value], index: ir.Value) -> ir.Value:
        build = emitter.builder
        before = build.block
        inside, joined = build.append_basic_block("inside"), build.append_basic_block("joined")
        negative = build.fcmp_ordered("<", values[0], emitter.constant(0.0, DType.FLOAT32))
        build.cbranch(negative, joined, inside)
        build.position_at_end(inside)
        value = emitter.apply("error_function", DType.FLOAT32, values)
        build.branch(joined)
        build.position_at_end(joined)
        phi = build.phi(value.type)
        phi.add_incoming(values[0], before)
        phi.add_incoming(value, inside)
        return phi

    module = ir.Module("test")
    loops.add(module, "conditional", level, [DType.FLOAT32], DType.FLOAT32, body)
    text = machine.assembly(module, level)
    register = {"x86-64": "xmm", "avx2": "ymm", "avx512": "zmm"}[level.name]
    assert re.search(rf"\tv?(fmadd\w+|mulp)s\s.*%{register}", text)
    assert not re.search(r"\tcall", text)


def test_large_arguments_of_sine_are_reduced_exactly(loops: Any) -> None:
    x = np.exp(np.random.default_rng(3).uniform(0, 88.7, 4096)).astype(np.float32)
    for name in ("sine", "cosine", "tangent"):
        reference = SCALAR_FUNCTIONS[name].meaning(x.astype(np.float64)).astype(np.longdouble)
        for level in loops.levels():
            assert _errors(loops.run(name, level, [x]), reference).max() <= BOUNDS[name][0]


def _power_operands(dtype: type[np.floating[Any]]) -> tuple[Array, Array]:
    random = np.random.default_rng(5)
    count = 4000
    special = np.array([*_SPECIAL, 3.0, -3.0, 1e30, -1e30, 2.0**24 + 1, 1 + 2.0**-20, -2.5])
    left, right = np.meshgrid(special, special)
    reach = 87 if dtype is np.float32 else 700
    bases = [
        left.ravel(),
        np.exp(random.uniform(-20, 20, count)),
        random.uniform(0, 3, count),
        1 + random.normal(0, 1e-3, count),
        random.integers(-30, 30, count).astype(np.float64),
        np.exp(random.uniform(-reach, reach, count)),
    ]
    exponents = [
        right.ravel(),
        random.uniform(-5, 5, count),
        random.uniform(-200, 200, count),
        random.uniform(-1e5, 1e5, count),
        random.integers(-10, 12, count).astype(np.float64),
        random.uniform(-1.2, 1.2, count),
    ]
    with np.errstate(all="ignore"):
        x = np.concatenate(bases).astype(dtype)
        y = np.concatenate(exponents).astype(dtype)
    length = -(-x.size // 64) * 64
    return np.resize(x, length), np.resize(y, length)


@pytest.mark.parametrize(("dtype", "bound"), [(np.float32, 0.6), (np.float64, 1.3)])
def test_power_is_accurate(loops: Any, dtype: type[np.floating[Any]], bound: float) -> None:
    x, y = _power_operands(dtype)
    with np.errstate(all="ignore"):
        reference = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
    for level in loops.levels():
        errors = _errors(loops.run("power", level, [x, y]), reference)
        worst = int(np.argmax(errors))
        assert errors[worst] <= bound, f"{level.name}: {x[worst]!r}**{y[worst]!r}"


def test_power_of_whole_numbers_is_exact(loops: Any) -> None:
    bases, exponents = np.meshgrid(np.arange(-12.0, 12.0), np.arange(0.0, 12.0))
    x, y = bases.ravel(), exponents.ravel()
    for dtype in (np.float32, np.float64):
        exact = np.abs(np.power(x, y)) < 2.0**24
        actual = loops.run("power", machine.host_level(), [x.astype(dtype), y.astype(dtype)])
        np.testing.assert_array_equal(actual[exact], np.power(x, y)[exact])


def test_signs_of_zero_stay(loops: Any) -> None:
    odd = [name for name in BOUNDS if name.endswith("sine") and "co" not in name]
    odd += ["tangent", "arc_tangent", "hyperbolic_tangent", "error_function", "round_even"]
    odd += ["floor", "ceil", "truncate", "area_hyperbolic_tangent"]
    x = np.array([0.0, -0.0] * 32, np.float32)
    for level in (machine.host_level(), machine.BASELINE):
        module = ir.Module("test")
        for name in odd:
            loops.add_function(module, name, level, DType.FLOAT32)
        address = loops.load(module, level)
        for name in odd:
            actual = loops.call(address(name), [x], x.dtype)
            assert np.array_equal(np.signbit(actual), np.signbit(x)), (level.name, name)


@pytest.mark.parametrize("lanes", [1, 8, 16])
def test_large_arguments_give_exactly_one(loops: Any, lanes: int) -> None:
    # What is off by one unit is far off once it is multiplied, as in Gelu: x (1 + tanh(x)).
    large = np.array([9.02, 12.0, 100.0, 1e30, np.inf, 8.7218, 9.0, 9.01], np.float32)
    x = np.resize(large, 64)
    for level in loops.levels():
        for name in ("hyperbolic_tangent", "error_function"):
            for sign in (1, -1):
                actual = sign * loops.run(name, level, [sign * x], lanes)
                assert actual.max() == 1, (level.name, name)
                assert np.all(actual[x > 9.011] == 1), (level.name, name, actual[:8])


@pytest.mark.parametrize("level", PLAIN, ids=[level.name for level in PLAIN])
def test_main_loops_vectorise_without_calls(loops: Any, level: machine.Level) -> None:
    names = ["exponential", "logarithm", "hyperbolic_tangent", "error_function", "sine"]
    _check_vectorised(loops, level, DType.FLOAT32, [*names, "floor", "maximum"])


@pytest.mark.slow
@pytest.mark.parametrize("level", PLAIN, ids=[level.name for level in PLAIN])
def test_all_loops_vectorise_without_calls(loops: Any, level: machine.Level) -> None:
    names = [n for n in BOUNDS if n != "square_root"] + ["power", "floor", "round_even", "maximum"]
    for dtype in (DType.FLOAT32, DType.FLOAT64):
        _check_vectorised(loops, level, dtype, names)


def _check_vectorised(loops: Any, level: machine.Level, dtype: DType, names: Sequence[str]) -> None:
    register = {"x86-64": "xmm", "avx2": "ymm", "avx512": "zmm"}[level.name]
    suffix = "ps" if dtype is DType.FLOAT32 else "pd"
    module = ir.Module("test")
    for name in names:
        loops.add_function(module, name, level, dtype)
    text = machine.assembly(module, level)
    for name in names:
        code = text[text.index(f"\n{name}:") : text.index(f".size\t{name}")]
        # Sines and cosines of very large numbers are computed elsewhere.
        assert not re.search(r"\bcall\w*\s+(?!any_)", code), f"{name} calls a function"
        packed = re.findall(rf"\t\w+{suffix}\s.*%{register}", code)
        assert packed, f"{name} is not vectorised"
