"""Kernels that read nothing of a call are computed when compiling.

Such are tables that a model makes of constants and known sizes: the cosines and sines of a Fourier
transform, positions, masks. Folding leaves them alone, since it cannot tell whether a large tensor
would ever be in memory; the plan does. Start with :func:`with_known_kernels`.
"""

from __future__ import annotations

import math

from tilewright.ir.evaluate import Array, evaluate_node
from tilewright.ir.graph import Graph, Node, expressions_of, mapped, node, same
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Constant, Input, Opaque, Project
from tilewright.plan.greedy import plan_greedily
from tilewright.support.errors import ExecutionError

MOST_ELEMENTS = 1 << 22  # of one tensor; beyond, computing it anew takes less than reading it


def with_known_kernels(graph: Graph) -> Graph:
    """The graph with constants in the place of what kernels of constants compute.

    Kernels are those of the greedy plan. It is ``graph`` itself where none is known. Results of the
    graph are left alone: they would be copied from the artifact in the time that computing them
    takes.
    """
    kept = {*graph.roots, *graph.measured, *(binding.source for binding in graph.bindings)}
    values: dict[Node, Array] = {}
    for kernel in plan_greedily(graph).kernels:
        if kept.isdisjoint(kernel.body) and _is_known(kernel, values):
            values |= _computed(kernel, values)
    if not values:
        return graph

    def change(current: Node, operands: tuple[Node, ...]) -> Node:
        if current in values:
            return node(Constant.of(values[current], current.dtype))
        return same(current, operands)

    return mapped(graph, change)


def _is_known(kernel: Kernel, values: dict[Node, Array]) -> bool:
    """Whether all that a kernel reads is known, and all that it computes is small enough."""
    return all(
        read in values or isinstance(read.primitive, Constant) for read in kernel.reads
    ) and all(_is_small(current) for current in kernel.body)


def _is_small(current: Node) -> bool:
    if isinstance(current.primitive, Input | Opaque | Project) or not current.dtype.is_native:
        return False
    sizes = [*current.shape, *expressions_of(current)]
    if not all(size.is_constant for size in sizes):
        return False
    return math.prod(size.value for size in current.shape) <= MOST_ELEMENTS


def _computed(kernel: Kernel, values: dict[Node, Array]) -> dict[Node, Array]:
    """The results of a kernel; none if computing them fails, which a call is to report."""
    known = {r: values[r] if r in values else _contents(r) for r in kernel.reads}
    try:
        for current in kernel.body:
            if current not in known:
                known[current] = evaluate_node(
                    current, [known[i] for i in current.inputs], {}, {}, None
                )
    except ExecutionError:
        return {}
    return {output: known[output] for output in kernel.outputs}


def _contents(constant: Node) -> Array:
    assert isinstance(constant.primitive, Constant)
    return constant.primitive.array


__all__ = ["with_known_kernels"]
