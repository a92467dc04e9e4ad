"""Kernels without reuse: one value per output element, and running sums.

The axes of the output become loops; neighbouring axes that every access walks contiguously are
collapsed into one; the last loop is cut into chunks, and all but the chunk is the grid. Start with
:func:`lower_loops`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Reshape, Scan
from tilewright.ir.scalar import COMBINE
from tilewright.ir.tile import (
    Apply,
    Load,
    Loop,
    Statement,
    Store,
    TileBuffer,
    TileProgram,
    Value,
    neutral_element,
)
from tilewright.ir.tile_walk import ExpressionMap, expressions
from tilewright.ir.views import linear
from tilewright.shape import Expr, Truth, ceil_div, constant, maximum, minimum, total
from tilewright.target.core_model import FEWEST_REGISTERS, LINE_ELEMENTS
from tilewright.tile.loops.interchange import Columns, interchanged, reduces_across
from tilewright.tile.loops.pixels import as_pixels
from tilewright.tile.loops.side_by_side import side_by_side
from tilewright.tile.loops.turned import in_blocks, turned_orders
from tilewright.tile.moves.transposes import as_transpose
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.work import MOST_COLUMNS, SHARES, estimate

LEAST_COLUMNS = 128  # of a task: long runs of memory
# Of running sums side by side, which are taken up once for all of them: registers hold the results
# of all steps, and as many are left for what these read.
STEPS = FEWEST_REGISTERS // 2
# Results known to be fewer are reduced one after the other. Sums of 20 squares take 0.35 to 0.56 of
# the time across where there are three of them (Zen 4). Of two, those of 10 take half of it, those
# of hundreds as long, and with registers for masks 1.8 times as long, which no price decides yet.
LEAST_ACROSS = 3
CHUNK = 4096  # elements in one task: small enough to balance, large enough to amortise
SHORT = 16  # iterations that LLVM unrolls; a task of so few would cost more than what it does


def storage(node: Node, lowering: Lowering) -> Node:
    """The node whose row-major order is that of ``node``: trailing reshapes move nothing."""
    while isinstance(node.primitive, Reshape) and node.inputs[0] not in lowering.memory:
        if not node.inputs[0].inputs:
            break
        node = node.inputs[0]
    return node


def finish(
    lowering: Lowering,
    kernel: Kernel,
    grid: Sequence[tuple[str, Expr]],
    body: Sequence[Statement],
    targets: dict[Node, TileBuffer],
) -> TileProgram:
    """The program of statements already built; results are ordered as the kernel's outputs."""
    results = tuple(targets[o] for o in kernel.outputs)
    reads = tuple(lowering.buffers.values())
    work = estimate(grid, body)
    return TileProgram(
        reads + results,
        len(results),
        tuple(grid),
        tuple(body),
        tuple(lowering.scratch),
        tuple(lowering.checks),
        work,
    )


def target_buffers(kernel: Kernel) -> dict[Node, TileBuffer]:
    """A result buffer for every output."""
    return {o: TileBuffer(f"o{i}", o.dtype) for i, o in enumerate(kernel.outputs)}


def lower_loops(kernel: Kernel, lowering: Lowering) -> TileProgram:
    """One element at a time over the space of the outputs (which have one shape)."""
    targets = target_buffers(kernel)
    variables = store_elements(kernel, lowering, targets)
    return _nest(kernel, lowering, variables, targets)


def lower_other_order(kernel: Kernel, lowering: Lowering) -> TileProgram | None:
    """Blocks computed along the other axis, where sizes decide between them; or None."""
    targets = target_buffers(kernel)
    variables = store_elements(kernel, lowering, targets)
    bodies = [lowering.close() for _ in variables][::-1]
    if not bodies or not _is_one_body(lowering, bodies):
        return None
    variables, body = collapse(lowering, variables, bodies[-1])
    if as_transpose(lowering, variables, body) is not None:
        return None  # which has no order
    return _turned(kernel, lowering, variables, body, targets, 1)


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


def filled(
    lowering: Lowering, bounds: tuple[Expr, Expr], extent: Expr, body: Callable[[Expr], None]
) -> Loop:
    """A loop within ``bounds`` and below ``extent``, of what ``body`` emits for its variable."""
    lowering.open()
    variable = lowering.variable(extent)
    body(variable)
    return Loop(str(variable), *bounds, lowering.close())


def block_number(
    lowering: Lowering,
    grid: list[tuple[str, Expr]],
    blocks: Expr,
    most: Expr | None = None,
    stem: str = "i",
) -> Expr:
    """The number of a task's block, which becomes the last axis of ``grid``.

    There are ``blocks`` of them, and no more than ``most`` anywhere. Where one is known to be all,
    it has no number, and this is 0.
    """
    if lowering.scope.resolve(blocks) is constant(1):
        return constant(0)
    number = lowering.variable(blocks if most is None else most, stem)
    grid.append((str(number), blocks))
    return number


def column_block(width: Expr) -> Expr:
    """Neighbouring columns of one task: long runs of memory whose running values stay in L1."""
    share = ceil_div(ceil_div(width, SHARES), LINE_ELEMENTS) * LINE_ELEMENTS
    return minimum(maximum(share, LEAST_COLUMNS), MOST_COLUMNS)


def task_columns(
    lowering: Lowering,
    grid: list[tuple[str, Expr]],
    width: Expr,
    stem: str = "i",
    most: Expr | None = None,
) -> Columns:
    """The columns of one task, at most ``most``; its number becomes the last axis of ``grid``."""
    most = column_block(width) if most is None else most
    number = block_number(lowering, grid, ceil_div(width, most), stem=stem)
    if number is constant(0):
        return Columns(number, width, most)
    return Columns(number * most, minimum(most, width - number * most), most)


def collapse(
    lowering: Lowering, variables: list[tuple[str, Expr]], body: Sequence[Statement]
) -> tuple[list[tuple[str, Expr]], tuple[Statement, ...]]:
    """Merge neighbouring loops which every expression walks as one."""
    merged = list(variables)
    statements = tuple(body)
    position = len(merged) - 2
    while position >= 0:
        (outer, outer_size), (inner, inner_size) = merged[position], merged[position + 1]
        if _mergeable(outer, inner, inner_size, statements):
            fused = lowering.variable(outer_size * inner_size)
            mapping = {outer: constant(0), inner: fused}
            statements = ExpressionMap.substitution(mapping).statements(statements)
            merged[position : position + 2] = [(str(fused), outer_size * inner_size)]
        position -= 1
    return merged, statements


def _mergeable(outer: str, inner: str, size: Expr, statements: Sequence[Statement]) -> bool:
    for expression in set(expressions(statements)):
        names = expression.free_symbols
        if outer not in names and inner not in names:
            continue
        affine = expression.affine((outer, inner))
        if affine is None:
            return False
        slopes, _ = affine
        zero = constant(0)
        if slopes.get(outer, zero) is not slopes.get(inner, zero) * size:
            return False
    return True


# ---------------------------------------------------------------- running sums


def lower_scan(kernel: Kernel, lowering: Lowering) -> TileProgram:
    """Running sums along one axis; each result is the one before it combined with an element.

    Along another axis than the last one, a task has a block of neighbouring columns, whose sums run
    side by side.
    """
    output = kernel.outputs[0]
    primitive = output.primitive
    assert isinstance(primitive, Scan)
    targets = target_buffers(kernel)
    last = output.rank - 1
    grid: list[tuple[str, Expr]] = []
    index: list[Expr] = [constant(0)] * output.rank
    for a, size in enumerate(output.shape):
        if a not in (primitive.axis, last):
            lowering.open()
            index[a] = lowering.variable(size)
            grid.append((str(index[a]), size))
    columns: Columns | None = None
    if primitive.axis != last:
        lowering.open()
        columns = task_columns(lowering, grid, output.shape[last])
    _Steps(lowering, primitive, output, targets[output], index, columns).write()
    body = [s for block in lowering.blocks for s in block.statements]
    return finish(lowering, kernel, grid, body, targets)


@dataclass
class _Steps:
    """The steps of a scan: ``index`` is the task's place, its columns apart."""

    lowering: Lowering
    primitive: Scan
    output: Node
    target: TileBuffer
    index: list[Expr]
    columns: Columns | None

    @cached_property
    def running(self) -> TileBuffer:
        """The latest results of all columns of the task."""
        assert self.columns is not None
        return self.lowering.scratch_buffer(self.output.dtype, self.columns.most)

    def write(self) -> None:
        """The first elements, then every one from the one before it."""
        length = self.output.shape[self.primitive.axis]
        self._loop((constant(0), minimum(length, 1)), length, self._begin)
        if self.lowering.scope.is_less_equal(length, 1) is Truth.YES:
            return  # what a step that never runs reads would be read outside of its loop
        if self.columns is None:
            self._loop((constant(1), length), length, self._go_on)
            return
        groups = maximum(length - 1, 0) // STEPS

        def together(group: Expr) -> None:
            self._columns([group * STEPS + i for i in range(1, STEPS + 1)])

        self._loop((constant(0), groups), length, together)
        rest = (groups * STEPS + 1, length)
        self._loop(rest, length, lambda step: self._columns([step]))

    def _loop(self, bounds: tuple[Expr, Expr], extent: Expr, body: Callable[[Expr], None]) -> None:
        self.lowering.emit(filled(self.lowering, bounds, extent, body))

    def _along(self, body: Callable[[Expr], None]) -> None:
        """A loop over the columns of the task."""
        columns = self.columns
        assert columns is not None

        def at(column: Expr) -> None:
            self.index[-1] = columns.first + column
            body(column)

        loop = filled(self.lowering, (constant(0), columns.count), columns.most, at)
        self.lowering.emit(side_by_side(loop.variable, loop.end, loop.body))

    def _begin(self, first: Expr) -> None:
        if self.columns is None:
            self.lowering.emit(Store(self.target, self._offset(first), self._start(first)))
            return

        def body(column: Expr) -> None:
            start = self.lowering.let(self._start(first))
            self.lowering.emit(Store(self.target, self._offset(first), start))
            self.lowering.emit(Store(self.running, column, start))

        self._along(body)

    def _start(self, first: Expr) -> Value:
        if self.primitive.exclusive:
            return neutral_element(self.primitive.kind, self.output.dtype)
        return self.lowering.value(self.output.inputs[0], self._at(first))

    def _go_on(self, step: Expr) -> None:
        before = Load(self.target, self._offset(step - 1))
        self.lowering.emit(Store(self.target, self._offset(step), self._after(before, step)))

    def _after(self, before: Value, step: Expr) -> Value:
        """The result of a step, of the one before it."""
        read = self._at(step - 1) if self.primitive.exclusive else self._at(step)
        value = self.lowering.value(self.output.inputs[0], read)
        return Apply(COMBINE[self.primitive.kind], (before, value), self.output.dtype)

    def _columns(self, steps: Sequence[Expr]) -> None:
        """Some steps of all columns, whose last results wait in scratch for the next ones.

        All is read before a result is stored: rows are no whole vectors, and a load that touches
        one of those that were just stored waits until it has left the core.
        """

        def body(column: Expr) -> None:
            value: Value = Load(self.running, column)
            made: list[Value] = []
            for step in steps:
                value = self.lowering.let(self._after(value, step))
                made.append(value)
            for step, result in zip(steps, made, strict=True):
                self.lowering.emit(Store(self.target, self._offset(step), result))
            self.lowering.emit(Store(self.running, column, value))

        self._along(body)

    def _at(self, step: Expr) -> list[Expr]:
        axis = self.primitive.axis
        place = self.output.shape[axis] - 1 - step if self.primitive.reverse else step
        return [place if a == axis else i for a, i in enumerate(self.index)]

    def _offset(self, step: Expr) -> Expr:
        return self.lowering.scope.resolve(linear(self._at(step), self.output.shape))
