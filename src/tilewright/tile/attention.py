"""Attention in one kernel: scores of a block of keys stay in cache, and no score is in memory.

A task has a block of rows (queries) of one batch element, and goes over the keys block by block:

    scores[n, m] = keys[n, :] * queries[m, :]      a product, with the rows along the lanes
    scores       = what is shown of them           scale, mask, cap: any elementwise function
    maximum[m]   = maximum over n                  and by which factor it moves what was summed
    scores[n, m] = exp(scores[n, m] - maximum[m])
    total[m]    += sum over n
    sums[m, :]   = sums[m, :] * factor[m] + transposed scores * values     a product

With the rows along the lanes, maxima and totals are vectors, keys and values are read as they lie,
and only the queries of the block are transposed, once. At the end the sums are divided by the
totals. Start with :func:`lower_attention`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.ir.access import contraction_access
from tilewright.ir.attention import Attention
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Contract
from tilewright.ir.tile import (
    CACHE_LINE,
    Accumulator,
    Apply,
    Convert,
    Guarded,
    LetIndex,
    Literal,
    Load,
    Local,
    Loop,
    LoopProgram,
    Product,
    TileBuffer,
    TransposeBlock,
    Value,
)
from tilewright.ir.tile_walk import value_loads
from tilewright.ir.views import Index, declare_index, linear
from tilewright.shape import (
    Expr,
    Truth,
    ceil_div,
    constant,
    less,
    maximum,
    minimum,
    product,
    symbol,
)
from tilewright.tile.contraction import balanced, shown, unflatten
from tilewright.tile.frame import declare
from tilewright.tile.loops import target_buffers
from tilewright.tile.lowering import Lowering
from tilewright.tile.transposes import SIZES
from tilewright.tile.variants import LoweredStep
from tilewright.tile.visible_keys import VisibleKeys, visible_keys

LOWEST = {DType.FLOAT32: -3.4028234663852886e38, DType.FLOAT64: -1.7976931348623157e308}
NO_WEIGHT = {DType.FLOAT32: 200.0, DType.FLOAT64: 1000.0}  # lower by that: its exponential is 0
ROW, KEY, COLUMN, BLOCK = "_m", "_n", "_d", "_kb"
PASS, AGAIN = "_pass", "_again"


@dataclass(frozen=True)
class AttentionBlock:
    """How many rows and keys are together in cache, both multiples of a cache line's elements."""

    rows: int
    keys: int


def lower_attention(
    kernel: Kernel, attention: Attention, lowering: Lowering, block: AttentionBlock
) -> LoweredStep:
    """The program of an attention with its epilogue."""
    return _Writer(kernel, attention, lowering, block).step()


class _Writer:
    def __init__(
        self, kernel: Kernel, attention: Attention, lowering: Lowering, block: AttentionBlock
    ) -> None:
        self.kernel = kernel
        self.attention = attention
        self.lowering = lowering
        self.block = block
        self.dtype = attention.scores.dtype
        self.line = CACHE_LINE // self.dtype.bytes
        scope, memory = lowering.scope, lowering.memory
        first = contraction_access(attention.scores, scope, memory)
        second = contraction_access(attention.context, scope, memory)
        assert first.right is not None and second.right is not None
        self.keys, self.values = first.right, second.right
        self.queries = first.left
        self.rows, self.summed = first.rows, first.summed
        self.columns = tuple((f"_d{i}", size) for i, (_, size) in enumerate(second.columns))
        self.grid_batch = first.batch
        self.batch = declare(lowering, first.batch)
        self.row_count = product([size for _, size in first.rows])
        self.key_count = product([size for _, size in first.columns])
        self.depth = product([size for _, size in first.summed])
        self.width = product([size for _, size in self.columns])
        self.stride = constant(block.rows + self.line)  # rows of scores fall into different sets
        rows = balanced(self.row_count, constant(block.rows), self.line)
        self.blocks = ceil_div(self.row_count, rows)
        self.first_row = symbol("_mb") * rows
        self.here = minimum(self.row_count - self.first_row, rows)
        self.lanes = ceil_div(self.here, self.line) * self.line
        self._buffers()

    def _buffers(self) -> None:
        scratch, rows = self.lowering.scratch_buffer, constant(self.block.rows)
        self.turned = scratch(self.dtype, self.depth * self.stride)
        self.scores = scratch(self.dtype, constant(self.block.keys) * self.stride)
        self.maximum = scratch(self.dtype, rows)
        self.raised = scratch(self.dtype, rows)
        self.factor = scratch(self.dtype, rows)
        self.total = scratch(self.dtype, rows)
        self.sum_row = ceil_div(self.width, self.line) * self.line
        self.sums = scratch(self.dtype, rows * self.sum_row)

    def step(self) -> LoweredStep:
        """The program, and what its buffers are."""
        lowering, kernel = self.lowering, self.kernel
        declare_index(lowering.scope, "_mb", self.blocks)
        lowering.depth["_mb"] = 0
        targets = target_buffers(kernel)
        self._turn_queries()
        self._begin()
        self._over_keys()
        self._finish(targets)
        results = tuple(targets.values())
        count = product([size for _, size in self.grid_batch]) * self.row_count * self.key_count
        program = LoopProgram(
            (*lowering.buffers.values(), *results),
            len(results),
            (*self.grid_batch, ("_mb", self.blocks)),
            tuple(lowering.blocks[0].statements),
            tuple(lowering.scratch),
            tuple(lowering.checks),
            count * (self.depth + self.width + 16) // 48 + 1,
        )
        return LoweredStep(program, tuple(lowering.buffers), tuple(kernel.outputs))

    # ------------------------------------------------------------ loops

    def _each(
        self, name: str, bounds: tuple[Expr, Expr], body: Callable[[Expr], None],
        independent: bool = False,
    ) -> None:  # fmt: skip
        """A loop over a variable of which its sign is known."""
        lowering = self.lowering
        variable = lowering.opened(name)
        body(variable)
        lowering.emit(Loop(name, *bounds, lowering.close(), independent=independent))

    def _lanes(self, body: Callable[[Expr], None]) -> None:
        """A loop over the rows of the block, and those that fill the last vector."""
        name = self.lowering.name("i")
        self._each(name, (constant(0), self.lanes), body, independent=True)

    def _known(self, node: Node, index: Index, value: Value) -> None:
        """Element ``index`` of a node is that from now on, and others are not asked for."""
        self.lowering.cached[node] = lambda asked: value if asked == index else None

    def _load(self, buffer: TileBuffer, place: Expr) -> Load:
        return Load(buffer, self.lowering.scope.resolve(place))

    def _apply(self, function: str, *operands: Value) -> Apply:
        dtype = DType.BOOL if function == "less" else self.dtype
        return Apply(function, operands, dtype)

    def _greater(self, one: Value, other: Value) -> Value:
        """The greater of two values; the first one where the other is no number."""
        return self._apply("select", self._apply("less", one, other), other, one)

    # ------------------------------------------------------------ before the keys

    def _turn_queries(self) -> None:
        """The queries of the block, transposed, with zeros where the last vector has no rows."""
        lowering, queries = self.lowering, self.queries
        name = lowering.name("i")
        unit = queries is not None and queries.depth is constant(1)
        if queries is not None and unit and self.dtype.bytes in SIZES:
            source = lowering.buffer(queries.source)
            offset = queries.base + self.first_row * queries.row
            place = (self.turned, constant(0), self.stride)
            lowering.emit(
                TransposeBlock(source, offset, queries.row, *place, self.here, self.depth)
            )
        else:
            self._each(name, (constant(0), self.depth), self._turn_one)

        def clear(k: Expr) -> None:
            inner = lowering.name("i")

            def zero(m: Expr) -> None:
                lowering.store(self.turned, k * self.stride + m, Literal(0.0, self.dtype))

            self._each(inner, (self.here, self.lanes), zero)

        self._each(lowering.name("i"), (constant(0), self.depth), clear)

    def _turn_one(self, k: Expr) -> None:
        """One element of every query, wherever it lies or is computed from."""
        queries = self.attention.scores.inputs[0]
        primitive = self.attention.scores.primitive
        assert isinstance(primitive, Contract)
        deep = unflatten(k, self.summed)

        def element(m: Expr) -> None:
            at = dict(zip([i for i, _ in primitive.batch], self.batch, strict=True))
            at |= zip([i for i, _ in primitive.summed], deep, strict=True)
            free = [a for a in range(queries.rank) if a not in at]
            at |= zip(free, unflatten(m, self.rows), strict=True)
            value = self.lowering.value(queries, [at[a] for a in range(queries.rank)])
            self.lowering.store(self.turned, k * self.stride + m - self.first_row, value)

        self._rows_here(element)

    def _rows_here(self, body: Callable[[Expr], None]) -> None:
        """A loop over the rows of the block, counted from the first of all."""
        lowering = self.lowering
        lowering.open()
        lowering.depth[ROW] = len(lowering.blocks) - 1
        declare_index(lowering.scope, ROW, self.row_count)
        body(symbol(ROW))
        bounds = self.first_row, self.first_row + self.here
        lowering.emit(Loop(ROW, *bounds, lowering.close(), independent=True))

    def _begin(self) -> None:
        def start(m: Expr) -> None:
            self.lowering.store(self.maximum, m, Literal(LOWEST[self.dtype], self.dtype))
            self.lowering.store(self.total, m, Literal(0.0, self.dtype))

        def clear(place: Expr) -> None:
            self.lowering.store(self.sums, place, Literal(0.0, self.dtype))

        self._lanes(start)
        count = self.here * self.sum_row
        self._each(self.lowering.name("i"), (constant(0), count), clear, independent=True)

    # ------------------------------------------------------------ over the keys

    def _over_keys(self) -> None:
        """All blocks of keys that any row of the block sees.

        Hidden keys have the weight 0 unless a row sees none but such as are as low as they: then
        the others are gone over, too.
        """
        lowering, blocks = self.lowering, ceil_div(self.key_count, self.block.keys)
        visible = self._visible()
        if visible is None:
            self._blocks(constant(0), blocks)
            return
        last = visible.last.substitute({ROW: self.first_row + self.here - 1})
        near = ceil_div(minimum(maximum(last + 1, 0), self.key_count), self.block.keys)
        if visible.low == -math.inf:
            self._blocks(constant(0), near)
            return
        low = lowering.scratch_buffer(DType.INT64, constant(1))
        lowering.store(low, constant(0), Literal(0, DType.INT64))
        lowering.open()
        lowering.depth[PASS] = len(lowering.blocks) - 1
        number = declare_index(lowering.scope, PASS, constant(2))
        lowering.emit(LetIndex(AGAIN, Load(low, constant(0)), constant(2), None))
        lowering.depth[AGAIN] = len(lowering.blocks) - 1
        again = declare_index(lowering.scope, AGAIN, constant(2))
        self._blocks(number * near, near + number * again * (blocks - near))
        self._ask_for_low_rows(low, visible.low)
        lowering.emit(Loop(PASS, constant(0), constant(2), lowering.close()))

    def _blocks(self, begin: Expr, end: Expr) -> None:
        lowering, keys = self.lowering, self.block.keys
        lowering.open()
        lowering.depth[BLOCK] = len(lowering.blocks) - 1
        number = declare_index(lowering.scope, BLOCK, ceil_div(self.key_count, keys))
        first = number * keys
        here = minimum(self.key_count - first, keys)
        self._score(first, here)
        self._show(first, here)
        self._lanes(self._raise)
        self._weigh(here)
        self._scale()
        self._add(first, here)
        lowering.emit(Loop(BLOCK, begin, end, lowering.close()))

    def _visible(self) -> VisibleKeys | None:
        """Up to which key rows see any, if what is shown of scores tells."""
        lowering = self.lowering
        lowering.open()
        for name, size in ((ROW, self.row_count), (KEY, self.key_count)):
            lowering.depth[name] = len(lowering.blocks) - 1
            declare_index(lowering.scope, name, size)
        index = self._index(symbol(ROW), symbol(KEY))
        name = lowering.name("v")
        lowering.depth[name] = len(lowering.blocks) - 1
        self._known(self.attention.scores, index, Local(name, self.dtype))
        found = visible_keys(lowering.value(self.attention.shown, index), ROW, KEY)
        lowering.close()
        return found

    def _ask_for_low_rows(self, low: TileBuffer, hidden: float) -> None:
        """Whether some row has seen nothing that makes weights of hidden keys 0."""
        lowering = self.lowering
        least, name = lowering.name("r"), lowering.name("i")
        variable = lowering.opened(name)
        greatest = self._load(self.maximum, variable)
        accumulators = (Accumulator(least, "minimum", greatest),)
        lowering.emit(Loop(name, constant(0), self.here, lowering.close(), accumulators))
        bound = Literal(max(hidden + NO_WEIGHT[self.dtype], LOWEST[self.dtype]), self.dtype)
        asked = Apply("less_equal", (Local(least, self.dtype), bound), DType.BOOL)
        lowering.store(low, constant(0), Convert(asked, DType.INT64))

    def _score(self, first: Expr, here: Expr) -> None:
        access, zero = self.keys, constant(0)
        self.lowering.emit(
            Product(
                self.scores, zero, self.stride,
                self.lowering.buffer(access.source), access.base + first * access.row,
                access.row, access.depth,
                self.turned, zero, self.stride,
                here, self.here, self.depth, zero,
            )
        )  # fmt: skip

    def _show(self, first: Expr, here: Expr) -> None:
        """What is shown of the scores, and the greatest of every row."""
        lowering, attention = self.lowering, self.attention
        self._lanes(lambda m: lowering.store(self.raised, m, self._load(self.maximum, m)))
        turned = [self._turned(operand, first, here) for operand in self._operands()]
        lowering.open()
        lowering.depth[KEY] = len(lowering.blocks) - 1
        key = declare_index(lowering.scope, KEY, self.key_count)
        line = (key - first) * self.stride

        def greatest(m: Expr, value: Value) -> None:
            lowering.store(self.raised, m, self._greater(self._load(self.raised, m), value))

        def element(m: Expr) -> None:
            place, index = line + (m - self.first_row), self._index(m, key)
            for operand, made in turned:
                self._known(operand, index, made(place))
            self._known(attention.scores, index, self._load(self.scores, place))
            value = lowering.let(lowering.value(attention.shown, index))
            lowering.store(self.scores, place, value)
            greatest(m - self.first_row, value)

        if attention.shown is attention.scores:
            self._lanes(lambda m: greatest(m, self._load(self.scores, line + m)))
        else:
            self._rows_here(element)
        lowering.emit(Loop(KEY, first, first + here, lowering.close()))

    def _index(self, m: Expr, n: Expr) -> Index:
        """The element of the scores in a row and of a key."""
        place = (*self.batch, *unflatten(m, self.rows), n)
        return tuple(map(self.lowering.scope.resolve, place))

    def _operands(self) -> list[Node]:
        """What is combined with scores, and differs along rows as well as along keys in memory.

        It lies along the keys, while the scores lie along the rows.
        """
        lowering, found = self.lowering, dict[Node, None]()
        stack, dependent = [self.attention.shown], self._dependent()
        lowering.open()
        for name, size in ((ROW, self.row_count), (KEY, self.key_count)):
            lowering.depth[name] = len(lowering.blocks) - 1
            declare_index(lowering.scope, name, size)
        index = self._index(symbol(ROW), symbol(KEY))
        while stack:
            current = stack.pop()
            if current is self.attention.scores:
                continue
            for operand in current.inputs:
                if operand in dependent:
                    stack.append(operand)
                    continue
                value = lowering.value(operand, index)
                places = [load.offset.free_symbols for load in value_loads(value)]
                if any(ROW in names and KEY in names for names in places):
                    found[operand] = None
        assert not lowering.close(), f"{self.kernel.label}: a mask cannot hold statements"
        return list(found)

    def _dependent(self) -> set[Node]:
        """Nodes that the scores are shown by."""
        found = {self.attention.scores}
        for current in self.kernel.body:
            if not found.isdisjoint(current.inputs):
                found.add(current)
        return found

    def _turned(
        self, operand: Node, first: Expr, here: Expr
    ) -> tuple[Node, Callable[[Expr], Value]]:
        """An operand turned so that its rows lie side by side, and how to read it then."""
        lowering, scratch = self.lowering, self.lowering.scratch_buffer
        dtype = operand.dtype if operand.dtype.bytes in SIZES else DType.FLOAT32
        across = constant(self.block.keys + self.line)
        plain = scratch(dtype, constant(self.block.rows) * across)
        turned = scratch(dtype, constant(self.block.keys) * self.stride)

        def line(m: Expr) -> None:
            lowering.open()
            lowering.depth[KEY] = len(lowering.blocks) - 1
            key = declare_index(lowering.scope, KEY, self.key_count)
            value = lowering.value(operand, self._index(m, key))
            place = (m - self.first_row) * across + (key - first)
            lowering.store(plain, place, value if value.dtype is dtype else Convert(value, dtype))
            lowering.emit(Loop(KEY, first, first + here, lowering.close(), independent=True))

        self._rows_here(line)
        zero = constant(0)
        lowering.emit(
            TransposeBlock(plain, zero, across, turned, zero, self.stride, self.here, here)
        )

        def read(place: Expr) -> Value:
            load = self._load(turned, place)
            return load if dtype is operand.dtype else Convert(load, operand.dtype)

        return operand, read

    def _raise(self, m: Expr) -> None:
        """The new maximum of a row, and what becomes of sums under the old one."""
        lowering = self.lowering
        raised = lowering.let(self._load(self.raised, m))
        lower = self._apply("subtract", self._load(self.maximum, m), raised)
        factor = lowering.let(self._apply("exponential", lower))
        lowering.store(self.factor, m, factor)
        lowering.store(self.maximum, m, raised)
        total = self._apply("multiply", self._load(self.total, m), factor)
        lowering.store(self.total, m, total)

    def _weigh(self, here: Expr) -> None:
        lowering = self.lowering

        def line(n: Expr) -> None:
            def element(m: Expr) -> None:
                place = n * self.stride + m
                lower = self._apply(
                    "subtract", self._load(self.scores, place), self._load(self.maximum, m)
                )
                weight = lowering.let(self._apply("exponential", lower))
                lowering.store(self.scores, place, weight)
                total = self._apply("add", self._load(self.total, m), weight)
                lowering.store(self.total, m, total)

            self._lanes(element)

        self._each(lowering.name("i"), (constant(0), here), line)

    def _scale(self) -> None:
        """What was summed under the maximum before."""
        lowering = self.lowering

        def line(m: Expr) -> None:
            factor = lowering.let(self._load(self.factor, m))

            def element(d: Expr) -> None:
                place = m * self.sum_row + d
                value = self._apply("multiply", self._load(self.sums, place), factor)
                lowering.store(self.sums, place, value)

            inner = lowering.name("i")
            self._each(inner, (constant(0), self.sum_row), element, independent=True)

        self._each(lowering.name("i"), (constant(0), self.here), line)

    def _add(self, first: Expr, here: Expr) -> None:
        access, zero = self.values, constant(0)
        self.lowering.emit(
            Product(
                self.sums, zero, self.sum_row,
                self.scores, zero, constant(1), self.stride,
                self.lowering.buffer(access.source), access.base + first * access.depth,
                access.depth,
                self.here, self.width, here, constant(1),
            )
        )  # fmt: skip

    # ------------------------------------------------------------ after the keys

    def _finish(self, targets: dict[Node, TileBuffer]) -> None:
        """Sums by their totals, and the epilogue."""
        lowering, context = self.lowering, self.attention.context

        def line(m: Expr) -> None:
            row = unflatten(m, self.rows)
            total = lowering.let(self._load(self.total, m - self.first_row))
            lowering.open()
            lowering.depth[COLUMN] = len(lowering.blocks) - 1
            d = declare_index(lowering.scope, COLUMN, self.width)
            index = tuple(
                map(lowering.scope.resolve, (*self.batch, *row, *unflatten(d, self.columns)))
            )
            value = self._quotient((m - self.first_row) * self.sum_row + d, total)
            self._known(context, index, value)
            for output, buffer in targets.items():
                base, place = shown(output, index, lowering.scope)
                made = lowering.value(base, index)
                lowering.store(buffer, linear(place, output.shape), made)
            lowering.emit(Loop(COLUMN, constant(0), self.width, lowering.close(), independent=True))

        self._rows_here(line)

    def _quotient(self, place: Expr, total: Value) -> Value:
        zero = Literal(0.0, self.dtype)
        made: Value = self._apply("divide", self._load(self.sums, place), total)
        if self.attention.cleared:
            made = self._apply("select", self._apply("less", zero, total), made, zero)
        if self.lowering.scope.is_less(0, self.key_count) is Truth.YES:
            return made
        return Guarded(less(0, self.key_count), made, zero)
