"""Stitching kernels whose results one other kernel reads alone.

A product, the softmax of its rows and a product with the result become one kernel if they are an
attention (``ir/attention.py``). Start with :func:`stitched`.
"""

from __future__ import annotations

from tilewright.ir.attention import attention_of
from tilewright.ir.graph import Graph, Node
from tilewright.ir.kernel import Kernel, KernelKind, Plan, kernel_of
from tilewright.plan.inline import cost
from tilewright.plan.legality import Legality

POSITIONS_LIMIT = 16  # operations on positions that an attention repeats for every score


def stitched(graph: Graph, plan: Plan) -> Plan:
    """The plan in which kernels that can be one are; in the place of the last of them."""
    order = {node: number for number, node in enumerate(graph.nodes())}
    legality = Legality(graph.scope)
    kernels: dict[Kernel, None] = dict.fromkeys(plan.kernels)
    readers: dict[Node, list[Kernel]] = {}
    for kernel in kernels:
        for read in kernel.reads:
            readers.setdefault(read, []).append(kernel)
    alone = {
        kernel.outputs[0]: kernel
        for kernel in kernels
        if len(kernel.outputs) == 1
        and kernel.outputs[0] not in graph.roots
        and len(readers.get(kernel.outputs[0], ())) == 1
    }
    of_positions = {k.outputs[0] for k in kernels if _is_of_positions(k)}
    replaced: dict[Kernel, Kernel | None] = {}
    for last in kernels:
        middle = _makes_left(last, alone)
        first = None if middle is None else _reads_product(middle, alone)
        if middle is None or first is None:
            continue
        found = attention_of(first.seed, last.seed, {*first.body, *middle.body})
        if found is None:
            continue
        memory = {*first.reads, *middle.reads, *last.reads} - {*first.outputs, *middle.outputs}
        memory -= of_positions
        whole = kernel_of(found.seeds, last.outputs, memory, order.__getitem__, last.label)
        if legality.reason(whole) is None:
            replaced |= {first: None, middle: None, last: whole}
    made = [k for old in kernels if (k := replaced.get(old, old)) is not None]
    wanted = {*graph.roots, *(read for kernel in made for read in kernel.reads)}
    return Plan(
        tuple(
            k
            for k in made
            if not of_positions.issuperset(k.outputs) or not wanted.isdisjoint(k.outputs)
        )
    )


def _is_of_positions(kernel: Kernel) -> bool:
    """Whether a kernel computes something cheap from positions alone, such as a causal mask.

    An attention computes that itself, and then sees which keys it hides.
    """
    alone = kernel.kind is KernelKind.LOOPS and not kernel.reads and len(kernel.outputs) == 1
    return alone and cost(kernel.outputs[0], ()) <= POSITIONS_LIMIT


def _makes_left(last: Kernel, alone: dict[Node, Kernel]) -> Kernel | None:
    """The kernel of rows that makes the left operand of a product for it alone."""
    if last.kind is not KernelKind.CONTRACTION:
        return None
    middle = alone.get(last.seed.inputs[0])
    return middle if middle is not None and middle.kind is KernelKind.ROWS else None


def _reads_product(middle: Kernel, alone: dict[Node, Kernel]) -> Kernel | None:
    """The product that is made for a kernel of rows alone."""
    found = [alone[read] for read in middle.reads if read in alone]
    products = [kernel for kernel in found if kernel.kind is KernelKind.CONTRACTION]
    return products[0] if len(products) == 1 else None
