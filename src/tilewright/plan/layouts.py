"""The order in which tensors are stored, decided by price: the cheapest choice for a whole graph.

The rule that counts conversions (``rewrite.channels_last``) takes or leaves whole regions. Here
each kernel of a region is a unit with several ways (``layout_units``), and a binary program chooses
one of each and the conversions between them (``layout_problem``), so that a region may end where it
gains no more. What the rule has counts as cheaper by the error of prices. Ways are priced once a
choice wants them; until then a bound stands for their price.

A sum of small graphs is not what the whole takes: a conversion may end up within another kernel. So
units that are chosen otherwise than the rule has them and that share tensors are put into the graph
together, it is planned and priced as a whole, and they stay only if the kernels by which it differs
have become cheaper by more than that error and at no shape dearer. One form serves all shapes, so
that the large ones count here that plans leave out. Start with :func:`laid_out_by_price`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tilewright.ir.graph import Graph, Node
from tilewright.plan.choosing import NEAR, WORTH, Array
from tilewright.plan.forms import Form, FormPrices, is_worth_it, summary_of, summary_text
from tilewright.plan.known import with_known_kernels
from tilewright.plan.layout_problem import Conversion, layout_problem
from tilewright.plan.layout_units import LayoutUnits, Spread, Unit
from tilewright.plan.prepare import prepare
from tilewright.plan.prices import LONGEST, TRIED
from tilewright.plan.solver import solve
from tilewright.rewrite import simplify
from tilewright.rewrite.channels_last import counted, spread, stored
from tilewright.rewrite.finer import finer_axes
from tilewright.rewrite.orders import Arrangement, Order, identity
from tilewright.support.text import format_count
from tilewright.tile.alike import LoweringOnce

ROUNDS = 16  # of choosing and pricing
MOST_PARTS = 16  # that are put into the graph and priced as a whole


@dataclass(frozen=True)
class LaidOut:
    """A part of a graph whose tensors have other orders than by the rule that counts conversions.

    ``kernels`` are arranged otherwise, the last of which writes a tensor in the order ``has`` in
    the place of ``had``. ``saves`` is the share by which the kernels that change become cheaper, in
    the mean over representative points and as the least and the greatest of them; ``label`` names
    the operators.
    """

    kernels: int
    label: str
    has: Order
    had: Order
    saves: float
    least: float
    most: float

    def __str__(self) -> str:
        orders = f"axes stored as {list(self.has)} in the place of {list(self.had)}"
        kernels = format_count(self.kernels, "kernel")
        share = summary_text(self.saves, self.least, self.most)
        return f"{kernels} up to {self.label}: {orders}, {share}"


@dataclass(frozen=True)
class Layouts:
    """A prepared graph, and which parts of it have other orders than by the rule.

    The orders of ``units`` kernels could be chosen.
    """

    graph: Graph
    parts: tuple[LaidOut, ...] = ()
    units: int = 0


def laid_out_by_price(graph: Graph, by_rule: Graph, lowerings: Sequence[LoweringOnce]) -> Layouts:
    """The cheapest form of a graph that is found; ``by_rule``, unless another one is cheaper.

    ``graph`` is simplified and has its tensors as the model stores them; ``by_rule`` is what the
    rule that counts conversions makes of it, prepared. Prices of several machines count alike.
    """
    base = with_known_kernels(finer_axes(graph))
    rule, every = counted(base), spread(base)
    units = LayoutUnits(base, [rule] if rule == every else [rule, every])
    if not units.units:
        return Layouts(by_rule)
    return _Search(base, by_rule, units, lowerings).found(rule)


class _Search:
    def __init__(
        self, base: Graph, by_rule: Graph, units: LayoutUnits, lowerings: Sequence[LoweringOnce]
    ) -> None:
        self._base = base
        self._by_rule = by_rule
        self._units = units
        self._rule = _form(by_rule)
        self._prices = FormPrices(self._rule.graph, lowerings, TRIED)
        total = self._prices.of(self._rule.kernels, self._rule.counts)
        self._feasible = total <= max(LONGEST, float(total.min()))
        self._weights = self._feasible / (np.maximum(total, 1.0) * self._feasible.sum())

    def found(self, rule: Spread) -> Layouts:
        """The graph with each part of the choice that makes it cheaper."""
        count = len(self._units.units)
        spread_of = _Choice(self._units, self._prices, self._weights).spreads()
        plan, taken = dict(rule), list[LaidOut]()
        before = self._form(plan)
        kept: set[object] = set()  # what stays as it is, of parts that are alike
        for part in self._parts(spread_of):
            key = tuple((unit.key, spread_of[unit]) for unit in part)
            if key in kept or len(kept) == MOST_PARTS:
                continue
            other = self._with(plan, part, spread_of)
            after = self._form(other)
            change = self._change(before, after)
            if is_worth_it(change):
                taken.append(self._report(part, plan, other, change))
                plan, before = other, after
            else:
                kept.add(key)
        if not taken or not is_worth_it(self._change(self._rule, before)):
            return Layouts(self._by_rule, (), count)
        return Layouts(prepare(simplify(stored(self._base, plan))), tuple(taken), count)

    def _form(self, plan: Spread) -> Form:
        return _form(prepare(simplify(stored(self._base, plan))))

    def _change(self, before: Form, after: Form) -> Array:
        return self._prices.change(before, after)[self._feasible]

    def _parts(self, spread_of: Mapping[Unit, int | None]) -> list[list[Unit]]:
        """Units that are not arranged as by the rule; those that share tensors are together."""
        groups: list[tuple[list[Unit], set[Node]]] = []
        for unit, number in spread_of.items():
            rule = self._units.rule_of(unit)
            if self._units.arranged(unit, number) == self._units.arranged(unit, rule):
                continue
            own, tensors = [unit], {*unit.reads, *unit.writes}
            for group in [group for group in groups if group[1] & tensors]:
                own = [*group[0], *own]
                tensors |= group[1]
                groups.remove(group)
            groups.append((own, tensors))
        return [units for units, _ in groups]

    def _with(
        self, plan: Spread, part: Sequence[Unit], spread_of: Mapping[Unit, int | None]
    ) -> dict[Node, Arrangement]:
        """A plan with the nodes of some units arranged as was chosen."""
        made = dict(plan)
        for unit in part:
            for current in unit.body:
                made.pop(current, None)
        for unit in part:
            made |= self._units.arranged(unit, spread_of[unit])
        return made

    def _report(
        self, part: Sequence[Unit], before: Spread, after: Spread, change: Array
    ) -> LaidOut:
        written = [tensor for unit in part for tensor in unit.writes]
        pairs = [(w, _order(w, after), _order(w, before)) for w in written]
        last, has, had = ([p for p in pairs if p[1] != p[2]] or pairs)[-1]
        label = self._base.label(last)
        return LaidOut(len(part), label, has, had, *summary_of(change))


@dataclass(frozen=True)
class _Column:
    """A way of a unit, or a conversion, with what is needed for its price.

    What is alike has equal ``key``. A way that converts a tensor inside names the one that does not
    as ``plain``. ``share`` of the price counts.
    """

    key: object
    form: Callable[[], Form]
    plain: _Column | None = None
    share: float = 1.0


class _Choice:
    """The binary program of a graph, whose columns are priced when a choice wants them."""

    def __init__(self, units: LayoutUnits, prices: FormPrices, weights: Array) -> None:
        """``weights`` are those of the points."""
        self._units = units
        self._prices = prices
        self._weights = weights
        self._forms: dict[object, Form] = {}
        self._known: dict[object, float] = {}
        self._bounds: dict[object, float] = {}
        ways = [[unit.traffic(way) for way in unit.ways] for unit in units.units]
        self.problem = layout_problem(ways, units.given(), units.wanted)
        self.columns = [column for unit in units.units for column in self._ways(unit)]
        self.columns += map(self._conversion, self.problem.conversions)

    def spreads(self) -> dict[Unit, int | None]:
        """By which spread each unit is arranged in the cheapest choice."""
        pairs = [(unit, way) for unit in self._units.units for way in unit.ways]
        return {pairs[n][0]: pairs[n][1].spread for n in self.chosen() if n < len(pairs)}

    def chosen(self) -> tuple[int, ...]:
        """The columns of the cheapest choice."""
        chosen: tuple[int, ...] = ()
        for _ in range(ROUNDS):
            costs = [column.share * self._least(column) for column in self.columns]
            chosen = solve(self.problem, costs, NEAR / 4).chosen
            new = [self.columns[n] for n in chosen if self.columns[n].key not in self._known]
            if not new:
                break
            for column in new:
                self._known[column.key] = self.price(column)
        return chosen

    def price(self, column: _Column) -> float:
        """What a column takes, in the mean and relative to the rule's graph."""
        form = self._form(column)
        return float(self._prices.of(form.kernels, form.counts) @ self._weights)

    def _ways(self, unit: Unit) -> list[_Column]:
        """The columns of a unit; its first ways are the plain ones."""
        plain: dict[int | None, _Column] = {}
        found: list[_Column] = []
        for way in unit.ways:
            form = partial(self._units.form, unit, way)
            share = 1 - WORTH if way.spread == self._units.rule_of(unit) else 1.0
            column = _Column((unit.key, way), form, plain.get(way.spread), share)
            plain.setdefault(way.spread, column)
            found.append(column)
        return found

    def _conversion(self, conversion: Conversion[Node, Order]) -> _Column:
        tensor, source, target = conversion.tensor, conversion.source, conversion.target
        form = partial(self._units.conversion, tensor, source, target)
        return _Column((tensor.type, source, target), form)

    def _least(self, column: _Column) -> float:
        """What is known of a price: itself, or a bound.

        A conversion within a kernel is taken to cost something.
        """
        if column.key in self._known:
            return self._known[column.key]
        if column.key not in self._bounds:
            form = self._form(column)
            bound = self._prices.bound(form.kernels, form.counts)
            self._bounds[column.key] = float(bound @ self._weights)
        own = self._bounds[column.key]
        return own if column.plain is None else max(own, self._least(column.plain))

    def _form(self, column: _Column) -> Form:
        if column.key not in self._forms:
            self._forms[column.key] = column.form()
        return self._forms[column.key]


def _form(graph: Graph) -> Form:
    """A prepared graph as it is planned."""
    return Form.of(with_known_kernels(graph))


def _order(written: Node, plan: Spread) -> Order:
    return plan[written].order if written in plan else identity(written.rank)


__all__ = ["LaidOut", "Layouts", "laid_out_by_price"]
