"""What one step of a register tile adds: a product, or the dot product of two words.

A word of 32 bits holds two bfloat16 or four bytes that follow each other along k. Where there is no
instruction for the dot product of words, they are taken apart once and multiplied part by part:
bfloat16 as float32, which it is the upper half of, and bytes as pairs of 16 bits, exactly. Start
with :func:`dots_of`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.math_arithmetic import (
    Arithmetic,
    call_intrinsic,
    lanes_of,
    splat_constant,
)
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import HALF_WORD

Parts = tuple[ir.Value, ...]
_WORD = 32  # bits


@dataclass(frozen=True)
class Dots:
    """How vectors of either operand are prepared, and how prepared ones are added to sums."""

    left: Callable[[ir.Value], Parts]
    right: Callable[[ir.Value], Parts]
    step: Callable[[ir.Value, ir.Value, ir.Value], ir.Value]

    def add(self, left: Parts, right: Parts, sums: ir.Value) -> ir.Value:
        """``sums`` plus the products of all parts."""
        for a, b in zip(left, right, strict=True):
            sums = self.step(a, b, sums)
        return sums


def dots_of(builder: ir.IRBuilder, level: Level, narrow: DType | None) -> Dots:
    """For plain elements, or words of ``narrow`` ones: bfloat16, or uint8 on the left by int8."""
    if narrow is None:
        return Dots(_whole, _whole, lambda a, b, c: _multiply_add(builder, level, a, b, c))
    if narrow.value in level.dots:
        step = _bfloat16_dot if narrow is DType.BFLOAT16 else _byte_dot
        return Dots(_whole, _whole, lambda a, b, c: step(builder, a, b, c))
    if narrow is DType.BFLOAT16:
        return Dots(
            lambda x: _floats(builder, x),
            lambda x: _floats(builder, x),
            lambda a, b, c: _multiply_add(builder, level, a, b, c),
        )
    return Dots(
        lambda x: _bytes(builder, x, signed=False),
        lambda x: _bytes(builder, x, signed=True),
        lambda a, b, c: builder.add(_pair_products(builder, a, b), c),
    )


def parts_of_word(level: Level, narrow: DType | None) -> int:
    """How many vectors hold what was one vector of words."""
    return 1 if narrow is None or narrow.value in level.dots else 2


def _whole(x: ir.Value) -> Parts:
    return (x,)


def _multiply_add(
    builder: ir.IRBuilder, level: Level, a: ir.Value, b: ir.Value, c: ir.Value
) -> ir.Value:
    if level.has_fma:
        return call_intrinsic(builder, "fma", c.type, [c.type], [a, b, c])
    return builder.fadd(builder.fmul(a, b), c)


def _lanes(x: ir.Value) -> int:
    assert isinstance(x.type, ir.VectorType)
    return x.type.count


def _floats(builder: ir.IRBuilder, x: ir.Value) -> Parts:
    """The lower and the upper bfloat16 of every word as float32."""
    kind = lanes_of(ir.IntType(_WORD), _lanes(x))
    bits = builder.bitcast(x, kind)
    low = builder.shl(bits, splat_constant(kind, HALF_WORD))
    high = builder.and_(bits, splat_constant(kind, 0xFFFF0000))
    return builder.bitcast(low, x.type), builder.bitcast(high, x.type)


def _bytes(builder: ir.IRBuilder, x: ir.Value, *, signed: bool) -> Parts:
    """The even and the odd bytes of every word as 16 bits each."""
    kind = lanes_of(ir.IntType(HALF_WORD), 2 * _lanes(x))
    halves, byte = builder.bitcast(x, kind), splat_constant(kind, 8)
    shifted = builder.ashr if signed else builder.lshr
    return shifted(builder.shl(halves, byte), byte), shifted(halves, byte)


def _pair_products(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """The sums of two neighbouring products of 16 bits each, in 32."""
    count = _lanes(a) // 2
    names = {4: "x86.sse2.pmadd.wd", 8: "x86.avx2.pmadd.wd", 16: "x86.avx512.pmaddw.d.512"}
    return call_intrinsic(builder, names[count], lanes_of(ir.IntType(_WORD), count), [], [a, b])


def pair_products(a: Arithmetic, x: ir.Value, y: ir.Value) -> ir.Value:
    """Products of the signed 16 bits of two words each, and their sum, for every pair of words."""
    build = a.builder
    if a.level.triple.startswith("x86_64"):
        halves = lanes_of(ir.IntType(HALF_WORD), 2 * _lanes(x))
        return _pair_products(build, build.bitcast(x, halves), build.bitcast(y, halves))
    half = splat_constant(x.type, HALF_WORD)
    low = [build.ashr(build.shl(part, half), half) for part in (x, y)]
    high = [build.ashr(part, half) for part in (x, y)]
    return build.add(build.mul(low[0], low[1]), build.mul(high[0], high[1]))


class _BFloat(ir.Type):
    """LLVM's type of bfloat16, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"


_BFLOAT = _BFloat()  # one of it, as llvmlite compares types by identity


def _bfloat16_dot(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    kind = ir.VectorType(_BFLOAT, 2 * _lanes(c))
    words = [builder.bitcast(x, kind) for x in (a, b)]
    return call_intrinsic(builder, "x86.avx512bf16.dpbf16ps.512", c.type, [], [c, *words])


def _byte_dot(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    return call_intrinsic(builder, "x86.avx512.vpdpbusd.512", c.type, [], [c, a, b])
