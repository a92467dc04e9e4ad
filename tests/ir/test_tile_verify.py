"""The checks of tile programs: what is wrong is found, with the sizes at which it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tilewright.ir import tile_proofs, tile_samples
from tilewright.ir.dtype import DType
from tilewright.ir.stage_axis import Role, StageAxis
from tilewright.ir.tile import (
    Finish,
    Guarded,
    LetIndex,
    Literal,
    Load,
    Local,
    Loop,
    Product,
    Registers,
    Stage,
    Statement,
    Store,
    Sums,
    TileBuffer,
    TileProgram,
    TransposeBlock,
    View,
)
from tilewright.ir.tile_access import Axis
from tilewright.ir.tile_samples import sample_sizes
from tilewright.ir.tile_verify import Findings, unfilled, verify_tile
from tilewright.shape import (
    Expr,
    Interval,
    Scope,
    ceil_div,
    constant,
    equal,
    less,
    less_equal,
    logical_and,
    maximum,
    minimum,
    symbol,
)
from tilewright.shape.evaluation import evaluate_operation
from tilewright.shape.table import Operation

F32 = DType.FLOAT32
SOURCE, TARGET = TileBuffer("b0", F32), TileBuffer("o0", F32)
INDICES = TileBuffer("b1", DType.INT64)
ROWS, COLUMNS = symbol("rows"), symbol("columns")
ROW, COLUMN = symbol("_i"), symbol("_j")


def program(
    *body: Statement, grid: tuple[tuple[str, Expr], ...] = (("_i", ROWS),), scratch: int = 0
) -> TileProgram:
    buffers = (SOURCE, INDICES, TARGET)
    made = tuple(TileBuffer(f"s{n}", F32, True, COLUMNS) for n in range(scratch))
    return TileProgram(buffers, 1, grid, body, made, ("out of bounds",), constant(1))


def wrong(
    made: TileProgram, findings: Findings | None = None, results: Expr = ROWS * COLUMNS
) -> list[str]:
    """The problems of a program over [rows, columns] tensors, with so many results."""
    scope = Scope()
    rows, columns = scope.declare("rows", 0, 64), scope.declare("columns", 0, 64)
    sizes = {"b0": rows * columns * 4, "b1": rows * columns * 8, "o0": results * 4}
    samples = sample_sizes(scope, (), ())
    return verify_tile(made, sizes, scope, samples, findings or Findings())


def over_columns(*body: Statement, end: Expr = COLUMNS) -> Loop:
    return Loop("_j", constant(0), end, body)


COPY = Store(TARGET, ROW * COLUMNS + COLUMN, Load(SOURCE, ROW * COLUMNS + COLUMN))


def test_a_copy_is_proved_whole() -> None:
    findings = Findings()
    assert wrong(program(over_columns(COPY)), findings) == []
    assert not findings.unknown
    assert findings.proved == {"bounds": 2, "writers": 1}
    assert str(findings) == "bounds 2 proved and 0 unknown, writers 1 proved and 0 unknown"


def test_what_another_task_writes_is_read_in_a_later_round_only() -> None:
    grid = ("_t", ROWS), ("_j", COLUMNS)
    own = symbol("_t") * COLUMNS + COLUMN
    for other, is_right in (
        ((symbol("_t") - 1) * COLUMNS, True),
        ((symbol("_t") - 1) * COLUMNS + COLUMN, True),
        (symbol("_t") * COLUMNS, False),
        ((symbol("_t") + 1) * COLUMNS, False),
    ):
        there = logical_and(less_equal(0, other), less(other, ROWS * COLUMNS))
        read = Guarded(there, Load(TARGET, other), Literal(0.0, F32))
        made = program(Store(TARGET, own, read), grid=grid)
        found = wrong(replace(made, in_rounds=True))
        assert any("another one writes" in text for text in found) is not is_right, (other, found)
        assert any("another one writes" in text for text in wrong(made))


def test_an_access_outside_is_found_with_the_sizes_at_which_it_is() -> None:
    beyond = over_columns(COPY, end=COLUMNS + 1)
    found = wrong(program(beyond))
    assert any("is element" in text and "rows = " in text for text in found)
    before = Store(TARGET, ROW * COLUMNS + COLUMN, Load(SOURCE, ROW * COLUMNS + COLUMN - 1))
    assert any("read b0" in text for text in wrong(program(over_columns(before))))


def test_a_guard_makes_an_access_right() -> None:
    inside = logical_and(less_equal(1, COLUMN), less(COLUMN, COLUMNS + 1))
    read = Guarded(inside, Load(SOURCE, ROW * COLUMNS + COLUMN - 1), Literal(0.0, F32))
    findings = Findings()
    loop = over_columns(Store(TARGET, ROW * COLUMNS + COLUMN, read))
    assert wrong(program(loop), findings) == []
    assert findings.proved["bounds"] == 2
    late = Guarded(
        less_equal(0, COLUMN), Load(SOURCE, ROW * COLUMNS + COLUMN - 1), Literal(0.0, F32)
    )
    assert wrong(program(over_columns(Store(TARGET, ROW * COLUMNS + COLUMN, late))))


def test_an_index_that_is_checked_lies_inside() -> None:
    index = Load(INDICES, ROW * COLUMNS + COLUMN)
    read = Load(SOURCE, symbol("_g") * COLUMNS + COLUMN)
    body = (LetIndex("_g", index, ROWS, 0), Store(TARGET, ROW * COLUMNS + COLUMN, read))
    findings = Findings()
    assert wrong(program(over_columns(*body)), findings) == []
    assert not findings.unknown
    wide = (LetIndex("_g", index, ROWS + 1, 0), body[1])
    assert any("read b0" in text for text in wrong(program(over_columns(*wide))))
    silent = (replace(body[0], check=1), body[1])
    assert "the program has no message 1" in wrong(program(over_columns(*silent)))


def test_a_name_that_is_not_there() -> None:
    stray = Store(TARGET, ROW * COLUMNS + COLUMN, Local("_v", F32))
    assert any('the value "_v"' in text for text in wrong(program(over_columns(stray))))
    unknown = Store(TARGET, ROW * COLUMNS + symbol("_q"), Literal(0.0, F32))
    assert any('"_q"' in text for text in wrong(program(unknown)))
    # A variable has no meaning after its loop.
    after = program(over_columns(COPY), Store(TARGET, COLUMN, Literal(0.0, F32)))
    assert any('"_j"' in text for text in wrong(after))


def test_writing_what_is_no_result() -> None:
    stray = Store(SOURCE, ROW * COLUMNS + COLUMN, Literal(0.0, F32))
    assert any("is no result" in text for text in wrong(program(over_columns(stray))))


def test_scratch_is_written_before_it_is_read() -> None:
    scratch = TileBuffer("s0", F32, True, COLUMNS)
    write = over_columns(Store(scratch, COLUMN, Load(SOURCE, ROW * COLUMNS + COLUMN)))
    read = over_columns(Store(TARGET, ROW * COLUMNS + COLUMN, Load(scratch, COLUMN)))
    findings = Findings()
    assert wrong(program(write, read, scratch=1), findings) == []
    assert findings.proved["scratch"] == 1
    assert not findings.unknown
    assert any("nothing is written" in text for text in wrong(program(read, write, scratch=1)))


def test_scratch_that_is_written_in_part_counts_as_unknown() -> None:
    scratch = TileBuffer("s0", F32, True, COLUMNS)
    half = COLUMNS // 2
    write = over_columns(Store(scratch, COLUMN, Load(SOURCE, ROW * COLUMNS + COLUMN)), end=half)
    read = over_columns(Store(TARGET, ROW * COLUMNS + COLUMN, Load(scratch, COLUMN)))
    findings = Findings()
    assert wrong(program(write, read, scratch=1), findings) == []
    assert findings.unknown == {"scratch": 1}
    assert len(findings.open) == 1


# ---------------------------------------------------------------- memory between steps

FILLED = TileBuffer("t0", F32)


def left_out(*filling: Statement) -> list[str]:
    """What a step reads of as many elements as there are rows, after one that fills some."""
    scope = Scope()
    rows = scope.declare("rows", 0, 64)
    scope.declare("columns", 0, 64)
    samples = [*sample_sizes(scope, (), ()), {"rows": 3, "columns": 0}]
    fill = TileProgram(
        (SOURCE, INDICES, FILLED), 1, (), filling, (), ("out of bounds",), constant(1)
    )
    store = Store(TARGET, ROW, Load(FILLED, ROW))
    read = TileProgram((FILLED, TARGET), 1, (("_i", rows),), (store,), (), (), constant(1))
    return unfilled(read, FILLED, [(fill, FILLED)], scope, samples)


def test_memory_between_steps_is_filled_where_it_is_read() -> None:
    store = Store(FILLED, ROW, Load(SOURCE, ROW))
    whole = Loop("_i", constant(0), ROWS, (store,))
    halves = [Loop("_i", constant(0), ROWS // 2, (store,)), Loop("_i", ROWS // 2, ROWS, (store,))]
    assert left_out(whole) == [] == left_out(*halves)
    (text,) = left_out(halves[0])
    assert text.startswith("read t0[") and "element 0 is not written at rows = 1" in text
    (text,) = left_out(halves[1])
    assert "element 0 is not written" in text


def test_memory_is_filled_by_what_a_checked_position_leads_to() -> None:
    """A position of no elements is refused before anything is read."""
    position = LetIndex("_g", Load(INDICES, ROW), COLUMNS, 0)
    store = Store(FILLED, ROW, Load(SOURCE, ROW))
    assert left_out(Loop("_i", constant(0), ROWS, (position, store))) == []


def test_two_tasks_that_write_one_element() -> None:
    same = over_columns(Store(TARGET, COLUMN, Load(SOURCE, ROW * COLUMNS + COLUMN)))
    assert any("two tasks write element" in text for text in wrong(program(same)))
    overlapping = over_columns(Store(TARGET, ROW + COLUMN, Load(SOURCE, ROW * COLUMNS + COLUMN)))
    assert any("two tasks" in text for text in wrong(program(overlapping)))


def test_a_border_and_an_inside_of_one_task_are_its_own_region() -> None:
    first = Store(TARGET, ROW * COLUMNS + COLUMN, Literal(0.0, F32))
    border = over_columns(first, end=COLUMNS // 2)
    inside = Loop("_j", COLUMNS // 2, COLUMNS, (COPY,))
    findings = Findings()
    assert wrong(program(border, inside), findings) == []
    assert findings.proved["writers"] == 1


def test_a_transposition_by_squares() -> None:
    block = TransposeBlock(SOURCE, constant(0), COLUMNS, TARGET, constant(0), ROWS, ROWS, COLUMNS)
    findings = Findings()
    assert wrong(program(block, grid=()), findings) == []
    assert not findings.unknown
    wide = replace(block, target_row=ROWS + 1)
    assert any("write o0" in text for text in wrong(program(wide, grid=())))


def test_a_product_of_blocks_in_scratch() -> None:
    """It reads its operands, and writes its target up to the end of a cache line."""
    lines = ceil_div(COLUMNS, 16) * 16
    sums = TileBuffer("sums", F32, True, ROWS * lines)
    zero, one = constant(0), constant(1)
    left, right = View(SOURCE, zero, zero, zero), View(SOURCE, zero, one, zero)
    target = Sums(sums, zero, lines, zero)
    block = Product(F32, left, right, (zero, ROWS), (zero, COLUMNS), (zero, one), target)
    result = over_columns(Store(TARGET, ROW * COLUMNS + COLUMN, Load(sums, ROW * lines + COLUMN)))
    findings = Findings()
    assert wrong(program(block, result), findings) == []
    short = TileBuffer("sums", F32, True, ROWS * COLUMNS)
    narrow = replace(block, target=replace(target, buffer=short, row=COLUMNS))
    found = wrong(program(narrow, result))
    assert any("write sums" in text for text in found)
    beyond = replace(block, left=replace(left, row=COLUMNS + 1))
    assert any("read b0" in text for text in wrong(program(beyond, result)))
    unwritten = replace(block, target=replace(target, resume=one))
    assert any("nothing is written there before" in t for t in wrong(program(unwritten, result)))


def squares(depth: Expr = ROWS, width: Expr = COLUMNS) -> TileProgram:
    """The source transposed times the source: to rows of ``width`` results."""
    m, n = (StageAxis(stem, COLUMNS, constant(8), Role.PARALLEL) for stem in ("_m", "_n"))
    k = StageAxis("_k", depth, constant(16), Role.REDUCTION)
    left, right = (
        View(SOURCE, k.begin * COLUMNS + axis.begin, constant(1), COLUMNS) for axis in (m, n)
    )
    end = Store(TARGET, symbol("_m") * width + symbol("_n"), Local("accumulator", F32))
    finish = Finish((end,), Registers(8, 8, None))
    product = Product(F32, left, right, m.bounds, n.bounds, k.bounds, finish)
    body = Stage((m, n), (), (Stage((k,), (), (product,)),))
    return program(body, grid=((m.number, m.count), (n.number, n.count)))


def test_blocks_of_a_product_are_followed_as_a_whole() -> None:
    findings, size = Findings(), COLUMNS * COLUMNS
    assert wrong(squares(), findings, size) == []
    assert not findings.unknown
    deeper = wrong(squares(depth=ROWS + 1), None, size)
    assert any("read b0" in text for text in deeper)
    wider = wrong(squares(width=COLUMNS + 1), None, size)
    assert any("write o0" in text for text in wider)
    closer = wrong(squares(width=COLUMNS - 1), None, size)
    assert any("two tasks write" in text for text in closer)


def test_the_grid_has_the_blocks_of_parallel_stages() -> None:
    made = squares()
    (name, _), other = made.grid
    found = wrong(replace(made, grid=((name, ROWS), other)), None, COLUMNS * COLUMNS)
    assert any("the grid has not" in text for text in found)


@pytest.mark.parametrize("blocks", [constant(1), maximum(1, 256 // maximum(1, COLUMNS))])
def test_a_loop_that_never_runs_is_not_tried(blocks: Expr) -> None:
    """Its length may be 0 as a number, or by the range of a quotient alone."""
    end = ceil_div(constant(0), blocks)
    never = over_columns(Store(TARGET, ROW * COLUMNS + COLUMN + 99, Literal(0.0, F32)), end=end)
    assert wrong(program(never)) == []
    scratch = TileBuffer("s0", F32, True, COLUMNS)
    read = over_columns(Store(TARGET, ROW * COLUMNS + COLUMN, Load(scratch, COLUMN)), end=end)
    assert wrong(program(read, scratch=1)) == []


def test_of_what_happens_at_a_sample_no_proof_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a loop never runs takes long to say, and most accesses happen at the first sample."""
    asked: list[Expr] = []

    def is_empty(axis: Axis, scope: Scope) -> bool:
        asked.append(axis.extent)
        return False

    monkeypatch.setattr(tile_proofs, "_is_empty", is_empty)
    store = Store(TARGET, ROW * COLUMNS + COLUMN, Literal(0.0, F32))
    assert wrong(program(over_columns(store))) == []
    assert asked == []


def test_of_involved_extents_no_proof_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of one may ask for several bounds, which takes seconds and proves little."""
    asked: list[Expr] = []
    bounds = Scope.bounds

    def noted(scope: Scope, expression: Expr) -> Interval:
        asked.append(expression)
        return bounds(scope, expression)

    monkeypatch.setattr(Scope, "bounds", noted)
    least = minimum(COLUMNS // 2, maximum(COLUMNS // 3, minimum(COLUMNS // 5, COLUMNS // 7)))
    store = Store(TARGET, ROW * COLUMNS + COLUMN, Literal(0.0, F32))
    for end, is_asked in ((least - COLUMNS - 1, False), (COLUMNS // 2 - COLUMNS - 1, True)):
        asked.clear()
        assert wrong(program(over_columns(store, end=end))) == []
        assert any(expression == end for expression in asked) is is_asked


def test_sizes_that_are_tried_obey_the_facts() -> None:
    scope = Scope()
    n = scope.declare("n", 2, 40, 2)
    m = scope.declare("m", 0, None)
    scope.assume_equal(m, n + 1)
    samples = sample_sizes(scope, [less_equal(4, n), equal(n % 4, 0)], ("threads",))
    assert samples
    for sample in samples:
        assert sample["m"] == sample["n"] + 1
        assert sample["n"] >= 4
        assert sample["n"] % 4 == 0


def test_what_accesses_share_is_computed_once_for_each_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Involved offsets are tried at samples; large kernels have hundreds of them in few loops."""
    place = ROW * COLUMNS + COLUMN
    shared = minimum(place, maximum(ROW // 2, maximum(COLUMN // 3, minimum(ROW // 5, COLUMN // 7))))

    def evaluations(count: int) -> int:
        stores = [Store(TARGET, place, Load(SOURCE, shared // (n + 2))) for n in range(count)]
        findings, made = Findings(), list[Operation]()

        def counted(operation: Operation, values: Sequence[int]) -> int:
            made.append(operation)
            return evaluate_operation(operation, values)

        with monkeypatch.context() as patched:
            patched.setattr(tile_samples, "evaluate_operation", counted)
            assert wrong(program(over_columns(*stores)), findings) == []
        assert findings.unknown["bounds"] == count
        return len(made)

    assert evaluations(12) < 3 * evaluations(1)
