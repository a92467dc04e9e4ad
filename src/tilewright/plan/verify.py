"""Checks that a plan can be carried out: an order, all that is read, and one writer for everything.

:func:`problems` lists everything that is wrong, :func:`verify` raises. What a kernel reads is what
its nodes need from memory; the dimensions that it needs are a dependency as well where data decides
them, on the kernel whose result has that size and on the one whose contents are bound to it.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from tilewright.ir.graph import Graph, Node, expressions_of
from tilewright.ir.kernel import Kernel, KernelKind, Plan
from tilewright.ir.primitives import Constant, Input, Opaque, Project
from tilewright.ir.verify import failure
from tilewright.plan.legality import Legality
from tilewright.shape import Scope


def verify(graph: Graph, plan: Plan) -> None:
    """Raise ``VerificationError`` with the first of all problems."""
    found = problems(graph, plan)
    if found:
        raise failure(found, f"stage plan, graph '{graph.name}'")


def problems(graph: Graph, plan: Plan) -> list[str]:
    """Everything that is wrong with a plan, as sentences; empty if nothing is."""
    legality = Legality(graph.scope)
    reasons = [(kernel, legality.reason(kernel)) for kernel in plan.kernels]
    found = [f"{_name(kernel)} {why}" for kernel, why in reasons if why is not None]
    return found + _writers(graph, plan) + _order(plan) + _symbols(graph, plan)


def _name(kernel: Kernel) -> str:
    return f"The {kernel.kind.value} kernel '{kernel.label}'"


class _Launches:
    """Which kernels of a plan one call launches together."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.memberships = plan.memberships()
        self.writers: dict[Node, list[int]] = {}
        for number, kernel in enumerate(plan.kernels):
            for output in kernel.outputs:
                self.writers.setdefault(output, []).append(number)

    def meet(self, one: int, other: int) -> bool:
        """Whether some call launches both of two kernels."""
        if one not in self.memberships or other not in self.memberships:
            return True
        (group, ways), (others, their) = self.memberships[one], self.memberships[other]
        return group != others or bool(ways & their)

    def is_written(self, node: Node, reader: int | None = None) -> bool:
        """Whether a node is written in every call, or in every one that launches a reader."""
        left: dict[int, set[int]] = {}
        for number in self.writers.get(node, ()):
            if number not in self.memberships:
                return True
            group, ways = self.memberships[number]
            left.setdefault(group, {*range(len(self.plan.alternatives[group].ways))})
            left[group] -= ways
        nowhere = (-1, frozenset[int]())
        own, where = nowhere if reader is None else self.memberships.get(reader, nowhere)
        return any(not (ways & where if group == own else ways) for group, ways in left.items())


def _writers(graph: Graph, plan: Plan) -> list[str]:
    """Every value in memory is written once, every output of the graph among them."""
    found: list[str] = []
    launches = _Launches(plan)
    for node, numbers in launches.writers.items():
        pairs = combinations(numbers, 2)
        if any(launches.meet(*pair) for pair in pairs):
            found.append(f"{node!r} is written by {len(numbers)} kernels")
    outputs = Counter(root for _, root in graph.outputs)
    for name, root in graph.outputs:
        if not launches.is_written(root) and not isinstance(root.primitive, Project):
            found.append(f'no kernel writes the output "{name}"')
        if outputs[root] > 1 and root.dtype.is_native:
            found.append(f'the output "{name}" shares its memory with another one')
    return found


def _order(plan: Plan) -> list[str]:
    """Everything that is read has been written before."""
    found: list[str] = []
    launches = _Launches(plan)
    for number, kernel in enumerate(plan.kernels):
        for read in kernel.reads:
            source = _source(read)
            if isinstance(source.primitive, Input | Constant):
                continue
            writers = [w for w in launches.writers.get(source, ()) if launches.meet(number, w)]
            when = "only a later kernel" if writers else "no kernel"
            if writers and not launches.is_written(source, number):
                when = "not every call"
            elif writers and max(writers) < number:
                continue
            found.append(f"{_name(kernel)} reads {read!r}, which {when} writes")
    return found


def _symbols(graph: Graph, plan: Plan) -> list[str]:
    """There is an order in which every dimension has its value before it is used."""
    known = {s for i in graph.inputs for e in i.shape for s in e.free_symbols}
    makes = [_sizes_made(kernel) - known for kernel in plan.kernels]
    late = {s for b in graph.bindings for s in b.symbols}.union(*makes)
    made = {output for kernel in plan.kernels for output in kernel.outputs}
    waiting: dict[int, tuple[set[Node], set[str]]] = {}
    for number, kernel in enumerate(plan.kernels):
        nodes = kernel.outputs if kernel.kind is KernelKind.OPAQUE else kernel.body
        used = {s for n in nodes for s in _symbols_of(n, graph.scope)} & late
        waiting[number] = ({_source(r) for r in kernel.reads} & made, used - makes[number])
    bindings = list(graph.bindings)
    ready: set[Node] = set()
    there: set[str] = set()
    moved = True
    while moved:
        count = len(waiting)
        # In the order of the plan, in which one round starts all but what waits for a binding.
        for number, (reads, used) in list(waiting.items()):
            if reads <= ready and used <= there:
                del waiting[number]
                ready.update(plan.kernels[number].outputs)
                there |= makes[number]
        known_now = [b for b in bindings if {_source(b.source)} & made <= ready]
        for binding in known_now:
            bindings.remove(binding)
            there |= set(binding.symbols)
        moved = len(waiting) < count or bool(known_now)
    found: list[str] = []
    for number, (_, used) in waiting.items():
        missing = sorted(used - there)
        reason = f'"{missing[0]}" has no value' if missing else "what it reads is not there"
        found.append(f"{_name(plan.kernels[number])} can never start: {reason} before it has run")
    return found


def _sizes_made(kernel: Kernel) -> set[str]:
    """The dimensions that are known once a kernel has run: sizes of what the reference returns."""
    primitive = kernel.outputs[0].primitive
    if not isinstance(primitive, Opaque):
        return set()
    sizes = [size for kind in primitive.outputs for size in kind.shape]
    return {str(size) for size in sizes if size.symbol_name is not None}


def _symbols_of(node: Node, scope: Scope) -> set[str]:
    return {s for e in expressions_of(node) for s in scope.resolve(e).free_symbols}


def _source(node: Node) -> Node:
    while isinstance(node.primitive, Project):
        node = node.inputs[0]
    return node


__all__ = ["problems", "verify"]
