"""Every scalar function for every element type against its numpy meaning; memory and reductions."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from llvmlite import ir

from tilewright.backend.cpu import machine
from tilewright.backend.cpu.emitter import Emitter
from tilewright.ir.decay import DECAY
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import SCALAR_FUNCTIONS, ScalarFunction
from tilewright.support.errors import UnsupportedError

pytestmark = pytest.mark.sampled(5)

Array = np.ndarray[Any, Any]
NATIVE = [dtype for dtype in DType if dtype.is_native]
DIVISIONS = ("divide", "remainder", "truncated_remainder")
KINDS = ("sum", "product", "maximum", "minimum")


def _values(dtype: DType, seed: int) -> Array:
    """256 numbers: each pair of special ones first (for two seeds), then random ones."""
    random = np.random.default_rng(seed)
    if dtype is DType.BOOL:
        return random.integers(0, 2, 256).astype(bool)
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        special = [limits.min, limits.max, 0, 1, 2, 3, 7, 8]
        special += [-1, -2, -3, -7] if dtype.is_signed else [9, 15, 31, 63]
        full = random.integers(limits.min, limits.max, 112, dtype=dtype.numpy, endpoint=True)
    else:
        special = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 3.0, -3.5, np.inf, -np.inf, np.nan, 0.75]
        full = random.normal(size=112) * 10.0 ** random.integers(-2, 3, 112)
    left, right = np.meshgrid(np.array(special, object), np.array(special, object))
    pairs = (left if seed % 2 else right).ravel()
    return np.concatenate([pairs.astype(dtype.numpy), full.astype(dtype.numpy)])


def _operands(row: ScalarFunction, dtype: DType) -> list[Array]:
    if row.name == "select":
        return [_values(DType.BOOL, 9), _values(dtype, 1), _values(dtype, 2)]
    operands = [_values(dtype, seed) for seed in range(1, row.arity + 1)]
    if row.name in DIVISIONS and not dtype.is_float:
        operands[1] = np.where(operands[1] == 0, 1, operands[1]).astype(dtype.numpy)
    if row.name == "power" and not dtype.is_float:
        operands = [operands[0] % 6, operands[1] % 3]
    return operands


def _meaning(row: ScalarFunction, dtype: DType, operands: Sequence[Array]) -> Array | None:
    """The numpy result, or None where numpy has none of the type that the row promises."""
    # numpy computes these in another type, which the row does not promise.
    if row.name == "error_function" and not dtype.is_float:
        return None
    if dtype is DType.BOOL and row.name in (*DIVISIONS, "power", "shift_left", "shift_right"):
        return None
    wide = [o.astype(np.float32) if o.dtype == dtype.numpy else o for o in operands]
    with np.errstate(all="ignore"):
        try:
            value = row.meaning(*(wide if dtype.is_half else operands))
        except TypeError:
            return None
        if dtype.is_half and value.dtype != bool:
            value = value.astype(dtype.numpy)
    expected = np.dtype(bool) if row.result == "bool" else dtype.numpy
    return value if value.dtype == expected else None


def _cases(dtype: DType) -> dict[str, tuple[list[Array], Array]]:
    cases: dict[str, tuple[list[Array], Array]] = {}
    for name, row in SCALAR_FUNCTIONS.items():
        if name == DECAY:
            continue  # of what is not positive alone: see test_math
        operands = _operands(row, dtype)
        expected = _meaning(row, dtype, operands)
        if expected is not None:
            cases[name] = (operands, expected)
    return cases


def _assert_close(actual: Array, expected: Array, dtype: DType, message: str) -> None:
    if actual.dtype == bool or not dtype.is_float:
        np.testing.assert_array_equal(actual, expected, err_msg=message)
        return
    # Two units for a result computed in float32 or float64; a half may round the other way.
    unit = {2: 2.0**-8 if dtype is DType.BFLOAT16 else 2.0**-10, 4: 2.0**-22, 8: 2.0**-51}
    np.testing.assert_allclose(
        actual.astype(np.float64),
        expected.astype(np.float64),
        rtol=unit[dtype.bytes],
        atol=0,
        err_msg=message,
    )


def _check_functions(loops: Any, level: machine.Level, dtype: DType, lanes: int) -> None:
    cases = _cases(dtype)
    assert len(cases) >= 15
    module = ir.Module("test")
    for name in cases:
        loops.add_function(module, name, level, dtype, lanes)
    address = loops.load(module, level)
    for name, (operands, expected) in cases.items():
        actual = loops.call(address(name), operands, expected.dtype)
        _assert_close(actual, expected, dtype, f"{level.name} {name} {dtype.value}")


@pytest.mark.parametrize("dtype", [d for d in NATIVE if not d.is_float], ids=str)
def test_integer_functions_match_their_numpy_meaning(loops: Any, dtype: DType) -> None:
    _check_functions(loops, machine.host_level(), dtype, 1)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64], ids=str)
def test_float_functions_match_their_numpy_meaning(loops: Any, dtype: DType) -> None:
    _check_functions(loops, machine.host_level(), dtype, 4)
    _check_functions(loops, machine.BASELINE, dtype, 4)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", NATIVE, ids=str)
@pytest.mark.parametrize("lanes", [1, 4])
def test_functions_match_at_every_level(loops: Any, dtype: DType, lanes: int) -> None:
    for level in loops.levels():
        _check_functions(loops, level, dtype, lanes)


@pytest.mark.parametrize("name", ["divide", "remainder", "truncated_remainder", "shift_left"])
def test_every_pair_of_small_integers(loops: Any, name: str) -> None:
    for dtype in (DType.INT8, DType.UINT8):
        every = np.arange(256, dtype=np.uint8).view(dtype.numpy)
        left, right = (side.ravel() for side in np.meshgrid(every, every))
        if name in DIVISIONS:
            right = np.where(right == 0, 1, right).astype(dtype.numpy)
        with np.errstate(all="ignore"):
            expected = SCALAR_FUNCTIONS[name].meaning(left, right)
        actual = loops.run(name, machine.host_level(), [left, right])
        np.testing.assert_array_equal(actual, expected)


def test_division_by_zero_does_not_trap(loops: Any) -> None:
    for dtype in (DType.INT32, DType.INT64, DType.UINT16):
        left = np.arange(64).astype(dtype.numpy)
        zeros = np.zeros(64, dtype.numpy)
        level = machine.host_level()
        assert np.array_equal(loops.run("divide", level, [left, zeros]), left)
        assert not loops.run("remainder", level, [left, zeros]).any()


def test_functions_without_meaning_are_refused() -> None:
    module = ir.Module("test")
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), []), "f")
    emitter = Emitter(ir.IRBuilder(function.append_basic_block()), machine.LEVELS["avx2"])
    value = emitter.constant(3, DType.INT32)
    with pytest.raises(UnsupportedError, match=r"exponential.*int32"):
        emitter.apply("exponential", DType.INT32, [value])
    number = emitter.constant(3, DType.FLOAT32)
    with pytest.raises(UnsupportedError, match=r"shift_left.*float32"):
        emitter.apply("shift_left", DType.FLOAT32, [number, number])


@pytest.mark.parametrize("dtype", NATIVE, ids=[d.value for d in NATIVE])
def test_constants_loads_and_splats(loops: Any, dtype: DType) -> None:
    level = machine.host_level()
    mask = np.resize(np.array([True, False, True]), 64)

    def body(emitter: Emitter, values: Sequence[ir.Value], index: ir.Value) -> ir.Value:
        one = emitter.splat(emitter.with_lanes(1).constant(1, dtype))
        return emitter.apply("select", dtype, [values[0], emitter.constant(3, dtype), one])

    for lanes in (1, 8):
        module = ir.Module("test")
        loops.add(module, "f", level, [DType.BOOL], dtype, body, lanes)
        actual = loops.call(loops.load(module, level)("f"), [mask], dtype.numpy)
        np.testing.assert_array_equal(actual, np.where(mask, 3, 1).astype(dtype.numpy))


@pytest.mark.parametrize("dtype", NATIVE, ids=[d.value for d in NATIVE])
def test_masked_access_stays_inside(loops: Any, dtype: DType) -> None:
    """Lane masks cut a copy at every length; the rest of the target stays untouched."""
    lanes = 8
    source = np.concatenate([_values(dtype, 1)[:5], _values(dtype, 3)[150:153]])
    for level in loops.levels():
        module = ir.Module("test")
        pointer = ir.PointerType()
        kind = ir.FunctionType(ir.VoidType(), [pointer, pointer, ir.IntType(64)])
        function = ir.Function(module, kind, "f")
        builder = ir.IRBuilder(function.append_basic_block())
        emitter = Emitter(builder, level, lanes)
        mask = emitter.lane_mask(function.args[2])
        value = emitter.masked_load(function.args[0], dtype, mask)
        emitter.masked_store(value, function.args[1], dtype, mask)
        builder.ret_void()
        address = loops.load(module, level)("f")
        for count in range(lanes + 1):
            target = np.zeros(lanes, dtype.numpy)
            _call_copy(address, source, target, count)
            assert target[:count].tobytes() == source[:count].tobytes()
            assert not target[count:].view(np.uint8).any()


@pytest.mark.parametrize("dtype", NATIVE, ids=[d.value for d in NATIVE])
def test_the_first_elements_of_a_vector_are_stored_alone(loops: Any, dtype: DType) -> None:
    lanes = 8
    source = np.concatenate([_values(dtype, 1)[:5], _values(dtype, 3)[150:153]])
    for level in loops.levels():
        module = ir.Module("test")
        pointer = ir.PointerType()
        kind = ir.FunctionType(ir.VoidType(), [pointer, pointer, ir.IntType(64)])
        for count in range(1, lanes + 1):
            function = ir.Function(module, kind, f"f{count}")
            builder = ir.IRBuilder(function.append_basic_block())
            emitter = Emitter(builder, level, lanes)
            value = emitter.load(function.args[0], dtype)
            emitter.store_first(value, function.args[1], dtype, count)
            builder.ret_void()
        loaded = loops.load(module, level)
        for count in range(1, lanes + 1):
            target = np.zeros(lanes, dtype.numpy)
            _call_copy(loaded(f"f{count}"), source, target, count)
            assert target[:count].tobytes() == source[:count].tobytes()
            assert not target[count:].view(np.uint8).any()


def _call_copy(address: int, source: Array, target: Array, count: int) -> None:
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    kind(address)(source.ctypes.data, target.ctypes.data, count)


def _reductions(dtype: DType, values: Array) -> dict[str, Any]:
    wide = values.astype(np.float32) if dtype.is_half else values
    with np.errstate(all="ignore"):
        results = {
            "sum": np.add.reduce(wide, dtype=wide.dtype),
            "product": np.multiply.reduce(wide, dtype=wide.dtype),
            "maximum": np.maximum.reduce(wide),
            "minimum": np.minimum.reduce(wide),
        }
        return {name: np.asarray(value).astype(dtype.numpy) for name, value in results.items()}


@pytest.mark.parametrize("dtype", NATIVE, ids=[d.value for d in NATIVE])
def test_lanes_reduce(loops: Any, dtype: DType) -> None:
    lanes = 8
    rows = [
        np.arange(1, 9).astype(dtype.numpy),
        _values(DType.INT8, 1)[150:158].astype(dtype.numpy),
    ]
    if dtype.is_float:
        rows.append(np.array([1, 2, np.nan, 4, 5, 6, 7, 8]).astype(dtype.numpy))
    for level in loops.levels():
        module = ir.Module("test")
        for kind in KINDS:

            def body(
                emitter: Emitter, values: Sequence[ir.Value], index: ir.Value, kind: str = kind
            ) -> ir.Value:
                start = emitter.identity(kind, dtype)
                value = emitter.combine(kind, dtype, start, values[0])
                return emitter.splat(emitter.reduce_lanes(kind, dtype, value))

            loops.add(module, kind, level, [dtype], dtype, body, lanes)
        address = loops.load(module, level)
        for row in rows:
            for kind, expected in _reductions(dtype, row).items():
                actual = loops.call(address(kind), [row], dtype.numpy)[0]
                # Eight halves are rounded up to eight times.
                tolerance = 8 * 2.0**-8 if dtype.is_half else 8 * 2.0**-24
                np.testing.assert_allclose(
                    float(actual), float(expected), rtol=tolerance, err_msg=f"{kind} {dtype.value}"
                )


def _sum_module(level: machine.Level, kind: str) -> ir.Module:
    module = ir.Module("test")
    index_type = ir.IntType(64)
    signature = ir.FunctionType(ir.FloatType(), [ir.PointerType(), index_type])
    function = ir.Function(module, signature, "f")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    loop, done = function.append_basic_block("loop"), function.append_basic_block("done")
    entry = builder.block
    builder.branch(loop)
    builder.position_at_end(loop)
    emitter = Emitter(builder, level)
    index, total = builder.phi(index_type), builder.phi(ir.FloatType())
    index.add_incoming(ir.Constant(index_type, 0), entry)
    total.add_incoming(emitter.identity(kind, DType.FLOAT32), entry)
    pointer = emitter.gep(function.args[0], DType.FLOAT32, index)
    value = emitter.load(pointer, DType.FLOAT32)
    following = emitter.combine(kind, DType.FLOAT32, total, value)
    step = builder.add(index, ir.Constant(index_type, 1))
    index.add_incoming(step, loop)
    total.add_incoming(following, loop)
    builder.cbranch(builder.icmp_signed("<", step, function.args[1]), loop, done)
    builder.position_at_end(done)
    builder.ret(following)
    return module


@pytest.mark.parametrize("kind", KINDS)
def test_reduction_loops_vectorise(kind: str) -> None:
    level = machine.LEVELS["avx2"]
    operation = {"sum": "add", "product": "mul", "maximum": "max", "minimum": "min"}[kind]
    text = machine.assembly(_sum_module(level, kind), level)
    assert re.search(rf"v{operation}ps\s.*%ymm", text)
