"""What importing found out about a model, for ``inspect`` and the compile summary.

Plain data. Start with :class:`ImportReport`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DimensionReport:
    """One named dimension: its range, and where the range comes from.

    ``origin`` is "given" by the caller, implied by the "model" (``reason`` is the demand), or the
    "default". ``text`` is what the model calls it; ``places`` are input and axis pairs where it
    stands.
    """

    name: str
    text: str
    low: int
    high: int
    multiple_of: int
    origin: str
    places: tuple[tuple[str, int], ...]
    reason: str = ""


@dataclass(frozen=True)
class Fallback:
    """A node that runs on the ONNX reference evaluator, and why."""

    operator: str
    where: str
    reason: str


@dataclass(frozen=True)
class BakedSize:
    """A constant of the model that looks like the size it had when it was exported."""

    where: str
    message: str


@dataclass(frozen=True)
class ImportReport:
    """Operators, dimensions and doubts of one imported model.

    ``compiled`` counts operators that became primitives; ``fallbacks`` lists nodes that run on the
    reference. ``structural_inputs`` names graph inputs that would have to be constants for more
    operators to compile. ``notes`` are sentences on what was assumed. ``fixed`` names inputs
    that became constants: those with an initializer and those that the caller gave. ``source`` is
    the name of the file without its folder and ``source_sha256`` that of its bytes, "" for a model
    in memory.
    """

    opsets: dict[str, int]
    compiled: dict[str, int]
    fallbacks: tuple[Fallback, ...]
    dimensions: tuple[DimensionReport, ...]
    baked: tuple[BakedSize, ...]
    structural_inputs: tuple[str, ...]
    notes: tuple[str, ...]
    fixed: tuple[str, ...] = ()
    source: str = ""
    source_sha256: str = ""

    @property
    def opaque(self) -> dict[str, int]:
        """How often each operator runs on the ONNX reference evaluator."""
        counts: dict[str, int] = {}
        for fallback in self.fallbacks:
            counts[fallback.operator] = counts.get(fallback.operator, 0) + 1
        return counts
