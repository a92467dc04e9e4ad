"""Large initializers that stay where a serialised model has them: they are never parsed.

Parsing a model copies the weights in it, which takes most of the time of reading one. So they are
cut out of what is parsed, by the few rules of the wire format alone, and put back as views of the
given bytes. Whatever is unusual is left to the parser, which also says what is wrong. Start with
:func:`cut_out`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir

Array = np.ndarray[Any, Any]

LARGE = 1 << 12  # bytes of an initializer's contents from which they stay where they are
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # fields of ModelProto, GraphProto and TensorProto
_BYTES = 2  # the wire type of whatever says its length
_FIXED = {1: 8, 5: 4}  # bytes of the wire types that do not
_WHOLE_BYTES = (8, 16, 32, 64)  # bits of the elements that numpy reads as they lie
_MOST_BITS = 64  # of a number


@dataclass(frozen=True)
class Contents:
    """Where the contents of an initializer lie; ``number`` counts the initializers."""

    number: int
    begin: int
    end: int


@dataclass(frozen=True)
class _Field:
    """A field of a message: its number, wire type, and where it and its value lie."""

    number: int
    kind: int
    begin: int
    value: int
    end: int


class _UnusualError(Exception):
    """This is left to the parser."""


def cut_out(data: Array) -> tuple[bytes, list[Contents]]:
    """A serialised model without the contents of its large initializers, and where those lie.

    Nothing is cut out where the bytes are no usual model.
    """
    view = memoryview(cast("Any", data))
    try:
        fields = list(_fields(view, 0, len(view)))
        graphs = [f for f in fields if f.number == _GRAPH and f.kind == _BYTES]
        if len(graphs) != 1:
            raise _UnusualError  # a parser would merge them
        pieces, found = _graph(view, graphs[0])
    except _UnusualError:
        return bytes(view), []
    if not found:
        return bytes(view), []
    before, after = view[: graphs[0].begin], view[graphs[0].end :]
    return b"".join([before, *_message(_GRAPH, pieces), after]), found


def put_back(model: onnx_ir.Model, names: Sequence[str], data: Array, cut: list[Contents]) -> None:
    """Give the initializers, whose ``names`` are in order, what was cut out of ``data``."""
    for place in cut:
        value = model.graph.initializers[names[place.number]]
        tensor = value.const_value
        assert tensor is not None
        dtype, shape = tensor.dtype.numpy(), tensor.shape.numpy()
        array = data[place.begin : place.end].view(dtype).reshape(shape)
        value.const_value = onnx_ir.Tensor(
            array, dtype=tensor.dtype, shape=onnx_ir.Shape(shape), name=tensor.name
        )


def is_plain(tensor: onnx.TensorProto, size: int) -> bool:
    """Whether so many bytes, and nothing else, are the contents of a tensor without any."""
    try:
        bits = int(onnx_ir.DataType(tensor.data_type).bitwidth)
    except (ValueError, TypeError):
        return False
    others = (tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.string_data,
              tensor.double_data, tensor.uint64_data, tensor.external_data)  # fmt: skip
    plain = bits in _WHOLE_BYTES and not any(map(len, others))
    default = tensor.data_location == onnx.TensorProto.DEFAULT
    fits = all(d >= 0 for d in tensor.dims) and math.prod(tensor.dims) * bits == 8 * size
    return plain and default and fits and not tensor.HasField("raw_data")


def _graph(view: memoryview, graph: _Field) -> tuple[list[memoryview | bytes], list[Contents]]:
    """The pieces of a graph without large contents, and where those lie."""
    pieces: list[memoryview | bytes] = []
    found: list[Contents] = []
    count, kept = 0, graph.value
    for field in _fields(view, graph.value, graph.end):
        if field.number != _INITIALIZER or field.kind != _BYTES:
            continue
        raw = _raw_data(view, field) if field.end - field.value >= LARGE else None
        if raw is not None and raw.end - raw.value >= LARGE:
            pieces.append(view[kept : field.begin])
            kept = field.end
            tensor = [view[field.value : raw.begin], view[raw.end : field.end]]
            pieces += _message(_INITIALIZER, tensor)
            found.append(Contents(count, raw.value, raw.end))
        count += 1
    return [*pieces, view[kept : graph.end]], found


def _raw_data(view: memoryview, tensor: _Field) -> _Field | None:
    """The field of a tensor with its contents as bytes, if there is one alone."""
    fields = _fields(view, tensor.value, tensor.end)
    found = [field for field in fields if field.number == _RAW_DATA]
    return found[0] if len(found) == 1 and found[0].kind == _BYTES else None


def _fields(view: memoryview, begin: int, end: int) -> Iterator[_Field]:
    """The fields of the message that fills these bytes."""
    while begin < end:
        tag, value = _number(view, begin, end)
        kind = tag & 7
        if kind == _BYTES:
            length, value = _number(view, value, end)
            after = value + length
        elif kind in _FIXED:
            after = value + _FIXED[kind]
        elif kind == 0:
            _, after = _number(view, value, end)
        else:
            raise _UnusualError
        if after > end or not tag >> 3:
            raise _UnusualError
        yield _Field(tag >> 3, kind, begin, value, after)
        begin = after


def _number(view: memoryview, begin: int, end: int) -> tuple[int, int]:
    """The number that begins here, seven bits in each byte, and where it ends."""
    value = shift = 0
    while begin < end and shift < _MOST_BITS:
        byte = view[begin]
        begin += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, begin
        shift += 7
    raise _UnusualError


def _message(number: int, pieces: Sequence[memoryview | bytes]) -> list[memoryview | bytes]:
    """A field with a message of these pieces."""
    length, header = sum(map(len, pieces)), bytearray([number << 3 | _BYTES])
    while length > 127:
        header.append(length & 127 | 128)
        length >>= 7
    return [bytes([*header, length]), *pieces]
