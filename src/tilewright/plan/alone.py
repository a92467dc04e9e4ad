"""A part of a graph as a graph of its own, whose inputs are what it reads.

Start with :func:`alone`, which does that for a kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, expressions_of, node, same, topological
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Constant, Input
from tilewright.shape import symbol


def alone(graph: Graph, kernel: Kernel) -> tuple[Graph, Kernel]:
    """The graph whose inputs are what a kernel of ``graph`` reads, and the kernel that computes it.

    Constants stay what they are. Inputs that nothing reads, one for each dimension, follow: a
    dimension may be part of larger sizes only, which do not tell it.
    """
    made = as_inputs(read for read in kernel.reads if not isinstance(read.primitive, Constant))
    of_data = tuple(made.values())
    labels: dict[Node, str] = {}
    rebuild((*kernel.reads, *kernel.body), made, graph.labels, labels)
    named = {s for n in (*kernel.reads, *kernel.body) for e in expressions_of(n)
             for s in e.free_symbols}  # fmt: skip
    sizes = [node(Input(f"size_{name}", DType.UINT8, (symbol(name),))) for name in sorted(named)]
    outputs = tuple((f"result_{n}", made[output]) for n, output in enumerate(kernel.outputs))
    own_graph = Graph(graph.name, (*of_data, *sizes), outputs, graph.scope, labels=labels)
    parts = (kernel.seeds, kernel.body, kernel.reads, kernel.outputs)
    seeds, body, reads, results = (tuple(made[n] for n in part) for part in parts)
    return own_graph, Kernel(seeds, body, reads, results, kernel.label, labels)


def as_inputs(reads: Iterable[Node]) -> dict[Node, Node]:
    """An input for each node that is read, named by their order."""
    return {
        read: node(Input(f"read_{number}", read.dtype, read.shape))
        for number, read in enumerate(reads)
    }


def rebuild(
    roots: Iterable[Node],
    made: dict[Node, Node],
    names: Mapping[Node, str],
    labels: dict[Node, str],
) -> None:
    """Make nodes again on top of what is ``made``, with their names as ``labels``."""
    for current in topological(roots, lambda n: () if n in made else n.inputs):
        if current not in made:
            made[current] = same(current, tuple(made[i] for i in current.inputs))
        if current in names:
            labels.setdefault(made[current], names[current])


__all__ = ["alone", "as_inputs", "rebuild"]
