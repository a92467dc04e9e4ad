"""Scatter of whole rows: every variant, by machine code and as its tile program means it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from support.graph_kit import (
    BOTH_LEVELS,
    F32,
    I64,
    Compiled,
    Space,
    apply,
    compare_outputs,
    data,
    exact,
    inputs_at,
    kept,
)
from support.tile_runs import TileRun
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, node
from tilewright.ir.primitives import ScatterND
from tilewright.shape import constant
from tilewright.support.errors import ExecutionError
from tilewright.tile.loops.loops import CHUNK

Array = np.ndarray[Any, Any]
VARIANTS = ("loops", "rows")


def scatter(depth: int, trailing: int, dtype: DType = F32, *, reduced: bool = False) -> Graph:
    """Rows of ``trailing`` axes, chosen by ``depth`` indices; if ``reduced``, of another kernel."""
    space = Space()
    rows = [space.dimension("r"), *[constant(3)] * (depth - 1)]
    columns = [*[constant(2)] * (trailing - 1), space.dimension("c")]
    n = space.dimension("n")
    x = space.input("x", dtype, *rows, *columns)
    at = space.input("at", I64, n, constant(depth))
    updates = space.input("updates", dtype, n, *columns)
    if reduced:
        updates = apply("subtract", updates, kept(updates, "maximum", [updates.rank - 1]))
    return space.graph(node(ScatterND("none"), x, at, updates))


def fill(limits: Mapping[int, int]) -> Any:
    """Indices from both ends, below the limit of their column; many of them meet."""

    def filled(name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
        made = data(dtype, shape, seed=len(name))
        if name != "at":
            return made
        chance = np.random.default_rng(sum(shape))
        columns = [
            chance.integers(-limits.get(d, 3), max(limits.get(d, 3), 1), shape[:1])
            for d in range(shape[1])
        ]
        return np.stack(columns, axis=1).astype(np.int64)

    return filled


def compare(graph: Graph, cases: list[tuple[int, int, int]]) -> None:
    """Both variants at every size of rows, columns and updates."""
    compiled = Compiled(graph)
    for rows, columns, count in cases:
        sizes = {"r": rows, "c": columns, "n": count}
        inputs = inputs_at(graph, sizes, fill({0: rows}))
        want = exact(graph, inputs, sizes)
        for level in BOTH_LEVELS:
            made = compiled.levels[level]
            choice = made.program.choices[-1]
            run = TileRun(graph, made.lowered)
            for number, name in enumerate(VARIANTS):
                told = f"{level} {sizes} {name}"
                meant = run.outputs(inputs, sizes, lambda k, n=number: min(n, len(k.variants) - 1))
                compare_outputs(graph, meant, want, (0, 1.0), told)
                for options in ({"pieces": 1}, {"at_end": False, "pieces": 3}):
                    got = compiled.guarded(
                        level, inputs, sizes, chosen={choice.symbol: number}, **options
                    )
                    compare_outputs(graph, got, want, (0, 1.0), told)
        compare_outputs(graph, compiled.model.run(inputs), want, (0, 1.0), f"runtime {sizes}")


LINE = 16  # f32 elements, and so the rows that a task has at least


def test_rows_of_all_lengths() -> None:
    cases = [(1, 1, 1), (1, 1, 0), (LINE - 1, 7, 3), (LINE, 7, 40), (LINE + 1, 7, 5), (127, 33, 63)]
    cases += [(3, CHUNK - 1, 2), (3, CHUNK, 4), (3, CHUNK + 1, 2), (2, 2 * CHUNK + 3, 3)]
    compare(scatter(1, 1), [*cases, (17, 257, 5), (259, 17, 300)])


def test_nothing_to_write_or_to_change() -> None:
    compare(scatter(1, 1), [(0, 5, 0), (4, 0, 0), (4, 0, 6), (4, 5, 0), (0, 0, 0)])


@pytest.mark.parametrize("dtype", [DType.BOOL, DType.FLOAT16, I64], ids=str)
def test_elements_of_other_sizes(dtype: DType) -> None:
    compare(scatter(1, 1, dtype), [(1, 1, 2), (65, 31, 20), (2, CHUNK + 1, 3)])


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("trailing", [1, 2])
def test_several_coordinates_and_axes(depth: int, trailing: int) -> None:
    compare(scatter(depth, trailing), [(1, 1, 1), (5, 9, 30), (7, 0, 3), (2, 1031, 4)])


def test_updates_that_another_kernel_makes() -> None:
    compare(scatter(1, 1, reduced=True), [(1, 1, 1), (19, 37, 11)])


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("value", [5, -6, -(2**63)])
def test_an_index_out_of_bounds(number: int, value: int) -> None:
    def filled(name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
        made = data(dtype, shape, low=0, high=4)
        if name == "at":
            made[-1] = value
        return made

    graph, sizes = scatter(1, 1), {"r": 5, "c": 3, "n": 4}
    compiled, inputs = Compiled(graph), inputs_at(graph, sizes, filled)
    for level in BOTH_LEVELS:
        (choice,) = compiled.levels[level].program.choices
        message = f"index {value} is out of bounds for an axis of size 5"
        with pytest.raises(ExecutionError, match=message):
            compiled.guarded(level, inputs, sizes, chosen={choice.symbol: number})


def test_many_rows_are_chosen_and_short_ones_changed() -> None:
    """By the costs: a row of the table takes longer than changing a few elements."""
    program = Compiled(scatter(1, 1)).levels[BOTH_LEVELS[-1]].program
    (choice,) = program.choices

    def best(rows: int, columns: int, count: int) -> str:
        known = {"r": rows, "c": columns, "n": count, program.threads_symbol: 1}
        costs = [cost.evaluate(known) for cost in choice.costs]
        return VARIANTS[costs.index(min(costs))]

    assert best(4099, 769, 2047) == "rows"
    assert best(60_000, 3, 30_000) == best(4099, 769, 1) == "loops"
