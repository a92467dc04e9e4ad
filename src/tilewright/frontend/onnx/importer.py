"""The walk over a model's nodes: each becomes primitives, or an opaque call to the reference.

:func:`import_model` reads the model, settles its dimensions and runs an :class:`_Importer` over the
graph. A node is tried in this order: a function of the model, a fission rule, the function by which
ONNX defines the operator, the reference. Read :meth:`_Importer.node` first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import onnx
import onnx_ir

from tilewright.frontend.onnx.boundary import CARELESS, THIRD_PARTY, summary, third_party
from tilewright.frontend.onnx.control import Trial, result_types
from tilewright.frontend.onnx.dims import Dim, DimensionTable
from tilewright.frontend.onnx.finish import finished, input_names
from tilewright.frontend.onnx.fold import between, folded
from tilewright.frontend.onnx.functions import bind, definition, find_schema
from tilewright.frontend.onnx.legacy import OLDEST_RULES, Call, flattened, modernise
from tilewright.frontend.onnx.lint import baked_reshape, pinned
from tilewright.frontend.onnx.opaque import OpaqueCall, opaque_nodes
from tilewright.frontend.onnx.report import BakedSize, DimensionReport, Fallback, ImportReport
from tilewright.frontend.onnx.scan import captured_values, is_random, require_known, subgraphs
from tilewright.frontend.onnx.source import Source, read_model
from tilewright.frontend.onnx.types import element_type, type_proto
from tilewright.frontend.onnx.values import (
    array_node,
    attribute_value,
    constant_input,
    constant_value,
    input_sizes,
    normal_opsets,
    proto_of_value,
    serialised,
    tensor_array,
)
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Constant, Input, TensorType
from tilewright.ir.symbolic import integer_contents
from tilewright.ops.record import (
    AttributeValue,
    Facts,
    RuleContext,
    StructuralInput,
    apply_rule,
    find_operator,
)
from tilewright.shape import Expr, Scope
from tilewright.support.errors import (
    InputError,
    InvalidModelError,
    TilewrightError,
    UnsupportedError,
)

DEEPEST = 48  # calls of functions inside of functions
MOST_NODES = 1_000_000


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
        hint = f"make these inputs constants of the model: {listing}"
        super().__init__(cause.message, where=cause.where, hint=hint)


def import_model(
    source: Source,
    *,
    dims: Mapping[str, Dim] | None = None,
    fallback: str = "reference",
    constants: Mapping[str, np.ndarray] | None = None,
) -> Imported:
    """Turn an ONNX model into a primitive graph with symbolic shapes.

    ``dims`` gives ranges for the model's named dimensions (others get 0..``DEFAULT_HIGH``).
    ``fallback`` is "reference" or "error": with the latter, operators that would run on the
    reference are an ``UnsupportedError`` that lists them all. ``constants`` are inputs whose values
    are fixed. Raises only subclasses of ``TilewrightError``.
    """
    if fallback not in ("reference", "error"):
        raise InputError(f'fallback is "{fallback}"', hint='give "reference" or "error"')
    loaded = read_model(source)
    importer = _Importer(loaded.model, loaded.name)
    require_known(loaded.model)
    importer.inputs(dims or {}, constants or {})
    importer.body(loaded.model.graph, importer.main)
    outputs = importer.outputs()
    if fallback == "error" and importer.fallbacks:
        raise UnsupportedError(
            "these operators have no rule and would run on the reference:\n"
            + "\n".join(f"  {f.where}: {f.reason}" for f in importer.fallbacks),
            where=loaded.name,
            hint="allow fallback='reference', or replace them in the model",
        )
    return importer.result(outputs)


@dataclass
class _Frame:
    """Values of one graph or of one call of a function."""

    opsets: dict[str, int]
    prefix: str = ""
    depth: int = 0
    counted: bool = True  # whether the operators are the model's own
    values: dict[onnx_ir.Value, Node] = field(default_factory=dict[onnx_ir.Value, Node])
    omitted: set[onnx_ir.Value] = field(default_factory=set[onnx_ir.Value])


@dataclass(frozen=True)
class _Use:
    """One ONNX node with its operands, on its way to becoming primitives."""

    item: onnx_ir.Node
    frame: _Frame
    where: str
    domain: str
    opset: int
    operands: tuple[Node | None, ...]
    attributes: dict[str, AttributeValue]

    @property
    def name(self) -> str:
        """The operator with its domain, for people."""
        return f"{self.domain}::{self.item.op_type}" if self.domain else self.item.op_type

    @property
    def output_count(self) -> int:
        """Outputs up to the last one that is used by name."""
        present = [i for i, value in enumerate(self.item.outputs) if value.name]
        return present[-1] + 1 if present else 0


class _Importer:
    """State of importing one model."""

    def __init__(self, model: onnx_ir.Model, name: str) -> None:
        self.model = model
        self.name = name
        self.scope = Scope()
        self.facts = Facts(self.scope)
        self.dimensions: tuple[DimensionReport, ...] = ()
        self.main = _Frame(normal_opsets(model.opset_imports))
        self.graph_inputs: list[Node] = []
        self.objects: dict[Node, onnx.TypeProto] = {}
        self.labels: dict[Node, str] = {}
        self.compiled: dict[str, int] = {}
        self.fallbacks: list[Fallback] = []
        self.baked: list[BakedSize] = []
        self.structural: dict[str, None] = {}
        self.notes: list[str] = []
        self.count = 0
        self._functions: dict[onnx_ir.OperatorIdentifier, onnx.FunctionProto] = {}

    # ------------------------------------------------------------ inputs and outputs

    def inputs(self, dims: Mapping[str, Dim], constants: Mapping[str, np.ndarray]) -> None:
        """Make the graph's inputs, their dimensions being settled together."""
        table = DimensionTable(self.scope, dims)
        graph = self.model.graph
        free = [v for v in graph.inputs if v.name not in graph.initializers]
        unknown = [name for name in constants if name not in {v.name for v in free}]
        if unknown:
            names = ", ".join(v.name or "" for v in free)
            raise InputError(f'the model has no input "{unknown[0]}"', hint=f"inputs: {names}")
        defaults = [v.name or "" for v in graph.inputs if v.name in graph.initializers]
        if defaults and self.model.ir_version is not None and self.model.ir_version >= 4:
            self.notes.append(f"inputs with a default are constants: {', '.join(defaults)}")
        tensors = {v: input_sizes(v) for v in free if v.name not in constants}
        for value, sizes in tensors.items():
            if sizes is not None:
                table.survey(value.name or "", sizes)
        shapes = table.settle()
        self.dimensions = table.report()
        for value in free:
            self.main.values[value] = self._input(value, shapes, constants)

    def _input(
        self,
        value: onnx_ir.Value,
        shapes: dict[str, tuple[Expr, ...]],
        constants: Mapping[str, np.ndarray],
    ) -> Node:
        name = value.name or ""
        if name in constants:
            return constant_input(value, constants[name])
        if name in shapes:
            dtype = element_type(value.type.dtype.value, f'input "{name}"')  # type: ignore[union-attr]
            made = node(Input(name, dtype, shapes[name]))
        else:
            made = node(Input(name, DType.OBJECT, ()))
            proto = proto_of_value(value)
            assert proto is not None
            self.objects[made] = proto
        self.graph_inputs.append(made)
        self.labels[made] = f'input "{name}"'
        return made

    def outputs(self) -> tuple[tuple[str, Node], ...]:
        """The graph's outputs; raises if one is stated with another element type."""
        out: list[tuple[str, Node]] = []
        for value in self.model.graph.outputs:
            where = f'output "{value.name}"'
            made = self.value(self.main, value, where)
            if isinstance(value.type, onnx_ir.TensorType) and made.dtype is not DType.OBJECT:
                stated = element_type(value.type.dtype.value, where)
                if stated is not made.dtype:
                    raise InvalidModelError(
                        f"stated as {stated.value}, but computed as {made.dtype.value}", where=where
                    )
            out.append((value.name or "", made))
        return tuple(out)

    def result(self, outputs: tuple[tuple[str, Node], ...]) -> Imported:
        """The graph and the report."""
        graph = finished(
            Graph(
                self.name,
                tuple(self.graph_inputs),
                outputs,
                self.scope,
                tuple(self.facts.bindings),
                tuple(self.facts.guards),
                self.labels,
            )
        )
        report = ImportReport(
            dict(self.main.opsets),
            dict(sorted(self.compiled.items())),
            tuple(self.fallbacks),
            self.dimensions,
            tuple(self.baked),
            tuple(self.structural),
            tuple(self.notes),
        )
        return Imported(graph, report)

    # ------------------------------------------------------------ values and nodes

    def value(self, frame: _Frame, value: onnx_ir.Value, where: str) -> Node:
        """The node of a value; weights become constants when they are first used."""
        found = frame.values.get(value)
        if found is not None:
            return found
        tensor = value.const_value
        if tensor is None or value.producer() is not None:
            raise InvalidModelError(
                f'the value "{value.name}" is used, but nothing produces it before',
                where=where,
                hint="check the model with onnx.checker.check_model",
            )
        made = array_node(tensor_array(tensor, f'initializer "{value.name}"'))
        frame.values[value] = made
        self.labels.setdefault(made, f'constant "{value.name}"')
        return made

    def body(self, nodes: Iterable[onnx_ir.Node], frame: _Frame) -> None:
        """Import nodes in their order."""
        for item in nodes:
            self.node(item, frame)

    def node(self, item: onnx_ir.Node, frame: _Frame) -> None:
        """Import one node: enter a node for each of its outputs in the frame."""
        self.count += 1
        if self.count > MOST_NODES:
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
            if made is None:
                raise InvalidModelError(f"there is no output {index}", where=where)
            frame.values[value] = made

    def _outputs(
        self, item: onnx_ir.Node, frame: _Frame, where: str, operands: tuple[Node | None, ...]
    ) -> Sequence[Node | None]:
        domain = "" if item.domain == "ai.onnx" else item.domain
        called = self.model.functions.get(item.op_identifier())
        if called is not None:
            proto = self._function(item.op_identifier(), called)
            given = {a.name: a for a in serialised(item, where).attribute}
            return self._call(proto, given, operands, frame, where, counted=True)
        opset = frame.opsets.get(domain)
        if opset is None:
            raise InvalidModelError(f'the model imports no opset of "{domain}"', where=where)
        attributes = {
            name: attribute_value(attribute, where) for name, attribute in item.attributes.items()
        }
        use = _Use(item, frame, where, domain, opset, operands, attributes)
        if domain == "" and item.op_type == "Constant":
            return [constant_value(attributes, where)]
        if domain == "" and item.op_type == "If":
            branch = self._known_branch(use)
            if branch is not None:
                self.body(branch, frame)
                return [self.value(frame, v, where) for v in branch.outputs]
        return self._operator(use)

    def _known_branch(self, use: _Use) -> onnx_ir.Graph | None:
        """The branch of an If that is always taken, or None."""
        condition = use.operands[0] if use.operands else None
        contents = None if condition is None else integer_contents(condition)
        if contents is None or contents.size != 1:
            return None
        known = self.scope.resolve(contents.reshape(-1)[0])
        if not known.is_constant:
            return None
        branch = use.attributes.get("then_branch" if known.value else "else_branch")
        return branch if isinstance(branch, onnx_ir.Graph) else None

    # ------------------------------------------------------------ operators

    def _operator(self, use: _Use) -> Sequence[Node | None]:
        """Primitives by rule or by ONNX's own definition, else a call of the reference."""
        made = self._by_rule(use)
        if not isinstance(made, str):
            self._count(use)
            return made
        known = len(self.fallbacks)
        defined = self._by_definition(use)
        if defined is not None:
            if len(self.fallbacks) == known:
                self._count(use)
            return defined
        self.fallbacks.append(Fallback(use.name, use.where, made))
        return self._opaque(use)

    def _count(self, use: _Use) -> None:
        if use.frame.counted:
            self.compiled[use.name] = self.compiled.get(use.name, 0) + 1

    def _by_rule(self, use: _Use) -> list[Node] | str:
        """The outputs of the operator's rule, or why there are none."""
        odd = [o.dtype for o in use.operands if o is not None and not o.dtype.is_native]
        if DType.STRING in odd or DType.OBJECT in odd:
            return f"operands of type {odd[0].value}"
        call, opset = Call(use.item.op_type, use.operands, use.attributes), use.opset
        if use.domain == "" and opset < OLDEST_RULES:
            call, opset = modernise(call, opset), OLDEST_RULES
        row = find_operator(use.domain, call.name, opset)
        if row is None:
            return "there is no rule for this operator"
        guards = len(self.facts.guards)
        operands, restore = flattened(call)
        context = RuleContext(
            call.name, operands, call.attributes, use.output_count, opset, use.where, self.facts
        )
        try:
            made = [restore(out) for out in apply_rule(row, context)]
        except StructuralInput as error:
            self.structural.update(dict.fromkeys(input_names(error.operand)))
            return error.message
        except UnsupportedError as error:
            return error.message
        except CARELESS as error:
            return f"the rule failed: {type(error).__name__}: {summary(error)}"
        if len(made) < use.output_count:
            return f"the rule makes {len(made)} of {use.output_count} outputs"
        return self._accepted(use, call, made, guards)

    def _accepted(self, use: _Use, call: Call, made: list[Node], guards: int) -> list[Node] | str:
        """Check, fold and label what a rule made."""
        given = [o for o in use.operands if o is not None]
        region = between(made, given)
        for current in region:
            if not current.dtype.is_native and not isinstance(current.primitive, Constant):
                return f"there are no kernels for element type {current.dtype.value}"
        constant = all(isinstance(o.primitive, Constant) for o in given)
        made = [folded(out, region, self.scope, constant) for out in made]
        for current in (*region, *made):
            self.labels.setdefault(current, use.where)
        self._lint(use, call, guards)
        return made

    def _lint(self, use: _Use, call: Call, guards: int) -> None:
        names = [d.name for d in self.dimensions]
        messages = [pinned(guard, names) for guard in self.facts.guards[guards:]]
        if call.name == "Reshape":
            messages.append(baked_reshape(call.operands, names))
        for message in messages:
            if message is not None:
                self.baked.append(BakedSize(use.where, message))

    # ------------------------------------------------------------ functions

    def _function(
        self, key: onnx_ir.OperatorIdentifier, function: onnx_ir.Function
    ) -> onnx.FunctionProto:
        if key not in self._functions:
            with third_party("a function cannot be read", where=f"function {key[0]}::{key[1]}"):
                self._functions[key] = onnx_ir.serde.serialize_function(function)
        return self._functions[key]

    def _by_definition(self, use: _Use) -> Sequence[Node | None] | None:
        """The operator by the function with which ONNX defines it, or None."""
        schema = find_schema(use.domain, use.item.op_type, use.opset)
        if schema is None or subgraphs(use.item):
            return None
        if any(o is not None and not o.dtype.is_native for o in use.operands):
            return None
        proto = serialised(use.item, use.where)
        try:
            types = [
                onnx.TypeProto() if o is None else type_proto(o, self.objects) for o in use.operands
            ]
            function = definition(schema, proto, use.opset, types)
        except THIRD_PARTY:
            return None  # no definition for these operands
        if function is None:
            return None
        given = {a.name: a for a in proto.attribute}
        known = len(self.fallbacks)
        try:
            return self._call(function, given, use.operands, use.frame, use.where, counted=False)
        except UnsupportedError:
            del self.fallbacks[known:]
            return None

    def _call(
        self,
        proto: onnx.FunctionProto,
        given: dict[str, onnx.AttributeProto],
        operands: tuple[Node | None, ...],
        frame: _Frame,
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
        inner = _Frame(opsets, f"{where} > ", frame.depth + 1, counted and frame.counted)
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

    def _opaque(self, use: _Use) -> Sequence[Node | None]:
        """A call of the reference."""
        item = use.item
        proto = serialised(item, use.where)
        captured = tuple(
            (value.name or "", self.value(use.frame, value, use.where))
            for value in captured_values(item)
        )
        call = OpaqueCall(
            proto,
            use.where,
            use.operands,
            captured,
            self._payload_opsets(use.frame),
            tuple(self._function(key, f) for key, f in self.model.functions.items())
            if subgraphs(item)
            else (),
            tuple(proto_of_value(v) for v in item.outputs),
            tuple(
                result_types(
                    item.op_type, use.operands, use.attributes, self._trial(use), self.scope
                )
            ),
            tuple(bool(v.uses()) or v.is_graph_output() for v in item.outputs),
            self.count if is_random(item) else 0,
        )
        try:
            made = opaque_nodes(call, self.scope, self.objects)
        except UnsupportedError as error:
            if not self.structural:
                raise
            raise StructuralInputs(error, tuple(self.structural)) from error
        for value in made:
            if value is not None:
                self.labels.setdefault(value, use.where)
        return made

    def _trial(self, use: _Use) -> Trial:
        """Importing a body of ``use`` on trial, for the types of its outputs."""

        def attempt(
            graph: onnx_ir.Graph, parameters: Sequence[TensorType | Node]
        ) -> list[TensorType | None] | None:
            other = _Importer(self.model, self.name)
            other.scope = self.scope.copy()
            other.facts = Facts(other.scope)
            other.objects = dict(self.objects)
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
            except TilewrightError:
                return None
            return [None if m.dtype is DType.OBJECT else m.type for m in made]

        return attempt

    def _payload_opsets(self, frame: _Frame) -> dict[str, int]:
        return {k: v for k, v in frame.opsets.items() if k != "ai.onnx"}
