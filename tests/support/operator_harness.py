"""Runs one operator's fission rule and compares it with the reference.

:func:`fission` turns a node into a primitive graph whose inputs have a symbol for every axis;
:func:`run` evaluates it, checking the type and the symbolic shape of *every* node on the way, and
the guards; :func:`check_node` does both and compares with ``onnx.reference``. One graph can be run
on inputs of several sizes: that is what symbolic rules are for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tilewright.frontend.onnx.legacy import OLDEST_RULES, Call, flattened, modernise
from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import evaluate
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Constant, Input, Opaque, Project
from tilewright.ops.record import ImportFacts, RuleContext, apply_rule, find_operator
from tilewright.shape import Expr, Scope, constant
from tilewright.support.errors import DimensionError

Array = np.ndarray[Any, Any]


class NoOperator(Exception):
    """No rule is registered for the operator at that opset."""


def fission(
    op_type: str,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    opset: int,
    outputs: int = 1,
    domain: str = "",
    constants: Collection[int] = (),
    fixed: Collection[int] = (),
    symbolic: bool = True,
) -> Graph:
    """The primitive graph of one node, with inputs ``x0``, ``x1``, … and outputs ``y0``, ….

    Operands named in ``constants`` become constants with the contents given, others inputs of the
    type and rank given; with ``symbolic`` every axis of an input gets a symbol ``x0_1`` ≥ 0, except
    those of the operands in ``fixed``, whose sizes are known (vectors that decide sizes).
    """
    scope = Scope()
    operands = [
        None
        if value is None
        else _operand(scope, index, value, index in constants, symbolic and index not in fixed)
        for index, value in enumerate(inputs)
    ]
    facts = ImportFacts(scope)
    call = Call(op_type, tuple(operands), dict(attributes or {}))
    if domain == "" and opset < OLDEST_RULES:
        call, opset = modernise(call, opset), OLDEST_RULES
    row = find_operator(domain, call.name, opset)
    if row is None:
        raise NoOperator(f"{domain}::{op_type} at opset {opset}")
    given, restore = flattened(call)
    context = RuleContext(
        call.name, given, call.attributes, outputs, opset, f'{op_type} "test"', facts
    )
    results = [restore(result) for result in apply_rule(row, context)]
    assert len(results) == outputs, f"the rule gave {len(results)} outputs, not {outputs}"
    named = tuple((f"y{index}", result) for index, result in enumerate(results))
    entries = tuple(o for o in operands if o is not None and isinstance(o.primitive, Input))
    return Graph(op_type, entries, named, scope, tuple(facts.bindings), tuple(facts.guards))


def _operand(scope: Scope, index: int, value: Array, known: bool, symbolic: bool) -> Node:
    dtype = DType.of(value.dtype)
    if known:
        return node(Constant.of(value, dtype))
    shape: list[Expr] = []
    for axis, size in enumerate(value.shape):
        shape.append(scope.declare(f"x{index}_{axis}") if symbolic else constant(size))
    return node(Input(f"x{index}", dtype, tuple(shape)))


def run(graph: Graph, inputs: Sequence[Array | None]) -> list[Array]:
    """The outputs of the graph, after checks of all nodes' types and shapes and of the guards.

    Raises ``DimensionError`` where a guard fails.
    """
    arrays = {f"x{index}": value for index, value in enumerate(inputs) if value is not None}
    symbols: dict[str, int] = {}
    for entry in graph.inputs:
        assert isinstance(entry.primitive, Input)
        for size, actual in zip(entry.shape, arrays[entry.primitive.name].shape, strict=True):
            if not size.is_constant:
                symbols[str(size)] = actual
    bound = tuple((f"binding{i}", b.source) for i, b in enumerate(graph.bindings))
    sources = evaluate(replace(graph, outputs=bound), arrays, symbols) if bound else {}
    environment = dict(symbols)
    for binding, value in zip(graph.bindings, sources.values(), strict=True):
        environment.update(zip(binding.symbols, map(int, value.reshape(-1)), strict=True))
    for guard in graph.guards:
        if guard.condition.evaluate(environment) == 0:
            raise DimensionError(guard.message)
    every = tuple((str(i), n) for i, n in enumerate(graph.nodes()))
    values = evaluate(replace(graph, outputs=every + graph.outputs), arrays, symbols)
    for name, current in every:
        _check_type(current, values[name], environment)
    return [values[name] for name, _ in graph.outputs]


def _check_type(current: Node, value: Array, environment: Mapping[str, int]) -> None:
    if isinstance(current.primitive, Opaque | Project):
        return
    sizes = tuple(size.evaluate(environment) for size in current.shape)
    assert np.shape(value) == sizes, f"{current} has shape {np.shape(value)}, derived: {sizes}"
    assert value.dtype == current.dtype.numpy, f"{current} has type {value.dtype}"


def reference(
    op_type: str,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    opset: int,
    outputs: int = 1,
    domain: str = "",
) -> list[Array]:
    """What ``onnx.reference`` computes for the node."""
    names = ["" if value is None else f"x{index}" for index, value in enumerate(inputs)]
    results = [f"y{index}" for index in range(outputs)]
    made = onnx.helper.make_node(op_type, names, results, domain=domain, **dict(attributes or {}))
    feeds = {name: value for name, value in zip(names, inputs, strict=True) if value is not None}
    entries = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for name, value in feeds.items()
    ]
    graph = onnx.helper.make_graph(
        [made], "node", entries, [onnx.ValueInfoProto(name=name) for name in results]
    )
    imports = [onnx.helper.make_opsetid(domain, opset)]
    model = onnx.helper.make_model(graph, opset_imports=imports)
    with np.errstate(all="ignore"):
        return [np.asarray(y) for y in ReferenceEvaluator(model).run(None, feeds)]


def tolerance(dtype: np.dtype[Any], length: int = 1) -> float:
    """Relative error allowed for a result of ``dtype`` that sums ``length`` numbers."""
    if dtype.kind == "f" or dtype == ml_dtypes.bfloat16:
        return float(ml_dtypes.finfo(dtype).eps) * 4 * max(1, length)
    return 0.0


def compare(actual: Array, expected: Array, *, length: int = 1, relative: float | None = None,
            absolute: float = 0.0, name: str = "y") -> None:  # fmt: skip
    """Assert equal types, shapes and (within the tolerance) contents.

    Floats may differ by ``relative`` (by default from type and ``length``) of the larger of the
    element and 1, or of the largest finite element for sums.
    """
    assert actual.dtype == expected.dtype, f"{name}: type {actual.dtype}, not {expected.dtype}"
    assert actual.shape == expected.shape, f"{name}: shape {actual.shape}, not {expected.shape}"
    if not expected.size:
        return
    share = tolerance(expected.dtype, length) if relative is None else relative
    if share == 0.0:
        np.testing.assert_array_equal(actual, expected, err_msg=name)
        return
    left, right = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.abs(right[np.isfinite(right)])
    scale = float(finite.max()) if finite.size and length > 1 else 1.0
    bound = absolute or share * min(1.0, scale) if length == 1 else absolute or share * scale
    np.testing.assert_allclose(left, right, rtol=share, atol=bound, err_msg=name)


def check_node(
    op_type: str,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any] | None = None,
    opset: int = 28,
    outputs: int = 1,
    symbolic: bool = True,
    *,
    domain: str = "",
    constants: Collection[int] = (),
    fixed: Collection[int] = (),
    expected: Sequence[Array] | None = None,
    length: int = 1,
    relative: float | None = None,
    also: Sequence[Sequence[Array | None]] = (),
) -> Graph:
    """Fission, run and compare a node with the reference, or with ``expected``.

    Operands in ``constants`` are constants (others are graph inputs, with ``symbolic`` of unknown
    sizes but for those in ``fixed``). ``length`` is the number of terms in the longest sum. The
    same graph is then run on, and compared for, the inputs of other sizes in ``also``. Gives the
    graph.
    """
    graph = fission(
        op_type, inputs, attributes, opset=opset, outputs=outputs, domain=domain,
        constants=constants, fixed=fixed, symbolic=symbolic,
    )  # fmt: skip
    for values in (inputs, *also):
        wanted = expected
        if wanted is None or values is not inputs:
            wanted = reference(
                op_type, values, attributes, opset=opset, outputs=outputs, domain=domain
            )
        for index, (own, other) in enumerate(zip(run(graph, values), wanted, strict=True)):
            compare(own, np.asarray(other), length=length, relative=relative, name=f"y{index}")
    return graph
