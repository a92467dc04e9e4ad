"""Operators that the native extension computes itself, as steps of a program.

Results of such a step may have sizes that only its data decides. Its payload begins with
``BUILT_IN``. Imports ``support`` and the rest of the package. Start with :class:`BuiltInStep`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.runtime import _native
from tilewright.runtime.program import BUILT_IN
from tilewright.runtime.reading import damaged_payload, integer, optional_integer, text

Array = np.ndarray[Any, Any]

# The attributes of each operator in the order in which ``src/native`` takes them, with what they
# are where they are left out (None: the operator tells).
ATTRIBUTES: dict[str, tuple[tuple[str, int | None], ...]] = {
    "Compress": (("axis", None),),
    "NonMaxSuppression": (("center_point_box", 0),),
    "NonZero": (),
    "TopK": (("axis", -1), ("largest", 1), ("sorted", 1)),
    "Unique": (("axis", None), ("sorted", 1)),
}
_LEFT_OUT = -(2**63)  # the number that stands for an attribute without a value


@dataclass(frozen=True)
class BuiltInStep:
    """What an operator computes of which inputs of its step.

    ``operands`` says for each operand which input of the step it is, None for one that is left out.
    ``results`` says for each output of the step which result of the operator it is.
    ``attributes`` are in the order of ``ATTRIBUTES``.
    """

    operator: str
    operands: tuple[int | None, ...]
    results: tuple[int, ...]
    attributes: tuple[int | None, ...] = ()

    def payload(self) -> bytes:
        """As the payload of a step."""
        row = [self.operator, self.operands, self.results, self.attributes]
        return BUILT_IN + json.dumps(row, separators=(",", ":")).encode()

    @staticmethod
    def of(payload: bytes) -> BuiltInStep:
        """The inverse of :meth:`payload`. Raises ArtifactError where it is damaged."""
        try:
            operator, operands, results, attributes = json.loads(payload[len(BUILT_IN) :])
            return BuiltInStep(
                text(operator),
                tuple(map(optional_integer, operands)),
                tuple(map(integer, results)),
                tuple(map(optional_integer, attributes)),
            )
        except (TypeError, ValueError, RecursionError) as error:
            raise damaged_payload(error) from error

    def description(self) -> dict[str, Any]:
        """What the native extension reads of it."""
        return {
            "operator": self.operator,
            "operands": [-1 if place is None else place for place in self.operands],
            "results": list(self.results),
            "attributes": list(_native_attributes(self.attributes)),
        }


def compute(operator: str, operands: list[Array | None], **attributes: int | None) -> list[Array]:
    """The results of an operator of ``ATTRIBUTES`` for arrays (None: left out).

    Raises ExecutionError for operands that the operator refuses.
    """
    given = [attributes.get(name, otherwise) for name, otherwise in ATTRIBUTES[operator]]
    arrays = [None if o is None else np.require(o, requirements=["C", "A"]) for o in operands]
    return _native.compute(operator, list(_native_attributes(given)), arrays)


def _native_attributes(values: Any) -> tuple[int, ...]:
    return tuple(_LEFT_OUT if value is None else value for value in values)


__all__ = ["ATTRIBUTES", "BuiltInStep", "compute"]
