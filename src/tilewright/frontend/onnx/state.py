"""What importing one model carries along: frames of values, the node at hand, and what was learnt.

Plain data shared by ``importer``, ``rules`` and ``interface``. Start with :class:`State`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx
import onnx_ir

from tilewright.frontend.onnx.report import BakedSize, DimensionReport, Fallback, ImportReport
from tilewright.ir.graph import Node
from tilewright.ops.record import AttributeValue, ImportFacts
from tilewright.shape import Scope


@dataclass
class CallFrame:
    """Values of one graph or of one call of a function.

    ``prefix`` says where it stands, for messages; ``counted`` whether its operators are the
    model's own; ``omitted`` are the parameters of a function that the call leaves out.
    """

    opsets: dict[str, int]
    prefix: str = ""
    depth: int = 0
    counted: bool = True
    values: dict[onnx_ir.Value, Node] = field(default_factory=dict[onnx_ir.Value, Node])
    omitted: set[onnx_ir.Value] = field(default_factory=set[onnx_ir.Value])


@dataclass(frozen=True)
class Use:
    """One ONNX node with its operands, on its way to becoming primitives."""

    item: onnx_ir.Node
    frame: CallFrame
    where: str
    domain: str
    opset: int
    operands: tuple[Node | None, ...]
    attributes: dict[str, AttributeValue]

    @property
    def name(self) -> str:
        """The operator with its domain, for people."""
        return f"{self.domain}::{self.item.op_type}" if self.domain else self.item.op_type

    @property
    def output_count(self) -> int:
        """Outputs up to the last one that is used by name."""
        present = [i for i, value in enumerate(self.item.outputs) if value.name]
        return present[-1] + 1 if present else 0


@dataclass(frozen=True)
class Checkpoint:
    """What was known of a model before something was tried."""

    facts: ImportFacts
    lengths: tuple[int, ...]


@dataclass
class State:
    """What has been learnt about the model so far.

    ``objects`` holds the ONNX types of sequences and optionals, ``opaque`` the calls of the
    reference in their order, ``sequences`` those that make sequences of known elements, which are
    left only where something needs them, and whether they are counted; ``structural`` names inputs
    that would have to be constants.
    """

    scope: Scope = field(default_factory=Scope)
    facts: ImportFacts = field(init=False)
    dimensions: tuple[DimensionReport, ...] = ()
    inputs: list[Node] = field(default_factory=list[Node])
    objects: dict[Node, onnx.TypeProto] = field(default_factory=dict[Node, onnx.TypeProto])
    opaque: list[Node] = field(default_factory=list[Node])
    sequences: dict[Node, tuple[Fallback, bool]] = field(
        default_factory=dict[Node, tuple[Fallback, bool]]
    )
    labels: dict[Node, str] = field(default_factory=dict[Node, str])
    compiled: dict[str, int] = field(default_factory=dict[str, int])
    fallbacks: list[Fallback] = field(default_factory=list[Fallback])
    baked: list[BakedSize] = field(default_factory=list[BakedSize])
    structural: dict[str, None] = field(default_factory=dict[str, None])
    notes: list[str] = field(default_factory=list[str])
    fixed: tuple[str, ...] = ()
    count: int = 0

    def __post_init__(self) -> None:
        self.facts = ImportFacts(self.scope, self.labels)

    def on_trial(self) -> State:
        """A state that knows the same, for an import whose outcome is thrown away."""
        other = State(self.scope.copy())
        other.facts.given = self.facts.given
        other.objects = dict(self.objects)
        other.count = self.count
        return other

    def checkpoint(self) -> Checkpoint:
        """What is known now, to go back to with :meth:`restore`."""
        lists = self._lists()
        return Checkpoint(self.facts.checkpoint(), tuple(len(found) for found in lists))

    def restore(self, known: Checkpoint) -> None:
        """Forget what was learnt, and which operators were called, since then."""
        self.facts.restore(known.facts)
        for found, length in zip(self._lists(), known.lengths, strict=True):
            del found[length:]

    def _lists(self) -> tuple[list[Fallback], list[BakedSize], list[Node]]:
        return self.fallbacks, self.baked, self.opaque

    def report(self, opsets: dict[str, int]) -> ImportReport:
        """The report of the finished import."""
        return ImportReport(
            dict(opsets),
            dict(sorted(self.compiled.items())),
            tuple(self.fallbacks),
            self.dimensions,
            tuple(self.baked),
            tuple(self.structural),
            tuple(self.notes),
            self.fixed,
        )
