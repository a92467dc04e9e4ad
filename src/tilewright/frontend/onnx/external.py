"""External data: weights in files beside the model, confined to the model's folder.

A location must be a relative path that stays inside of the folder, symbolic links followed, and its
file must be long enough. ``attach`` points the initializers of a model at their files;
:func:`inline_attributes` reads the rare external tensors inside of attributes at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir

from tilewright.ir.mapped import map_file
from tilewright.support.errors import InvalidModelError

_EXTERNAL = onnx.TensorProto.EXTERNAL
_KEEP = "keep the files that the model refers to in its folder, and give the model by its path"


def attributes_of(proto: onnx.ModelProto) -> Iterator[onnx.AttributeProto]:
    """The attributes of all nodes, those of functions and sub-graphs included."""
    pending = [*proto.graph.node, *(n for function in proto.functions for n in function.node)]
    while pending:
        for attribute in pending.pop().attribute:
            yield attribute
            for graph in _graphs(attribute):
                pending.extend(graph.node)


def _graphs(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _inner_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    for attribute in attributes_of(proto):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("sparse_tensor"):
            yield attribute.sparse_tensor.values
            yield attribute.sparse_tensor.indices
        for graph in _graphs(attribute):
            yield from graph.initializer
    for sparse in proto.graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices


def inline_attributes(proto: onnx.ModelProto, where: str, folder: Path | None) -> onnx.ModelProto:
    """The model with the external tensors of attributes and sub-graphs read into it."""
    if not any(t.data_location == _EXTERNAL for t in _inner_tensors(proto)):
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for tensor in _inner_tensors(copy):
        if tensor.data_location == _EXTERNAL:
            path, offset, length = _locate(tensor, where, folder)
            with path.open("rb") as file:
                file.seek(offset)
                tensor.raw_data = file.read(length)
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
    return copy


def check_initializers(proto: onnx.ModelProto, where: str, folder: Path | None) -> None:
    """Refuse external initializers of the main graph that are not where they should be."""
    for tensor in proto.graph.initializer:
        if tensor.data_location == _EXTERNAL:
            _locate(tensor, where, folder)


def attach(model: onnx_ir.Model, folder: Path | None) -> None:
    """Map the files of the external initializers of the main graph, each once."""
    if folder is None:
        return
    onnx_ir.external_data.set_base_dir(model.graph, folder)
    files: dict[Path, np.ndarray] = {}
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, onnx_ir.ExternalTensor) and tensor.dtype.bitwidth in (8, 16, 32, 64):
            path = Path(tensor.path)
            if path not in files:
                files[path] = _map(path)
            value.const_value = _mapped(tensor, files[path])


def _map(path: Path) -> np.ndarray:
    try:
        return map_file(path)
    except OSError as error:
        raise InvalidModelError(
            f"A file with the model's data cannot be read: {error.strerror}", where=str(path)
        ) from error


def _mapped(tensor: onnx_ir.ExternalTensor, file: np.ndarray) -> onnx_ir.Tensor[np.ndarray]:
    """The tensor as a view of its file, whose place and size were checked."""
    dtype, shape = tensor.dtype.numpy(), tensor.shape.numpy()
    begin = tensor.offset or 0
    data = file[begin : begin + math.prod(shape) * dtype.itemsize]
    if begin % dtype.itemsize:
        data = data.copy()
        data.setflags(write=False)  # it is held by nobody else
    array = data.view(dtype).reshape(shape)
    return onnx_ir.Tensor(array, dtype=tensor.dtype, shape=tensor.shape, name=tensor.name)


def _locate(tensor: onnx.TensorProto, where: str, folder: Path | None) -> tuple[Path, int, int]:
    """File, offset and number of bytes of an external tensor, all checked."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    place = f'{where}, tensor "{tensor.name}", file {location!r}'
    if folder is None:
        raise InvalidModelError(
            "the model keeps data in other files, but was not given as a file", where=place,
            hint=_KEEP,
        )  # fmt: skip
    path = _confined(location, folder, place)
    offset = _number(entries.get("offset"), 0, place)
    needed = _bytes(tensor, place)
    length = _number(entries.get("length"), needed, place)
    size = path.stat().st_size
    if length != needed or offset + length > size:
        raise InvalidModelError(
            f"the tensor needs {needed} bytes, the model says {length} from byte {offset} on, and "
            f"the file has {size}",
            where=place,
            hint="copy the data file again; it is too short or belongs to another model",
        )
    return path, offset, length


def _confined(location: str, folder: Path, place: str) -> Path:
    relative = Path(location)
    inside = bool(location) and "\0" not in location and not relative.is_absolute()
    if inside and ".." not in relative.parts and "\\" not in location and ":" not in location:
        root = folder.resolve()
        try:
            path = (root / relative).resolve()
            if path.is_relative_to(root):
                if path.is_file():
                    return path
                raise InvalidModelError(
                    "a file with the model's data is missing", where=place, hint=_KEEP
                )
        except (OSError, RuntimeError) as error:
            raise InvalidModelError(f"the file cannot be read: {error}", where=place) from error
    raise InvalidModelError(
        "the model refers to a file outside of its folder", where=place, hint=_KEEP
    )


def _number(text: str | None, default: int, place: str) -> int:
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidModelError(f"an offset or length is {text!r}", where=place)
    return int(text)


def _bytes(tensor: onnx.TensorProto, place: str) -> int:
    if any(d < 0 for d in tensor.dims):
        raise InvalidModelError(f"a tensor has the sizes {list(tensor.dims)}", where=place)
    try:
        bits = onnx_ir.DataType(tensor.data_type).bitwidth
    except (ValueError, TypeError) as error:
        message = f"element type {tensor.data_type} cannot be external"
        raise InvalidModelError(message, where=place) from error
    return -(-math.prod(tensor.dims) * int(bits) // 8) if bits else 0
