"""Few neighbouring rows: several places of all of them are one vector, whatever their number."""

from __future__ import annotations

import pytest

from support.graph_kit import F32, F64, Space, apply, check, kept, softmax, spread
from support.row_variants import sizes_of, take_variant
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Reduce

# Places that are less than one fold, one, several at once, and a rest; 0 to 17 columns.
EDGES = [(2, 0, 3, 1), (2, 3, 0, 2), (0, 3, 2, 2), (1, 1, 1, 1), (3, 16, 1, 2), (2, 17, 1, 3),
         (1, 15, 2, 2), (2, 97, 1, 7), (2, 33, 17, 1), (1, 131, 5, 1)]  # fmt: skip


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Row kernels are computed by folded columns; the names of all variants that there were."""
    return take_variant(monkeypatch, "folded")


@pytest.mark.parametrize("dtype", [F32, F64])
def test_a_softmax_between_other_axes(names: list[str], dtype: DType) -> None:
    space = Space()
    a, b, c, d = space.dimensions("a b c d")
    x = space.input("x", dtype, a, b, c, d)
    check(space.graph(softmax(x, (1,))), sizes_of(EDGES))
    assert "folded" in names


def test_what_there_is_one_of_for_each_row(names: list[str]) -> None:
    """The sums of the rows are results beside their elements; columns are few when compiling."""
    space = Space()
    a, b, c = space.dimensions("a b c")
    x = space.input("x", F32, a, b, c, 3)
    sums: Node = node(Reduce("sum", (0, 2)), x)
    graph = space.graph(sums, apply("subtract", x, kept(x, "sum", (0, 2))))
    check(graph, [{"a": 2, "b": 3, "c": size} for size in (0, 1, 16, 97)], length=200)
    assert "folded" in names


def test_what_is_read_for_each_column_is_spread(names: list[str]) -> None:
    space = Space()
    a, b, c = space.dimensions("a b c")
    x, scale = space.input("x", F32, a, b, c), space.input("scale", F32, c)
    scaled = apply("multiply", x, spread(scale, x.shape, (2,)))
    sizes = [{"a": 2, "b": 37, "c": 5}, {"a": 1, "b": 80, "c": 1}]
    check(space.graph(softmax(scaled, (1,))), sizes)
    assert "folded" in names


def test_what_is_read_for_each_place_is_not_folded(names: list[str]) -> None:
    """The place of an element is unknown where several are one row."""
    space = Space()
    a, b, c = space.dimensions("a b c")
    x, scale = space.input("x", F32, a, b, c), space.input("scale", F32, b)
    scaled = apply("multiply", x, spread(scale, x.shape, (1,)))
    check(space.graph(softmax(scaled, (1,))), [{"a": 2, "b": 37, "c": 5}])
    assert "folded" not in names


@pytest.mark.parametrize("columns", [16, 80])
def test_whole_vectors_are_not_folded(names: list[str], columns: int) -> None:
    space = Space()
    a, b = space.dimensions("a b")
    check(space.graph(softmax(space.input("x", F32, a, b, columns), (1,))), [{"a": 2, "b": 5}])
    assert "folded" not in names
