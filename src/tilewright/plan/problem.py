"""The choice among candidate kernels as a binary program, as data that no solver is needed for.

With u[k] = 1 for each kernel k that is launched (Korch, section 4.2):

    minimise    sum of price[k] * u[k]
    such that   every required result is written:   sum over k that write it of u[k] >= 1
                nothing is written twice:           sum over k that write it of u[k] <= 1
                what is read has been written:
                    sum over j that write r of u[j] >= sum over k that write t and read r of u[k]

Korch asks the last of each kernel k by itself. For all kernels that write the same t together it is
as true, since one of them at most is launched, and its relaxation is much tighter: a choice of
halves of kernels would need but half of what all of them read. It follows that all of which a
required result is made is computed by some kernel, whether it is written or not; a choice of parts
of kernels, each of which reads something else, would leave most of it out. So this is said as well:

                what is needed is computed:         sum over k that compute it of u[k] >= 1

A node may be computed by any number of kernels that do not write it. Kernels with several results
can wait for each other, which Korch's with one each cannot: such a ring is forbidden once it is
found (:meth:`Problem.without`). Start with :class:`Problem`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.ir.graph import Node, topological
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Constant, Input, Project


@dataclass(frozen=True)
class Row:
    """A linear constraint: ``low`` <= sum of coefficient * u[column] <= ``high``."""

    columns: tuple[int, ...]
    coefficients: tuple[float, ...]
    low: float | None
    high: float | None

    def holds(self, chosen: Collection[int]) -> bool:
        """Whether a choice satisfies it."""
        pairs = zip(self.columns, self.coefficients, strict=True)
        value = sum(coefficient for column, coefficient in pairs if column in chosen)
        above = self.low is None or value >= self.low
        return above and (self.high is None or value <= self.high)

    def renumbered(self, places: Mapping[int, int]) -> Row:
        """The same for columns with other numbers, without those that have none."""
        pairs = zip(self.columns, self.coefficients, strict=True)
        kept = [(places[column], value) for column, value in pairs if column in places]
        return replace(
            self, columns=tuple(c for c, _ in kept), coefficients=tuple(v for _, v in kept)
        )


@dataclass(frozen=True)
class Problem:
    """The constraints on which of some kernels are launched."""

    kernels: tuple[Kernel, ...]
    rows: tuple[Row, ...]

    def within(self, rows: Iterable[Row]) -> Problem:
        """The problem with more constraints."""
        return replace(self, rows=tuple(dict.fromkeys((*self.rows, *rows))))

    def without(self, ring: Sequence[int]) -> Problem:
        """The problem in which not all kernels of a ring, which wait for each other, are chosen."""
        ones = (1.0,) * len(ring)
        return self.within([Row(tuple(ring), ones, None, len(ring) - 1.0)])

    def without_any(self, kernels: Sequence[int]) -> Problem:
        """The problem in which none of some kernels is chosen."""
        ones = (1.0,) * len(kernels)
        return self.within([Row(tuple(kernels), ones, None, 0.0)])

    def of(self, numbers: Sequence[int]) -> Problem:
        """The problem in which no other kernels than these are chosen, numbered in their order."""
        place = {number: position for position, number in enumerate(numbers)}
        return Problem(
            tuple(self.kernels[n] for n in numbers),
            tuple(dict.fromkeys(row.renumbered(place) for row in self.rows)),
        )

    def holds(self, chosen: Collection[int]) -> bool:
        """Whether a choice of kernels satisfies every constraint."""
        return all(row.holds(chosen) for row in self.rows)


@dataclass(frozen=True)
class Solution:
    """Kernels by number, in ascending order, their price, and the least that any choice costs."""

    chosen: tuple[int, ...]
    price: float
    bound: float


def orchestration(
    kernels: Iterable[Kernel],
    required: Iterable[Node],
    is_given: Callable[[Node], bool] = lambda _: False,
) -> Problem:
    """The problem of computing ``required`` by some of the ``kernels``.

    Inputs and constants are in memory, and what ``is_given``, as others write it.
    """

    def is_there(node: Node) -> bool:
        return isinstance(node.primitive, Input | Constant) or is_given(node)

    listed = tuple(kernels)
    writers: dict[Node, list[int]] = {}
    for number, kernel in enumerate(listed):
        for output in kernel.outputs:
            writers.setdefault(output, []).append(number)
    wanted = [node for node in map(made_by, required) if not is_there(node)]
    rows = [_written(writers, node) for node in wanted]
    readers: dict[tuple[Node, Node], list[int]] = {}
    for number, kernel in enumerate(listed):
        for source in dict.fromkeys(made_by(read) for read in kernel.reads):
            for output in kernel.outputs if not is_there(source) else ():
                readers.setdefault((output, source), []).append(number)
    found = (_read(writers, source, numbers) for (_, source), numbers in readers.items())
    rows += dict.fromkeys(found)
    for numbers in writers.values():
        if len(numbers) > 1:
            rows.append(Row(tuple(numbers), (1.0,) * len(numbers), None, 1.0))
    rows += all_computed(listed, wanted, is_there)
    return Problem(listed, tuple(dict.fromkeys(rows)))


def all_computed(
    kernels: Sequence[Kernel], wanted: Iterable[Node], is_there: Callable[[Node], bool]
) -> list[Row]:
    """That each node of which something ``wanted`` is made is computed by a kernel.

    It follows from the other constraints for any choice that can be launched.
    """

    def operands(node: Node) -> tuple[Node, ...]:
        return tuple(n for n in map(made_by, node.inputs) if not is_there(n))

    rows = _computing(kernels, topological(wanted, operands))
    return [Row(numbers, (1.0,) * len(numbers), 1.0, None) for numbers in rows if numbers]


def computed_once(kernels: Sequence[Kernel], nodes: Iterable[Node]) -> list[Row]:
    """That none of ``nodes`` is computed by two of the kernels that are launched."""
    rows = dict.fromkeys(numbers for numbers in _computing(kernels, nodes) if len(numbers) > 1)
    return [Row(numbers, (1.0,) * len(numbers), None, 1.0) for numbers in rows]


def _computing(kernels: Sequence[Kernel], nodes: Iterable[Node]) -> list[tuple[int, ...]]:
    """The kernels that compute each node."""
    found: dict[Node, list[int]] = {node: [] for node in nodes}
    for number, kernel in enumerate(kernels):
        for node in kernel.body:
            if node in found:
                found[node].append(number)
    return [tuple(numbers) for numbers in found.values()]


def made_by(node: Node) -> Node:
    """What a kernel writes, of which ``node`` is one of several results."""
    while isinstance(node.primitive, Project):
        node = node.inputs[0]
    return node


def _written(writers: Mapping[Node, Sequence[int]], node: Node) -> Row:
    numbers = tuple(writers.get(node, ()))
    return Row(numbers, (1.0,) * len(numbers), 1.0, None)


def _read(writers: Mapping[Node, Sequence[int]], source: Node, readers: Sequence[int]) -> Row:
    numbers = tuple(writers.get(source, ()))
    coefficients = (*((1.0,) * len(numbers)), *((-1.0,) * len(readers)))
    return Row((*numbers, *readers), coefficients, 0.0, None)


__all__ = [
    "Problem",
    "Row",
    "Solution",
    "all_computed",
    "computed_once",
    "made_by",
    "orchestration",
]
