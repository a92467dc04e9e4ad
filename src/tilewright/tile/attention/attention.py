"""Attention in one kernel: scores of a block of keys stay in cache, and no score is in memory.

A task has a block of rows (queries) of one batch element, and goes over the keys block by block:

    scores[n, m] = keys[n, :] * queries[m, :]      a product, with the rows along the lanes
    scores       = what is shown of them           scale, mask, cap: any elementwise function
    maximum[m]   = maximum over n                  and by which factor it moves what was summed
    scores[n, m] = exp(scores[n, m] - maximum[m])
    total[m]    += sum over n
    sums[m, :]   = sums[m, :] * factor[m] + transposed scores * values     a product

With the rows along the lanes, maxima and totals are vectors, keys and values are read as they lie,
and only the queries of the block are transposed, once. Where a block has many rows, the values of a
block of keys are copied, as a panel of them, which lies in parts of rows of a power of two, would
meet itself in few sets of the first-level cache. At the end each row divides once: its sums
are multiplied by the inverse of its total. Start with :func:`lower_attention`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce

from tilewright.ir.access import operand_index
from tilewright.ir.attention import Attention, context_of
from tilewright.ir.decay import DECAY
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.tile import (
    Accumulator,
    Apply,
    Convert,
    LetIndex,
    Literal,
    Load,
    Local,
    Loop,
    Product,
    Sums,
    TileBuffer,
    TileProgram,
    TransposeBlock,
    Value,
    View,
)
from tilewright.ir.views import declare_index, linear, unflatten
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    less,
    maximum,
    minimum,
)
from tilewright.tile.attention.frame import KEY, ROW, AttentionBlock, AttentionFrame
from tilewright.tile.moves.transposes import SIZES
from tilewright.tile.nests import target_buffers
from tilewright.tile.products.contraction import shown
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import LoweredStep

LOWEST = {DType.FLOAT32: -3.4028234663852886e38, DType.FLOAT64: -1.7976931348623157e308}
NO_WEIGHT = {DType.FLOAT32: 200.0, DType.FLOAT64: 1000.0}  # lower by that: its exponential is 0
COLUMN, BLOCK = "_d", "_kb"
# Keys for which the maxima and totals of rows are loaded and stored once; what is left to gain by
# more is a fourth of that, and code grows with it.
TOGETHER = 4
PASS, AGAIN = "_pass", "_again"


def lower_attention(
    kernel: Kernel, attention: Attention, lowering: Lowering, block: AttentionBlock, work: Expr
) -> LoweredStep:
    """The program of an attention with its epilogue; ``work`` is its time in nanoseconds."""
    return _Writer(kernel, attention, lowering, block).step(work)


class _Writer(AttentionFrame):
    def step(self, work: Expr) -> LoweredStep:
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
        program = TileProgram(
            (*lowering.buffers.values(), *results),
            len(results),
            (*self.grid_batch, ("_mb", self.blocks)),
            tuple(lowering.blocks[0].statements),
            tuple(lowering.scratch),
            tuple(lowering.checks),
            work,
        )
        return LoweredStep(program, tuple(lowering.buffers), tuple(kernel.outputs))

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
        deep = unflatten(k, self.summed)

        def element(m: Expr) -> None:
            places = (self.batch, unflatten(m, self.rows), deep)
            index = operand_index(self.attention.scores, 0, *places)
            value = self.lowering.value(queries, index)
            self.lowering.store(self.turned, k * self.stride + m - self.first_row, value)

        self._rows_here(element)

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
        """All keys that any row of the block sees, block by block.

        Hidden keys have the weight 0 unless a row sees none but such as are as low as they: then
        the others are gone over, too.
        """
        lowering, keys = self.lowering, self.block.keys
        visible = self.visible()
        if visible is None:
            self._blocks((constant(0), ceil_div(self.key_count, keys)), constant(0), self.key_count)
            return
        last = visible.last.substitute({ROW: self.first_row + self.here - 1})
        seen = minimum(maximum(last + 1, 0), self.key_count)
        near = ceil_div(seen, keys)
        if visible.low == -math.inf:
            self._blocks((constant(0), near), constant(0), seen)
            return
        low = lowering.scratch_buffer(DType.INT64, constant(1))
        lowering.store(low, constant(0), Literal(0, DType.INT64))
        number = lowering.opened(PASS, constant(2))
        lowering.emit(LetIndex(AGAIN, Load(low, constant(0)), constant(2), None))
        lowering.depth[AGAIN] = len(lowering.blocks) - 1
        again = declare_index(lowering.scope, AGAIN, constant(2))
        end = (1 - number) * near + number * again * ceil_div(self.key_count, keys)
        behind = minimum(seen + number * self.key_count, self.key_count)
        self._blocks((number * (seen // keys), end), number * seen, behind)
        self._ask_for_low_rows(low, visible.low)
        lowering.emit(Loop(PASS, constant(0), constant(2), lowering.close()))

    def _blocks(self, numbers: tuple[Expr, Expr], begin: Expr, end: Expr) -> None:
        """The blocks of these numbers, of which only the keys from ``begin`` to ``end`` count."""
        lowering, keys = self.lowering, self.block.keys
        number = lowering.opened(BLOCK, ceil_div(self.key_count, keys))
        first = lowering.scope.resolve(maximum(number * keys, begin))
        here = minimum(end - first, (number + 1) * keys - first)
        self._score(first, here)
        self._show(first, here)
        self._lanes(self._raise)
        self._weigh(first, here)
        self._scale()
        self._add(first, here)
        lowering.emit(Loop(BLOCK, *numbers, lowering.close()))

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
                self.scores.dtype,
                View(
                    self.lowering.buffer(access.source),
                    access.base + first * access.row,
                    access.row,
                    access.depth,
                ),
                View(self.turned, zero, constant(1), self.stride),
                (zero, here),
                (zero, self.here),
                (zero, self.depth),
                Sums(self.scores, zero, self.stride, zero),
            )
        )

    def _show(self, first: Expr, here: Expr) -> None:
        """What is shown of the scores, and the greatest of every row."""
        lowering, attention = self.lowering, self.attention
        self._lanes(lambda m: lowering.store(self.raised, m, self._load(self.maximum, m)))
        turned = [self._turned(operand, first, here) for operand in self._operands()]

        def value(m: Expr, key: Expr) -> Value:
            line = (key - first) * self.stride
            if attention.shown is attention.scores:
                return self._load(self.scores, line + (m - self.first_row))
            index, place = self._index(m, key), line + (m - self.first_row)
            for operand, made in turned:
                self._known(operand, index, made(place))
            self._known(attention.scores, index, self._load(self.scores, place))
            value = lowering.let(lowering.value(attention.shown, index))
            lowering.store(self.scores, place, value)
            return value

        def lines(keys: Sequence[Expr]) -> None:
            def element(m: Expr) -> None:
                greatest = reduce(self._greater, [value(m, key) for key in keys])
                place = m - self.first_row
                greatest = self._greater(self._load(self.raised, place), lowering.let(greatest))
                lowering.store(self.raised, place, greatest)

            self._rows_here(element)

        self._by_keys(first, here, lines)

    def _by_keys(self, first: Expr, here: Expr, lines: Callable[[Sequence[Expr]], None]) -> None:
        """Loops over these keys, several at a time: what rows keep is loaded and stored for all."""
        lowering, whole = self.lowering, here // TOGETHER
        group = lowering.name("g")
        number = lowering.opened(group, ceil_div(self.block.keys, TOGETHER))
        lines([first + number * TOGETHER + place for place in range(TOGETHER)])
        lowering.emit(Loop(group, constant(0), whole, lowering.close()))
        lines([lowering.opened(KEY, self.key_count)])
        bounds = first + whole * TOGETHER, first + here
        lowering.emit(Loop(KEY, *bounds, lowering.close()))

    def _raise(self, m: Expr) -> None:
        """The new maximum of a row, and what becomes of sums under the old one."""
        lowering = self.lowering
        raised = lowering.let(self._load(self.raised, m))
        lower = self._apply("subtract", self._load(self.maximum, m), raised)
        factor = lowering.let(self._apply(DECAY, lower))
        lowering.store(self.factor, m, factor)
        lowering.store(self.maximum, m, raised)
        total = self._apply("multiply", self._load(self.total, m), factor)
        lowering.store(self.total, m, total)

    def _weigh(self, first: Expr, here: Expr) -> None:
        lowering = self.lowering

        def lines(keys: Sequence[Expr]) -> None:
            def element(m: Expr) -> None:
                highest = lowering.let(self._load(self.maximum, m))
                weights = list[Value]()
                for key in keys:
                    place = (key - first) * self.stride + m
                    lower = self._apply("subtract", self._load(self.scores, place), highest)
                    weight = lowering.let(self._apply(DECAY, lower))
                    lowering.store(self.scores, place, weight)
                    weights.append(weight)
                weight = reduce(partial(self._apply, "add"), weights)
                total = self._apply("add", self._load(self.total, m), weight)
                lowering.store(self.total, m, total)

            self._lanes(element)

        self._by_keys(first, here, lines)

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
        zero = constant(0)
        self.lowering.emit(
            Product(
                self.sums.dtype,
                View(self.scores, zero, constant(1), self.stride),
                self._values_of(first, here),
                (zero, self.here),
                (zero, self.width),
                (zero, here),
                Sums(self.sums, zero, self.sum_row, constant(1)),
            )
        )

    def _values_of(self, first: Expr, here: Expr) -> View:
        """The values of these keys, in scratch where many rows meet them."""
        access, copy = self.values, self.copied_values
        begin, row = access.base + first * access.depth, access.depth
        source = self.lowering.buffer(access.source)
        if copy is None:
            return View(source, begin, constant(1), row)

        def line(key: Expr) -> None:
            def element(d: Expr) -> None:
                value = self._load(source, begin + key * row + d)
                self.lowering.store(copy, key * self.value_row + d, value)

            inner = self.lowering.name("i")
            self._each(inner, (constant(0), self.width), element, independent=True)

        self._each(self.lowering.name("i"), (constant(0), here), line)
        return View(copy, constant(0), constant(1), self.value_row)

    # ------------------------------------------------------------ after the keys

    def _finish(self, targets: dict[Node, TileBuffer]) -> None:
        """Sums by their totals, and the epilogue."""
        lowering, context = self.lowering, self.attention.context
        has_keys = lowering.scope.resolve(less(0, self.key_count))

        def line(m: Expr) -> None:
            row = unflatten(m, self.rows)
            total = lowering.let(self._load(self.total, m - self.first_row))
            inverse = lowering.let(self._apply("divide", Literal(1.0, self.dtype), total))
            d = lowering.opened(COLUMN, self.width)
            index = tuple(
                map(lowering.scope.resolve, (*self.batch, *row, *unflatten(d, self.columns)))
            )
            summed = self._load(self.sums, (m - self.first_row) * self.sum_row + d)
            divided = self._apply("multiply", summed, inverse)
            value = context_of(self.attention, divided, total, has_keys)
            self._known(context, index, value)
            for output, buffer in targets.items():
                base, place = shown(output, index, lowering.scope)
                made = lowering.value(base, index)
                lowering.store(buffer, linear(place, output.shape), made)
            lowering.emit(Loop(COLUMN, constant(0), self.width, lowering.close(), independent=True))

        self._rows_here(line)
