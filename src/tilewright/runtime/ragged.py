"""A step of a ragged batch: a compiled body runs for one sequence after another.

The step's inputs are where each sequence begins and the last one ends, then packed tensors, of
which the body is given each sequence's share, then the artifact of the body. Start with
:class:`RaggedStep` and :class:`RaggedOperator`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tilewright.runtime.program import RAGGED
from tilewright.runtime.ragged_batch import Share, share_of
from tilewright.runtime.reading import damaged_payload, integer, text
from tilewright.runtime.tensors import native_dtype

Array = np.ndarray[Any, Any]
# call(inputs, outputs): a body writes its results into the arrays, or makes those that are None.
CallInto = Callable[[Sequence[Array], Sequence[Array | None]], Sequence[Array]]


@dataclass(frozen=True)
class RaggedStep:
    """What a step of a ragged batch does, apart from its body.

    ``operands`` are the shares of one sequence in the packed inputs, ``results`` those in the
    outputs, each with its dtype and the sizes of one sequence's, 0 where they are not known.
    """

    operands: tuple[Share, ...]
    results: tuple[tuple[Share, str, tuple[int, ...]], ...]

    def payload(self) -> bytes:
        """As the payload of a step."""
        row = [self.operands, self.results]
        return RAGGED + json.dumps(row, separators=(",", ":")).encode()

    @staticmethod
    def of(payload: bytes) -> RaggedStep:
        """The inverse of :meth:`payload`. Raises ArtifactError where it is damaged."""
        try:
            operands, results = json.loads(payload[len(RAGGED) :])
            return RaggedStep(
                tuple(map(share_of, operands)),
                tuple(
                    (share_of(share), text(dtype), tuple(map(integer, sizes)))
                    for share, dtype, sizes in results
                ),
            )
        except (TypeError, ValueError, RecursionError) as error:
            raise damaged_payload(error) from error


class RaggedOperator:
    """The step with its body, ready to run."""

    def __init__(self, step: RaggedStep, body: CallInto) -> None:
        self.step = step
        self.body = body

    def __call__(
        self, inputs: Sequence[Array], _sizes: Sequence[Sequence[int]] = ()
    ) -> list[Array]:
        """The outputs for the inputs of the step."""
        step, ends = self.step, inputs[0].tolist()
        values = inputs[1 : 1 + len(step.operands)]
        made: list[Array | None] = [None] * len(step.results)
        for number, (first, last) in enumerate(pairwise(ends)):
            given = [
                _share(array, share, number, first, last)
                for array, share in zip(values, step.operands, strict=True)
            ]
            places = [
                None if whole is None else _share(whole, share, number, first, last)
                for whole, (share, _, _) in zip(made, step.results, strict=True)
            ]
            direct = [
                place if place is not None and place.flags.c_contiguous else None
                for place in places
            ]
            results = self.body(given, direct)
            for index, (share, dtype, _) in enumerate(step.results):
                whole, place = made[index], places[index]
                if whole is None or place is None:
                    whole = made[index] = _empty(share, dtype, results[index].shape, ends)
                    place = _share(whole, share, number, first, last)
                if direct[index] is None:
                    place[...] = results[index]
        return [
            _empty(share, dtype, sizes, ends) if whole is None else whole
            for whole, (share, dtype, sizes) in zip(made, step.results, strict=True)
        ]


def _share(array: Array, share: Share, number: int, first: int, last: int) -> Array:
    """What of an array belongs to one sequence: a view of it."""
    part, axis = share
    if part == "whole":
        return array
    taken = slice(first, last) if part == "positions" else slice(number, number + 1)
    return array[(slice(None),) * axis + (taken,)]


def _empty(share: Share, dtype: str, sizes: Sequence[int], ends: Sequence[int]) -> Array:
    """An array for what all sequences have, of the sizes of one."""
    part, axis = share
    whole = list(sizes)
    whole[axis] = ends[-1] if part == "positions" else len(ends) - 1
    return np.empty(whole, native_dtype(dtype))


__all__ = ["CallInto", "RaggedOperator", "RaggedStep"]
