"""Loops whose operands lie in different orders: squares through registers, then plain vectors.

Where the result is contiguous along one axis of a nest and an operand along another one, vectors
along either axis would gather or scatter single elements. A task takes a block of both axes instead
and computes it in the order that most of its accesses have. The others go through scratch memory:
operands are turned into it before, results out of it afterwards. Start with
:func:`turned_orders` and :func:`in_blocks`; they know accesses only, and no operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.tile import (
    LINE_BYTES,
    Guarded,
    IndexValue,
    Let,
    Load,
    Loop,
    Statement,
    Store,
    TileBuffer,
    TransposeBlock,
    Value,
)
from tilewright.ir.tile_interleaved import MOST_PICKED
from tilewright.ir.tile_walk import ExpressionMap, value_parts
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    less,
    less_equal,
    maximum,
    minimum,
    select,
)
from tilewright.target.core_model import WIDE_LANES
from tilewright.tile.moves.transposes import LONG, SIZES, STRIP, columns_of_task
from tilewright.tile.values.lowering import Lowering

PIXEL = 8  # LLVM stores whole pixels of fewer elements, faster than squares are (seen with AVX-512)

Variables = Sequence[tuple[str, Expr]]
Access = tuple[TileBuffer, Expr]

ZERO, ONE = constant(0), constant(1)


@dataclass(frozen=True)
class Order:
    """One way to compute a block: along ``fast``, where ``turned`` go through scratch memory."""

    fast: str
    slow: str
    length: Expr
    turned: list[Access]

    @property
    def is_short(self) -> bool:
        """Whether the loop is known to fill no vector."""
        return self.length.is_constant and self.length.value < WIDE_LANES

    @property
    def loss(self) -> tuple[bool, int]:
        """What is to be least: no short loops, then the bytes of an element that are turned."""
        return self.is_short, sum(buffer.dtype.bytes for buffer, _ in self.turned)


def turned_orders(variables: Variables, body: Sequence[Statement]) -> list[Order]:
    """The orders in which blocks of a nest may be computed, the likeliest first.

    There are none where no operand is turned, and two where the length of the loop decides at run
    time. Along the last of ``variables`` all results are contiguous. Elements that a condition
    guards are read where they are, since others in their block may not exist.
    """
    accesses = _accesses(body)
    if len(variables) < 2 or accesses is None:
        return []
    (last, length), sizes = variables[-1], dict(variables)
    across = _other_axis(accesses, [name for name, _ in variables])
    if across is None or (length.is_constant and length.value < PIXEL):
        return []
    orders = [
        Order(fast, slow, sizes[fast], [a for a in accesses if _is_turned(a, fast, slow)])
        for fast, slow in ((last, across), (across, last))
    ]
    orders.sort(key=lambda order: order.loss)
    first, second = orders
    is_certain = first.length.is_constant or second.is_short
    return [first] if is_certain else orders


def in_blocks(
    lowering: Lowering, variables: Variables, body: Sequence[Statement], order: Order
) -> tuple[list[tuple[str, Expr]], list[Statement]]:
    """The grid and the statements of a nest over blocks that are computed in one order."""
    grid = [(name, size) for name, size in variables if name not in (order.fast, order.slow)]
    block = _Block(lowering, order, dict(variables), grid)
    return grid, block.statements(body)


def _accesses(body: Sequence[Statement]) -> list[Access] | None:
    """What a body reads and writes unconditionally; None if it does more than that."""
    found: dict[Access, None] = {}
    for statement in body:
        if not isinstance(statement, Let | Store):
            return None
        if isinstance(statement, Store):
            found[statement.buffer, statement.offset] = None
        loads = (part for part in value_parts(statement.value) if isinstance(part, Load))
        found.update(dict.fromkeys((load.buffer, load.offset) for load in loads))
    return list(found)


def _other_axis(accesses: Sequence[Access], names: Sequence[str]) -> str | None:
    """The axis, besides the last one, along which most of the accesses are contiguous."""
    last = names[-1]
    counts = {n: sum(_is_turned(a, last, n) for a in accesses) for n in reversed(names[:-1])}
    found = max(counts, key=lambda name: counts[name])
    return found if counts[found] else None


def _is_turned(access: Access, fast: str, slow: str) -> bool:
    """Whether an access is contiguous along ``slow`` and far apart along ``fast``."""
    buffer, offset = access
    if buffer.dtype.bytes not in SIZES:
        return False
    affine = offset.affine((fast, slow))
    if affine is None:
        return False
    step = affine[0].get(fast, ZERO)
    is_near = step.is_constant and abs(step.value) <= MOST_PICKED
    return affine[0].get(slow, ZERO) is ONE and not is_near


@dataclass(frozen=True)
class _Part:
    """The elements of an axis that a task has: the first one, how many, how many at most."""

    first: Expr
    count: Expr
    most: Expr


def _run(size: Expr, other: Expr) -> Expr:
    """How many elements a task has along which it computes: memory gives long runs faster.

    Each of the fewest tasks has as many as the others, in whole vectors.
    """
    count = maximum(ceil_div(size, maximum(columns_of_task(other), LONG)), 1)
    return maximum(ceil_div(ceil_div(size, count), WIDE_LANES) * WIDE_LANES, WIDE_LANES)


class _Block:
    """The statements of one task, whose parts of both axes become axes of ``grid``."""

    def __init__(
        self, lowering: Lowering, order: Order, sizes: dict[str, Expr],
        grid: list[tuple[str, Expr]],
    ) -> None:  # fmt: skip
        self.lowering = lowering
        self.order = order
        self.size = fast = sizes[order.fast]
        slow = sizes[order.slow]
        self.parts = {
            order.slow: self._part(slow, columns_of_task(fast), grid),
            order.fast: self._part(fast, _run(fast, slow), grid),
        }
        # Long runs as far apart as a power of two would share few sets of the first cache.
        most = self.parts[order.fast].most
        widest = max((buffer.dtype.bytes for buffer, _ in order.turned), default=LINE_BYTES)
        self.row = most + LINE_BYTES // widest * less(STRIP, most)
        self.scratch: dict[Access, TileBuffer] = {}
        for buffer, offset in order.turned:
            elements = self.parts[order.slow].most * self.row
            self.scratch[buffer, offset] = lowering.scratch_buffer(buffer.dtype, elements)

    def _part(self, size: Expr, most: Expr, grid: list[tuple[str, Expr]]) -> _Part:
        if size.is_constant and size.value <= STRIP:
            return _Part(ZERO, size, size)
        number = self.lowering.variable(ceil_div(size, most), "t")
        grid.append((str(number), ceil_div(size, most)))
        return _Part(number * most, minimum(size - number * most, most), minimum(size, most))

    def statements(self, body: Sequence[Statement]) -> list[Statement]:
        """Operands turned, the loops of the block, and results turned."""
        written = {(s.buffer, s.offset) for s in body if isinstance(s, Store)}
        turned = self.order.turned
        before = [self._turned_in(access) for access in turned if access not in written]
        after = [self._turned_out(access) for access in turned if access in written]
        return [*before, self._loops(body), *after]

    def _slope(self, offset: Expr, name: str) -> Expr:
        affine = offset.affine((name,))
        assert affine is not None
        return affine[0].get(name, ZERO)

    def _origin(self, offset: Expr) -> Expr:
        return offset.substitute({name: part.first for name, part in self.parts.items()})

    def _turned_in(self, access: Access) -> TransposeBlock:
        (buffer, offset), order = access, self.order
        return TransposeBlock(
            buffer, self._origin(offset), self._slope(offset, order.fast),
            self.scratch[access], ZERO, self.row,
            self.parts[order.fast].count, self.parts[order.slow].count,
        )  # fmt: skip

    def _turned_out(self, access: Access) -> TransposeBlock:
        (buffer, offset), order = access, self.order
        return TransposeBlock(
            self.scratch[access], ZERO, self.row,
            buffer, self._origin(offset), self._slope(offset, order.fast),
            self.parts[order.slow].count, self.parts[order.fast].count,
        )  # fmt: skip

    def _loops(self, body: Sequence[Statement]) -> Loop:
        slow, fast = (self.parts[name] for name in (self.order.slow, self.order.fast))
        joined = self._joins_rows(body)
        self.lowering.open()
        outer = self.lowering.variable(slow.most)
        self.lowering.open()
        inner = self.lowering.variable(select(joined, slow.most * fast.most, fast.most))
        place = {self.order.slow: slow.first + outer, self.order.fast: fast.first + inner}
        rewritten = _InScratch(place, self.scratch, outer * self.row + inner).statements(body)
        self.lowering.close()
        self.lowering.close()
        length = select(joined, slow.count * fast.count, fast.count)
        along = Loop(str(inner), ZERO, length, rewritten)
        return Loop(str(outer), ZERO, select(joined, ONE, slow.count), (along,))

    def _joins_rows(self, body: Sequence[Statement]) -> Expr:
        """Whether rows follow each other everywhere, in scratch too, so that they are a single one.

        Then they are computed as one, which fills vectors however short they are.
        """
        names = {self.order.fast, self.order.slow}
        values = [s.value for s in body if isinstance(s, Let | Store)]
        parts = [part for value in values for part in value_parts(value)]
        moved = any(
            isinstance(part, IndexValue) and not names.isdisjoint(part.expression.free_symbols)
            for part in parts
        )
        if moved or any(isinstance(part, Guarded) for part in parts):
            return ZERO
        for access in _accesses(body) or ():
            steps = self._slope(access[1], self.order.fast), self._slope(access[1], self.order.slow)
            if access not in self.scratch and steps not in ((ONE, self.size), (ZERO, ZERO)):
                return ZERO
        return less_equal(self.size, STRIP)


class _InScratch(ExpressionMap):
    """A body at one place of a block: what is turned is read from scratch, or written there."""

    def __init__(
        self, place: dict[str, Expr], scratch: dict[Access, TileBuffer], offset: Expr
    ) -> None:
        super().__init__(lambda e: e.substitute(place))
        self._scratch, self._offset = scratch, offset

    def _value(self, value: Value) -> Value:
        if isinstance(value, Load) and (value.buffer, value.offset) in self._scratch:
            return Load(self._scratch[value.buffer, value.offset], self._offset)
        return super()._value(value)

    def statement(self, statement: Statement) -> Statement:
        """One statement rewritten."""
        if isinstance(statement, Store):
            target = self._scratch.get((statement.buffer, statement.offset))
            if target is not None:
                return Store(target, self._offset, self.value(statement.value))
        return super().statement(statement)
