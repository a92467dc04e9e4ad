"""Rows whose elements lie a few columns apart: the columns are turned, and each is a row."""

from __future__ import annotations

import pytest

from support.graph_kit import F32, F64, Space, apply, check, kept, softmax, spread
from support.row_variants import sizes_of, take_variant
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Reduce

# Rows of 0, 1, a vector ± 1 and a prime; 0 to 17 columns, which no square of registers may hold.
EDGES = [(2, 0, 3, 1), (2, 3, 0, 2), (0, 3, 2, 2), (1, 1, 1, 1), (3, 16, 1, 2), (2, 17, 1, 3),
         (1, 15, 2, 2), (5, 97, 1, 7), (2, 33, 17, 1), (1, 4099, 1, 2)]  # fmt: skip


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Row kernels are computed by turned columns; the names of all variants that there were."""
    return take_variant(monkeypatch, "columns")


@pytest.mark.parametrize("dtype", [F32, F64])
def test_a_softmax_between_other_axes(names: list[str], dtype: DType) -> None:
    space = Space()
    a, b, c, d = space.dimensions("a b c d")
    x, y = space.input("x", dtype, a, b, c, d), space.input("y", dtype, b, 1, 1)
    scaled = apply("multiply", x, spread(y, x.shape, (1, 2, 3)))
    check(space.graph(softmax(scaled, (1,))), sizes_of(EDGES))
    assert "columns" in names


def test_what_there_is_one_of_for_each_row(names: list[str]) -> None:
    """The sums of the rows are results beside their elements; columns are few when compiling."""
    space = Space()
    a, b = space.dimensions("a b")
    x = space.input("x", F32, a, b, 3)
    sums: Node = node(Reduce("sum", (1,)), x)
    graph = space.graph(sums, apply("subtract", x, kept(x, "sum", (1,))))
    check(graph, [{"a": 3, "b": size} for size in (0, 1, 16, 97)])
    assert "columns" in names


def test_many_columns_are_not_turned(names: list[str]) -> None:
    space = Space()
    a, b = space.dimensions("a b")
    check(space.graph(softmax(space.input("x", F32, a, b, 64), (1,))), [{"a": 2, "b": 5}])
    assert "columns" not in names
