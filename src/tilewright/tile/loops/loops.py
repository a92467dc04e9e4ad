"""Kernels without reuse: one value per output element.

The axes of the output become loops; neighbouring axes that every access walks contiguously are
collapsed into one; the last loop is cut into chunks, and all but the chunk is the grid. Start with
:func:`lower_loops`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import ArgReduce, Contract, Convolve, Reduce, Reshape, Window
from tilewright.ir.tile import Loop, Statement, TileBuffer, TileProgram
from tilewright.ir.views import linear
from tilewright.shape import Expr, ceil_div, constant, maximum, minimum, total
from tilewright.tile.loops.few_columns import Nest, in_rows
from tilewright.tile.loops.interchange import interchanged, reduces_across
from tilewright.tile.loops.pieces import in_pieces
from tilewright.tile.loops.pixels import as_pixels
from tilewright.tile.loops.rows_across import across_rows
from tilewright.tile.loops.turned import in_blocks, turned_orders
from tilewright.tile.moves.transposes import as_transpose, as_transposed_runs
from tilewright.tile.nests import collapse, finish, target_buffers, task_columns
from tilewright.tile.values.lowering import Lowering

# Results known to be fewer are reduced one after the other. Sums of 20 squares take 0.35 to 0.56 of
# the time across where there are three of them (Zen 4). Of two, those of 10 take half of it, those
# of hundreds as long, and with registers for masks 1.8 times as long, which no price decides yet.
LEAST_ACROSS = 3
REDUCING = (Reduce, ArgReduce, Contract, Convolve, Window)
Way = Callable[[Lowering, Sequence[tuple[str, Expr]], Sequence[Statement]], Nest | None]
CHUNK = 4096  # elements in one task: small enough to balance, large enough to amortise
SHORT = 16  # iterations that LLVM unrolls; a task of so few would cost more than what it does


def storage(node: Node, lowering: Lowering) -> Node:
    """The node whose row-major order is that of ``node``: trailing reshapes move nothing."""
    while isinstance(node.primitive, Reshape) and node.inputs[0] not in lowering.memory:
        if not node.inputs[0].inputs:
            break
        node = node.inputs[0]
    return node


def lower_loops(kernel: Kernel, lowering: Lowering) -> TileProgram:
    """One element at a time over the space of the outputs (which have one shape)."""
    targets = target_buffers(kernel)
    variables = store_elements(kernel, lowering, targets)
    return _nest(kernel, lowering, variables, targets)


def lower_other_order(kernel: Kernel, lowering: Lowering) -> TileProgram | None:
    """Blocks along the other axis, where sizes decide between them, or of runs; or None."""
    targets = target_buffers(kernel)
    variables = store_elements(kernel, lowering, targets)
    bodies = [lowering.close() for _ in variables][::-1]
    if not bodies or not _is_one_body(lowering, bodies):
        return None
    variables, body = collapse(lowering, variables, bodies[-1])
    if as_transpose(lowering, variables, body) is not None:
        return None  # which has no order
    runs = as_transposed_runs(lowering, variables, body)
    if runs is not None:
        return finish(lowering, kernel, runs[0], [runs[1]], targets)
    return _turned(kernel, lowering, variables, body, targets, 1)


def lower_in_rows(kernel: Kernel, lowering: Lowering) -> TileProgram | None:
    """Tasks of all columns, turned into rows that are reduced one by one; or None."""
    return _reduced(kernel, lowering, in_rows)


def lower_across_rows(kernel: Kernel, lowering: Lowering) -> TileProgram | None:
    """Tasks of many short rows, turned so that vectors reduce neighbouring ones; or None."""
    return _reduced(kernel, lowering, across_rows)


def lower_in_pieces(kernel: Kernel, lowering: Lowering) -> TileProgram | None:
    """Searches along rows, of which every lane has a part; or None."""
    return _reduced(kernel, lowering, in_pieces)


def _reduced(kernel: Kernel, lowering: Lowering, way: Way) -> TileProgram | None:
    """The nest by a way that may know none for it."""
    if not any(isinstance(current.primitive, REDUCING) for current in kernel.body):
        return None
    targets = target_buffers(kernel)
    variables = store_elements(kernel, lowering, targets)
    bodies = [lowering.close() for _ in variables][::-1]
    if not bodies or not _is_one_body(lowering, bodies):
        return None
    made = way(lowering, *collapse(lowering, variables, bodies[-1]))
    return None if made is None else finish(lowering, kernel, *made, targets)


def store_elements(
    kernel: Kernel, lowering: Lowering, targets: dict[Node, TileBuffer]
) -> list[tuple[str, Expr]]:
    """Open a loop for every axis of the outputs, and store their elements in the innermost one.

    Axes of one element have no loop.
    """
    roots = {o: storage(o, lowering) for o in kernel.outputs}
    space = roots[kernel.outputs[0]].shape
    variables: list[tuple[str, Expr]] = []
    index: list[Expr] = []
    for size in space:
        if size.is_constant and size.value == 1:
            index.append(constant(0))
            continue
        lowering.open()
        variable = lowering.variable(size)
        variables.append((str(variable), size))
        index.append(variable)
    for output, root in roots.items():
        if root.shape == space:
            value = lowering.value(root, index)
        else:
            value = lowering.value(output, index)
        lowering.store(targets[output], linear(index, space), value)
    return variables


def _nest(
    kernel: Kernel,
    lowering: Lowering,
    variables: list[tuple[str, Expr]],
    targets: dict[Node, TileBuffer],
) -> TileProgram:
    """Collapse what can be, chunk the last loop, and make the rest the grid."""
    bodies = [lowering.close() for _ in variables][::-1]
    outer = lowering.blocks[0].statements
    if not variables:
        return finish(lowering, kernel, (), outer, targets)
    body = bodies[-1]
    if _is_one_body(lowering, bodies):
        variables, body = collapse(lowering, variables, body)
        transposed = as_transpose(lowering, variables, body)
        if transposed is not None:
            return finish(lowering, kernel, transposed[0], [transposed[1]], targets)
        turned = _turned(kernel, lowering, variables, body, targets, 0)
        return turned or _chunked(kernel, lowering, variables, body, targets, _iterations(body))
    return _placed(kernel, lowering, variables, outer, bodies, targets)


def _is_one_body(lowering: Lowering, bodies: Sequence[Sequence[Statement]]) -> bool:
    """Whether all statements stand in the innermost loop."""
    return not lowering.blocks[0].statements and not any(bodies[:-1])


def _turned(
    kernel: Kernel,
    lowering: Lowering,
    variables: list[tuple[str, Expr]],
    body: Sequence[Statement],
    targets: dict[Node, TileBuffer],
    number: int,
) -> TileProgram | None:
    """The nest in blocks computed in the order of this number, or None where there is none."""
    for order in turned_orders(variables, body)[number:]:
        return finish(lowering, kernel, *in_blocks(lowering, variables, body, order), targets)
    return None


def _placed(
    kernel: Kernel,
    lowering: Lowering,
    variables: list[tuple[str, Expr]],
    outer: list[Statement],
    bodies: list[tuple[Statement, ...]],
    targets: dict[Node, TileBuffer],
) -> TileProgram:
    """Statements stand at several levels: the grid is all but the last loop."""
    name, size = variables[-1]
    body: list[Statement] = [*outer]
    for level in bodies[:-1]:
        body.extend(level)
    body.append(Loop(name, constant(0), size, bodies[-1]))
    return finish(lowering, kernel, variables[:-1], body, targets)


def _chunked(
    kernel: Kernel,
    lowering: Lowering,
    variables: list[tuple[str, Expr]],
    body: Sequence[Statement],
    targets: dict[Node, TileBuffer],
    length: Expr,
) -> TileProgram:
    """Tasks of at most ``length`` iterations of the last loop; of more loops, if it is short."""
    name, size = variables[-1]
    if reduces_across(name, body) and not (size.is_constant and size.value < LEAST_ACROSS):
        return _across(kernel, lowering, variables, body, targets)
    if size.is_constant and length.is_constant and size.value <= length.value:
        loop = Loop(name, constant(0), size, tuple(body))
        is_short = 0 < size.value <= SHORT and len(variables) > 1
        if is_short and not reduces_across(variables[-2][0], [loop]):
            rest = length // size.value
            pixel = as_pixels(variables[-2][0], variables[-1], body)
            return _chunked(kernel, lowering, variables[:-1], pixel or [loop], targets, rest)
        return finish(lowering, kernel, variables[:-1], [loop], targets)
    chunk = lowering.variable(ceil_div(size, length), "c")
    grid = [*variables[:-1], (str(chunk), ceil_div(size, length))]
    begin = chunk * length
    loop = Loop(name, begin, minimum(begin + length, size), tuple(body))
    return finish(lowering, kernel, grid, [loop], targets)


def _iterations(body: Iterable[Statement]) -> Expr:
    """Iterations of one task, each of which reduces so many elements, or makes a single one."""
    inside = total(_extent(part) for part in body if isinstance(part, Loop))
    return maximum(CHUNK // maximum(inside, 1), 1)


def _extent(loop: Loop) -> Expr:
    """Elements that a loop goes over; as one where only a task knows how many."""
    within = [_extent(part) for part in loop.body if isinstance(part, Loop)]
    length = loop.end - loop.begin
    is_known = not any(name.startswith("_") for name in length.free_symbols)
    return (length if is_known else constant(1)) * (total(within) if within else constant(1))


def _across(
    kernel: Kernel,
    lowering: Lowering,
    variables: list[tuple[str, Expr]],
    body: Sequence[Statement],
    targets: dict[Node, TileBuffer],
) -> TileProgram:
    """A block of results for every task, reduced side by side."""
    name, size = variables[-1]
    grid = variables[:-1]
    columns = task_columns(lowering, grid, size, "c")
    return finish(lowering, kernel, grid, interchanged(lowering, name, body, columns), targets)
