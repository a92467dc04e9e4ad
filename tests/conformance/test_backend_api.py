"""The ONNX Backend API: models, single nodes, structural inputs, and the runner of the suite."""

from __future__ import annotations

import unittest

import numpy as np
import onnx
import onnx.backend.test
import pytest
from onnx import helper

from tilewright import onnx_backend
from tilewright.support.errors import InputError, TilewrightError, UnsupportedError

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def open_shape(name, kind=onnx.TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, None)


def reduction():
    """ReduceSum over axes that are an input; the rank of x is not stated."""
    graph = helper.make_graph(
        [helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)],
        "g",
        [open_shape("x"), helper.make_tensor_value_info("axes", onnx.TensorProto.INT64, [1])],
        [open_shape("y")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def test_a_node_by_itself():
    node = helper.make_node("Sub", ["a", "b"], ["c"])
    assert np.array_equal(onnx_backend.run_node(node, [X, X[0]])[0], X - X[0])
    squeeze = helper.make_node("Squeeze", ["a"], ["b"], axes=[0])
    assert onnx_backend.run_node(squeeze, [X[None]], opset_version=11)[0].shape == (2, 3)


def test_structural_inputs_and_open_ranks_compile_when_they_are_known():
    prepared = onnx_backend.prepare(reduction())
    for axis in (0, 1, 0):
        assert np.allclose(prepared.run([X, np.array([axis])])[0], X.sum(axis))
    assert np.allclose(prepared.run([X[None], np.array([2])])[0], X[None].sum(2))


def test_inputs_by_name_alone_and_too_many():
    node = helper.make_node("Neg", ["x"], ["y"])
    shape = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", "m"])
    graph = helper.make_graph([node], "g", [shape], [open_shape("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    for given in ([X], {"x": X}, X):
        assert np.array_equal(onnx_backend.run_model(model, given)[0], -X)
    with pytest.raises(InputError):
        onnx_backend.run_model(model, [X, X])


def test_devices():
    assert onnx_backend.supports_device("CPU")
    assert not onnx_backend.supports_device("CUDA:0")
    with pytest.raises(UnsupportedError):
        onnx_backend.prepare(reduction(), "CUDA")


def test_what_is_no_model():
    with pytest.raises(TilewrightError):
        onnx_backend.prepare(onnx.ModelProto())
    with pytest.raises(TilewrightError):
        onnx_backend.run_node(helper.make_node("Nothing", ["x"], ["y"]), [X])


@pytest.mark.slow
def test_the_runner_of_the_suite_accepts_the_backend():
    suite = onnx.backend.test.BackendTest(onnx_backend.TilewrightBackend, __name__)
    suite.include("test_(split|reduce_sum|sequence|cumsum|relu|gather)_.*")
    cases = suite.test_cases
    result = unittest.TestResult()
    for case in cases.values():
        unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    assert result.testsRun > 50
    assert not result.failures and not result.errors
