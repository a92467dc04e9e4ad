"""Contractions as machine code: the loops over blocks and tiles around the register tile.

A task is one block of rows and columns of one batch element. Per block of k: pack the right operand
if it needs that, then run the register tile over the block, columns outside, rows inside. The last
block of k finishes its tiles: in registers where the epilogue is light and all columns are there,
else on the tile's sums in the first-level cache. Start with :func:`write_contraction`.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from tilewright.backend.cpu.blocks import K0, K1, M0, M1, N0, N1, Place
from tilewright.backend.cpu.cover import by_height, by_vectors, heights, stepping
from tilewright.backend.cpu.epilogue import FAR, Epilogue
from tilewright.backend.cpu.function import Environment, KernelFunction, Signature, task_loop
from tilewright.backend.cpu.indices import word
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.prefetch import Prefetcher
from tilewright.backend.cpu.register_tile import (
    Gathered,
    TileOperands,
    TileShape,
    most_rows,
)
from tilewright.backend.cpu.statements import FunctionFrame
from tilewright.backend.cpu.tile_functions import call_sums, store_sums
from tilewright.ir.dtype import DType
from tilewright.ir.tile import (
    OUTSIDE,
    Contraction,
    Gathering,
    Operand,
    Packing,
    TileBuffer,
)
from tilewright.shape import (
    Expr,
    less_equal,
    minimum,
    product,
    symbol,
)

NEAR_PANELS = 20 << 10  # bytes of packed panels that stay in the first-level cache
NEAR_RESULTS = 1 << 19  # bytes of results that stay in a cache until the next kernel reads them


def contraction_scratch(program: Contraction) -> tuple[TileBuffer, ...]:
    """The block of sums that tiles are stored to, and what the program says."""
    sums = TileBuffer("sums", program.dtype, True, program.block_m * program.block_n)
    return (sums, *program.scratch)


def write_contraction(
    module: ir.Module, name: str, program: Contraction, symbols: tuple[str, ...], level: Level
) -> None:
    """Add the kernel ``name`` to ``module``."""
    signature = Signature(symbols, program.buffers, contraction_scratch(program))
    function = KernelFunction(module, name, signature, level)
    frame, begin, end = function.frame()
    environment = Environment(signature, [FAR, *_told(program)])
    epilogue = Epilogue(module, name, program, environment, level)
    writer = _Writer(frame, program, level, epilogue)
    task_loop(frame, (begin, end), program.grid, writer.task)
    frame.builder.ret_void()


def _told(program: Contraction) -> list[str]:
    """What changes from task to task and an epilogue has to know."""
    return [*(name for name, _ in program.batch), *((M0, N0) if program.stages else ())]


class _Writer:
    def __init__(
        self, frame: FunctionFrame, program: Contraction, level: Level, epilogue: Epilogue
    ) -> None:
        self.frame = frame
        self.builder = frame.builder
        self.program = program
        self.level = level
        self.epilogue = epilogue
        elements = product([size for _, size in program.batch]) * program.m * program.n
        frame.names[FAR] = frame.index(less_equal(NEAR_RESULTS // program.dtype.bytes, elements))
        self.environment = epilogue.environment.allocate(frame)
        self.lanes = level.lanes(program.dtype.bytes)
        self.vectors = program.tile_columns // self.lanes
        self.prefetcher = Prefetcher(frame, program)

    def index(self, expression: Expr) -> ir.Value:
        return self.frame.index(expression)

    def task(self) -> None:
        """One block: bounds, blocks of k, tiles."""
        program, frame = self.program, self.frame
        m0, n0 = symbol("_mb") * program.block_m, symbol("_nb") * program.block_n
        bounds = (
            (M0, m0),
            (M1, minimum(m0 + program.block_m, program.m)),
            (N0, n0),
            (N1, minimum(n0 + program.block_n, program.n)),
        )
        for name, expression in bounds:
            frame.names[name] = self.index(expression)
        for name in _told(program):
            self.epilogue.environment.set(frame, self.environment, name)
        if isinstance(program.left, Gathering):
            self._gather(program.left)
        self.prefetcher.begin_task()
        limit, stride = self.index(program.k), self.index(program.block_k)
        # A depth of 0 still has to store zeros: the loop runs at least once.
        self._loop(K0, word(0), limit, lambda _: stride, self._depth_block, always=True)
        frame.statements(program.after)

    def _gather(self, left: Gathering) -> None:
        """Fill the table of the block's rows."""
        frame, builder = self.frame, self.builder
        if left.zeros is not None:
            zeros, data = (
                builder.ptrtoint(pointer, word(0).type)
                for pointer in (frame.pointers[left.zeros.name], self._gathered_left(left))
            )
            frame.names[OUTSIDE] = builder.sub(zeros, data)
        frame.statements(left.body)

    def _gathered_left(self, left: Gathering) -> ir.Value:
        pointer = self.frame.pointers[left.buffer.name]
        return self.frame.emitter.gep(pointer, self.program.dtype, self.index(left.base))

    def _loop(
        self,
        name: str,
        begin: ir.Value,
        end: ir.Value,
        step: Callable[[ir.Value], ir.Value],
        body: Callable[[], None],
        always: bool = False,
    ) -> None:
        """``body`` for ``name`` from begin to end; ``step`` says how far from where it is."""
        frame = self.frame

        def inside(variable: ir.Value) -> ir.Value:
            frame.names[name] = variable
            frame.enter()
            width = step(variable)
            body()
            frame.leave()
            return width

        stepping(self.builder, name, (begin, end), inside, always)

    def _depth_block(self) -> None:
        program, frame = self.program, self.frame
        frame.names[K1] = self.index(minimum(symbol(K0) + program.block_k, program.k))
        width, panels = word(program.tile_columns), frame.names[N0]
        if isinstance(program.right, Packing):
            frame.statements(program.right.body)
            if program.right.transposes:
                panels = self._whole_panels(width)
        self._loop("_np", panels, frame.names[N1], lambda _: width, self._panel)

    def _whole_panels(self, width: ir.Value) -> ir.Value:
        """Tiles of all whole panels, row by row, if they fit the first-level cache; what is left.

        Results are written along their rows then, and the left operand is met once.
        """
        builder, frame, program = self.builder, self.frame, self.program
        columns = builder.sub(frame.names[N1], frame.names[N0])
        steps = builder.sub(frame.names[K1], frame.names[K0])
        room = word(NEAR_PANELS // program.dtype.bytes)
        near = builder.icmp_signed("<=", builder.mul(columns, steps), room)
        whole = builder.select(near, builder.sub(columns, builder.urem(columns, width)), word(0))
        end = builder.add(frame.names[N0], whole)
        frame.enter()
        most = program.tile_rows
        height = self._height(most)

        def row() -> None:
            tall = height(frame.names["_mp"])

            def panel() -> None:
                place = Place(frame.names["_mp"], frame.names["_np"], tall, width, word(0))
                self._tile(place, self.vectors, True, most)

            self._loop("_np", frame.names[N0], end, lambda _: width, panel)

        rows = builder.select(near, frame.names[M1], frame.names[M0])
        self._loop("_mp", frame.names[M0], rows, height, row)
        frame.leave()
        return end

    def _panel(self) -> None:
        """All tiles of one panel of columns: whole ones, or the last and narrower one."""
        builder, frame, program = self.builder, self.frame, self.program
        width = word(program.tile_columns)
        remaining = builder.sub(frame.names[N1], frame.names["_np"])
        if program.tail == 0:
            self._rows(width, self.vectors, True)
            return
        full = builder.icmp_signed(">=", remaining, width)
        with builder.if_else(full) as (whole, part):
            with whole:
                self._rows(width, self.vectors, True)
            with part:
                self._last(remaining)

    def _last(self, columns: ir.Value) -> None:
        """The last panel, of as many vectors as it needs: moved back until it is full.

        Some results are computed twice then, to the same bits: partial loads and stores would take
        longer. They are for blocks of fewer columns than that.
        """
        tail, right = self.program.tail, self.program.right
        if isinstance(right, Operand) and right.panel:
            self._narrow(columns)
        elif tail is not None:
            self._moved_back(columns, -(-tail // self.lanes))
        else:

            def moved_back(vectors: int) -> None:
                self._moved_back(columns, vectors)

            by_vectors(self.builder, columns, self.lanes, self.vectors, moved_back)

    def _moved_back(self, columns: ir.Value, vectors: int) -> None:
        """The last panel of so many vectors, full ones if the block has that many columns."""
        builder, frame = self.builder, self.frame
        width = word(vectors * self.lanes)
        there = builder.icmp_signed(">=", builder.sub(frame.names[N1], frame.names[N0]), width)
        with builder.if_else(there) as (full, part):
            with full:
                self._rows(width, vectors, True, builder.sub(width, columns))
            with part:
                self._rows(columns, vectors, False)

    def _narrow(self, columns: ir.Value) -> None:
        """The last of the packed panels, with no more vectors than its columns need."""
        tail = self.program.tail
        if tail is None:
            self._rows(columns, self.vectors, False)
        else:
            self._rows(word(tail), -(-tail // self.lanes), tail % self.lanes == 0)

    def _rows(
        self, columns: ir.Value, vectors: int, full: bool, back: ir.Value | None = None
    ) -> None:
        """All rows of the block under one panel; heights cover them exactly.

        ``full`` says that the columns fill the vectors, ``back`` by how many columns the panel is
        moved back for that.
        """
        builder, frame = self.builder, self.frame
        frame.enter()
        most = self.program.tile_rows
        if not self._left_panel() and self.program.tail is not None:
            most = most_rows(self.level, vectors, self.program.narrow)
        panel = frame.names["_np"]
        first = panel if back is None else builder.sub(panel, back)
        height = self._height(most)

        def body() -> None:
            m = frame.names["_mp"]
            tall = height(m)
            number = builder.udiv(builder.sub(m, frame.names[M0]), tall)
            place = Place(m, first, tall, columns, number)
            self._tile(place, vectors, full, most)

        self._loop("_mp", frame.names[M0], frame.names[M1], height, body)
        frame.leave()

    def _height(self, most: int) -> Callable[[ir.Value], ir.Value]:
        """How high the tile at a row of the block is."""
        builder, frame = self.builder, self.frame
        base, taller = heights(builder, builder.sub(frame.names[M1], frame.names[M0]), most)
        turning = builder.add(frame.names[M0], builder.mul(taller, builder.add(base, word(1))))

        def height(m: ir.Value) -> ir.Value:
            if self._left_panel():  # packed panels fix where tiles begin
                remaining = builder.sub(frame.names[M1], m)
                return builder.select(
                    builder.icmp_signed("<", remaining, word(most)), remaining, word(most)
                )
            extra = builder.zext(builder.icmp_signed("<", m, turning), word(0).type)
            return builder.add(base, extra)

        return height

    def _left_panel(self) -> int:
        left = self.program.left
        return left.panel if isinstance(left, Operand) else 0

    # ------------------------------------------------------------ one tile

    def _tile(self, place: Place, vectors: int, full: bool, most: int) -> None:
        builder, frame = self.builder, self.frame
        sums, row = self._sums(place)
        resume = builder.icmp_signed(">", frame.names[K0], word(0))
        operands = self._operands(place, most)
        last = builder.icmp_signed(">=", frame.names[K1], self.index(self.program.k))
        masked = not full and self._may_overread()
        left = self.program.left
        gathered = isinstance(left, Gathering)
        shape = TileShape(
            self.program.dtype, 1, vectors, self._known_left(), self._known_right(), masked,
            gathered, gathered and left.shifts is not None, self.prefetcher.asks_right,
            self.prefetcher.asks_left, self.program.narrow,
        )  # fmt: skip
        target = [sums, row, resume]
        tail = self.program.tail
        light = self.epilogue.is_light and (full or tail is not None)
        part = 0 if full or tail is None else tail % self.lanes
        tallest = shape.with_height(most)
        if light:
            self._prefetch(place, last, vectors)

        def made(height: int) -> None:
            values = call_sums(builder, self.level, shape.with_height(height), operands, target)
            if not light:
                store_sums(builder, self.level, tallest, values, target)
                return
            with builder.if_else(last) as (ending, going_on):
                with ending:
                    where = [place.m, place.n, self.environment]
                    self.epilogue.finish(builder, tallest, values, where, part)
                with going_on:
                    store_sums(builder, self.level, tallest, values, target)

        by_height(builder, place.height, most, made)
        if not light:
            with builder.if_then(last):
                where = [place.m, place.n, place.height, place.columns, sums, row]
                builder.call(self.epilogue.rows(), [*where, self.environment])

    def _prefetch(self, place: Place, last: ir.Value, vectors: int) -> None:
        """Ask for the lines that the tile will be stored to, where they are far away."""
        builder = self.builder
        far = builder.trunc(self.frame.names[FAR], ir.IntType(1))
        with builder.if_then(builder.and_(far, last)):
            end = builder.add(place.n, word(vectors * self.lanes - 1))
            where = [place.m, place.height, place.n, end, self.environment]
            builder.call(self.epilogue.prefetch(), where)

    def _may_overread(self) -> bool:
        """Whether the last panel of the right operand may end inside a vector."""
        right = self.program.right
        return isinstance(right, Operand) and not right.panel

    def _known_left(self) -> int | None:
        left = self.program.left
        if isinstance(left, Gathering):
            return 1
        return left.depth.value if left.depth.is_constant and left.depth.value > 0 else None

    def _known_right(self) -> int | None:
        right = self.program.right
        depth = right.row if isinstance(right, Packing) else right.depth
        return depth.value if depth.is_constant and depth.value > 0 else None

    def _sums(self, place: Place) -> tuple[ir.Value, ir.Value]:
        """Where the tile's sums go: one small tile if k is one block, else the block of sums."""
        builder, frame, program = self.builder, self.frame, self.program
        pointer = frame.pointers["sums"]
        single = builder.icmp_signed("<=", self.index(program.k), self.index(program.block_k))
        wide = self.index(program.block_n)
        row = builder.select(single, word(program.tile_columns), wide)
        inner_m = builder.sub(place.m, frame.names[M0])
        # A panel that is moved back has sums of its own.
        inner_n = builder.sub(frame.names["_np"], frame.names[N0])
        offset = builder.add(builder.mul(inner_m, wide), inner_n)
        offset = builder.select(single, word(0), offset)
        return frame.emitter.gep(pointer, program.dtype, offset), row

    def _operands(self, place: Place, most: int) -> TileOperands:
        frame, left = self.frame, self.program.left
        right, right_depth = self._right(place)
        ahead, step = self.prefetcher.right(place, right, most)
        if isinstance(left, Gathering):
            run, base = self.index(left.run), self._gathered_left(left)
            gathered = self._gathered(place, left)
            return TileOperands(
                run, base, word(0), word(1), right, right_depth, place.columns, gathered,
                ahead, step,
            )  # fmt: skip
        steps = self.builder.sub(frame.names[K1], frame.names[K0])
        pointer, row, depth = self._left(place, left)
        return TileOperands(
            steps, pointer, row, depth, right, right_depth, place.columns, None, ahead, step,
            self.prefetcher.left(place, pointer, row, steps),
        )  # fmt: skip

    def _gathered(self, place: Place, left: Gathering) -> Gathered:
        builder, frame = self.builder, self.frame
        first = self.index(symbol(K0) // left.run)
        runs = self.index((symbol(K1) - symbol(K0)) // left.run)
        table, number = frame.pointers[left.table.name], builder.sub(place.m, frame.names[M0])
        if left.shifts is not None:
            shifts = frame.emitter.gep(frame.pointers[left.shifts.name], DType.INT64, first)
            return Gathered(runs, frame.emitter.gep(table, DType.INT64, number), shifts)
        row = self.index(left.row)
        number = builder.add(builder.mul(first, row), number)
        return Gathered(runs, frame.emitter.gep(table, DType.INT64, number), row)

    def _left(self, place: Place, left: Operand) -> tuple[ir.Value, ir.Value, ir.Value]:
        builder, frame = self.builder, self.frame
        base, depth = self.index(left.base), self.index(left.depth)
        k0 = builder.mul(frame.names[K0], depth)
        # Where tiles begin, panels do: m is a multiple of their rows.
        row_offset = builder.mul(place.m, self.index(left.row))
        offset = builder.add(base, builder.add(row_offset, k0))
        pointer = frame.emitter.gep(frame.pointers[left.buffer.name], self.program.dtype, offset)
        row = word(1) if left.panel else self.index(left.row)
        return pointer, row, depth

    def _right(self, place: Place) -> tuple[ir.Value, ir.Value]:
        builder, frame, right = self.builder, self.frame, self.program.right
        dtype = self.program.dtype
        if isinstance(right, Packing):
            offset = builder.sub(place.n, frame.names[N0])
            pointer = frame.emitter.gep(frame.pointers[right.target.name], dtype, offset)
            return pointer, self.index(right.row)
        base, depth = self.index(right.base), self.index(right.depth)
        k0 = builder.mul(frame.names[K0], depth)
        row = self.index(right.row) if right.panel else word(1)
        offset = builder.add(base, builder.add(builder.mul(place.n, row), k0))
        pointer = frame.emitter.gep(frame.pointers[right.buffer.name], dtype, offset)
        return pointer, depth
