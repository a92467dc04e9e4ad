"""Floats become narrow integers by instructions that saturate, a register of results at a time."""

from __future__ import annotations

import pytest

from support.graph_kit import F32, Space, check
from support.kernel_modules import modules_of_variants
from tilewright.backend.cpu.machine import LEVELS, assembly
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, node
from tilewright.ir.primitives import Cast, Map

NARROW = [DType.INT8, DType.UINT8, DType.INT16]


def narrowed(dtype: DType) -> Graph:
    """Absolute values, so many of which there may be that they would be streamed."""
    space = Space()
    x = space.input("x", F32, space.dimension("n", 0, 1 << 30))
    return space.graph(node(Cast(dtype), node(Map("absolute"), x)))


@pytest.mark.parametrize("dtype", NARROW)
def test_numbers_are_packed(dtype: DType) -> None:
    """Their lower bytes are not picked out one by one."""
    instruction = {1: "vpacksswb" if dtype.is_signed else "vpackuswb", 2: "vpackssdw"}[dtype.bytes]
    for module in modules_of_variants(narrowed(dtype), "avx2"):
        text = assembly(module, LEVELS["avx2"])
        assert instruction in text and "vpunpckldq" not in text


@pytest.mark.parametrize(("level", "dtype", "whole"), [
    ("avx2", DType.INT8, True), ("avx2", DType.INT16, False), ("avx512", DType.INT8, False),
])  # fmt: skip
def test_bytes_of_floats_fill_registers(level: str, dtype: DType, whole: bool) -> None:
    """Where LLVM would fill a part of one; a part of a register is left to it."""
    for module in modules_of_variants(narrowed(dtype), level):
        assert (".vectors" in str(module)) is whole


@pytest.mark.parametrize("dtype", NARROW)
def test_vectors_and_what_is_left_of_them_are_right(dtype: DType) -> None:
    sizes = [0, 1, 7, 8, 31, 32, 33, 63, 64, 67, 1021]
    check(narrowed(dtype), [{"n": n} for n in sizes], levels=("x86-64", "avx2"))
