"""A kernel: the part of the primitive graph that one launch computes.

The planner makes kernels, the `tile` package turns each into a tile program. A kernel stands alone:
what it reads and what it computes follow from it and from nothing else, so that the same node may
be computed by two kernels, and a kernel can be lowered, priced and compared without its plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, lru_cache

from tilewright.ir.correction import Correction
from tilewright.ir.graph import Node
from tilewright.ir.primitives import (
    Concat,
    Contract,
    Convolve,
    Opaque,
    Recurrence,
    Reduce,
    Scan,
    ScatterElements,
    ScatterND,
    Shape,
    Window,
)
from tilewright.ir.views import groups
from tilewright.shape import Expr, product


class KernelKind(Enum):
    """What a kernel's loops look like."""

    LOOPS = "loops"  # one independent value per output element (reductions inside are private)
    ROWS = "rows"  # reductions over some axes stitched with the elementwise work around them
    WINDOW = "window"  # windowed reduction or depthwise convolution accumulated row by row
    CONTRACTION = "contraction"  # register tiles with an epilogue
    CONCAT = "concat"  # one loop nest per part
    SCATTER = "scatter"  # a copy of the data, then updates in order
    ATTENTION = "attention"  # two products around a softmax, block of keys by block of keys
    ROW_PRODUCT = "row product"  # a product and reductions over its rows, block of rows by block
    WINDOW_PRODUCT = "window product"  # a product and windows over its pixels, band by band
    SCAN = "scan"  # running reduction along an axis
    RECURRENCE = "recurrence"  # states that follow from those before them, step after step
    OPAQUE = "opaque"  # the reference


@dataclass(frozen=True)
class Kernel:
    """One launch.

    ``seeds`` are the contractions, convolutions, windows and reductions that shape its loops, none
    for elementwise and layout work. ``body`` is every node that it computes, operands first, light
    ones included; ``reads`` is what it takes from memory and ``outputs``, which are in the body,
    what it writes there. ``labels`` says for people where nodes come from, and ``label`` what the
    kernel as a whole is.
    """

    seeds: tuple[Node, ...]
    body: tuple[Node, ...]
    reads: tuple[Node, ...]
    outputs: tuple[Node, ...]
    label: str
    labels: Mapping[Node, str] = field(default_factory=dict[Node, str], compare=False, repr=False)

    def part(
        self,
        seeds: tuple[Node, ...],
        outputs: tuple[Node, ...],
        memory: Collection[Node],
        place: Callable[[Node], int],
    ) -> Kernel:
        """A kernel that computes a part of this one, or more than it, see :func:`kernel_of`."""
        return kernel_of(seeds, outputs, memory, place, self.label, self.labels)

    @property
    def seed(self) -> Node:
        """The first seed of a kernel that has one."""
        return self.seeds[0]

    @cached_property
    def kind(self) -> KernelKind:
        """What its loops look like, by its seeds, or else by what it writes."""
        if not self.seeds:
            return kind_of_output(self.outputs[0])
        if len(self.seeds) > 1 and isinstance(self.seeds[-1].primitive, Contract):
            return KernelKind.ATTENTION
        if len(self.seeds) > 1 and isinstance(self.seed.primitive, Contract):
            return KernelKind.ROW_PRODUCT
        if len(self.seeds) > 1 and isinstance(self.seed.primitive, Convolve):
            return KernelKind.WINDOW_PRODUCT
        kind = kind_of_seed(self.seed)
        return KernelKind.ROWS if kind is KernelKind.WINDOW and self._is_stitched else kind

    @property
    def _is_stitched(self) -> bool:
        """Whether a kernel around a Reduce goes over the elements of its rows again."""
        if not isinstance(self.seed.primitive, Reduce):
            return False
        return len(self.seeds) > 1 or any(o.shape != self.seed.shape for o in self.outputs)


def kernel_of(
    seeds: tuple[Node, ...],
    outputs: tuple[Node, ...],
    memory: Collection[Node],
    place: Callable[[Node], int],
    label: str,
    labels: Mapping[Node, str],
) -> Kernel:
    """The kernel that writes ``outputs``, with all that it reads and computes.

    It reads what is in ``memory``. Nodes are in the order of their ``place``, and ``labels`` are
    those of their graph.
    """
    reads: dict[Node, None] = {}
    body: dict[Node, None] = {}
    stack = list(outputs)
    while stack:
        current = stack.pop()
        if current in body or current in reads:
            continue
        if current in memory and current not in outputs:
            reads[current] = None
        else:
            body[current] = None
            stack += current.inputs
    in_order, read = (tuple(sorted(nodes, key=place)) for nodes in (body, reads))
    return Kernel(seeds, in_order, read, outputs, label, labels)


@dataclass(frozen=True)
class Alternatives:
    """Ways to compute one part of a graph, of which every call takes the cheapest at its sizes.

    ``ways`` holds for each way the numbers, in the plan, of those of its kernels that not all ways
    have.
    """

    ways: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Plan:
    """Kernels in execution order, launched by every call but for those of ``alternatives``.

    ``lost`` is the part of its modelled time that a planner may have lost at most by dividing the
    graph. ``corrections`` are those of the kernels, by number, that were priced by measurement;
    calls choose among alternatives by them, too.
    """

    kernels: tuple[Kernel, ...]
    alternatives: tuple[Alternatives, ...] = ()
    lost: float = 0.0
    corrections: tuple[tuple[int, Correction], ...] = ()

    @property
    def measured(self) -> tuple[str, ...]:
        """The labels of the kernels that were priced by measurement."""
        return tuple(self.kernels[number].label for number, _ in self.corrections)

    def memberships(self) -> dict[int, tuple[int, frozenset[int]]]:
        """The kernels, by number, that not every call launches: of which alternatives, and ways."""
        found: dict[int, tuple[int, frozenset[int]]] = {}
        for group, alternatives in enumerate(self.alternatives):
            for way, numbers in enumerate(alternatives.ways):
                for number in numbers:
                    _, before = found.get(number, (group, frozenset[int]()))
                    found[number] = (group, before | {way})
        return found


def kind_of_seed(seed: Node) -> KernelKind:
    """The kind of kernel that is grown around a node."""
    match seed.primitive:
        case Contract():
            return KernelKind.CONTRACTION
        case Convolve():
            return KernelKind.WINDOW if is_depthwise(seed) else KernelKind.CONTRACTION
        case Window():
            return KernelKind.WINDOW
        case Reduce():
            return KernelKind.ROWS if RowSpace.of(seed).ends_reduced else KernelKind.WINDOW
        case _:
            raise AssertionError(f"{seed!r} shapes no loops")


def is_depthwise(node: Node) -> bool:
    """Whether a Convolve sums one channel for every result, and is computed as a window is."""
    primitive, weights = node.primitive, node.inputs[1]
    assert isinstance(primitive, Convolve)
    if not all(size.is_constant for size in weights.shape) or node.rank <= 2:
        return False
    per_group = weights.shape[0].value // primitive.groups
    plain = all(spread == 1 for spread in primitive.spread)
    return plain and weights.shape[1].value == 1 and per_group <= 2


@dataclass(frozen=True)
class RowSpace:
    """What all reductions of a row kernel read: its shape, and the axes that they reduce.

    A row is what one result of such a reduction is made of; its elements need not lie side by side.
    """

    shape: Shape
    axes: tuple[int, ...]

    @staticmethod
    def of(reduction: Node) -> RowSpace:
        """The space of a Reduce."""
        primitive = reduction.primitive
        assert isinstance(primitive, Reduce)
        return RowSpace(reduction.inputs[0].shape, primitive.axes)

    @cached_property
    def wide(self) -> tuple[int, ...]:
        """The axes that are not known to have one element only."""
        return tuple(a for a, size in enumerate(self.shape) if not _is_one(size))

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """The wide axes that are not reduced: there is one row for each of their positions."""
        return tuple(a for a in self.wide if a not in self.axes)

    @property
    def ends_reduced(self) -> bool:
        """Whether neighbouring elements in memory are of one row."""
        wide = self.wide
        return not wide or wide[-1] in self.axes

    def holds_rows(self, shape: Shape) -> bool:
        """Whether a shape has one element for every row."""
        return _wide(shape) == tuple(self.shape[a] for a in self.kept)

    def holds_elements(self, shape: Shape) -> bool:
        """Whether a shape is the space's, but that neighbouring axes may be one."""
        return shape == self.shape or _merges(self.shape, shape)


@lru_cache(1 << 10)
def _merges(own: Shape, shape: Shape) -> bool:
    """Whether a shape is another one, of which neighbouring axes are one."""
    for left, right in groups(own, shape):
        whole = [size for size in (shape[a] for a in right) if not _is_one(size)]
        if len(whole) > 1 or product([own[a] for a in left]) is not product(whole):
            return False
    return True


def _wide(shape: Shape) -> tuple[Expr, ...]:
    return tuple(size for size in shape if not _is_one(size))


def _is_one(size: Expr) -> bool:
    return size.is_constant and size.value == 1


def kind_of_output(output: Node) -> KernelKind:
    match output.primitive:
        case Opaque():
            return KernelKind.OPAQUE
        case Concat():
            return KernelKind.CONCAT
        case ScatterElements() | ScatterND():
            return KernelKind.SCATTER
        case Scan():
            return KernelKind.SCAN
        case Recurrence():
            return KernelKind.RECURRENCE
        case _:
            return KernelKind.LOOPS
