"""Arguments of a PyTorch module, with names for their dynamic axes. Start with :func:`mapped`.

Arguments may be tensors, or tuples, lists and dictionaries of them; what names their axes has the
same form. May import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch

from tilewright.support.errors import InputError

LEAST = 2  # of dynamic axes in an example: PyTorch takes sizes of 0 and 1 for constants

# What becomes of a tensor, given the names of its axes and where it is.
Made = Callable[[torch.Tensor, dict[int, str], str], Any]


def mapped(values: Any, axes: Any, where: str, made: Made, rest: Callable[[Any], Any]) -> Any:
    """In the form of the arguments, what ``made`` makes of tensors, and ``rest`` of other values.

    Raises InputError where the form of ``axes`` is not that of ``values``.
    """
    if isinstance(values, torch.Tensor):
        return made(values, {} if axes is None else dict(_of_tensor(values, axes, where)), where)
    if isinstance(values, Mapping) and isinstance(axes, Mapping | None):
        named = axes or {}
        for key in named:
            if key not in values:
                raise InputError(
                    f'there is no argument "{key}"', where=where, hint=f"Use {_keys(values)}"
                )
        return {
            key: mapped(value, named.get(key), f"{where} {key}", made, rest)
            for key, value in values.items()
        }
    if _is_list(values) and (axes is None or _is_list(axes)):
        parts = [None] * len(values) if axes is None else axes
        if len(values) != len(parts):
            raise InputError(
                f"{len(parts)} entries name the axes of {len(values)} values", where=where
            )
        found = [
            mapped(value, part, f"{where} {number}", made, rest)
            for number, (value, part) in enumerate(zip(values, parts, strict=True))
        ]
        if isinstance(values, tuple):
            return cast("Any", type(values))(*found) if hasattr(values, "_fields") else tuple(found)
        return found
    if axes is not None:
        raise InputError("the names of axes do not have the form of the arguments", where=where)
    return rest(values)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _of_tensor(value: torch.Tensor, axes: Any, where: str) -> Iterator[tuple[int, str]]:
    """Axes with names, of ``{axis: name}`` or of a list with a name or None for each axis."""
    pairs: list[tuple[Any, Any]]
    if isinstance(axes, Mapping):
        pairs = list(axes.items())
    elif _is_list(axes) and len(axes) == value.ndim:
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


def named_axes(values: Any, axes: Any) -> list[tuple[torch.Tensor, dict[int, str], str]]:
    """Each tensor of the arguments in order, with the names of its axes, and where it is.

    Raises InputError where a dynamic axis has a size that PyTorch would take for a constant.
    """
    found: list[tuple[torch.Tensor, dict[int, str], str]] = []

    def note(value: torch.Tensor, names: dict[int, str], where: str) -> None:
        for axis in names:
            if value.shape[axis] < LEAST:
                raise InputError(
                    f"the example has size {value.shape[axis]} along a dynamic axis, which "
                    "PyTorch takes for a constant",
                    where=f"{where}, axis {axis}",
                    hint="Use an example of 2 or more; what is compiled takes 0 and 1 all the same",
                )
        found.append((value, names, where))

    mapped(values, axes, "argument", note, _same)
    return found


def resized(values: Any, axes: Any, scale: tuple[int, int]) -> Any:
    """A copy of the arguments with other sizes along named axes, of elements that they have now.

    Sizes are ``scale[0]`` times as large, and ``scale[1]`` more. Indices stay within what they
    index, and masks stay masks.
    """

    def larger(value: torch.Tensor, names: dict[int, str], where: str) -> torch.Tensor:
        made = value.detach().clone()
        for axis in names:
            old = made.shape[axis]
            places = torch.arange(old * scale[0] + scale[1], device=made.device) % old
            made = made.index_select(axis, places)
        return made

    return mapped(values, axes, "argument", larger, _same)


def marked(values: Any, axes: Any, mark: Any) -> Any:
    """In the form of the arguments, ``mark`` for every axis with a name, and None elsewhere."""

    def marks(value: torch.Tensor, names: dict[int, str], where: str) -> dict[int, Any] | None:
        return dict.fromkeys(names, mark) or None

    return mapped(values, axes, "argument", marks, _nothing)


def tensors(values: Any) -> list[torch.Tensor]:
    """All tensors of arguments or results, in order."""
    return [tensor for tensor, _, _ in named_axes(values, None)]


def _same(value: Any) -> Any:
    return value


def _nothing(value: Any) -> None:
    return None
