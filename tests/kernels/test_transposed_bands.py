"""Transposed blocks whose rows share sets of the first-level cache are turned in taller bands."""

from __future__ import annotations

import re

import pytest

from support.graph_kit import Space, check
from tilewright.backend.cpu.machine import LEVELS
from tilewright.backend.cpu.shared import KernelModule, shared_module
from tilewright.backend.cpu.transpose import transpose_function
from tilewright.ir.dtype import DType
from tilewright.ir.graph import node
from tilewright.ir.primitives import Transpose

NARROW = ("x86-64", "avx2")


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.FLOAT64, DType.INT8])
def test_rows_that_share_sets_are_turned(dtype: DType) -> None:
    """Of a page and of half a page, with columns around those of a square and of a task."""
    space = Space()
    x = space.input("x", dtype, space.dimension("rows"), space.dimension("columns"))
    graph = space.graph(node(Transpose((1, 0)), x))
    clashing = 2048 // dtype.bytes
    columns = (0, 1, 3, 7, 8, 9, 17, 65)
    sizes = [(rows, c) for rows in (clashing, 2 * clashing) for c in columns]
    sizes += [(clashing - 1, 67), (clashing + 1, 67), (129, clashing), (clashing, clashing)]
    check(graph, [{"rows": r, "columns": c} for r, c in sizes], levels=NARROW)


@pytest.mark.parametrize(
    ("level", "dtype", "tall"),
    [
        ("avx2", DType.FLOAT32, True),
        ("avx2", DType.FLOAT64, True),
        ("x86-64", DType.FLOAT16, True),
        ("avx2", DType.INT8, False),
        ("avx512", DType.FLOAT32, False),
    ],
)
def test_bands_are_taller_where_rows_share_sets(level: str, dtype: DType, tall: bool) -> None:
    """Four lines of a row; not of bytes, and not where a vector is a line."""
    module = KernelModule("transpositions")
    transpose_function(module, LEVELS[level], dtype, along_target=False, words=False)
    (shared,) = module.shared.values()
    text = str(shared_module(shared))
    chosen = {int(one) for one in re.findall(r"select\s+i1 [^,]+, i64 (\d+), i64 %", text)}
    assert (256 // dtype.bytes in chosen) is tall
