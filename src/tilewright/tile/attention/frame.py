"""What every part of an attention's program shares: sizes, scratch, loops, and what masks are.

Start with :class:`AttentionFrame`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.cost import COPIED_ROWS
from tilewright.ir.access import contraction_access
from tilewright.ir.attention import Attention
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.tile import (
    LINE_BYTES,
    Apply,
    Convert,
    Load,
    Local,
    Loop,
    TileBuffer,
    TransposeBlock,
    Value,
)
from tilewright.ir.tile_walk import value_loads
from tilewright.ir.views import Index, unflatten
from tilewright.shape import Expr, ceil_div, constant, minimum, product, symbol
from tilewright.tile.attention.visible_keys import VisibleKeys, visible_keys
from tilewright.tile.moves.transposes import SIZES
from tilewright.tile.products.block_sizes import balanced
from tilewright.tile.products.frame import declare
from tilewright.tile.values.lowering import Lowering

ROW, KEY = "_m", "_n"


@dataclass(frozen=True)
class AttentionBlock:
    """How many rows and keys are together in cache, both multiples of a cache line's elements."""

    rows: int
    keys: int


class AttentionFrame:
    """The sizes and the scratch of one attention, and loops over them."""

    def __init__(
        self, kernel: Kernel, attention: Attention, lowering: Lowering, block: AttentionBlock
    ) -> None:
        self.kernel = kernel
        self.attention = attention
        self.lowering = lowering
        self.block = block
        self.dtype = attention.scores.dtype
        self.line = LINE_BYTES // self.dtype.bytes
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
        # Lines of cache in a row of copied values are odd in number: rows begin in all sets.
        self.value_row = (ceil_div(self.width, self.line) // 2 * 2 + 1) * self.line
        self.copied_values: TileBuffer | None = None
        if self.block.rows >= COPIED_ROWS:
            held = constant(self.block.keys) * self.value_row
            self.copied_values = scratch(self.dtype, held)

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

    def _rows_here(self, body: Callable[[Expr], None]) -> None:
        """A loop over the rows of the block, counted from the first of all."""
        lowering = self.lowering
        body(lowering.opened(ROW, self.row_count))
        bounds = self.first_row, self.first_row + self.here
        lowering.emit(Loop(ROW, *bounds, lowering.close(), independent=True))

    # ------------------------------------------------------------ what is shown of scores

    def _index(self, m: Expr, n: Expr) -> Index:
        """The element of the scores in a row and of a key."""
        place = (*self.batch, *unflatten(m, self.rows), n)
        return tuple(map(self.lowering.scope.resolve, place))

    def _any_score(self) -> Index:
        """Opens a loop over all rows and one over all keys: the index of the score there."""
        row = self.lowering.opened(ROW, self.row_count)
        return self._index(row, self.lowering.opened(KEY, self.key_count))

    def _operands(self) -> list[Node]:
        """What is combined with scores, and differs along rows as well as along keys in memory.

        It lies along the keys, while the scores lie along the rows.
        """
        lowering, found = self.lowering, dict[Node, None]()
        stack, dependent = [self.attention.shown], self._dependent()
        index = self._any_score()
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
        statements = lowering.close() + lowering.close()
        assert not statements, f"{self.kernel.label}: a mask cannot hold statements"
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
        turned = scratch(dtype, constant(self.block.keys) * self.stride)
        source = self._along_keys(operand, first)
        if source is None or source[0].dtype is not dtype:
            source = self._plain(operand, dtype, first, here)
        target = (turned, constant(0), self.stride)
        lowering.emit(TransposeBlock(*source, *target, self.here, here))

        def read(place: Expr) -> Value:
            load = self._load(turned, place)
            return load if dtype is operand.dtype else Convert(load, operand.dtype)

        return operand, read

    def _along_keys(self, operand: Node, first: Expr) -> tuple[TileBuffer, Expr, Expr] | None:
        """Where an operand lies from the first row of the block and key on, and how far rows are.

        None where its keys do not lie side by side in memory, or it is computed.
        """
        value = self.lowering.value(operand, self._any_score())
        statements = self.lowering.close() + self.lowering.close()
        affine = value.offset.affine([ROW, KEY]) if isinstance(value, Load) else None
        if not isinstance(value, Load) or affine is None or statements:
            return None
        slopes, base = affine
        across = slopes.get(ROW, constant(0))
        if slopes.get(KEY) is not constant(1):
            return None
        return value.buffer, base + self.first_row * across + first, across

    def _plain(
        self, operand: Node, dtype: DType, first: Expr, here: Expr
    ) -> tuple[TileBuffer, Expr, Expr]:
        """The same of the block's rows and keys in scratch memory, as ``dtype``."""
        lowering = self.lowering
        across = constant(self.block.keys + self.line)
        plain = lowering.scratch_buffer(dtype, constant(self.block.rows) * across)

        def line(m: Expr) -> None:
            key = lowering.opened(KEY, self.key_count)
            value = lowering.value(operand, self._index(m, key))
            place = (m - self.first_row) * across + (key - first)
            lowering.store(plain, place, value if value.dtype is dtype else Convert(value, dtype))
            lowering.emit(Loop(KEY, first, first + here, lowering.close(), independent=True))

        self._rows_here(line)
        return plain, constant(0), across

    def visible(self) -> VisibleKeys | None:
        """Up to which key rows see any, if what is shown of scores tells."""
        lowering = self.lowering
        index = self._any_score()
        name = lowering.name("v")
        lowering.depth[name] = len(lowering.blocks) - 1
        self._known(self.attention.scores, index, Local(name, self.dtype))
        found = visible_keys(lowering.value(self.attention.shown, index), ROW, KEY)
        lowering.close()
        lowering.close()
        return found
