"""Axes exchanged above a short last one: runs as long as an element are turned as one."""

from __future__ import annotations

import pytest

from support.graph_kit import BOOL, F32, F64, Space, check, mostly_slow
from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.backend.cpu.machine import LEVELS
from tilewright.cost import Machine
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, node
from tilewright.ir.kernel import Kernel, KernelKind
from tilewright.ir.primitives import Concat, Transpose
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import constant
from tilewright.target import preset
from tilewright.tile import lower
from tilewright.tile.loops.loops import lower_other_order
from tilewright.tile.lower import lower_kernel
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import THREADS, Variant

SIZES = [
    {"a": a, "b": b, "c": c}
    for a, b, c in ((0, 3, 2), (3, 4, 0), (1, 1, 1), (3, 70, 2), (70, 3, 4), (17, 16, 2),
                    (64, 65, 4), (33, 31, 8), (129, 66, 1), (5, 7, 3), (40, 41, 9))
]  # fmt: skip


def exchanged(dtype: DType, run: int | None = None) -> Graph:
    """The first two of three axes exchanged; the last one has ``run`` elements or any number."""
    space = Space()
    a, b, c = space.dimensions("a b c")
    last = c if run is None else constant(run)
    return space.graph(node(Transpose((1, 0, 2)), space.input("x", dtype, a, b, last)))


def _nothing(_: Kernel, __: Lowering) -> None:
    """No second variant."""


def variants(graph: Graph) -> tuple[Variant, ...]:
    (kernel,) = plan_greedily(graph).kernels
    tile = register_tile(LEVELS["avx2"])
    machine = Machine(preset("x86-64"))
    return lower_kernel(kernel, graph.scope, tile, machine=machine).variants


@pytest.mark.parametrize(
    "dtype", mostly_slow([DType.UINT8, BOOL, DType.FLOAT16, F32, F64], "uint8", "float32")
)
def test_runs_of_any_length_are_right(monkeypatch: pytest.MonkeyPatch, dtype: DType) -> None:
    if dtype is not F64:  # of which no two are an element
        monkeypatch.setitem(lower._LOOPS, KernelKind.LOOPS, lower_other_order)  # pyright: ignore
        monkeypatch.setattr(lower, "lower_other_order", _nothing)
    check(exchanged(dtype), SIZES)


@pytest.mark.parametrize("run", [2, 4, 8])
def test_known_runs(run: int) -> None:
    graph = exchanged(DType.UINT8, run)
    assert len(variants(graph)) == 2
    check(graph, [{"a": s["a"], "b": s["b"]} for s in SIZES])


def test_runs_whose_length_is_a_formula() -> None:
    space = Space()
    a, b, c, d = space.dimensions("a b c d")
    joined = node(Concat(2), space.input("x", F32, a, b, c), space.input("y", F32, a, b, d))
    graph = space.graph(node(Transpose((1, 0, 2)), joined))
    check(graph, [{**sizes, "d": 2} for sizes in SIZES])


def test_runs_that_are_no_element_stay_as_they_are() -> None:
    assert len(variants(exchanged(F64))) == 1
    assert len(variants(exchanged(F32, 64))) == 1
    assert len(variants(exchanged(DType.UINT8, 3))) == 1


def test_lengths_decide() -> None:
    def taken(dtype: DType, length: int) -> str:
        sizes = {"a": 300, "b": 400, "c": length, THREADS: 1}
        return min(variants(exchanged(dtype)), key=lambda v: v.cost.evaluate(sizes)).name

    assert [taken(DType.UINT8, n) for n in (2, 3, 4, 64)] == ["other order", "loops"] * 2
    assert [taken(F32, n) for n in (2, 4)] == ["other order", "loops"]
