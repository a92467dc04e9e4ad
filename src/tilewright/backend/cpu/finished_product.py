"""Products that are finished as machine code: the loops over tiles around the register tile.

A task has one block of rows and columns; its blocks of k follow each other. Of each, the register
tile runs over the block, columns outside, rows inside. The last block of k finishes its tiles: in
registers where the epilogue is light and the level masks a part of the last vector, else on the
tile's sums in the first-level cache. Start with :class:`FinishedProduct`.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from tilewright.backend.cpu import matrix_unit
from tilewright.backend.cpu.blocks import K0, K1, M0, M1, N0, N1, Place, origin
from tilewright.backend.cpu.cover import by_height, by_vectors, heights, stepping
from tilewright.backend.cpu.epilogue import FAR, STREAMED, Epilogue, TilePlace
from tilewright.backend.cpu.function import Environment, Signature
from tilewright.backend.cpu.indices import word
from tilewright.backend.cpu.prefetch import Prefetcher, asks_for_results
from tilewright.backend.cpu.register_tile import (
    Gathered,
    TileOperands,
    TileShape,
    most_rows,
    with_masked_steps,
)
from tilewright.backend.cpu.statements import FunctionFrame
from tilewright.backend.cpu.tile_functions import call_sums, store_sums
from tilewright.ir.dtype import DType
from tilewright.ir.listed_view import ListedView
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.stage_axis import NEVER
from tilewright.ir.tile import RunTable, TileBuffer, TileProgram, View
from tilewright.ir.tile_walk import expressions
from tilewright.shape import Expr, maximum, symbol
from tilewright.target.core_model import (
    FEW_STEPS,
    MASKED_VECTOR_BYTES,
    NEAR_PANEL_BYTES,
    ends_in_half,
)

SUMS = "sums"  # the name of the block of sums that tiles are stored to


def kernel_scratch(program: TileProgram) -> tuple[TileBuffer, ...]:
    """The scratch of a program, and a block of sums if it has a product that is finished."""
    nest = ProductNest.find(program)
    if nest is None:
        return program.scratch
    wide = nest.columns.block
    if nest.has_lines:  # whole lines may have fewer columns than a tile
        wide = maximum(wide, nest.registers.columns)
    elements = nest.rows.block * wide
    return (TileBuffer(SUMS, nest.dtype, True, elements), *program.scratch)


class FinishedProduct:
    """Writes the product of a nest wherever its program has it."""

    def __init__(
        self, frame: FunctionFrame, nest: ProductNest, signature: Signature, name: str
    ) -> None:
        self.frame = frame
        self.builder = frame.builder
        self.nest = nest
        self.product = nest.product
        self.dtype = nest.dtype
        self.registers = nest.registers
        self.level = frame.level
        self.told = _told(nest)
        past = [STREAMED] if nest.finish.streamed != NEVER else []
        environment = Environment(signature, [FAR, *past, *self.told])
        self.epilogue = Epilogue(frame.builder.module, name, nest, environment, frame.level)
        frame.names[FAR] = frame.index(asks_for_results(nest))
        frame.names[STREAMED] = frame.index(nest.finish.streamed)
        self.environment = environment.allocate(frame)
        self.lanes = self.level.lanes(self.dtype.bytes)
        self.vectors = self.registers.columns // self.lanes
        self.prefetcher = Prefetcher(frame, nest)
        self.is_matrix = bool(self.level.matrix) and self.registers.rows == matrix_unit.ROWS
        self.is_halved = self._is_halved()
        # The columns that panels cover, and where they lie from the first one of the block on.
        self.span, self.before = (word(0), word(0)), word(0)

    def _is_halved(self) -> bool:
        """Whether half of the last vector is enough for the columns that are left."""
        tail = self.registers.tail
        if tail is None or self.product.narrow is not None:
            return False
        return ends_in_half(tail, self.lanes, self.level.vector_bytes)

    def index(self, expression: Expr) -> ir.Value:
        return self.frame.index(expression)

    def begin_task(self) -> None:
        """Note what is the same for all blocks of k of a task, whose bounds are named."""
        for name in self.told:
            self.epilogue.environment.set(self.frame, self.environment, name)
        self.prefetcher.begin_task()

    def write(self) -> None:
        """Everything for one block of k."""
        frame, width = self.frame, word(self.registers.columns)
        self.span, self.before = (frame.names[N0], frame.names[N1]), word(0)
        panels = frame.names[N0]
        if self.nest.is_transposing:
            panels = self._whole_panels(width)
        right = self.product.right
        if isinstance(right, ListedView) and right.has_lines:
            self._lines(right, width)
            return
        self._loop("_np", panels, frame.names[N1], lambda _: width, self._panel)

    def _lines(self, right: ListedView, width: ir.Value) -> None:
        """The panels of each line by themselves, as columns of two lines lie apart."""
        builder, frame = self.builder, self.frame
        line, pitch = self.index(right.line), self.index(right.pitch)

        def panels() -> None:
            first = frame.names["_line"]
            number = builder.udiv(builder.sub(first, frame.names[N0]), line)
            self.span = first, builder.add(first, line)
            self.before = builder.mul(number, pitch)
            self._loop("_np", *self.span, lambda _: width, self._panel)

        self._loop("_line", frame.names[N0], frame.names[N1], lambda _: line, panels)

    def _loop(
        self,
        name: str,
        begin: ir.Value,
        end: ir.Value,
        step: Callable[[ir.Value], ir.Value],
        body: Callable[[], None],
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

        stepping(self.builder, name, (begin, end), inside)

    def _whole_panels(self, width: ir.Value) -> ir.Value:
        """Tiles of all whole panels, row by row, if they fit the first-level cache; what is left.

        Results are written along their rows then, and the left operand is met once.
        """
        builder, frame = self.builder, self.frame
        columns = builder.sub(frame.names[N1], frame.names[N0])
        steps = builder.sub(frame.names[K1], frame.names[K0])
        room = word(NEAR_PANEL_BYTES // self.dtype.bytes)
        near = builder.icmp_signed("<=", builder.mul(columns, steps), room)
        whole = builder.select(near, builder.sub(columns, builder.urem(columns, width)), word(0))
        end = builder.add(frame.names[N0], whole)
        frame.enter()
        most = self.registers.rows
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
        builder, frame = self.builder, self.frame
        width = word(self.registers.columns)
        remaining = builder.sub(self.span[1], frame.names["_np"])
        if self.registers.tail == 0:
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
        tail, right = self.registers.tail, self.product.right
        if right.panel:
            self._narrow(columns)
        elif tail is not None:
            self._moved_back(columns, -(-tail // self.lanes), self.is_halved)
        else:

            def moved_back(vectors: int) -> None:
                self._moved_back(columns, vectors, False)

            by_vectors(self.builder, columns, self.lanes, self.vectors, moved_back)

    def _moved_back(self, columns: ir.Value, vectors: int, halved: bool) -> None:
        """The last panel of so many vectors, full ones if the panels cover that many columns.

        Of the last vector half counts where it is ``halved``.
        """
        builder = self.builder
        width = word(self._width(vectors, halved))
        there = builder.icmp_signed(">=", builder.sub(self.span[1], self.span[0]), width)
        with builder.if_else(there) as (full, part):
            with full:
                self._rows(width, vectors, True, builder.sub(width, columns), halved=halved)
            with part:
                self._rows(columns, vectors, False, halved=halved)

    def _width(self, vectors: int, halved: bool) -> int:
        """The columns of so many vectors, of the last of which half counts where it is halved."""
        return vectors * self.lanes - (self.lanes // 2 if halved else 0)

    def _narrow(self, columns: ir.Value) -> None:
        """The last of the packed panels, with no more vectors than its columns need."""
        tail = self.registers.tail
        if tail is None:
            self._rows(columns, self.vectors, False)
        else:
            full = tail % self.lanes == 0
            self._rows(word(tail), -(-tail // self.lanes), full, halved=self.is_halved)

    def _rows(
        self, columns: ir.Value, vectors: int, full: bool, back: ir.Value | None = None, *,
        halved: bool = False,
    ) -> None:  # fmt: skip
        """All rows of the block under one panel; heights cover them exactly.

        ``full`` says that the columns fill the vectors, of which the last one may be ``halved``,
        ``back`` by how many columns the panel is moved back for that.
        """
        builder, frame = self.builder, self.frame
        frame.enter()
        most = self.registers.rows
        if not (self.is_matrix or self._left_panel()) and self.registers.tail is not None:
            listed = isinstance(self.product.left, RunTable)
            most = most_rows(self.level, vectors, self.product.narrow, listed=listed)
        panel = frame.names["_np"]
        first = panel if back is None else builder.sub(panel, back)
        height = self._height(most)

        def body() -> None:
            m = frame.names["_mp"]
            tall = height(m)
            number = builder.udiv(builder.sub(m, frame.names[M0]), tall)
            place = Place(m, first, tall, columns, number)
            self._tile(place, vectors, full, most, halved=halved)

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
        left = self.product.left
        return left.panel if isinstance(left, View) else 0

    # ------------------------------------------------------------ one tile

    def _tile(
        self, place: Place, vectors: int, full: bool, most: int, *, halved: bool = False
    ) -> None:
        builder, frame = self.builder, self.frame
        sums, row = self._sums(place)
        resume = builder.icmp_signed(">", frame.names[K0], word(0))
        operands = self._operands(place, most)
        last = builder.icmp_signed(">=", frame.names[K1], self.index(self.nest.k))
        asks = self._prefetch(place, last, self._width(vectors, halved))
        if self.is_matrix:
            self._matrix_tile(place, vectors, operands, (sums, row, resume))
            self._finish_in_memory(place, last, (sums, row, asks))
            return
        masked = not full and self._may_overread()
        left = self.product.left
        gathered = isinstance(left, RunTable)
        ends = vectors < self.vectors or halved  # no panel comes after a narrower one
        shape = TileShape(
            self.dtype, 1, vectors, self._known_left(), self._known_right(), masked,
            gathered, gathered and left.shifts is not None,
            self.prefetcher.asks_right and not ends, self.prefetcher.asks_rows,
            self.prefetcher.asks_left, self.product.narrow,
            padded=isinstance(left, RunTable) and left.zeros is not None, halved=halved,
            listed=isinstance(self.product.right, ListedView),
        )  # fmt: skip
        if masked:
            operands = with_masked_steps(builder, shape.width(self.lanes), operands)
        target = [sums, row, resume]
        light = self.epilogue.is_light and (full or self._ends_in_registers())
        part = self._part(place, vectors, full, halved=halved)
        tallest = shape.with_height(most)
        where = TilePlace(place.m, place.n, self.environment, asks)

        def made(height: int) -> None:
            values = call_sums(builder, self.level, shape.with_height(height), operands, target)
            if not light:
                store_sums(builder, self.level, tallest, values, target)
                return
            with builder.if_else(last) as (ending, going_on):
                with ending:
                    frame.enter()
                    self.epilogue.finish(frame, tallest, values, where, part)
                    frame.leave()
                with going_on:
                    store_sums(builder, self.level, tallest, values, target)

        by_height(builder, place.height, most, made)
        if not light:
            self._finish_in_memory(place, last, (sums, row, asks))

    def _ends_in_registers(self) -> bool:
        """Whether tiles with a part of their last vector are finished as whole ones are."""
        if self.registers.tail is not None:
            return True
        return not self.product.right.panel and self.level.vector_bytes >= MASKED_VECTOR_BYTES

    def _part(self, place: Place, vectors: int, full: bool, *, halved: bool) -> int | ir.Value:
        """How many columns the last vector of a tile has, 0 for all that it holds."""
        tail = self.registers.tail
        if full:
            return self.lanes // 2 if halved else 0
        if tail is not None:
            return tail % self.lanes
        return self.builder.sub(place.columns, word((vectors - 1) * self.lanes))

    def _matrix_tile(
        self, place: Place, vectors: int, operands: TileOperands,
        target: tuple[ir.Value, ir.Value, ir.Value],
    ) -> None:  # fmt: skip
        """The sums of a tile by a matrix unit."""
        narrow = self.product.narrow
        assert narrow is not None, "matrix units multiply narrow elements"
        tile = matrix_unit.MatrixTile(narrow, vectors)
        function = matrix_unit.matrix_tile(self.builder, self.level, tile)
        given = [
            operands.steps, operands.left, operands.left_row, operands.right, operands.right_depth,
            place.height, *target,
        ]  # fmt: skip
        self.builder.call(function, given)

    def _finish_in_memory(
        self, place: Place, last: ir.Value, given: tuple[ir.Value, ir.Value, ir.Value]
    ) -> None:
        """The epilogue of a tile whose sums are in memory, after the last block of k.

        It is ``given`` the sums, what is between their rows, and whether to ask for lines.
        """
        *sums, asks = given
        with self.builder.if_then(last):
            where = [place.m, place.n, place.height, place.columns, *sums, self.environment, asks]
            self.builder.call(self.epilogue.rows(), where)

    def _prefetch(self, place: Place, last: ir.Value, columns: int) -> ir.Value:
        """Ask for the lines that a tile is stored to or adds, where they are far away.

        Memory does not bring them while a tile of few steps is computed: says whether finished
        tiles are to ask for those of the panel that follows, which all but the first one find near
        then.
        """
        builder, names = self.builder, self.frame.names
        far = builder.trunc(names[FAR], ir.IntType(1))
        own = builder.icmp_signed(">", builder.sub(names[K1], names[K0]), word(FEW_STEPS))
        here = builder.or_(own, builder.icmp_signed("<=", place.n, names[N0]))
        with builder.if_then(builder.and_(builder.and_(far, last), here)):
            where = [place.m, place.height, place.n, self.environment]
            builder.call(self.epilogue.prefetch(columns), where)
        beyond = builder.add(place.n, word(columns))
        later = builder.icmp_signed("<", beyond, self.index(self.nest.n))
        return builder.and_(builder.and_(far, later), builder.not_(own))

    def _may_overread(self) -> bool:
        """Whether the last panel of the right operand may end inside a vector."""
        return not self.nest.is_packing and not self.product.right.panel

    def _known_left(self) -> int | None:
        depth = self.product.left.depth
        return depth.value if depth.is_constant and depth.value > 0 else None

    def _known_right(self) -> int | None:
        depth = self.product.right.depth
        return depth.value if depth.is_constant and depth.value > 0 else None

    def _sums(self, place: Place) -> tuple[ir.Value, ir.Value]:
        """Where the tile's sums go: one small tile if k is one block, else the block of sums."""
        builder, frame = self.builder, self.frame
        pointer = frame.pointers[SUMS]
        single = builder.icmp_signed(
            "<=", self.index(self.nest.k), self.index(self.nest.depth.block)
        )
        wide = self.index(self.nest.columns.block)
        row = builder.select(single, word(self.registers.columns), wide)
        inner_m = builder.sub(place.m, frame.names[M0])
        # A panel that is moved back has sums of its own.
        inner_n = builder.sub(frame.names["_np"], frame.names[N0])
        offset = builder.add(builder.mul(inner_m, wide), inner_n)
        offset = builder.select(single, word(0), offset)
        return frame.emitter.gep(pointer, self.dtype, offset), row

    def _operands(self, place: Place, most: int) -> TileOperands:
        frame, left = self.frame, self.product.left
        right, right_depth = self._right(place)
        ahead = self.prefetcher.right(place, right, most) or self.prefetcher.rows(place, most)
        if isinstance(left, RunTable):
            run, base = self.index(left.run), self._first_run(left)
            gathered = self._gathered(place, left)
            return TileOperands(
                run, base, word(0), self.index(left.depth), right, right_depth, place.columns,
                gathered=gathered, ahead=ahead,
            )  # fmt: skip
        steps = self.builder.sub(frame.names[K1], frame.names[K0])
        pointer, row, depth = self._left(place, left)
        return TileOperands(
            steps, pointer, row, depth, right, right_depth, place.columns, ahead=ahead,
            left_ahead=self.prefetcher.left(place, pointer, row, steps), listed=self._listed(),
        )  # fmt: skip

    def _listed(self) -> ir.Value | None:
        """The table of the rows of the right operand, if there is one."""
        right = self.product.right
        return self.frame.pointers[right.shifts.name] if isinstance(right, ListedView) else None

    def _first_run(self, left: RunTable) -> ir.Value:
        """Where the distances in the table begin."""
        pointer = self.frame.pointers[left.buffer.name]
        return self.frame.emitter.gep(pointer, self.dtype, self.index(left.offset))

    def _gathered(self, place: Place, left: RunTable) -> Gathered:
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

    def _left(self, place: Place, left: View) -> tuple[ir.Value, ir.Value, ir.Value]:
        # Where tiles begin, panels do: m is a multiple of their rows.
        pointer = self._element(left, M0, place.m, self.index(left.row))
        row = word(1) if left.panel else self.index(left.row)
        return pointer, row, self.index(left.depth)

    def _right(self, place: Place) -> tuple[ir.Value, ir.Value]:
        builder, frame, right = self.builder, self.frame, self.product.right
        if self.nest.is_packing:
            offset = builder.add(builder.sub(place.n, self.span[0]), self.before)
            pointer = frame.emitter.gep(frame.pointers[right.buffer.name], self.dtype, offset)
            return pointer, self.index(right.depth)
        row = self.index(right.row) if right.panel else word(1)
        return self._element(right, N0, place.n, row), self.index(right.depth)

    def _element(self, view: View, first: str, position: ir.Value, row: ir.Value) -> ir.Value:
        """The address of an operand's element at a row or column, and where the block begins."""
        builder, frame = self.builder, self.frame
        base, depth = self.index(origin(view, first)), self.index(view.depth)
        k0 = builder.mul(frame.names[K0], depth)
        offset = builder.add(base, builder.add(builder.mul(position, row), k0))
        return frame.emitter.gep(frame.pointers[view.buffer.name], self.dtype, offset)


def _told(nest: ProductNest) -> tuple[str, ...]:
    """What changes from task to task and an epilogue has to know."""
    used = {name for e in expressions(nest.finish.stores) for name in e.free_symbols}
    return (*(name for name, _ in nest.batch), *(name for name in (M0, N0) if name in used))
