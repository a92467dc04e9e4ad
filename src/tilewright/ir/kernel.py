"""A kernel: the part of the primitive graph that one launch computes.

The planner makes kernels, the `tile` package turns each into a tile program. ``group`` are the
nodes computed around the backbone (topological order); everything else a kernel needs is read from
memory if it is in the plan's materialised set, and recomputed in place otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tilewright.ir.graph import Node


class KernelKind(Enum):
    """What a kernel's loops look like."""

    LOOPS = "loops"  # one independent value per output element (reductions inside are private)
    ROWS = "rows"  # reductions over the last axes stitched with the elementwise work around them
    WINDOW = "window"  # windowed reduction or depthwise convolution accumulated row by row
    CONTRACTION = "contraction"  # register tiles with an epilogue
    CONCAT = "concat"  # one loop nest per part
    SCATTER = "scatter"  # a copy of the data, then updates in order
    SCAN = "scan"  # running reduction along an axis
    OPAQUE = "opaque"  # the reference


@dataclass(frozen=True)
class Kernel:
    """One launch. ``outputs`` are written to memory; ``outer`` counts the axes of a row space."""

    kind: KernelKind
    backbone: Node
    group: tuple[Node, ...]
    outputs: tuple[Node, ...]
    label: str


@dataclass(frozen=True)
class Plan:
    """Kernels in execution order, and every node that lives in memory."""

    kernels: tuple[Kernel, ...]
    materialised: frozenset[Node]
