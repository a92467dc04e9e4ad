"""Checks that a plan can be carried out: an order, all that is read, and one writer for everything.

:func:`problems` lists everything that is wrong, :func:`verify` raises. What a kernel reads is what
its nodes need from memory; the dimensions that it needs are a dependency as well where data decides
them, on the kernel whose result has that size and on the one whose contents are bound to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.ir.graph import Graph, Node, expressions_of, topological
from tilewright.ir.kernel import Kernel, KernelKind, Plan
from tilewright.ir.primitives import Constant, Input, Opaque, Project
from tilewright.ir.verify import failure
from tilewright.ir.views import is_view
from tilewright.plan.inline import is_light
from tilewright.shape import Scope


def verify(graph: Graph, plan: Plan) -> None:
    """Raise ``VerificationError`` with the first of all problems."""
    found = problems(graph, plan)
    if found:
        raise failure(found, f"stage plan, graph '{graph.name}'")


def problems(graph: Graph, plan: Plan) -> list[str]:
    """Everything that is wrong with a plan, as sentences; empty if nothing is."""
    needs = [_needs(kernel, plan.materialised) for kernel in plan.kernels]
    found: list[str] = []
    for kernel, need in zip(plan.kernels, needs, strict=True):
        found += _kernel(kernel, need)
    return found + _writers(graph, plan) + _order(plan, needs) + _symbols(graph, plan, needs)


@dataclass(frozen=True)
class _Needs:
    """What a kernel reads from memory, and everything that it computes, recomputed nodes too."""

    reads: tuple[Node, ...]
    computed: tuple[Node, ...]


def _needs(kernel: Kernel, materialised: Iterable[Node]) -> _Needs:
    stored = set(materialised)
    own = {*kernel.group, *kernel.outputs}
    reads: dict[Node, None] = {}
    computed: dict[Node, None] = {}
    stack: list[Node] = [*kernel.outputs, *kernel.group]
    while stack:
        current = stack.pop()
        if current in computed or current in reads:
            continue
        if current in stored and current not in own:
            reads[current] = None
            continue
        computed[current] = None
        stack += current.inputs
    return _Needs(tuple(reads), tuple(computed))


def _name(kernel: Kernel) -> str:
    return f"The {kernel.kind.value} kernel '{kernel.label}'"


def _kernel(kernel: Kernel, needs: _Needs) -> list[str]:
    found: list[str] = []
    if kernel.backbone not in kernel.group:
        found.append(f"{_name(kernel)} does not compute its own backbone")
    if not kernel.outputs:
        found.append(f"{_name(kernel)} writes nothing")
    for output in kernel.outputs:
        base = output
        while base not in kernel.group and is_view(base):
            base = base.inputs[0]
        if base not in kernel.group:
            found.append(f"{_name(kernel)} writes {output!r}, which it does not compute")
    for current in needs.computed:
        heavy = current not in kernel.group and current not in kernel.outputs
        if heavy and not is_light(current):
            found.append(f"{_name(kernel)} needs {current!r}, which is neither in memory nor light")
    return found


def _writers(graph: Graph, plan: Plan) -> list[str]:
    """Every value in memory is written once, every output of the graph among them."""
    found: list[str] = []
    written = Counter(output for kernel in plan.kernels for output in kernel.outputs)
    found += [f"{n!r} is written by {count} kernels" for n, count in written.items() if count > 1]
    alive = {*topological(graph.roots), *written}
    for current in sorted(plan.materialised, key=repr):
        free = isinstance(current.primitive, Input | Constant | Project)
        if not free and current in alive and current not in written:
            found.append(f"{current!r} should be in memory, but no kernel writes it")
    for current in written:
        if current not in plan.materialised:
            found.append(f"{current!r} is written, but does not count as being in memory")
    outputs = Counter(root for _, root in graph.outputs)
    for name, root in graph.outputs:
        if root not in written and not isinstance(root.primitive, Project):
            found.append(f'no kernel writes the output "{name}"')
        if outputs[root] > 1 and root.dtype.is_native:
            found.append(f'the output "{name}" shares its memory with another one')
    return found


def _order(plan: Plan, needs: list[_Needs]) -> list[str]:
    """Everything that is read has been written before."""
    found: list[str] = []
    ready: set[Node] = set()
    made = {output for kernel in plan.kernels for output in kernel.outputs}
    for kernel, need in zip(plan.kernels, needs, strict=True):
        for read in need.reads:
            source = read
            while isinstance(source.primitive, Project):
                source = source.inputs[0]
            if isinstance(source.primitive, Input | Constant) or source in ready:
                continue
            when = "only a later kernel" if source in made else "no kernel"
            found.append(f"{_name(kernel)} reads {read!r}, which {when} writes")
        ready.update(kernel.outputs)
    return found


def _symbols(graph: Graph, plan: Plan, needs: list[_Needs]) -> list[str]:
    """There is an order in which every dimension has its value before it is used."""
    known = {s for i in graph.inputs for e in i.shape for s in e.free_symbols}
    makes = [_sizes_made(kernel) - known for kernel in plan.kernels]
    late = {s for b in graph.bindings for s in b.symbols}.union(*makes)
    made = {output for kernel in plan.kernels for output in kernel.outputs}
    waiting: dict[int, tuple[set[Node], set[str]]] = {}
    for number, (kernel, need) in enumerate(zip(plan.kernels, needs, strict=True)):
        nodes = kernel.outputs if kernel.kind is KernelKind.OPAQUE else need.computed
        used = {s for n in nodes for s in _symbols_of(n, graph.scope)} & late
        waiting[number] = ({_source(r) for r in need.reads} & made, used - makes[number])
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
    primitive = kernel.backbone.primitive
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
