"""Operators that run on the ONNX reference evaluator: their payload and the types of their results.

A payload is an ONNX model of one node (and of the functions it calls) whose operands have canonical
names, so that equal calls have equal payloads. Result types come from onnx's shape inference on
that one node with the operand types known here; sizes it does not know become fresh symbols. Start
with :func:`opaque_nodes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import numpy_helper

from tilewright.frontend.onnx.boundary import THIRD_PARTY, summary
from tilewright.frontend.onnx.tensor_types import element_type, type_proto
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Constant, Opaque, Project, TensorType
from tilewright.ir.symbolic import integer_contents
from tilewright.ops.record import OPERATORS
from tilewright.ops.reference import check_payload, evaluate_payload
from tilewright.shape import Expr, Scope, constant
from tilewright.support.errors import ExecutionError, InvalidModelError, UnsupportedError

LARGEST_HINT = 1024  # elements of a constant operand that shape inference may look at
LONGEST_VECTOR = 1 << 20  # onnx's inference walks over the stated length of vectors of integers
MOST_KNOWN = 1 << 22  # elements of results that are kept as constants
_RANK_HINT = "add value_info with a shape to the model (onnx.shape_inference), or export it again"


@dataclass(frozen=True)
class OpaqueCall:
    """One ONNX node about to run on the ONNX reference evaluator.

    ``proto`` has no references to attributes of a function; ``captured`` are the outer values that
    its sub-graphs read, by name. By output: ``declared`` is the type that the model states,
    ``told`` the one that ``control`` found, ``used`` whether anything reads it.
    """

    proto: onnx.NodeProto
    where: str
    operands: tuple[Node | None, ...]
    captured: tuple[tuple[str, Node], ...]
    opsets: dict[str, int]
    functions: tuple[onnx.FunctionProto, ...]
    declared: tuple[onnx.TypeProto | None, ...]
    told: tuple[TensorType | None, ...]
    used: tuple[bool, ...]
    serial: int


def inner_graphs(proto: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The graphs in the attributes of a node."""
    return [g for a in proto.attribute for g in ([a.g] if a.HasField("g") else [*a.graphs])]


def names_in(graphs: Sequence[onnx.GraphProto]) -> set[str]:
    """All names in these graphs and the graphs inside of them."""
    names: set[str] = set()
    pending = [*graphs]
    while pending:
        graph = pending.pop()
        names.update(v.name for v in (*graph.input, *graph.output, *graph.initializer))
        for inner in graph.node:
            names.update(inner.input)
            names.update(inner.output)
            pending.extend(inner_graphs(inner))
    return names


def unused(stem: str, taken: set[str]) -> str:
    """``stem``, or a name like it that is not ``taken``; it is from now on."""
    while stem in taken:
        stem += "_"
    taken.add(stem)
    return stem


@dataclass(frozen=True)
class _Payload:
    """The model of a call without types, its inputs in order, and the outputs that are present."""

    model: onnx.ModelProto
    inputs: tuple[tuple[str, Node], ...]
    outputs: tuple[int, ...]


def _payload(call: OpaqueCall) -> _Payload:
    taken = names_in(inner_graphs(call.proto)) | {name for name, _ in call.captured}
    proto = onnx.NodeProto()
    proto.CopyFrom(call.proto)
    proto.name = ""
    proto.doc_string = ""
    del proto.metadata_props[:]
    inputs: list[tuple[str, Node]] = []
    for index, operand in enumerate(call.operands):
        proto.input[index] = "" if operand is None else unused(f"operand_{index}", taken)
        if operand is not None:
            inputs.append((proto.input[index], operand))
    inputs.extend(call.captured)
    present = tuple(i for i, name in enumerate(proto.output) if name)
    for index in present:
        proto.output[index] = unused(f"result_{index}", taken)
    model = onnx.ModelProto()
    model.ir_version = onnx.IR_VERSION
    model.graph.name = "opaque"
    model.graph.node.append(proto)
    model.functions.extend(call.functions)
    for domain, version in sorted(call.opsets.items()):
        model.opset_import.append(onnx.helper.make_opsetid(domain, version))
    return _Payload(model, tuple(inputs), present)


def _infer(
    call: OpaqueCall, payload: _Payload, objects: dict[Node, onnx.TypeProto]
) -> list[onnx.TypeProto | None]:
    """Result types of the present outputs by onnx's inference; None where it finds nothing."""
    model = onnx.ModelProto()
    model.CopyFrom(payload.model)
    for name, operand in payload.inputs:
        kind = type_proto(operand, objects)
        if operand.rank == 1 and kind.tensor_type.shape.dim[0].dim_value > LONGEST_VECTOR:
            kind.tensor_type.shape.dim[0].Clear()
        model.graph.input.append(onnx.helper.make_value_info(name, kind))
        known = _known_contents(operand)
        if known is not None:
            model.graph.initializer.append(numpy_helper.from_array(known, name=name))
    names = [payload.model.graph.node[0].output[i] for i in payload.outputs]
    for name in names:
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    inferred: dict[str, onnx.TypeProto] = {}
    problem = ""
    for strict in (True, False):
        try:
            result = onnx.shape_inference.infer_shapes(
                model, check_type=strict, strict_mode=strict, data_prop=True
            )
        except THIRD_PARTY as error:
            problem = problem or summary(error)
            continue
        inferred = {v.name: v.type for v in result.graph.output if v.type.WhichOneof("value")}
        break
    if problem and not inferred and all(d is None for d in call.declared):
        raise InvalidModelError(f"the operator does not fit: {problem}", where=call.where)
    return [inferred.get(name) for name in names]


def _known_contents(operand: Node) -> np.ndarray | None:
    """A small operand known now, for shape inference."""
    if isinstance(operand.primitive, Constant):
        array = operand.primitive.array
        if array.size <= LARGEST_HINT and operand.dtype.is_native:
            return array
        return None
    contents = integer_contents(operand) if operand.dtype is DType.INT64 else None
    if contents is None or not all(e.is_constant for e in contents.reshape(-1)):
        return None
    values = [e.value for e in contents.reshape(-1)]
    return np.array(values, dtype=np.int64).reshape(contents.shape)


def _tensor_part(proto: onnx.TypeProto | None) -> onnx.TypeProto.Tensor | None:
    if proto is not None and proto.HasField("tensor_type"):
        return proto.tensor_type
    return None


def _result_type(
    call: OpaqueCall,
    inferred: onnx.TypeProto | None,
    declared: onnx.TypeProto | None,
    scope: Scope,
    symbols: dict[str, Expr],
    told: TensorType | None,
) -> TensorType | None:
    """The type of one result; OBJECT for what is not a tensor, None where it cannot be told."""
    for proto in (inferred, declared):
        if proto is not None and proto.WhichOneof("value") not in (None, "tensor_type"):
            return TensorType(DType.OBJECT, ())
    tensors = [t for t in (_tensor_part(inferred), _tensor_part(declared)) if t is not None]
    shaped = [t for t in tensors if t.HasField("shape")]
    if told is not None and not (shaped and shaped[0] is _tensor_part(inferred)):
        return told
    typed = [t for t in tensors if t.elem_type]
    if not shaped or not typed:
        return None
    sizes: list[Expr] = []
    stem = call.proto.op_type.lower()
    stated = shaped[0].shape.dim
    known = told.shape if told is not None and len(told.shape) == len(stated) else None
    for axis, size in enumerate(stated):
        if size.HasField("dim_value") and size.dim_value >= 0:
            sizes.append(constant(size.dim_value))
        elif size.dim_param in symbols:
            sizes.append(symbols[size.dim_param])
        elif known is not None:
            sizes.append(known[axis])
        else:
            fresh = scope.fresh(stem)
            if size.dim_param and shaped[0] is tensors[0]:
                symbols[size.dim_param] = fresh
            sizes.append(fresh)
    return TensorType(element_type(typed[0].elem_type, call.where), tuple(sizes))


def opaque_nodes(
    call: OpaqueCall, scope: Scope, objects: dict[Node, onnx.TypeProto]
) -> list[Node | None]:
    """Nodes for the outputs of a call (None for omitted ones); ``objects`` learns their types.

    Raises ``UnsupportedError`` if the reference has no such operator either, or if the type or rank
    of a result is unknown, and ``InvalidModelError`` if the operands do not fit the operator.
    """
    payload = _payload(call)
    inferred = _infer(call, payload, objects)
    operands = [operand for _, operand in payload.inputs]
    types: list[TensorType] = []
    symbols = {str(s): s for o in operands for s in o.shape if not s.is_constant}
    kept: list[int] = []
    for proto, index in zip(inferred, payload.outputs, strict=True):
        told = call.told[index] if index < len(call.told) else None
        found = _result_type(call, proto, call.declared[index], scope, symbols, told)
        if found is not None:
            types.append(found)
            kept.append(index)
        elif call.used[index]:
            raise _rankless(call, scope)
    inferred = [p for p, i in zip(inferred, payload.outputs, strict=True) if i in kept]
    payload = replace(payload, outputs=tuple(kept))
    if not types:
        return [None for _ in call.proto.output]
    data = _serialised(payload, objects, types, inferred, call)
    check_payload(data, call.where)
    made = _known_results(call, data, operands, types)
    if made is None:
        primitive = Opaque(_name(call.proto), data, tuple(types), call.serial)
        first = node(primitive, *operands)
        made = [first, *(node(Project(i, types[i]), first) for i in range(1, len(types)))]
    out: list[Node | None] = [None for _ in call.proto.output]
    for index, value, proto in zip(payload.outputs, made, inferred, strict=True):
        out[index] = value
        kind = proto if proto is not None else call.declared[index]
        if value.dtype is DType.OBJECT and kind is not None:
            objects[value] = kind
    return out


def _known_results(
    call: OpaqueCall, data: bytes, operands: Sequence[Node], types: Sequence[TensorType]
) -> list[Node] | None:
    """The results of an operator of constants alone, which every call would compute again.

    None where it is something else, or fails: a call says so, if it ever comes to that.
    """
    if call.serial or inner_graphs(call.proto):
        return None
    arrays = [o.primitive.array for o in operands if isinstance(o.primitive, Constant)]
    kinds = [kind.dtype for kind in (*operands, *types)]
    if len(arrays) < len(operands) or not all(kind.is_native for kind in kinds):
        return None
    try:
        values = [np.asarray(value) for value in evaluate_payload(data, arrays)]
    except ExecutionError:
        return None
    if sum(value.size for value in values) > MOST_KNOWN:
        return None
    found = [(DType.of(value.dtype), value.ndim) for value in values]
    if found != [(kind.dtype, len(kind.shape)) for kind in types]:
        return None
    return [node(Constant.of(value, kind.dtype)) for value, kind in zip(values, types, strict=True)]


def _rankless(call: OpaqueCall, scope: Scope) -> UnsupportedError:
    """What is wrong with a call of which nothing says how many axes a result has."""
    message, hint = "the rank of a result cannot be told before running", _rank_hint(call, scope)
    if (call.proto.domain, call.proto.op_type) not in OPERATORS and not inner_graphs(call.proto):
        message += (
            ": this operator is not compiled but runs on the ONNX reference evaluator, and ONNX "
            "does not say it"
        )
        hint = "add value_info with a shape to the model, or run the operator outside of the model"
    return UnsupportedError(message, where=call.where, hint=hint)


def _rank_hint(call: OpaqueCall, scope: Scope) -> str:
    """What to try where the rank of a result is unknown: sizes may decide which branch is taken."""
    condition = call.operands[0] if call.proto.op_type == "If" and call.operands else None
    contents = None if condition is None else integer_contents(condition)
    if contents is None or contents.size != 1:
        return _RANK_HINT
    names = sorted(scope.resolve(contents.reshape(-1)[0]).free_symbols)
    if not names:
        return _RANK_HINT
    sizes = " and ".join(f'"{name}"' for name in names)
    return (
        f"give {sizes} a range (dims=, --dim) in which the condition is always true or always false"
    )


def _name(proto: onnx.NodeProto) -> str:
    return f"{proto.domain}::{proto.op_type}" if proto.domain else proto.op_type


def _serialised(
    payload: _Payload,
    objects: dict[Node, onnx.TypeProto],
    types: list[TensorType],
    inferred: list[onnx.TypeProto | None],
    call: OpaqueCall,
) -> bytes:
    """The payload with element types, but without shapes: one serves every shape."""
    model = payload.model
    for name, operand in payload.inputs:
        kind = type_proto(operand, objects, shaped=False)
        model.graph.input.append(onnx.helper.make_value_info(name, kind))
    for index, result, proto in zip(payload.outputs, types, inferred, strict=True):
        name = model.graph.node[0].output[index]
        kind = proto if proto is not None else call.declared[index]
        if result.dtype is not DType.OBJECT or kind is None:
            model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
        else:
            model.graph.output.append(onnx.helper.make_value_info(name, kind))
    return model.SerializeToString(deterministic=True)
