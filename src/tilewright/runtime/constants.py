"""Constants in memory: aligned addresses for kernels, arrays for opaque steps.

Constants that are aligned already, as those of a mapped artifact are, stay where they are. Imports
numpy and the rest of the package. Start reading at :func:`place_constants`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.runtime.artifact import ALIGNMENT, Bytes, aligned_memory, raw_bytes
from tilewright.runtime.program import Buffer, OpaqueStep, Program
from tilewright.runtime.reading import REPAIR, contradiction
from tilewright.runtime.tensors import native_dtype
from tilewright.support.errors import ArtifactError

_Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class PlacedConstants:
    """``entries`` hold (address, bytes, array for opaque steps or None); ``owners`` keep memory."""

    entries: list[tuple[int, int, _Array | None]]
    owners: list[_Array]


def place_constants(program: Program, constants: Sequence[Bytes]) -> PlacedConstants:
    """Aligned memory for each constant. Raises ArtifactError where one does not fit its type."""
    owners = [_aligned(np.frombuffer(raw_bytes(data), np.uint8)) for data in constants]
    arrays: dict[int, _Array] = {}
    for step in program.steps:
        for number in step.inputs if isinstance(step, OpaqueStep) else ():
            if not 0 <= number < len(program.buffers):
                raise contradiction(f"there is no buffer {number}", program.name)
            buffer = program.buffers[number]
            if buffer.kind == "constant" and 0 <= buffer.index < len(owners):
                arrays[buffer.index] = _as_array(buffer, owners[buffer.index])
    entries = [
        (data.__array_interface__["data"][0], data.nbytes, arrays.get(index))
        for index, data in enumerate(owners)
    ]
    return PlacedConstants(entries, owners)


def _aligned(data: _Array) -> _Array:
    if data.__array_interface__["data"][0] % ALIGNMENT == 0:
        return data
    copy = aligned_memory(data.nbytes)
    copy[:] = data
    return copy


def _as_array(buffer: Buffer, data: _Array) -> _Array:
    """A read-only array of the constant; strings are stored as a JSON list."""
    shape = [size.evaluate({}) for size in buffer.shape]
    try:
        if buffer.dtype == "string":
            array = np.array(json.loads(data.tobytes()), dtype=object).reshape(shape)
        else:
            dtype = native_dtype(buffer.dtype)
            count = int(np.prod(shape, dtype=np.int64))
            array = np.frombuffer(data.data, dtype, count).reshape(shape)
    except (TypeError, ValueError) as error:
        raise ArtifactError(
            f"A constant does not fit its type {buffer.dtype}{shape}",
            where=f"constant '{buffer.name}'",
            hint=REPAIR,
        ) from error
    array.flags.writeable = False
    return array
