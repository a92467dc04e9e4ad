"""Arguments of a PyTorch module, with names for their dynamic axes. Start with :func:`mapped`.

Arguments may be tensors, or tuples, lists, dictionaries, dataclasses and other containers of them;
what names their axes has the same form. May import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from types import ModuleType
from typing import Any, cast

import torch
from torch.utils._pytree import tree_flatten

from tilewright.support.errors import InputError
from tilewright.support.text import article

LEAST = 2  # of dynamic axes in an example: PyTorch takes sizes of 0 and 1 for constants

# What becomes of a tensor, given the names of its axes and where it is.
Made = Callable[[torch.Tensor, dict[int, str], str], Any]


def mapped(values: Any, axes: Any, where: str, made: Made, rest: Callable[[Any], Any]) -> Any:
    """In the form of the arguments, what ``made`` makes of tensors, and ``rest`` of other values.

    Raises InputError where the form of ``axes`` is not that of ``values``.
    """
    if isinstance(values, torch.Tensor):
        return made(values, {} if axes is None else dict(_of_tensor(values, axes, where)), where)
    found = _parts(values)
    if found is not None and (axes is None or isinstance(axes, Mapping) or _is_list(axes)):
        each = zip(found.keys, found.values, _by_part(found, axes, where), strict=True)
        return found.join(
            [mapped(value, part, f"{where} {key}", made, rest) for key, value, part in each]
        )
    if axes is not None:
        raise InputError(
            "the names of axes do not have the form of the arguments",
            where=where,
            hint=f"Name axes of tensors only; this is of type {type(values).__name__}",
        )
    if _hides_tensors(values):
        raise InputError(
            f"{article(type(values).__name__)} holds tensors that cannot be told",
            where=where,
            hint="Use tensors, tuples, lists, dictionaries, dataclasses, or what "
            "torch.utils._pytree.register_pytree_node knows; models of transformers give no cache "
            "where they are called with use_cache=False",
        )
    return rest(values)


# Classes, modules, and sizes while they are traced, which lead to tensors that are no values.
_WITHOUT_TENSORS = (
    type, ModuleType, torch.nn.Module, torch.SymInt, torch.SymFloat, torch.SymBool
)  # fmt: skip


def _hides_tensors(value: Any) -> bool:
    """Whether an object of another kind has tensors among its attributes, or what these hold."""
    seen: set[int] = set()
    pending = [value]
    while pending:
        inner = pending.pop()
        if isinstance(inner, torch.Tensor):
            return True
        if id(inner) in seen or isinstance(inner, _WITHOUT_TENSORS):
            continue
        seen.add(id(inner))
        found = _parts(inner)
        pending += getattr(inner, "__dict__", {}).values() if found is None else found.values
    return False


@dataclass(frozen=True)
class _Parts:
    """What a value holds, with the names or positions of all, and how to join others like them."""

    keys: Sequence[Any]
    values: Sequence[Any]
    join: Callable[[Sequence[Any]], Any]


def _parts(value: Any) -> _Parts | None:
    """The parts of a tuple, list, dictionary, dataclass or another container PyTorch knows."""
    values, form = tree_flatten(value, is_leaf=lambda inner: inner is not value)
    if not form.is_leaf():
        keys = list(value) if isinstance(value, Mapping) else getattr(value, "_fields", None)
        return _Parts(range(len(values)) if keys is None else keys, values, form.unflatten)
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value)
        keys = list(pairs)
        return _Parts(keys, list(pairs.values()), lambda made: dict(zip(keys, made, strict=True)))
    if _is_list(value):
        return _Parts(range(len(value)), list(value), list if isinstance(value, list) else tuple)
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.init]
        return _Parts(
            names,
            [getattr(value, name) for name in names],
            lambda made: replace(value, **dict(zip(names, made, strict=True))),
        )
    return None


def _by_part(found: _Parts, axes: Any, where: str) -> Sequence[Any]:
    """What names the axes of each part."""
    if axes is None:
        return [None] * len(found.keys)
    if isinstance(axes, Mapping):
        for key in cast("Mapping[Any, Any]", axes):
            if key not in found.keys:
                raise InputError(
                    f'there is no argument "{key}"', where=where, hint=f"Use {_keys(found.keys)}"
                )
        return [axes.get(key) for key in found.keys]
    if len(axes) != len(found.keys):
        raise InputError(
            f"{len(axes)} entries name the axes of {len(found.keys)} values", where=where
        )
    return axes


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


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
            raise InputError(
                f"{name!r} is not a name",
                where=f"{where}, axis {axis}",
                hint='Use a word, such as "batch", and give its range in dims',
            )
        if not isinstance(axis, int) or not -value.ndim <= axis < value.ndim:
            raise InputError(f"a tensor of {value.ndim} axes has no axis {axis!r}", where=where)
        yield axis % value.ndim, name


def _keys(values: Sequence[Any]) -> str:
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


def filled(values: Any, given: Iterable[torch.Tensor]) -> Any:
    """In the form of the arguments, those given in the place of their tensors, in order."""
    following = iter(given)

    def taken(value: torch.Tensor, names: dict[int, str], where: str) -> torch.Tensor:
        return next(following)

    return mapped(values, None, "argument", taken, _same)


def tensors(values: Any, where: str = "argument") -> list[torch.Tensor]:
    """All tensors of arguments or results, in order."""
    found: list[torch.Tensor] = []

    def note(value: torch.Tensor, names: dict[int, str], where: str) -> None:
        found.append(value)

    mapped(values, None, where, note, _same)
    return found


def _same(value: Any) -> Any:
    return value
