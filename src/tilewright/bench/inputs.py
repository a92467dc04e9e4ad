# pyright: basic
"""Sizes from the command line, and random inputs of a model at given sizes.

`parse_suite` reads ``"batch=1,seq=5;batch=4,seq=128"``; `model_inputs` lists what a model file
takes; `random_inputs` fills it with seeded values that the model can use; `ModelInputs` adds arrays
that are given. Used by the verbs bench, run and verify.
May import support, shape, numpy and onnx.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import helper

from tilewright.shape import parse
from tilewright.support.errors import DimensionError, InputError, InvalidModelError

VOCABULARY = 1000  # random whole numbers are below it, where no range is known


@dataclass(frozen=True)
class InputSpecification:
    """One input: its name, numpy dtype, and per axis a size or an expression over dimension names.

    An axis that has no name in the model is None; a model with such an axis cannot be filled.
    ``low`` and ``high`` say in what range the model can use values, as expressions over the
    dimensions; "" where nothing is known.
    """

    name: str
    dtype: np.dtype
    shape: tuple[int | str | None, ...]
    low: str = ""
    high: str = ""


def parse_sizes(text: str) -> dict[str, int]:
    """Read ``"batch=1,seq=5"``. Raises InputError with the offending piece."""
    sizes: dict[str, int] = {}
    for piece in text.split(","):
        name, separator, value = (part.strip() for part in piece.partition("="))
        if not (name and separator and value.isdecimal()):
            raise InputError(
                f"{piece.strip()!r} is not a dimension with a size.",
                where=f"sizes {text!r}",
                hint="Write for example batch=1,seq=5.",
            )
        if name in sizes:
            raise InputError(
                f"The dimension {name} is given twice.",
                where=f"sizes {text!r}",
                hint="Give it one size",
            )
        sizes[name] = int(value)
    return sizes


def parse_suite(text: str) -> tuple[dict[str, int], ...]:
    """Read several cases separated by semicolons: ``"batch=1,seq=5;batch=4,seq=128"``."""
    cases = tuple(parse_sizes(piece) for piece in text.split(";") if piece.strip())
    if not cases:
        raise InputError("No shape is given.", hint='Write for example --shapes "batch=1,seq=5".')
    return cases


def model_inputs(model: str | Path | onnx.ModelProto) -> tuple[InputSpecification, ...]:
    """What an ONNX model takes, without the inputs that are initializers.

    Raises InvalidModelError for a file that cannot be read and for inputs that are not tensors.
    """
    if not isinstance(model, onnx.ModelProto):
        try:
            model = onnx.load(str(model), load_external_data=False)
        except (OSError, ValueError, DecodeError) as error:
            raise InvalidModelError(
                f"The model cannot be read: {error}.", where=str(model)
            ) from error
    constants = {tensor.name for tensor in model.graph.initializer}
    return tuple(
        _specification(value) for value in model.graph.input if value.name not in constants
    )


def _specification(value: onnx.ValueInfoProto) -> InputSpecification:
    if not value.type.HasField("tensor_type"):
        raise InvalidModelError("The input is not a tensor.", where=f"input {value.name}")
    tensor = value.type.tensor_type
    shape = tuple(
        axis.dim_value if axis.HasField("dim_value") else axis.dim_param or None
        for axis in tensor.shape.dim
    )
    return InputSpecification(value.name, helper.tensor_dtype_to_np_dtype(tensor.elem_type), shape)


def concrete_shape(specification: InputSpecification, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of one input at the given sizes. Raises DimensionError for a size not given."""
    shape: list[int] = []
    for axis, extent in enumerate(specification.shape):
        where = f"input {specification.name}, axis {axis}"
        if extent is None:
            raise DimensionError(
                "The axis has no name, so it cannot be given a size.",
                where=where,
                hint="Give the input as a file with --input, or name the axis in the model",
            )
        if isinstance(extent, int):
            shape.append(extent)
        elif extent in sizes:
            shape.append(sizes[extent])
        else:
            shape.append(_evaluate(extent, sizes, where))
    return tuple(shape)


def _evaluate(extent: str, sizes: Mapping[str, int], where: str) -> int:
    """Evaluate the extent of an axis that is not simply the name of a given dimension."""
    given = ", ".join(sizes) or "none"
    try:
        expression = parse(extent)
    except (DimensionError, ValueError) as error:
        raise DimensionError(
            f"The dimension {extent!r} has no size; given: {given}.", where=where
        ) from error
    missing = [name for name in expression.free_symbols if name not in sizes]
    if missing:
        raise DimensionError(
            f"The dimension {', '.join(missing)} has no size; given: {given}.",
            where=where,
            hint=f"Add {missing[0]}=<size>.",
        )
    return expression.evaluate(sizes)


def random_inputs(
    specifications: Sequence[InputSpecification], sizes: Mapping[str, int], seed: int = 0
) -> dict[str, np.ndarray]:
    """Seeded inputs by name.

    Where the model says in what range it can use values, they are spread evenly over it. Else
    floats are normal; inputs named mask are ones; token types are 0 or 1; positions count up; other
    integers are below 1000 (below 100 where the type is 8 bits wide); booleans are even odds.
    """
    generator = np.random.default_rng(seed)
    return {
        specification.name: _random_array(generator, specification, sizes)
        for specification in specifications
    }


def _random_array(
    generator: np.random.Generator, specification: InputSpecification, sizes: Mapping[str, int]
) -> np.ndarray:
    shape, dtype = concrete_shape(specification, sizes), specification.dtype
    name, where = specification.name.lower(), f"input {specification.name}"
    if dtype.kind not in "biufcV":
        hint = f"Give them in a file: --input {specification.name}=FILE.npy"
        raise InputError(f"Random values of type {dtype} cannot be made", where=where, hint=hint)
    if dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(dtype)
    if specification.low or specification.high:
        low, high = _range(specification, sizes, where)
        if dtype.kind in "iu":
            return generator.integers(low, high, shape, endpoint=True).astype(dtype)
        return generator.uniform(low, high, shape).astype(dtype)
    if "mask" in name:
        return np.ones(shape, dtype)
    if dtype.kind in "iu":
        if "token_type" in name or "segment" in name:
            return generator.integers(0, 2, shape).astype(dtype)
        if "position" in name and shape:
            return np.broadcast_to(np.arange(shape[-1]), shape).astype(dtype)
        return generator.integers(0, VOCABULARY if dtype.itemsize > 1 else 100, shape).astype(dtype)
    return generator.standard_normal(shape).astype(dtype)


def _range(
    specification: InputSpecification, sizes: Mapping[str, int], where: str
) -> tuple[int, int]:
    """The least and the greatest value at these sizes; an open end is as far as random ids go."""
    low, high = (
        _evaluate(end, sizes, where) if end else None
        for end in (specification.low, specification.high)
    )
    if low is None:
        assert high is not None, "one end at least"
        low = min(0, high)
    high = low + VOCABULARY - 1 if high is None else high
    if specification.dtype.kind in "iu":
        limits = np.iinfo(specification.dtype)
        low, high = max(low, int(limits.min)), min(high, int(limits.max))
    # A table without rows has no valid index; any value gets the same refusal.
    return low, max(low, high)


@dataclass(frozen=True)
class ModelInputs:
    """The inputs of a model at any sizes: some from files, the others random."""

    specifications: tuple[InputSpecification, ...]
    given: Mapping[str, np.ndarray]
    seed: int = 0

    @property
    def given_sizes(self) -> dict[str, int]:
        """The dimensions whose sizes the given arrays say. Raises InputError if they differ."""
        found: dict[str, tuple[int, str]] = {}
        for specification in self.specifications:
            array = self.given.get(specification.name)
            if array is None or array.ndim != len(specification.shape):
                continue
            for extent, size in zip(specification.shape, array.shape, strict=True):
                if not isinstance(extent, str) or not extent.isidentifier():
                    continue
                known, source = found.setdefault(extent, (size, specification.name))
                if known != size:
                    raise InputError(
                        f"The dimension {extent} is {known} in {source}, "
                        f"but {size} in {specification.name}",
                        where=f"input {specification.name}",
                        hint="Give arrays whose sizes agree",
                    )
        return {name: size for name, (size, _) in found.items()}

    def at(self, sizes: Mapping[str, int], seed: int | None = None) -> dict[str, np.ndarray]:
        """All inputs at these sizes, which do not matter for those that are given."""
        missing = [one for one in self.specifications if one.name not in self.given]
        made = random_inputs(missing, sizes, self.seed if seed is None else seed)
        return {one.name: {**made, **self.given}[one.name] for one in self.specifications}
