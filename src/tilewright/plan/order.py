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
        """Whether ``joining``, which is by itself, can run as a part of ``unit``.

        What reads the unit stands behind it; what only reads the same may stand before it.
        """
        if self._place[joining] < self._place[unit]:
            return not self._is_needed(joining, self._between(joining, unit))
        return self._before(unit, joining) is not None

    def join(self, unit: Node, joining: Node) -> None:
        """Make ``joining`` a part of ``unit``, which it may join."""
        first, last = sorted((self._place[unit], self._place[joining]))
        if self._line[first] is joining:
            earlier, later = self._between(joining, unit), list[Node | None]()
        else:
            before = self._before(unit, joining)
            assert before is not None, f"{joining!r} needs what needs {unit!r}"
            between = self._between(unit, joining)
            earlier = [n for n in between if n in before]
            later = [n for n in between if n not in before]
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

    def _between(self, first: Node, last: Node) -> list[Node | None]:
        """What stands between two units."""
        return self._line[self._place[first] + 1 : self._place[last]]

    def _is_needed(self, node: Node, units: Sequence[Node | None]) -> bool:
        """Whether a member of some unit reads ``node``, or has a size that it decides."""
        members = (m for unit in units if unit is not None for m in self._members[unit])
        return any(node in m.inputs or node in self._sizes_from.get(m, ()) for m in members)

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
