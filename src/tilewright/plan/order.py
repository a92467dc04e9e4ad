"""An order of launches that stays valid while nodes join each other.

A *unit* is what runs as one: a group of nodes, or a node by itself. Units stand in a line in which
each comes after all that it needs. A node may join a unit if nothing that it needs comes after the
unit because it needs the unit itself; what stands between the two and is needed by the node moves
before the unit then. Only this part of the line is looked at, which in a deep model is short, so
that planning takes time in proportion to the model. Start with :class:`LaunchOrder`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph import Graph, Node


class LaunchOrder:
    """Units in a valid order; each is named by its first member."""

    def __init__(self, graph: Graph, nodes: Sequence[Node]) -> None:
        """``nodes`` are those of the graph, in a valid order, each a unit by itself."""
        self._graph = graph
        self._line: list[Node | None] = list(nodes)  # None: a place that a joined node has left
        self._place = {n: place for place, n in enumerate(nodes)}
        self._unit = {n: n for n in nodes}
        self._members = {n: [n] for n in nodes}
        self._sizes_from = {n: graph.sizes_from(n) for n in nodes} if graph.deciders else {}

    def may_join(self, unit: Node, joining: Node) -> bool:
        """Whether ``joining``, which reads ``unit`` and is by itself, can run as a part of it."""
        return self._before(unit, joining) is not None

    def join(self, unit: Node, joining: Node) -> None:
        """Make ``joining`` a part of ``unit``, which it may join."""
        before = self._before(unit, joining)
        assert before is not None, f"{joining!r} needs what needs {unit!r}"
        first, last = self._place[unit], self._place[joining]
        between = self._line[first + 1 : last]
        earlier = [n for n in between if n is not None and n in before]
        later = [n for n in between if n is None or n not in before]
        self._line[first : last + 1] = [*earlier, unit, None, *later]
        for place in range(first, last + 1):
            found = self._line[place]
            if found is not None:
                self._place[found] = place
        del self._place[joining], self._members[joining]
        self._members[unit].append(joining)
        self._unit[joining] = unit

    def leave(self, unit: Node, leaving: Node) -> None:
        """Make a member by itself again, on which no other member depends.

        To be called before another node joins any unit: the places behind the unit are free then.
        """
        place = self._place[unit] + 1
        while place + 1 < len(self._line) and self._line[place + 1] is None:
            place += 1
        assert self._line[place] is None, f"{leaving!r} has no place behind {unit!r}"
        self._line[place] = leaving
        self._place[leaving] = place
        self._members[unit].remove(leaving)
        self._members[leaving] = [leaving]
        self._unit[leaving] = leaving

    def _before(self, unit: Node, joining: Node) -> set[Node] | None:
        """The units behind ``unit`` that ``joining`` needs; None if it has to wait for ``unit``."""
        first = self._place[unit]
        found: set[Node] = set()
        stack = [joining]
        while stack:
            current = stack.pop()
            for member in self._members[current]:
                for source in member.inputs:
                    other = self._unit[source]
                    if other is unit and current is not joining:
                        return None
                    if other is not unit and self._place[other] > first and other not in found:
                        found.add(other)
                        stack.append(other)
                # A size that a member decides is known when the whole unit has run.
                for source in self._sizes_from.get(member, ()):
                    other = self._unit[source]
                    if other is unit:
                        return None
                    if self._place[other] > first and other not in found:
                        found.add(other)
                        stack.append(other)
        return found
