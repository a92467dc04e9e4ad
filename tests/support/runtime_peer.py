"""Compares rules of operators that onnx does not know with what ONNX Runtime computes.

:func:`check_contributed` makes one graph of a node, whose sizes are symbols, and runs it on inputs
of several sizes; :func:`runtime` is the answer of ONNX Runtime for the same node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from support.operator_harness import Array, compare, fission, run
from tilewright.ir.graph import Graph

DOMAIN = "com.microsoft"
MOST_OFF = 0.02  # of the elements may be off by a unit, where any may


def model_of(
    op_type: str,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any] | None = None,
    outputs: int = 1,
    domain: str = DOMAIN,
    constants: Collection[int] = (),
) -> onnx.ModelProto:
    """A model of one node with inputs ``x0``, … of unknown sizes and outputs ``y0``, …."""
    names = ["" if value is None else f"x{index}" for index, value in enumerate(inputs)]
    results = [f"y{index}" for index in range(outputs)]
    made = helper.make_node(op_type, names, results, domain=domain, **dict(attributes or {}))
    given = [(i, value) for i, value in enumerate(inputs) if value is not None]
    graph = helper.make_graph(
        [made],
        "node",
        [
            helper.make_tensor_value_info(
                f"x{i}",
                helper.np_dtype_to_tensor_dtype(value.dtype),
                [f"x{i}_{axis}" for axis in range(value.ndim)],
            )
            for i, value in given
            if i not in constants
        ],
        [onnx.ValueInfoProto(name=name) for name in results],
        [onnx.numpy_helper.from_array(value, f"x{i}") for i, value in given if i in constants],
    )
    others = [(DOMAIN, 1), ("ai.onnx.ml", 3)]
    imports = [helper.make_opsetid("", 17), *(helper.make_opsetid(*o) for o in others)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def runtime(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """What ONNX Runtime computes for a model, without changing it first."""
    onnxruntime: Any = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [np.asarray(y) for y in session.run(None, dict(feeds))]


def check_contributed(
    op_type: str,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any] | None = None,
    outputs: int = 1,
    *,
    domain: str = DOMAIN,
    constants: Collection[int] = (),
    fixed: Collection[int] = (),
    length: int = 1,
    relative: float | None = None,
    units: int = 0,
    symbolic: bool = True,
    also: Sequence[Sequence[Array | None]] = (),
) -> Graph:
    """Fission, run and compare a node with ONNX Runtime, as ``check_node`` does with onnx.

    Integers must be equal, or, where ONNX Runtime's own kernels round differently, a few of them
    within ``units``.
    """
    graph = fission(
        op_type, inputs, attributes, opset=1, outputs=outputs, domain=domain,
        constants=constants, fixed=fixed, symbolic=symbolic,
    )  # fmt: skip
    for values in (inputs, *also):
        model = model_of(op_type, values, attributes, outputs, domain, constants)
        feeds = {f"x{i}": v for i, v in enumerate(values) if v is not None and i not in constants}
        expected = runtime(model, feeds)
        for index, (own, other) in enumerate(zip(run(graph, values), expected, strict=True)):
            if units and own.dtype == other.dtype and own.shape == other.shape:
                own = _forgiven(own, other, units)
            compare(own, other, length=length, relative=relative, name=f"y{index}")
    return graph


def _forgiven(own: Array, other: Array, units: int) -> Array:
    """``own``, or ``other`` where no element is farther off than ``units`` and few are at all."""
    off = np.abs(own.astype(np.int64) - other.astype(np.int64))
    few = np.count_nonzero(off) <= MOST_OFF * off.size + 1
    return other if few and off.max(initial=0) <= units else own


def byte_range(dtype: Any) -> tuple[int, int]:
    """The least and the greatest byte to multiply, both included; of seven bits with a sign.

    ONNX Runtime adds two products of bytes in 16 bits on processors without VNNI, which saturates
    where those with a sign have all eight.
    """
    limits = np.iinfo(dtype)
    return (limits.min // 2, limits.max // 2) if limits.min else (limits.min, limits.max)
