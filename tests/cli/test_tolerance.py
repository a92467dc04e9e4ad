from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from support.small_models import encoder
from tilewright.bench.compare import first_line
from tilewright.bench.shapes import Budget, choose_shapes, random_shapes
from tilewright.bench.tolerance import FACTOR, tolerances
from tilewright.frontend.onnx import import_model
from tilewright.support.text import format_bytes, format_count, format_seconds

FLOAT, HALF, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64


def allowed(nodes: Sequence[onnx.NodeProto], kind: int, output: int, n: int) -> float:
    weight = np.ones((100, 8), helper.tensor_dtype_to_np_dtype(kind))
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", kind, ["n", 100])],
        [helper.make_tensor_value_info("y", output, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    opset = helper.make_opsetid("", 18)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    return tolerances(import_model(model).graph, {"n": n})["y"]


MATMUL = helper.make_node("MatMul", ["x", "w"], ["y"])


def test_one_product_is_as_deep_as_its_sum() -> None:
    assert allowed([MATMUL], FLOAT, FLOAT, 5) == pytest.approx(FACTOR * 2.0**-23 * 10)


def test_a_sum_over_a_dimension_depends_on_its_size() -> None:
    node = helper.make_node("ReduceSum", ["x"], ["y"])
    small, large = (allowed([node], FLOAT, FLOAT, n) for n in (1, 16))
    assert large == pytest.approx(4 * small)


def test_halves_are_coarser() -> None:
    assert allowed([MATMUL], HALF, HALF, 1) > 2.0**-10


@pytest.mark.parametrize("name", ["ScatterElements", "ScatterND"])
def test_updates_that_are_added_are_a_sum(name: str) -> None:
    # As many updates as the input has rows; without a reduction they are only moved.
    row = helper.make_node("Gather", ["x", "zero"], ["u"], axis=1)
    zero = helper.make_node("Constant", [], ["zero"], value_int=0)
    indices = helper.make_node("CastLike", ["u", "zero"], ["i"])
    shape = helper.make_node("Constant", [], ["one"], value_ints=[-1, 1])
    listed = helper.make_node("Reshape", ["i", "one"], ["j"])
    index = "j" if name == "ScatterND" else "i"
    data = helper.make_node("Constant", [], ["d"], value_floats=[1.0, 2.0])

    def at(n: int, **attributes: str) -> float:
        node = helper.make_node(name, ["d", index, "u"], ["y"], **attributes)
        nodes = [zero, shape, data, row, indices, listed, node]
        return allowed(nodes, FLOAT, FLOAT, n)

    assert at(1) == 0.0
    assert at(16, reduction="add") == pytest.approx(FACTOR * 2.0**-23 * 4)


def test_integers_must_be_equal() -> None:
    assert allowed([helper.make_node("ArgMax", ["x"], ["y"])], FLOAT, INT64, 1) == 0.0
    assert allowed([helper.make_node("Add", ["x", "x"], ["y"])], INT64, INT64, 1) == 0.0


@pytest.fixture(scope="module")
def model() -> tw.Model:
    return tw.compile(encoder(), dims={"batch": (1, 40, 4), "seq": (0, 300)})


def test_edges_respect_the_ranges(model: tw.Model) -> None:
    shapes = choose_shapes(model, "edge")
    assert {s["batch"] % 4 for s in shapes} == {0}
    assert {4, 40} <= {s["batch"] for s in shapes} <= set(range(4, 41))
    assert {0, 1, 16, 17, 300} <= {s["seq"] for s in shapes}


def test_the_largest_size_respects_the_budget(model: tw.Model) -> None:
    budget = Budget(bytes=20_000)
    shapes = choose_shapes(model, "edge", budget=budget)
    assert 0 < max(s["seq"] for s in shapes) < 300
    for sizes in shapes:
        memory = model.memory(**sizes)
        assert memory.total - memory.constants <= budget.bytes


def test_random_shapes_are_seeded(model: tw.Model) -> None:
    assert random_shapes(model, 9, 1, Budget()) == random_shapes(model, 9, 1, Budget())
    assert random_shapes(model, 9, 1, Budget()) != random_shapes(model, 9, 2, Budget())


def test_named_shapes(model: tw.Model) -> None:
    text = "batch=4,seq=0; seq=7,batch=8; batch=4,seq=0"
    assert choose_shapes(model, text) == ({"batch": 4, "seq": 0}, {"batch": 8, "seq": 7})
    with pytest.raises(tw.TilewrightError, match="no dimension time"):
        choose_shapes(model, "batch=4,seq=0,time=1")


def test_quantities() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1536, 340 << 20)] == [
        "0 B", "1023 B", "1.50 KiB", "340 MiB",
    ]  # fmt: skip
    assert [format_seconds(s) for s in (0, 1.2e-5, 0.0345, 6.7, 125)] == [
        "0.00 µs", "12.0 µs", "34.5 ms", "6.70 s", "2 min 5 s",
    ]  # fmt: skip
    assert (format_count(1, "kernel"), format_count(2, "kernel")) == ("1 kernel", "2 kernels")


def test_errors_in_one_line() -> None:
    assert first_line(ValueError("a\nb")) == "ValueError: a"
    assert first_line(ValueError()) == "ValueError: no message"
