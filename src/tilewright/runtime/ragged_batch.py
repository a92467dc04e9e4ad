"""How sequences of their own lengths become the inputs of a program, and its outputs sequences.

Plain records without the rest of the package. Start with :class:`RaggedBatch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tilewright.runtime.reading import integer, optional_integer, text

Part = Literal["positions", "sequences", "whole"]
PARTS: tuple[Part, ...] = ("positions", "sequences", "whole")
Share = tuple[Part, int]  # what of a tensor belongs to one sequence, and along which axis it lies


@dataclass(frozen=True)
class RaggedTensor:
    """An input or output of the caller's: its share, and the axis of size 1 in place of the batch.

    ``unit_axis`` is -1 where there is none.
    """

    part: Part
    axis: int
    unit_axis: int = -1

    @property
    def inner_axis(self) -> int:
        """Along which axis the positions of one sequence lie in the caller's array of it."""
        return self.axis - (0 <= self.unit_axis < self.axis)


@dataclass(frozen=True)
class RaggedBatch:
    """The lengths of sequences, ``low`` <= length <= ``high``, and what consists of sequences.

    ``name`` and ``batch`` are the model's names for the length and the number of sequences,
    ``positions`` is the program's for the sum of the lengths. The input after all of the caller's
    says where each sequence begins and the last one ends.
    """

    name: str
    low: int
    high: int | None
    multiple_of: int
    batch: str
    positions: str
    inputs: tuple[RaggedTensor, ...]
    outputs: tuple[RaggedTensor, ...]

    def row(self) -> list[Any]:
        """What is stored of it."""
        own = [self.name, self.low, self.high, self.multiple_of, self.batch, self.positions]
        return [*own, _rows(self.inputs), _rows(self.outputs)]

    def check(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """ValueError where it does not fit tensors of these ranks, the offsets left out."""
        pairs = ((self.inputs, inputs), (self.outputs, outputs))
        fits = all(len(tensors) == len(ranks) for tensors, ranks in pairs) and all(
            tensor.part == "whole" or (0 <= tensor.axis < rank and -1 <= tensor.unit_axis < rank)
            for tensors, ranks in pairs
            for tensor, rank in zip(tensors, ranks, strict=True)
        )
        if not fits:
            raise ValueError("the ragged batch is not one of these tensors")

    @staticmethod
    def of(row: Any) -> RaggedBatch | None:
        """From what :meth:`row` gave; ``TypeError`` or ``ValueError`` where it is damaged."""
        if row is None:
            return None
        name, low, high, multiple, batch, positions, inputs, outputs = row
        numbers = integer(low), optional_integer(high), integer(multiple)
        tensors = tuple(map(_tensor, inputs)), tuple(map(_tensor, outputs))
        return RaggedBatch(text(name), *numbers, text(batch), text(positions), *tensors)


def _rows(tensors: Iterable[RaggedTensor]) -> list[list[Any]]:
    return [[t.part, t.axis, t.unit_axis] for t in tensors]


def _tensor(row: Any) -> RaggedTensor:
    part, axis, unit_axis = row
    return RaggedTensor(*share_of((part, axis)), integer(unit_axis))


def share_of(row: Any) -> Share:
    """A share from its stored form; ``TypeError`` or ``ValueError`` where it is damaged."""
    part, axis = row
    if part not in PARTS:
        raise ValueError(f"{part!r} is no part of a tensor")
    return part, integer(axis)
