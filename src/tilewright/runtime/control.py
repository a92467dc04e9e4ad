"""If, Loop and Scan at run time: which body runs, how often, and what it is given.

A step of such an operator has a payload that begins with ``CONTROL``, and the artifacts of its
bodies are its last inputs. Bodies are compiled models, which are called as often as the
operator says: by the native extension, or from here where a body has a step that needs Python.
Imports ``support``, numpy and the rest of the package. Start with
:class:`ControlStep` and :class:`ControlOperator`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.runtime.program import (
    CONTROL,
    NATIVE_ITEM_SIZES,
    Buffer,
    OpaqueStep,
    Program,
)
from tilewright.runtime.reading import damaged_payload, integer, text
from tilewright.runtime.tensors import native_dtype

Array = np.ndarray[Any, Any]
# A dtype and sizes, each a number (0 where it is not known) or that of an input along an axis.
ResultType = tuple[str, tuple[int | tuple[int, int], ...]]
Sizes = Mapping[int, Sequence[int]]  # of outputs as the model tells them, 0 where only turns do
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
            raise damaged_payload(error) from error

    @property
    def states(self) -> tuple[int, ...]:
        """The inputs of the step that the first turn is given as states."""
        present = tuple(place for place in self.operands if place is not None)
        if self.operator == "Scan":
            return present[: -self.scanned]
        carried = self.operands[2:] if self.operator == "Loop" else ()
        return tuple(place for place in carried if place is not None)

    def description(self, bodies: Sequence[Any], ranks: Sequence[int]) -> dict[str, Any]:
        """What the native extension reads of it; ``ranks`` are those of the step's inputs.

        ``bodies`` are native models. Raises ArtifactError where it contradicts itself.
        """
        try:
            return self._described(bodies, ranks)
        except (IndexError, ValueError, ZeroDivisionError) as error:
            raise damaged_payload(error) from error

    def _described(self, bodies: Sequence[Any], ranks: Sequence[int]) -> dict[str, Any]:
        present = [place for place in self.operands if place is not None]
        scanned = present[len(self.states) :] if self.operator == "Scan" else []
        first = {"If": len(self.results), "Loop": 1 + len(self.states)}
        made = self.results[first.get(self.operator, len(self.states)) :]
        axes = self.result_axes or (0,) * len(made)
        backward = self.result_backward or (0,) * len(made)
        return {
            "operator": self.operator,
            "count": self._place(0) if self.operator == "Loop" else -1,
            "condition": self._place({"If": 0, "Loop": 1}.get(self.operator)),
            "states": list(self.states),
            "scanned": [
                (place, axis % ranks[place], bool(back))
                for place, axis, back in zip(scanned, self.axes, self.backward, strict=True)
            ],
            "stacked": [
                (axis % (len(sizes) + 1), bool(back), [_known_from(size) for size in sizes])
                for (_, sizes), axis, back in zip(made, axes, backward, strict=True)
            ],
            "bodies": list(zip(bodies, map(list, self.bodies), strict=True)),
            "results": list(self.outputs),
        }

    def _place(self, operand: int | None) -> int:
        """The input that an operand is; -1 for one that is left out."""
        place = None if operand is None else self.operands[operand : operand + 1]
        return -1 if not place or place[0] is None else place[0]


class ControlOperator:
    """An operator with bodies, ready to run: ``bodies`` in the order of the step's."""

    def __init__(self, step: ControlStep, bodies: Sequence[Call]) -> None:
        self.step = step
        self.bodies = bodies

    def __call__(self, inputs: Sequence[Array], sizes: Sequence[Sequence[int]]) -> list[Array]:
        """The outputs for the inputs of the step, of these sizes as far as they are known."""
        run = {"If": self._if, "Loop": self._loop, "Scan": self._scan}[self.step.operator]
        made = run(inputs, dict(zip(self.step.outputs, sizes, strict=True)))
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

    def _if(self, inputs: Sequence[Array], _sizes: Sizes) -> Sequence[Array]:
        condition = self._operand(inputs, 0)
        assert condition is not None
        return self._called(0 if bool(condition.reshape(-1)[0]) else 1, (), inputs)

    def _loop(self, inputs: Sequence[Array], sizes: Sizes) -> Sequence[Array]:
        count, condition = self._operand(inputs, 0), self._operand(inputs, 1)
        states = [inputs[place] for place in self.step.states]
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
        return [*states, *self._stacked(stacks, end, inputs, sizes)]

    def _scan(self, inputs: Sequence[Array], sizes: Sizes) -> Sequence[Array]:
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
        made = self._stacked(stacks, kept, inputs, sizes)
        ordered = [
            np.moveaxis(array, 0, axis) for array, axis in zip(made, step.result_axes, strict=True)
        ]
        return [*states, *ordered]

    def _stacked(
        self, stacks: Sequence[list[Array]], first: int, inputs: Sequence[Array], sizes: Sizes
    ) -> list[Array]:
        """What all turns have made, along a new first axis."""
        made: list[Array] = []
        kept = len(self.step.states)
        for number, (stack, (dtype, own)) in enumerate(
            zip(stacks, self.step.results[first:], strict=True)
        ):
            if stack:
                made.append(_stack(stack))
                continue
            told = list(sizes.get(kept + number, (0, *(0 for _ in own))))
            del told[self.step.result_axes[number] if self.step.result_axes else 0]
            known = [s if isinstance(s, int) else inputs[s[0]].shape[s[1]] for s in own]
            shape = [mine or its for mine, its in zip(known, told, strict=True)]
            made.append(np.empty((0, *shape), native_dtype(dtype)))
        return made


def are_native(buffers: Iterable[Buffer]) -> bool:
    """Whether kernels can use all of these."""
    return all(buffer.dtype in NATIVE_ITEM_SIZES for buffer in buffers)


def is_native(program: Program, described: Container[int]) -> bool:
    """Whether no step needs Python; of those in ``described`` the extension calls the bodies."""
    opaque = {n: step for n, step in enumerate(program.steps) if isinstance(step, OpaqueStep)}
    return are_native(program.buffers) and all(
        step.is_built_in or number in described for number, step in opaque.items()
    )


def _columns(rows: Sequence[Sequence[Array]], count: int) -> list[list[Array]]:
    return [[row[column] for row in rows] for column in range(count)]


def _stack(elements: Sequence[Array]) -> Array:
    """As ``np.stack``, without a view of each array, which takes longer than joining small ones."""
    shape = elements[0].shape
    if not shape or any(element.shape != shape for element in elements):
        return np.stack(elements)
    return np.concatenate(elements).reshape(len(elements), *shape)


def _known_from(size: int | tuple[int, int]) -> tuple[int, int]:
    return (-1, size) if isinstance(size, int) else size


def _size(given: Any) -> int | tuple[int, int]:
    if isinstance(given, int):
        return integer(given)
    place, axis = given
    return integer(place), integer(axis)
