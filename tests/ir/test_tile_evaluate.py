"""The numpy meaning of tile programs: what it refuses, and what random kernels seldom have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.ir.dtype import DType
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.stage_axis import Role, StageAxis
from tilewright.ir.tile import (
    Accumulator,
    Apply,
    Finish,
    Guarded,
    IndexValue,
    Let,
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
    neutral_element,
)
from tilewright.ir.tile_evaluate import CheckFailed, evaluate_tile
from tilewright.ir.tile_values import OutsideBuffer
from tilewright.shape import constant, less_equal, symbol

F32, I64 = DType.FLOAT32, DType.INT64
X, OUT = TileBuffer("x", F32), TileBuffer("o", F32)
N, AT = symbol("n"), symbol("_i")
ONE = constant(1)


def program(*body: Statement, scratch: tuple[TileBuffer, ...] = ()) -> TileProgram:
    return TileProgram((X, OUT), 1, (), body, scratch, ("index {0} of {1}",), constant(1))


def run(made: TileProgram, x: np.ndarray, results: int) -> np.ndarray:
    out = np.full(results, np.nan, np.float32)
    evaluate_tile(made, {"x": x, "o": out}, {"n": x.size})
    return out


def loop(*body: Statement, end: int | None = None, independent: bool = False) -> Loop:
    last = N if end is None else constant(end)
    return Loop("_i", constant(0), last, body, independent=independent)


def test_a_loop_that_reads_what_it_wrote_runs_in_turn() -> None:
    """A running sum: every element is read one iteration after it was written."""
    first = Store(OUT, constant(0), Load(X, constant(0)))
    following = Apply("add", (Load(OUT, AT - 1), Load(X, AT)), F32)
    made = program(first, Loop("_i", ONE, N, (Store(OUT, AT, following),)))
    x = np.arange(1, 6, dtype=np.float32)
    np.testing.assert_array_equal(run(made, x, 5), np.cumsum(x))


@pytest.mark.parametrize("kind, want", [("sum", 10.0), ("product", 24.0), ("maximum", 4.0)])
def test_accumulators_carry_on_in_loops_of_one_nest(kind: str, want: float) -> None:
    """Over two rows of two elements."""
    element = Load(X, symbol("_j") * 2 + AT)
    inner = replace(loop(end=2), accumulators=(Accumulator("_s", kind, element),))
    outer = Accumulator("_s", kind, Local("_s", F32))
    nest = Loop("_j", constant(0), constant(2), (inner,), (outer,))
    made = program(nest, Store(OUT, constant(0), Local("_s", F32)))
    assert run(made, np.arange(1, 5, dtype=np.float32), 1)[0] == want


def test_a_reduction_of_nothing_is_its_neutral_element() -> None:
    reduction = replace(loop(), accumulators=(Accumulator("_s", "maximum", Load(X, AT)),))
    made = program(reduction, Store(OUT, constant(0), Local("_s", F32)))
    assert run(made, np.zeros(0, np.float32), 1)[0] == -np.inf
    assert neutral_element("maximum", F32).name == "identity:maximum"


def test_only_the_chosen_side_of_a_guard_reads() -> None:
    """The last element has no neighbour."""
    value = Guarded(less_equal(AT, N - 2), Load(X, AT + 1), Literal(-1.0, F32))
    made = program(loop(Store(OUT, AT, value)))
    got = run(made, np.arange(4, dtype=np.float32), 4)
    np.testing.assert_array_equal(got, [1, 2, 3, -1])


def test_an_access_beside_its_buffer_is_refused() -> None:
    made = program(loop(Store(OUT, AT, Load(X, AT + 1))))
    with pytest.raises(OutsideBuffer, match="element 4 of the 4 of x"):
        run(made, np.zeros(4, np.float32), 4)


def test_scratch_that_nothing_has_written_is_no_number() -> None:
    scratch = TileBuffer("s", F32, scratch=True, elements=N)
    made = program(loop(Store(OUT, AT, Load(scratch, AT))), scratch=(scratch,))
    assert np.isnan(run(made, np.zeros(3, np.float32), 3)).all()


@pytest.mark.parametrize("position, want", [(-1, 3.0), (1, 1.0)])
def test_positions_from_the_end(position: int, want: float) -> None:
    index = LetIndex("_at", IndexValue(constant(position)), N, 0)
    made = program(index, Store(OUT, constant(0), Load(X, symbol("_at"))))
    assert run(made, np.arange(4, dtype=np.float32), 1)[0] == want


def test_a_position_outside_ends_the_program_with_its_message() -> None:
    made = program(loop(LetIndex("_at", IndexValue(AT + 2), N, 0), Store(OUT, AT, Load(X, AT))))
    with pytest.raises(CheckFailed) as caught:
        run(made, np.zeros(4, np.float32), 4)
    assert (caught.value.check, caught.value.details) == (0, (4, 4))


def test_a_limit_may_vary_where_the_position_stands_still() -> None:
    """Position -1 of 1, 2 and 3 elements; the message says the first limit that is not met."""

    def made(position: int, smallest: int) -> TileProgram:
        index = LetIndex("_at", IndexValue(constant(position)), AT + smallest, 0)
        store = Store(OUT, AT, Load(X, symbol("_at")))
        return program(loop(index, store, end=3, independent=True))

    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(run(made(-1, 1), x, 3), [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(run(made(1, 2), x, 3), [1.0, 1.0, 1.0])
    with pytest.raises(CheckFailed) as caught:
        run(made(-3, 2), x, 3)
    assert caught.value.details == (-3, 2)


def test_a_value_is_computed_once_in_a_block() -> None:
    """It was read before its place was written, and stays as it was."""
    shared = Load(OUT, constant(0))
    made = program(
        Store(OUT, constant(0), Literal(1.0, F32)),
        Let("_v", shared),
        Store(OUT, constant(0), Literal(2.0, F32)),
        Store(OUT, constant(1), shared),
    )
    np.testing.assert_array_equal(run(made, np.zeros(1, np.float32), 2), [2, 1])


def test_products_add_to_what_is_there_if_they_resume() -> None:
    """A row by a column of three, twice; beside the columns nothing is said."""
    sums = TileBuffer("s", F32, scratch=True, elements=constant(16))
    zero = constant(0)

    def product(resume: int) -> Product:
        return Product(
            F32, View(X, zero, constant(3), ONE), View(X, zero, ONE, ONE),
            (zero, ONE), (zero, ONE), (zero, constant(3)),
            Sums(sums, zero, constant(16), constant(resume)),
        )  # fmt: skip

    ends = (Store(OUT, zero, Load(sums, zero)), Store(OUT, ONE, Load(sums, ONE)))
    made = program(product(0), product(1), *ends, scratch=(sums,))
    got = run(made, np.array([1, 2, 3], np.float32), 2)
    assert got[0] == 28
    assert np.isnan(got[1])


def blocked(depth: int) -> TileProgram:
    """x by x transposed, of 5 rows in blocks of 2; along the depth in blocks of 3."""
    m, n, k = (
        StageAxis(stem, constant(extent), constant(block), role)
        for stem, extent, block, role in (
            ("_m", 5, 2, Role.PARALLEL),
            ("_n", 5, 2, Role.PARALLEL),
            ("_k", depth, 3, Role.REDUCTION),
        )
    )
    packed = TileBuffer("s", F32, scratch=True, elements=constant(6))
    i, j = symbol("_i"), symbol("_j")
    copied = Load(X, j * depth + i)
    store = Store(packed, (i - k.begin) * 2 + j - n.begin, copied)
    load = Loop("_i", *k.bounds, (Loop("_j", *n.bounds, (store,)),))
    end = Store(OUT, symbol("_m") * 5 + symbol("_n"), Local("accumulator", F32))
    product = Product(
        F32,
        View(X, m.begin * depth + k.begin, constant(depth), ONE),
        View(packed, constant(0), ONE, constant(2)),
        m.bounds, n.bounds, k.bounds,
        Finish((end,), Registers(2, 2, None)),
    )  # fmt: skip
    counted = Store(OUT, constant(25) + symbol(m.number) * 3 + symbol(n.number), Literal(1.0, F32))
    stage = Stage((m, n), (), (Stage((k,), (load,), (product,)),), (counted,))
    grid = ((m.number, m.count), (n.number, n.count))
    return replace(program(stage, scratch=(packed,)), grid=grid)


def test_a_stage_loads_and_computes_block_by_block_and_stores_in_the_end() -> None:
    x = np.arange(35, dtype=np.float32).reshape(5, 7)
    got = run(blocked(7), x, 34)
    np.testing.assert_array_equal(got[:25].reshape(5, 5), x @ x.T)
    np.testing.assert_array_equal(got[25:], 1)


def test_sums_over_no_depth_are_stored_too() -> None:
    np.testing.assert_array_equal(run(blocked(0), np.zeros(1, np.float32), 34)[:25], 0)


def test_a_product_of_no_rows_or_columns_leaves_nothing() -> None:
    """Sums of blocks that a shape leaves empty: nothing is read or written."""
    sums = TileBuffer("s", F32, scratch=True, elements=constant(16))
    zero, three = constant(0), constant(3)
    for rows, columns in ((zero, ONE), (ONE, zero), (zero, zero)):
        made = program(
            Product(
                F32, View(X, zero, three, ONE), View(X, zero, ONE, ONE),
                (zero, rows), (zero, columns), (zero, three), Sums(sums, zero, constant(16), zero),
            ),
            Store(OUT, zero, Load(sums, zero)),
            scratch=(sums,),
        )  # fmt: skip
        assert np.isnan(run(made, np.ones(3, np.float32), 1)[0])


def test_the_product_of_a_nest_is_found() -> None:
    made = blocked(7)
    nest = ProductNest.of(made)
    assert [size.value for size in (nest.m, nest.n, nest.k)] == [5, 5, 7]
    assert nest.is_packing and not nest.is_transposing and nest.batch == ()
    assert ProductNest.find(program(*made.body, Let("_v", Literal(0.0, F32)))) is None


def test_rows_of_bytes_become_words_of_which_what_is_missing_is_zero() -> None:
    """Three rows of five columns, two of which lie beyond the block."""
    x, out = TileBuffer("x", DType.INT8), TileBuffer("o", DType.INT8)
    words = TileBuffer("s", DType.INT8, True, constant(12))
    sizes = [constant(size) for size in (0, 5, 0, 4, 3, 3)]
    block = TransposeBlock(x, *sizes[:2], words, *sizes[2:])
    place = symbol("_i")
    copy = Loop("_i", constant(0), constant(12), (Store(out, place, Load(words, place)),))
    made = replace(program(block, copy), buffers=(x, out), scratch=(words,))
    data, result = np.arange(1, 16, dtype=np.int8), np.full(16, -1, np.int8)
    evaluate_tile(made, {"x": data, "o": result}, {})
    want = [1, 6, 11, 0, 2, 7, 12, 0, 3, 8, 13, 0, -1, -1, -1, -1]
    np.testing.assert_array_equal(result, want)


def test_several_elements_are_transposed_as_one_of_the_target() -> None:
    x, out = TileBuffer("x", DType.INT8), TileBuffer("o", DType.INT32)
    sizes = [constant(size) for size in (1, 3, 0, 2, 2, 2)]
    block = TransposeBlock(x, *sizes[:2], out, *sizes[2:])
    made = replace(program(block), buffers=(x, out))
    words, result = np.arange(6, dtype=np.int32) << 9, np.zeros(4, np.int32)
    evaluate_tile(made, {"x": words.view(np.int8), "o": result}, {})
    np.testing.assert_array_equal(result >> 9, [1, 4, 2, 5])
