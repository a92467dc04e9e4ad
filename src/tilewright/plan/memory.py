"""How much memory a plan needs between its kernels, and which of them need too much together.

Like the memory plan of a call: tensors live from the launch that writes them to the last one that
reads them, results take the place of operands that nobody reads afterwards (``tile/sharing.py``),
and of a kernel's variants the cheapest runs. Start with :class:`PlanMemory`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product as every

from tilewright.ir.graph import Graph, Node
from tilewright.ir.kernel import Kernel, KernelKind
from tilewright.ir.primitives import Constant, Input
from tilewright.ir.tile import LINE_BYTES
from tilewright.policy.prices import evaluated_at, range_of
from tilewright.shape import Expr, symbol
from tilewright.support.errors import DimensionError
from tilewright.tile.alike import LoweringOnce
from tilewright.tile.prices import with_costs
from tilewright.tile.sharing import Launch, OverwritingOnce, SharedMemory, Tensor, elements
from tilewright.tile.variants import THREADS, Packed, Variant

ALIGNMENT = LINE_BYTES  # of every tensor between kernels
MOST_CORNERS = 32  # of the declared ranges that memory is asked at

Point = Mapping[str, int]


@dataclass(frozen=True)
class Fullest:
    """The launch at which a plan needs the most bytes, and at which sizes.

    ``together`` are kernels by which so much more than ``limit`` is needed already: the one that
    is launched, and those that write what lies in memory then and read it later.
    """

    bytes: int
    point: Point
    launched: Kernel
    together: tuple[Kernel, ...]


@dataclass
class _Place:
    """One piece of memory: the largest tensor in it, and the kernels that are why it is held."""

    first: int
    last: int
    bytes: int
    kernels: set[int]


class PlanMemory:
    """The memory of plans of one graph at the ends of its declared ranges, on one and all threads.

    Raises DimensionError for a dimension whose range has no end.
    """

    def __init__(self, graph: Graph, lowering: LoweringOnce) -> None:
        self.points = list(_corners(graph, lowering.machine.target.units))
        self._graph = graph
        self._lowering = lowering
        self._overwriting = OverwritingOnce(graph.scope)
        self._roots = set(graph.roots)
        self._variants: dict[Kernel, tuple[tuple[Variant, ...], list[int]]] = {}

    def fullest(self, kernels: Sequence[Kernel], limit: int) -> Fullest:
        """Where kernels in their order need the most memory."""
        launches = [self._launch(kernel) for kernel in kernels]
        memory = SharedMemory(launches, self._overwriting, self._is_inside, _bytes)
        worst = [self._at(kernels, memory, number, limit) for number in range(len(self.points))]
        return max(worst, key=lambda found: found.bytes)

    def _launch(self, kernel: Kernel) -> Launch:
        if kernel.kind is KernelKind.OPAQUE:
            return Launch((), (*kernel.reads, *kernel.outputs))
        return Launch(self._cheapest(kernel)[0])

    def _cheapest(self, kernel: Kernel) -> tuple[tuple[Variant, ...], list[int]]:
        """The variants of a kernel, and which one runs at every point."""
        if kernel not in self._variants:
            variants = self._lowering.lowered(kernel).variants
            priced = with_costs(variants, self._lowering.machine)
            costs = evaluated_at([variant.cost for variant in priced], self.points)
            taken = [min(range(len(at)), key=at.__getitem__) for at in zip(*costs, strict=True)]
            self._variants[kernel] = variants, taken
        return self._variants[kernel]

    def _is_inside(self, tensor: Tensor) -> bool:
        """Whether a tensor is made by a kernel and is nothing that a caller gets."""
        is_given = isinstance(tensor, Node) and isinstance(tensor.primitive, Input | Constant)
        return not is_given and tensor not in self._roots

    def _at(
        self, kernels: Sequence[Kernel], memory: SharedMemory, number: int, limit: int
    ) -> Fullest:
        """The fullest launch at one point."""
        point = self.points[number]
        places: dict[object, _Place] = {}
        owners: list[int] = []  # the kernel of every step
        for position, kernel in enumerate(kernels):
            if kernel.kind is KernelKind.OPAQUE:
                steps = [(kernel.reads, ())]
            else:
                variants, taken = self._cheapest(kernel)
                steps = [(step.reads, step.writes) for step in variants[taken[number]].steps]
            for reads, writes in steps:
                for tensor in (*reads, *writes):
                    place = None if isinstance(tensor, Packed) else places.get(memory.owner(tensor))
                    if place is not None:
                        place.last = len(owners)
                        place.kernels.add(position)
                for target in writes:
                    owner = memory.owner(target)
                    if owner not in places and target not in self._roots:
                        size = elements(target).evaluate(point) * target.dtype.bytes
                        size = -(-max(size, 0) // ALIGNMENT) * ALIGNMENT
                        places[owner] = _Place(len(owners), len(owners), size, {position})
                owners.append(position)
        return self._fullest(kernels, list(places.values()), owners, point, limit)

    def _fullest(
        self, kernels: Sequence[Kernel], places: Sequence[_Place], owners: Sequence[int],
        point: Point, limit: int,
    ) -> Fullest:  # fmt: skip
        def held(step: int) -> list[_Place]:
            return [place for place in places if place.first <= step <= place.last]

        def total(step: int) -> int:
            return sum(place.bytes for place in held(step))

        step = max(range(len(owners)), key=total)
        together = {owners[step]}
        needed = 0
        for place in sorted(held(step), key=lambda place: -place.bytes):
            if needed > limit:
                break
            needed += place.bytes
            together |= place.kernels
        chosen = tuple(kernels[number] for number in sorted(together))
        return Fullest(total(step), point, kernels[owners[step]], chosen)


def _bytes(tensor: Tensor) -> Expr:
    return elements(tensor) * tensor.dtype.bytes


def _corners(graph: Graph, units: int) -> Iterator[Point]:
    """The ends of the declared ranges, the largest first, on one thread and on all."""
    names = sorted(graph.scope.independent)
    for name in names:
        if graph.scope.bounds(symbol(name)).high is None:
            raise DimensionError(
                f"There is no bound to the memory of a plan, since {name} has none",
                where=f'dimension "{name}"',
                hint="Give the range of every dimension an end",
            )
    ends = [dict.fromkeys(reversed(range_of(graph.scope, name))) for name in names]
    for number, sizes in enumerate(every(*ends)):
        if number == MOST_CORNERS:
            return
        for threads in dict.fromkeys((1, units)):
            yield {**graph.scope.completed(dict(zip(names, sizes, strict=True))), THREADS: threads}


__all__ = ["Fullest", "PlanMemory"]
