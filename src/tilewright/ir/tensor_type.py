"""Element type and symbolic shape of a tensor, and what is said of operands that do not fit."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.dtype import DType
from tilewright.shape import Expr

Shape = tuple[Expr, ...]


@dataclass(frozen=True)
class TensorType:
    """Element type and symbolic shape of a tensor."""

    dtype: DType
    shape: Shape

    def __str__(self) -> str:
        return f"{self.dtype.value}[{', '.join(map(str, self.shape))}]"


class PrimitiveError(ValueError):
    """Operands that a primitive cannot take; a defect of the rule that built it."""


def demand(condition: bool, message: str, *parts: object) -> None:
    """Raise ``message.format(*parts)``, which is made only then, unless a condition holds."""
    if not condition:
        raise PrimitiveError(message.format(*parts))
