"""Bodies of If, Loop and Scan as models of their own, to be compiled like any other.

An operator with bodies is an opaque node whose payload holds it whole. Each body becomes a model
whose inputs are its parameters and what it reads of the graph around it; constants among these stay
constants. Sizes that no turn of a loop changes keep one name; others may be anything in every turn,
which is found by importing the body. Start with :func:`control_flow`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx

from tilewright.frontend.onnx.control import BODIES
from tilewright.frontend.onnx.dims import Dim
from tilewright.frontend.onnx.opaque import names_in, unused
from tilewright.frontend.onnx.report import Fallback, ImportReport
from tilewright.frontend.onnx.tensor_types import data_type
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node
from tilewright.ir.primitives import Constant, Opaque, TensorType
from tilewright.shape import Expr, Scope
from tilewright.support.errors import TilewrightError

FIRST_SCAN = 9  # the opset from which on Scan has no batch axis of its own
HIGHEST = (1 << 31) - 1  # of sizes for which nothing else is known


@dataclass(frozen=True)
class Body:
    """One body: a model, and what it is compiled with.

    ``parameters`` are the inputs that the operator gives it, in order; ``captured`` the others, and
    which input of the operator each one is. ``results`` are the types of its outputs; ``sizes``
    says for names in these which input of the operator has that size, and along which axis.
    ``report`` says what is in it.
    """

    model: bytes
    dims: Mapping[str, Dim]
    constants: Mapping[str, np.ndarray[Any, Any]]
    parameters: tuple[str, ...]
    captured: tuple[tuple[str, int], ...]
    results: tuple[TensorType, ...]
    sizes: Mapping[str, tuple[int, int]]
    report: ImportReport


@dataclass(frozen=True)
class ControlFlow:
    """An operator with bodies; see ``runtime.control`` for the fields that are handed on.

    ``operands`` says for each operand which input of the operator it is, None for one that is left
    out, and ``outputs`` which of the operator's outputs there are.
    """

    operator: str
    operands: tuple[int | None, ...]
    outputs: tuple[int, ...]
    attributes: Mapping[str, Any]
    bodies: tuple[Body, ...]


# import_body(model, dims, constants): the graph of a body, and what is said of it.
ImportBody = Callable[
    [bytes, Mapping[str, Dim], Mapping[str, np.ndarray[Any, Any]]], tuple[Graph, ImportReport]
]


def with_bodies(graph: Graph, report: ImportReport, import_body: ImportBody) -> ImportReport:
    """The report with operators counted as compiled whose bodies can be, and with what these hold.

    ``report`` lists all operators with bodies among those that run on the reference.
    """
    for call in graph.nodes():
        if not isinstance(call.primitive, Opaque):
            continue
        flow = control_flow(call, graph.scope, import_body)
        if flow is None:
            continue
        where, fallbacks = graph.label(call), list(report.fallbacks)
        own = [f for f in fallbacks if (f.operator, f.where) == (flow.operator, where)]
        for fallback in own[:1]:
            fallbacks.remove(fallback)
        compiled = dict(report.compiled)
        inner = [(n, c) for body in flow.bodies for n, c in body.report.compiled.items()]
        for name, count in ((flow.operator, 1), *inner):
            compiled[name] = compiled.get(name, 0) + count
        for body in flow.bodies:
            fallbacks += [
                Fallback(f.operator, f"{where} > {f.where}", f.reason)
                for f in body.report.fallbacks
            ]
        report = replace(
            report, compiled=dict(sorted(compiled.items())), fallbacks=tuple(fallbacks)
        )
    return report


def control_flow(call: Node, scope: Scope, import_body: ImportBody) -> ControlFlow | None:
    """The bodies of an opaque node as models; None for other operators, and where one cannot be.

    Bodies that handle sequences, optionals or strings cannot, nor can states that change their type
    from turn to turn.
    """
    primitive = call.primitive
    assert isinstance(primitive, Opaque)
    if primitive.operator not in BODIES:
        return None
    if not all(t.dtype.is_native for t in (*primitive.outputs, *(i.type for i in call.inputs))):
        return None
    payload = onnx.load_model_from_string(primitive.payload)
    item = payload.graph.node[0]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in item.attribute}
    opsets = {o.domain: o.version for o in payload.opset_import}
    if primitive.operator == "Scan" and opsets.get("", FIRST_SCAN) < FIRST_SCAN:
        return None
    names = [given.name for given in payload.graph.input]
    operands = tuple(names.index(name) if name else None for name in item.input)
    outer = [(name, index) for index, name in enumerate(names) if name not in item.input]
    given = [None if index is None else call.inputs[index] for index in operands]
    bodies: list[Body] = []
    for name in BODIES[primitive.operator]:
        writer = _Writer(payload, attributes[name], call.inputs, outer, scope, import_body)
        body = writer.body(primitive.operator, given, attributes)
        if body is None:
            return None
        bodies.append(body)
    plain = {n: v for n, v in attributes.items() if n not in BODIES[primitive.operator]}
    present = (o.name for o in payload.graph.output)
    outputs = tuple(list(item.output).index(name) for name in present)
    return ControlFlow(primitive.operator, operands, outputs, plain, tuple(bodies))


@dataclass
class _Writer:
    """Writes the model of one body."""

    payload: onnx.ModelProto
    graph: onnx.GraphProto
    inputs: Sequence[Node]
    outer: Sequence[tuple[str, int]]
    scope: Scope
    import_body: ImportBody
    names: dict[Expr, str] = field(default_factory=dict[Expr, str])
    dims: dict[str, Dim] = field(default_factory=dict[str, Dim])
    free: set[str | int] = field(default_factory=set[str | int])  # sizes that turns change

    def body(
        self, operator: str, operands: Sequence[Node | None], attributes: Mapping[str, Any]
    ) -> Body | None:
        """The body of this operator, whose states are the operands that it hands back."""
        parameters = list(_parameters(operator, operands, attributes))
        if len(parameters) != len(self.graph.input):
            return None
        states = {"Loop": slice(2, None), "Scan": slice(0, -_scanned(attributes))}.get(operator)
        sizes = [self._sizes(kind.shape) for kind in parameters]
        while True:
            body = self._attempt(parameters, sizes)
            if body is None or states is None:
                return body
            carried = range(len(parameters))[states]
            first, known = int(operator == "Loop"), len(self.free)
            results = body.results[first : first + len(carried)]
            for number, result in zip(carried, results, strict=True):
                own = sizes[number]
                if (result.dtype, len(result.shape)) != (parameters[number].dtype, len(own)):
                    return None  # a state that changes its type
                for axis, made in enumerate(result.shape):
                    if own[axis] not in self.free and str(made) != str(own[axis]):
                        own[axis] = self._fresh()
            if len(self.free) == known:
                return body

    def _attempt(
        self, parameters: Sequence[TensorType], sizes: Sequence[Sequence[str | int]]
    ) -> Body | None:
        """The body with these sizes; None where it cannot be imported."""
        model = onnx.ModelProto()
        model.CopyFrom(self.payload)
        del model.graph.node[:]
        model.graph.CopyFrom(self.graph)
        model.graph.name = self.graph.name or "body"
        del model.graph.input[:]
        names = [given.name for given in self.graph.input]
        for name, kind, own in zip(names, parameters, sizes, strict=True):
            _add_input(model, name, kind.dtype, own)
        constants: dict[str, np.ndarray[Any, Any]] = {}
        captured: list[tuple[str, int]] = []
        for name, index in self._read():
            outer = self.inputs[index]
            _add_input(model, name, outer.dtype, self._sizes(outer.shape))
            if isinstance(outer.primitive, Constant):
                constants[name] = outer.primitive.array
            else:
                captured.append((name, index))
        _name_outputs(model)
        data = model.SerializeToString(deterministic=True)
        dims = {name: dim for name, dim in self.dims.items() if _is_used(model, name)}
        try:
            graph, report = self.import_body(data, dims, constants)
        except TilewrightError:
            return None
        results = tuple(made.type for _, made in graph.outputs)
        if not all(kind.dtype.is_native for kind in results):
            return None
        inputs = tuple(names), tuple(captured)
        return Body(data, dims, constants, *inputs, results, self._places(), report)

    def _places(self) -> dict[str, tuple[int, int]]:
        """Where the sizes that have names can be seen from outside."""
        return {
            self.names[size]: (index, axis)
            for index, outer in enumerate(self.inputs)
            for axis, size in enumerate(outer.shape)
            if size in self.names
        }

    def _read(self) -> Iterator[tuple[str, int]]:
        """What is read of the graph around the operator, by this body or one inside of it."""
        used = names_in([self.graph])
        return ((name, index) for name, index in self.outer if name in used)

    def _sizes(self, shape: Sequence[Expr]) -> list[str | int]:
        """Names for the sizes that are not known, the same for equal ones."""
        out: list[str | int] = []
        for size in shape:
            if size.is_constant:
                out.append(size.value)
                continue
            if size not in self.names:
                bounds = self.scope.bounds(size)
                low, high = max(0, bounds.low or 0), bounds.high
                self.names[size] = f"n{len(self.names)}"
                self.dims[self.names[size]] = Dim(low, HIGHEST if high is None else high)
            out.append(self.names[size])
        return out

    def _fresh(self) -> str:
        """The name of a size that may be anything in every turn."""
        name = f"v{len(self.dims)}"
        self.dims[name] = Dim(0, HIGHEST)
        self.free.add(name)
        return name


def _parameters(
    operator: str, operands: Sequence[Node | None], attributes: Mapping[str, Any]
) -> Iterator[TensorType]:
    """The types of what the operator gives to its body."""
    if operator == "Loop":
        yield TensorType(DType.INT64, ())
        yield TensorType(DType.BOOL, ())
        yield from (operand.type for operand in operands[2:] if operand is not None)
    if operator == "Scan":
        count = _scanned(attributes)
        present = [operand.type for operand in operands if operand is not None]
        yield from present[:-count]
        axes = attributes.get("scan_input_axes", [0] * count)
        for kind, axis in zip(present[-count:], axes, strict=True):
            place = axis % len(kind.shape)
            yield TensorType(kind.dtype, (*kind.shape[:place], *kind.shape[place + 1 :]))


def _scanned(attributes: Mapping[str, Any]) -> int:
    return int(attributes.get("num_scan_inputs", 0))


def _add_input(model: onnx.ModelProto, name: str, dtype: DType, sizes: Sequence[str | int]) -> None:
    kind = onnx.helper.make_tensor_type_proto(data_type(dtype), sizes)
    model.graph.input.append(onnx.helper.make_value_info(name, kind))


def _name_outputs(model: onnx.ModelProto) -> None:
    """Outputs of their own: a body may hand back a parameter, or one value twice."""
    taken = names_in([model.graph])
    outputs = [(output.name, output.type) for output in model.graph.output]
    del model.graph.output[:]
    for index, (name, kind) in enumerate(outputs):
        own = unused(f"result_{index}", taken)
        model.graph.node.append(onnx.helper.make_node("Identity", [name], [own]))
        kind.tensor_type.ClearField("shape")
        model.graph.output.append(onnx.helper.make_value_info(own, kind))


def _is_used(model: onnx.ModelProto, name: str) -> bool:
    return any(
        size.dim_param == name
        for given in model.graph.input
        for size in given.type.tensor_type.shape.dim
    )
