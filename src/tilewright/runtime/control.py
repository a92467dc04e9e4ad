"""If, Loop and Scan at run time: which body runs, how often, and what it is given.

A step of such an operator has a payload that begins with ``CONTROL``, and the artifacts of its
bodies are its last inputs. Bodies are compiled models, which are called as often as the
operator says. Imports ``support``, numpy and the rest of the package. Start with
:class:`ControlStep` and :class:`ControlOperator`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.runtime.program import CONTROL
from tilewright.runtime.reading import integer, text
from tilewright.runtime.tensors import native_dtype
from tilewright.support.errors import ArtifactError

Array = np.ndarray[Any, Any]
# A dtype and sizes, each a number (0 where it is not known) or that of an input along an axis.
ResultType = tuple[str, tuple[int | tuple[int, int], ...]]
Call = Callable[[tuple[Array, ...]], Sequence[Array]]  # a body: its results, for its inputs


@dataclass(frozen=True)
class ControlStep:
    """What an operator with bodies does, apart from the bodies.

    ``operands`` says for each operand which input of the step it is, None for one that is left out.
    ``outputs`` are the operator's outputs that the step has. ``bodies`` says for the inputs of each
    body, in order, which parameter they are, or -1 - n for input n of the step. ``results`` are the
    types of what a body returns, which tell what a loop that never runs has made.
    """

    operator: str
    operands: tuple[int | None, ...]
    outputs: tuple[int, ...]
    bodies: tuple[tuple[int, ...], ...]
    results: tuple[ResultType, ...]
    scanned: int = 0
    axes: tuple[int, ...] = ()
    backward: tuple[int, ...] = ()
    result_axes: tuple[int, ...] = ()
    result_backward: tuple[int, ...] = ()

    def payload(self) -> bytes:
        """As the payload of a step."""
        row = [
            self.operator, self.operands, self.outputs, self.bodies,
            self.results, self.scanned, self.axes, self.backward, self.result_axes,
            self.result_backward,
        ]  # fmt: skip
        return CONTROL + json.dumps(row, separators=(",", ":")).encode()

    @staticmethod
    def of(payload: bytes) -> ControlStep:
        """The inverse of :meth:`payload`. Raises ArtifactError where it is damaged."""
        try:
            operator, operands, outputs, bodies, results, scanned, *rest = json.loads(
                payload[len(CONTROL) :]
            )
            axes, backward, result_axes, result_backward = (tuple(map(integer, r)) for r in rest)
            return ControlStep(
                text(operator),
                tuple(None if o is None else integer(o) for o in operands),
                tuple(map(integer, outputs)),
                tuple(tuple(map(integer, places)) for places in bodies),
                tuple((text(dtype), tuple(map(_size, sizes))) for dtype, sizes in results),
                integer(scanned), axes, backward, result_axes, result_backward,
            )  # fmt: skip
        except (TypeError, ValueError, RecursionError) as error:
            raise ArtifactError(f"The program is damaged: a step's payload ({error!r})") from error


class ControlOperator:
    """An operator with bodies, ready to run: ``bodies`` in the order of the step's."""

    def __init__(self, step: ControlStep, bodies: Sequence[Call]) -> None:
        self.step = step
        self.bodies = bodies

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs for the inputs of the step."""
        made = {"If": self._if, "Loop": self._loop, "Scan": self._scan}[self.step.operator](inputs)
        return [made[number] for number in self.step.outputs]

    def _operand(self, inputs: Sequence[Array], number: int) -> Array | None:
        operands = self.step.operands
        place = operands[number] if number < len(operands) else None
        return None if place is None else inputs[place]

    def _called(
        self, number: int, parameters: Sequence[Array], inputs: Sequence[Array]
    ) -> Sequence[Array]:
        places = self.step.bodies[number]
        given = [parameters[place] if place >= 0 else inputs[-1 - place] for place in places]
        return self.bodies[number](tuple(given))

    def _if(self, inputs: Sequence[Array]) -> Sequence[Array]:
        condition = self._operand(inputs, 0)
        assert condition is not None
        return self._called(0 if bool(condition.reshape(-1)[0]) else 1, (), inputs)

    def _loop(self, inputs: Sequence[Array]) -> Sequence[Array]:
        count, condition = self._operand(inputs, 0), self._operand(inputs, 1)
        states = [inputs[place] for place in self.step.operands[2:] if place is not None]
        limit = None if count is None else int(count.reshape(-1)[0])
        going = condition is None or bool(condition.reshape(-1)[0])
        # Few bodies ask for the number of the turn or the condition, which take a while to make.
        counts, asks = (place in self.step.bodies[0] for place in (0, 1))
        number, again = np.array(0, np.int64), np.array(going)
        kept, end = len(states), 1 + len(states)
        stacked: list[Sequence[Array]] = []  # by turn
        turn = 0
        while going and (limit is None or turn < limit):
            if counts:
                number = np.array(turn, np.int64)
            if asks:
                again = np.array(going)
            made = self._called(0, (number, again, *states), inputs)
            going = bool(made[0].item())
            states = made[1:end]
            if len(made) > end:
                stacked.append(made[end:])
            turn += 1
        stacks = _columns(stacked, len(self.step.results) - 1 - kept)
        return [*states, *self._stacked(stacks, end, inputs)]

    def _scan(self, inputs: Sequence[Array]) -> Sequence[Array]:
        step = self.step
        given = [inputs[place] for place in step.operands if place is not None]
        states, scanned = given[: -step.scanned], given[-step.scanned :]
        elements: list[Array] = []  # in rows, so that no turn copies its own
        for array, axis, backward in zip(scanned, step.axes, step.backward, strict=True):
            moved = np.moveaxis(array, axis, 0)
            elements.append(np.ascontiguousarray(moved[::-1] if backward else moved))
        kept = len(states)
        stacked: list[Sequence[Array]] = []  # by turn
        for scanned_now in zip(*elements, strict=True):
            made = self._called(0, (*states, *scanned_now), inputs)
            states = list(made[:kept])
            stacked.append(made[kept:])
        stacks = _columns(stacked, len(step.results) - kept)
        for stack, backward in zip(stacks, step.result_backward, strict=True):
            if backward:
                stack.reverse()
        made = self._stacked(stacks, kept, inputs)
        ordered = [
            np.moveaxis(array, 0, axis) for array, axis in zip(made, step.result_axes, strict=True)
        ]
        return [*states, *ordered]

    def _stacked(
        self, stacks: Sequence[list[Array]], first: int, inputs: Sequence[Array]
    ) -> list[Array]:
        """What all turns have made, along a new first axis."""
        made: list[Array] = []
        for stack, (dtype, sizes) in zip(stacks, self.step.results[first:], strict=True):
            if stack:
                made.append(_stack(stack))
                continue
            known = [s if isinstance(s, int) else inputs[s[0]].shape[s[1]] for s in sizes]
            made.append(np.empty((0, *known), native_dtype(dtype)))
        return made


def _columns(rows: Sequence[Sequence[Array]], count: int) -> list[list[Array]]:
    return [[row[column] for row in rows] for column in range(count)]


def _stack(elements: Sequence[Array]) -> Array:
    """As ``np.stack``, without a view of each array, which takes longer than joining small ones."""
    shape = elements[0].shape
    if not shape or any(element.shape != shape for element in elements):
        return np.stack(elements)
    return np.concatenate(elements).reshape(len(elements), *shape)


def _size(given: Any) -> int | tuple[int, int]:
    if isinstance(given, int):
        return integer(given)
    place, axis = given
    return integer(place), integer(axis)
