"""The greedy planner: seed-first fusion.

1. Every contraction, convolution and window seeds a kernel, which grows over elementwise users
   (bias, activation, residual). 2. Reductions seed row kernels, which grow over elementwise users
   and further reductions of the same rows: softmax and normalisations over any axes become one
   kernel. Sums of columns that nothing is stitched to are seeds as windows are. 3. Elementwise work
   that several kernels want, or that would be repeated by a broadcast, goes to memory; the rest is
   recomputed where it is used, unless its chain is long (``chains``). 4. What must be in memory and
   is in no group yet becomes a kernel of its own. 5. Kernels that only hand their result to the
   next one are stitched (``stitch``). Start with :func:`plan_greedily`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.access import below_reshapes, stored_view
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, users
from tilewright.ir.kernel import (
    Kernel,
    KernelKind,
    Plan,
    RowSpace,
    kernel_of,
    kind_of_seed,
)
from tilewright.ir.primitives import (
    ArgReduce,
    Broadcast,
    Cast,
    Constant,
    Input,
    Map,
    Opaque,
    Pad,
    Project,
    Recurrence,
    Reduce,
    Reshape,
    ScatterElements,
    ScatterND,
    Slice,
    Transpose,
)
from tilewright.ir.views import is_view
from tilewright.plan.chains import LONGEST_GROWTH, MOST_REDUCTIONS, ends_of_chains
from tilewright.plan.inline import cost, is_known, is_light, is_simple
from tilewright.plan.launches import in_order
from tilewright.plan.legality import (
    OUTPUT_LIMIT,
    fits_epilogue,
    fits_rows,
    is_turned,
    may_end_channels_first,
    operands_for_memory,
)
from tilewright.plan.order import LaunchOrder
from tilewright.plan.positions import places_along
from tilewright.plan.repeats import Repeats
from tilewright.plan.seeds import kind_to_seed
from tilewright.plan.stitch import stitched
from tilewright.shape import constant
from tilewright.target.core_model import LEAST_VECTOR_BYTES
from tilewright.tile.loops.pixels import MOST_PLANES

RECOMPUTE_LIMIT = 6  # operations that two kernels may each compute rather than share in memory
BROADCAST_LIMIT = 4  # operations that may be repeated for every element of a broadcast
BYTES = (DType.INT8, DType.UINT8)
MOST_ABOVE_BYTES = 3  # a conversion, a zero point and a scale


def plan_greedily(graph: Graph) -> Plan:
    """The kernels of ``graph`` in execution order."""
    planner = _Planner(graph)
    planner.seed_products()
    planner.seed_rows()
    planner.settle_memory()
    return stitched(graph, planner.finish())


@dataclass(eq=False)
class _Group:
    """A kernel while it grows from its seed, which is the first of its members."""

    kind: KernelKind
    seed: Node
    members: list[Node]


class _Planner:
    """The groups so far, which of them has a node, and what is to be in memory.

    A node in ``memory`` is stored, or will be by a kernel of its own; one in no group and not in
    memory is computed again by each of its readers.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = graph.nodes()
        self.order = {n: i for i, n in enumerate(self.nodes)}
        self.users = users(self.nodes)
        self.launches = LaunchOrder(graph, self.nodes)
        self.roots = dict.fromkeys(graph.roots)
        self.owner: dict[Node, _Group] = {}
        self.depths: dict[Node, int] = {}  # of members, within their groups
        self.groups: list[_Group] = []
        self.memory: set[Node] = {n for n in self.nodes if isinstance(n.primitive, Input)}
        self.memory |= {n for n in self.nodes if self._constant_memory(n)}
        self.memory |= {n for n in self.nodes if not is_light(n)}
        self.lengths, ends = ends_of_chains(self.nodes)
        self.memory |= ends

    @staticmethod
    def _constant_memory(node: Node) -> bool:
        return isinstance(node.primitive, Constant) and node.rank > 0

    # ------------------------------------------------------------ groups

    def _new_group(self, kind: KernelKind, seed: Node) -> _Group:
        group = _Group(kind, seed, [seed])
        self.groups.append(group)
        self.owner[seed] = group
        self.depths[seed] = self._depth(group, seed)
        return group

    def _join(self, group: _Group, node: Node) -> None:
        self.launches.join(group.seed, node)
        self.depths[node] = self._depth(group, node)
        group.members.append(node)
        self.owner[node] = group

    def _drop(self, group: _Group, node: Node) -> None:
        """Undo :meth:`_join`."""
        group.members.remove(node)
        del self.owner[node]
        self.launches.leave(group.seed, node)

    def seed_products(self) -> None:
        """Contractions, convolutions and windows with their elementwise users."""
        for node in self.nodes:
            if not isinstance(node.primitive, Reduce):
                self._seed_product(node)

    def _seed_product(self, node: Node) -> None:
        kind = kind_to_seed(node)
        if kind is None:
            return
        self.memory |= operands_for_memory(node, self.memory, self.graph.scope)
        group = self._new_group(kind, node)
        if kind is not KernelKind.LOOPS:
            self._grow(group, None)

    def seed_rows(self) -> None:
        """Reductions, stitched with what else is made of their rows."""
        for node in self.nodes:
            if node in self.owner or not isinstance(node.primitive, Reduce):
                continue
            group = self._new_group(KernelKind.ROWS, node)
            self._grow(group, RowSpace.of(node))
            self._take_siblings(group, RowSpace.of(node))
            is_alone = kind_of_seed(node) is not KernelKind.ROWS and not self._is_stitched(group)
            if is_alone:
                self._dissolve(group)
                self._seed_product(node)
            else:
                self._demand_elements(group, RowSpace.of(node))

    def _take_siblings(self, group: _Group, space: RowSpace) -> None:
        """Absorb reductions of the same rows that nothing connects but what they read.

        That is one sweep in the place of two. They read the same, or what one kernel has made.
        """
        source = group.seed.inputs[0]
        made = self.owner[source].members if source in self.owner else [source]
        for reduction in (user for node in made for user in self.users[node]):
            is_free = isinstance(reduction.primitive, Reduce) and reduction not in self.owner
            if is_free and self._fits(group, reduction, space):
                self._join(group, reduction)
                self._grow(group, space)

    def _demand_elements(self, group: _Group, space: RowSpace) -> None:
        """What is found element by element is in memory before several sweeps read it.

        Each reduction is a sweep, and what is made of all elements is one more.
        """
        members = set(group.members)
        sweeps = sum(isinstance(member.primitive, Reduce) for member in members)
        sweeps += any(n.shape == space.shape for n in members)
        if sweeps < 2:
            return
        for operand in (i for member in group.members for i in member.inputs):
            inside = operand in members or operand in self.owner or operand in self.memory
            if inside or operand.shape != space.shape:
                continue
            if places_along(operand, space.axes, self.memory, self.graph.scope):
                self.memory.add(below_reshapes(operand, self.memory))

    def _is_stitched(self, group: _Group) -> bool:
        seed, *others = group.members
        space = RowSpace.of(seed)
        return any(isinstance(n.primitive, Map | Cast) and n.shape == space.shape for n in others)

    def _dissolve(self, group: _Group) -> None:
        """Undo a group as if it had never been."""
        for member in reversed(group.members[1:]):
            self._drop(group, member)
        del self.owner[group.seed]
        self.groups.remove(group)

    def _grow(self, group: _Group, rows: RowSpace | None) -> None:
        """Absorb users that can be evaluated where the seed's results are, or on its ``rows``."""
        position = 0
        while position < len(group.members):
            for user in self.users[group.members[position]]:
                if user not in self.owner and self._fits(group, user, rows):
                    self._join(group, user)
            position += 1
        self._trim(group)
        self._end_in_bytes(group)

    def _fits(self, group: _Group, user: Node, rows: RowSpace | None) -> bool:
        fits = fits_epilogue(user, group.seed) if rows is None else fits_rows(user, rows)
        if not fits or self._depth(group, user) > LONGEST_GROWTH:
            return False
        if isinstance(user.primitive, Reduce):
            reductions = sum(isinstance(member.primitive, Reduce) for member in group.members)
            if reductions == MOST_REDUCTIONS:
                return False
        return self._operands_ready(user, group.seed, rows is None)

    def _depth(self, group: _Group, user: Node) -> int:
        """Operations, one made of the other, that a group would compute up to ``user``."""

        def below(operand: Node) -> int:
            if operand in self.owner:
                return self.depths[operand] if self.owner[operand] is group else 0
            return 0 if operand in self.memory else self.lengths[operand]

        return 1 + max(map(below, user.inputs), default=0)

    def _operands_ready(self, user: Node, seed: Node, simple: bool) -> bool:
        """Whether a user may join a group; operands that are not ``simple`` enough go to memory."""
        if not self.launches.may_join(seed, user):
            return False
        for operand in user.inputs:
            if operand in self.memory or operand in self.owner:
                continue
            if simple and not is_simple(operand, self.memory):
                self.memory.add(operand)
        return True

    def _results(self, members: Sequence[Node]) -> list[Node]:
        """Those of a group that others read, or that the graph hands out."""
        own = set(members)
        return [n for n in members if n in self.roots or any(u not in own for u in self.users[n])]

    def _trim(self, group: _Group) -> None:
        """Drop the youngest members until few enough results are left, views never being one."""
        while len(group.members) > 1:
            results = self._results(group.members)
            stray = [r for r in results if is_view(r)]
            if len(results) <= OUTPUT_LIMIT and not stray:
                return
            dropped = stray[-1] if stray else group.members[-1]
            members = set(group.members)
            while any(u in members for u in self.users[dropped]):
                dropped = next(u for u in reversed(self.users[dropped]) if u in members)
            self._drop(group, dropped)

    def _end_in_bytes(self, group: _Group) -> None:
        """Leave to readers what they can make of a group's bytes themselves: bytes are stored."""
        for result in self._results(group.members):
            source, above = self._made_of_bytes(result, set(group.members))
            if source is None:
                continue
            self.memory.add(source)
            if not all(self._reads_bytes(user, result) for user in self.users[result]):
                self.memory.discard(source)
                continue
            for dropped in above:
                self._drop(group, dropped)

    def _made_of_bytes(self, result: Node, group: set[Node]) -> tuple[Node | None, list[Node]]:
        """The bytes that a result of a group is made of alone, and what is made, the last first."""
        above: list[Node] = []
        current = result
        while current.dtype not in BYTES:
            inside = [i for i in current.inputs if i in group]
            others = [i for i in current.inputs if i not in group]
            kept = current in self.roots or any(
                user in group and user not in above for user in self.users[current]
            )
            known = all(is_known(i) for i in others)
            if kept or not known or len(inside) != 1 or len(above) == MOST_ABOVE_BYTES:
                return None, []
            above.append(current)
            current = inside[0]
        return (current, above) if above else (None, [])

    def _reads_bytes(self, user: Node, operand: Node) -> bool:
        """Whether a reader makes ``operand`` itself, once per element or at little cost."""
        if isinstance(user.primitive, Reshape | Transpose) and user not in self.roots:
            return all(self._reads_bytes(reader, user) for reader in self.users[user])
        if isinstance(user.primitive, Map | Cast | Reduce) and kind_to_seed(user) is None:
            return True
        if kind_to_seed(user) is not KernelKind.WINDOW or user.inputs[0] is not operand:
            return False
        return operands_for_memory(user, self.memory, self.graph.scope) <= {*user.inputs[1:]}

    # ------------------------------------------------------------ memory

    def settle_memory(self) -> None:
        """Decide which light nodes outside of groups live in memory."""
        for group in self.groups:
            self.memory |= set(self._results(group.members))
        for root in self.roots:
            self.memory.add(root)
        for node in self.nodes:
            self._demand_operands(node)
        self._share()
        self._settle_contractions()

    def _settle_contractions(self) -> None:
        """Operands must be readable in place given all else that is in memory by now."""
        seeds = [group.seed for group in self.groups if group.kind is KernelKind.CONTRACTION]
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
            case Recurrence() as primitive:
                self.memory |= set(node.inputs[: primitive.in_memory()])
            case ArgReduce():  # reads every element twice
                if cost(node.inputs[0], self.memory) > RECOMPUTE_LIMIT:
                    self.memory.add(node.inputs[0])
            case Pad():
                data = node.inputs[0]
                if not is_simple(data, self.memory) or self._is_turned(data):
                    self.memory.add(data)
            case Broadcast(shape=shape):
                operand = node.inputs[0]
                grows = operand.rank > 0 and shape != operand.shape
                free = node not in self.owner and operand not in self.owner
                if grows and free and cost(operand, self.memory) > BROADCAST_LIMIT:
                    self.memory.add(self._below_views(operand))
            case _:
                pass

    def _is_turned(self, data: Node) -> bool:
        """Whether neighbours lie apart in memory and are too many to be moved one by one."""
        last = data.shape[-1] if data.rank else constant(1)
        if last.is_constant:
            is_part = last.value * data.dtype.bytes < LEAST_VECTOR_BYTES
            if is_part or last.value <= MOST_PLANES:
                return False
        return is_turned(data, self.memory)

    def _below_views(self, node: Node) -> Node:
        while isinstance(node.primitive, Reshape | Transpose | Slice | Broadcast):
            if node in self.memory:
                break
            node = node.inputs[0]
        return node

    def _share(self) -> None:
        """Put costly light nodes that are computed in several places into memory, operands first.

        Places are kernels, and what moves elements within one of them.
        """
        places: dict[Node, set[object]] = {}
        repeats = Repeats(self.users, self.graph.scope)
        for node in reversed(self.nodes):
            own: object | None = self.owner.get(node)
            if own is None and node in self.memory:
                own = node
            readers = {own} if own is not None else places.get(node, set())
            for number, operand in enumerate(node.inputs):
                if operand not in self.memory and operand not in self.owner:
                    found = repeats.places(node, number, readers)
                    places.setdefault(operand, set()).update(found)
        for node in self.nodes:
            if node in self.memory or node in self.owner or is_view(node):
                continue
            if not isinstance(node.primitive, Map | Cast) and not isinstance(node.primitive, Pad):
                continue
            if len(places.get(node, ())) > 1 and cost(node, self.memory) > RECOMPUTE_LIMIT:
                self.memory.add(node)

    # ------------------------------------------------------------ result

    def finish(self) -> Plan:
        """Kernels in an order in which every operand is ready."""
        written: list[tuple[_Group, tuple[Node, ...]]] = []
        for group in self.groups:
            members = self._sorted(group)
            leaving = set(self._results(members))
            outputs = tuple(n for n in members if n in self.memory and n in leaving)
            self.memory -= {n for n in members if n not in outputs}
            if group.kind is KernelKind.CONTRACTION:
                outputs = tuple(self._as_stored(o, group.seed) for o in outputs)
            written.append((group, outputs))
        kernels = [self._of_group(group, outputs) for group, outputs in written]
        produced = {output for kernel in kernels for output in kernel.outputs}
        for node in self.nodes:
            alone = node in self.memory and node not in self.owner and node not in produced
            if alone and not isinstance(node.primitive, Input | Constant | Project):
                kernels.append(self._kernel((), (node,), self.graph.label(node)))
        return Plan(tuple(in_order(self.graph, kernels)))

    def _sorted(self, group: _Group) -> list[Node]:
        """The members in the order of the graph."""
        return sorted(group.members, key=self.order.__getitem__)

    def _of_group(self, group: _Group, outputs: tuple[Node, ...]) -> Kernel:
        seeds: tuple[Node, ...]
        match group.kind:
            case KernelKind.LOOPS:
                seeds = ()
            case KernelKind.ROWS:
                seeds = tuple(n for n in self._sorted(group) if isinstance(n.primitive, Reduce))
            case _:
                seeds = (group.seed,)
        return self._kernel(seeds, outputs, self.graph.label(group.seed))

    def _kernel(self, seeds: tuple[Node, ...], outputs: tuple[Node, ...], label: str) -> Kernel:
        """The kernel that writes ``outputs``, with all that it reads and computes."""
        return kernel_of(
            seeds, outputs, self.memory, self.order.__getitem__, label, self.graph.labels
        )

    def _as_stored(self, output: Node, seed: Node) -> Node:
        """The view of a tile's result that can be stored in its place."""
        staged = may_end_channels_first(seed)
        view = stored_view(output, self.users, self.roots, self.graph.scope, staged)
        # What lies between has no other user; a reader may have asked for some of it before.
        while output is not view:
            self.memory.discard(output)
            output = self.users[output][0]
        self.memory.add(view)
        return view
