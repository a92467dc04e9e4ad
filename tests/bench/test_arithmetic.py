"""The least time of computing: counted by hand for a few graphs."""

from __future__ import annotations

import pytest

from tilewright.bench.arithmetic import computing_seconds
from tilewright.bench.tables import TableCase, make_table_case
from tilewright.compile import compile_stages
from tilewright.frontend.onnx import Dim
from tilewright.target import preset
from tilewright.target.core_model import usual_core

ZEN = preset("zen4")
COSTS = usual_core(ZEN).loops
LANES = ZEN.vector_bytes // 4


def cycles(inputs: str, constants: str, nodes: str, sizes: str, threads: int = 1) -> float:
    case: TableCase = make_table_case("memory", "s", "n", inputs, constants, nodes, sizes)
    dims = {name: Dim(0, 4 * size) for name, size in case.sizes.items()}
    graph = compile_stages(case.form.build({}), dims=dims).graph
    seconds = computing_seconds(graph, case.sizes, ZEN, threads)
    return seconds * ZEN.clock_ghz * 1e9


def test_every_function_counts_once_for_each_element() -> None:
    found = cycles("float[rows,40] x", "", "y = Exp (x)", "rows=6")
    assert found == pytest.approx(6 * 40 / LANES * (COSTS.function("exponential") or 0))
    # A function of what is repeated afterwards counts for what it is computed from.
    few = "t = Exp (b) y = Add (x, t)"
    found = cycles("float[rows,40] x, float[rows,1] b", "", few, "rows=6")
    own = (COSTS.function("exponential") or 0) + 40 * COSTS.addition
    assert found == pytest.approx(6 / LANES * own)


def test_moving_counts_as_nothing_and_threads_share() -> None:
    assert cycles("float[rows,40] x", "", "y = Transpose <perm=[1,0]> (x)", "rows=6") == 0.0
    one, two = (cycles("float[rows,40] x", "", "y = Exp (x)", "rows=6", n) for n in (1, 2))
    assert one == pytest.approx(two * min(2, ZEN.units))


def test_windows_count_by_the_axis_and_filters_by_the_tap() -> None:
    pool = "y = MaxPool <kernel_shape=[3,3]> (x)"
    found = cycles("float[batch,2,7,7] x", "", pool, "batch=3")
    assert found == pytest.approx(3 * 2 * 25 * 4 / LANES * COSTS.instruction)
    filters = "y = Conv <group=2, kernel_shape=[3,3]> (x, w)"
    found = cycles("float[batch,2,7,7] x", "float[2,1,3,3] w", filters, "batch=3")
    rate = ZEN.multiply_adds_per_cycle("float32")
    assert found == pytest.approx(3 * 2 * 25 * 9 / rate)
