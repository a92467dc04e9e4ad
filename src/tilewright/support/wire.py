"""The fields of a protocol buffer's outermost message, without its definition.

Large fields are skipped, so that a file of gigabytes is read in a few steps. Start with
:func:`message_fields`. Imports nothing but the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO

_KINDS = {0: "varint", 1: "fixed64", 2: "bytes", 5: "fixed32"}
_MOST_FIELDS = 4096  # a message with more of them at its top is judged by these
_LONGEST = 10  # bytes of a number

# The fields of onnx.TensorProto, and how each may be written.
_TENSOR_FIELDS: dict[int, tuple[str, ...]] = {
    1: ("varint", "bytes"),
    2: ("varint",),
    3: ("bytes",),
    4: ("bytes", "fixed32"),
    5: ("bytes", "varint"),
    6: ("bytes",),
    7: ("bytes", "varint"),
    8: ("bytes",),
    9: ("bytes",),
    10: ("bytes", "fixed64"),
    11: ("bytes", "varint"),
    12: ("bytes",),
    13: ("bytes",),
    14: ("varint",),
    16: ("bytes",),
}


def message_fields(path: Path) -> dict[int, str] | None:
    """The number and kind of every field of the message that fills a file; None if none does."""
    fields: dict[int, str] = {}
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            for _ in range(_MOST_FIELDS):
                if file.tell() == size:
                    break
                tag = _number(file)
                kind = None if tag is None else _KINDS.get(tag & 7)
                if tag is None or kind is None or not tag >> 3 or not _skip(file, kind, size):
                    return None
                fields[tag >> 3] = kind
    except OSError:
        return None
    return fields


def is_tensor_message(fields: Mapping[int, str]) -> bool:
    """Whether a message may be a tensor of ONNX: it says its type and has no other fields."""
    return fields.get(2) == "varint" and all(
        kind in _TENSOR_FIELDS.get(number, ()) for number, kind in fields.items()
    )


def _skip(file: IO[bytes], kind: str, size: int) -> bool:
    """Go behind the value of a field; whether it ends within the file."""
    if kind == "varint":
        return _number(file) is not None
    length = {"fixed64": 8, "fixed32": 4}.get(kind) if kind != "bytes" else _number(file)
    if length is None or file.tell() + length > size:
        return False
    file.seek(length, 1)
    return True


def _number(file: IO[bytes]) -> int | None:
    """The number that begins here, seven bits in each byte; None where there is none."""
    value = 0
    for index in range(_LONGEST):
        byte = file.read(1)
        if not byte:
            return None
        value |= (byte[0] & 127) << (7 * index)
        if byte[0] < 128:
            return value
    return None
