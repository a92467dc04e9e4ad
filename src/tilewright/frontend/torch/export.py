"""The export of a module, and its comparison with what was compiled: :class:`ExportedModule`.

May import torch and onnx_ir.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import onnx_ir
import torch

from tilewright.frontend.torch.examples import marked, named_axes, resized, tensors
from tilewright.frontend.torch.names import rename
from tilewright.support.errors import DimensionError, InputError, InvalidModelError
from tilewright.support.text import article

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
_MOST_OFF = 0.01  # of the elements, since ties of maxima and roundings may fall on either side


class ExportedModule:
    """A PyTorch module as an ONNX model, whose named axes are dynamic.

    Raises InputError for arguments and names that do not fit, InvalidModelError where PyTorch
    cannot export the module.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        dynamic: DynamicAxes | None,
    ) -> None:
        self._module = module
        self._example = _bound(module, args, kwargs)
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
        return self._example.signature.bind_partial(*dynamic).arguments

    def _check_lengths(self) -> None:
        """Axes of one name must be equally long in the example."""
        sizes: dict[str, tuple[int, str]] = {}
        for tensor, names, where in named_axes(self._example.arguments, self._axes):
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
        arguments = resized(self._example.arguments, {}, (1, 0))
        example = inspect.BoundArguments(self._example.signature, arguments)
        # As it is compared and used: with gradients PyTorch may choose another algorithm, whose
        # results have strides that the exporter does not expect of it later.
        with _evaluating(self._module), torch.no_grad():
            try:
                made = torch.onnx.export(
                    self._module,
                    example.args,
                    kwargs=example.kwargs,
                    dynamo=True,
                    dynamic_shapes=marked(arguments, self._axes, torch.export.Dim.AUTO),
                    verbose=False,
                    # Its rules take additions of less than 1e-8 for additions of nothing, so that
                    # logarithms and divisions meet zeros.
                    optimize=False,
                )
            except Exception as error:  # whatever code of the user's module raises among them
                raise InvalidModelError(
                    f"PyTorch cannot export the module: {_summary(error)}",
                    where=type(self._module).__name__,
                    hint="Call torch.onnx.export(module, args, dynamo=True), which says more of it",
                ) from error
        assert made is not None
        rename(made.model, [names for _, names, _ in named_axes(arguments, self._axes)])
        return made.model

    def compare(self, call: Call, ranges: Ranges) -> None:
        """Compare the results of ``call`` for the example, and for other sizes of named axes.

        ``ranges`` are those that were declared. Raises InvalidModelError where results differ, and
        where only ``call`` refuses sizes within the ranges: the export has fixed a size or a
        branch, or is wrong. Other sizes that the module refuses, or beyond the ranges, are left
        out; an example beyond them is refused as ``call`` does it.
        """
        self._compare_at(call, (1, 0), ranges, is_example=True)
        if not any(names for _, names, _ in named_axes(self._example.arguments, self._axes)):
            return
        for scale in ((1, 1), (2, 0)):
            if self._compare_at(call, scale, ranges):
                return

    def _compare_at(
        self, call: Call, scale: tuple[int, int], ranges: Ranges, is_example: bool = False
    ) -> bool:
        """Whether both took sizes that are so many times those of the example, and so many more."""
        # Each has its own, as a module may write into its arguments.
        given, own = (resized(self._example.arguments, self._axes, scale) for _ in range(2))
        sizes = {
            name: tensor.shape[axis]
            for tensor, names, _ in named_axes(given, self._axes)
            for axis, name in names.items()
        }
        beyond = any(not _is_within(sizes[name], ranges[name]) for name in sizes if name in ranges)
        if beyond and not is_example:
            _LOG.info("Not compared at sizes outside of the ranges: %s", sizes)
            return False
        called = inspect.BoundArguments(self._example.signature, own)
        with _evaluating(self._module), torch.no_grad():
            try:
                expected = tensors(self._module(*called.args, **called.kwargs))
            except Exception as error:
                if is_example:
                    raise
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
        _compare(found, expected, where)
        return True


def _is_within(size: int, declared: tuple[int, int | None, int]) -> bool:
    low, high, multiple = declared
    return low <= size and (high is None or size <= high) and size % multiple == 0


def _bound(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """The arguments by what ``forward`` calls them, in its order."""
    given = cast("object", module)
    if not isinstance(given, torch.nn.Module):
        raise InputError(
            f"{article(type(given).__name__)} is not a module",
            where="module",
            hint="Make a torch.nn.Module whose forward calls it",
        )
    try:
        return inspect.signature(module.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise InputError(
            f"the arguments do not fit: {error}", where=f"{type(module).__name__}.forward"
        ) from error


@contextmanager
def _evaluating(module: torch.nn.Module) -> Generator[None]:
    """The module as it is used, without dropout; afterwards it is as it was."""
    training = {part for part in module.modules() if part.training}
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _summary(error: BaseException) -> str:
    """The first line of what was wrong in the first place."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _compare(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], where: str) -> None:
    """Raises InvalidModelError unless both are equal but for roundings."""
    if len(found) != len(expected):
        _differs(f"{len(found)} results in place of {len(expected)}", where)
    for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        if mine.shape != theirs.shape:
            shapes = f"shape {tuple(mine.shape)} in place of {tuple(theirs.shape)}"
            _differs(f"result {number} has {shapes}", where)
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
            what = f"result {number} differs in {share:.0%} of its elements{_within(off)}"
            _differs(what, where)


def _within(off: torch.Tensor) -> str:
    """The smallest box of indices with all that differ, unless that is everything."""
    bounds = [(int(indices.min()), int(indices.max()) + 1) for indices in off.nonzero().T]
    if all(bound == (0, size) for bound, size in zip(bounds, off.shape, strict=True)):
        return ""
    ranges = (str(low) if high == low + 1 else f"{low}:{high}" for low, high in bounds)
    return f", all of them in [{', '.join(ranges)}]"


def _differs(what: str, where: str) -> None:
    raise InvalidModelError(
        f"the exported module is not the module: {what}",
        where=where,
        hint="Remove sizes and branches that Python code fixes during the export, such as "
        "int(x.shape[0]) or adaptive pooling; what may attend to no position, as padding in front, "
        "is the mean of all in an export: give an example without it. compare=False compiles the "
        "module all the same",
    )


__all__ = ["DynamicAxes", "ExportedModule"]
