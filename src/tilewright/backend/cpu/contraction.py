"""Contractions as machine code: the loops over blocks and tiles around the register tile.

A task is one block of rows and columns of one batch element. Per block of k: pack the right operand
if it needs that, then run the register tile over the block, columns outside, rows inside; after the
last block of k the epilogue finishes each tile while it is in the first-level cache. Start with
:func:`write_contraction`.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from tilewright.backend.cpu.epilogue import Epilogue
from tilewright.backend.cpu.function import KernelFunction, Signature, task_loop
from tilewright.backend.cpu.indices import word
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.register_tile import TileShape, tile_function
from tilewright.backend.cpu.statements import Frame
from tilewright.ir.tile import Contraction, Operand, Packing, TileBuffer
from tilewright.shape import Expr, ceil_div, constant, minimum, symbol

M0, M1, N0, N1, K0, K1 = "_m0", "_m1", "_n0", "_n1", "_k0", "_k1"


def contraction_grid(program: Contraction) -> tuple[tuple[str, Expr], ...]:
    """Batch elements, then blocks of columns, then of rows (the fastest)."""
    return (
        *program.batch,
        ("_nb", ceil_div(program.n, program.block_n)),
        ("_mb", ceil_div(program.m, program.block_m)),
    )


def contraction_scratch(program: Contraction) -> tuple[TileBuffer, ...]:
    """The block of sums that tiles are stored to, and the packed right operand if there is one."""
    sums = TileBuffer("sums", program.dtype, True, program.block_m * program.block_n)
    if isinstance(program.right, Packing):
        return (sums, program.right.target)
    return (sums,)


def write_contraction(
    module: ir.Module, name: str, program: Contraction, symbols: tuple[str, ...], level: Level
) -> None:
    """Add the kernel ``name`` to ``module``."""
    signature = Signature(symbols, program.buffers, contraction_scratch(program))
    function = KernelFunction(module, name, signature, level)
    frame, begin, end = function.frame()
    writer = _Writer(module, frame, program, level)
    epilogue = Epilogue(module, name, program, signature, level)
    writer.epilogue = epilogue
    writer.arguments = list(function.body.args[2:])
    task_loop(frame, (begin, end), contraction_grid(program), writer.task)
    frame.builder.ret_void()


@dataclass
class _Place:
    """Where one tile is: first row and column, height, valid columns."""

    m: ir.Value
    n: ir.Value
    height: ir.Value
    columns: ir.Value


class _Writer:
    epilogue: Epilogue
    arguments: list[ir.Value]

    def __init__(self, module: ir.Module, frame: Frame, program: Contraction, level: Level) -> None:
        self.module = module
        self.frame = frame
        self.builder = frame.builder
        self.program = program
        self.level = level
        self.vectors = program.tile_columns // level.lanes(program.dtype.bytes)

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
        self._loop(K0, word(0), program.k, program.block_k, self._depth_block)

    def _loop(self, name: str, begin: ir.Value, end: Expr, step: Expr, body: object) -> None:
        """A loop that runs at least once (a depth of 0 still has to store zeros)."""
        builder, frame = self.builder, self.frame
        block = builder.function.append_basic_block("depth")
        done = builder.function.append_basic_block("depth.done")
        limit, stride = self.index(end), self.index(step)
        before = builder.block
        builder.branch(block)
        builder.position_at_end(block)
        variable = builder.phi(word(0).type)
        variable.add_incoming(begin, before)
        frame.names[name] = variable
        frame.enter()
        body()  # type: ignore[operator]
        frame.leave()
        following = builder.add(variable, stride)
        variable.add_incoming(following, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, limit), block, done)
        builder.position_at_end(done)

    def _depth_block(self) -> None:
        program, frame = self.program, self.frame
        frame.names[K1] = self.index(minimum(symbol(K0) + program.block_k, program.k))
        if isinstance(program.right, Packing):
            frame.statements(program.right.body)
        self._count("_np", frame.names[N0], frame.names[N1], program.tile_columns, self._columns)

    def _count(self, name: str, begin: ir.Value, end: ir.Value, step: int, body: object) -> None:
        """A loop in steps of a constant."""
        builder, frame = self.builder, self.frame
        block = builder.function.append_basic_block("tiles")
        done = builder.function.append_basic_block("tiles.done")
        before = builder.block
        builder.cbranch(builder.icmp_signed("<", begin, end), block, done)
        builder.position_at_end(block)
        variable = builder.phi(word(0).type)
        variable.add_incoming(begin, before)
        frame.names[name] = variable
        frame.enter()
        body()  # type: ignore[operator]
        frame.leave()
        following = builder.add(variable, word(step))
        variable.add_incoming(following, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, end), block, done)
        builder.position_at_end(done)

    def _columns(self) -> None:
        """All tiles of one panel of columns: heights cover the rows exactly."""
        builder, frame, program = self.builder, self.frame, self.program
        n = frame.names["_np"]
        remaining = builder.sub(frame.names[N1], n)
        width = word(program.tile_columns)
        columns = builder.select(builder.icmp_signed("<", remaining, width), remaining, width)
        rows = builder.sub(frame.names[M1], frame.names[M0])
        base, taller = self._heights(rows)
        block = builder.function.append_basic_block("rows")
        done = builder.function.append_basic_block("rows.done")
        before = builder.block
        builder.cbranch(builder.icmp_signed("<", frame.names[M0], frame.names[M1]), block, done)
        builder.position_at_end(block)
        m, number = builder.phi(word(0).type), builder.phi(word(0).type)
        m.add_incoming(frame.names[M0], before)
        number.add_incoming(word(0), before)
        frame.enter()
        height = self._height(m, number, base, taller)
        self._tile(_Place(m, n, height, columns))
        frame.leave()
        following, count = builder.add(m, height), builder.add(number, word(1))
        m.add_incoming(following, builder.block)
        number.add_incoming(count, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, frame.names[M1]), block, done)
        builder.position_at_end(done)

    def _heights(self, rows: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The smaller of two neighbouring heights that cover the rows, and how many are taller."""
        builder = self.builder
        most = word(self.program.tile_rows)
        tiles = builder.udiv(builder.add(rows, word(self.program.tile_rows - 1)), most)
        safe = builder.select(builder.icmp_signed("==", tiles, word(0)), word(1), tiles)
        return builder.udiv(rows, safe), builder.urem(rows, safe)

    def _height(self, m: ir.Value, number: ir.Value, base: ir.Value, taller: ir.Value) -> ir.Value:
        builder = self.builder
        if self.program.left.panel:  # packed panels fix where tiles begin
            remaining = builder.sub(self.frame.names[M1], m)
            most = word(self.program.tile_rows)
            return builder.select(builder.icmp_signed("<", remaining, most), remaining, most)
        extra = builder.zext(builder.icmp_signed("<", number, taller), word(0).type)
        return builder.add(base, extra)

    # ------------------------------------------------------------ one tile

    def _tile(self, place: _Place) -> None:
        builder, frame = self.builder, self.frame
        sums, row = self._sums(place)
        steps = builder.sub(frame.names[K1], frame.names[K0])
        resume = builder.icmp_signed(">", frame.names[K0], word(0))
        left, left_row, left_depth = self._left(place)
        right, right_depth = self._right(place)
        arguments = [steps, left, left_row, left_depth, right, right_depth, sums, row, resume,
                     place.columns]  # fmt: skip
        if self._may_overread():
            full = builder.icmp_signed("==", place.columns, word(self.program.tile_columns))
            with builder.if_else(full) as (whole, part):
                with whole:
                    self._by_height(place.height, arguments, False)
                with part:
                    self._by_height(place.height, arguments, True)
        else:
            self._by_height(place.height, arguments, False)
        last = builder.icmp_signed(">=", frame.names[K1], self.index(self.program.k))
        with builder.if_then(last):
            batch = [frame.names[name] for name, _ in self.program.batch]
            self.epilogue.call(
                builder,
                [place.m, place.n, place.height, place.columns, sums, row, *batch],
                self.arguments,
            )

    def _may_overread(self) -> bool:
        """Whether the last panel of the right operand may end inside a vector."""
        right = self.program.right
        return isinstance(right, Operand) and not right.panel

    def _by_height(self, height: ir.Value, arguments: list[ir.Value], masked: bool) -> None:
        builder = self.builder
        done = builder.function.append_basic_block("stored")
        switch = builder.switch(height, done)
        for rows in range(1, self.program.tile_rows + 1):
            shape = TileShape(
                self.program.dtype, rows, self.vectors, self._known_left(), self._known_right(),
                masked,
            )  # fmt: skip
            block = builder.function.append_basic_block(f"height{rows}")
            switch.add_case(word(rows), block)
            builder.position_at_end(block)
            builder.call(tile_function(self.module, self.level, shape), arguments)
            builder.branch(done)
        builder.position_at_end(done)

    def _known_left(self) -> int | None:
        depth = self.program.left.depth
        return depth.value if depth.is_constant and depth.value > 0 else None

    def _known_right(self) -> int | None:
        right = self.program.right
        depth = right.row if isinstance(right, Packing) else right.depth
        return depth.value if depth.is_constant and depth.value > 0 else None

    def _sums(self, place: _Place) -> tuple[ir.Value, ir.Value]:
        """Where the tile's sums go: one small tile if k is one block, else the block of sums."""
        builder, frame, program = self.builder, self.frame, self.program
        pointer = frame.pointers["sums"]
        single = builder.icmp_signed("<=", self.index(program.k), self.index(program.block_k))
        wide = self.index(program.block_n)
        row = builder.select(single, word(program.tile_columns), wide)
        inner_m = builder.sub(place.m, frame.names[M0])
        inner_n = builder.sub(place.n, frame.names[N0])
        offset = builder.add(builder.mul(inner_m, wide), inner_n)
        offset = builder.select(single, word(0), offset)
        return frame.emitter.gep(pointer, program.dtype, offset), row

    def _left(self, place: _Place) -> tuple[ir.Value, ir.Value, ir.Value]:
        builder, frame, left = self.builder, self.frame, self.program.left
        base, depth = self.index(left.base), self.index(left.depth)
        k0 = builder.mul(frame.names[K0], depth)
        if left.panel:
            panel = self.index(self.program.k)
            row_offset = builder.mul(place.m, panel)  # whole panels: m is a multiple of their rows
        else:
            row_offset = builder.mul(place.m, self.index(left.row))
        offset = builder.add(base, builder.add(row_offset, k0))
        pointer = frame.emitter.gep(frame.pointers[left.buffer.name], self.program.dtype, offset)
        return pointer, self.index(left.row), depth

    def _right(self, place: _Place) -> tuple[ir.Value, ir.Value]:
        builder, frame, right = self.builder, self.frame, self.program.right
        dtype = self.program.dtype
        if isinstance(right, Packing):
            offset = builder.sub(place.n, frame.names[N0])
            pointer = frame.emitter.gep(frame.pointers[right.target.name], dtype, offset)
            return pointer, self.index(right.row)
        base, depth = self.index(right.base), self.index(right.depth)
        k0 = builder.mul(frame.names[K0], depth)
        row = self.index(self.program.k if right.panel else constant(1))
        offset = builder.add(base, builder.add(builder.mul(place.n, row), k0))
        pointer = frame.emitter.gep(frame.pointers[right.buffer.name], dtype, offset)
        return pointer, depth
