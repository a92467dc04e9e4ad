"""Checks that a plan can be carried out: an order, all that is read, and one writer for everything.

:func:`problems` lists everything that is wrong, :func:`verify` raises. What a kernel reads is what
its nodes need from memory; the dimensions that it needs are a dependency as well where data decides
them, on the kernel whose result has that size and on the one whose contents are bound to it.
"""

from __future__ import annotations

from collections import Counter

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


def _writers(graph: Graph, plan: Plan) -> list[str]:
    """Every value in memory is written once, every output of the graph among them."""
    found: list[str] = []
    written = Counter(output for kernel in plan.kernels for output in kernel.outputs)
    found += [f"{n!r} is written by {count} kernels" for n, count in written.items() if count > 1]
    outputs = Counter(root for _, root in graph.outputs)
    for name, root in graph.outputs:
        if root not in written and not isinstance(root.primitive, Project):
            found.append(f'no kernel writes the output "{name}"')
        if outputs[root] > 1 and root.dtype.is_native:
            found.append(f'the output "{name}" shares its memory with another one')
    return found


def _order(plan: Plan) -> list[str]:
    """Everything that is read has been written before."""
    found: list[str] = []
    ready: set[Node] = set()
    made = {output for kernel in plan.kernels for output in kernel.outputs}
    for kernel in plan.kernels:
        for read in kernel.reads:
            source = read
            while isinstance(source.primitive, Project):
                source = source.inputs[0]
            if isinstance(source.primitive, Input | Constant) or source in ready:
                continue
            when = "only a later kernel" if source in made else "no kernel"
            found.append(f"{_name(kernel)} reads {read!r}, which {when} writes")
        ready.update(kernel.outputs)
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
