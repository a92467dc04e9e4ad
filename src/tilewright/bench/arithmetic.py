"""The least time that computing takes: what no memory, however fast, would make shorter.

Every function of a graph is counted once for each element that it has, every element that is
reduced once, and every tap of a window or of a convolution in groups; moving data, positions and
what a loop takes beside that count as nothing. Cycles are those of whole vectors (`LoopCosts`), of
which threads share all. May import cost, ir, plan, shape and target. Start with
`computing_seconds`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.cost.vector_work import Core
from tilewright.ir.graph import Graph, Node
from tilewright.ir.primitives import (
    ArgReduce,
    Cast,
    Contract,
    Convolve,
    Map,
    Reduce,
    Scan,
    Window,
)
from tilewright.ir.scalar import DIVISIONS
from tilewright.plan.quick import multiply_adds
from tilewright.shape import Expr, constant, product
from tilewright.target import Target
from tilewright.target.core_model import usual_core
from tilewright.target.loop_costs import LoopCosts


def computing_seconds(
    graph: Graph, sizes: Mapping[str, int], target: Target, threads: int
) -> float:
    """Seconds that ``threads`` cores of ``target`` compute at the given sizes of dimensions.

    0.0 where data decides how much there is.
    """
    costs = usual_core(target).loops
    cycles = 0.0
    for node in graph.nodes():
        steps, each = _work(node, target, costs)
        if not all(name in sizes for name in steps.free_symbols):
            return 0.0
        lanes = max(1, target.vector_bytes // max(_widest(node), 1))
        cycles += steps.evaluate(sizes) / lanes * each
    return cycles / (target.clock_ghz * 1e9 * min(threads, target.units))


def _widest(node: Node) -> int:
    """Bytes of the widest element that the node computes with."""
    return max(part.dtype.bytes for part in (node, *node.inputs))


def _work(node: Node, target: Target, costs: LoopCosts) -> tuple[Expr, float]:
    """How many elements pass through the vectors of a node, and the cycles of a vector."""
    own, operands = product(node.shape), node.inputs
    match node.primitive:
        case Map(function=function):
            return own, _function(function, node, costs)
        case Cast():
            same = operands[0].dtype.bytes == node.dtype.bytes
            return own, costs.instruction * (1.0 if same else costs.convert)
        case Reduce(kind=kind):
            return product(operands[0].shape), _combination(kind, costs)
        case ArgReduce() | Scan():
            return product(operands[0].shape), costs.instruction
        case Window(kind=kind, kernel=kernel):
            # Of every axis by itself: the others' results are shared by neighbouring windows.
            return own * sum(extent - 1 for extent in kernel), _combination(kind, costs)
        case Convolve() | Contract():
            return multiply_adds(node), Core(target, costs).multiply_add(node.dtype)
        case _:
            return constant(0), 0.0


def _function(name: str, node: Node, costs: LoopCosts) -> float:
    if name in DIVISIONS and node.dtype.is_integer:
        return costs.whole
    found = costs.function(name)
    if found is None:
        return costs.addition if name in ("add", "subtract") else costs.instruction
    return found * costs.double if node.dtype.bytes > 4 else found


def _combination(kind: str, costs: LoopCosts) -> float:
    return costs.addition if kind == "sum" else costs.instruction
