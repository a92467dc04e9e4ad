"""The forms of a graph between its import and its plan.

Each function is told what looks at every stage: ``rule`` at every rule that is applied, ``see`` at
every graph with the name of its stage. Start with :func:`simplified_graph`.
"""

from __future__ import annotations

from tilewright.ir.graph import Graph
from tilewright.ir.primitives import Constant, Contract, Convolve
from tilewright.plan.known import with_known_kernels
from tilewright.plan.prepare import prepare
from tilewright.rewrite import simplify
from tilewright.rewrite.channels_last import prefer_channels_last
from tilewright.rewrite.codes import weights_in_codes
from tilewright.rewrite.driver import Observe, Trace
from tilewright.rewrite.integers import integer_products
from tilewright.rewrite.pooled_bytes import pooled_bytes
from tilewright.rewrite.precision import Precision, narrow_products
from tilewright.rewrite.requantise import quotients_into_scales
from tilewright.rewrite.unsigned import without_signs
from tilewright.shape import product


def _nothing(_: str, __: Graph) -> None:
    pass


def simplified_graph(imported: Graph, rule: Trace | None = None, see: Observe = _nothing) -> Graph:
    """The graph in its simplest form, whose tensors are stored as the model has them."""
    graph = without_signs(quotients_into_scales(integer_products(pooled_bytes(imported))))
    graph = weights_in_codes(graph)
    if graph.roots != imported.roots:
        see("integers", graph)
    return simplify(graph, rule, observe=lambda stage, made: see(f"rewrite-{stage}", made))


def graph_by_rule(simplified: Graph, rule: Trace | None = None, see: Observe = _nothing) -> Graph:
    """The graph that is planned, with the layouts that the counting of conversions gives."""
    made = prefer_channels_last(simplified, rule, lambda stage, made: see(f"rewrite-{stage}", made))
    graph = prepare(made)
    see("prepare", graph)
    return graph


def graph_with_known(graph: Graph, see: Observe = _nothing) -> Graph:
    """The graph with constants in the place of what kernels would compute of constants alone."""
    known = with_known_kernels(graph)
    if known is not graph:
        see("known", known)
    return known


def weight_bytes(graph: Graph) -> int:
    """Bytes of the constants that products and convolutions of a graph read in each call."""
    weights = {
        operand: product(operand.shape).value * operand.dtype.bytes
        for node in graph.nodes()
        if isinstance(node.primitive, Contract | Convolve)
        for operand in node.inputs
        if isinstance(operand.primitive, Constant)
    }
    return sum(weights.values())


def narrowed_graph(imported: Graph, precision: str) -> Graph:
    """The graph in which products have the narrowest operands that a compiled model's may have."""
    return narrow_products(graph_by_rule(simplified_graph(imported)), Precision(precision))


__all__ = [
    "graph_by_rule",
    "graph_with_known",
    "narrowed_graph",
    "simplified_graph",
    "weight_bytes",
]
