"""Rewriting guided by price: a bounded best-first search among other forms of a graph.

Korch (section 3) lets a superoptimiser rewrite the primitive graph before kernels are chosen, after
TASO (Jia and others, SOSP 2019), whose search takes the cheapest graph first and goes on from one
that is a little dearer. Here the search is local: around each place to which an alternative applies
(``rewrite.menu``) the kernels that it changes and those beside them are a small graph of its own.
That is rewritten, planned and priced, at shapes spread over the declared ranges, and put back if
the kernels that are not in both plans have become cheaper by more than the error of prices in the
mean, and at no shape dearer by more than can be measured. Places that are alike, as in the layers
of a model, are decided once. Start with :func:`rewritten_by_price`.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from tilewright.ir.graph import Graph, Node
from tilewright.ir.kernel import Kernel, KernelKind, Plan, kernel_of
from tilewright.ir.primitives import Constant
from tilewright.plan.alone import as_inputs, rebuild
from tilewright.plan.choosing import Array
from tilewright.plan.forms import Form, FormPrices, is_worth_it, summary_of, summary_text
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.prepare import prepare
from tilewright.plan.problem import made_by
from tilewright.rewrite import simplify
from tilewright.rewrite.alternatives import Alternative, Site, View, replaced
from tilewright.rewrite.menu import ALTERNATIVES
from tilewright.tile.alike import LoweringOnce, outline_key

MOST_GRAPHS = 6  # that are priced around one place
DEARER = 1.25  # times the price of the best graph: what is dearer is not rewritten further

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Applied:
    """Alternatives that were applied around one place, one after the other, and where.

    ``saves`` is the share by which the kernels that change become cheaper, in the mean over
    representative points and as the least and the greatest of them; ``label`` names the operators.
    """

    rules: tuple[str, ...]
    label: str
    saves: float
    least: float
    most: float

    def __str__(self) -> str:
        share = summary_text(self.saves, self.least, self.most)
        return f"{' + '.join(self.rules)} at {self.label}: {share}"


@dataclass(frozen=True)
class Rewriting:
    """A graph after alternatives were applied, and which; ``tried`` graphs were priced for it."""

    graph: Graph
    applied: tuple[Applied, ...] = ()
    tried: int = 0


def rewritten_by_price(
    graph: Graph,
    lowerings: Sequence[LoweringOnce],
    alternatives: Sequence[Alternative] = ALTERNATIVES,
) -> Rewriting:
    """The cheapest form of a prepared graph that is found, by the machines of ``lowerings``.

    Prices of several machines count alike.
    """
    found = any(True for rule in alternatives for _ in rule.found(View(graph)))
    if not found:
        return Rewriting(graph)
    return _Rewriter(graph, lowerings, alternatives).found()


@dataclass(frozen=True)
class _Decision:
    """What is done at places that are alike; nothing, if there are no steps."""

    steps: tuple[tuple[str, int], ...]
    outcome: object
    change: Array


class _Rewriter:
    def __init__(
        self,
        graph: Graph,
        lowerings: Sequence[LoweringOnce],
        alternatives: Sequence[Alternative],
    ) -> None:
        self._graph = graph
        self._alternatives = alternatives
        self._prices = FormPrices(graph, lowerings)
        self._known: dict[object, _Decision] = {}
        self._tried = 0

    def found(self) -> Rewriting:
        """The graph with all places decided, the last ones first.

        What lies before a place is then the same node as in the plan that tells the kernels.
        """
        plan = plan_greedily(self._graph)
        applied: list[Applied] = []
        current = self._graph
        for kernels in reversed(self._places(plan)):
            place = _Place.of(current, kernels)
            if place is None:
                continue
            decision = self._decided(place)
            if not decision.steps:
                continue
            made = self._repeated(place.graph, decision)
            if made is None:
                continue
            current = place.put_back(current, made)
            applied.append(_report(decision, place))
        whole = prepare(simplify(current))
        if not applied or not self._is_cheaper(plan, whole):
            return Rewriting(self._graph, (), self._tried)
        return Rewriting(whole, tuple(reversed(applied)), self._tried)

    def _sites(self, graph: Graph) -> list[tuple[tuple[str, int], Site]]:
        view = View(graph)
        return [
            ((rule.name, number), site)
            for rule in self._alternatives
            for number, site in enumerate(rule.found(view))
        ]

    def _places(self, plan: Plan) -> list[list[Kernel]]:
        """The kernels around sites, in the order of the plan; sites that share one are together."""
        kernels = plan.kernels
        by_node: dict[Node, list[int]] = {}
        for number, kernel in enumerate(kernels):
            for member in kernel.body:
                by_node.setdefault(member, []).append(number)
        groups: list[set[int]] = []
        for _, site in self._sites(self._graph):
            if _is_done(site, kernels):
                continue
            touched = {number for n in site.replaced for number in by_node.get(n, ())}
            for group in [group for group in groups if group & touched]:
                touched |= group
                groups.remove(group)
            groups.append(touched)
        writer = {output: n for n, kernel in enumerate(kernels) for output in kernel.outputs}
        found: list[list[Kernel]] = []
        needs = [
            {writer[s] for s in map(made_by, k.reads) if s in writer} - {n}
            for n, k in enumerate(kernels)
        ]
        for group in sorted((group for group in groups if group), key=min):
            beside = {other for number in group for other in needs[number]}
            beside |= {n for n, own in enumerate(needs) if own & group}
            found.append([kernels[n] for n in _convex(group | beside, needs)])
        return found

    # ------------------------------------------------------------ one place

    def _decided(self, place: _Place) -> _Decision:
        if place.key not in self._known:
            self._known[place.key] = self._searched(place.graph)
        return self._known[place.key]

    def _searched(self, graph: Graph) -> _Decision:
        """The steps to the cheapest form that is worth it."""
        first = best = Form.of(graph, ())
        base = np.maximum(self._prices.of(first.kernels, first.counts), 1.0)
        change = np.zeros_like(base)
        least = 1.0
        number = count()
        waiting = [(1.0, next(number), first)]
        seen = {graph.roots}
        tried = 0
        while waiting and tried < MOST_GRAPHS:
            price, _, form = heapq.heappop(waiting)
            if price > DEARER * least:
                break
            for form_after in self._following(form, seen):
                bound = float(
                    np.mean(self._prices.bound(form_after.kernels, form_after.counts) / base)
                )
                if bound > DEARER * least or tried == MOST_GRAPHS:
                    continue
                tried += 1
                made = self._prices.of(form_after.kernels, form_after.counts)
                mean = float(np.mean(made / base))
                heapq.heappush(waiting, (mean, next(number), form_after))
                own = self._prices.change(first, form_after)
                _LOG.debug(
                    "rewriting %s: %.4f of the price, %s", form_after.steps, mean, own.round(3)
                )
                if mean < least and is_worth_it(own):
                    least, best, change = mean, form_after, own
        self._tried += tried
        return _Decision(best.steps, _outcome(best.graph), change)

    def _following(self, form: Form, seen: set[tuple[Node, ...]]) -> Iterator[Form]:
        for step, site in self._sites(form.graph):
            if _is_done(site, form.kernels.values()):
                continue
            graph = _applied(form.graph, site)
            if graph.roots not in seen:
                seen.add(graph.roots)
                yield Form.of(graph, (*form.steps, step))

    def _repeated(self, graph: Graph, decision: _Decision) -> Graph | None:
        """The form of a graph that is like one for which the steps were found."""
        for step in decision.steps:
            site = next((site for own, site in self._sites(graph) if own == step), None)
            if site is None:
                return None
            graph = _applied(graph, site)
        return graph if _outcome(graph) == decision.outcome else None

    def _is_cheaper(self, plan: Plan, whole: Graph) -> bool:
        """Whether the whole graph has become cheaper: it is planned as a whole afterwards."""
        before = Form.of_kernels(self._graph, (), plan.kernels)
        change = self._prices.change(before, Form.of(whole, ()))
        return bool(np.mean(change) > 0)


@dataclass(frozen=True)
class _Place:
    """Kernels of a graph as a graph of its own, whose inputs are what they read."""

    graph: Graph
    reads: Mapping[Node, Node]  # what each input stands for
    results: tuple[Node, ...]  # of the whole graph, in the order of the outputs
    key: object

    @staticmethod
    def of(whole: Graph, kernels: Sequence[Kernel]) -> _Place | None:
        """The place of kernels whose results still are in the graph; None if it is not convex."""
        nodes = whole.nodes()
        order = {current: number for number, current in enumerate(nodes)}
        kept = [
            kernel
            for kernel in kernels
            if kernel.kind is not KernelKind.OPAQUE and order.keys() >= {*kernel.outputs}
        ]
        written = {output for kernel in kept for output in kernel.outputs}
        reads = dict.fromkeys(read for kernel in kept for read in kernel.reads)
        outside = [r for r in reads if r not in written and not isinstance(r.primitive, Constant)]
        if not written or _any_after(nodes, written, outside):
            return None
        inside = {member for kernel in kept for member in kernel.body}
        results = tuple(o for o in sorted(written, key=order.__getitem__))
        results = _leaving(whole, nodes, inside, results)
        made = as_inputs(outside)
        inputs = {made[read]: read for read in outside}
        labels: dict[Node, str] = {}
        rebuild(results, made, whole.labels, labels)
        outputs = tuple((f"result_{n}", made[result]) for n, result in enumerate(results))
        own = Graph(whole.name, tuple(inputs), outputs, whole.scope, labels=labels)
        return _Place(own, inputs, results, _outcome(own))

    def put_back(self, whole: Graph, form: Graph) -> Graph:
        """The whole graph with another form of this place."""
        made: dict[Node, Node] = dict(self.reads)
        labels = dict(whole.labels)
        roots = [root for _, root in form.outputs]
        rebuild(roots, made, form.labels, labels)
        instead = {old: made[new] for old, new in zip(self.results, roots, strict=True)}
        return replaced(replace(whole, labels=labels), instead)


def _any_after(nodes: Sequence[Node], written: set[Node], reads: Iterable[Node]) -> bool:
    """Whether something that is read depends on what is written."""
    after = set(written)
    for current in nodes:
        if not after.isdisjoint(current.inputs):
            after.add(current)
    return not after.isdisjoint(reads)


def _leaving(
    whole: Graph, nodes: Sequence[Node], inside: set[Node], written: Sequence[Node]
) -> tuple[Node, ...]:
    """Of what kernels write, what anything but these kernels may read."""
    leaves = set(whole.roots)
    own = set(written)
    for current in reversed(nodes):
        if current not in inside or (current in leaves and current not in own):
            leaves.update(current.inputs)
    return tuple(current for current in written if current in leaves)


def _convex(numbers: set[int], needs: Sequence[set[int]]) -> list[int]:
    """Kernels, by number in their order, with all that lie between two of them."""
    after, before = set(numbers), set(numbers)
    for number, own in enumerate(needs):
        if own & after:
            after.add(number)
    for number in reversed(range(len(needs))):
        if number in before:
            before |= needs[number]
    return sorted(after & before)


def _is_done(site: Site, kernels: Iterable[Kernel]) -> bool:
    """Whether a site is within an attention, which divides its sums and not its weights anyway."""
    bodies = (kernel.body for kernel in kernels if kernel.kind is KernelKind.ATTENTION)
    return site.replaced.keys() <= {member for body in bodies for member in body}


def _applied(graph: Graph, site: Site) -> Graph:
    """A small graph after a rule, in the form that is planned."""
    return prepare(simplify(replaced(graph, site.replaced)))


def _outcome(graph: Graph) -> object:
    """What is equal of graphs that differ in names and contents of constants alone."""
    order = {current: number for number, current in enumerate(graph.nodes())}
    outputs = tuple(root for _, root in graph.outputs)
    return outline_key(kernel_of((), outputs, {*graph.inputs}, order.__getitem__, "", {}))


def _report(decision: _Decision, place: _Place) -> Applied:
    labels = place.graph.labels
    label = labels.get(place.graph.outputs[-1][1], "")
    rules = tuple(name for name, _ in decision.steps)
    return Applied(rules, label, *summary_of(decision.change))


__all__ = ["Applied", "Rewriting", "rewritten_by_price"]
