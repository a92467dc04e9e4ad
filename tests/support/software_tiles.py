"""Tile registers in memory: an interpreter of a matrix unit's operations, as plain LLVM functions.

It does what Intel's manual says of ``ldtilecfg``, ``tilezero``, ``tileloadd``, ``tilestored``,
``tdpbusd`` and ``tdpbf16ps``, element by element, and is put in the place of the instructions. A
register is 16 rows of 64 bytes; what is beyond its shape is zero, as the manual says, so that a
kernel which counts on anything else fails. A dot product of a shape that does not fit traps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from tilewright.ir.dtype import DType

I64, I32, I16, I8, F32 = (
    ir.IntType(64), ir.IntType(32), ir.IntType(16), ir.IntType(8), ir.FloatType(),
)  # fmt: skip
POINTER = ir.PointerType()
TILE_BYTES, ROW_BYTES, REGISTERS, CONFIGURATION = 1024, 64, 8, 64


def i64(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


class SoftwareTiles:
    """See :class:`tilewright.backend.cpu.matrix_unit.TileOperations`."""

    state_bytes = CONFIGURATION + REGISTERS * TILE_BYTES

    def configure(self, builder: ir.IRBuilder, state: ir.Value) -> None:
        for tile in range(REGISTERS):
            self.zero(builder, state, tile)

    def zero(self, builder: ir.IRBuilder, state: ir.Value, tile: int) -> None:
        _call(builder, "soft_zero", _zero, [state, i64(tile)])

    def load(
        self, builder: ir.IRBuilder, state: ir.Value, tile: int, pointer: ir.Value, stride: ir.Value
    ) -> None:
        self.zero(builder, state, tile)
        _call(builder, "soft_load", _load, [state, i64(tile), pointer, stride])

    def store(
        self, builder: ir.IRBuilder, state: ir.Value, tile: int, pointer: ir.Value, stride: ir.Value
    ) -> None:
        _call(builder, "soft_store", _store, [state, i64(tile), pointer, stride])

    def add_products(
        self, builder: ir.IRBuilder, state: ir.Value, narrow: DType, tiles: tuple[int, int, int]
    ) -> None:
        numbers = [i64(tile) for tile in tiles]
        write = _bfloat16_dots if narrow is DType.BFLOAT16 else _byte_dots
        _call(builder, f"soft_dots_{narrow.value}", write, [state, *numbers])

    def release(self, builder: ir.IRBuilder, state: ir.Value) -> None:
        del builder, state


Write = Callable[[ir.IRBuilder, Sequence[ir.Value]], None]


def _call(builder: ir.IRBuilder, name: str, write: Write, operands: Sequence[ir.Value]) -> None:
    """Call a function that ``write`` fills on its first use in a module."""
    function = builder.module.globals.get(name)
    if function is None:
        kind = ir.FunctionType(ir.VoidType(), [operand.type for operand in operands])
        function = ir.Function(builder.module, kind, name)
        function.linkage = "internal"
        function.attributes.add("noinline")
        inside = ir.IRBuilder(function.append_basic_block("entry"))
        write(inside, function.args)
        inside.ret_void()
    builder.call(function, operands)


def _times(builder: ir.IRBuilder, count: ir.Value, body: Callable[[ir.Value], None]) -> None:
    """``body`` for every number below ``count``."""
    place = builder.alloca(I64)
    place.type = POINTER  # llvmlite alone still gives it the type of what it points to
    builder.store(i64(0), place)
    head, inside, done = (
        builder.function.append_basic_block(name) for name in ("head", "inside", "done")
    )
    builder.branch(head)
    builder.position_at_end(head)
    number = builder.load(place, typ=I64)
    builder.cbranch(builder.icmp_unsigned("<", number, count), inside, done)
    builder.position_at_end(inside)
    body(number)
    builder.store(builder.add(number, i64(1)), place)
    builder.branch(head)
    builder.position_at_end(done)


def _at(builder: ir.IRBuilder, pointer: ir.Value, place: ir.Value) -> ir.Value:
    return builder.gep(pointer, [place], source_etype=I8)


def _place(builder: ir.IRBuilder, args: tuple[ir.Value, ...]) -> ir.Value:
    """The address of (state, tile, row, byte)."""
    state, tile, row, byte = args
    first = builder.add(builder.mul(tile, i64(TILE_BYTES)), i64(CONFIGURATION))
    return _at(builder, state, builder.add(first, builder.add(builder.mul(row, i64(64)), byte)))


def _shape(builder: ir.IRBuilder, state: ir.Value, tile: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The rows of a register, and the bytes of each."""
    rows = builder.load(_at(builder, state, builder.add(tile, i64(48))), typ=I8)
    place = builder.add(builder.mul(tile, i64(2)), i64(16))
    width = builder.load(_at(builder, state, place), typ=I16)
    return builder.zext(rows, I64), builder.zext(width, I64)


def _zero(builder: ir.IRBuilder, args: Sequence[ir.Value]) -> None:
    state, tile = args

    def byte(place: ir.Value) -> None:
        builder.store(ir.Constant(I8, 0), _place(builder, (state, tile, i64(0), place)))

    _times(builder, i64(TILE_BYTES), byte)


def _moved(builder: ir.IRBuilder, args: Sequence[ir.Value], *, loads: bool) -> None:
    state, tile, pointer, stride = args
    rows, width = _shape(builder, state, tile)

    def row(number: ir.Value) -> None:
        def byte(place: ir.Value) -> None:
            inner = _place(builder, (state, tile, number, place))
            outer = _at(builder, pointer, builder.add(builder.mul(number, stride), place))
            source, target = (outer, inner) if loads else (inner, outer)
            builder.store(builder.load(source, typ=I8), target)

        _times(builder, width, byte)

    _times(builder, rows, row)


def _load(builder: ir.IRBuilder, args: Sequence[ir.Value]) -> None:
    _moved(builder, args, loads=True)


def _store(builder: ir.IRBuilder, args: Sequence[ir.Value]) -> None:
    _moved(builder, args, loads=False)


Dot = Callable[[ir.IRBuilder, ir.Value, ir.Value, ir.Value], None]


def _dots(builder: ir.IRBuilder, args: Sequence[ir.Value], dot: Dot) -> None:
    """``dot`` of the addresses of every sum and the words that it adds the products of."""
    state, sums, left, right = args
    (rows, width), (left_rows, depth), (right_rows, right_width) = (
        _shape(builder, state, tile) for tile in (sums, left, right)
    )
    words = builder.udiv(depth, i64(4))
    fits = builder.icmp_unsigned("==", rows, left_rows)
    for one, other in ((words, right_rows), (width, right_width)):
        fits = builder.and_(fits, builder.icmp_unsigned("==", one, other))
    with builder.if_then(builder.not_(fits)):
        trap = builder.module.globals.get("llvm.trap")
        if trap is None:
            kind = ir.FunctionType(ir.VoidType(), [])
            trap = ir.Function(builder.module, kind, "llvm.trap")
        builder.call(trap, [])

    def row(m: ir.Value) -> None:
        def step(k: ir.Value) -> None:
            def column(n: ir.Value) -> None:
                k4, n4 = builder.mul(k, i64(4)), builder.mul(n, i64(4))
                target = _place(builder, (state, sums, m, n4))
                one = _place(builder, (state, left, m, k4))
                other = _place(builder, (state, right, k, n4))
                dot(builder, target, one, other)

            _times(builder, builder.udiv(width, i64(4)), column)

        _times(builder, words, step)

    _times(builder, rows, row)


def _byte_dots(builder: ir.IRBuilder, args: Sequence[ir.Value]) -> None:
    def dot(builder: ir.IRBuilder, target: ir.Value, one: ir.Value, other: ir.Value) -> None:
        total = builder.load(target, typ=I32)
        for i in range(4):
            a = builder.zext(builder.load(_at(builder, one, i64(i)), typ=I8), I32)
            b = builder.sext(builder.load(_at(builder, other, i64(i)), typ=I8), I32)
            total = builder.add(total, builder.mul(a, b))
        builder.store(total, target)

    _dots(builder, args, dot)


def _bfloat16_dots(builder: ir.IRBuilder, args: Sequence[ir.Value]) -> None:
    def number(builder: ir.IRBuilder, word: ir.Value, i: int) -> ir.Value:
        half = builder.load(_at(builder, word, i64(2 * i)), typ=I16)
        return builder.bitcast(builder.shl(builder.zext(half, I32), ir.Constant(I32, 16)), F32)

    def dot(builder: ir.IRBuilder, target: ir.Value, one: ir.Value, other: ir.Value) -> None:
        total = builder.load(target, typ=F32)
        for i in range(2):
            product = builder.fmul(number(builder, one, i), number(builder, other, i))
            total = builder.fadd(total, product)
        builder.store(total, target)

    _dots(builder, args, dot)
