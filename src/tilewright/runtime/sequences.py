"""Batches of sequences of their own lengths: packed into arrays for a call, and taken apart again.

A batch is a list of arrays, one for each sequence, a :class:`Ragged` of packed values and offsets,
a nested tensor of torch, or one array of sequences that are equally long; results come back in the
same form. Torch is never imported here.
Imports ``support``, numpy and the rest of the package. Start with :class:`Sequences`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, cast

import numpy as np

from tilewright.runtime.arguments import refusal
from tilewright.runtime.given import as_torch
from tilewright.runtime.program import Buffer
from tilewright.runtime.ragged_batch import RaggedBatch, RaggedTensor
from tilewright.runtime.results import TensorSpec
from tilewright.runtime.tensors import as_array, as_tensor, native_dtype
from tilewright.support.arguments import show
from tilewright.support.errors import DimensionError, InputError
from tilewright.support.text import article, format_count

Array = np.ndarray[Any, Any]
_Form = Literal["list", "tensors", "ragged", "nested", "array", "tensor"]


@dataclass(frozen=True, eq=False)
class Ragged:
    """Sequences one after another: sequence i is ``values[offsets[i] : offsets[i + 1]]``.

    ``offsets`` are integers that begin with 0, do not fall and end with the length of ``values``;
    there is one more of them than there are sequences.
    """

    values: Any
    offsets: Any


@dataclass(frozen=True)
class _Batch:
    """A batch as it was given: packed values, where sequences begin and end, and its form.

    ``length`` is that of all sequences of one array, ``layout`` that of a nested tensor.
    """

    values: Any
    ends: Array
    form: _Form
    length: int = 0
    layout: Any = None


class Sequences:
    """How the arguments of a model become those of its program, and results the caller's."""

    def __init__(
        self, ragged: RaggedBatch, inputs: Sequence[Buffer], described: Sequence[TensorSpec],
        fixed: Sequence[str],
    ) -> None:  # fmt: skip
        self.ragged = ragged
        self.fixed = fixed
        self.buffers = tuple(inputs[:-1])
        self.described = tuple(described)
        self.inputs = tuple(buffer.name for buffer in self.buffers)
        self.offsets = inputs[-1].name

    def packed(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], _Batch]:
        """The inputs of the program by name, and the batch whose form results are given in.

        Raises InputError and DimensionError.
        """
        expected = ", ".join(map(str, self.described))
        error = refusal(self.inputs, expected, args, kwargs, self.fixed)
        if error is not None:
            raise error
        given = {**dict(zip(self.inputs, args, strict=False)), **kwargs}
        first: tuple[str, _Batch] | None = None
        for buffer, tensor in zip(self.buffers, self.ragged.inputs, strict=True):
            name = buffer.name
            if tensor.part != "positions":
                continue
            batch = self._batch(buffer, given[name], tensor)
            given[name] = batch.values
            if first is None:
                first = name, batch
            elif not np.array_equal(first[1].ends, batch.ends):
                raise _different(first, (name, batch))
        if first is None:
            raise InputError("The model has no input of sequences")
        given[self.offsets] = first[1].ends
        return given, first[1]

    def unpacked(self, results: Sequence[Any], batch: _Batch) -> list[Any]:
        """The results in the form of the batch: those with positions one for every sequence."""
        pairs = zip(results, self.ragged.outputs, strict=True)
        return [_unpacked(value, tensor, batch) for value, tensor in pairs]

    # ------------------------------------------------------------ inputs

    def _batch(self, buffer: Buffer, value: Any, tensor: RaggedTensor) -> _Batch:
        name, axis = buffer.name, tensor.inner_axis
        expected = self._expected(buffer, tensor)
        form: _Form = "list"
        layout = getattr(value, "layout", None)
        if getattr(value, "is_nested", False):
            form = "nested"
            value = [_detached(part) for part in value.unbind()]
        if isinstance(value, Ragged):
            values = _as_array(buffer, value.values, expected)
            if values.ndim <= axis:
                raise InputError(
                    f"The values have {format_count(values.ndim, 'axis', 'axes')}, but sequences "
                    f"follow each other along axis {axis}",
                    where=f"input '{name}'",
                    hint="Give the values of all sequences in one array, one behind the other",
                )
            ends = _offsets(name, value.offsets, values.shape[axis])
            self._check_lengths(name, np.diff(ends))
            form = "ragged"
        elif isinstance(value, list | tuple):
            parts = [_as_array(buffer, part, expected) for part in cast("Sequence[Any]", value)]
            if form == "list" and any(_is_tensor(part) for part in cast("Sequence[Any]", value)):
                form = "tensors"
            lengths = _lengths(name, parts, axis)
            self._check_lengths(name, lengths)
            ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
            values = _joined(name, parts or [_nothing(buffer, tensor)], axis)
        elif isinstance(value, np.ndarray) or hasattr(value, "__dlpack__"):
            array = _whole_batch(buffer, value, expected)
            count, length = array.shape[tensor.unit_axis], array.shape[tensor.axis]
            self._check_lengths(name, np.full(min(count, 1), length, np.int64))
            form = "tensor" if _is_tensor(value) else "array"
            return _equally_long(array, tensor, form)
        else:
            raise InputError(
                f"Input '{name}' is {article(type(value).__name__)}, but the model takes sequences "
                "of their own lengths",
                where=f"input '{name}'",
                hint=_FORMS,
            )
        rank = len(buffer.shape) - (tensor.unit_axis >= 0)
        values = as_tensor(name, values, buffer.dtype, rank, expected)
        if tensor.unit_axis >= 0:
            values = np.expand_dims(values, tensor.unit_axis)
        return _Batch(values, ends, form, layout=layout)

    def _expected(self, buffer: Buffer, tensor: RaggedTensor) -> str:
        """The type of one sequence for people."""
        (spec,) = (spec for spec in self.described if spec.name == buffer.name)
        sizes = [size for axis, size in enumerate(spec.shape) if axis != tensor.unit_axis]
        return f"{spec.dtype}[{', '.join(sizes)}]"

    def _check_lengths(self, name: str, lengths: Array) -> None:
        """Raise where a length is not in its range; asked before anything is copied."""
        ragged = self.ragged
        wrong = (lengths < ragged.low) | (lengths % ragged.multiple_of != 0)
        if ragged.high is not None:
            wrong |= lengths > ragged.high
        if not wrong.any():
            return
        number = int(wrong.argmax())
        most = "" if ragged.high is None else f"..{ragged.high}"
        factor = "" if ragged.multiple_of == 1 else f", multiples of {ragged.multiple_of}"
        raise DimensionError(
            f"Sequence {number} has the length {lengths[number]}, but {ragged.name} is in "
            f"{ragged.low}{most}{factor}",
            where=f"input '{name}'",
            hint="Give sequences of lengths in this range, or compile for a wider one",
        )


_FORMS = (
    "Give a list of arrays, one for each sequence, tilewright.Ragged(values, offsets), a nested "
    "tensor, or one array of sequences that are equally long"
)


def _as_array(buffer: Buffer, value: Any, expected: str) -> Array:
    """One array of the caller's, whatever its shape."""
    return as_array(buffer.name, _detached(value), buffer.dtype, expected)


def _nothing(buffer: Buffer, tensor: RaggedTensor) -> Array:
    """A sequence without positions."""
    sizes = [size.value if size.is_constant else 0 for size in buffer.shape]
    kept = [size for axis, size in enumerate(sizes) if axis != tensor.unit_axis]
    return np.empty(kept, native_dtype(buffer.dtype))


def _whole_batch(buffer: Buffer, value: Any, expected: str) -> Array:
    """One array of sequences that are equally long, as it was given."""
    array, rank = _as_array(buffer, value, expected), len(buffer.shape)
    if array.ndim != rank:
        raise InputError(
            f"The array has {format_count(array.ndim, 'axis', 'axes')}, but a batch has {rank}",
            where=f"input '{buffer.name}'",
            hint=_FORMS,
        )
    return array


def _equally_long(array: Array, tensor: RaggedTensor, form: _Form) -> _Batch:
    """A batch in one array, all of whose sequences have one length."""
    count, length = array.shape[tensor.unit_axis], array.shape[tensor.axis]
    inner = tensor.inner_axis
    array = np.moveaxis(array, tensor.unit_axis, inner)
    sizes = array.shape[:inner], (count * length,), array.shape[inner + 2 :]
    values = np.expand_dims(array.reshape(*sizes[0], *sizes[1], *sizes[2]), tensor.unit_axis)
    ends = np.arange(count + 1, dtype=np.int64) * length
    return _Batch(values, ends, form, length)


def _lengths(name: str, parts: list[Array], axis: int) -> Array:
    """How long the sequences are, which have to be of one type."""
    for number, part in enumerate(parts):
        first = parts[0]
        same = part.ndim == first.ndim and part.dtype == first.dtype
        if not same or part.ndim <= axis:
            raise InputError(
                f"Sequence {number} is {part.dtype.name}{list(part.shape)}, which does not fit "
                f"{first.dtype.name}{list(first.shape)} of sequence 0",
                where=f"input '{name}'",
                hint="Give sequences of one type that differ in their length alone",
            )
    return np.array([part.shape[axis] for part in parts], np.int64)


def _joined(name: str, parts: list[Array], axis: int) -> Array:
    """All sequences along one axis."""
    try:
        return np.concatenate(parts, axis)
    except ValueError as error:
        raise InputError(
            f"The sequences differ in other sizes than their length: {error}",
            where=f"input '{name}'",
            hint="Give sequences that differ in their length alone",
        ) from error


def _different(one: tuple[str, _Batch], other: tuple[str, _Batch]) -> InputError:
    """Two inputs whose sequences are not as long as each other's."""
    (first, left), (second, right) = one, other
    if len(left.ends) != len(right.ends):
        counts = len(left.ends) - 1, len(right.ends) - 1
        problem = f"'{first}' has {format_count(counts[0], 'sequence')}, '{second}' {counts[1]}"
    else:
        lengths = np.diff(left.ends), np.diff(right.ends)
        number = int(np.flatnonzero(lengths[0] != lengths[1])[0])
        problem = (
            f"sequence {number} has the length {lengths[0][number]} in '{first}', but "
            f"{lengths[1][number]} in '{second}'"
        )
    return InputError(f"The inputs differ: {problem}", where=f"input '{second}'")


def _offsets(name: str, given: Any, count: int) -> Array:
    """Where sequences begin and the last one ends, checked."""
    ends = np.asarray(_detached(given))
    fits = ends.ndim == 1 and len(ends) > 0 and ends.dtype.kind in "iu"
    ends = ends.astype(np.int64) if fits else ends
    if not fits or ends[0] != 0 or ends[-1] != count or bool((np.diff(ends) < 0).any()):
        raise InputError(
            f"The offsets are {show(given)}, which do not divide {format_count(count, 'position')}",
            where=f"input '{name}'",
            hint=f"Give integers that begin with 0, do not fall, and end with {count}",
        )
    return np.ascontiguousarray(ends)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _detached(value: Any) -> Any:
    """A tensor of torch without its history; other values as they are."""
    return value.detach() if _is_tensor(value) else value


# ---------------------------------------------------------------- results


def _unpacked(value: Any, tensor: RaggedTensor, batch: _Batch) -> Any:
    torch, form, ends = sys.modules.get("torch"), batch.form, batch.ends
    as_tensors = form in ("tensors", "nested", "tensor")
    if tensor.part != "positions":
        return as_torch(torch, value) if as_tensors else value
    array = value.squeeze(tensor.unit_axis) if tensor.unit_axis >= 0 else value
    axis = tensor.inner_axis
    if form == "ragged":
        return Ragged(array, ends)
    if form in ("array", "tensor"):
        sizes = array.shape[:axis], (len(ends) - 1, batch.length), array.shape[axis + 1 :]
        whole = array.reshape(*sizes[0], *sizes[1], *sizes[2])
        whole = np.moveaxis(whole, axis, max(tensor.unit_axis, 0))
        return as_torch(torch, whole) if as_tensors else whole
    before = (slice(None),) * axis
    parts = [array[(*before, slice(a, b))] for a, b in pairwise(ends.tolist())]
    if not as_tensors:
        return parts
    tensors = [as_torch(torch, part) for part in parts]
    return tensors if form == "tensors" else _nested(torch, tensors, batch)


def _nested(torch: Any, tensors: list[Any], batch: _Batch) -> Any:
    return torch.nested.as_nested_tensor(tensors, layout=batch.layout)


__all__ = ["Ragged", "Sequences"]
