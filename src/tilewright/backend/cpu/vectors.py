"""Values of neighbouring iterations of a loop, or columns of a tile, in one vector.

Scalar code is left to LLVM's vectoriser; here vectors are explicit, where sums are in registers
already (``epilogue``) or where stores must be whole lines (``streams``). Operands with stride 1 are
vector loads, those with a stride of few elements are picked out of several, operands that do not
depend on the loop are broadcast, anything else is read lane by lane. Start with
:class:`VectorFrame`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from llvmlite import ir

from tilewright.backend.cpu.cover import stepping
from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.indices import I64, IndexEmitter, word
from tilewright.backend.cpu.internal import POINTER
from tilewright.backend.cpu.machine import Level
from tilewright.ir.scalar import ADDING
from tilewright.ir.tile import (
    IDENTITY,
    Apply,
    Convert,
    IndexValue,
    Literal,
    Load,
    Local,
    Store,
    TileBuffer,
    Value,
)
from tilewright.ir.tile_interleaved import is_picked
from tilewright.ir.tile_walk import slope, stride
from tilewright.shape import Expr, symbol


class Scalars(Protocol):
    """What is known where the vectors stand; a ``FunctionFrame``."""

    builder: ir.IRBuilder
    level: Level
    emitter: Emitter
    indices: IndexEmitter
    pointers: dict[str, ir.Value]
    names: dict[str, ir.Value]
    locals: dict[str, ir.Value]

    def enter(self) -> None:
        """Begin a block."""
        ...

    def leave(self) -> None:
        """End a block whose values are not known in what follows."""
        ...

    def index(self, expression: Expr) -> ir.Value:
        """An index expression."""
        ...

    def value(self, value: Value) -> ir.Value:
        """A scalar value."""
        ...


@dataclass(frozen=True)
class VectorPlace:
    """The lanes are the values of ``variable`` from ``first`` on, ``count`` of them if given.

    Of a ``is_rest`` there are some, but fewer than there are lanes. What lies beyond them in
    ``ending`` is nothing.
    """

    variable: str
    first: ir.Value
    count: ir.Value | None = None
    is_rest: bool = False
    ending: frozenset[TileBuffer] = frozenset()


def address_of(
    frame: Scalars, buffer: TileBuffer, offset: Expr, names: Mapping[str, ir.Value]
) -> ir.Value:
    """Where an element lies, with some names other than the frame has them."""
    place = frame.indices.emit(offset, frame.names | dict(names))
    return frame.emitter.gep(frame.pointers[buffer.name], buffer.dtype, place)


class VectorFrame:
    """Values in the ``lanes`` of a place; ``locals`` are those known as vectors already."""

    def __init__(
        self, frame: Scalars, lanes: int, place: VectorPlace, locals: Mapping[str, ir.Value]
    ) -> None:
        self.frame = frame
        self.builder = frame.builder
        self.lanes = lanes
        self.place = place
        self.locals = dict(locals)
        self.vector = Emitter(frame.builder, frame.level, lanes)
        count = place.count
        self.mask = None if count is None else self.vector.lane_mask(count)
        self.memo: dict[int, ir.Value] = {}

    def value(self, value: Value) -> ir.Value:
        """A value of every lane, computed once."""
        if id(value) not in self.memo:
            self.memo[id(value)] = self._value(value)
        return self.memo[id(value)]

    def _value(self, value: Value) -> ir.Value:
        match value:
            case Load():
                return self._load(value)
            case Literal(value=number, dtype=dtype):
                return self.vector.constant(number, dtype)
            case IndexValue(expression=expression):
                return self._lanes_of_index(expression)
            case Apply(function=function, operands=operands):
                arguments = [self.value(operand) for operand in operands]
                if function in ADDING:
                    return self.vector.adding(function, value.dtype, arguments)
                return self.vector.apply(function, value.operand_type, arguments)
            case Convert():
                return self.vector.convert(self.value, value)
            case Local(name=name, dtype=dtype) if name.startswith(IDENTITY):
                return self.vector.identity(name[len(IDENTITY) :], dtype)
            case Local(name=name):
                known = self.locals.get(name)
                return self.vector.splat(self.frame.locals[name]) if known is None else known
            case _:
                raise AssertionError(f"{type(value).__name__} in a vector")

    def _load(self, load: Load) -> ir.Value:
        dtype = load.buffer.dtype
        step = stride(load.offset, self.place.variable)
        if step == 0:
            return self.vector.splat(self.frame.value(load))
        if step == 1:
            address = self._address(load.buffer, load.offset, self.place.first)
            if self.mask is None or self._is_whole(load):
                return self.vector.load(address, dtype)
            return self.vector.masked_load(address, dtype, self.mask)
        if is_picked(step) and self.frame.level.has_masks:
            return self._picked(load, step)
        made: ir.Value = ir.Constant(self.vector.type(dtype), ir.Undefined)
        for lane in range(self.lanes):
            address = self._address(load.buffer, load.offset, self._column(lane))
            element = self.frame.emitter.load(address, dtype)
            made = self.builder.insert_element(made, element, ir.Constant(ir.IntType(32), lane))
        return made

    def _picked(self, load: Load, step: int) -> ir.Value:
        """Every ``step``-th element of as many vectors; none after the last lane's is read."""
        builder, dtype, lanes, count = self.builder, load.buffer.dtype, self.lanes, self.place.count
        first = self._address(load.buffer, load.offset, self.place.first)
        if count is None:
            count = ir.Constant(ir.IntType(32), lanes)
        last = builder.mul(builder.sub(count, ir.Constant(count.type, 1)),
                           ir.Constant(count.type, step))  # fmt: skip
        read: list[ir.Value] = []
        for part in range(step):
            address = self.vector.gep(first, dtype, word(part * lanes))
            here = builder.sub(last, ir.Constant(count.type, part * lanes - 1))
            if self.place.count is None and part < step - 1:
                read.append(self.vector.load(address, dtype))
            else:
                read.append(self.vector.masked_load(address, dtype, self.vector.lane_mask(here)))
        return self.vector.picked(read, [divmod(i * step, lanes) for i in range(lanes)])

    def _column(self, lane: int) -> ir.Value:
        """The lane's column, or the last valid one beyond it, so that no lane reads outside."""
        if self.place.count is None:
            return self.builder.add(self.place.first, word(lane))
        last = self.builder.sub(self.place.count, word(1))
        clipped = self.builder.select(
            self.builder.icmp_signed("<", last, word(lane)), last, word(lane)
        )
        positive = self.builder.select(
            self.builder.icmp_signed("<", clipped, word(0)), word(0), clipped
        )
        inside = self.builder.icmp_signed(">", self.place.count, word(0))
        start = self.builder.select(inside, self.place.first, word(0))
        return self.builder.add(start, positive)

    def _lanes_of_index(self, expression: Expr) -> ir.Value:
        if self.place.variable not in expression.free_symbols:
            return self.vector.splat(self.frame.index(expression))
        step = stride(expression, self.place.variable)
        if step is not None:
            names = self.frame.names | {self.place.variable: self.place.first}
            first = self.vector.splat(self.frame.indices.emit(expression, names))
            kind = ir.VectorType(I64, self.lanes)
            return self.builder.add(first, ir.Constant(kind, [n * step for n in range(self.lanes)]))
        made: ir.Value = ir.Constant(ir.VectorType(I64, self.lanes), ir.Undefined)
        for lane in range(self.lanes):
            names = self.frame.names | {self.place.variable: self._column(lane)}
            element = self.frame.indices.emit(expression, names)
            made = self.builder.insert_element(made, element, ir.Constant(ir.IntType(32), lane))
        return made

    def _is_whole(self, access: Load | Store) -> bool:
        """Whether nothing else lies in the lanes of a vector beyond the last one in use."""
        place = symbol(self.place.variable)
        return access.buffer in self.place.ending and access.offset is place

    def _address(self, buffer: TileBuffer, offset: Expr, position: ir.Value) -> ir.Value:
        return address_of(self.frame, buffer, offset, {self.place.variable: position})

    def store(self, store: Store) -> None:
        """Write the elements of all lanes."""
        value = self.value(store.value)
        dtype = store.buffer.dtype
        if slope(store.offset, self.place.variable) == 1:
            address = self._address(store.buffer, store.offset, self.place.first)
            if self.mask is None or self._is_whole(store):
                self.vector.store(value, address, dtype)
            elif isinstance(self.place.count, ir.Constant):
                self.vector.store_first(value, address, dtype, self.place.count.constant)
            elif self.place.is_rest and self.place.count is not None:
                self.vector.store_rest(value, address, dtype, self.place.count)
            else:
                self.vector.masked_store(value, address, dtype, self.mask)
            return
        if store.offset.affine((self.place.variable,)) is None:
            self._store_by_lane(store, value)
            return
        for lane in range(self.lanes):
            element = self.builder.extract_element(value, ir.Constant(ir.IntType(32), lane))
            if self.place.count is None:
                self._store_lane(store, element, lane)
                continue
            with self.builder.if_then(self.builder.icmp_signed("<", word(lane), self.place.count)):
                self._store_lane(store, element, lane)

    def _store_lane(self, store: Store, element: ir.Value, lane: int) -> None:
        column = self.builder.add(self.place.first, word(lane))
        address = self._address(store.buffer, store.offset, column)
        self.frame.emitter.store(element, address, store.buffer.dtype)

    def _store_by_lane(self, store: Store, value: ir.Value) -> None:
        """Write the lanes in a loop: where one lies takes divisions, which are said once."""
        builder, dtype, scalar = self.builder, store.buffer.dtype, self.frame.emitter
        kind = ir.VectorType(self.vector.memory_type(dtype), self.lanes)
        with builder.goto_entry_block():
            near = builder.alloca(kind)
        near.type = POINTER  # llvmlite alone still gives it the type of what it points to
        self.vector.store(value, near, dtype)

        def lane(number: ir.Value) -> ir.Value:
            element = scalar.load(scalar.gep(near, dtype, number), dtype)
            column = builder.add(self.place.first, number)
            scalar.store(element, self._address(store.buffer, store.offset, column), dtype)
            return word(1)

        end: ir.Value = word(self.lanes)
        if self.place.count is not None:
            some = builder.icmp_signed("<", self.place.count, end)
            end = builder.select(some, self.place.count, end)
        stepping(builder, "lane", (word(0), end), lane, always=self.place.count is None)
