"""How many instructions steps of a value are: conversions, and comparisons within others."""

from __future__ import annotations

from tilewright.ir.dtype import DType
from tilewright.ir.tile import Apply, Value
from tilewright.target.core_model import WIDE_VECTOR_BYTES
from tilewright.target.loop_costs import LoopCosts

COMPARISONS = frozenset({"less", "less_equal", "equal", "is_nan"})


def is_folded(value: Apply, vector_bytes: int) -> bool:
    """Whether an instruction beside it computes a value, in vectors of so many bytes.

    What denies a comparison is another comparison. Where comparisons make masks, one of them has
    the mask of the other as an operand, so that joining both is no further instruction.
    """
    if value.function == "logical_not":
        return _is_comparison(value.operands[0])
    if value.function == "logical_and":
        return vector_bytes >= WIDE_VECTOR_BYTES and any(map(_is_comparison, value.operands))
    return False


def _is_comparison(value: Value) -> bool:
    if not isinstance(value, Apply):
        return False
    if value.function == "logical_not":
        return _is_comparison(value.operands[0])
    return value.function in COMPARISONS


def conversion_steps(source: DType, target: DType, costs: LoopCosts) -> float:
    """Instructions of a conversion."""
    if target.is_integer and target.bytes < source.bytes and not source.is_integer:
        return costs.narrow
    return 1.0 if source.bytes == target.bytes else costs.convert


__all__ = ["conversion_steps", "is_folded"]
