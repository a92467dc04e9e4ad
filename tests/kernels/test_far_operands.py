"""Operands of more than a second-level cache, of which products ask for what they read later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.graph_kit import F32, Space, apply, check
from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.prefetch import asks_for_results
from tilewright.ir.graph import node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Contract
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.stage_axis import NEVER
from tilewright.ir.tile import Loop, Statement, TileProgram
from tilewright.shape import constant
from tilewright.tile import lower
from tilewright.tile.products import dots
from tilewright.tile.products.contraction import lower_contraction
from tilewright.tile.products.frame import Blocking, RegisterTile
from tilewright.tile.products.split_depth import LowerVariant
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import THREADS, Variant

FAR = [
    dict(zip(("b", "m", "n", "k", THREADS), row, strict=True))
    for row in ((1, 37, 200, 1500, 2), (2, 37, 203, 700, 2))
]
NEAR = {"b": 2, "m": 9, "n": 70, "k": 5, THREADS: 2}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Counter[bool]:
    """How many lines the code asks for by way of the first cache, and of the second alone."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))  # so that all of it is written
    counts: Counter[bool] = Counter()
    write = Emitter.prefetch

    def counted(emitter: Emitter, *place: Any, near: bool = True, **options: Any) -> None:
        counts[near] += 1
        write(emitter, *place, near=near, **options)

    monkeypatch.setattr(Emitter, "prefetch", counted)
    return counts


def forced(monkeypatch: pytest.MonkeyPatch, variant: LowerVariant) -> list[TileProgram]:
    """The programs of contractions, each of which is computed in this way."""
    programs: list[TileProgram] = []

    def variants(
        kernel: Kernel, fresh: Callable[[], Lowering], tile: RegisterTile, *_: object
    ) -> tuple[Variant, ...]:
        steps = variant(kernel, fresh, tile)
        assert steps is not None
        programs.extend(step.program for step in steps if isinstance(step.program, TileProgram))
        return (Variant("forced", steps, constant(0)),)

    monkeypatch.setattr(lower, "contraction_variants", variants)
    return programs


def test_rows_of_columns_are_asked_for_a_block_ahead(
    monkeypatch: pytest.MonkeyPatch, asked: Counter[bool]
) -> None:
    """The last block of a matrix has a part of the rows; behind it is another matrix, or none."""
    blocking = Blocking(depth=104, whole=True)  # so that two blocks are in any second cache
    programs = forced(
        monkeypatch,
        lambda kernel, fresh, tile: (lower_contraction(kernel, fresh(), tile, blocking),),
    )
    space = Space()
    b, m, n, k = space.dimensions("b m n k")
    left, right = space.input("left", F32, b, m, k), space.input("right", F32, b, k, n)
    product = node(Contract(((0, 0),), ((2, 1),)), left, right)
    check(space.graph(product), [*FAR, NEAR], length=lambda sizes: sizes["k"])
    assert programs and asked[False] > 0
    for program in programs:
        nest = ProductNest.of(program)
        assert [nest.finish.ahead.evaluate(sizes) for sizes in (*FAR, NEAR)] == [1, 1, 0]
        depth = [nest.depth.block.evaluate(sizes) for sizes in FAR]
        assert all(d < s["k"] and s["k"] % d for d, s in zip(depth, FAR, strict=True))


def test_dot_products_ask_for_far_rows_by_way_of_the_second_cache(
    monkeypatch: pytest.MonkeyPatch, asked: Counter[bool]
) -> None:
    """Groups of rows, the last of which has a part of them, of any length; all count as far."""
    monkeypatch.setattr(dots, "FAR_SHARE", 1 << 62)
    programs = forced(monkeypatch, dots.lower_dots)
    space = Space()
    m, k = space.dimensions("m k")
    left, right = space.input("left", F32, m, k), space.input("right", F32, constant(5), k)
    product = node(Contract((), ((1, 1),)), left, right)
    cases = [{"m": m, "k": k} for m, k in ((203, 1301), (67, 4100), (3, 17), (1, 1))]
    check(space.graph(product), cases, length=lambda sizes: sizes["k"])
    assert programs and asked[False] > 0
    for program in programs:
        streamed = [loop.streamed for loop in _loops(program.body) if loop.may_stream]
        assert streamed and all(far.evaluate(cases[0]) for far in streamed)


def test_near_dot_products_ask_by_way_of_the_first_cache(
    monkeypatch: pytest.MonkeyPatch, asked: Counter[bool]
) -> None:
    programs = forced(monkeypatch, dots.lower_dots)
    space = Space()
    left, right = space.input("left", F32, 64, 48), space.input("right", F32, 5, 48)
    check(space.graph(node(Contract((), ((1, 1),)), left, right)), [{}], length=48)
    assert all(loop.streamed == NEVER for p in programs for loop in _loops(p.body))
    assert asked[True] > 0 and not asked[False]


def test_lines_of_results_are_asked_for_where_panels_leave_their_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows of a single panel follow each other in memory, which hardware sees."""
    programs = forced(
        monkeypatch, lambda kernel, fresh, tile: (lower_contraction(kernel, fresh(), tile),)
    )
    space = Space()
    m, n = space.dimensions("m n")
    left, right = space.input("left", F32, m, 3), space.input("right", F32, 3, n)
    check(space.graph(node(Contract((), ((1, 0),)), left, right)), [{"m": 5, "n": 2}], length=3)
    for nest in map(ProductNest.of, programs):
        width = nest.registers.columns
        asked = [
            asks_for_results(nest).evaluate({"m": rows, "n": columns, THREADS: 2})
            for rows, columns in ((1 << 20, width), (1 << 20, width + 1), (1, width + 1))
        ]
        assert asked == [0, 1, 0]


def test_results_past_the_caches_are_not_asked_for_but_what_is_added_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    programs = forced(
        monkeypatch, lambda kernel, fresh, tile: (lower_contraction(kernel, fresh(), tile),)
    )
    large, deep = {"m": 1 << 20, "n": 1 << 10, THREADS: 2}, {"m": 1 << 20, "n": 16, THREADS: 2}
    for added, expected in ((False, 0), (True, 1)):
        programs.clear()
        space = Space()
        m, n = space.dimensions("m n")
        left, right = space.input("left", F32, m, 70), space.input("right", F32, 70, n)
        result = node(Contract((), ((1, 0),)), left, right)
        if added:
            result = apply("add", result, space.input("other", F32, m, n))
        check(space.graph(result), [{"m": 5, "n": 3}], length=71)
        nests = [nest for nest in map(ProductNest.of, programs) if nest.finish.streamed != NEVER]
        assert nests
        for nest in nests:
            assert nest.finish.streamed.evaluate(large) == 1
            assert asks_for_results(nest).evaluate(large) == expected
            assert asks_for_results(nest).evaluate(deep | {"m": 1 << 14}) == 1


def _loops(body: tuple[Statement, ...]) -> list[Loop]:
    """All loops among statements, and inside of them."""
    found = [statement for statement in body if isinstance(statement, Loop)]
    return [*found, *(inner for loop in found for inner in _loops(loop.body))]
