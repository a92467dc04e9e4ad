from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.bench.operators import (
    Problem,
    aligned_array,
    build_model,
    group_cases,
    make_problem,
    make_weight,
    random_array,
)
from tilewright.bench.peers.operators import OPERATOR_PEERS, load_peers, prepare_peer
from tilewright.bench.suites import parse_shapes
from tilewright.support.errors import InputError

PRODUCTS = [
    ("M=7,N=9,K=5", "right"),
    ("M=7,N=9,K=5,trans_a=1,trans_b=1", "right"),
    ("M=7,N=9,K=5,trans_b=1", "left"),
    ("M=7,N=9,K=5,trans_a=1,trans_b=1", "none"),
    ("B=3,M=4,N=6,K=5,trans_a=1,trans_b=1", "right"),
]
CONVOLUTIONS = [
    "N=2,C=4,H=7,W=6,K=6,R=3,S=2,pad_h=1,stride_w=2",
    "N=1,C=4,H=9,W=9,K=6,R=3,S=3,pad_h=2,pad_w=1,dilation=2,groups=2",
]


def problem_of(text: str, constant: str) -> Problem:
    (group,) = group_cases(parse_shapes(text), constant)
    return make_problem(group, group.cases[0], make_weight(group))


def expected(problem: Problem) -> np.ndarray[Any, Any]:
    """The result in f64, from the definition."""
    sizes = problem.case.sizes
    wide = {name: array.astype(np.float64) for name, array in problem.inputs.items()}
    weight = None if problem.weight is None else problem.weight.astype(np.float64)
    if problem.case.kind == "conv":
        assert weight is not None
        return convolve(wide["x"], weight, sizes)
    for name in wide:
        if sizes[f"trans_{name}"]:
            wide[name] = wide[name].swapaxes(-1, -2)
    left = weight if problem.constant == "left" else wide["a"]
    right = weight if problem.constant == "right" else wide["b"]
    assert left is not None and right is not None
    return left @ right


def convolve(x: Any, w: Any, sizes: Any) -> np.ndarray[Any, Any]:
    """A convolution tap by tap."""
    pads = ((0, 0), (0, 0), (sizes["pad_h"],) * 2, (sizes["pad_w"],) * 2)
    padded, step = np.pad(x, pads), sizes["dilation"]
    rows = (padded.shape[2] - step * (sizes["R"] - 1) - 1) // sizes["stride_h"] + 1
    columns = (padded.shape[3] - step * (sizes["S"] - 1) - 1) // sizes["stride_w"] + 1
    result = np.zeros((sizes["N"], sizes["K"], rows, columns))
    inputs, outputs = sizes["C"] // sizes["groups"], sizes["K"] // sizes["groups"]
    for k in range(sizes["K"]):
        first = k // outputs * inputs
        for r in range(sizes["R"]):
            for s in range(sizes["S"]):
                part = padded[:, first : first + inputs, step * r :, step * s :]
                part = part[:, :, :: sizes["stride_h"], :: sizes["stride_w"]]
                part = part[:, :, :rows, :columns]
                result[:, k] += np.einsum("nchw,c->nhw", part, w[k, :, r, s])
    return result


def assert_close(actual: np.ndarray[Any, Any], problem: Problem) -> None:
    wanted = expected(problem)
    assert actual.shape == wanted.shape == problem.case.shapes[2]
    # Terms are below a quarter, and at most 24 are added up in f32.
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=24 * 0.25 * 2.0**-22)


@pytest.mark.slow
@pytest.mark.parametrize(("text", "constant"), [*PRODUCTS, *((c, "right") for c in CONVOLUTIONS)])
def test_the_models_compute_what_the_case_says(text: str, constant: str) -> None:
    (group,) = group_cases(parse_shapes(text), constant)
    weight = make_weight(group)
    problem = make_problem(group, group.cases[0], weight)
    inputs = tuple(problem.inputs.values())
    dynamic = build_model(group, group.extents, weight)
    model = tilewright.compile(dynamic, dims=dict(group.ranges), fallback="error")
    assert {d.name: (d.low, d.high) for d in model.dimensions} == dict(group.ranges)
    assert_close(model(*inputs), problem)


@pytest.mark.peers
@pytest.mark.parametrize("name", OPERATOR_PEERS)
@pytest.mark.parametrize(("text", "constant"), [*PRODUCTS, *((c, "right") for c in CONVOLUTIONS)])
def test_the_peers_compute_the_same(name: str, text: str, constant: str) -> None:
    problem = problem_of(text, constant)
    prepared = prepare_peer(load_peers([name])[name], problem, 1)
    if problem.weight is None and name == "onednn":
        assert prepared is None
        return
    assert prepared is not None
    prepared.call()
    (result,) = prepared.outputs()
    assert_close(result, problem)


def test_an_unknown_peer() -> None:
    with pytest.raises(InputError, match="no peer called 'tvm'"):
        load_peers(["tvm"])


def test_a_gemm_shares_all_but_the_batch_like_axis() -> None:
    cases = parse_shapes("M=5,N=8,K=4;M=9,N=8,K=4;M=5,N=7,K=4")
    right = group_cases(cases, "right")
    assert [(dict(g.fixed), dict(g.ranges), len(g.cases)) for g in right] == [
        ({"N": 8, "K": 4, "trans_a": 0, "trans_b": 0}, {"M": (1, 9)}, 2),
        ({"N": 7, "K": 4, "trans_a": 0, "trans_b": 0}, {"M": (1, 5)}, 1),
    ]
    left = group_cases(cases, "left")
    assert [dict(g.ranges) for g in left] == [{"N": (1, 8)}, {"N": (1, 8)}]
    assert [dict(g.ranges) for g in group_cases(cases, "none")] == [{"M": (1, 9), "N": (1, 8)}]


def test_scores_and_contexts_of_attention_are_one_group_each() -> None:
    scores = "B=2,M=3,N=3,K=64,trans_b=1;B=4,M=64,N=64,K=64,trans_b=1"
    contexts = "B=2,M=3,N=64,K=3;B=4,M=64,N=64,K=64"
    nt, nn = group_cases(parse_shapes(f"{scores};{contexts}"), "right")
    assert dict(nt.ranges) == {"B": (1, 4), "M": (1, 64), "N": (1, 64)}
    assert nt.fixed["K"] == 64
    assert dict(nn.ranges) == {"B": (1, 4), "M": (1, 64), "K": (1, 64)}
    assert nn.fixed["N"] == 64
    assert nt.constant == nn.constant == "none"


def test_a_convolution_is_dynamic_in_batch_and_image() -> None:
    text = "N={},C=3,H={},W=9,K=4,R=5,S=3,pad_h=1"
    (group,) = group_cases(parse_shapes(f"{text.format(1, 20)};{text.format(8, 30)}"), "left")
    # An image of three rows and two of padding holds the filter of five rows once.
    assert dict(group.ranges) == {"N": (1, 8), "H": (3, 30), "W": (3, 9)}
    assert group.constant == "right"


def test_data_is_seeded_and_aligned() -> None:
    array = random_array((3, 5), "seed")
    assert np.array_equal(array, random_array((3, 5), "seed"))
    assert not np.array_equal(array, random_array((3, 5), "other"))
    assert array.dtype == np.float32 and -0.5 <= array.min() < array.max() <= 0.5
    assert all(aligned_array((size,)).ctypes.data % 64 == 0 for size in range(1, 9))


@pytest.mark.peers
def test_a_long_convolution_is_tried_once_per_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    onednn = importlib.import_module("tilewright.bench.peers.onednn")
    times = iter((0.0, 1.0, 2.0, 2.05, 2.05, 2.1, 2.1, 2.13, 2.13, 2.2))
    monkeypatch.setattr(onednn.time, "perf_counter", lambda: next(times))
    calls: list[int] = []
    assert onednn._seconds(lambda: calls.append(1)) == 1.0
    assert len(calls) == 1
    assert onednn._seconds(lambda: calls.append(1)) == pytest.approx(0.03)
    assert len(calls) == 5
