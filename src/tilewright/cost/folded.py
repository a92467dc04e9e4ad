"""Which steps of a value take no instruction of their own. Start with :func:`is_folded`."""

from __future__ import annotations

from tilewright.ir.tile import Apply, Value
from tilewright.target.core_model import WIDE_VECTOR_BYTES

COMPARISONS = frozenset({"less", "less_equal", "equal", "not_equal", "is_nan"})


def is_folded(value: Apply, vector_bytes: int) -> bool:
    """Whether an instruction beside it computes a value, in vectors of so many bytes.

    What denies a comparison is another comparison. Where comparisons make masks, one of them has
    the mask of the other as an operand, so that both together are no further instruction.
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


__all__ = ["is_folded"]
