"""What the sweeps of a row kernel compute, whichever way its loops run.

A *stage* is one sweep over the rows: it evaluates the reductions whose operands are known by then.
Values that later sweeps use again, too, are kept if they are dear, in the result itself if it has
room for them. Start with :meth:`RowStages.sweeps`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel, RowSpace
from tilewright.ir.primitives import Cast, Map, Reduce, Reshape
from tilewright.ir.scalar import SCALAR_FUNCTIONS
from tilewright.ir.tile import Apply, Literal, Load, TileBuffer, Value
from tilewright.ir.views import Index, linear, reshape_index
from tilewright.shape import Expr, ceil_div, constant, minimum
from tilewright.tile.nests import target_buffers
from tilewright.tile.rows.divisions import divisions
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.work import PARTS

KEEP_ABOVE = 3  # operations: cheaper values are recomputed rather than kept


Offset = Callable[[Sequence[Expr]], Expr]


class NotOneLoopError(Exception):
    """Axes that are to be one loop are none, as an access does not walk them so."""


def part_of(size: Expr, part: Expr) -> tuple[Expr, Expr]:
    """Where a part of an axis begins and ends; the last ones may be short, or have nothing."""
    longest = ceil_div(size, PARTS)
    return part * longest, minimum((part + 1) * longest, size)


def kind_of(reduction: Node) -> str:
    """How a Reduce combines elements."""
    primitive = reduction.primitive
    assert isinstance(primitive, Reduce)
    return primitive.kind


def reciprocal(value: Value) -> Value:
    """1 over a value."""
    return Apply("divide", (Literal(1.0, value.dtype), value), value.dtype)


@dataclass(frozen=True)
class Sweep:
    """One pass over the rows: what it reduces, what it keeps for later ones, what it writes."""

    reductions: tuple[Node, ...]
    keep: tuple[Node, ...]
    outputs: tuple[Node, ...]

    @property
    def roots(self) -> tuple[Node, ...]:
        """The elements that it evaluates."""
        return (*(r.inputs[0] for r in self.reductions), *self.outputs)


class RowStages:
    """A row kernel, its space, its results, and the order in which its values are found."""

    def __init__(self, kernel: Kernel, lowering: Lowering, keeps: bool = True) -> None:
        """``keeps`` says that what one sweep keeps is there for the next."""
        self.kernel = kernel
        self.keeps = keeps
        self.lowering = lowering
        self.space = RowSpace.of(kernel.seed)
        self.seeds = frozenset(kernel.seeds)
        self.targets = target_buffers(kernel)
        self.written = dict(self.targets)  # where elements of results are put, at ``offset``
        self.offset: Offset = self._in_order
        self.elements = [o for o in kernel.outputs if self.space.holds_elements(o.shape)]
        self.results = [o for o in kernel.outputs if o not in self.elements]
        self._stage: dict[Node, int] = {}
        self._in_results: set[Node] = set()
        self._written_last: tuple[Node, ...] = ()

    def sweeps(self) -> list[Sweep]:
        """The sweeps in order; the last one writes elements, if any are asked for."""
        last = max(self.stage_of(seed) for seed in self.kernel.seeds)
        stages = [
            tuple(seed for seed in self.kernel.seeds if self.stage_of(seed) == stage)
            for stage in range(1, last + 1)
        ]
        demands = [[r.inputs[0] for r in reductions] for reductions in stages] + [self.elements]
        made: list[Sweep] = []
        kept: set[Node] = set()
        for number, reductions in enumerate(stages):
            later = [n for following in demands[number + 1 :] for n in following]
            keep = self._to_keep(demands[number], later, kept) if self.keeps else []
            made.append(Sweep(reductions, tuple(keep), ()))
            kept |= set(keep)
        rest = tuple(o for o in self.elements if o not in kept)
        self._written_last = rest
        return [*made, Sweep((), (), rest)] if rest else made

    def stage_of(self, node: Node) -> int:
        """How many sweeps must have been made before ``node`` can be evaluated."""
        if node not in self._stage:
            before = 0
            if node not in self.lowering.memory:
                before = max((self.stage_of(i) for i in node.inputs), default=0)
            self._stage[node] = before + 1 if node in self.seeds else before
        return self._stage[node]

    def needed(self, roots: Sequence[Node], kept: set[Node]) -> set[Node]:
        """The nodes that evaluating ``roots`` computes, stopping at kept ones and reductions."""
        found: set[Node] = set()
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node in found or node in kept:
                continue
            if node in self.lowering.memory or node in self.seeds:
                continue
            found.add(node)
            stack.extend(node.inputs)
        return found

    def _to_keep(self, roots: list[Node], later: list[Node], kept: set[Node]) -> list[Node]:
        """The topmost values of this sweep that later sweeps use and that are dear to recompute."""
        wanted = self.needed(later, kept)
        chosen: list[Node] = []
        seen: set[Node] = set()
        stack = list(reversed(roots))
        while stack:
            node = stack.pop()
            if node in seen or node in kept or node in self.lowering.memory:
                continue
            seen.add(node)
            if node in self.seeds:
                continue
            computed = isinstance(node.primitive, Map | Cast) and node.shape == self.space.shape
            if computed and node in wanted and self._cost(node, set()) >= KEEP_ABOVE:
                chosen.append(node)
                continue
            stack.extend(reversed(node.inputs))
        return chosen

    def _cost(self, node: Node, seen: set[Node]) -> int:
        """Operations and loads to recompute a value of the row; what all of it shares is free."""
        if node in seen or self.space.holds_rows(node.shape):
            return 0
        seen.add(node)
        if node in self.lowering.memory:
            return 1
        own = 0
        if isinstance(node.primitive, Map):
            own = SCALAR_FUNCTIONS[node.primitive.function].cost
        return own + sum(self._cost(i, seen) for i in node.inputs)

    # ------------------------------------------------------------ places

    def _in_order(self, index: Sequence[Expr]) -> Expr:
        return linear(index, self.space.shape)

    def write(self, output: Node, index: Sequence[Expr]) -> None:
        """Put the element of a result where it belongs."""
        value = self.element(output, index)
        self.lowering.store(self.written[output], self.offset(index), value)

    def element(self, output: Node, index: Sequence[Expr]) -> Value:
        """The element of a result at an index of the space, whose axes may be merged in it."""
        scope = self.lowering.scope
        own = reshape_index(tuple(index), self.space.shape, output.shape, scope)
        return self.lowering.value(output, own)

    def place(self, node: Node, scratch: Expr, offset: Offset) -> tuple[TileBuffer, Offset]:
        """Where a kept value goes, and the position there of an index of the space.

        That is its own result if it is one, else the place of the only one, if that is written by
        the last of the :meth:`sweeps`, which reads each element right before it writes it, and no
        other afterwards; else ``scratch`` elements of memory, at ``offset``.
        """

        if node in self.written:
            return self.written[node], self.offset
        if len(self.elements) == 1 and self._written_last and not self._in_results:
            (alone,) = self._written_last
            if alone.dtype is node.dtype and self._is_in_order(alone, node):
                self._in_results.add(node)
                return self.written[alone], self.offset
        return self.lowering.scratch_buffer(node.dtype, scratch), offset

    def _is_in_order(self, output: Node, node: Node) -> bool:
        """Whether each element of a result reads that of ``node`` at its own place only."""
        needed = self.needed([output], {node})
        holding = {node}
        for current in self.kernel.body:
            if current in needed and not holding.isdisjoint(current.inputs):
                if not isinstance(current.primitive, Map | Cast | Reshape):
                    return False
                holding.add(current)
        return True

    def reader(
        self, buffer: TileBuffer, offset: Offset, fixed: dict[int, Expr]
    ) -> Callable[[Index], Value | None]:
        """Reads an element of a buffer for an index of the space that agrees with ``fixed``."""
        resolve = self.lowering.scope.resolve

        def read(index: Index) -> Value | None:
            if any(index[axis] is not resolve(place) for axis, place in fixed.items()):
                return None
            return Load(buffer, resolve(offset(index)))

        return read

    def divided(self, sweep: Sweep) -> list[tuple[Node, Node]]:
        """Quotients of the sweep that have a reciprocal for each row, with their divisors."""
        needed = self.needed(sweep.roots, set(self.lowering.cached))
        return divisions([n for n in self.kernel.body if n in needed], self.space)

    def quotient(
        self, node: Node, read: Callable[[Index], Value | None]
    ) -> Callable[[Index], Value | None]:
        """Reads a quotient where ``read`` reads the reciprocal of its divisor."""

        def product_of(index: Index) -> Value | None:
            reciprocal = read(index)
            if reciprocal is None:
                return None
            operands = (self.lowering.value(node.inputs[0], index), reciprocal)
            return Apply("multiply", operands, node.dtype)

        return product_of

    def row_index(self, shape: Sequence[Expr], place: dict[int, Expr]) -> list[Expr]:
        """The index of a row in a shape with one element for each, given the kept axes' places."""
        kept = iter([place[axis] for axis in self.space.kept])
        return [constant(0) if s.is_constant and s.value == 1 else next(kept) for s in shape]
