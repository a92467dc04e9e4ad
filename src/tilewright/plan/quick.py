"""The quick price of a kernel, from its graph alone: no kernel is faster.

Everything that it reads and writes comes once from the nearest level that holds all of it, and the
multiply-adds run at the peak of the machine; an elementwise function, or a step of a reduction, is
computed once for every element, in whole vectors. Kernels whose quick price already rules them out
are never lowered. Start with :class:`QuickPrices`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.cost import Machine, combination_cycles, function_cycles, score_cycles
from tilewright.ir.decay import DECAY, decays
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel, KernelKind
from tilewright.ir.primitives import (
    Contract,
    Convolve,
    Gather,
    GatherElements,
    GatherND,
    Map,
    Reduce,
    Slice,
)
from tilewright.ir.tile import LINE_BYTES
from tilewright.policy.prices import evaluated_at
from tilewright.shape import Expr, constant, product
from tilewright.target.core_model import WORD_BYTES
from tilewright.tile.variants import THREADS


class QuickPrices:
    """Picoseconds of kernels at points, from below."""

    def __init__(self, machine: Machine, points: Sequence[Mapping[str, int]]) -> None:
        self._machine = machine
        self._points = points
        target = machine.target
        self._cycle = 1000.0 / target.clock_ghz
        self._multiply_add = self._cycle / (self._lanes(WORD_BYTES) * max(1.0, target.fma_pipes))
        self._sizes: dict[Node, list[float]] = {}
        self._sums: dict[Node, list[float]] = {}
        self._cycles: dict[Node, list[float]] = {}

    def of(self, kernel: Kernel) -> tuple[float, ...]:
        """A time that a kernel does not fall below, at every point."""
        picked = _picked(kernel)
        tensors = [self._bytes(node) for node in kernel.outputs]
        tensors += [self._bytes(picked.get(node, node)) for node in kernel.reads]
        applied = self._applied_in(kernel)
        sums = [self._multiply_adds(node) for node in kernel.body if is_product(node)]
        shown = 0.0 if sums else self._machine.core.loops.shown
        call = 1000.0 * self._machine.core.threads.call_ns
        found: list[float] = []
        for number, point in enumerate(self._points):
            moved = sum(sizes[number] for sizes in tensors)
            read = moved * self._rate(moved)
            computed = sum(cycles[number] for cycles in applied) * self._cycle
            computed += sum(counts[number] for counts in sums) * self._multiply_add
            alone = max(read, computed) + shown * min(read, computed)
            found.append(alone / point[THREADS] + call)
        return tuple(found)

    def computing(self, kernel: Kernel) -> tuple[float, ...]:
        """What a kernel without products computes, wherever its operands are."""
        applied = self._applied_in(kernel)
        totals = (sum(cycles[n] for cycles in applied) for n in range(len(self._points)))
        return tuple(
            total * self._cycle / point[THREADS]
            for total, point in zip(totals, self._points, strict=True)
        )

    def _rate(self, moved: float) -> float:
        """Picoseconds of a byte from the level that holds so many; none from the nearest."""
        nearest, *levels = self._machine.target.levels
        if moved <= nearest.capacity:
            return 0.0
        level = next((level for level in levels if moved <= level.capacity), levels[-1])
        return self._machine.picoseconds(LINE_BYTES / level.bandwidth) / LINE_BYTES

    def _bytes(self, node: Node) -> list[float]:
        if node not in self._sizes:
            self._sizes[node] = self._evaluated(product(node.shape) * node.dtype.bytes)
        return self._sizes[node]

    def _multiply_adds(self, node: Node) -> list[float]:
        """Of float32; those of narrow words take a part of the time."""
        if node not in self._sums:
            words = max(1, WORD_BYTES // node.inputs[0].dtype.bytes)
            self._sums[node] = [n / words for n in self._evaluated(multiply_adds(node))]
        return self._sums[node]

    def _applied_in(self, kernel: Kernel) -> list[list[float]]:
        """Cycles of what a kernel applies element by element: to scores, or as its body says."""
        if kernel.kind is not KernelKind.ATTENTION:
            applied = [node for node in kernel.body if isinstance(node.primitive, Map | Reduce)]
            return [self._applied(node) for node in applied]
        each = score_cycles(self._machine) / self._lanes(WORD_BYTES)
        return [self._times(each, product(kernel.seed.shape))]

    def _applied(self, node: Node) -> list[float]:
        """Cycles of all that a function or a reduction takes in, in whole vectors."""
        if node not in self._cycles:
            taken = node.inputs[0]
            lanes = self._lanes(taken.dtype.bytes)
            cycles = self._vector_cycles(node, lanes)
            self._cycles[node] = self._times(cycles / lanes, product(taken.shape))
        return self._cycles[node]

    def _lanes(self, size: int) -> int:
        """Elements of so many bytes in a vector."""
        return max(1, self._machine.target.vector_bytes // size)

    def _vector_cycles(self, node: Node, lanes: int) -> float:
        costs, dtype = self._machine.core.loops, node.inputs[0].dtype
        match node.primitive:
            case Map(function=function):
                function = DECAY if decays(node) else function
                return function_cycles(costs, function, dtype, lanes)[0]
            case Reduce(kind=kind):
                return combination_cycles(costs, kind, dtype)
            case _:
                raise AssertionError(f"{node.primitive} takes in no elements one by one")

    def _times(self, each: float, count: Expr) -> list[float]:
        return [each * number for number in self._evaluated(count)]

    def _evaluated(self, expression: Expr) -> list[float]:
        return evaluated_at([expression], self._points)[0]


def _picked(kernel: Kernel) -> dict[Node, Node]:
    """What parts of tensors are read, of which a kernel reads a part only."""
    readers: dict[Node, list[Node]] = {}
    for node in kernel.body:
        for operand in node.inputs:
            readers.setdefault(operand, []).append(node)
    return {
        read: using[0]
        for read in kernel.reads
        if len(using := readers[read]) == 1 and reads_a_part(using[0], read)
    }


def reads_a_part(reader: Node, whole: Node) -> bool:
    """Whether a node reads of a tensor no more than it hands on."""
    picking = (Gather, GatherElements, GatherND, Slice)
    return isinstance(reader.primitive, picking) and reader.inputs[0] is whole


def is_product(node: Node) -> bool:
    """Whether a node is a sum of products."""
    return isinstance(node.primitive, Contract | Convolve)


def multiply_adds(node: Node) -> Expr:
    """How many multiply-adds a sum of products takes."""
    match node.primitive:
        case Contract(summed=summed):
            depth = product([node.inputs[0].shape[axis] for axis, _ in summed])
        case Convolve():
            depth = product(node.inputs[1].shape[1:])
        case _:
            depth = constant(1)
    return product(node.shape) * depth


__all__ = ["QuickPrices", "is_product", "multiply_adds", "reads_a_part"]
