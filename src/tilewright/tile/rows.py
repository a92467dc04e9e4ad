"""Stitched row kernels: softmax, normalisations and reductions in one pass over each row.

The space of a row kernel is [outer…, inner…]; every reduction in it is over exactly the inner axes.
A *stage* is one sweep over the row: it evaluates the reductions whose operands are known by then.
Values needed by a later stage as well are kept in a row of scratch (or in the output itself).
Start with :func:`lower_rows`.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel, row_space
from tilewright.ir.primitives import Cast, Map, Reduce
from tilewright.ir.scalar import SCALAR_FUNCTIONS
from tilewright.ir.tile import (
    Accumulator,
    Load,
    Local,
    Loop,
    LoopProgram,
    Store,
    TileBuffer,
    Value,
)
from tilewright.ir.views import Index, linear
from tilewright.shape import Expr, Scope, constant, product
from tilewright.tile.loops import finish, target_buffers
from tilewright.tile.lowering import Lowering

KEEP_ABOVE = 3  # operations: cheaper values are recomputed rather than kept in scratch


class _Rows:
    def __init__(self, kernel: Kernel, lowering: Lowering) -> None:
        self.kernel = kernel
        self.lowering = lowering
        self.space, self.outer_rank = row_space(kernel.seed)
        self.seeds = set(kernel.seeds)
        self.targets = target_buffers(kernel)
        self.stage: dict[Node, int] = {}
        self.outer: list[Expr] = []
        self.grid: list[tuple[str, Expr]] = []
        for size in self.space[: self.outer_rank]:
            if size.is_constant and size.value == 1:
                self.outer.append(constant(0))
                continue
            lowering.open()
            self.outer.append(lowering.variable(size))
            self.grid.append((str(self.outer[-1]), size))
        lowering.open()

    def stage_of(self, node: Node) -> int:
        """How many sweeps must have been made before ``node`` can be evaluated."""
        if node in self.stage:
            return self.stage[node]
        if node in self.lowering.memory:
            return 0
        before = max((self.stage_of(i) for i in node.inputs), default=0)
        self.stage[node] = before + 1 if node in self.seeds else before
        return self.stage[node]

    def roots(self, stage: int) -> list[Node]:
        """What the sweep of a stage evaluates: operands of reductions, or outputs at the end."""
        return [n.inputs[0] for n in self.reductions(stage)]

    def reductions(self, stage: int) -> list[Node]:
        return [seed for seed in self.kernel.seeds if self.stage_of(seed) == stage]

    def needed(self, roots: list[Node], kept: set[Node]) -> set[Node]:
        """Nodes of the row space that evaluating ``roots`` computes, stopping at kept ones."""
        found: set[Node] = set()
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node in found or node in kept:
                continue
            if node in self.lowering.memory or node in self.seeds:
                continue
            found.add(node)
            stack.extend(node.inputs)
        return found

    def cost(self, node: Node, seen: set[Node]) -> int:
        """Operations and loads to recompute a value of the row."""
        if node in seen:
            return 0
        seen.add(node)
        if node in self.lowering.memory:
            return 1
        if isinstance(node.primitive, Reduce):
            return 0
        own = 0
        if isinstance(node.primitive, Map):
            own = SCALAR_FUNCTIONS[node.primitive.function].cost
        return own + sum(self.cost(i, seen) for i in node.inputs)


def lower_rows(kernel: Kernel, lowering: Lowering) -> LoopProgram:
    """The program of a row kernel."""
    rows = _Rows(kernel, lowering)
    final = [o for o in kernel.outputs if o.shape == rows.space]
    last = max(rows.stage_of(seed) for seed in kernel.seeds)
    demands = [rows.roots(stage) for stage in range(1, last + 1)] + [final]
    kept: set[Node] = set()
    stored: set[Node] = set()
    for number, roots in enumerate(demands):
        later = [n for following in demands[number + 1 :] for n in following]
        keep = _to_keep(rows, roots, later, kept)
        if number < last:
            _sweep(rows, rows.reductions(number + 1), keep, stored)
        else:
            _final(rows, [o for o in final if o not in stored])
        kept |= set(keep)
    for output in kernel.outputs:
        if output.shape != rows.space:
            _store_outer(rows, output)
    body = [s for block in lowering.blocks for s in block.statements]
    return finish(lowering, kernel, rows.grid, body, rows.targets)


def _to_keep(rows: _Rows, roots: list[Node], later: list[Node], kept: set[Node]) -> list[Node]:
    """The topmost values of this sweep that later sweeps use and that are dear to recompute."""
    wanted = rows.needed(later, kept)
    chosen: list[Node] = []
    seen: set[Node] = set()
    stack = list(reversed(roots))
    while stack:
        node = stack.pop()
        if node in seen or node in kept or node in rows.lowering.memory:
            continue
        seen.add(node)
        if node in rows.seeds:
            continue
        computed = isinstance(node.primitive, Map | Cast) and node.shape == rows.space
        if computed and node in wanted and rows.cost(node, set()) >= KEEP_ABOVE:
            chosen.append(node)
            continue
        stack.extend(reversed(node.inputs))
    return chosen


def _inner(rows: _Rows, body: Callable[[list[Expr]], list[Accumulator]]) -> None:
    """Nested loops over the inner axes; ``body`` emits and returns the accumulators.

    Axes of size 1 need no loop, but one loop there must be: it is what binds the accumulators.
    """
    lowering = rows.lowering
    inner: list[Expr] = []
    loops: list[tuple[Expr, Expr]] = []
    for axis in range(rows.outer_rank, len(rows.space)):
        size = rows.space[axis]
        last = axis == len(rows.space) - 1
        if size.is_constant and size.value == 1 and (loops or not last):
            inner.append(constant(0))
            continue
        lowering.open()
        inner.append(lowering.variable(size))
        loops.append((inner[-1], size))
    accumulators = body(inner)
    while loops:
        variable, size = loops.pop()
        statements = lowering.close()
        lowering.emit(Loop(str(variable), constant(0), size, statements, tuple(accumulators)))
        accumulators = [
            Accumulator(a.name, a.kind, Local(a.name, a.value.dtype)) for a in accumulators
        ]


def _sweep(rows: _Rows, reductions: list[Node], keep: list[Node], stored: set[Node]) -> None:
    lowering = rows.lowering
    names = {r: lowering.name("r") for r in reductions}
    places = {n: _place(rows, n, stored) for n in keep}

    def body(inner: list[Expr]) -> list[Accumulator]:
        index = [*rows.outer, *inner]
        for node, (buffer, offset) in places.items():
            value = lowering.let(lowering.value(node, index))
            lowering.blocks[-1].memo[(node, tuple(index))] = value
            lowering.emit(Store(buffer, lowering.scope.resolve(offset(inner)), value))
        made: list[Accumulator] = []
        for reduction in reductions:
            primitive = reduction.primitive
            assert isinstance(primitive, Reduce)
            value = lowering.value(reduction.inputs[0], index)
            made.append(Accumulator(names[reduction], primitive.kind, value))
        return made

    _inner(rows, body)
    for node, (buffer, offset) in places.items():
        lowering.cached[node] = _row_reader(rows, buffer, offset)
    for reduction in reductions:
        lowering.depth[names[reduction]] = len(lowering.blocks) - 1
        lowering.cached[reduction] = _scalar_reader(rows, Local(names[reduction], reduction.dtype))


Offset = Callable[[list[Expr]], Expr]


def _place(rows: _Rows, node: Node, stored: set[Node]) -> tuple[TileBuffer, Offset]:
    """Where a kept value goes: its own output if it is one, else a row of scratch."""
    inner_shape = rows.space[rows.outer_rank :]

    def in_output(inner: list[Expr]) -> Expr:
        return linear((*rows.outer, *inner), rows.space)

    def in_scratch(inner: list[Expr]) -> Expr:
        return linear(inner, inner_shape)

    if node in rows.targets:
        stored.add(node)
        return rows.targets[node], in_output
    return rows.lowering.scratch_buffer(node.dtype, product(inner_shape)), in_scratch


def _same(left: Index, right: list[Expr], scope: Scope) -> bool:
    return all(a is scope.resolve(b) for a, b in zip(left, right, strict=True))


def _row_reader(rows: _Rows, buffer: TileBuffer, offset: Offset) -> Callable[[Index], Value | None]:
    def read(index: Index) -> Value | None:
        if not _same(index[: rows.outer_rank], rows.outer, rows.lowering.scope):
            return None
        place = offset(list(index[rows.outer_rank :]))
        return Load(buffer, rows.lowering.scope.resolve(place))

    return read


def _scalar_reader(rows: _Rows, local: Local) -> Callable[[Index], Value | None]:
    def read(index: Index) -> Value | None:
        return local if _same(index, rows.outer, rows.lowering.scope) else None

    return read


def _final(rows: _Rows, outputs: list[Node]) -> None:
    if not outputs:
        return
    lowering = rows.lowering

    def body(inner: list[Expr]) -> list[Accumulator]:
        index = [*rows.outer, *inner]
        for output in outputs:
            value = lowering.value(output, index)
            lowering.store(rows.targets[output], linear(index, rows.space), value)
        return []

    _inner(rows, body)


def _store_outer(rows: _Rows, output: Node) -> None:
    """An output with one element per row: the outer shape, perhaps with axes of size 1."""
    ones = [constant(0)] * (output.rank - rows.outer_rank)
    index = [*rows.outer, *ones]
    value = rows.lowering.value(output, index)
    outer_shape = rows.space[: rows.outer_rank]
    rows.lowering.store(rows.targets[output], linear(rows.outer, outer_shape), value)
