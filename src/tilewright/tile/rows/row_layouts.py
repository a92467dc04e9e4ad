"""Which axes of a row space are a task's columns, and which lie around them: :func:`layouts`."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.kernel import Kernel, RowSpace
from tilewright.shape import product
from tilewright.target.core_model import LEAST_VECTOR_BYTES, WORD_BYTES

WIDEST = 64  # elements of a row that lie together: more, and vectors run along the row
WIDEST_ALONE = 4  # the same where these are all of the row: longer ones are turned
# Of fewer, which fill no vector of words, vectors along the rows may take less time, however they
# lie: both are priced.
FEW_COLUMNS = LEAST_VECTOR_BYTES // WORD_BYTES


@dataclass(frozen=True)
class Layout:
    """The wide axes of a row space by what they are to a task.

    ``has_few`` columns may be worse than whole rows in turn; only a call tells whether those are
    few that ``may_be_few``.
    """

    grid: tuple[int, ...]
    strided: tuple[int, ...]
    beside: tuple[int, ...]
    within: tuple[int, ...]
    has_few: bool = False
    may_be_few: bool = False


def layouts(kernel: Kernel) -> list[Layout]:
    """Layouts to try for a kernel, the best first; none where vectors had better follow rows."""
    space = RowSpace.of(kernel.seed)
    axes = [*space.wide]
    end = len(axes)
    while end and axes[end - 1] in space.axes:
        end -= 1
    begin = end
    while begin and axes[begin - 1] not in space.axes:
        begin -= 1
    within, strided = axes[end:], [a for a in axes[:begin] if a in space.axes]
    width = product([space.shape[a] for a in within])
    columns = product([space.shape[a] for a in axes[begin:]])
    narrow = width.is_constant and 0 < width.value <= (WIDEST if strided else WIDEST_ALONE)
    few = columns.is_constant and columns.value < FEW_COLUMNS
    may_be_few = few or not columns.is_constant
    if begin == end or not narrow:
        return []
    return [
        Layout(
            tuple(a for a in axes[:first] if a not in space.axes),
            tuple(strided), tuple(axes[first:end]), tuple(within), few, may_be_few,
        )
        for first in dict.fromkeys((begin, end - 1))
    ]  # fmt: skip
