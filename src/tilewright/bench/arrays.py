# pyright: basic
"""Arrays of inputs from files: NumPy's ``.npy`` and ``.npz``, and tensors as ONNX stores them.

Start with :func:`read_arrays`. May import support, numpy and onnx.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from tilewright.bench.inputs import InputSpecification
from tilewright.support.errors import InputError
from tilewright.support.files import NPY, NPZ, TENSOR, require


def _ways(option: str) -> str:
    return f"Write {option} x=x.npy, {option} x=x.pb, or {option} all.npz"


def read_arrays(
    texts: Sequence[str], specifications: Sequence[InputSpecification]
) -> dict[str, np.ndarray]:
    """Arrays by input from ``NAME=FILE``, or from ``FILE`` where that says the names.

    An archive names its arrays, a tensor itself; a model with one input needs no name. Raises
    InputError for what cannot be read, and for names that the model does not have.
    """
    wanted = {one.name: one for one in specifications}
    arrays: dict[str, np.ndarray] = {}
    for text in texts:
        where = f"--input {text}"
        name, separator, file = text.partition("=")
        if not separator or (name not in wanted and Path(text).exists()):
            name, file = "", text
        if separator and not (name and file) and not Path(text).exists():
            raise InputError("This names no file", where=where, hint=_ways("--input"))
        for found, array in _read(Path(file), name, tuple(wanted), "--input", where).items():
            if found not in wanted:
                known = ", ".join(wanted) or "none"
                message = f"The model has no input {found!r}; its inputs are {known}"
                raise InputError(message, where=where, hint=_ways("--input"))
            if found in arrays:
                raise InputError(
                    f"The input {found} is given twice", where=where, hint="Give it once"
                )
            arrays[found] = _typed(array, wanted[found].dtype)
    return arrays


def read_constants(texts: Sequence[str]) -> dict[str, np.ndarray]:
    """Arrays by name from ``NAME=FILE``, or from ``FILE`` where that says the names.

    What a model is to make of them, compiling says. Raises InputError for what cannot be read.
    """
    arrays: dict[str, np.ndarray] = {}
    for text in texts:
        where = f"--constants {text}"
        name, separator, file = text.partition("=")
        if separator and not (name and file):
            raise InputError("This names no file", where=where, hint=_ways("--constants"))
        file = file if separator else text
        named = name if separator else ""
        for found, array in _read(Path(file), named, (), "--constants", where).items():
            if found in arrays:
                raise InputError(
                    f"The input {found} is given twice", where=where, hint="Give it once"
                )
            arrays[found] = array
    return arrays


def _read(
    path: Path, name: str, inputs: Sequence[str], option: str, where: str
) -> Mapping[str, np.ndarray]:
    """What is in one file, by the names of inputs."""
    kind = require(path, NPY, NPZ, TENSOR)
    sole = name or (inputs[0] if len(inputs) == 1 else "")
    try:
        if kind is NPZ:
            with np.load(path, allow_pickle=False) as archive:
                found = {key: archive[key] for key in archive.files}
            return _of_archive(found, name, where)
        if kind is NPY:
            array, own = np.load(path, allow_pickle=False), sole
        else:
            tensor = onnx.load_tensor(str(path))
            array = numpy_helper.to_array(tensor, str(path.parent))
            own = name or (tensor.name if tensor.name in inputs or not inputs else sole)
    except (OSError, ValueError, TypeError, DecodeError, zipfile.BadZipFile) as error:
        message = f"The array cannot be read: {error}"
        raise InputError(message, where=where, hint=_ways(option)) from error
    if not own:
        listing = f"; the inputs are {', '.join(inputs)}" if inputs else ""
        message = f"This does not say which input it is{listing}"
        example = inputs[0] if inputs else "NAME"
        raise InputError(message, where=where, hint=f"Write {option} {example}={path}")
    return {own: array}


def _of_archive(found: Mapping[str, np.ndarray], name: str, where: str) -> Mapping[str, np.ndarray]:
    """All arrays of an archive, or the one that a name asks for."""
    if not name:
        return found
    if name in found:
        return {name: found[name]}
    if len(found) == 1:
        return {name: next(iter(found.values()))}
    names = ", ".join(found) or "nothing"
    message = f"The archive holds {names}, not {name!r}"
    raise InputError(message, where=where, hint="Name its arrays as the inputs, or leave NAME= out")


def _typed(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The array; numpy forgets types that are not its own, such as bfloat16, in files."""
    is_forgotten = array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize
    return array.view(dtype) if is_forgotten else array
