"""Index arithmetic as machine code: floor division and remainders as expressions have them."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from llvmlite import ir

from tilewright.backend.cpu.indices import I64, IndexEmitter
from tilewright.backend.cpu.library import compile_module
from tilewright.backend.cpu.machine import host_level
from tilewright.backend.cpu.shared import KernelModule
from tilewright.runtime import _native
from tilewright.shape import Expr, ceil_div, equal, less, logical_and, select, symbol

M, N = symbol("m"), symbol("n")
DIVISORS = (1, 2, 3, 6, 16, 48, 64, 127, -1, -2, -7, 2**40, 2**40 + 1)
EXPRESSIONS = {
    **{f"m // {d}": M // d for d in DIVISORS},
    **{f"m % {d}": M % d for d in DIVISORS},
    **{f"ceil(m / {d})": ceil_div(M, d) for d in DIVISORS if d > 0},
    "m // n": M // N,
    "m % n": M % N,
    "a choice by two comparisons": select(logical_and(less(M, N), equal(M % 4, 3)), M // 4, N % 8),
}
SIZES = st.integers(-(2**50), 2**50) | st.integers(-200, 200)


def module_of(expressions: dict[str, Expr]) -> KernelModule:
    """A function ``i64 e0(i64 m, i64 n)`` for each of the expressions, and ``e1`` and so on."""
    module = KernelModule("indices")
    for number, expression in enumerate(expressions.values()):
        function = ir.Function(module, ir.FunctionType(I64, [I64, I64]), f"e{number}")
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        names = dict(zip("mn", function.args, strict=True))
        builder.ret(IndexEmitter(builder).emit(expression, names))
    return module


IMAGE = compile_module(module_of(EXPRESSIONS), host_level())
MAPPED = _native.Image(IMAGE.data, dict(IMAGE.functions), list(IMAGE.fixups))
KIND = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


@pytest.mark.parametrize("name", EXPRESSIONS)
@settings(deadline=None, max_examples=60)
@given(m=SIZES, n=SIZES.filter(bool))
@example(m=-1, n=1)
@example(m=0, n=-1)
@example(m=-64, n=64)
@example(m=3, n=7)
def test_machine_code_has_the_value_of_the_expression(name: str, m: int, n: int) -> None:
    function = KIND(MAPPED.address(f"e{list(EXPRESSIONS).index(name)}"))
    assert function(m, n) == EXPRESSIONS[name].evaluate({"m": m, "n": n})


def test_a_division_by_a_power_of_two_is_a_shift() -> None:
    """LLVM would make one of it only after many steps."""
    powers = {f"by {d}": M // d + M % d + ceil_div(M, d) for d in (2, 64, 2**40)}
    assert "div" not in str(module_of(powers)) and "rem" not in str(module_of(powers))
    assert "sdiv" in str(module_of({"by 6": M // 6}))


def test_a_number_of_32_bits_is_no_truth_value() -> None:
    module = KernelModule("indices")
    function = ir.Function(module, ir.FunctionType(I64, [ir.IntType(32)]), "chosen")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    emitter = IndexEmitter(builder)
    wide = builder.zext(function.args[0], I64)
    builder.ret(emitter.emit(select(M, 5, 6), {"m": wide}))
    image = compile_module(module, host_level())
    mapped = _native.Image(image.data, dict(image.functions), list(image.fixups))
    chosen = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int32)(mapped.address("chosen"))
    assert [chosen(number) for number in (0, 1, 2)] == [6, 5, 5]
