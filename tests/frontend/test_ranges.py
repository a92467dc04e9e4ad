"""Ranges that a model implies: inferred where they are proved, else left to the call as guards."""

from __future__ import annotations

import random

import numpy as np
import pytest
from onnx import helper

from support.onnx_models import model, run, tensor
from tilewright.frontend.onnx import DEFAULT_HIGH, Dim, import_model
from tilewright.frontend.onnx.ranges import Alternatives, implied
from tilewright.frontend.onnx.report import DimensionReport
from tilewright.shape import (
    Guard,
    Scope,
    equal,
    less,
    less_equal,
    logical_and,
    logical_or,
    maximum,
    minimum,
    symbol,
)
from tilewright.support.errors import DimensionError

NODE = helper.make_node
N = symbol("n")


def reshaped(shape, wanted):
    nodes = [NODE("Reshape", ["x", "s"], ["y"])]
    weights = {"s": np.array(wanted)}
    return model(nodes, [tensor("x", shape)], [tensor("y", [None] * len(wanted))], weights=weights)


def blocks(size):
    nodes = [NODE("SpaceToDepth", ["x"], ["y"], blocksize=size)]
    return model(nodes, [tensor("x", [1, 3, "h", "w"])], [tensor("y", [None] * 4)])


@pytest.mark.parametrize(
    ("proto", "good", "bad"),
    [
        (reshaped(["n"], [-1, 80]), [(0,), (160,), (800,)], (100,)),
        (blocks(14), [(1, 3, 224, 28), (1, 3, 0, 14)], (1, 3, 224, 225)),
        (reshaped([1, "h", 8], [1, -1, 12, 8]), [(1, 384, 8), (1, 12, 8)], (1, 385, 8)),
    ],
)
def test_a_reshape_that_divides_a_dimension_leaves_the_guard_to_the_call(proto, good, bad):
    graph, report = import_model(proto)
    assert {(d.low, d.high, d.origin) for d in report.dimensions} == {(0, DEFAULT_HIGH, "default")}
    for shape in good:
        assert run(graph, x=np.ones(shape, np.float32))["y"].size == np.prod(shape)
    with pytest.raises(DimensionError):
        run(graph, x=np.ones(bad, np.float32))


def narrowed(condition, low=0, high=DEFAULT_HIGH):
    row = DimensionReport("n", "n", low, high, 1, "default", ())
    found = implied([Guard(condition, "a demand")], [row])
    assert all(f.reason == "a demand" for f in found.values())
    return None if not found else (found["n"].dim.low, found["n"].dim.high)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (less_equal(N, 512), (0, 512)),
        (less_equal(7, N * 2), (4, DEFAULT_HIGH)),
        (logical_and(less_equal(3, N), less(N, 9)), (3, 8)),
        (equal(N * 3, 12), (4, 4)),
        (equal(N, minimum(N, 100)), (0, 100)),
        (logical_or(equal(N, 1), equal(N, minimum(N, 100))), (0, 100)),
        (less_equal(N * N, 1000), (0, 31)),
        (less_equal(2, 100 // maximum(N, 1)), (0, 50)),
        (equal(N % 80, 0), None),
        (equal(N // 12 * 12, N), None),
        (logical_or(equal(N, 1), equal(N, 12)), (1, 12)),
        (less_equal(N, -1), None),
        (equal(N % 2 * N, 0), None),
    ],
)
def test_only_proved_ranges_are_inferred(condition, expected):
    assert narrowed(condition) == expected


@pytest.mark.parametrize("seed", range(60))
def test_a_random_condition_never_loses_a_size_that_fulfils_it(seed):
    generator = random.Random(seed)

    def part():
        a, b = generator.randint(-3, 5), generator.randint(-40, 40)
        c = generator.choice([2, 3, 8, 12])
        left = generator.choice([N, N * a, N // c, N % c, minimum(N, b), maximum(N, b), N * N])
        return generator.choice([less_equal, equal, less])(left, N * generator.randint(-1, 1) + b)

    for _ in range(20):
        join = generator.choice([logical_and, logical_or])
        condition = join(part(), part()) if generator.random() < 0.7 else part()
        if not condition.free_symbols:
            continue
        good = [n for n in range(61) if condition.evaluate({"n": n})]
        found = narrowed(condition, high=60)
        if found is not None and good:
            assert found[0] <= good[0]
            assert good[-1] <= found[1]


@pytest.mark.parametrize("seed", range(40))
def test_no_combination_that_fulfils_all_demands_is_lost(seed):
    generator, high = random.Random(seed), 30
    names = ("m", "n")
    m, n = (symbol(name) for name in names)

    def part():
        one = generator.choice([m, n])
        ends = sorted(generator.sample(range(high), 3))
        together = [equal(m * n % 7, 0), less_equal(m + n, ends[1]), equal(m * 2, n), less(m, n)]
        apart = logical_or(equal(one // 3, ends[0] // 3), equal(one, ends[1]), equal(one, ends[2]))
        return apart if generator.random() < 0.7 else generator.choice(together)

    scope = Scope()
    for name in names:
        scope.declare(name, 0, high)
    rows = [DimensionReport(name, name, 0, high, 1, "default", ()) for name in names]
    alternatives, ranges, demands = Alternatives(rows, scope), {}, []
    for _ in range(6):
        demands.append(part())
        ranges.update(alternatives.learn([Guard(demands[-1], "a demand")]))
    pairs = [(a, b) for a in range(high + 1) for b in range(high + 1)]
    good = [
        pair for pair in pairs
        if all(demand.evaluate(dict(zip(names, pair, strict=True))) for demand in demands)
    ]  # fmt: skip
    for place, name in enumerate(names):
        for pair in good:
            assert name not in ranges or ranges[name].dim.low <= pair[place]
            assert name not in ranges or pair[place] <= ranges[name].dim.high


def test_sizes_that_cannot_be_together_are_ruled_out():
    """What is added to seven by seven has seven rows or one, and whole blocks of 49 leave seven."""
    nodes = [NODE("Reshape", ["x", "s"], ["blocks"]), NODE("Add", ["x", "t"], ["y"])]
    weights = {"s": np.array([-1, 49]), "t": np.ones((7, 7), np.float32)}
    outputs = [tensor("blocks", [None, 49]), tensor("y", [None] * 2)]
    proto = model(nodes, [tensor("x", ["h", "w"])], outputs, weights=weights)
    graph, report = import_model(proto)
    rows = {row.name: (row.low, row.high, row.origin) for row in report.dimensions}
    assert rows["h"] == rows["w"] == (7, 7, "model")
    assert run(graph, x=np.ones((7, 7), np.float32))["blocks"].shape == (1, 49)
    with pytest.raises(DimensionError):
        run(graph, x=np.ones((1, 7), np.float32))


def test_the_report_says_which_demand_implies_a_range():
    nodes = [NODE("Slice", ["t", "zero", "n"], ["rows"]), NODE("Add", ["x", "rows"], ["y"])]
    nodes.insert(0, NODE("Shape", ["x"], ["n"]))
    weights = {"t": np.arange(512, dtype=np.float32), "zero": np.array([0])}
    proto = model(nodes, [tensor("x", ["s"])], [tensor("y", ["s"])], weights=weights)
    (row,) = import_model(proto).report.dimensions
    assert (row.high, row.origin) == (512, "model")
    assert row.reason.startswith('Add "y": ')


@pytest.mark.parametrize("names", [("_m0", "_n0"), ("_n", "_m"), ("_k", "_size.0.0"), ("_", "__")])
def test_names_of_the_compiler_are_no_names_of_dimensions(names):
    nodes = [NODE("MatMul", ["x", "w"], ["p"]), NODE("Relu", ["p"], ["y"])]
    inputs = [
        tensor("x", [names[0], 5]),
        tensor("w", [5, names[1]]),
        tensor("z", [f"2*{names[0]}"]),
    ]
    report = import_model(model(nodes, inputs, [tensor("y", [None] * 2)])).report
    assert not any(d.name.startswith("_") for d in report.dimensions)
    assert {d.text for d in report.dimensions} >= set(names)


def convolutions(*kernels, pads=0):
    """Convolutions with stride 2 along one axis, one behind the other."""
    names = ["x", *(f"y{i}" for i in range(len(kernels)))]
    nodes = [
        NODE("Conv", [names[i], f"w{i}"], [names[i + 1]], strides=[2], pads=[pads, pads])
        for i in range(len(kernels))
    ]
    weights = {f"w{i}": np.ones((4, 4, k), np.float32) for i, k in enumerate(kernels)}
    return model(nodes, [tensor("x", ["b", 4, "n"])], [tensor(names[-1], ["b", 4, None])],
                 weights=weights)  # fmt: skip


def test_every_window_of_a_chain_of_convolutions_fits():
    imported = import_model(convolutions(10, 3, 3))
    row = imported.report.dimensions[1]
    # One result of 3 needs 3 of the one before, these 7, and 7 windows of 10 with stride 2 need 22.
    assert (row.text, row.low, row.origin) == ("n", 22, "model")
    (y,) = run(imported.graph, x=np.ones((2, 4, 22), np.float32)).values()
    assert y.shape == (2, 4, 1)
    with pytest.raises(DimensionError, match="too small for a window of 10"):
        run(import_model(convolutions(10), dims={"n": Dim(0, 30)}).graph,
            x=np.ones((2, 4, 9), np.float32))  # fmt: skip


def test_empty_images_go_through_convolutions_with_enough_padding():
    imported = import_model(convolutions(3, 3, pads=1))
    assert imported.report.dimensions[1].low == 0
    (y,) = run(imported.graph, x=np.ones((2, 4, 0), np.float32)).values()
    assert y.shape == (2, 4, 0)


@pytest.mark.parametrize("dims", [None, {"t": Dim(0, 50)}])
def test_sizes_of_inputs_are_not_negative(dims):
    """A table of distances, between -(t - 1) and t - 1, is there for one position or more."""
    nodes = [NODE("Shape", ["d"], ["s"]), NODE("Reshape", ["d", "s"], ["y"])]
    inputs = [tensor("x", ["t"]), tensor("d", ["2*t - 1", 4])]
    graph, report = import_model(model(nodes, inputs, [tensor("y", [None, None])]), dims=dims)
    (row,) = report.dimensions
    assert (row.low, row.origin) == ((1, "model") if dims is None else (0, "given"))
    assert graph.scope.bounds(symbol("t")).low == 1
    assert graph.bindings == ()  # 2t - 1 is no -1 that Reshape would have to find out
    d = np.ones((5, 4), np.float32)
    assert np.array_equal(run(graph, x=np.ones(3, np.float32), d=d)["y"], d)
