"""Positions of extremes along rows: the search for them ends where they are found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from support.graph_kit import F32, F64, Array, Space, check, data
from tilewright.cost import Machine
from tilewright.cost.sought import seeking, seeking_cycles
from tilewright.cost.vector_work import Core
from tilewright.ir.dtype import DType
from tilewright.ir.graph import node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import ArgReduce
from tilewright.ir.tile import Accumulator as Accumulated
from tilewright.ir.tile import Apply, IndexValue, Literal, Load, Loop, TileBuffer, Value
from tilewright.ir.tile_sought import sought
from tilewright.shape import constant, symbol
from tilewright.target import preset
from tilewright.tile import lower
from tilewright.tile.rows.turned_rows import BLOCK
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import Variant

# Vectors of every width ± 1, some together, and pieces ± 1.
LENGTHS = [1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 257, 997, BLOCK - 1, BLOCK,
           BLOCK + 1, 2 * BLOCK + 17]  # fmt: skip
ROWS = [{"a": 3, "b": length} for length in LENGTHS]
SPECIAL = [-np.inf, -1.0, -0.0, 0.0, 1.0, np.inf, np.nan]


@pytest.fixture(params=["loops", "pieces"])
def way(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Kernels are computed in one way if they can be."""
    usual = vars(lower)["_loops"]

    def chosen(
        kernel: Kernel, fresh: Callable[[], Lowering], machine: Machine
    ) -> tuple[Variant, ...]:
        variants = {variant.name: variant for variant in usual(kernel, fresh, machine)}
        return (variants.get(request.param, variants["loops"]),)

    monkeypatch.setattr(lower, "_loops", chosen)
    return request.param


def filled(name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
    """By name: numbers of which many are equal, one that is none, or all kinds of them."""
    made = data(DType.INT32, shape, seed=len(name), low=-9, high=9)
    if dtype.is_float and name == "special":
        return np.array(SPECIAL, dtype.numpy)[data(DType.INT32, shape, seed=5, low=0, high=6)]
    made = made.astype(dtype.numpy)
    if dtype.is_float and name == "broken" and shape[1]:
        made[:, (7 * shape[1]) // 11] = np.nan
    if name == "least":
        made[...] = -np.inf if dtype.is_float else np.iinfo(dtype.numpy).min
    return made


@pytest.mark.parametrize("dtype", [F32, F64, DType.INT32, DType.INT64, DType.INT8, DType.UINT8])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.usefixtures("way")
def test_places_in_rows(dtype: DType, last: bool) -> None:
    space = Space()
    shape = space.dimensions("a b")
    names = ("x", "least", *(("broken", "special") if dtype.is_float else ()))
    inputs = [space.input(name, dtype, *shape) for name in names]
    kinds = ("maximum", "minimum")
    outputs = [node(ArgReduce(kind, 1, last), x) for kind in kinds for x in inputs]
    check(space.graph(*outputs), ROWS, fill=filled)


@pytest.mark.parametrize("length", [1, 10, 16, 37, 64, 1003, BLOCK + 3])
@pytest.mark.usefixtures("way")
def test_places_in_rows_of_known_length(length: int) -> None:
    space = Space()
    (a,) = space.dimensions("a")
    x = space.input("special", F32, a, length)
    outputs = [node(ArgReduce("maximum", 1, last), x) for last in (False, True)]
    check(space.graph(*outputs), [{"a": n} for n in (0, 1, 5)], fill=filled)


def _looking(kind: str, nowhere: Value, length: int = 1000) -> Loop:
    """A loop that looks for zeros."""
    element = Load(TileBuffer("b0", F32), symbol("_k"))
    is_zero = Apply("equal", (element, Literal(0.0, F32)), DType.BOOL)
    place = Apply("select", (is_zero, IndexValue(symbol("_k")), nowhere), DType.INT64)
    found = Accumulated("_r", kind, place)
    return Loop("_k", constant(0), constant(length), (), (found,), masked=True)


def test_what_is_a_search() -> None:
    first = sought(_looking("minimum", IndexValue(constant(1000))))
    last = sought(_looking("maximum", IndexValue(constant(-1))))
    assert first is not None and not first.last
    assert last is not None and last.last
    # A place that comes before others of the loop would win over those that are found.
    assert sought(_looking("minimum", IndexValue(constant(999)))) is None
    assert sought(_looking("maximum", IndexValue(constant(0)))) is None
    assert sought(_looking("sum", IndexValue(constant(1000)))) is None


def test_half_of_a_row_is_paid() -> None:
    machine = Machine(preset("zen4"))
    core = Core(machine.target, machine.core.loops)

    def cycles(length: int) -> int:
        loop = _looking("minimum", IndexValue(constant(length)), length)
        found = seeking(core, loop)
        assert found is not None
        return seeking_cycles(core, loop, found, constant(length)).value

    vector = 2 * (cycles(32000) - cycles(16000)) / 1000
    assert 1000 < vector < 1000 * (core.costs.load + core.costs.instruction)
