"""From a path, bytes or a model in memory to a checked ``onnx_ir.Model``.

:func:`read_model` is the entry. A model is parsed and checked without the contents of its weights,
so that the size of a model does not matter: they stay in its file (``initializers``). External data
is confined to the model's folder (``external``).
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import onnx
import onnx_ir
from onnx import numpy_helper

from tilewright.frontend.onnx.boundary import third_party
from tilewright.frontend.onnx.external import (
    attach,
    attributes_of,
    check_initializers,
    inline_attributes,
)
from tilewright.frontend.onnx.initializers import cut_out, is_plain, put_back
from tilewright.ir.mapped import map_file
from tilewright.ops.contributed import ADDED, DOMAIN
from tilewright.ops.record import find_operator
from tilewright.ops.schema import find_schema
from tilewright.support.errors import InvalidModelError, UnsupportedError
from tilewright.support.files import MODEL, require
from tilewright.support.text import article

Array = np.ndarray[Any, Any]


class ExportedProgram(Protocol):
    """What ``torch.onnx.export`` returns: it holds an ``onnx_ir.Model``."""

    @property
    def model(self) -> onnx_ir.Model: ...


Source = str | os.PathLike[str] | bytes | onnx.ModelProto | onnx_ir.Model | ExportedProgram
_PIECE = 1 << 24  # bytes that are read for a digest at a time
NEWEST_OPSET = onnx.defs.onnx_opset_version()
_EXPORT = "export or download the model again, or check it with onnx.checker.check_model"


@dataclass(frozen=True)
class LoadedModel:
    """A model that passed the checks, and what it is called in messages.

    ``file`` is the name of its file without the folder, ``sha256`` waits for that of the bytes of
    the file or of those given; "" for a model that was an object.
    """

    model: onnx_ir.Model
    name: str
    file: str = ""
    sha256: Callable[[], str] = str


def read_model(source: Source) -> LoadedModel:
    """Read and check a model.

    Raises ``InvalidModelError`` for anything that is not a valid ONNX model, its external data
    included, and ``UnsupportedError`` for one that is newer than the installed onnx.
    """
    if isinstance(source, onnx_ir.Model):
        _check_opsets(dict(source.opset_imports), "the model")
        return LoadedModel(source, source.graph.name or "model")
    given: object = source
    held = getattr(given, "model", None)
    if isinstance(held, onnx_ir.Model):
        return read_model(held)
    if isinstance(source, onnx.ModelProto):
        return _from_proto(source, "the model", None)
    if isinstance(source, bytes | bytearray | memoryview):
        data, where, path = np.frombuffer(bytes(source), np.uint8), "the given bytes", None
    elif isinstance(given, str | os.PathLike):
        path = Path(given)
        data, where = _mapped(path), str(path)
    else:
        raise InvalidModelError(
            f"{article(type(given).__name__)} is not a model", hint=_way_out(given)
        )
    digest = _digest(data, path)
    return _loaded(data, where, path, digest)


def _loaded(data: Array, where: str, path: Path | None, digest: Callable[[], str]) -> LoadedModel:
    """The model that is serialised in ``data``; its large weights stay there."""
    skeleton, cut = cut_out(data)
    proto = _parse(skeleton, where)
    tensors = proto.graph.initializer
    if not all(is_plain(tensors[place.number], place.end - place.begin) for place in cut):
        proto, cut = _parse(data.tobytes(), where), []
        tensors = proto.graph.initializer
    names = [tensor.name for tensor in tensors]
    loaded = _from_proto(proto, where, None if path is None else path.parent)
    put_back(loaded.model, names, data, cut)
    return LoadedModel(loaded.model, loaded.name, "" if path is None else path.name, digest)


def _digest(data: Array, path: Path | None) -> Callable[[], str]:
    """What waits for the digest of a model, which is found meanwhile.

    A file is read for it, as what is read of mapped memory counts as memory of the process, in
    large pieces, as this thread waits for the interpreter's lock after each.
    """

    def found() -> str:
        if path is None:
            return hashlib.sha256(cast("Any", data)).hexdigest()
        try:
            return _digest_of_file(path)
        except OSError as error:
            raise _unreadable(path, error) from error

    pool = ThreadPoolExecutor(1, "tilewright-digest")
    digest = pool.submit(found)
    pool.shutdown(wait=False)
    return digest.result


def _digest_of_file(path: Path) -> str:
    digest, memory = hashlib.sha256(), memoryview(bytearray(min(_PIECE, path.stat().st_size)))
    with path.open("rb", buffering=0) as file:
        while memory and (count := file.readinto(memory)):
            digest.update(memory[:count])
    return digest.hexdigest()


def _way_out(given: object) -> str:
    """What to give in place of something that is no model."""
    modules = {kind.__module__.partition(".")[0] for kind in type(given).__mro__}
    if "torch" in modules:
        return "Use tilewright.from_torch(module, inputs), which exports it first"
    return "Give a path, bytes, an onnx.ModelProto, an onnx_ir.Model or what torch.onnx.export gave"


def _mapped(path: Path) -> Array:
    try:
        require(path, MODEL, error=InvalidModelError)
        return map_file(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> InvalidModelError:
    return InvalidModelError(f"The file cannot be read: {error}", where=str(path))


def _parse(data: bytes, where: str) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    with third_party("this is not an ONNX model", where=where, hint=_EXPORT):
        proto.ParseFromString(data)
    return proto


def _from_proto(proto: onnx.ModelProto, where: str, folder: Path | None) -> LoadedModel:
    if not proto.HasField("graph") or not proto.opset_import:
        raise InvalidModelError(
            "this is not an ONNX model: it has no graph or no operator sets",
            where=where,
            hint=_EXPORT,
        )
    _check_opsets({o.domain: o.version for o in proto.opset_import}, where)
    if not proto.graph.output:
        raise InvalidModelError("the graph has no outputs", where=where, hint=_EXPORT)
    _check_outputs([value.name for value in proto.graph.output], where)
    _check_maps(proto.graph)
    check_initializers(proto, where, folder)
    with third_party("the model cannot be read", where=where, hint=_EXPORT):
        proto = _typed_outputs(_normalised(proto, where, folder))
        _check(proto)
        model = onnx_ir.from_proto(proto)
    attach(model, folder)
    return LoadedModel(model, proto.graph.name or "model")


def _check_outputs(names: Sequence[str], where: str) -> None:
    """Results are given by name, so that no two may have the same; ONNX allows it."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UnsupportedError(
            f'two outputs of the graph are called "{twice[0]}"',
            where=where,
            hint="List the output once, or make the other one by an Identity with its own name",
        )


def _check_maps(graph: onnx.GraphProto) -> None:
    """A map has no shape that a tensor has, and onnx-ir does not read its type."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        kind = value.type
        while kind.WhichOneof("value") in ("sequence_type", "optional_type"):
            kind = getattr(kind, str(kind.WhichOneof("value"))).elem_type
        if kind.HasField("map_type"):
            raise UnsupportedError(
                "a value is a map, as ZipMap makes of scores; maps are not supported",
                where=f'value "{value.name}"',
                hint="export without maps (skl2onnx: options={'zipmap': False}), or delete the "
                "operator that makes or takes them from the model",
            )


def _check_opsets(opsets: dict[str, int], where: str) -> None:
    for domain, version in opsets.items():
        if domain in ("", "ai.onnx") and version > NEWEST_OPSET:
            raise UnsupportedError(
                f"the model uses opset {version}, the newest known one is {NEWEST_OPSET}",
                where=where,
                hint="export with an older opset, or install a newer onnx",
            )


def _normalised(proto: onnx.ModelProto, where: str, folder: Path | None) -> onnx.ModelProto:
    """The model with dense tensors in place of sparse ones and no external data in attributes."""
    proto = inline_attributes(proto, where, folder)
    if not proto.graph.sparse_initializer and not any(map(_is_sparse, attributes_of(proto))):
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for initializer in copy.graph.sparse_initializer:
        dense = numpy_helper.from_array(densify(initializer), name=initializer.values.name)
        copy.graph.initializer.append(dense)
    del copy.graph.sparse_initializer[:]
    for attribute in attributes_of(copy):
        if _is_sparse(attribute):
            attribute.t.CopyFrom(numpy_helper.from_array(densify(attribute.sparse_tensor)))
            attribute.type = onnx.AttributeProto.TENSOR
            attribute.name = "value"
            attribute.ClearField("sparse_tensor")
    return copy


def _typed_outputs(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model in which outputs that are inputs have their types; onnx-ir has one for both."""
    given = {value.name: value.type for value in proto.graph.input}
    outputs = [v for v in proto.graph.output if v.name in given]
    bare = {v.name for v in outputs if _says_less(v.type, given[v.name])}
    if not bare:
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for value in copy.graph.output:
        if value.name in bare:
            value.type.CopyFrom(given[value.name])
    return copy


def _is_sparse(attribute: onnx.AttributeProto) -> bool:
    """Whether this is the attribute of a Constant that holds a sparse tensor."""
    return attribute.name == "sparse_value" and attribute.HasField("sparse_tensor")


def densify(sparse: onnx.SparseTensorProto) -> np.ndarray:
    """The dense array of a sparse tensor in either of ONNX's two index formats."""
    values = numpy_helper.to_array(sparse.values)
    indices = numpy_helper.to_array(sparse.indices)
    if any(d < 0 for d in sparse.dims) or np.prod(sparse.dims, dtype=object) > 1 << 31:
        raise InvalidModelError(
            f"a sparse tensor has the sizes {list(sparse.dims)}", where=sparse.values.name
        )
    dense = np.zeros(tuple(sparse.dims), dtype=values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return dense


def _check(proto: onnx.ModelProto) -> None:
    """onnx's own checks, on a copy in which every initializer is an input."""
    skeleton = onnx.ModelProto()
    skeleton.ir_version = proto.ir_version
    skeleton.opset_import.extend(proto.opset_import)
    skeleton.functions.extend(proto.functions)
    graph = skeleton.graph
    graph.name = proto.graph.name or "model"
    graph.node.extend(proto.graph.node)
    graph.input.extend(proto.graph.input)
    graph.output.extend(proto.graph.output)
    known = {value.name for value in proto.graph.input}
    seen: set[str] = set()
    for tensor in proto.graph.initializer:
        if not tensor.name or tensor.name in seen:
            raise InvalidModelError(
                f'an initializer has no name, or that of another: "{tensor.name}"', hint=_EXPORT
            )
        seen.add(tensor.name)
        if tensor.name not in known:
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    for value in graph.output:
        # Tools that make outputs of inner values often leave the type out; what is computed has it.
        if not _is_typed(value.type):
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for value in (*graph.input, *graph.output):
        # The checker demands shapes; models whose outputs have none are common.
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()
    _set_aside(skeleton)
    onnx.checker.check_model(skeleton)


def _says_less(kind: onnx.TypeProto, other: onnx.TypeProto) -> bool:
    """Whether a type lacks its element type, or a shape that another one of the same has."""
    if not _is_typed(kind):
        return True
    own, full = kind.tensor_type, other.tensor_type
    return own.elem_type == full.elem_type and full.HasField("shape") > own.HasField("shape")


def _is_typed(kind: onnx.TypeProto) -> bool:
    if kind.HasField("tensor_type"):
        return bool(kind.tensor_type.elem_type)
    return kind.WhichOneof("value") is not None


def _set_aside(proto: onnx.ModelProto) -> None:
    """Put what onnx's checker refuses and a rule has into ONNX Runtime's domain, which it passes.

    That is what ONNX Runtime adds to the standard domain, and operators that ONNX has given up at
    an opset, as GroupNormalization between 18 and 20, which models of that time hold.
    """
    opsets = {o.domain: o.version for o in proto.opset_import}
    standard = opsets.get("", opsets.get("ai.onnx", 1))
    waiting, moved = [proto.graph], False
    while waiting:
        for node in waiting.pop().node:
            waiting += [g for a in node.attribute for g in ([a.g] if a.HasField("g") else a.graphs)]
            if node.domain in ("", "ai.onnx") and _is_set_aside(node.op_type, standard):
                node.domain, moved = DOMAIN, True
    if moved and DOMAIN not in opsets:
        proto.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))


def _is_set_aside(name: str, opset: int) -> bool:
    """Whether a rule has an operator that ONNX does not have at this opset, or has given up."""
    schema = find_schema("", name, opset)
    if schema is None:
        return name in ADDED
    return schema.deprecated and find_operator("", name, opset) is not None
