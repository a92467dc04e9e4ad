"""A product and reductions over its rows among primitives: a projection and its normalisation.

    shown[b, m, n] = any elementwise function of sums over k of left[b, m, k] * right[b, k, n]
    rows           = reductions of shown over all of n, and what is made of rows with them

Such a group of nodes can be computed block of rows by block of rows: if a block has all columns,
what its rows are reduced to is known as soon as its sums are, while they are in cache. It is found
by its structure alone, whatever the reductions are for. Start with :func:`row_product_of`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.access import below_reshapes
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel, RowSpace
from tilewright.ir.primitives import Cast, Contract, Map, Reduce
from tilewright.shape import Expr, constant, product


@dataclass(frozen=True)
class RowProduct:
    """The two kernels that a kernel of a product and of reductions over its rows is made of.

    ``first`` writes ``shown``, perhaps with more results, and ``last`` reads it. If others read it
    as well, it is a result of the whole.
    """

    first: Kernel
    last: Kernel
    shown: Node


def row_product_of(kernel: Kernel) -> RowProduct | None:
    """The product and the rows that ``kernel`` is made of, if its reductions go along its rows."""
    seed, *reductions = kernel.seeds
    if not isinstance(seed.primitive, Contract) or not reductions:
        return None
    if not all(isinstance(reduction.primitive, Reduce) for reduction in reductions):
        return None
    shown = _shown(kernel)
    if shown is None or not _are_rows(seed, shown, RowSpace.of(reductions[0])):
        return None
    order = {node: number for number, node in enumerate((*kernel.reads, *kernel.body))}
    reduced = _dependent(kernel, frozenset(reductions))
    above = _dependent(kernel, frozenset((shown,))) - {shown}
    own = tuple(o for o in kernel.outputs if o not in reduced | above and o is not shown)
    results = tuple(o for o in kernel.outputs if o in reduced | above)
    place, memory = order.__getitem__, {*kernel.reads, shown, *own}
    first = kernel.part((seed,), (shown, *own), kernel.reads, place)
    last = kernel.part(tuple(reductions), results, memory, place)
    return RowProduct(first, last, shown)


def _shown(kernel: Kernel) -> Node | None:
    """The last node through which alone what the rows are made of comes from the product.

    It has an element for each of the product's sums, in their order.
    """
    seed, *reductions = kernel.seeds
    through: dict[Node, tuple[Node, ...]] = {seed: (seed,)}  # nodes that every way passes
    for current in kernel.body:
        ways = [through[operand] for operand in current.inputs if operand in through]
        if ways and current is not seed:
            common = [n for n in ways[0] if all(n in way for way in ways[1:])]
            through[current] = (*common, current)
    reduced = _dependent(kernel, frozenset(reductions))
    ends = [n for n in (*reductions, *kernel.outputs) if n in reduced and n in through]
    if not ends or not all(reduction in through for reduction in reductions):
        return None
    shared = [n for n in through[ends[0]] if all(n in through[end] for end in ends)]
    fitting = [n for n in shared if n not in reduced and _is_of_sums(n, seed)]
    return fitting[-1] if fitting else None


def _is_of_sums(node: Node, seed: Node) -> bool:
    base = below_reshapes(node, (seed,))
    return base.shape == seed.shape and (base is seed or isinstance(base.primitive, Map | Cast))


def _dependent(kernel: Kernel, roots: frozenset[Node]) -> set[Node]:
    """Those of a kernel's nodes that are made of some, and these."""
    found: set[Node] = set(roots)
    for current in kernel.body:
        if not found.isdisjoint(current.inputs):
            found.add(current)
    return found


def _are_rows(seed: Node, shown: Node, space: RowSpace) -> bool:
    """Whether rows of ``space`` are those of the product, one behind the other."""
    batch, rows, columns = _sizes(seed)
    if space.shape != shown.shape or (batch and shown.shape != seed.shape):
        return False
    reduced = [a for a in space.wide if a in space.axes]
    if not reduced or (space.kept and space.kept[-1] > reduced[0]):
        return False
    kept = product([space.shape[a] for a in space.kept])
    width = product([space.shape[a] for a in reduced])
    return kept is product([*batch, *rows]) and width is product(columns)


def _sizes(seed: Node) -> tuple[list[Expr], list[Expr], list[Expr]]:
    """The sizes of a Contract's result: along the batch, its rows and its columns."""
    primitive, sizes = seed.primitive, list(seed.shape)
    assert isinstance(primitive, Contract)
    batch = len(primitive.batch)
    rows = batch + seed.inputs[0].rank - batch - len(primitive.summed)
    one = constant(1)
    return [s for s in sizes[:batch] if s is not one], sizes[batch:rows], sizes[rows:]
