"""The last step of importing: facts learnt late are written into the whole graph.

While nodes are imported, two sizes may turn out to be equal: dimensions, or what is computed of
them. :func:`finished` rebuilds the graph with one of them in the place of the other everywhere, so
that equal shapes are the same objects, and no reshape stands between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from tilewright.ir import make
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Binding, Graph, Node, expressions_of, node, topological
from tilewright.ir.primitives import (
    Broadcast,
    Input,
    Primitive,
    PrimitiveError,
    Project,
    Reshape,
)
from tilewright.ir.sizes import with_sizes
from tilewright.shape import Expr, symbol


def finished(graph: Graph, opaque: Sequence[Node] = ()) -> Graph:
    """The graph with the equalities of its scope applied to all its sizes.

    Those of inputs stay patterns from which dimensions are found: only their symbols are replaced.
    No size comes to depend on what is found later than what it depended on before, and a node that
    decides a size keeps it, so that a call finds out whether both agree. ``opaque`` are
    the opaque nodes in the order in which they were made: those that decide a size which anything
    names become measured ones.
    """
    graph = _with_measured(graph, opaque)
    known = {s for n in graph.inputs for e in n.shape for s in e.free_symbols}
    known.update(graph.scope.definitions)
    replaced: dict[str, Expr] = {}
    for name in sorted(known):
        value = graph.scope.resolve(symbol(name))
        if value is not symbol(name) and set(value.free_symbols) <= known:
            replaced[name] = value
    graph = replace(graph, guards=tuple(dict.fromkeys(graph.guards)))

    def resolved(size: Expr) -> Expr:
        found = graph.scope.resolve(size)
        is_known = set(found.free_symbols) <= known.union(size.free_symbols)
        return found if is_known else size.substitute(replaced)

    deciders = graph.deciders

    def changed(current: Node) -> Primitive:
        if isinstance(current.primitive, Input):
            return with_sizes(current.primitive, lambda size: size.substitute(replaced))

        source = current.inputs[0] if isinstance(current.primitive, Project) else current

        def size_of(size: Expr) -> Expr:
            decides = any(deciders.get(name) is source for name in size.free_symbols)
            return size if decides else resolved(size)

        return with_sizes(current.primitive, size_of)

    try:
        return _rebuilt(graph, changed)
    except PrimitiveError:
        return graph


def _with_measured(graph: Graph, opaque: Sequence[Node]) -> Graph:
    """The graph with the opaque nodes that decide the sizes it names."""
    if not opaque:
        return graph
    deciders = replace(graph, measured=tuple(opaque)).deciders
    taken: set[Node] = set()
    while True:
        expressions = [e for n in graph.nodes() for e in expressions_of(n)]
        expressions += [guard.condition for guard in graph.guards]
        resolved = [graph.scope.resolve(e) for e in expressions]
        named = {s for e in expressions + resolved for s in e.free_symbols}
        found = {deciders[s] for s in named if s in deciders}
        if found <= taken:
            return graph
        taken |= found
        graph = replace(graph, measured=tuple(n for n in opaque if n in taken))


def _rebuilt(graph: Graph, changed: Callable[[Node], Primitive]) -> Graph:
    new: dict[Node, Node] = {}
    for current in topological((*graph.inputs, *graph.roots)):
        operands = tuple(new[i] for i in current.inputs)
        new[current] = _made(changed(current), operands)
    labels: dict[Node, str] = {}
    for old, text in graph.labels.items():
        if old in new:
            labels.setdefault(new[old], text)
    return Graph(
        graph.name,
        tuple(new[i] for i in graph.inputs),
        tuple((name, new[n]) for name, n in graph.outputs),
        graph.scope,
        tuple(Binding(new[b.source], b.symbols) for b in graph.bindings),
        graph.guards,
        labels,
        tuple(new[n] for n in graph.measured),
    )


def _made(primitive: Primitive, operands: Sequence[Node]) -> Node:
    """The node; the operand itself where sizes turned out so that nothing is to be done.

    Rewriting looks for forms without such nodes: behind a batch of one that broadcasts to one, no
    product of integers would be found.
    """
    if isinstance(primitive, Broadcast):
        return make.broadcast(operands[0], primitive.shape, primitive.axes)
    if isinstance(primitive, Reshape):
        return make.reshape(operands[0], primitive.shape)
    return node(primitive, *operands)


def input_names(value: Node) -> list[str]:
    """The graph inputs that ``value`` depends on."""
    return [n.primitive.name for n in topological((value,)) if isinstance(n.primitive, Input)]


def deciding_inputs(operands: Iterable[Node | None]) -> tuple[str, ...]:
    """The integer and bool graph inputs that the integer and bool operands depend on."""
    names: dict[str, None] = {}
    for operand in operands:
        if operand is None or not (operand.dtype.is_integer or operand.dtype is DType.BOOL):
            continue
        for current in topological((operand,)):
            if isinstance(current.primitive, Input) and (
                current.dtype.is_integer or current.dtype is DType.BOOL
            ):
                names[current.primitive.name] = None
    return tuple(names)
