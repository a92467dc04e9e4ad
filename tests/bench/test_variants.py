"""A program restricted to one variant of each kernel computes what it should, whichever that is."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tilewright.bench.operators import AnyGroup
from tilewright.bench.regret_cases import attention_text
from tilewright.bench.tables import (
    Form,
    TableCase,
    TableGroup,
    group_table_cases,
    make_table_case,
    make_table_problem,
    read_table,
    resize_case,
)
from tilewright.bench.variants import ONLY, Variants, chosen_variants, described, variants_of
from tilewright.compile import compile_stages

TWO = Form(
    "float[rows,7] x, float[rows,9] z",
    "int64[1] axes = {-1}",
    "s = ReduceSum <keepdims=0> (x, axes) t = ReduceMax <keepdims=0> (z, axes)",
)


def compiled(group: AnyGroup, threads: int = 1) -> Variants:
    model, _ = group.prepare()
    return Variants(compile_stages(model, dims=group.ranges, fallback="error").contents, threads)


def table_case(suite: str, name: str) -> TableCase:
    return next(c for c in read_table("memory") if (c.suite, c.name) == (suite, name))


def attention_case(rows: str, mask: str, heads: int, size: int, listed: str) -> TableCase:
    texts = attention_text(rows, mask, heads, size)
    return make_table_case("attention", rows, mask, *texts, listed)


CASES = [
    (TableCase("reductions", "two", "memory", {"rows": 5}, TWO, 0, 0), ("rows",), (1, 5, 17)),
    (table_case("softmax", "softmax, short rows"), ("rows",), (1, 16, 67)),
    (table_case("reduction", "sum, middle axis"), ("batch", "length"), (1, 2, 13)),
    (table_case("pooling", "max 3x3, padded"), ("height", "width"), (7, 13)),
    (attention_case("self", "causal", 2, 8, "batch=2 length=9"), ("length",), (1, 5, 33)),
    (attention_case("few rows", "mask of keys", 3, 17, "batch=1 steps=2 source=9"),
     ("steps", "source"), (1, 7, 31)),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("case", "axes", "sizes"), CASES, ids=lambda given: str(given)[:40])
def test_every_variant_computes_the_same(
    case: TableCase, axes: tuple[str, ...], sizes: tuple[int, ...]
) -> None:
    (group,) = group_table_cases((case,))
    wide = TableGroup(group.form, {axis: (1, 10**5) for axis in case.sizes}, group.cases)
    variants = compiled(wide)
    names = variants_of(variants.program)
    assert names
    for own in product(sizes, repeat=len(axes)):
        resized = resize_case(case, {**case.sizes, **dict(zip(axes, own, strict=True))})
        assert resized is not None
        problem = make_table_problem(resized)
        assert problem.reference is not None
        expected = problem.reference()
        for taken in product(*(range(len(own)) for own in names)):
            found = variants.model(taken)(*problem.inputs.values())
            outputs = found if isinstance(found, (list, tuple)) else [found]
            for output, wanted in zip(outputs, expected, strict=True):
                np.testing.assert_allclose(np.asarray(output), wanted, rtol=2e-5, atol=2e-5)


def test_a_restricted_program_has_no_choice_left() -> None:
    group = TableGroup(TWO, {"rows": (1, 10**5)}, ())
    variants = compiled(group)
    chosen = chosen_variants(variants.program, {"rows": 3}, threads=1)
    assert chosen == variants.chosen({"rows": 3})
    assert len(chosen) == len(variants.program.choices) == 2
    model = variants.model(chosen)
    assert model is variants.model(chosen)
    assert variants_of(model.program) == ()
    assert described(model.program, ()) == ONLY
    first, second = variants_of(variants.program)
    assert described(variants.program, (1, 0)) == f"{first[1]}, {second[0]}"
