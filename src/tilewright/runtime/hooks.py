"""What the native extension calls back for: odd arguments, wrong arguments, opaque operators.

Nothing here runs in a call whose arguments are right and whose operators all have kernels. Imports
``support``, numpy and the rest of the package. Start reading at :class:`Hooks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, cast

import numpy as np

from tilewright.runtime.arguments import refusal
from tilewright.runtime.given import as_arrays, as_torch, given_outputs, torch_of
from tilewright.runtime.lower import SHAPELESS, describe
from tilewright.runtime.program import NATIVE_ITEM_SIZES, Buffer, OpaqueStep, Program
from tilewright.runtime.tensors import as_tensor, native_dtype, row_major
from tilewright.support.errors import (
    ArtifactError,
    DimensionError,
    ExecutionError,
    InputError,
    TilewrightError,
)

# evaluate(payload, inputs) -> outputs: runs a serialised ONNX model by a reference.
Evaluate = Callable[[bytes, list[Any]], Sequence[Any]]
# control(inputs, sizes of the outputs as far as they are known) -> outputs: calls bodies.
RunsBodies = Callable[[list[Any], Sequence[Sequence[int]]], list[Any]]


class Hooks:
    """The methods that ``_native.Model`` takes."""

    def __init__(
        self,
        program: Program,
        evaluate: Evaluate | None,
        control: Mapping[int, RunsBodies] | None = None,
    ) -> None:
        self._inputs = sorted(
            (buffer for buffer in program.buffers if buffer.kind == "input"), key=_position
        )
        self._outputs = sorted(
            (buffer for buffer in program.buffers if buffer.kind == "output"), key=_position
        )
        self._program = program
        self._control = control or {}
        opaque = [
            step.operator
            for step in program.steps
            if isinstance(step, OpaqueStep) and step.needs_reference
        ]
        if opaque and evaluate is None:
            raise ArtifactError(
                f"The operators {', '.join(sorted(set(opaque)))} run on the ONNX reference "
                "evaluator, which is not installed",
                where=f"program '{program.name}'",
                hint="Install it (pip install onnx), or compile a model without these operators: "
                "tilewright compile --fallback error lists them",
            )
        self._evaluate = evaluate

    def convert(self, index: int, value: Any) -> Any:
        """The argument as an array, which may have to be copied. Raises InputError."""
        buffer = self._inputs[index]
        return as_tensor(buffer.name, value, buffer.dtype, len(buffer.shape), describe(buffer))

    def copy(self, index: int, array: Any) -> Any:
        """What :meth:`convert` gave as kernels can use it. Raises ResourceError."""
        buffer = self._inputs[index]
        return row_major(buffer.name, array, buffer.dtype)

    def reject(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NoReturn:
        """Say which arguments are missing or too many."""
        names = [buffer.name for buffer in self._inputs]
        expected = ", ".join(f"{buffer.name}: {describe(buffer)}" for buffer in self._inputs)
        error = refusal(names, expected, args, kwargs, self._program.fixed)
        assert error is not None, "the extension asks where arguments do not fit"
        raise error

    def place_outputs(self, out: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """What ``out`` holds for each output or None, and that as arrays. Raises InputError."""
        given = given_outputs(self._outputs, out)
        return tuple(given), as_arrays(self._outputs, given)

    def adapt(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        results: Any,
        given: tuple[Any, ...] | None,
    ) -> Any:
        """The results of a call with odd arguments: torch tensors if there are some among these.

        Results whose memory is ``given`` stay what they are.
        """
        torch = torch_of(args, kwargs)
        if torch is None:
            return results
        values = [results] if len(self._outputs) == 1 else results
        own = given or [None] * len(self._outputs)
        adapted = [
            as_torch(torch, value) if mine is None else value
            for value, mine in zip(values, own, strict=True)
        ]
        return adapted[0] if len(self._outputs) == 1 else adapted

    def run_opaque(
        self, number: int, inputs: list[Any], sizes: Sequence[Sequence[int]]
    ) -> list[Any]:
        """The outputs of an opaque step as row-major arrays that share no memory with its inputs.

        ``sizes`` are those of its outputs, 0 where only the step tells.

        Raises ExecutionError when the reference fails or returns what does not fit.
        """
        step = self._program.steps[number]
        assert isinstance(step, OpaqueStep)
        control = self._control.get(number)
        buffers = [self._program.buffers[output] for output in step.outputs]
        # A sequence may hold on to its elements, some of which may be the caller's.
        if any(buffer.dtype == SHAPELESS for buffer in buffers):
            inputs = [_copy(value) for value in inputs]
        try:
            if control is not None:
                results = control(inputs, sizes)
            else:
                assert self._evaluate is not None
                results = list(self._evaluate(step.payload, inputs))
        except (DimensionError, InputError) as error:  # of a body, whose inputs nobody else knows
            raise ExecutionError(
                f"A body of {step.operator} cannot run on what it is given: {error.message}",
                where=step.label,
            ) from error
        except ExecutionError as error:
            if control is not None:
                raise
            # The reference knows the operator, but not which node it is.
            raise ExecutionError(error.message, where=step.label, hint=error.hint) from error
        except TilewrightError:
            raise
        # The reference may raise anything at all.
        except Exception as error:
            raise ExecutionError(
                f"The reference of {step.operator} failed: {type(error).__name__}: {error}.",
                where=step.label,
            ) from error
        if len(results) != len(buffers):
            raise ExecutionError(
                f"The reference of {step.operator} returned {len(results)} values, but "
                f"{len(buffers)} are expected.",
                where=step.label,
            )
        return [
            _checked(step, buffer, value, inputs, told, is_fresh=control is not None)
            for buffer, value, told in zip(buffers, results, sizes, strict=True)
        ]


def _checked(
    step: OpaqueStep,
    buffer: Buffer,
    value: Any,
    inputs: list[Any],
    told: Sequence[int],
    *,
    is_fresh: bool,
) -> Any:
    """The value as an array that fits; ``is_fresh`` where it is new, or an input as it is.

    ``told`` are the sizes that are known before, 0 where only the step tells.
    """
    if buffer.dtype == SHAPELESS:
        return value
    array = cast("np.ndarray[Any, Any]", np.asarray(value))
    dtype = native_dtype(buffer.dtype)
    if array.size == 0 and array.ndim != len(buffer.shape) and 0 in told:
        # A loop without a turn has nothing to stack, of which its reference knows no sizes.
        array = array.reshape(tuple(told))
    fits = array.dtype.kind in "OUS" if buffer.dtype == "string" else array.dtype == dtype
    if not fits or array.ndim != len(buffer.shape):
        raise ExecutionError(
            f"The reference of {step.operator} returned {array.dtype.name}{list(array.shape)}, but "
            f"{describe(buffer)} is expected.",
            where=step.label,
        )
    # Asking for what is there already takes as long as a small body.
    if buffer.dtype in NATIVE_ITEM_SIZES and not array.flags.carray:
        array = np.require(array, dtype, ["C", "A"])
    # What leaves the model must be the caller's own; what stays must not move under it.
    if is_fresh:
        shared = any(array is given for given in inputs)
    else:
        shared = buffer.kind == "output" or any(_overlap(array, given) for given in inputs)
    return array.copy() if shared else array


def _overlap(array: np.ndarray[Any, Any], given: Any) -> bool:
    return isinstance(given, np.ndarray) and np.may_share_memory(array, cast("Any", given))


def _copy(value: Any) -> Any:
    return cast("Any", value.copy()) if isinstance(value, np.ndarray) else value


def _position(buffer: Buffer) -> int:
    return buffer.index
