"""What happens to a finished tile: elementwise work on vectors of columns, then the stores.

Light epilogues take their sums out of the tile's registers; heavy ones, and those of the last few
columns, work on sums in the first-level cache. Either is one function per kernel and width.
Columns run along the lanes: operands with stride 1 are vector loads, operands that do not depend on
the column are broadcast, anything else is read lane by lane. Start with :class:`Epilogue`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.function import Environment
from tilewright.backend.cpu.indices import I64, word
from tilewright.backend.cpu.internal import POINTER, internal_function
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.register_tile import Sums, TileShape
from tilewright.backend.cpu.statements import FunctionFrame
from tilewright.backend.cpu.tile_functions import SumsTaker, give_sums
from tilewright.ir.epilogue import COLUMN, ROW, column_slope, is_light
from tilewright.ir.tile import (
    IDENTITY,
    Apply,
    Contraction,
    Convert,
    IndexValue,
    Literal,
    Load,
    Local,
    Store,
    TileBuffer,
    Value,
)
from tilewright.shape import Expr

FAR = "_far"  # in the environment: whether results go farther away than the nearest caches


class Epilogue:
    """The epilogue functions of one contraction, written on first use."""

    def __init__(
        self,
        module: ir.Module,
        name: str,
        program: Contraction,
        environment: Environment,
        level: Level,
    ) -> None:
        self.module = module
        self.name = name
        self.program = program
        self.environment = environment
        self.level = level
        self.lanes = level.lanes(program.dtype.bytes)
        self.is_light = is_light(program.stores)
        self._made: dict[str, ir.Function] = {}

    def rows(self) -> ir.Function:
        """(m, n, height, columns, sums, row of sums, environment): finish sums in memory."""
        if "rows" not in self._made:
            self._made["rows"] = self._write_rows()
        return self._made["rows"]

    def finish(
        self, builder: ir.IRBuilder, tallest: TileShape, sums: Sums, place: Sequence[ir.Value],
        part: int = 0,
    ) -> None:  # fmt: skip
        """Finish the sums of a tile up to ``tallest``, all columns of which are there.

        ``place`` is (m, n, environment). Of the last vector only ``part`` columns are there, unless
        that is 0.
        """
        suffix = f"tile{tallest.height}x{tallest.vectors}" + (f"_{part}" if part else "")
        if suffix not in self._made:
            self._made[suffix] = self._write_tile(suffix, tallest, part)
        give_sums(builder, self._made[suffix], tallest, sums, place)

    def _write_tile(self, suffix: str, tallest: TileShape, part: int) -> ir.Function:
        kinds = [I64, I64, POINTER]
        name = f"{self.name}.{suffix}"
        taker = SumsTaker.declare(self.module, self.level, name, tallest, kinds)
        builder, (m, n, environment) = taker.builder, taker.rest
        frame = self.environment.frame(builder, self.level, environment)
        for i, values in taker.rows():
            frame.names[ROW] = builder.add(m, word(i))
            frame.enter()
            for j, accumulator in enumerate(values):
                first = builder.add(n, word(j * self.lanes))
                count = word(part) if part and j + 1 == len(values) else None
                _VectorFrame(frame, self.lanes, first, count, accumulator, self.program).stores()
            frame.leave()
        return taker.function

    def prefetch(self) -> ir.Function:
        """(m, height, first column, last column, environment): ask for lines to be stored to."""
        if "prefetch" not in self._made:
            self._made["prefetch"] = self._write_prefetch()
        return self._made["prefetch"]

    def _write_prefetch(self) -> ir.Function:
        function, builder = self._function("prefetch", [I64, I64, I64, I64, POINTER])
        m, height, *ends, environment = function.args
        frame = self.environment.frame(builder, self.level, environment)

        def row() -> None:
            for store in self.program.stores:
                for end in ends if column_slope(store.offset) == 1 else ():
                    address = _address(frame, store.buffer, store.offset, end)
                    frame.emitter.prefetch(address, to_write=True)

        self._each_row(frame, m, height, lambda _: row())
        return function

    def _function(self, suffix: str, kinds: Sequence[ir.Type]) -> tuple[ir.Function, ir.IRBuilder]:
        kind = ir.FunctionType(ir.VoidType(), kinds)
        function = internal_function(self.module, f"{self.name}.{suffix}", kind)
        function.attributes.add("noinline")
        return function, ir.IRBuilder(function.append_basic_block("entry"))

    def _write_rows(self) -> ir.Function:
        kinds = [I64, I64, I64, I64, POINTER, I64, POINTER]
        function, builder = self._function("rows", kinds)
        m, n, height, columns, sums, row, environment = function.args
        frame = self.environment.frame(builder, self.level, environment)

        def finish(i: ir.Value) -> None:
            source = frame.emitter.gep(sums, self.program.dtype, builder.mul(i, row))
            self._row(frame, n, columns, source)

        self._each_row(frame, m, height, finish)
        return function

    def _each_row(
        self, frame: FunctionFrame, m: ir.Value, height: ir.Value, write: Callable[[ir.Value], None]
    ) -> None:
        """``write`` for every row from ``m`` on, and the end of the function."""
        builder = frame.builder
        body = builder.function.append_basic_block("row")
        done = builder.function.append_basic_block("done")
        before = builder.block
        builder.branch(body)
        builder.position_at_end(body)
        i = builder.phi(I64)
        i.add_incoming(word(0), before)
        frame.names[ROW] = builder.add(m, i)
        frame.enter()
        write(i)
        frame.leave()
        following = builder.add(i, word(1))
        i.add_incoming(following, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, height), body, done)
        builder.position_at_end(done)
        builder.ret_void()

    def _row(self, frame: FunctionFrame, n: ir.Value, columns: ir.Value, source: ir.Value) -> None:
        """All vectors of one row: whole ones without a mask, the rest with one."""
        builder = frame.builder
        full = builder.icmp_signed("==", columns, word(self.program.tile_columns))
        with builder.if_else(full) as (whole, part):
            with whole:
                self._vectors(frame, n, columns, source, False)
            with part:
                self._vectors(frame, n, columns, source, True)

    def _vectors(
        self, frame: FunctionFrame, n: ir.Value, columns: ir.Value, source: ir.Value, masked: bool
    ) -> None:
        builder = frame.builder
        for j in range(self.program.tile_columns // self.lanes):
            before = word(j * self.lanes)
            if not masked:
                self._vector(frame, builder.add(n, before), None, (source, before))
                continue
            # A store that its mask makes empty takes as long as another one.
            with builder.if_then(builder.icmp_signed("<", before, columns)):
                count = builder.sub(columns, before)
                self._vector(frame, builder.add(n, before), count, (source, before))

    def _vector(
        self,
        frame: FunctionFrame,
        first: ir.Value,
        count: ir.Value | None,
        place: tuple[ir.Value, ir.Value],
    ) -> None:
        """Finish one vector of columns from ``first`` on, whose sums are in memory."""
        source, before = place
        frame.enter()
        vector = Emitter(frame.builder, self.level, self.lanes)
        address = frame.emitter.gep(source, self.program.dtype, before)
        accumulator = vector.load(address, self.program.dtype)
        _VectorFrame(frame, self.lanes, first, count, accumulator, self.program).stores()
        frame.leave()


def _address(frame: FunctionFrame, buffer: TileBuffer, offset: Expr, column: ir.Value) -> ir.Value:
    place = frame.indices.emit(offset, frame.names | {COLUMN: column})
    return frame.emitter.gep(frame.pointers[buffer.name], buffer.dtype, place)


class _VectorFrame:
    """Values of ``lanes`` neighbouring columns from ``first`` on; ``count`` of them are valid."""

    def __init__(
        self,
        frame: FunctionFrame,
        lanes: int,
        first: ir.Value,
        count: ir.Value | None,
        accumulator: ir.Value,
        program: Contraction,
    ) -> None:
        self.frame = frame
        self.builder = frame.builder
        self.lanes = lanes
        self.first = first
        self.count = count
        self.program = program
        self.vector = Emitter(frame.builder, frame.level, lanes)
        self.mask = None if count is None else self.vector.lane_mask(count)
        self.accumulator = accumulator
        self.memo: dict[int, ir.Value] = {}

    def stores(self) -> None:
        """All results of these columns."""
        for store in self.program.stores:
            self._store(store, self.value(store.value))

    def value(self, value: Value) -> ir.Value:
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
                return self.vector.apply(function, value.operand_type, arguments)
            case Convert(operand=operand):
                return self.vector.convert(self.value(operand), value)
            case Local(name=name, dtype=dtype) if name.startswith(IDENTITY):
                return self.vector.identity(name[len(IDENTITY) :], dtype)
            case Local():
                return self.accumulator
            case _:
                raise AssertionError(f"{type(value).__name__} in an epilogue")

    def _load(self, load: Load) -> ir.Value:
        dtype = load.buffer.dtype
        slope = column_slope(load.offset)
        if slope == 0:
            return self.vector.splat(self.frame.value(load))
        if slope == 1:
            address = _address(self.frame, load.buffer, load.offset, self.first)
            if self.mask is None:
                return self.vector.load(address, dtype)
            return self.vector.masked_load(address, dtype, self.mask)
        made: ir.Value = ir.Constant(self.vector.type(dtype), ir.Undefined)
        for lane in range(self.lanes):
            address = _address(self.frame, load.buffer, load.offset, self._column(lane))
            element = self.frame.emitter.load(address, dtype)
            made = self.builder.insert_element(made, element, ir.Constant(ir.IntType(32), lane))
        return made

    def _column(self, lane: int) -> ir.Value:
        """The lane's column, or the last valid one beyond it, so that no lane reads outside."""
        if self.count is None:
            return self.builder.add(self.first, word(lane))
        last = self.builder.sub(self.count, word(1))
        clipped = self.builder.select(
            self.builder.icmp_signed("<", last, word(lane)), last, word(lane)
        )
        positive = self.builder.select(
            self.builder.icmp_signed("<", clipped, word(0)), word(0), clipped
        )
        inside = self.builder.icmp_signed(">", self.count, word(0))
        start = self.builder.select(inside, self.first, word(0))
        return self.builder.add(start, positive)

    def _lanes_of_index(self, expression: Expr) -> ir.Value:
        if COLUMN not in expression.free_symbols:
            return self.vector.splat(self.frame.index(expression))
        made: ir.Value = ir.Constant(ir.VectorType(I64, self.lanes), ir.Undefined)
        for lane in range(self.lanes):
            names = self.frame.names | {COLUMN: self._column(lane)}
            element = self.frame.indices.emit(expression, names)
            made = self.builder.insert_element(made, element, ir.Constant(ir.IntType(32), lane))
        return made

    def _store(self, store: Store, value: ir.Value) -> None:
        dtype = store.buffer.dtype
        if column_slope(store.offset) == 1:
            address = _address(self.frame, store.buffer, store.offset, self.first)
            if self.mask is None:
                self.vector.store(value, address, dtype)
            elif isinstance(self.count, ir.Constant):
                self.vector.store_first(value, address, dtype, self.count.constant)
            else:
                self.vector.masked_store(value, address, dtype, self.mask)
            return
        for lane in range(self.lanes):
            element = self.builder.extract_element(value, ir.Constant(ir.IntType(32), lane))
            if self.count is None:
                self._store_lane(store, element, lane)
                continue
            with self.builder.if_then(self.builder.icmp_signed("<", word(lane), self.count)):
                self._store_lane(store, element, lane)

    def _store_lane(self, store: Store, element: ir.Value, lane: int) -> None:
        column = self.builder.add(self.first, word(lane))
        address = _address(self.frame, store.buffer, store.offset, column)
        self.frame.emitter.store(element, address, store.buffer.dtype)
