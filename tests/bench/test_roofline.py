"""The work of models, counted by hand, and the limits of this machine.

The last test needs the CPU, the others nothing.
"""

from __future__ import annotations

import numpy as np
import pytest

from support.text_models import model
from tilewright.bench.roofline import Limits, ModelWork, Reads, measure_limits
from tilewright.frontend.onnx import import_model
from tilewright.ir.graph import Graph
from tilewright.target import detect

LIMITS = Limits(1e9, (Reads("L1", 1 << 16, 1e9), Reads("memory", None, 1e8)))


def graph_of(text: str, **constants: np.ndarray) -> Graph:
    return import_model(model(text), constants=constants).graph


def test_products_and_what_is_read_once() -> None:
    graph = graph_of(
        "g (float[n, 64] x, float[64, 96] w) => (float[n, 96] y){ a = MatMul (x, w) y = Tanh (a) }",
        w=np.ones((64, 96), np.float32),
    )
    work = ModelWork.of(graph)
    assert work is not None
    for n in (0, 1, 700):
        assert work.flops.evaluate({"n": n}) == 2 * n * 64 * 96
        assert work.bytes.evaluate({"n": n}) == 4 * (n * 64 + 64 * 96 + n * 96)
    # 700 rows do not fit the cache, and their operations take longer all the same.
    assert work.seconds({"n": 1}, LIMITS) == pytest.approx(4 * (64 + 6144 + 96) / 1e9)
    assert work.seconds({"n": 700}, LIMITS) == pytest.approx(2 * 700 * 6144 / 1e9)


def test_windows_of_groups_and_steps() -> None:
    graph = graph_of(
        "g (float[b, 8, 20, 20] x, float[8, 2, 3, 3] w) => (float[b, 8, 20, 20] y)"
        "{ y = Conv <group = 4, pads = [1, 1, 1, 1]> (x, w) }",
        w=np.ones((8, 2, 3, 3), np.float32),
    )
    work = ModelWork.of(graph)
    assert work is not None and work.flops.evaluate({"b": 3}) == 2 * 3 * 8 * 400 * 2 * 9
    graph = graph_of(
        "g (float[t, b, 5] x, float[1, 28, 5] w, float[1, 28, 7] r) => (float[t, 1, b, 7] y)"
        "{ y = LSTM <hidden_size = 7> (x, w, r) }",
        w=np.ones((1, 28, 5), np.float32),
        r=np.ones((1, 28, 7), np.float32),
    )
    work = ModelWork.of(graph)
    assert work is not None
    assert work.flops.evaluate({"t": 11, "b": 2}) == 2 * 11 * 2 * 28 * (5 + 7)


def test_of_a_table_the_rows_that_are_looked_up() -> None:
    graph = graph_of(
        "g (int64[n] i, float[5000, 16] table) => (float[n, 16] y) { y = Gather (table, i) }",
        table=np.ones((5000, 16), np.float32),
    )
    work = ModelWork.of(graph)
    assert work is not None
    assert work.bytes.evaluate({"n": 3}) == 3 * 8 + 2 * 3 * 16 * 4


def test_peaks_are_of_float32() -> None:
    text = "g (double[n, 4] x, double[4, 4] w) => (double[n, 4] y) { y = MatMul (x, w) }"
    assert ModelWork.of(graph_of(text)) is None


def test_sizes_that_values_decide() -> None:
    graph = graph_of("g (float[n] x) => (int64[1, m] y) { y = NonZero (x) }")
    work = ModelWork.of(graph)
    assert work is not None and work.seconds({"n": 4}, LIMITS) is None


def test_threads_share_what_their_cores_share() -> None:
    one, all_of_them = measure_limits(1), measure_limits(units := detect().units)
    assert one.flops > 0
    assert one.reads[-1].capacity is None
    assert [r.name for r in one.reads] == [r.name for r in all_of_them.reads]
    levels = {level.name: level for level in detect().levels}
    for alone, together in zip(one.reads[:-1], all_of_them.reads[:-1], strict=True):
        level = levels[alone.name]
        assert alone.capacity == level.capacity
        assert together.capacity == level.capacity * min(
            level.instances, -(-units // level.sharing)
        )
