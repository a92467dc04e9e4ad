"""The walk over a model's nodes: each becomes primitives, or an opaque call to the reference.

:func:`import_model` reads the model, settles its dimensions and runs an :class:`_Importer` over the
graph. A node is tried in this order: a function of the model, a fission rule, the function by which
ONNX defines the operator, the reference. Read :meth:`_Importer.node` first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import onnx
import onnx_ir

from tilewright.frontend.onnx.bodies import with_bodies
from tilewright.frontend.onnx.boundary import THIRD_PARTY, third_party
from tilewright.frontend.onnx.built_in import built_in_step
from tilewright.frontend.onnx.control import Trial, result_types
from tilewright.frontend.onnx.dims import Dim, Implied
from tilewright.frontend.onnx.finish import deciding_inputs, finished
from tilewright.frontend.onnx.functions import bind, callees_first, definition
from tilewright.frontend.onnx.gradient import gradient
from tilewright.frontend.onnx.interface import check_output, make_inputs, negative_sizes
from tilewright.frontend.onnx.opaque import OpaqueCall, opaque_nodes
from tilewright.frontend.onnx.ranges import Alternatives, relied_on
from tilewright.frontend.onnx.report import Fallback, ImportReport
from tilewright.frontend.onnx.rules import by_rule
from tilewright.frontend.onnx.scan import captured_values, is_random, require_known, subgraphs
from tilewright.frontend.onnx.sequence_bodies import by_tensors
from tilewright.frontend.onnx.sequences import by_elements, left_over, made_inside
from tilewright.frontend.onnx.source import Source, read_model
from tilewright.frontend.onnx.state import CallFrame, State, Use
from tilewright.frontend.onnx.tensor_types import type_proto
from tilewright.frontend.onnx.values import (
    array_node,
    attribute_value,
    constant_value,
    normal_opsets,
    serialised,
    stated_type,
    tensor_array,
)
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Input, Opaque, TensorType
from tilewright.ir.symbolic import integer_contents
from tilewright.ops.schema import disagreement, find_schema
from tilewright.support.errors import (
    InputError,
    InternalError,
    InvalidModelError,
    TilewrightError,
    UnsupportedError,
)

DEEPEST = 48  # calls of functions inside of functions
MOST_NODES = 1_000_000  # those of functions once for each call: few nodes may make many


class Imported(NamedTuple):
    """The graph of a model, and what importing found out about it."""

    graph: Graph
    report: ImportReport


class StructuralInputs(UnsupportedError):
    """Inputs that decide the number of axes, and so have to be constants.

    ``inputs`` names them.
    """

    def __init__(self, cause: UnsupportedError, inputs: tuple[str, ...]) -> None:
        self.inputs = inputs
        listing = ", ".join(inputs)
        way = "give these inputs values with constants= (--constants on the command line), or make"
        hint = f"{way} them constants of the model: {listing}"
        super().__init__(cause.message, where=cause.where, hint=hint)


def import_model(
    source: Source,
    *,
    dims: Mapping[str, Dim] | None = None,
    fallback: str = "reference",
    constants: Mapping[str, np.ndarray] | None = None,
) -> Imported:
    """Turn an ONNX model into a primitive graph with symbolic shapes.

    ``dims`` gives ranges for the model's named dimensions. Others get 0..``DEFAULT_HIGH``, or what
    is left of it by demands of the model, such as a table of positions that ends at 512.
    ``fallback`` is "reference" or "error": with the latter, operators that would run on the
    reference are an ``UnsupportedError`` that lists them all. ``constants`` are inputs whose values
    are fixed. Raises only subclasses of ``TilewrightError``.
    """
    if fallback not in ("reference", "error"):
        raise InputError(f'fallback is "{fallback}"', hint='give "reference" or "error"')
    loaded = read_model(source)
    require_known(loaded.model)
    weights: dict[onnx_ir.Value, Node] = {}
    narrower: dict[str, Implied] = {}
    while True:
        importer = _Importer(loaded.model, loaded.name, weights)
        try:
            graph = importer.run(dims or {}, narrower, constants or {})
            break
        except _Narrower as found:
            narrower.update(found.ranges)
    report = with_bodies(graph, importer.state.report(importer.main.opsets), import_body)
    if fallback == "error":
        _refuse_fallbacks(report.fallbacks, loaded.name)
    return Imported(graph, replace(report, source=loaded.file, source_sha256=loaded.sha256()))


def import_body(
    model: bytes, dims: Mapping[str, Dim], constants: Mapping[str, np.ndarray]
) -> tuple[Graph, ImportReport]:
    """The graph and the report of a body of an operator; see ``bodies``."""
    imported = import_model(model, dims=dims, constants=constants)
    return imported.graph, imported.report


def _refuse_fallbacks(fallbacks: Sequence[Fallback], name: str) -> None:
    """Raise ``UnsupportedError`` if there are any."""
    if fallbacks:
        raise UnsupportedError(
            "these operators have no rule and would run on the ONNX reference evaluator:\n"
            + "\n".join(f"  {f.where}: {f.reason}" for f in fallbacks),
            where=name,
            hint="allow fallback='reference', or replace them in the model",
        )


class _Narrower(Exception):
    """The model implies ranges; the import starts again, to rely on them from the beginning."""

    def __init__(self, ranges: dict[str, Implied]) -> None:
        self.ranges = ranges
        super().__init__("the model implies ranges")


class _Importer:
    """State of importing one model."""

    def __init__(self, model: onnx_ir.Model, name: str, weights: dict[onnx_ir.Value, Node]) -> None:
        self.model = model
        self.name = name
        self.weights = weights
        self.state = State()
        self.alternatives = Alternatives((), self.state.scope)
        self.main = CallFrame(normal_opsets(model.opset_imports))
        self._functions: dict[onnx_ir.OperatorIdentifier, onnx.FunctionProto] = {}

    def run(
        self,
        dims: Mapping[str, Dim],
        narrower: Mapping[str, Implied],
        constants: Mapping[str, np.ndarray],
    ) -> Graph:
        """The graph of the model; raises if an output is stated with another element type."""
        inputs = make_inputs(self.model, self.state, dims, narrower, constants)
        facts = negative_sizes(inputs.values())
        if found := relied_on(facts, self.state.dimensions, self.state.scope):
            raise _Narrower(found)
        self.alternatives = Alternatives(self.state.dimensions, self.state.scope)
        self.main.values.update(inputs)
        self.body(self.model.graph, self.main)
        outputs: list[tuple[str, Node]] = []
        for value in self.model.graph.outputs:
            where = f'output "{value.name}"'
            made = self.value(self.main, value, where)
            check_output(value, made, where)
            taken = {n for _, n in outputs}
            if not made.dtype.is_native and (made in taken or not made.inputs):
                made = self._copied(made, where)
            outputs.append((value.name or "", made))
        state = self.state
        state.fallbacks += left_over(state, [made for _, made in outputs])
        return finished(
            Graph(
                self.name,
                tuple(state.inputs),
                tuple(outputs),
                state.scope,
                tuple(state.facts.bindings),
                tuple(state.facts.guards),
                state.labels,
            ),
            state.opaque,
        )

    def _copied(self, value: Node, where: str) -> Node:
        """A node of its own for strings and sequences, which no kernel can copy."""
        self.state.count += 1
        call = OpaqueCall(
            onnx.helper.make_node("Identity", ["value"], ["copy"]), where, (value,), (),
            self._payload_opsets(self.main), (), (self.state.objects.get(value),),
            (None if value.dtype is DType.OBJECT else value.type,), (True,), self.state.count,
        )  # fmt: skip
        (made,) = opaque_nodes(call, self.state.scope, self.state.objects)
        assert made is not None
        return made

    # ------------------------------------------------------------ values and nodes

    def value(self, frame: CallFrame, value: onnx_ir.Value, where: str) -> Node:
        """The node of a value; weights become constants when they are first used."""
        found = frame.values.get(value)
        if found is not None:
            return found
        if value in self.weights:
            return self.weights[value]
        tensor = value.const_value
        if tensor is None or value.producer() is not None:
            raise InvalidModelError(
                f'the value "{value.name}" is used, but nothing produces it before',
                where=where,
                hint="check the model with onnx.checker.check_model",
            )
        made = array_node(tensor_array(tensor, f'initializer "{value.name}"'))
        self.weights[value] = made
        self.state.labels.setdefault(made, f'constant "{value.name}"')
        return made

    def body(self, nodes: Iterable[onnx_ir.Node], frame: CallFrame) -> None:
        """Import nodes in their order; starts anew when a node implies a range."""
        guards = self.state.facts.guards
        for item in nodes:
            known = len(guards)
            self.node(item, frame)
            if len(guards) > known and (found := self.alternatives.learn(guards[known:])):
                raise _Narrower(found)

    def node(self, item: onnx_ir.Node, frame: CallFrame) -> None:
        """Import one node: enter a node for each of its outputs in the frame."""
        self.state.count += 1
        if self.state.count > MOST_NODES:
            raise UnsupportedError(
                f"the model has more than {MOST_NODES} nodes", where=self.name,
                hint="check its functions: they may call each other too often",
            )  # fmt: skip
        first = next((v.name for v in item.outputs if v.name), "")
        where = f'{frame.prefix}{item.op_type} "{item.name or first}"'
        operands = tuple(
            None if v is None or v in frame.omitted else self.value(frame, v, where)
            for v in item.inputs
        )
        while operands and operands[-1] is None:
            operands = operands[:-1]
        outputs = self._outputs(item, frame, where, operands)
        for index, value in enumerate(item.outputs):
            if not value.name:
                continue
            made = outputs[index] if index < len(outputs) else None
            if made is not None:
                frame.values[value] = made
            elif value.uses() or value.is_graph_output():
                raise InvalidModelError(f"there is no output {index}", where=where)

    def _outputs(
        self, item: onnx_ir.Node, frame: CallFrame, where: str, operands: tuple[Node | None, ...]
    ) -> Sequence[Node | None]:
        domain = "" if item.domain == "ai.onnx" else item.domain
        called = self.model.functions.get(item.op_identifier())
        if called is not None:
            proto = self._function(item.op_identifier(), called)
            given = {a.name: a for a in serialised(item, where).attribute}
            return self.call(proto, given, operands, frame, where, counted=True)
        opset = frame.opsets.get(domain)
        if opset is None:
            raise InvalidModelError(f'the model imports no opset of "{domain}"', where=where)
        attributes = {
            name: attribute_value(attribute, where) for name, attribute in item.attributes.items()
        }
        use = Use(item, frame, where, domain, opset, operands, attributes)
        if domain == "" and item.op_type == "Constant":
            return [constant_value(attributes, where)]
        if domain == "" and item.op_type == "If":
            branch = self._known_branch(use)
            if branch is not None:
                self.body(branch, frame)
                return [self.value(frame, v, where) for v in branch.outputs]
        if domain == "ai.onnx.preview.training" and item.op_type == "Gradient":
            self._count(use)
            return self._gradient(use)
        return self._operator(use)

    def _gradient(self, use: Use) -> Sequence[Node]:
        """Derivatives of a value named in this graph by values named in this graph."""
        named = {value.name: found for value, found in use.frame.values.items()}
        names = [str(n) for n in use.attributes["xs"]]  # type: ignore[attr-defined]
        wanted = [*names, str(use.attributes["y"])]
        missing = [n for n in wanted if n not in named]
        if missing or len(use.operands) < len(names):
            absent = f"there is no value {', '.join(missing)}"
            raise InvalidModelError(absent if missing else "operands are missing", where=use.where)
        replaced = {named[n]: given for n, given in zip(names, use.operands, strict=False) if given}
        return gradient(named[wanted[-1]], replaced, use.where)

    def _known_branch(self, use: Use) -> onnx_ir.Graph | None:
        """The branch of an If that is always taken, or None."""
        condition = use.operands[0] if use.operands else None
        contents = None if condition is None else integer_contents(condition)
        if contents is None or contents.size != 1:
            return None
        known = self.state.scope.resolve(contents.reshape(-1)[0])
        if not known.is_constant:
            return None
        branch = use.attributes.get("then_branch" if known.value else "else_branch")
        return branch if isinstance(branch, onnx_ir.Graph) else None

    # ------------------------------------------------------------ operators

    def _operator(self, use: Use) -> Sequence[Node | None]:
        """Primitives by rule or by ONNX's own definition, else a call of the reference."""
        made = by_elements(self.state, use) or by_rule(self.state, use)
        if not isinstance(made, str):
            self._count(use)
            return made
        schema = find_schema(use.domain, use.item.op_type, use.opset)
        if schema is None:
            raise self._refusal(use, made)
        names = ["" if v is None else v.name or "" for v in use.item.inputs]
        mixed = disagreement(schema, use.operands, names)
        if mixed is not None:
            raise InvalidModelError(
                mixed, where=use.where, hint="Add a Cast to the model, or export it again"
            )
        known = len(self.state.fallbacks)
        defined = by_tensors(self, use) or self._by_definition(use)
        if defined is not None:
            if len(self.state.fallbacks) == known:
                self._count(use)
            return defined
        results = self._opaque(use)
        calls = [r for r in results if r is not None and isinstance(r.primitive, Opaque)]
        if not calls or any(built_in_step(call) is not None for call in calls):
            self._count(use)
        else:
            self.state.fallbacks.append(Fallback(use.name, use.where, made))
        return results

    def _refusal(self, use: Use, reason: str) -> UnsupportedError:
        """Of a form without a rule where there is no reference that could run it instead."""
        message = f"this form of {use.name} is neither compiled nor has it a reference: {reason}"
        hint = "keep the tool that made the model from fusing here, or replace the operator"
        error = UnsupportedError(message, where=use.where, hint=hint)
        inputs = tuple(self.state.structural)
        return StructuralInputs(error, inputs) if inputs else error

    def _count(self, use: Use) -> None:
        if use.frame.counted:
            self.state.compiled[use.name] = self.state.compiled.get(use.name, 0) + 1

    # ------------------------------------------------------------ functions

    def _function(
        self, key: onnx_ir.OperatorIdentifier, function: onnx_ir.Function
    ) -> onnx.FunctionProto:
        if key not in self._functions:
            with third_party("a function cannot be read", where=f"function {key[0]}::{key[1]}"):
                self._functions[key] = onnx_ir.serde.serialize_function(function)
        return self._functions[key]

    def _by_definition(self, use: Use) -> Sequence[Node | None] | None:
        """The operator by the function with which ONNX defines it, or None."""
        schema = find_schema(use.domain, use.item.op_type, use.opset)
        if schema is None or subgraphs(use.item):
            return None
        if any(o is not None and not o.dtype.is_native for o in use.operands):
            return None
        proto = serialised(use.item, use.where)
        try:
            types = [
                onnx.TypeProto() if o is None else type_proto(o, self.state.objects)
                for o in use.operands
            ]
            function = definition(schema, proto, use.opset, types)
        except THIRD_PARTY:
            return None  # no definition for these operands
        if function is None:
            return None
        given = {a.name: a for a in proto.attribute}
        known = self.state.checkpoint()
        try:
            return self.call(function, given, use.operands, use.frame, use.where, counted=False)
        except UnsupportedError:
            self.state.restore(known)
            return None

    def call(
        self,
        proto: onnx.FunctionProto,
        given: dict[str, onnx.AttributeProto],
        operands: tuple[Node | None, ...],
        frame: CallFrame,
        where: str,
        *,
        counted: bool,
    ) -> Sequence[Node | None]:
        """Import the body of a function for one call."""
        if frame.depth >= DEEPEST:
            raise InvalidModelError(
                "functions call each other without end", where=self.name,
                hint="check the model's functions",
            )  # fmt: skip
        function = bind(proto, given)
        opsets = {**frame.opsets, **normal_opsets(function.opset_imports)}
        inner = CallFrame(opsets, f"{where} > ", frame.depth + 1, counted and frame.counted)
        parameters = function.inputs
        if len(operands) > len(parameters):
            raise InvalidModelError(
                f"the function takes {len(parameters)} operands, not {len(operands)}", where=where
            )
        for index, parameter in enumerate(parameters):
            operand = operands[index] if index < len(operands) else None
            if operand is None:
                inner.omitted.add(parameter)
            else:
                inner.values[parameter] = operand
        self.body(function, inner)
        return [
            None if v in inner.omitted else self.value(inner, v, where) for v in function.outputs
        ]

    # ------------------------------------------------------------ the reference

    def _opaque(self, use: Use) -> Sequence[Node | None]:
        """A call of the reference."""
        item = use.item
        captured = tuple(
            (value.name or "", self.value(use.frame, value, use.where))
            for value in captured_values(item)
        )
        proto, captured = made_inside(serialised(item, use.where), captured, self.state, use)
        call = OpaqueCall(
            proto,
            use.where,
            use.operands,
            captured,
            self._payload_opsets(use.frame),
            tuple(callees_first(self._function(key, f) for key, f in self.model.functions.items()))
            if subgraphs(item)
            else (),
            tuple(stated_type(v) for v in item.outputs),
            tuple(
                result_types(
                    item.op_type, use.operands, use.attributes, self._trial(use), self.state.scope
                )
            ),
            tuple(bool(v.uses()) or v.is_graph_output() for v in item.outputs),
            self.state.count if is_random(item) else 0,
        )
        try:
            made = opaque_nodes(call, self.state.scope, self.state.objects)
        except UnsupportedError as error:
            inputs = tuple(self.state.structural) or deciding_inputs(use.operands)
            if not inputs:
                raise
            raise StructuralInputs(error, inputs) from error
        for value in made:
            if value is not None:
                self.state.labels.setdefault(value, use.where)
                if isinstance(value.primitive, Opaque):
                    self.state.opaque.append(value)
        return made

    def _trial(self, use: Use) -> Trial:
        """Importing a body of ``use`` on trial, for the types of its outputs."""

        def attempt(
            graph: onnx_ir.Graph, parameters: Sequence[TensorType | Node]
        ) -> list[TensorType | None] | None:
            other = _Importer(self.model, self.name, self.weights)
            other.state = self.state.on_trial()
            frame = replace(use.frame, values=dict(use.frame.values))
            for index, (value, kind) in enumerate(zip(graph.inputs, parameters, strict=False)):
                frame.values[value] = (
                    kind
                    if isinstance(kind, Node)
                    else node(Input(f"{use.where} {index}", kind.dtype, kind.shape))
                )
            try:
                other.body(graph, frame)
                made = [other.value(frame, v, use.where) for v in graph.outputs]
            except InternalError:
                raise  # a defect, not a body that cannot be imported
            except TilewrightError:
                return None
            return [None if m.dtype is DType.OBJECT else m.type for m in made]

        return attempt

    def _payload_opsets(self, frame: CallFrame) -> dict[str, int]:
        return {k: v for k, v in frame.opsets.items() if k != "ai.onnx"}
