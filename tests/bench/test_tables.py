"""The suites that come with tilewright: their models are valid, and right at small sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import tilewright
from tilewright.bench import table_reference
from tilewright.bench.contender import as_arrays
from tilewright.bench.peers.operators import load_peers, prepare_peer
from tilewright.bench.suites import sample
from tilewright.bench.tables import (
    TABLES,
    TableCase,
    group_table_cases,
    make_table_problem,
    read_table,
)

pytestmark = pytest.mark.sampled(6)

CASES = tuple(case for table in TABLES for case in read_table(table))
FORMS = tuple({case.form: case for case in CASES}.values())
FAMILIES = tuple({case.suite: case for case in FORMS}.values())
SMALL = {
    **{"batch": 2, "rows": 5, "others": 3, "columns": 4, "length": 6, "count": 3},
    **{"height": 9, "width": 8, "depth": 3, "past": 5, "source": 7},
}


def small(case: TableCase) -> TableCase:
    return replace(case, sizes={axis: SMALL[axis] for axis in case.sizes})


def name_of(case: TableCase) -> str:
    return f"{case.suite}: {case.name}"


def case_of(suite: str, name: str, **sizes: int) -> TableCase:
    (found,) = [c for c in CASES if (c.suite, c.name, c.sizes) == (suite, name, sizes)]
    return found


def assert_right(actual: tuple[np.ndarray, ...], case: TableCase) -> None:
    problem = make_table_problem(small(case))
    assert problem.reference is not None
    expected = problem.reference()
    assert len(actual) == len(expected) == len(problem.results)
    for own, wanted, room in zip(actual, expected, problem.results.values(), strict=True):
        assert (own.dtype, own.shape) == (room.dtype, wanted.shape) and wanted.size
        scale = np.abs(wanted.astype(np.float64)).max() if own.dtype.kind == "f" else 0.0
        # Some dozens of roundings of f32 at these sizes.
        np.testing.assert_allclose(own, wanted, rtol=0, atol=32 * 2.0**-23 * scale)


def assert_compiles_and_is_right(case: TableCase) -> None:
    (group,) = group_table_cases([small(case)])
    model, make_problem = group.prepare()
    compiled = tilewright.compile(model, dims=dict(group.ranges), fallback="error")
    inputs = make_problem(group.cases[0]).inputs
    assert_right(as_arrays(compiled(*inputs.values())), case)


def test_there_are_enough_of_them() -> None:
    memory = [case for case in CASES if case.kind == "memory"]
    attention = [case for case in CASES if case.kind == "attention"]
    assert len(memory) >= 120 and len(attention) >= 30
    assert len({(c.suite, c.name, c.form, tuple(c.sizes.items())) for c in CASES}) == len(CASES)
    assert all(case.sizes and case.bytes < 1 << 28 for case in CASES)


@pytest.mark.slow
@pytest.mark.parametrize("case", FORMS, ids=name_of)
def test_the_models_are_valid(case: TableCase) -> None:
    fixed, dynamic = case.form.build(SMALL), case.form.build({})
    for model in (fixed, dynamic):
        onnx.checker.check_model(model, full_check=True)
    assert {value.name for value in fixed.graph.output} == {v.name for v in dynamic.graph.output}
    axes = [d for value in dynamic.graph.input for d in value.type.tensor_type.shape.dim]
    assert {dim.dim_param for dim in axes if dim.dim_param} == set(case.sizes)


def test_bytes_are_inputs_and_results_once() -> None:
    assert case_of("reduction", "sum, last axis", rows=11).bytes == 4 * (11 * 769 + 11)
    layer = case_of("normalisation", "layer, last axis", batch=1, length=11)
    assert layer.bytes == 4 * (2 * 11 * 769 + 2 * 769)
    assert case_of("casting", "f32 to f16", rows=3).bytes == 3 * 1021 * (4 + 2)
    assert case_of("arg-reduction", "argmax, last axis", rows=5).bytes == 5 * (1003 * 4 + 8)
    pooled = case_of("pooling", "max 3x3, stride 2, padded", batch=1, height=112, width=112)
    assert pooled.bytes == 4 * 64 * (112 * 112 + 56 * 56)
    joined = case_of("joining", "concat, leading axis", rows=11, others=13)
    assert joined.bytes == 2 * 4 * 513 * (11 + 13)
    grouped = case_of("normalisation", "group, channels last", batch=4, height=29, width=31)
    assert grouped.bytes == 4 * (2 * 4 * 29 * 31 * 96 + 2 * 96)


def test_of_a_table_only_the_rows_that_are_picked_are_read() -> None:
    case = case_of("gathering", "rows of a constant table", batch=1, length=9)
    assert case.bytes == 9 * 8 + 2 * 9 * 769 * 4


def test_operations_are_those_of_both_products() -> None:
    scores, context = 2 * 12 * 128 * 128 * 64, 2 * 12 * 128 * 64 * 128
    for suite in ("self", "operator", "causal", "causal operator"):
        case = case_of(suite, "12 heads of 64", batch=1, length=128)
        assert case.flops == scores + context
        assert case.bytes == 4 * 4 * 12 * 128 * 64
    decode = case_of("decode", "32 heads of 128", batch=1, past=1021)
    assert decode.flops == 4 * 32 * 1021 * 128
    assert all((case.flops > 0) == (case.kind == "attention") for case in CASES)


def test_cases_of_one_form_are_compiled_once() -> None:
    groups = group_table_cases(CASES)
    assert len(groups) == len(FORMS) and sum(len(g.cases) for g in groups) == len(CASES)
    pooling = [g for g in groups if g.cases[0].name == "max 2x2, stride 2"]
    assert [dict(g.ranges) for g in pooling] == [
        {"batch": (1, 8), "height": (7, 113), "width": (7, 111)}
    ]


def test_a_sample_spreads_over_the_bytes_of_each_family() -> None:
    chosen = [case for case in sample(CASES, 2) if case.suite == "transposition"]
    every = sorted(case.bytes for case in CASES if case.suite == "transposition")
    assert sorted(case.bytes for case in chosen) == [every[0], every[-1]]


def test_scattered_indices_are_distinct_and_others_in_range() -> None:
    scattered = make_table_problem(case_of("scattering", "rows by tuples", rows=1021, count=17))
    indices = scattered.inputs["indices"]
    assert len(set(indices[:, 0].tolist())) == 17 and indices.max() < 1021
    hot = make_table_problem(case_of("one-hot", "last axis", rows=1021))
    assert hot.inputs["indices"].min() >= 0 and hot.inputs["indices"].max() < 1001


def uses_whole_arrays(case: TableCase) -> bool:
    names = {operator.__name__ for operator in table_reference.WHOLE}
    return any(node.op_type in names for node in case.form.parse({}).graph.node)


@pytest.mark.parametrize("case", [c for c in FORMS if uses_whole_arrays(c)], ids=name_of)
def test_whole_arrays_give_what_onnx_gives(case: TableCase) -> None:
    problem = make_table_problem(small(case))
    assert problem.reference is not None
    if case.name == "elements, last axis" and case.suite == "gathering":
        pytest.skip("onnx's own wants as many indices as there are elements")
    own = ReferenceEvaluator(onnx.ModelProto.FromString(problem.model)).run(
        None, dict(problem.inputs)
    )
    for wanted, result in zip(own, problem.reference(), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", FAMILIES, ids=name_of)
def test_one_form_of_each_family_is_right(case: TableCase) -> None:
    assert_compiles_and_is_right(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in FORMS if c not in FAMILIES], ids=name_of)
def test_every_form_is_right(case: TableCase) -> None:
    assert_compiles_and_is_right(case)


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.parametrize("peer", ["onnxruntime", "openvino", "torch"])
def test_the_peers_are_right(peer: str) -> None:
    module = load_peers([peer])[peer]
    for case in FORMS:
        prepared = prepare_peer(module, make_table_problem(small(case)), 1)
        assert prepared is not None
        assert_right(prepared.outputs(), case)
