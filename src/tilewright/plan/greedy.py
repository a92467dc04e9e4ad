"""The greedy planner: backbone-first fusion.

1. Every contraction, convolution and window seeds a kernel, which grows over elementwise users
   (bias, activation, residual). 2. Every reduction over the last axes seeds a row kernel, which
   grows over elementwise users and further reductions of the same rows: softmax and normalisations
   become one kernel. 3. Elementwise work that several kernels want, or that would be repeated by a
   broadcast, goes to memory; the rest is recomputed where it is used. 4. What must be in memory and
   is in no group yet becomes a kernel of its own. Start with :func:`plan_greedily`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tilewright.ir.access import stored_view
from tilewright.ir.graph import Graph, Node, users
from tilewright.ir.kernel import Kernel, KernelKind, Plan
from tilewright.ir.primitives import (
    Broadcast,
    Cast,
    Concat,
    Constant,
    Contract,
    Convolve,
    Input,
    Map,
    Opaque,
    Pad,
    Project,
    Reduce,
    Reshape,
    Scan,
    ScatterElements,
    ScatterND,
    Slice,
    Transpose,
    Window,
)
from tilewright.ir.verify import REPORT, VerificationError
from tilewright.ir.views import is_view
from tilewright.plan.backbones import (
    kind_of_backbone,
    may_end_channels_first,
    operands_for_memory,
)
from tilewright.plan.inline import cost, is_light, is_simple
from tilewright.plan.order import LaunchOrder

RECOMPUTE_LIMIT = 6  # operations that two kernels may each compute rather than share in memory
BROADCAST_LIMIT = 4  # operations that may be repeated for every element of a broadcast
OUTPUT_LIMIT = 3  # results that one kernel may write


def plan_greedily(graph: Graph) -> Plan:
    """The kernels of ``graph`` in execution order."""
    planner = _Planner(graph)
    planner.seed_backbones()
    planner.seed_rows()
    planner.settle_memory()
    return planner.finish()


class _Planner:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = graph.nodes()
        self.order = {n: i for i, n in enumerate(self.nodes)}
        self.users = users(self.nodes)
        self.launches = LaunchOrder(graph, self.nodes)
        self.roots = dict.fromkeys(graph.roots)
        self.owner: dict[Node, int] = {}
        self.groups: list[list[Node]] = []
        self.kinds: list[KernelKind] = []
        self.backbones: list[Node] = []
        self.memory: set[Node] = {n for n in self.nodes if isinstance(n.primitive, Input)}
        self.memory |= {n for n in self.nodes if self._constant_memory(n)}
        self.memory |= {n for n in self.nodes if not is_light(n)}

    @staticmethod
    def _constant_memory(node: Node) -> bool:
        return isinstance(node.primitive, Constant) and node.rank > 0

    # ------------------------------------------------------------ groups

    def _new_group(self, kind: KernelKind, seed: Node) -> int:
        number = len(self.groups)
        self.groups.append([seed])
        self.kinds.append(kind)
        self.backbones.append(seed)
        self.owner[seed] = number
        return number

    def _join(self, number: int, node: Node) -> None:
        self.launches.join(self.backbones[number], node)
        self.groups[number].append(node)
        self.owner[node] = number

    def seed_backbones(self) -> None:
        """Contractions, convolutions and windows with their elementwise users."""
        for node in self.nodes:
            kind = kind_of_backbone(node)
            if kind is None:
                continue
            self.memory |= operands_for_memory(node, self.memory, self.graph.scope)
            number = self._new_group(kind, node)
            if kind is not KernelKind.LOOPS:
                self._grow(number, node.shape, None)

    def seed_rows(self) -> None:
        """Reductions over the last axes, stitched."""
        for node in self.nodes:
            if node in self.owner or not isinstance(node.primitive, Reduce):
                continue
            operand = node.inputs[0]
            outer = operand.rank - len(node.primitive.axes)
            if node.primitive.axes != tuple(range(outer, operand.rank)):
                continue
            number = self._new_group(KernelKind.ROWS, node)
            self._grow(number, operand.shape, outer)

    def _grow(self, number: int, space: tuple[object, ...], outer: int | None) -> None:
        """Absorb users that can be evaluated on the space of a group."""
        position = 0
        while position < len(self.groups[number]):
            for user in self.users[self.groups[number][position]]:
                if user not in self.owner and self._fits(number, user, space, outer):
                    self._join(number, user)
            position += 1
        self._trim(number)

    def _fits(self, number: int, user: Node, space: tuple[object, ...], outer: int | None) -> bool:
        primitive = user.primitive
        if outer is None:
            if not isinstance(primitive, Map | Cast) or user.shape != space:
                return False
        elif not self._fits_rows(user, space, outer):
            return False
        if user.dtype.is_half or any(i.dtype.is_half for i in user.inputs):
            return outer is not None and self._operands_ready(user, number, False)
        return self._operands_ready(user, number, outer is None)

    def _fits_rows(self, user: Node, space: tuple[object, ...], outer: int) -> bool:
        lead = space[:outer]
        match user.primitive:
            case Map() | Cast():
                return user.shape == space or self._one_per_row(user, lead)
            case Reshape():
                operand = user.inputs[0]
                return self._one_per_row(user, lead) and self._one_per_row(operand, lead)
            case Broadcast(axes=axes):
                operand = user.inputs[0]
                aligned = axes == tuple(range(len(axes))) and len(axes) >= outer
                if not (aligned and self._one_per_row(operand, lead)):
                    return False
                return user.shape == space or self._one_per_row(user, lead)
            case Reduce(axes=axes):
                own = user.inputs[0].shape
                return own == space and axes == tuple(range(outer, len(own)))
            case _:
                return False

    @staticmethod
    def _one_per_row(node: Node, lead: tuple[object, ...]) -> bool:
        rest = node.shape[len(lead) :]
        return node.shape[: len(lead)] == lead and all(
            size.is_constant and size.value == 1 for size in rest
        )

    def _operands_ready(self, user: Node, number: int, simple: bool) -> bool:
        if not self.launches.may_join(self.backbones[number], user):
            return False
        for operand in user.inputs:
            if operand in self.memory or operand in self.owner:
                continue
            if simple and not is_simple(operand, self.memory):
                self.memory.add(operand)
        return True

    def _results(self, group: list[Node]) -> list[Node]:
        members = set(group)
        return [n for n in group if n in self.roots or any(u not in members for u in self.users[n])]

    def _trim(self, number: int) -> None:
        """Drop the youngest members until few enough results are left, views never being one."""
        group = self.groups[number]
        while len(group) > 1:
            results = self._results(group)
            stray = [r for r in results if is_view(r)]
            if len(results) <= OUTPUT_LIMIT and not stray:
                return
            dropped = stray[-1] if stray else group[-1]
            members = set(group)
            while any(u in members for u in self.users[dropped]):
                dropped = next(u for u in reversed(self.users[dropped]) if u in members)
            group.remove(dropped)
            del self.owner[dropped]
            self.launches.leave(self.backbones[number], dropped)

    # ------------------------------------------------------------ memory

    def settle_memory(self) -> None:
        """Decide which light nodes outside of groups live in memory."""
        for group in self.groups:
            self.memory |= set(self._results(group))
        for root in self.roots:
            self.memory.add(root)
        for node in self.nodes:
            self._demand_operands(node)
        self._share()
        self._settle_contractions()

    def _settle_contractions(self) -> None:
        """Operands must be readable in place given all else that is in memory by now."""
        seeds = [
            b
            for b, kind in zip(self.backbones, self.kinds, strict=True)
            if kind is KernelKind.CONTRACTION
        ]
        while True:
            demanded: set[Node] = set()
            for seed in seeds:
                demanded |= operands_for_memory(seed, self.memory, self.graph.scope)
            if demanded <= self.memory:
                return
            self.memory |= demanded

    def _demand_operands(self, node: Node) -> None:
        match node.primitive:
            case Opaque() | Project():
                self.memory |= set(node.inputs)
            case ScatterElements() | ScatterND():
                self.memory.add(node.inputs[0])
            case Pad():
                if not is_simple(node.inputs[0], self.memory):
                    self.memory.add(node.inputs[0])
            case Broadcast(shape=shape):
                operand = node.inputs[0]
                grows = operand.rank > 0 and shape != operand.shape
                free = node not in self.owner and operand not in self.owner
                if grows and free and cost(operand, self.memory) > BROADCAST_LIMIT:
                    self.memory.add(self._below_views(operand))
            case _:
                pass

    def _below_views(self, node: Node) -> Node:
        while isinstance(node.primitive, Reshape | Transpose | Slice | Broadcast):
            if node in self.memory:
                break
            node = node.inputs[0]
        return node

    def _share(self) -> None:
        """Put costly light nodes that several kernels compute into memory, operands first."""
        kernels_of: dict[Node, set[object]] = {}
        for node in reversed(self.nodes):
            own: object | None = self.owner.get(node)
            if own is None and node in self.memory:
                own = node
            consumers = {own} if own is not None else kernels_of.get(node, set())
            for operand in node.inputs:
                if operand not in self.memory and operand not in self.owner:
                    kernels_of.setdefault(operand, set()).update(consumers)
        for node in self.nodes:
            if node in self.memory or node in self.owner or is_view(node):
                continue
            if not isinstance(node.primitive, Map | Cast) and not isinstance(node.primitive, Pad):
                continue
            if len(kernels_of.get(node, ())) > 1 and cost(node, self.memory) > RECOMPUTE_LIMIT:
                self.memory.add(node)

    # ------------------------------------------------------------ result

    def finish(self) -> Plan:
        """Kernels in an order in which every operand is ready."""
        kernels: list[Kernel] = []
        produced: dict[Node, None] = {}
        for kind, backbone, group in zip(self.kinds, self.backbones, self.groups, strict=True):
            ordered = tuple(sorted(group, key=self.order.__getitem__))
            outputs = tuple(n for n in ordered if n in self.memory and self._leaves(n, group))
            if kind is KernelKind.CONTRACTION:
                outputs = tuple(self._as_stored(o, backbone) for o in outputs)
            produced.update(dict.fromkeys(outputs))
            kernels.append(Kernel(kind, backbone, ordered, outputs, self.graph.label(backbone)))
        for node in self.nodes:
            if node not in self.memory or node in self.owner or node in produced:
                continue
            kind = _single_kind(node)
            if kind is not None:
                kernels.append(Kernel(kind, node, (node,), (node,), self.graph.label(node)))
        inside = {n for k in kernels for n in k.group} - {o for k in kernels for o in k.outputs}
        memory = frozenset(self.memory - inside)
        return Plan(tuple(self._sorted(kernels, memory)), memory)

    def _as_stored(self, output: Node, backbone: Node) -> Node:
        """The view of a tile's result that can be stored in its place."""
        staged = may_end_channels_first(backbone)
        view = stored_view(output, self.users, self.roots, self.graph.scope, staged)
        if view is not output:
            self.memory.discard(output)
            self.memory.add(view)
        return view

    def _leaves(self, node: Node, group: list[Node]) -> bool:
        members = set(group)
        return node in self.roots or any(u not in members for u in self.users[node])

    def _sorted(self, kernels: list[Kernel], memory: frozenset[Node]) -> list[Kernel]:
        """Kernels after those that make what they read, or the sizes that they need."""
        producer = {o: k for k in kernels for o in k.outputs}
        first = sorted(kernels, key=lambda k: min(self.order[o] for o in k.outputs))
        needs = {k: _earlier(k, producer, self.graph, memory) for k in first}
        done: dict[Kernel, None] = {}
        for kernel in first:
            _visit(kernel, needs, done)
        return list(done)


def _earlier(
    kernel: Kernel, producer: dict[Node, Kernel], graph: Graph, memory: frozenset[Node]
) -> list[Kernel]:
    """The kernels that must run before one, in a deterministic order."""
    reads = kernel_reads(kernel, memory)
    sources = [*reads, *(d for n in _evaluated(kernel, memory) for d in graph.sizes_from(n))]
    # The results of an opaque operator come together.
    whole = [s.inputs[0] if isinstance(s.primitive, Project) else s for s in sources]
    found = dict.fromkeys(producer[s] for s in whole if s in producer)
    return [k for k in found if k is not kernel]


def _visit(kernel: Kernel, needs: dict[Kernel, list[Kernel]], done: dict[Kernel, None]) -> None:
    """Append a kernel to those done, after all that it needs."""
    stack: list[tuple[Kernel, bool]] = [(kernel, False)]
    open_: set[Kernel] = set()
    while stack:
        current, ready = stack.pop()
        if current in done:
            continue
        if ready:
            done[current] = None
            open_.discard(current)
            continue
        if current in open_:
            raise VerificationError(f"{current.label} needs its own results", hint=REPORT)
        open_.add(current)
        stack.append((current, True))
        stack += [(k, False) for k in reversed(needs[current]) if k not in done]


def kernel_reads(kernel: Kernel, memory: Iterable[Node]) -> list[Node]:
    """Nodes in memory that a kernel reads, in a deterministic order."""
    own = set(kernel.group)
    stored = set(memory) if not isinstance(memory, frozenset) else memory
    return [n for n in _evaluated(kernel, stored) if n in stored and n not in own]


def _evaluated(kernel: Kernel, stored: Collection[Node]) -> list[Node]:
    """What a kernel computes, and the nodes in memory that it reads."""
    seen = dict.fromkeys(reversed(kernel.group))
    stack = [i for n in reversed(kernel.group) for i in reversed(n.inputs)]
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen[current] = None
        if current not in stored:
            stack.extend(reversed(current.inputs))
    return list(seen)


def _single_kind(node: Node) -> KernelKind | None:
    """The kind of kernel that puts one node into memory, or None where it is there already."""
    match node.primitive:
        case Input() | Constant() | Project():
            return None
        case Opaque():
            return KernelKind.OPAQUE
        case Concat():
            return KernelKind.CONCAT
        case ScatterElements() | ScatterND():
            return KernelKind.SCATTER
        case Scan():
            return KernelKind.SCAN
        case Contract() | Convolve() | Window():
            raise AssertionError("backbones have their kernels already")
        case _:
            return KernelKind.LOOPS
