"""Applying the rules: operands first, each node until no rule applies, passes until none did.

Every rule leads to a smaller node by one fixed measure (fewer primitives, or the same ones with
views and broadcasts nearer to the results), so that this ends; who reaches a limit has found a
defect, and is told. Start with :func:`simplify`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Map, Primitive, Reshape
from tilewright.ir.verify import REPORT, VerificationError
from tilewright.rewrite.facts import Facts, Rule
from tilewright.rewrite.rules import RULES
from tilewright.shape import Scope

Trace = Callable[[str, Node, Node], None]
Observe = Callable[[str, Graph], None]
MOST_PASSES = 64  # of all rules over a graph; if that is not enough, rules undo each other
MOST_STEPS = 64  # rules applied per node of the graph, on average


def simplify(
    graph: Graph,
    trace: Trace | None = None,
    rules: Sequence[Rule] = RULES,
    observe: Observe | None = None,
) -> Graph:
    """A graph of the same meaning with the rules applied until none applies.

    Inputs, the names and types of outputs, the symbols of bindings, guards and scope stay as they
    are. ``trace`` is told the rule's name, the node before and the one after; ``observe`` is given
    the graph after every pass, with the pass's name.
    """
    labels = dict(graph.labels)
    table = _Rules(rules)
    current = graph
    for number in range(MOST_PASSES):
        rewriter = _Rewriter(current, labels, table, trace)
        following = rewriter.rebuilt(current)
        if following.roots == current.roots:
            break
        current = following
        if observe is not None:
            observe(f"simplify-{number + 1}", current)
    else:
        raise _endless(f"{MOST_PASSES} passes over {graph.name!r} were not enough")
    alive = set(current.nodes())
    return replace(current, labels={n: text for n, text in labels.items() if n in alive})


def _endless(why: str) -> VerificationError:
    return VerificationError(f"The rules of rewriting do not end: {why}", hint=REPORT)


class _Rules:
    """The rules by what they are for: a primitive, and of a Map its function."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._all = rules
        self._found: dict[tuple[type[Primitive], str], list[Rule]] = {}

    def of(self, primitive: Primitive) -> list[Rule]:
        """The rules that may apply to a node of ``primitive``, in order."""
        key = (type(primitive), primitive.function if isinstance(primitive, Map) else "")
        found = self._found.get(key)
        if found is None:
            found = [rule for rule in self._all if rule.is_for(primitive)]
            self._found[key] = found
        return found


class _Rewriter:
    """One pass. ``form`` maps every node seen to its simplified one, which maps to itself."""

    def __init__(
        self, graph: Graph, labels: dict[Node, str], rules: _Rules, trace: Trace | None
    ) -> None:
        nodes = graph.nodes()
        uses = Counter(i for n in nodes for i in n.inputs)
        uses.update(graph.roots)
        self.scope: Scope = graph.scope
        self.facts = Facts(graph.scope, uses)
        self.labels = labels
        self.rules = rules
        self.trace = trace
        self.form: dict[Node, Node] = {i: i for i in graph.inputs}
        self.steps_left = MOST_STEPS * (len(nodes) + 16)

    def rebuilt(self, graph: Graph) -> Graph:
        """The graph with every root simplified."""
        outputs = tuple((name, self.simplified(n)) for name, n in graph.outputs)
        bindings = tuple(replace(b, source=self.simplified(b.source)) for b in graph.bindings)
        measured = tuple(self.simplified(n) for n in graph.measured)
        return replace(graph, outputs=outputs, bindings=bindings, measured=measured)

    def simplified(self, root: Node) -> Node:
        """The form of ``root``, without recursion: graphs are deep."""
        stack, becomes = [root], dict[Node, Node]()
        while stack:
            current = stack[-1]
            if current in self.form:
                stack.pop()
            elif current in becomes:
                self.form[current] = self.form[becomes[current]]
            else:
                waiting = [i for i in current.inputs if i not in self.form]
                if waiting:
                    stack += reversed(waiting)
                    continue
                following = self._step(current)
                if following is current:
                    self.form[current] = current
                else:
                    going_round = following in becomes and following not in self.form
                    if going_round:
                        raise _endless(f"they undo each other at {following!r}")
                    becomes[current] = following
                    stack.append(following)
        return self.form[root]

    def _step(self, current: Node) -> Node:
        """``current`` on simplified operands, or else after one rule, or else itself."""
        operands = tuple(self.form[i] for i in current.inputs)
        if operands != current.inputs:
            following = node(current.primitive, *operands)
            self._check("operands", current, following)
            self._label(following, current)
            return following
        for rule in self.rules.of(current.primitive):
            found = rule.rewrite(current, self.facts)
            if found is None or found is current:
                continue
            following = self._fitted(rule.name, current, found)
            self._label(following, current)
            if self.trace is not None:
                self.trace(rule.name, current, following)
            self.steps_left -= 1
            if self.steps_left <= 0:
                raise _endless(f"the last one was {rule.name}")
            return following
        return current

    def _fitted(self, name: str, before: Node, after: Node) -> Node:
        """``after`` with the shape of ``before`` to the letter, so that users still fit."""
        self._check(name, before, after)
        return after if after.shape == before.shape else node(Reshape(before.shape), after)

    def _check(self, name: str, before: Node, after: Node) -> None:
        if before.type == after.type:
            return
        resolve = self.scope.resolve
        same = before.rank == after.rank and all(
            resolve(a) is resolve(b) for a, b in zip(before.shape, after.shape, strict=True)
        )
        assert same and before.dtype is after.dtype, f"{name}: {before!r} became {after!r}"

    def _label(self, made: Node, before: Node) -> None:
        """Give the nodes that a step made the label of the node it replaced."""
        text = self.labels.get(before)
        stack = [made] if text is not None else []
        while stack:
            current = stack.pop()
            if current in self.labels or current in self.form:
                continue
            assert text is not None
            self.labels[current] = text
            stack += current.inputs
