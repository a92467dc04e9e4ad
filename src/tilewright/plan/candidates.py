"""Every kernel that a plan may have: the sets of anchors that can be lowered as one.

Korch (section 4.1) finds convex sets as differences of execution states, which it lists by a
depth-first search over the whole graph. Connected ones are found here by growing them: a set takes
in an anchor beside it, with all that lies between the two or without, so that large graphs need not
be cut. A set that is not convex is a kernel as well, unlike there, if nothing that it reads depends
on what it writes: a quotient may compute the exponentials again of which the sum was made. Sets are
not grown further once nothing that holds them could be lowered. A set may write more than its last
results; results that others need and that it does not write, those compute again. Start with
:func:`candidates`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from tilewright.ir.attention import attention_of
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel, KernelKind, RowSpace, kernel_of
from tilewright.ir.primitives import Cast, Contract, Convolve, Map, Reduce, Window
from tilewright.plan.anchors import Anchors
from tilewright.plan.chains import MOST_REDUCTIONS
from tilewright.plan.inline import is_light
from tilewright.plan.legality import OUTPUT_LIMIT, Legality
from tilewright.plan.seeds import kind_to_seed

MEMBER_LIMIT = 12  # anchors of one kernel
GROWTH_LIMIT = 100  # sets that are grown from one anchor
ATTENTION_PRODUCTS = 2  # of an attention: the scores, and what they weigh


def candidates(anchors: Anchors) -> tuple[Kernel, ...]:
    """All kernels that can be lowered, as far as the limits go, in a deterministic order."""
    return AnchorSets(anchors).kernels()


class AnchorSets:
    """Sets of anchors, each one number of as many bits as there are anchors, and their kernels."""

    def __init__(self, anchors: Anchors) -> None:
        self.anchors = anchors
        self.legality = Legality(anchors.graph.scope)
        count = len(anchors.nodes)
        self.operands = [0] * count
        self.readers = [0] * count
        self.above = [0] * count  # the anchor itself as well
        self.below = [0] * count
        for place, node in enumerate(anchors.nodes):
            self.below[place] = 1 << place
            for operand in anchors.operands(node):
                other = anchors.number[operand]
                self.operands[place] |= 1 << other
                self.readers[other] |= 1 << place
                self.below[place] |= self.below[other]
        for place in reversed(range(count)):
            self.above[place] = 1 << place
            for reader in places_of(self.readers[place]):
                self.above[place] |= self.above[reader]
        self.roots = self._roots()
        self.shapes = [_Shape(anchors.body[node], node) for node in anchors.nodes]
        self.tiled = sum(1 << place for place, shape in enumerate(self.shapes) if shape.products)

    def _roots(self) -> int:
        found = 0
        for root in self.anchors.graph.roots:
            if root in self.anchors.number:
                found |= 1 << self.anchors.number[root]
        return found

    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels of all sets."""
        found: dict[Kernel, None] = {}
        known: set[int] = set()
        for place in range(len(self.anchors.nodes)):
            for members in self._grown(place, known):
                for kernel in self._kernels(members):
                    found[kernel] = None
        return tuple(found)

    def kernel(self, members: int) -> Kernel | None:
        """The kernel that writes all that others read of a set; None if there is none."""
        places = list(places_of(members))
        written = [p for p in places if self._is_wanted(p, members)]
        seeds = self._seeds(places)
        if seeds is None or not 0 < len(written) <= OUTPUT_LIMIT:
            return None
        nodes = self.anchors.nodes
        inside = {nodes[p] for p in places}
        outputs = tuple(nodes[p] for p in written)
        kernel = self._kernel(seeds, outputs, self.anchors.memory - inside)
        return kernel if self.legality.reason(kernel) is None else None

    # ------------------------------------------------------------ sets

    def _grown(self, place: int, known: set[int]) -> Iterator[int]:
        """Sets with an anchor and others before or after it that were not found before."""
        stack = [1 << place]
        left = GROWTH_LIMIT
        while stack and left:
            members = stack.pop()
            if members in known or not self._may_grow(members):
                continue
            known.add(members)
            left -= 1
            yield members
            beside = 0
            for member in places_of(members):
                beside |= self.operands[member] | self.readers[member]
            for other in places_of(beside & ~members):
                wider = members | 1 << other
                stack.append(self.convex(wider))
                if self._may_repeat(wider):
                    stack.append(wider)

    def _may_repeat(self, members: int) -> bool:
        """Whether a set may compute again what something beside it has computed for it."""
        return not self.tiled & members

    def convex(self, members: int) -> int:
        """The set with all that lies between its members."""
        above = below = 0
        for member in places_of(members):
            above |= self.above[member]
            below |= self.below[member]
        return above & below

    def _may_grow(self, members: int) -> bool:
        """Whether some set that holds these might be lowered."""
        if members.bit_count() > MEMBER_LIMIT:
            return False
        shapes = [self.shapes[member] for member in places_of(members)]
        products = [p for shape in shapes for p in shape.products]
        reduces = [r for shape in shapes for r in shape.reduces]
        ends = [place for place in places_of(members) if self.shapes[place].ends]
        if len(ends) > 1 or (ends and (products or reduces or self.readers[ends[0]] & members)):
            return False
        if len(reduces) > MOST_REDUCTIONS:
            return False
        if any(RowSpace.of(r) != RowSpace.of(reduces[0]) for r in reduces[1:]):
            return False
        if not products:
            return True
        contracts = [p for p in products if isinstance(p.primitive, Contract)]
        if len(products) == 1:
            return not reduces or bool(contracts)
        return len(products) == len(contracts) == ATTENTION_PRODUCTS and bool(reduces)

    # ------------------------------------------------------------ kernels

    def _kernels(self, members: int) -> Iterator[Kernel]:
        """What a set may be as a kernel: one for each choice of what it writes."""
        places = list(places_of(members))
        sinks = [p for p in places if not self.readers[p] & members]
        others = [p for p in places if p not in sinks and self._is_wanted(p, members)]
        needed = [p for p in others if self.shapes[p].products]
        free = [p for p in others if p not in needed]
        room = OUTPUT_LIMIT - len(sinks) - len(needed)
        seeds = self._seeds(places)
        if room < 0 or seeds is None:
            return
        inside = {self.anchors.nodes[p] for p in places}
        memory = self.anchors.memory - inside
        for count in range(min(room, len(free)) + 1):
            for chosen in combinations(free, count):
                written = sorted((*sinks, *needed, *chosen))
                if self._waits(members, written):
                    continue
                outputs = tuple(self.anchors.nodes[p] for p in written)
                kernel = self._kernel(seeds, outputs, memory)
                if inside.issubset(kernel.body) and self.legality.reason(kernel) is None:
                    yield kernel

    def _waits(self, members: int, written: list[int]) -> bool:
        """Whether what a set reads depends on what it writes."""
        reads = after = 0
        for place in places_of(members):
            reads |= self.operands[place] & ~members
        for place in written:
            after |= self.above[place]
        return bool(reads & after)

    def _is_wanted(self, place: int, members: int) -> bool:
        return bool(self.readers[place] & ~members or self.roots >> place & 1)

    def _kernel(
        self, seeds: tuple[Node, ...], outputs: tuple[Node, ...], memory: frozenset[Node]
    ) -> Kernel:
        graph, place = self.anchors.graph, self.anchors.order.__getitem__
        label = graph.label(seeds[0] if seeds else outputs[-1])
        kernel = kernel_of(seeds, outputs, memory, place, label, graph.labels)
        if kernel.seeds == kernel.outputs and kind_to_seed(kernel.outputs[0]) is None:
            is_row = kernel.kind is KernelKind.ROWS
            return kernel if is_row else replace(kernel, seeds=())  # each result is its own loop
        return kernel

    def _seeds(self, places: list[int]) -> tuple[Node, ...] | None:
        """What shapes the loops of a set; None if nothing can."""
        products = [p for place in places for p in self.shapes[place].products]
        reduces = [r for place in places for r in self.shapes[place].reduces]
        if len(products) < ATTENTION_PRODUCTS:
            return (*products, *reduces)
        body = {n for place in places for n in self.anchors.body[self.anchors.nodes[place]]}
        found = attention_of(products[0], products[1], body)
        return None if found is None else found.seeds


class _Shape:
    """What an anchor and its parts mean for the loops of a kernel."""

    def __init__(self, body: tuple[Node, ...], anchor: Node) -> None:
        heavy = [n for n in body if not is_light(n)]
        tiled = [n for n in heavy if _is_tiled(n)]
        self.reduces = tuple(n for n in heavy if isinstance(n.primitive, Reduce))
        self.products = tuple(tiled)
        # Neither light nor a seed: it is what its kernel writes.
        self.ends = any(n not in self.reduces and n not in self.products for n in heavy)
        self.is_map = isinstance(anchor.primitive, Map | Cast)


def _is_tiled(node: Node) -> bool:
    if not isinstance(node.primitive, Contract | Convolve | Window):
        return False
    return kind_to_seed(node) is not KernelKind.LOOPS


def places_of(members: int) -> Iterator[int]:
    """The numbers of the bits that are set, in their order."""
    while members:
        lowest = members & -members
        yield lowest.bit_length() - 1
        members ^= lowest


__all__ = ["AnchorSets", "candidates", "places_of"]
