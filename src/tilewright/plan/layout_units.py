"""Parts of a graph whose tensors may be stored in several orders, and the ways to compute them.

The units are the kernels of a greedy plan. A way of one has its nodes arranged as one of several
*spreads* says (``rewrite.channels_last``), or as they are, reads each tensor in one order and
writes each in one. Where a tensor's order is not the one that the nodes ask for, the conversion is
a part of the unit: it may end in it, or begin with it, for less than a kernel more costs. Each way
is a small graph, whose greedy plan tells what it costs. Start with :class:`LayoutUnits`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.kernel import Kernel, KernelKind
from tilewright.ir.primitives import Constant, Input, Reshape
from tilewright.plan.alone import rebuild
from tilewright.plan.forms import Form
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.layout_problem import Traffic
from tilewright.plan.prepare import prepare
from tilewright.rewrite import simplify
from tilewright.rewrite.channels_last import stored
from tilewright.rewrite.orders import Arrangement, Order, identity, inverse, reordered
from tilewright.tile.alike import outline_of

Spread = Mapping[Node, Arrangement]


@dataclass(frozen=True)
class Way:
    """One way to compute a unit.

    ``spread`` is the number of that by which its nodes are arranged, None for none. ``reads`` and
    ``writes`` are the orders of the unit's tensors.
    """

    spread: int | None
    reads: tuple[Order, ...]
    writes: tuple[Order, ...]


@dataclass(frozen=True)
class Unit:
    """What is computed together, and the ways to do so; units that are alike have equal ``key``.

    ``reads`` has no constants.
    """

    body: tuple[Node, ...]
    reads: tuple[Node, ...]
    writes: tuple[Node, ...]
    key: object
    ways: tuple[Way, ...] = ()

    def traffic(self, way: Way) -> Traffic[Node, Order]:
        """How a way reads and writes the tensors."""
        reads = zip(self.reads, way.reads, strict=True)
        return Traffic(dict(reads), dict(zip(self.writes, way.writes, strict=True)))


class LayoutUnits:
    """The units of a graph that have several ways, and what they read and hand out.

    The first spread is what the rule that counts conversions takes; it may have no nodes.
    """

    def __init__(self, graph: Graph, spreads: Sequence[Spread]) -> None:
        self._graph = graph
        self._spreads = spreads
        kernels = plan_greedily(graph).kernels
        every = [self._unit(k) for k in kernels if k.kind is not KernelKind.OPAQUE]
        self._orders: dict[Node, dict[Order, None]] = {}
        for unit in every:
            for way in self.plain(unit):
                pairs = zip((*unit.reads, *unit.writes), (*way.reads, *way.writes), strict=True)
                for tensor, order in pairs:
                    own = self._orders.setdefault(tensor, {identity(tensor.rank): None})
                    own[order] = None
        found = [replace(unit, ways=tuple(self._ways(unit))) for unit in every]
        self.units = [unit for unit in found if len(unit.ways) > 1]
        self.wanted = self._wanted(kernels)

    def given(self) -> Mapping[Node, Order]:
        """The order of what is read but written by no unit: its own."""
        written = {tensor for unit in self.units for tensor in unit.writes}
        reads = (read for unit in self.units for read in unit.reads)
        return {read: identity(read.rank) for read in reads if read not in written}

    def arranged(self, unit: Unit, spread: int | None) -> dict[Node, Arrangement]:
        """The nodes of a unit that a spread reaches."""
        own = {} if spread is None else self._spreads[spread]
        return {n: own[n] for n in unit.body if n in own}

    def rule_of(self, unit: Unit) -> int | None:
        """The spread by which the rule arranges a unit."""
        return 0 if self.arranged(unit, 0) else None

    def _wanted(self, kernels: Sequence[Kernel]) -> list[tuple[Node, Order]]:
        """What units write for others than units, in its own order."""
        own = {tensor for unit in self.units for tensor in unit.writes}
        inside = {unit.writes for unit in self.units}
        graph = self._graph
        read = [r for k in kernels if k.outputs not in inside for r in k.reads]
        handed = [*graph.roots, *graph.measured, *(b.source for b in graph.bindings), *read]
        return [(n, identity(n.rank)) for n in dict.fromkeys(handed) if n in own]

    # ------------------------------------------------------------ ways

    def _unit(self, kernel: Kernel) -> Unit:
        outline = outline_of(kernel)
        reads = {read for read in kernel.reads if not isinstance(read.primitive, Constant)}
        arranged = tuple(tuple(spread.get(n) for spread in self._spreads) for n in outline.nodes)
        return Unit(
            tuple(n for n in kernel.body if n not in reads),
            tuple(n for n in outline.nodes if n in reads),
            kernel.outputs,
            (outline.key, arranged),
        )

    def plain(self, unit: Unit) -> Iterator[Way]:
        """The ways without conversions inside: one for every spread that reaches the unit."""
        yield Way(None, *(tuple(identity(t.rank) for t in ts) for ts in (unit.reads, unit.writes)))
        for number, spread in enumerate(self._spreads):
            if self.arranged(unit, number):
                reads = tuple(_wanted_order(unit, read, spread) for read in unit.reads)
                writes = tuple(_stored_order(written, spread) for written in unit.writes)
                yield Way(number, reads, writes)

    def _ways(self, unit: Unit) -> Iterator[Way]:
        """The plain ways first, and those that take or leave one tensor in another order."""
        found = dict.fromkeys(self.plain(unit))
        for plain in tuple(found):
            for place, tensor in enumerate(unit.reads):
                for order in self._orders[tensor]:
                    found[replace(plain, reads=_with(plain.reads, place, order))] = None
            for place, tensor in enumerate(unit.writes):
                for order in self._orders[tensor]:
                    found[replace(plain, writes=_with(plain.writes, place, order))] = None
        yield from found

    # ------------------------------------------------------------ small graphs

    def form(self, unit: Unit, way: Way) -> Form:
        """A way as a graph of its own and the kernels of its greedy plan."""
        made: dict[Node, Node] = {}
        inputs: list[Node] = []
        for number, (read, order) in enumerate(zip(unit.reads, way.reads, strict=True)):
            inputs.append(_input(number, read, order))
            made[read] = reordered(inputs[-1], inverse(order))
        rebuild(unit.body, made, {}, {})
        results = zip(unit.writes, way.writes, strict=True)
        outputs = [reordered(made[written], order) for written, order in results]
        arranged = self.arranged(unit, way.spread)
        return self._form(inputs, outputs, {made[n]: found for n, found in arranged.items()})

    def conversion(self, tensor: Node, source: Order, target: Order) -> Form:
        """The kernel that makes a tensor in an order from itself in another one."""
        read = _input(0, tensor, source)
        moved = reordered(read, tuple(source.index(axis) for axis in target))
        return self._form([read], [moved], {})

    def _form(self, inputs: Sequence[Node], outputs: Sequence[Node], arranged: Spread) -> Form:
        named = tuple((f"result_{number}", root) for number, root in enumerate(outputs))
        graph = Graph(self._graph.name, tuple(inputs), named, self._graph.scope)
        graph = simplify(stored(graph, arranged))
        computed = tuple(pair for pair in graph.outputs if not _is_given(pair[1]))
        return Form.of(prepare(replace(graph, outputs=computed)), ())


def _input(number: int, tensor: Node, order: Order) -> Node:
    shape = tuple(tensor.shape[axis] for axis in order)
    return node(Input(f"read_{number}", tensor.dtype, shape))


def _is_given(root: Node) -> bool:
    """Whether a result is an input as it lies in memory, which nobody copies."""
    while isinstance(root.primitive, Reshape):
        root = root.inputs[0]
    return isinstance(root.primitive, Input)


def _wanted_order(unit: Unit, read: Node, spread: Spread) -> Order:
    """In which order the nodes of a unit read a tensor; its own, if they do not agree."""
    found: dict[Order, None] = {}
    for current in unit.body:
        for side, operand in enumerate(current.inputs):
            if operand is read:
                arrangement = spread.get(current)
                own = identity(read.rank) if arrangement is None else arrangement.operands[side]
                found[own] = None
    return next(iter(found)) if len(found) == 1 else identity(read.rank)


def _stored_order(written: Node, spread: Spread) -> Order:
    return spread[written].order if written in spread else identity(written.rank)


def _with(orders: tuple[Order, ...], place: int, order: Order) -> tuple[Order, ...]:
    return (*orders[:place], order, *orders[place + 1 :])


__all__ = ["LayoutUnits", "Spread", "Unit", "Way"]
