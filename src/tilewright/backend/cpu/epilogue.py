"""What happens to a finished tile: elementwise work on vectors of columns, then the stores.

Light epilogues take their sums out of the tile's registers, under a mask where the last vector has
a part of its columns and the level masks stores; others work on sums in the first-level cache.
Either is one function per kernel and width.
Columns run along the lanes: operands with stride 1 are vector loads, operands that do not depend on
the column are broadcast, anything else is read lane by lane. Start with :class:`Epilogue`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from tilewright.backend.cpu.cover import Sums
from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.function import Environment
from tilewright.backend.cpu.indices import I64, word
from tilewright.backend.cpu.internal import POINTER, internal_function
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.register_tile import TileShape
from tilewright.backend.cpu.statements import FunctionFrame
from tilewright.backend.cpu.streams import store_past
from tilewright.backend.cpu.tile_functions import SumsTaker, give_sums
from tilewright.backend.cpu.vectors import VectorFrame, VectorPlace, address_of
from tilewright.ir.epilogue import COLUMN, ROW, is_light, met_elements
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.stage_axis import NEVER
from tilewright.ir.tile import LINE_BYTES

FAR = "_far"  # in the environment: whether results go farther away than the nearest caches
STREAMED = "_past"  # and whether they go past all of them
BIT = ir.IntType(1)
SUM = "accumulator"  # the name of an element's sum in the stores


@dataclass(frozen=True)
class TilePlace:
    """The first row and column of a tile, and the kernel's environment.

    ``asks`` says whether to ask for what the next panel meets in the rows of the tile.
    """

    m: ir.Value
    n: ir.Value
    environment: ir.Value
    asks: ir.Value


class Epilogue:
    """The epilogue functions of one product, written on first use."""

    def __init__(
        self,
        module: ir.Module,
        name: str,
        nest: ProductNest,
        environment: Environment,
        level: Level,
    ) -> None:
        self.module = module
        self.name = name
        self.dtype = nest.dtype
        self.columns = nest.registers.columns
        self.stores = nest.finish.stores
        self.may_stream = nest.finish.streamed != NEVER
        self.environment = environment
        self.level = level
        self.lanes = level.lanes(self.dtype.bytes)
        self.is_light = is_light(self.stores)
        self._made: dict[str, ir.Function] = {}

    def rows(self) -> ir.Function:
        """Finish sums in memory.

        It is given (m, n, height, columns, sums, row of sums, environment, whether to ask for the
        lines of the next panel).
        """
        if "rows" not in self._made:
            self._made["rows"] = self._write_rows()
        return self._made["rows"]

    def finish(
        self, frame: FunctionFrame, tallest: TileShape, sums: Sums, place: TilePlace,
        part: int | ir.Value = 0,
    ) -> None:  # fmt: skip
        """Finish the sums of a tile up to ``tallest``, all columns of which are there.

        The tallest one, as most are, is finished in place, as a call takes as long as several
        steps, unless it has so many sums that what takes them is a part of the kernel anyway.
        Of the last vector only ``part`` columns are there, unless that is 0; it may be known in a
        call only.
        """
        known, told = (part, []) if isinstance(part, int) else (None, [part])
        width = tallest.vectors
        if len(sums) == tallest.height * width <= self.level.most_passed:

            def rows(past: bool) -> None:
                for i in range(tallest.height):
                    values = sums[i * width : (i + 1) * width]
                    self._tile_row(frame, place, i, (values, part), past)

            self._either_way(frame, rows)
            return
        some = "_some" if known is None else f"_{known}" if known else ""
        suffix = f"tile{tallest.height}x{width}{some}"
        if suffix not in self._made:
            self._made[suffix] = self._write_tile(suffix, tallest, known)
        given = [place.m, place.n, place.environment, place.asks, *told]
        give_sums(frame.builder, self._made[suffix], tallest, sums, given)

    def _tile_row(
        self, frame: FunctionFrame, place: TilePlace, i: int, sums: tuple[Sums, int | ir.Value],
        past: bool,
    ) -> None:  # fmt: skip
        """Row ``i`` of a tile: its sums, and the columns of the last vector."""
        values, part = sums
        builder = frame.builder
        frame.names[ROW] = builder.add(place.m, word(i))
        frame.enter()
        for j, accumulator in enumerate(values):
            count = part if j + 1 == len(values) and part else None
            count = word(count) if isinstance(count, int) else count
            first = builder.add(place.n, word(j * self.lanes))
            self._finished(frame, VectorPlace(COLUMN, first, count), accumulator, past)
        self._ask_ahead(frame, place, past)
        frame.leave()

    def _write_tile(self, suffix: str, tallest: TileShape, part: int | None) -> ir.Function:
        """``part`` is the columns of the last vector, 0 for all; None where a call says them."""
        kinds = [I64, I64, POINTER, BIT] + ([I64] if part is None else [])
        name = f"{self.name}.{suffix}"
        taker = SumsTaker.declare(self.module, self.level, name, tallest, kinds)
        builder, (m, n, environment, asks, *told) = taker.builder, taker.rest
        place = TilePlace(m, n, environment, asks)
        frame = self.environment.frame(builder, self.level, environment)
        some = told[0] if part is None else part
        for i, values in taker.rows():
            frame.enter()

            def row(past: bool, i: int = i, values: Sums = values) -> None:
                self._tile_row(frame, place, i, (values, some), past)

            self._either_way(frame, row)
            frame.leave()
        return taker.function

    def _either_way(self, frame: FunctionFrame, write: Callable[[bool], None]) -> None:
        """``write`` for results that go past the caches, and for others."""
        if not self.may_stream:
            write(False)
            return
        builder = frame.builder
        asked = builder.icmp_signed("!=", frame.names[STREAMED], word(0))
        with builder.if_else(asked) as ways:
            for way, past in zip(ways, (True, False), strict=True):
                with way:
                    frame.enter()
                    write(past)
                    frame.leave()

    def prefetch(self, columns: int) -> ir.Function:
        """(m, height, first column, environment): ask for the lines that so many columns meet.

        Results are stored to these lines, or what lies there is added to them.
        """
        suffix = f"ask{columns}"
        if suffix not in self._made:
            self._made[suffix] = self._write_prefetch(suffix, columns)
        return self._made[suffix]

    def _write_prefetch(self, suffix: str, columns: int) -> ir.Function:
        function, builder = self._function(suffix, [I64, I64, I64, POINTER])
        m, height, n, environment = function.args
        frame = self.environment.frame(builder, self.level, environment)

        def row(past: bool) -> None:
            self._ask(frame, (n, columns), past, begun=False)

        self._each_row(frame, m, height, lambda _: self._either_way(frame, row))
        return function

    def _ask_ahead(self, frame: FunctionFrame, place: TilePlace, past: bool) -> None:
        """Ask for what the next panel meets in a row, where the tile at a place asks.

        The second cache takes it: the lines of all rows that a panel has would take the place of
        operands in the first one. Those of one row at a time, between stores.
        """
        with frame.builder.if_then(place.asks):
            frame.enter()
            beyond = frame.builder.add(place.n, word(self.columns))
            self._ask(frame, (beyond, self.columns), past, begun=True)
            frame.leave()

    def _ask(
        self, frame: FunctionFrame, place: tuple[ir.Value, int], past: bool, *, begun: bool
    ) -> None:
        """Ask for the lines that a row meets in the columns of a ``place`` (first, how many).

        Where they are ``begun``, the first one's line was asked for with those before, unless it
        begins there, and they are needed later. Results that go ``past`` the caches are not read.
        """
        first, columns = place
        for buffer, offset, to_write in met_elements(self.stores):
            if past and to_write:
                continue
            line = LINE_BYTES // buffer.dtype.bytes
            ends = {min(end, columns) - 1 for end in range(line, columns + line, line)}
            for before in sorted(ends if begun else ends | {0}):
                column = {COLUMN: frame.builder.add(first, word(before))}
                address = address_of(frame, buffer, offset, column)
                frame.emitter.prefetch(address, to_write=to_write, near=not begun)

    def _function(self, suffix: str, kinds: Sequence[ir.Type]) -> tuple[ir.Function, ir.IRBuilder]:
        kind = ir.FunctionType(ir.VoidType(), kinds)
        function = internal_function(self.module, f"{self.name}.{suffix}", kind)
        function.attributes.add("noinline")
        return function, ir.IRBuilder(function.append_basic_block("entry"))

    def _write_rows(self) -> ir.Function:
        kinds = [I64, I64, I64, I64, POINTER, I64, POINTER, BIT]
        function, builder = self._function("rows", kinds)
        m, n, height, columns, sums, row, environment, asks = function.args
        place = TilePlace(m, n, environment, asks)
        frame = self.environment.frame(builder, self.level, environment)

        def finish(i: ir.Value) -> None:
            source = frame.emitter.gep(sums, self.dtype, builder.mul(i, row))
            self._row(frame, n, columns, source)
            self._either_way(frame, lambda past: self._ask_ahead(frame, place, past))

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
        full = builder.icmp_signed("==", columns, word(self.columns))
        with builder.if_else(full) as (whole, part):
            with whole:
                self._either_way(frame, lambda past: self._whole(frame, n, source, past))
            with part:
                self._part(frame, n, columns, source)

    def _whole(self, frame: FunctionFrame, n: ir.Value, source: ir.Value, past: bool) -> None:
        for j in range(self.columns // self.lanes):
            before = word(j * self.lanes)
            place = VectorPlace(COLUMN, frame.builder.add(n, before))
            self._vector(frame, place, (source, before), past)

    def _part(self, frame: FunctionFrame, n: ir.Value, columns: ir.Value, source: ir.Value) -> None:
        builder = frame.builder
        for j in range(self.columns // self.lanes):
            before = word(j * self.lanes)
            # A store that its mask makes empty takes as long as another one.
            with builder.if_then(builder.icmp_signed("<", before, columns)):
                count = builder.sub(columns, before)
                place = VectorPlace(COLUMN, builder.add(n, before), count)
                self._vector(frame, place, (source, before), past=False)

    def _vector(
        self, frame: FunctionFrame, place: VectorPlace, sums: tuple[ir.Value, ir.Value],
        past: bool,
    ) -> None:  # fmt: skip
        """Finish one vector of columns, whose sums are in memory."""
        source, before = sums
        frame.enter()
        vector = Emitter(frame.builder, self.level, self.lanes)
        address = frame.emitter.gep(source, self.dtype, before)
        accumulator = vector.load(address, self.dtype)
        self._finished(frame, place, accumulator, past)
        frame.leave()

    def _finished(
        self, frame: FunctionFrame, place: VectorPlace, accumulator: ir.Value, past: bool
    ) -> None:
        """The stores of one vector of columns, whose sums are ``accumulator``."""
        vector = VectorFrame(frame, self.lanes, place, {SUM: accumulator})
        for store in self.stores:
            if past and place.count is None:
                store_past(vector, store)
            else:
                vector.store(store)
