"""What is measured in several blocks of time, one after the other.

What else runs on a machine makes it slower for some milliseconds or some seconds. Within a block
the fastest of many samples counts, which short disturbances do not reach; of the blocks the median,
which a long one does not; and how far they are apart says how sure that is. Start with
:func:`typical`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

BLOCKS = 5  # of time, of whose figures the median counts
SURE = 0.1  # blocks that are further apart than this part of their median are worth another try


def typical(blocks: Sequence[float]) -> float:
    """The median of what blocks found."""
    return statistics.median(blocks)


def spread(blocks: Sequence[float]) -> float:
    """How far the quartiles of what blocks found are apart, as a part of the median; 0 for one."""
    median = typical(blocks)
    if len(blocks) < 2 or median == 0:
        return 0.0
    low, _, high = statistics.quantiles(blocks, n=4, method="inclusive")
    return (high - low) / abs(median)


__all__ = ["BLOCKS", "SURE", "spread", "typical"]
