"""The export of a module, and its comparison with what was compiled: :class:`ExportedModule`.

May import torch and onnx_ir.
"""

from __future__ import annotations

import inspect
import logging
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

import onnx_ir
import torch

from tilewright.frontend.torch.examples import filled, named_axes, resized, tensors
from tilewright.frontend.torch.names import rename
from tilewright.support.errors import (
    DimensionError,
    InputError,
    InvalidModelError,
    TilewrightError,
)
from tilewright.support.text import article, format_list

_LOG = logging.getLogger(__name__)

# Names of the dynamic axes of each argument, in the form that the arguments have.
DynamicAxes = Mapping[str, Any] | Sequence[Any]
Call = Callable[..., Any]
# Ranges of named axes: the least size, the largest if there is one, and what divides all.
Ranges = Mapping[str, tuple[int, int | None, int]]

# What a module and compiled code may differ by, as a share of the largest element: a wrong size or
# a branch that the export has fixed makes other numbers altogether.
_TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 1e-1}
_USUAL = 1e-3  # of all other types
_FIXED = (
    "Remove sizes and branches that Python code fixes during the export, such as int(x.shape[0]) "
    "or adaptive pooling; what may attend to no position, as padding in front, is the mean of all "
    "in an export: give an example without it; of complex results give torch.view_as_real. "
    "compare=False compiles the module all the same"
)
_MOST_OFF = 0.01  # of the elements, since ties of maxima and roundings may fall on either side


class ExportedModule:
    """A PyTorch module as an ONNX model, whose named axes are dynamic.

    Raises InputError for arguments and names that do not fit, InvalidModelError where PyTorch
    cannot export the module.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        dynamic: DynamicAxes | None,
    ) -> None:
        self._module = module
        bound = _bound(module, args, kwargs)
        self._signature = bound.signature
        self._example = _spread(bound)
        self._axes = self._by_argument(dynamic, len(args))
        self._check_lengths()
        self.model = self._export()

    def _by_argument(self, dynamic: DynamicAxes | None, positional: int) -> dict[str, Any]:
        """What names the axes of each argument, by what ``forward`` calls it."""
        if dynamic is None:
            return {}
        if isinstance(dynamic, Mapping):
            return dict(dynamic)
        if len(dynamic) != positional:
            raise InputError(
                f"{len(dynamic)} entries name the axes of {positional} arguments",
                where="dynamic",
                hint="Give an entry for every positional argument, None where nothing is dynamic, "
                "or a dictionary by their names",
            )
        return self._signature.bind_partial(*dynamic).arguments

    def _check_lengths(self) -> None:
        """Axes of one name must be equally long in the example."""
        sizes: dict[str, tuple[int, str]] = {}
        for tensor, names, where in named_axes(self._example, self._axes):
            for axis, name in names.items():
                size, first = sizes.setdefault(name, (tensor.shape[axis], where))
                if size != tensor.shape[axis]:
                    raise InputError(
                        f'"{name}" is {size} in {first} and {tensor.shape[axis]} here',
                        where=f"{where}, axis {axis}",
                        hint="Give different axes different names",
                    )

    def _export(self) -> onnx_ir.Model:
        # Copies, as axes of a tensor that is given twice would be the same axes.
        example = named_axes(resized(self._example, {}, (1, 0)), self._axes)
        tensorwise = _Tensorwise(self._module, lambda given: self._called(given))
        # As it is compared and used: with gradients PyTorch may choose another algorithm, whose
        # results have strides that the exporter does not expect of it later.
        with _as_used(self._module), torch.no_grad():
            try:
                made = torch.onnx.export(
                    tensorwise,
                    tuple(tensor for tensor, _, _ in example),
                    dynamo=True,
                    dynamic_shapes=(_marks(names for _, names, _ in example),),
                    input_names=_input_names([where for _, _, where in example]),
                    verbose=False,
                    # Its rules take additions of less than 1e-8 for additions of nothing, so that
                    # logarithms and divisions meet zeros.
                    optimize=False,
                )
            except Exception as error:  # whatever code of the user's module raises among them
                first = _first(error)
                if isinstance(first, TilewrightError):
                    raise first from None
                raise InvalidModelError(
                    f"PyTorch cannot export the module: {_summary(first)}",
                    where=type(self._module).__name__,
                    hint="Call torch.onnx.export(module, args, dynamo=True), which says more of it",
                ) from error
        assert made is not None
        rename(made.model, [names for _, names, _ in example], tensorwise.prefix)
        return made.model

    def _called(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors that the module makes of others in the place of those of the example."""
        call = _gathered(self._signature, filled(self._example, given))
        return tensors(self._module(*call.args, **call.kwargs), "results")

    def compare(self, call: Call, ranges: Ranges) -> None:
        """Compare the results of ``call`` for the example, and for other sizes of named axes.

        ``ranges`` are those that were declared. Raises InvalidModelError where results differ, and
        where only ``call`` refuses sizes within the ranges: the export has fixed a size or a
        branch, or is wrong. Other sizes that the module refuses, or beyond the ranges, are left
        out; an example beyond them is refused as ``call`` does it.
        """
        self._compare_at(call, (1, 0), ranges, is_example=True)
        if not any(names for _, names, _ in named_axes(self._example, self._axes)):
            return
        for scale in ((1, 1), (2, 0)):
            if self._compare_at(call, scale, ranges):
                return

    def _compare_at(
        self, call: Call, scale: tuple[int, int], ranges: Ranges, is_example: bool = False
    ) -> bool:
        """Whether both took sizes that are so many times those of the example, and so many more."""
        given = resized(self._example, self._axes, scale)
        sizes = {
            name: tensor.shape[axis]
            for tensor, names, _ in named_axes(given, self._axes)
            for axis, name in names.items()
        }
        beyond = any(not _is_within(sizes[name], ranges[name]) for name in sizes if name in ranges)
        if beyond and not is_example:
            _LOG.info("Not compared at sizes outside of the ranges: %s", sizes)
            return False
        try:
            expected = self._twice(tensors(given)) if is_example else self._alone(tensors(given))
        except TilewrightError:
            raise
        except Exception as error:
            if is_example:
                raise InvalidModelError(
                    f"the module fails when it is called: {_summary(_first(error))}",
                    where=type(self._module).__name__,
                    hint="Call it with the example outside of from_torch, more than once",
                ) from error
            _LOG.info("Not compared at other sizes, which the module refuses: %s", error)
            return False
        where = f"inputs of {', '.join(str(tuple(tensor.shape)) for tensor in tensors(given))}"
        try:
            found = tensors(call(*tensors(given)))
        except DimensionError as error:
            if beyond:
                raise
            raise InvalidModelError(
                f"the module takes these sizes, but what PyTorch exported does not: {error}",
                where=where,
                hint="Check what of a shape becomes a number in forward, or give the range that "
                "the export takes in dims",
            ) from error
        if what := _difference(found, expected):
            raise InvalidModelError(
                f"the exported module is not the module: {what}", where=where, hint=_FIXED
            )
        return True

    def _alone(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What a call gives that finds the buffers of the module as they were at first."""
        with _as_used(self._module), torch.no_grad():
            # Copies, as a module may write into its arguments and give them back.
            return self._called([tensor.clone() for tensor in given])

    def _twice(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What a call gives, if another one after it gives the same."""
        with _as_used(self._module) as buffers, torch.no_grad():
            first, second = (self._called([tensor.clone() for tensor in given]) for _ in range(2))
            changed = sorted(name for name, value in buffers.items() if value.has_changed())
        if what := _difference(second, first):
            source = (
                f"what a call leaves in {format_list(changed)}" if changed else "random numbers"
            )
            raise InvalidModelError(
                f"the module gives other results when it is called again: {what}",
                where=type(self._module).__name__,
                hint=f"make {source}, on which results may depend, an argument, and a result where "
                "a call changes it; compare=False compiles what a first call does",
            )
        return first


class _Tensorwise(torch.nn.Module):
    """The module, called with the tensors in its arguments only, and giving those in its results.

    The exporter knows few containers, and takes a last dictionary for keyword arguments.
    """

    prefix = "module."  # of the names of parameters

    def __init__(
        self, module: torch.nn.Module, call: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
    ) -> None:
        super().__init__()
        self.module = module
        self._call = call
        self.training = False

    def forward(self, *given: torch.Tensor) -> list[torch.Tensor]:
        return self._call(given)


def _marks(names: Iterable[Mapping[int, str]]) -> tuple[dict[int, Any] | None, ...]:
    return tuple(dict.fromkeys(own, torch.export.Dim.AUTO) or None for own in names)


def _input_names(places: Sequence[str]) -> list[str]:
    """A name of its own for each tensor, of where it is among the arguments."""
    names: list[str] = []
    for place in places:
        name = "_".join(place.split()[1:])
        while name in names:
            name += "_"
        names.append(name)
    return names


def _is_within(size: int, declared: tuple[int, int | None, int]) -> bool:
    low, high, multiple = declared
    return low <= size and (high is None or size <= high) and size % multiple == 0


def _bound(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """The arguments by what ``forward`` calls them, in its order."""
    given = cast("object", module)
    if not isinstance(given, torch.nn.Module):
        is_exported = isinstance(given, torch.export.ExportedProgram)
        raise InputError(
            f"{article(type(given).__name__)} is not a module",
            where="module",
            hint="Give the module that it was made of"
            if is_exported
            else "Make a torch.nn.Module whose forward calls it",
        )
    hint = "Put a tensor in a list, and what is given by name in kwargs"
    for name, what, kind in (("args", args, Sequence), ("kwargs", kwargs, Mapping)):
        if not isinstance(cast("object", what), kind):
            unfit = article(type(what).__name__)
            raise InputError(f"{name} cannot be {unfit}", where=name, hint=hint)
    try:
        signature = inspect.signature(module.forward)
    except ValueError as error:
        raise InputError(
            "the arguments of forward cannot be told",
            where=type(module).__name__,
            hint="Give the module as it was before TorchScript compiled it",
        ) from error
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InputError(
            f"the arguments do not fit: {error}", where=f"{type(module).__name__}.forward"
        ) from error


def _spread(bound: inspect.BoundArguments) -> dict[str, Any]:
    """All arguments by their names, those too that ``forward`` gathers as ``**kwargs``."""
    gatherer = _gatherer(bound.signature)
    named = {name: value for name, value in bound.arguments.items() if name != gatherer}
    return {**named, **bound.arguments.get(gatherer or "", {})}


def _gathered(signature: inspect.Signature, named: Mapping[str, Any]) -> inspect.BoundArguments:
    """The call with arguments by their names; see :func:`_spread`."""
    gatherer = _gatherer(signature)
    own = [name for name in signature.parameters if name != gatherer]
    arguments = {name: named[name] for name in own if name in named}
    if gatherer is not None:
        arguments[gatherer] = {name: value for name, value in named.items() if name not in own}
    return inspect.BoundArguments(signature, OrderedDict(arguments))


def _gatherer(signature: inspect.Signature) -> str | None:
    kinds = ((name, parameter.kind) for name, parameter in signature.parameters.items())
    return next((name for name, kind in kinds if kind == inspect.Parameter.VAR_KEYWORD), None)


@dataclass(frozen=True)
class _Buffer:
    """A buffer of a module, and what was in it."""

    owner: torch.nn.Module
    name: str
    value: torch.Tensor
    saved: torch.Tensor

    def has_changed(self) -> bool:
        current = getattr(self.owner, self.name)
        return current is not self.value or not torch.equal(current, self.saved)

    def restore(self) -> None:
        self.value.copy_(self.saved)
        setattr(self.owner, self.name, self.value)


@contextmanager
def _as_used(module: torch.nn.Module) -> Generator[dict[str, _Buffer]]:
    """The module as it is used, without dropout; afterwards it is as it was.

    Hands out its buffers by their names.
    """
    training = {part for part in module.modules() if part.training}
    buffers = {
        f"{path}.{name}".lstrip("."): _Buffer(part, name, value, value.detach().clone())
        for path, part in module.named_modules()
        for name, value in part.named_buffers(recurse=False)
    }
    with suppress(NotImplementedError):  # of what torch.export made, which is as it is
        module.eval()
    try:
        yield buffers
    finally:
        for part in training:
            part.training = True
        with torch.no_grad():
            for buffer in buffers.values():
                if buffer.has_changed():
                    buffer.restore()


def _first(error: BaseException) -> BaseException:
    """What was wrong in the first place."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _summary(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _difference(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> str | None:
    """How results differ by more than roundings, or None where they do not."""
    if len(found) != len(expected):
        return f"{len(found)} results in place of {len(expected)}"
    for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        if theirs.is_complex() and not mine.is_complex():
            return f"result {number} is complex, which ONNX has no tensors for"
        if mine.shape != theirs.shape:
            shapes = f"shape {tuple(mine.shape)} in place of {tuple(theirs.shape)}"
            return f"result {number} has {shapes}"
        if not theirs.numel():
            continue
        wide = torch.complex128 if theirs.is_complex() else torch.float64
        apart = (mine.to(wide) - theirs.to(wide)).abs()
        sizes = theirs.to(wide).abs()
        largest = sizes.nan_to_num(0.0, 0.0, 0.0).max()  # of those that are finite
        room = largest * _TOLERANCE.get(theirs.dtype, _USUAL)
        equal = (mine == theirs) | (mine.isnan() & theirs.isnan())
        off = ~(equal | (apart <= room))
        share = off.double().mean().item()
        if share > _MOST_OFF:
            return f"result {number} differs in {share:.0%} of its elements{_within(off)}"
    return None


def _within(off: torch.Tensor) -> str:
    """The smallest box of indices with all that differ, unless that is everything."""
    bounds = [(int(indices.min()), int(indices.max()) + 1) for indices in off.nonzero().T]
    if all(bound == (0, size) for bound, size in zip(bounds, off.shape, strict=True)):
        return ""
    ranges = (str(low) if high == low + 1 else f"{low}:{high}" for low, high in bounds)
    return f", all of them in [{', '.join(ranges)}]"


__all__ = ["DynamicAxes", "ExportedModule"]
