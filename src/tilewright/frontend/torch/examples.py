"""Arguments of a PyTorch module, with names for their dynamic axes. Start with :func:`named_axes`.

Arguments may be tensors, or tuples, lists and dictionaries of them; what names their axes has the
same form. May import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch

from tilewright.support.errors import InputError

LEAST = 2  # of dynamic axes in an example: PyTorch takes sizes of 0 and 1 for constants


def named_axes(values: Any, axes: Any, where: str) -> Iterator[tuple[torch.Tensor, int, str, str]]:
    """Each dynamic axis: its tensor, its number, its name, and where that is.

    Raises InputError where the form of ``axes`` is not that of ``values``, and where an axis has a
    size that PyTorch would take for a constant.
    """
    if axes is None:
        return
    if isinstance(values, torch.Tensor):
        for axis, name in _of_tensor(values, axes, where):
            if values.shape[axis] < LEAST:
                raise InputError(
                    f"the example has size {values.shape[axis]} along a dynamic axis, which "
                    "PyTorch takes for a constant",
                    where=f"{where}, axis {axis}",
                    hint="Use an example of 2 or more; what is compiled takes 0 and 1 all the same",
                )
            yield values, axis, name, where
    elif isinstance(values, Mapping) and isinstance(axes, Mapping):
        for key, part in axes.items():
            if key not in values:
                raise InputError(
                    f'there is no argument "{key}"', where=where, hint=f"Use {_keys(values)}"
                )
            yield from named_axes(values[key], part, f"{where} {key}")
    elif isinstance(values, Sequence) and isinstance(axes, Sequence):
        if len(values) != len(axes):
            raise InputError(
                f"{len(axes)} entries name the axes of {len(values)} values", where=where
            )
        for number, (value, part) in enumerate(zip(values, axes, strict=True)):
            yield from named_axes(value, part, f"{where} {number}")
    else:
        raise InputError("the names of axes do not have the form of the arguments", where=where)


def _of_tensor(value: torch.Tensor, axes: Any, where: str) -> Iterator[tuple[int, str]]:
    """Axes with names, of ``{axis: name}`` or of a list with a name or None for each axis."""
    pairs: list[tuple[Any, Any]]
    if isinstance(axes, Mapping):
        pairs = list(axes.items())
    elif isinstance(axes, Sequence) and not isinstance(axes, str) and len(axes) == value.ndim:
        pairs = list(enumerate(axes))
    else:
        raise InputError(
            f"{axes!r} does not name the {value.ndim} axes of a tensor",
            where=where,
            hint='Use {axis: "name"}, or a list with a name or None for every axis',
        )
    for axis, name in pairs:
        if name is None:
            continue
        if not isinstance(name, str) or not name.isidentifier():
            raise InputError(f"{name!r} is not a name", where=f"{where}, axis {axis}")
        if not isinstance(axis, int) or not -value.ndim <= axis < value.ndim:
            raise InputError(f"a tensor of {value.ndim} axes has no axis {axis!r}", where=where)
        yield axis % value.ndim, name


def _keys(values: Mapping[Any, Any]) -> str:
    return "one of " + ", ".join(map(str, values)) if values else "none: it has none"


def resized(values: Any, axes: Any, scale: tuple[int, int]) -> Any:
    """A copy of the arguments with other sizes along named axes, of elements that they have now.

    Sizes are ``scale[0]`` times as large, and ``scale[1]`` more. Indices stay within what they
    index, and masks stay masks.
    """
    if isinstance(values, torch.Tensor):
        made = values.detach().clone()
        for axis in _names(values, axes):
            old = made.shape[axis]
            places = torch.arange(old * scale[0] + scale[1], device=made.device) % old
            made = made.index_select(axis, places)
        return made
    return _alike(values, axes, lambda value, part: resized(value, part, scale))


def marked(values: Any, axes: Any, mark: Any) -> Any:
    """In the form of the arguments, ``mark`` for every axis with a name, and None elsewhere."""
    if isinstance(values, torch.Tensor):
        return dict.fromkeys(_names(values, axes), mark) or None
    if isinstance(values, Mapping | Sequence) and not isinstance(values, str):
        return _alike(values, axes, lambda value, part: marked(value, part, mark))
    return None


def names_by_tensor(values: Any, axes: Any) -> Iterator[dict[int, str]]:
    """The names of the axes of every tensor, in the order of :func:`tensors`."""
    found: list[dict[int, str]] = []

    def note(value: Any, part: Any) -> Any:
        if isinstance(value, torch.Tensor):
            found.append(_names(value, part))
            return value
        return _alike(value, part, note)

    note(values, axes)
    yield from found


def _names(value: torch.Tensor, axes: Any) -> dict[int, str]:
    return {} if axes is None else dict(_of_tensor(value, axes, ""))


def _alike(values: Any, axes: Any, made: Callable[[Any, Any], Any]) -> Any:
    """What is made of the parts of an argument and of what names their axes, in the same form."""
    if isinstance(values, Mapping):
        named = axes or {}
        return {key: made(value, named.get(key)) for key, value in values.items()}
    if isinstance(values, Sequence) and not isinstance(values, str):
        parts = [None] * len(values) if axes is None else axes
        found = [made(value, part) for value, part in zip(values, parts, strict=True)]
        if isinstance(values, tuple):
            return cast("Any", type(values))(*found) if hasattr(values, "_fields") else tuple(found)
        return found
    return values


def tensors(values: Any) -> Iterator[torch.Tensor]:
    """All tensors of arguments or results, in order."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, Mapping):
        for value in values.values():
            yield from tensors(value)
    elif isinstance(values, Sequence) and not isinstance(values, str):
        for value in values:
            yield from tensors(value)
