"""Planners that need no prices: one kernel for each node, and fusion around backbones.

The latter is TSCompiler's (section 4): the graph is gone over once for every class of operators,
products first, then reductions, then all else. Each that no group has yet becomes the backbone of
one, which takes in producers and consumers beside it as long as their symbolic shapes agree, the
whole can be lowered as one kernel, and no other backbone of the same class is met; reductions of
the same rows are stitched. At the end kernels that hand their results to one other are stitched as
well. Products that share an operand stay kernels of their own, unlike there: rewriting has merged
those that it pays for. Start with :func:`plan_by_backbones`.
"""

from __future__ import annotations

from tilewright.ir.graph import Graph, Node
from tilewright.ir.kernel import Kernel, Plan, RowSpace
from tilewright.ir.primitives import Contract, Convolve, Reduce, Window
from tilewright.ir.verify import REPORT, VerificationError
from tilewright.plan.anchors import Anchors
from tilewright.plan.candidates import AnchorSets, places_of
from tilewright.plan.inline import is_light
from tilewright.plan.launches import in_order
from tilewright.plan.stitch import stitched


def plan_without_fusion(graph: Graph) -> Plan:
    """A kernel for every node but those that are made of positions and numbers alone."""
    anchors = Anchors(graph, joined=False)
    sets = AnchorSets(anchors)
    return _planned(graph, sets, [1 << place for place in range(len(anchors.nodes))])


def plan_by_backbones(graph: Graph) -> Plan:
    """Kernels around products, then around reductions, then of what is left."""
    return stitched(graph, _Groups(graph).plan())


def _planned(graph: Graph, sets: AnchorSets, groups: list[int]) -> Plan:
    """One kernel for every group."""
    kernels: list[Kernel] = []
    for members in groups:
        kernel = sets.kernel(members)
        if kernel is None:
            first = sets.anchors.nodes[next(places_of(members))]
            raise VerificationError(f"{first!r} is in no kernel that can be lowered", hint=REPORT)
        kernels.append(kernel)
    return Plan(tuple(in_order(graph, kernels)))


class _Groups:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.anchors = Anchors(graph, joined=False)
        self.sets = AnchorSets(self.anchors)
        self.owner: dict[int, int] = {}
        self.groups: list[int] = []

    def plan(self) -> Plan:
        """All groups as kernels."""
        for wanted in (_is_product, _is_reduction, _is_any):
            for place, node in enumerate(self.anchors.nodes):
                if place not in self.owner and wanted(node):
                    self._grow(place)
        return _planned(self.graph, self.sets, self.groups)

    def _grow(self, backbone: int) -> None:
        number = len(self.groups)
        members = 1 << backbone
        moved = True
        while moved:
            moved = False
            for place in self._beside(members):
                wider = self.sets.convex(members | 1 << place)
                if self._may_be(wider, members, backbone):
                    members, moved = wider, True
                    break
        self.groups.append(members)
        for place in places_of(members):
            self.owner[place] = number

    def _beside(self, members: int) -> list[int]:
        """Anchors next to a group that are in none, consumers first."""
        readers = operands = 0
        for place in places_of(members):
            readers |= self.sets.readers[place]
            operands |= self.sets.operands[place]
        found = [*places_of(readers & ~members), *places_of(operands & ~members & ~readers)]
        return [place for place in found if place not in self.owner]

    def _may_be(self, wider: int, members: int, backbone: int) -> bool:
        """Whether a group may take in what is new in a wider one."""
        node = self.anchors.nodes[backbone]
        for place in places_of(wider & ~members):
            if place in self.owner or not _agrees(self.anchors.nodes[place], node):
                return False
        return self.sets.kernel(wider) is not None and not self._is_ring(wider)

    def _is_ring(self, members: int) -> bool:
        """Whether what a group would read waits for the group, through groups made before."""
        stack = [p for m in places_of(members) for p in places_of(self.sets.readers[m] & ~members)]
        seen: set[int] = set()
        while stack:
            place = stack.pop()
            if place in seen:
                continue
            seen.add(place)
            if members >> place & 1:
                return True
            whole = self.groups[self.owner[place]] if place in self.owner else 1 << place
            for member in places_of(whole):
                seen.add(member)
                stack += places_of(self.sets.readers[member] & ~whole)
        return False


def _agrees(node: Node, backbone: Node) -> bool:
    """Whether the symbolic shape of a node is that of the backbone, or of what it reduces."""
    if isinstance(backbone.primitive, Reduce):
        space = RowSpace.of(backbone)
        if isinstance(node.primitive, Reduce):
            return RowSpace.of(node) == space
        return is_light(node) and (space.holds_elements(node.shape) or space.holds_rows(node.shape))
    return is_light(node) and node.shape == backbone.shape


def _is_product(node: Node) -> bool:
    return isinstance(node.primitive, Contract | Convolve | Window)


def _is_reduction(node: Node) -> bool:
    return isinstance(node.primitive, Reduce)


def _is_any(node: Node) -> bool:
    return not isinstance(node.primitive, Contract | Convolve | Window | Reduce)


__all__ = ["plan_by_backbones", "plan_without_fusion"]
