"""Reductions of short rows, and before few columns: turned into rows, or across many of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from support.graph_kit import F32, F64, Array, Space, apply, check, data, spread
from tilewright.cost import Machine
from tilewright.ir.dtype import DType
from tilewright.ir.graph import node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import ArgReduce, Transpose
from tilewright.tile import lower
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import Variant

# Rows of 0, 1, a vector ± 1 and a prime; 0 to 17 columns, which no square of registers may hold.
EDGES = [(2, 0, 3), (2, 3, 0), (0, 3, 2), (1, 1, 1), (3, 16, 1), (2, 17, 3), (1, 15, 2), (5, 97, 7),
         (2, 33, 17), (1, 4099, 2), (3, 64, 4), (2, 63, 5)]  # fmt: skip
CASES = [dict(zip("abc", row, strict=True)) for row in EDGES]
WITH_ROWS = [sizes for sizes in CASES if sizes["b"]]  # of nothing, no position is the best


@pytest.fixture(params=["columns", "turned", "pieces"])
def names(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[str]:
    """Kernels are computed in one way if they can be; the names of all variants that there were."""
    found: list[str] = []
    usual = vars(lower)["_loops"]

    def chosen(
        kernel: Kernel, fresh: Callable[[], Lowering], machine: Machine
    ) -> tuple[Variant, ...]:
        variants = {variant.name: variant for variant in usual(kernel, fresh, machine)}
        found.extend(variants)
        return (variants.get(request.param, variants["loops"]),)

    monkeypatch.setattr(lower, "_loops", chosen)
    return found


def with_equals(name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Whole numbers, many of which are equal, and some that are none."""
    made = data(DType.INT32, shape, seed=len(name), low=-4, high=4).astype(dtype.numpy)
    if dtype.is_float and name == "broken":
        made[data(DType.INT32, shape, seed=3, low=0, high=20) == 0] = float("nan")
    if name == "least":  # as bad as nothing, for who looks for the greatest
        made[...] = -np.inf if dtype.is_float else np.iinfo(dtype.numpy).min
    return made


@pytest.mark.parametrize("dtype", [F32, F64, DType.INT32])
def test_positions_of_extremes(names: list[str], dtype: DType) -> None:
    space = Space()
    a, b, c = space.dimensions("a b c")
    x, broken = (space.input(name, dtype, a, b, c) for name in ("x", "broken"))
    kinds = [("maximum", False), ("minimum", True)]
    outputs = [node(ArgReduce(kind, 1, last), o) for kind, last in kinds for o in (x, broken)]
    check(space.graph(*outputs), WITH_ROWS, fill=with_equals)
    assert {"columns", "turned"} <= {*names}


def test_what_is_computed_of_two_operands(names: list[str]) -> None:
    """One is the same for all columns, one for all rows."""
    space = Space()
    a, b, c = space.dimensions("a b c")
    x, y = space.input("x", F32, a, b, c), space.input("y", F32, b)
    z = space.input("z", F32, c)
    made = apply("add", apply("multiply", x, spread(y, x.shape, (1,))), spread(z, x.shape, (2,)))
    check(space.graph(node(ArgReduce("minimum", 1, False), made)), WITH_ROWS, fill=with_equals)
    assert "columns" in names


def test_bytes_and_many_columns_stay_as_they_lie(names: list[str]) -> None:
    space = Space()
    a, b = space.dimensions("a b")
    inputs = [space.input("x", F32, a, b, 64), space.input("y", DType.INT8, a, b, 2)]
    outputs = [node(ArgReduce("maximum", 1, False), x) for x in inputs]
    check(space.graph(*outputs), [{"a": 2, "b": 5}], fill=with_equals)
    assert "columns" not in names


def test_one_axis_alone(names: list[str]) -> None:
    space = Space()
    x = space.input("x", F32, *space.dimensions("b c"))
    check(space.graph(node(ArgReduce("maximum", 0, True), x)), WITH_ROWS, fill=with_equals)
    assert "columns" in names


@pytest.mark.parametrize("dtype", [F32, F64])
def test_rows_without_columns(names: list[str], dtype: DType) -> None:
    space = Space()
    x = space.input("x", dtype, *space.dimensions("b c"))
    outputs = [node(ArgReduce("minimum", 1, last), x) for last in (False, True)]
    cases = [{"b": b, "c": c} for b, c in ((0, 3), (3, 1), (17, 7), (129, 16), (600, 5), (33, 97))]
    check(space.graph(*outputs), cases, fill=with_equals)
    assert "turned" in names


@pytest.mark.parametrize("dtype", [F32, F64, DType.INT32])
def test_rows_in_pieces(names: list[str], dtype: DType) -> None:
    """Rows of no piece, of one, of groups of them and one element more or less, and of a prime."""
    space = Space()
    a, b = space.dimensions("a b")
    given = [space.input(name, dtype, a, b) for name in ("x", "broken", "least")]
    kinds = [("maximum", False), ("maximum", True), ("minimum", False), ("minimum", True)]
    outputs = [node(ArgReduce(kind, 1, last), x) for kind, last in kinds for x in given]
    lengths = (1, 63, 64, 65, 127, 128, 255, 256, 257, 331, 4099)
    check(space.graph(*outputs), [{"a": 3, "b": b} for b in lengths], fill=with_equals)
    assert "pieces" in names


def test_pieces_of_what_is_computed_at_other_places(names: list[str]) -> None:
    """A search reads what lies side by side along the row; other rows are reduced twice."""
    space = Space()
    a, b = space.dimensions("a b")
    x, y = space.input("x", F32, a, b), space.input("y", F32, b)
    beside = apply("add", x, spread(y, x.shape, (1,)))
    across = node(Transpose((1, 0)), space.input("z", F32, b, a))
    outputs = [node(ArgReduce("maximum", 1, False), o) for o in (beside, across)]
    check(space.graph(*outputs), [{"a": 5, "b": b} for b in (1, 64, 200)], fill=with_equals)
    assert "pieces" in names
