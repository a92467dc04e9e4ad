"""Whether results may overwrite operands: what is proved, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.ir.dtype import DType
from tilewright.ir.stage_axis import Role, StageAxis
from tilewright.ir.tile import (
    Accumulator,
    Apply,
    Finish,
    LetIndex,
    Load,
    Local,
    Loop,
    Product,
    Registers,
    Stage,
    Statement,
    Store,
    TileBuffer,
    TileProgram,
    TransposeBlock,
    Value,
    View,
)
from tilewright.ir.tile_evaluate import evaluate_tile
from tilewright.ir.tile_overwrite import Overwriting, in_place
from tilewright.ir.tile_samples import sample_sizes
from tilewright.ir.tile_verify import Findings, verify_tile
from tilewright.shape import Expr, Scope, ceil_div, constant, symbol

F32 = DType.FLOAT32
X, OTHER, OUT = TileBuffer("x", F32), TileBuffer("w", F32), TileBuffer("o", F32)
INDICES = TileBuffer("n", DType.INT64)
ROWS, COLUMNS = symbol("rows"), symbol("columns")
ROW, COLUMN = symbol("_i"), symbol("_j")
PLACE = COLUMNS * ROW + COLUMN
TASKS = (("_i", ROWS),)


def program(*body: Statement, grid: tuple[tuple[str, Expr], ...] = TASKS) -> TileProgram:
    return TileProgram((X, OTHER, INDICES, OUT), 1, grid, body, (), ("{0} of {1}",), constant(1))


def along(*body: Statement, variable: str = "_j", sums: tuple[Accumulator, ...] = ()) -> Loop:
    return Loop(variable, constant(0), COLUMNS, body, sums)


def twice(value: Value) -> Value:
    return Apply("add", (value, value), F32)


def facts() -> Scope:
    scope = Scope()
    scope.declare("rows", 0, 64)
    scope.declare("columns", 0, 64)
    return scope


def allowed(made: TileProgram) -> bool:
    return Overwriting(made, facts()).allows(X, OUT)


def copies(read: Expr, write: Expr) -> TileProgram:
    """Each task has a row, of which it stores one element after the other."""
    return program(along(Store(OUT, write, twice(Load(X, read)))))


def test_what_is_read_where_it_is_written_may_be_overwritten() -> None:
    assert allowed(copies(PLACE, PLACE))


@pytest.mark.parametrize(
    "read",
    [
        PLACE + 1,
        COLUMNS * ROW + COLUMNS - 1 - COLUMN,
        ROWS * COLUMN + ROW,
        COLUMN,
        COLUMNS * ROW,
        COLUMNS * (ROWS - 1 - ROW) + COLUMN,
        PLACE // 2,
    ],
)
def test_what_is_read_elsewhere_may_not(read: Expr) -> None:
    assert not allowed(copies(read, PLACE))


def test_elements_that_are_written_more_than_once_may_not_be_overwritten() -> None:
    assert not allowed(copies(COLUMN, COLUMN))  # by every task
    again = Loop("_k", constant(0), constant(2), (Store(OUT, PLACE, twice(Load(X, PLACE))),))
    assert not allowed(program(along(again)))


def test_sweeps_over_a_row_read_it_before_it_is_written() -> None:
    total = along(sums=(Accumulator("_t", "sum", Load(X, PLACE)),))
    scaled = Apply("divide", (Load(X, PLACE), Local("_t", F32)), F32)
    assert allowed(program(total, along(Store(OUT, PLACE, scaled))))
    after = symbol("_k")
    late = Loop(
        "_k", constant(0), COLUMNS, (), (Accumulator("_u", "sum", Load(X, ROW * COLUMNS + after)),)
    )
    assert not allowed(program(along(Store(OUT, PLACE, twice(Load(X, PLACE)))), late))


def test_the_whole_row_may_be_read_before_any_of_it_is_written() -> None:
    turned = Load(X, COLUMNS * ROW + COLUMNS - 1 - COLUMN)
    total = along(sums=(Accumulator("_t", "maximum", turned),))
    assert allowed(program(total, along(Store(OUT, PLACE, Local("_t", F32)))))
    apart = Load(X, COLUMN)  # the first row, which the first task overwrites
    total = along(sums=(Accumulator("_t", "maximum", apart),))
    assert not allowed(program(total, along(Store(OUT, PLACE, Local("_t", F32)))))


def test_positions_from_memory_may_be_any() -> None:
    index = LetIndex("_g", Load(INDICES, PLACE), ROWS * COLUMNS, 0)
    assert not allowed(program(along(index, Store(OUT, PLACE, Load(X, symbol("_g"))))))
    assert not allowed(program(along(index, Store(OUT, symbol("_g"), Load(X, PLACE)))))
    assert not allowed(program(along(index, Store(OUT, symbol("_g"), Load(X, symbol("_g"))))))


def test_a_block_that_is_turned_is_not_overwritten() -> None:
    turn = TransposeBlock(X, constant(0), COLUMNS, OUT, constant(0), ROWS, ROWS, COLUMNS)
    assert not allowed(program(turn, grid=()))


def test_types_and_roles_of_buffers_count() -> None:
    made = copies(PLACE, PLACE)
    found = Overwriting(made, facts())
    assert not found.allows(INDICES, OUT) and not found.allows(OUT, OUT)
    assert not found.allows(X, OTHER)
    assert found.allows(OTHER, OUT)  # nothing is read of it
    nothing = program()
    assert not allowed(nothing)


def product(tail: int | None, panel: int, residual: Expr) -> TileProgram:
    rows = StageAxis("_m", ROWS, constant(4), Role.PARALLEL)
    columns = StageAxis("_n", constant(64), constant(16), Role.PARALLEL)
    depth = StageAxis("_k", COLUMNS, constant(8), Role.REDUCTION)
    m, n = symbol("_m"), symbol("_n")
    total = Apply("add", (Local("accumulator", F32), Load(X, residual)), F32)
    right = View(OTHER, columns.begin * COLUMNS, COLUMNS, constant(panel or 64), panel)
    left = View(OTHER, rows.begin * COLUMNS + depth.begin, COLUMNS, constant(1))
    finish = Finish((Store(OUT, m * 64 + n, total),), Registers(4, 16, tail))
    made = Product(F32, left, right, rows.bounds, columns.bounds, depth.bounds, finish)
    body = Stage((rows, columns), (), (Stage((depth,), (), (made,)),))
    grid = (("_mb", ceil_div(ROWS, 4)), ("_nb", constant(4)))
    return program(body, grid=grid)


def test_a_product_may_overwrite_what_is_added_to_it() -> None:
    place = symbol("_m") * 64 + symbol("_n")
    assert allowed(product(0, 0, place)) and allowed(product(None, 16, place))
    # The last columns may be finished twice: what was added would be added again.
    assert not allowed(product(3, 0, place)) and not allowed(product(None, 0, place))
    assert not allowed(product(0, 0, symbol("_n"))) and not allowed(product(0, 0, place + 1))


slopes = st.integers(-3, 3)


@settings(max_examples=150, deadline=None)
@given(
    st.tuples(slopes, slopes, st.integers(0, 4)),
    st.tuples(slopes, slopes, st.integers(0, 4)),
    st.integers(1, 4),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
)
def test_what_is_allowed_gives_the_same_results(
    read: tuple[int, int, int],
    write: tuple[int, int, int],
    rows: int,
    columns: int,
    task: bool,
    same: bool,
) -> None:
    """Any strides: tasks run forwards and backwards, as threads might."""

    def place(form: tuple[int, int, int]) -> Expr:
        # Far enough from 0 that no element is before the buffer.
        return ROW * form[0] + COLUMN * form[1] + form[2] + 24

    inner = Loop(
        "_j",
        constant(0),
        constant(columns),
        (Store(OUT, place(write), twice(Load(X, place(read)))),),
    )
    outer = Loop("_i", constant(0), constant(rows), (inner,))
    made = program(inner, grid=(("_i", constant(rows)),)) if task else program(outer, grid=())
    if not allowed(made):
        return
    before = np.arange(64, dtype=np.float32)
    apart = before.copy()
    others = {"w": before, "n": np.zeros(64, np.int64)}
    evaluate_tile(made, {"x": before, "o": apart, **others}, {})
    merged = in_place(made, {X: OUT})
    for tasks in (range(rows), reversed(range(rows))) if task else ((None,),):
        there = before.copy()
        for number in tasks:
            one = merged if number is None else alone(merged, number)
            evaluate_tile(one, {"x": before, "o": there, **others}, {})
        np.testing.assert_array_equal(there, apart)


def alone(made: TileProgram, number: int) -> TileProgram:
    """One task of a program."""
    body = tuple(
        Loop("_i", constant(number), constant(number + 1), (statement,)) for statement in made.body
    )
    return TileProgram(made.buffers, 1, (), body, (), made.checks, made.work)


def test_the_verifier_knows_what_tasks_may_read() -> None:
    scope = facts()
    sizes = {b.name: ROWS * COLUMNS * 4 for b in (X, OTHER, OUT)} | {"n": ROWS * COLUMNS * 8}
    samples = sample_sizes(scope, (), ())

    def wrong(made: TileProgram, findings: Findings) -> list[str]:
        return verify_tile(made, sizes, scope, samples, findings)

    findings = Findings()
    assert wrong(in_place(copies(PLACE, PLACE), {X: OUT}), findings) == []
    assert findings.counts["readers"] == {"proved": 1, "unknown": 0}
    mirrored = copies(COLUMNS * (ROWS - 1 - ROW) + COLUMN, PLACE)
    assert wrong(mirrored, Findings()) == []
    (found,) = wrong(in_place(mirrored, {X: OUT}), Findings())
    assert "a task reads what another one writes" in found
