"""Stitching kernels whose results one other kernel reads.

A product, the softmax of its rows and a product with the result become one kernel if they are an
attention (``ir/attention.py``), a product and what is made of its rows if the rows are all of its
columns (``ir/row_product.py``), a pointwise convolution and windows over its pixels if nothing
else reads these (``ir/window_product.py``). Start with :func:`stitched`.
"""

from __future__ import annotations

from tilewright.ir.attention import attention_of
from tilewright.ir.graph import Graph, Node
from tilewright.ir.kernel import Kernel, KernelKind, Plan, RowSpace
from tilewright.ir.row_product import row_product_of
from tilewright.ir.window_product import is_channel_window, is_pixel_product
from tilewright.plan.inline import cost
from tilewright.plan.legality import Legality

POSITIONS_LIMIT = 16  # operations on positions that an attention repeats for every score


def stitched(graph: Graph, plan: Plan) -> Plan:
    """The plan in which kernels that can be one are; in the place of the last of them."""
    plan = _with_row_products(graph, _with_attentions(graph, plan))
    return _with_window_products(graph, plan)


# ---------------------------------------------------------------- attention


def _with_attentions(graph: Graph, plan: Plan) -> Plan:
    order = {node: number for number, node in enumerate(graph.nodes())}
    legality = Legality(graph.scope)
    kernels: dict[Kernel, None] = dict.fromkeys(plan.kernels)
    readers = _readers(plan)
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
        whole = last.part(found.seeds, last.outputs, memory, order.__getitem__)
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


def _readers(plan: Plan) -> dict[Node, list[Kernel]]:
    """The kernels that read what is in memory."""
    found: dict[Node, list[Kernel]] = {}
    for kernel in plan.kernels:
        for read in kernel.reads:
            found.setdefault(read, []).append(kernel)
    return found


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


# ---------------------------------------------------------------- rows of products


def _with_row_products(graph: Graph, plan: Plan) -> Plan:
    """The plan in which a product is one kernel with the rows that are made of it.

    What others read as well of the product stays a result. They come after the whole then: nothing
    between its two parts may read it.
    """
    order = {node: number for number, node in enumerate(graph.nodes())}
    place = {kernel: number for number, kernel in enumerate(plan.kernels)}
    legality, readers, roots = Legality(graph.scope), _readers(plan), set(graph.roots)
    made_by = {
        output: kernel
        for kernel in plan.kernels
        if kernel.kind is KernelKind.CONTRACTION
        for output in kernel.outputs
    }
    replaced: dict[Kernel, Kernel | None] = {}
    for last in plan.kernels:
        firsts = dict.fromkeys(made_by[read] for read in last.reads if read in made_by)
        if last.kind is not KernelKind.ROWS:
            continue
        for first in firsts:
            others = [k for output in first.outputs for k in readers.get(output, ()) if k != last]
            if first in replaced or any(place[other] < place[last] for other in others):
                continue
            kept = (o for o in first.outputs if o in roots or _has_other(readers[o], last))
            outputs = (*kept, *last.outputs)
            memory = {*first.reads, *last.reads} - {*first.outputs}
            seeds = (first.seed, *last.seeds)
            whole = first.part(seeds, outputs, memory, order.__getitem__)
            if _has_columns(graph, whole) and legality.reason(whole) is None:
                replaced |= {first: None, last: whole}
                break
    return Plan(tuple(k for old in plan.kernels if (k := replaced.get(old, old)) is not None))


def _has_other(readers: list[Kernel], one: Kernel) -> bool:
    return any(reader is not one for reader in readers)


def _has_columns(graph: Graph, whole: Kernel) -> bool:
    """Whether rows always have an element: a product without columns has no task that ends them."""
    parts = row_product_of(whole)
    if parts is None:
        return False
    space = RowSpace.of(parts.last.seed)
    sizes = [space.shape[axis] for axis in space.axes]
    lows = (graph.scope.bounds(size).low for size in sizes)
    return all(low is not None and low > 0 for low in lows)


# ---------------------------------------------------------------- windows over products


def _with_window_products(graph: Graph, plan: Plan) -> Plan:
    """The plan in which a pointwise convolution is one kernel with the windows over its pixels."""
    order = {node: number for number, node in enumerate(graph.nodes())}
    legality, readers, roots = Legality(graph.scope), _readers(plan), set(graph.roots)
    alone = {
        kernel.outputs[0]: kernel
        for kernel in plan.kernels
        if kernel.kind is KernelKind.CONTRACTION and len(kernel.outputs) == 1
        and is_pixel_product(kernel.seed) and kernel.outputs[0] not in roots
        and len(readers.get(kernel.outputs[0], ())) == 1
    }  # fmt: skip
    replaced: dict[Kernel, Kernel | None] = {}
    for last in plan.kernels:
        if last.kind is not KernelKind.WINDOW or not is_channel_window(last.seed):
            continue
        for first in [alone[read] for read in last.reads if read in alone]:
            memory = {*first.reads, *last.reads} - {*first.outputs}
            seeds = (first.seed, last.seed)
            whole = first.part(seeds, last.outputs, memory, order.__getitem__)
            if legality.reason(whole) is None:
                replaced |= {first: None, last: whole}
                break
    return Plan(tuple(k for old in plan.kernels if (k := replaced.get(old, old)) is not None))
