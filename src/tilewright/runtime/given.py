"""Results in memory of the caller: ``out=``, and torch tensors where torch tensors go in.

Torch is never imported here: who gives a tensor has done so. Imports ``support``, numpy and the
rest of the package. Start reading at :func:`given_outputs`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from tilewright.runtime.lower import describe
from tilewright.runtime.program import NATIVE_ITEM_SIZES, Buffer
from tilewright.runtime.tensors import as_writable
from tilewright.support.arguments import show
from tilewright.support.errors import InputError
from tilewright.support.text import format_count

# Of the element types that torch has and numpy does not know: what their bits are copied as.
_CARRIERS = {
    "bfloat16": np.int16,
    "float8_e4m3fn": np.uint8,
    "float8_e4m3fnuz": np.uint8,
    "float8_e5m2": np.uint8,
    "float8_e5m2fnuz": np.uint8,
}


def given_outputs(outputs: Sequence[Buffer], out: Any) -> list[Any]:
    """What ``out`` holds for each output, None where the model makes the array.

    One array for a model with one output, one value per output in order, or values by name. Raises
    InputError.
    """
    names = [buffer.name for buffer in outputs]
    listed = ", ".join(f"'{name}'" for name in names)
    if isinstance(out, Mapping):
        by_name = cast("Mapping[Any, Any]", out)
        unknown = [name for name in by_name if name not in names]
        if unknown:
            raise InputError(
                f"'out' names {show(unknown[0])}, which is no output of the model",
                hint=f"Choose from the outputs {listed}",
            )
        return [by_name.get(name) for name in names]
    values = list(cast("Sequence[Any]", out)) if isinstance(out, tuple | list) else [out]
    if len(values) != len(names):
        raise InputError(
            f"'out' holds {format_count(len(values), 'array')}, but the model has "
            f"{format_count(len(names), 'output')}",
            hint=f"Give a tuple of arrays or None for {listed}, or a dictionary by name",
        )
    return values


def as_arrays(outputs: Sequence[Buffer], values: Sequence[Any]) -> tuple[Any, ...]:
    """The values as arrays that kernels can write to. Raises InputError."""
    return tuple(
        None if value is None else _as_array(buffer, value)
        for buffer, value in zip(outputs, values, strict=True)
    )


def _as_array(buffer: Buffer, value: Any) -> np.ndarray[Any, Any]:
    if buffer.dtype not in NATIVE_ITEM_SIZES:
        raise InputError(
            f"Output '{buffer.name}' holds Python objects, which cannot be written to an array",
            where=f"output '{buffer.name}'",
            hint="Give None for this output",
        )
    return as_writable(buffer.name, value, buffer.dtype, len(buffer.shape), describe(buffer))


def torch_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The module torch, if it is loaded and one of the arguments is a tensor of it; else None."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    kind = getattr(torch, "Tensor", None)  # not there yet while torch is being imported
    given = (*args, *kwargs.values())
    return torch if kind is not None and any(isinstance(value, kind) for value in given) else None


def as_torch(torch: Any, value: Any) -> Any:
    """An array as a tensor over the same memory; unchanged what torch has no such tensors of."""
    if not isinstance(value, np.ndarray) or value.dtype.kind == "O":
        return value
    array = cast("np.ndarray[Any, Any]", value)
    if not array.flags.writeable:
        array = array.copy()
    carrier, kind = _CARRIERS.get(array.dtype.name), getattr(torch, array.dtype.name, None)
    if carrier is not None and kind is not None:
        return torch.from_numpy(array.view(carrier)).view(kind)
    try:
        return torch.from_numpy(array)
    except TypeError:  # such as four-bit integers
        return array
