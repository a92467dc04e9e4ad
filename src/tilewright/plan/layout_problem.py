"""In which order each tensor is stored, as a binary program, as data that no solver is needed for.

A graph is divided into units, each of which has several *ways* to be computed: a way reads every
tensor in one order and writes every tensor in one. A *conversion* is a kernel that makes a tensor
in another order than the one it is written in. (Korch, section 7, proposes to give each candidate
kernel the layouts of its operands and results.) With u[w] = 1 for each way and c[x, a, b] = 1 for
each conversion that is taken:

    minimise    sum of price[w] * u[w] + sum of price[x, a, b] * c[x, a, b]
    such that   each unit has one way:           sum over its ways of u[w] = 1
                what is read is there:           sum over w that write x in b of u[w]
                    + sum over a of c[x, a, b] >= sum over ways v of a unit that read x in b of u[v]
                what is converted is written:    sum over w that write x in a of u[w] >= c[x, a, b]

and for what the graph hands out, in the order that the caller knows, with 1 on the right. What is
read and written by one unit alone takes no columns. Start with :func:`layout_problem`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tilewright.plan.problem import Row

Tensor = TypeVar("Tensor", bound=Hashable)
Stored = TypeVar("Stored", bound=Hashable)  # how a tensor is stored


@dataclass(frozen=True)
class Traffic(Generic[Tensor, Stored]):
    """How one way reads and writes its tensors."""

    reads: Mapping[Tensor, Stored]
    writes: Mapping[Tensor, Stored]


@dataclass(frozen=True)
class Conversion(Generic[Tensor, Stored]):
    """The kernel that makes a tensor in an order from itself in another one."""

    tensor: Tensor
    source: Stored
    target: Stored


@dataclass(frozen=True)
class LayoutProblem(Generic[Tensor, Stored]):
    """The constraints on ways and conversions, each of which is a column.

    ``ways`` gives the first column of each unit; its ways follow in their order. ``conversions``
    begin behind the ways.
    """

    ways: tuple[int, ...]
    conversions: tuple[Conversion[Tensor, Stored], ...]
    columns: int
    rows: tuple[Row, ...]


def layout_problem(
    units: Sequence[Sequence[Traffic[Tensor, Stored]]],
    given: Mapping[Tensor, Stored],
    wanted: Sequence[tuple[Tensor, Stored]],
) -> LayoutProblem[Tensor, Stored]:
    """The problem of computing what is ``wanted`` by one way of every unit.

    ``given`` says how tensors are stored that no unit writes.
    """
    return _Builder(units, given).built(wanted)


class _Builder(Generic[Tensor, Stored]):
    def __init__(
        self, units: Sequence[Sequence[Traffic[Tensor, Stored]]], given: Mapping[Tensor, Stored]
    ) -> None:
        self.units = units
        self.given = given
        self.first: list[int] = []
        self.writers: dict[Tensor, dict[Stored, list[int]]] = {}
        count = 0
        for ways in units:
            self.first.append(count)
            for way in ways:
                for tensor, stored in way.writes.items():
                    self.writers.setdefault(tensor, {}).setdefault(stored, []).append(count)
                count += 1
        self.count = count

    def built(self, wanted: Sequence[tuple[Tensor, Stored]]) -> LayoutProblem[Tensor, Stored]:
        """The problem with all conversions that some way may need."""
        readers = self._readers()
        needed = dict.fromkeys([(tensor, stored) for tensor, stored, _ in readers] + [*wanted])
        conversions: dict[Conversion[Tensor, Stored], int] = {}
        for tensor, target in needed:
            for source in self._sources(tensor):
                if source != target:
                    conversions.setdefault(
                        Conversion(tensor, source, target), self.count + len(conversions)
                    )
        into: dict[tuple[Tensor, Stored], list[int]] = {}
        for conversion, column in conversions.items():
            into.setdefault((conversion.tensor, conversion.target), []).append(column)
        rows = [self._one_way(number) for number in range(len(self.units))]
        for tensor, stored, columns in readers:
            rows += self._there(tensor, stored, into, columns)
        for tensor, stored in dict.fromkeys(wanted):
            rows += self._there(tensor, stored, into, ())
        for conversion, column in conversions.items():
            written = self.writers.get(conversion.tensor, {}).get(conversion.source)
            if written is not None:
                rows.append(_at_least(written, [column], 0.0))
        columns = self.count + len(conversions)
        return LayoutProblem(tuple(self.first), tuple(conversions), columns, tuple(rows))

    def _readers(self) -> list[tuple[Tensor, Stored, tuple[int, ...]]]:
        """The columns of each unit that read a tensor in an order."""
        found: list[tuple[Tensor, Stored, tuple[int, ...]]] = []
        for first, ways in zip(self.first, self.units, strict=True):
            own: dict[tuple[Tensor, Stored], list[int]] = {}
            for number, way in enumerate(ways):
                for tensor, stored in way.reads.items():
                    own.setdefault((tensor, stored), []).append(first + number)
            found += [(*key, tuple(columns)) for key, columns in own.items()]
        return found

    def _sources(self, tensor: Tensor) -> list[Stored]:
        written = self.writers.get(tensor)
        return [self.given[tensor]] if written is None else list(written)

    def _one_way(self, number: int) -> Row:
        first, ways = self.first[number], self.units[number]
        columns = tuple(range(first, first + len(ways)))
        return Row(columns, (1.0,) * len(columns), 1.0, 1.0)

    def _there(
        self, tensor: Tensor, stored: Stored, into: Mapping[tuple[Tensor, Stored], list[int]],
        readers: Sequence[int],
    ) -> list[Row]:  # fmt: skip
        """That a tensor is there in an order; for all ``readers`` of a unit, or in any case."""
        written = self.writers.get(tensor)
        if written is None and self.given[tensor] == stored:
            return []
        makers = [*(written or {}).get(stored, ()), *into.get((tensor, stored), ())]
        return [_at_least(makers, readers, 0.0 if readers else 1.0)]


def _at_least(columns: Sequence[int], others: Sequence[int], low: float) -> Row:
    """Sum of ``columns`` - sum of ``others`` >= ``low``."""
    coefficients = (*((1.0,) * len(columns)), *((-1.0,) * len(others)))
    return Row((*columns, *others), coefficients, low, None)


__all__ = ["Conversion", "LayoutProblem", "Traffic", "layout_problem"]
