"""A kernel as a graph of its own, whose inputs are what it reads. Start with :func:`alone`."""

from __future__ import annotations

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, expressions_of, node, same
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Constant, Input
from tilewright.shape import symbol


def alone(graph: Graph, kernel: Kernel) -> tuple[Graph, Kernel]:
    """The graph whose inputs are what a kernel of ``graph`` reads, and the kernel that computes it.

    Constants stay what they are. Inputs that nothing reads, one for each dimension, follow: a
    dimension may be part of larger sizes only, which do not tell it.
    """
    made: dict[Node, Node] = {}
    for read in kernel.reads:
        is_constant = isinstance(read.primitive, Constant)
        own = Input(f"read_{len(made)}", read.dtype, read.shape)
        made[read] = read if is_constant else node(own)
    for current in kernel.body:
        made[current] = same(current, tuple(made.get(i, i) for i in current.inputs))
    of_data = [made[read] for read in kernel.reads if made[read] is not read]
    named = {s for n in (*kernel.reads, *kernel.body) for e in expressions_of(n)
             for s in e.free_symbols}  # fmt: skip
    sizes = [node(Input(f"size_{name}", DType.UINT8, (symbol(name),))) for name in sorted(named)]
    outputs = tuple((f"result_{n}", made[output]) for n, output in enumerate(kernel.outputs))
    labels = {made[n]: graph.labels[n] for n in kernel.body if n in graph.labels}
    own_graph = Graph(graph.name, (*of_data, *sizes), outputs, graph.scope, labels=labels)
    parts = (kernel.seeds, kernel.body, kernel.reads, kernel.outputs)
    seeds, body, reads, results = (tuple(made[n] for n in part) for part in parts)
    return own_graph, Kernel(seeds, body, reads, results, kernel.label)


__all__ = ["alone"]
