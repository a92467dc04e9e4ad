"""The innermost level: a register tile of C += A * B, for every height.

One function per height: it loads the tile (or starts from zero), runs along k with the right
operand in vectors and the left one broadcast, and stores the tile. Heights 1..rows are all written,
so that any number of rows has an exact cover. Start with :func:`tile_function`.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.function import POINTER
from tilewright.backend.cpu.indices import I64, word
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.math_arithmetic import call_intrinsic
from tilewright.ir.dtype import DType

UNROLL = 4  # steps along k per iteration: hides the loop's own instructions


@dataclass(frozen=True)
class TileShape:
    """What a tile function is specialised for.

    ``left_depth`` and ``right_depth`` are strides along k where they are known (None: an argument).
    ``masked`` reads only the first columns of the right operand.
    """

    dtype: DType
    height: int
    vectors: int
    left_depth: int | None
    right_depth: int | None
    masked: bool

    @property
    def name(self) -> str:
        """A name that says it all."""
        strides = f"{self.left_depth or 'x'}_{self.right_depth or 'x'}"
        masked = "_masked" if self.masked else ""
        return f"tile_{self.dtype.value}_{self.height}x{self.vectors}_{strides}{masked}"


# (steps, left, left row, left depth, right, right depth, tile, tile row, load tile?, columns)
TILE_ARGUMENTS = (I64, POINTER, I64, I64, POINTER, I64, POINTER, I64, ir.IntType(1), I64)


def tile_function(module: ir.Module, level: Level, shape: TileShape) -> ir.Function:
    """The function for ``shape``, written into ``module`` on first use."""
    found = module.globals.get(shape.name)
    if isinstance(found, ir.Function):
        return found
    kind = ir.FunctionType(ir.VoidType(), TILE_ARGUMENTS)
    function = ir.Function(module, kind, shape.name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    _Writer(function, level, shape).write()
    return function


class _Writer:
    def __init__(self, function: ir.Function, level: Level, shape: TileShape) -> None:
        self.function = function
        self.level = level
        self.shape = shape
        self.builder = ir.IRBuilder(function.append_basic_block("entry"))
        self.lanes = level.lanes(shape.dtype.bytes)
        self.vector = Emitter(self.builder, level, self.lanes)
        self.scalar = Emitter(self.builder, level)
        self.positions = [(i, j) for i in range(shape.height) for j in range(shape.vectors)]
        (self.steps, self.left, self.left_row, left_depth, self.right, right_depth, self.tile,
         self.tile_row, self.load_tile, self.columns) = function.args  # fmt: skip
        self.left_depth = word(shape.left_depth) if shape.left_depth else left_depth
        self.right_depth = word(shape.right_depth) if shape.right_depth else right_depth

    def write(self) -> None:
        """The whole function."""
        builder, dtype = self.builder, self.shape.dtype
        self.masks = self._masks() if self.shape.masked else []
        self.rows = [
            self.scalar.gep(self.left, dtype, builder.mul(self.left_row, word(i)))
            for i in range(self.shape.height)
        ]
        start = self._start()
        main = builder.and_(self.steps, word(-UNROLL))
        after = self._loop(word(0), main, start, UNROLL)
        final = self._loop(main, self.steps, after, 1)
        for (i, j), value in zip(self.positions, final, strict=True):
            self.vector.store(value, self._tile_address(i, j), dtype)
        builder.ret_void()

    def _masks(self) -> list[ir.Value]:
        return [
            self.vector.lane_mask(self.builder.sub(self.columns, word(j * self.lanes)))
            for j in range(self.shape.vectors)
        ]

    def _tile_address(self, i: int, j: int) -> ir.Value:
        offset = self.builder.add(self.builder.mul(self.tile_row, word(i)), word(j * self.lanes))
        return self.scalar.gep(self.tile, self.shape.dtype, offset)

    def _start(self) -> list[ir.Value]:
        """Zeros, or the sums of earlier blocks of k."""
        load = self.function.append_basic_block("resume")
        begin = self.function.append_basic_block("begin")
        entry = self.builder.block
        self.builder.cbranch(self.load_tile, load, begin)
        self.builder.position_at_end(load)
        loaded = [
            self.vector.load(self._tile_address(i, j), self.shape.dtype) for i, j in self.positions
        ]
        self.builder.branch(begin)
        self.builder.position_at_end(begin)
        zero = self.vector.constant(0.0, self.shape.dtype)
        phis: list[ir.Value] = []
        for value in loaded:
            phi = self.builder.phi(zero.type)
            phi.add_incoming(zero, entry)
            phi.add_incoming(value, load)
            phis.append(phi)
        return phis

    def _loop(
        self, begin: ir.Value, end: ir.Value, start: list[ir.Value], unroll: int
    ) -> list[ir.Value]:
        """Accumulate over k in [begin, end), ``unroll`` steps at a time."""
        builder = self.builder
        body = self.function.append_basic_block("k")
        done = self.function.append_basic_block("k.done")
        before = builder.block
        builder.cbranch(builder.icmp_signed("<", begin, end), body, done)
        builder.position_at_end(body)
        k = builder.phi(I64)
        k.add_incoming(begin, before)
        phis = [builder.phi(value.type) for value in start]
        for phi, value in zip(phis, start, strict=True):
            phi.add_incoming(value, before)
        sums: list[ir.Value] = list(phis)
        for step in range(unroll):
            sums = self._step(builder.add(k, word(step)), sums)
        following = builder.add(k, word(unroll))
        k.add_incoming(following, builder.block)
        for phi, value in zip(phis, sums, strict=True):
            phi.add_incoming(value, builder.block)
        latch = builder.block
        builder.cbranch(builder.icmp_signed("<", following, end), body, done)
        builder.position_at_end(done)
        results: list[ir.Value] = []
        for value, final in zip(start, sums, strict=True):
            phi = builder.phi(value.type)
            phi.add_incoming(value, before)
            phi.add_incoming(final, latch)
            results.append(phi)
        return results

    def _step(self, k: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        """One outer product of a column of the left and a row of the right operand."""
        builder, dtype = self.builder, self.shape.dtype
        row = self.scalar.gep(self.right, dtype, builder.mul(k, self.right_depth))
        columns: list[ir.Value] = []
        for j in range(self.shape.vectors):
            address = self.scalar.gep(row, dtype, word(j * self.lanes))
            if self.masks:
                columns.append(self.vector.masked_load(address, dtype, self.masks[j]))
            else:
                columns.append(self.vector.load(address, dtype))
        place = builder.mul(k, self.left_depth)
        out: list[ir.Value] = []
        for i in range(self.shape.height):
            scalar = self.scalar.load(self.scalar.gep(self.rows[i], dtype, place), dtype)
            broadcast = self.vector.splat(scalar)
            for j in range(self.shape.vectors):
                old = sums[i * self.shape.vectors + j]
                out.append(self._multiply_add(broadcast, columns[j], old))
        return out

    def _multiply_add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        if self.level.has_fma:
            return call_intrinsic(self.builder, "fma", c.type, [c.type], [a, b, c])
        return self.builder.fadd(self.builder.fmul(a, b), c)
