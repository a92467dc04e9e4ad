"""The caller's names for the dynamic axes of an exported model. Start with :func:`rename`.

May import onnx_ir.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir

from tilewright.support.errors import InputError, InvalidModelError

_WORD = re.compile(r"[A-Za-z_]\w*")


def rename(model: onnx_ir.Model, names: Sequence[Mapping[int, str]], prefix: str = "") -> None:
    """Give the axes of the inputs, and sizes that depend on them, the names that are wanted.

    Names of weights lose ``prefix``.

    Raises InvalidModelError where the export has fixed an axis, InputError where it found that axes
    of different names are equally long.
    """
    inputs = model.graph.inputs
    if len(inputs) != len(names):
        raise InvalidModelError(
            f"the exported model has {len(inputs)} inputs for {len(names)} tensors",
            hint="Leave out arguments that the module does not use",
        )
    chosen: dict[str, str] = {}
    for value, own in zip(inputs, names, strict=True):
        for axis, name in own.items():
            symbol = _symbol(value, axis)
            if chosen.setdefault(symbol, name) != name:
                raise InputError(
                    f'"{chosen[symbol]}" and "{name}" are the same size in this module',
                    where=f"input {value.name}, axis {axis}",
                    hint="Give both axes one name",
                )
    for name, value in list(model.graph.initializers.items()):
        if name.startswith(prefix) and name.removeprefix(prefix) not in model.graph.initializers:
            value.name = name.removeprefix(prefix)
    for value in _values(model):
        if value.shape is not None:
            value.shape = onnx_ir.Shape([_renamed(size, chosen) for size in value.shape])


def _symbol(value: onnx_ir.Value, axis: int) -> str:
    size = None if value.shape is None else value.shape[axis]
    if not isinstance(size, onnx_ir.SymbolicDim) or size.value is None:
        raise InvalidModelError(
            f"the module takes no other size than {size}: its code fixes it",
            where=f"input {value.name}, axis {axis}",
            hint="Use x.shape[0] without converting it to a number",
        )
    return str(size.value)


def _renamed(size: int | onnx_ir.SymbolicDim, chosen: Mapping[str, str]) -> int | str | None:
    if isinstance(size, int) or size.value is None:
        return size if isinstance(size, int) else None
    return _WORD.sub(lambda match: chosen.get(match[0], match[0]), str(size.value))


def _values(model: onnx_ir.Model) -> Iterator[onnx_ir.Value]:
    """Inputs and results of the model and of all nodes, those of inner graphs as well."""
    yield from model.graph.inputs
    for part in model.graph.all_nodes():
        yield from part.outputs


__all__ = ["rename"]
