"""Changes of element type between register values, scalar or vector.

float16 and bfloat16 are 16-bit patterns in registers. Conversions to them round to nearest even
and keep NaNs; from float64 they round once. Floats become integers by truncation, saturating at the
ends of the range, and a NaN becomes zero. Read :func:`cast`. Imports ``math_arithmetic``,
``math_integer``, ``vector_functions`` and the element types.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from llvmlite import ir

from tilewright.backend.cpu import vector_functions
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.math_arithmetic import (
    Arithmetic,
    call_intrinsic,
    lanes_of,
    splat_constant,
)
from tilewright.ir.dtype import DType

LEAST_WHOLE = 2.0**30  # float32 whose absolute value is no more fit int32, with roundings


def register_type(dtype: DType, lanes: int) -> ir.Type:
    """The LLVM type of a register value of a native element type."""
    if dtype is DType.BOOL:
        return lanes_of(ir.IntType(1), lanes)
    if dtype is DType.FLOAT32:
        return lanes_of(ir.FloatType(), lanes)
    if dtype is DType.FLOAT64:
        return lanes_of(ir.DoubleType(), lanes)
    return lanes_of(ir.IntType(8 * dtype.bytes), lanes)


def integer_limits(dtype: DType) -> tuple[int, int]:
    """The smallest and the largest number of an integer type."""
    bits = 8 * dtype.bytes
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype.is_signed else (0, (1 << bits) - 1)


class Converter:
    """Conversions for one builder, level and number of lanes."""

    def __init__(self, builder: ir.IRBuilder, level: Level, lanes: int) -> None:
        self.builder = builder
        self.level = level
        self.lanes = lanes
        self.single = Arithmetic(builder, level, lanes, 32)
        self.double = Arithmetic(builder, level, lanes, 64)
        self.short = lanes_of(ir.IntType(16), lanes)

    def limited(self, value: ir.Value, target: DType, saturating: bool = False) -> ir.Value:
        """A float32 in the range of ``target``, of fewer bytes, or a NaN, which becomes 0.

        With ``saturating`` it may be out of the range, as :meth:`needed` says.
        """
        return self._narrowed(self._as_int32(value, ("cvtt", "truncated")), target, saturating)

    def rounded(
        self, value: ir.Value, target: DType, saturating: bool = False, plus: int = 0
    ) -> ir.Value:
        """The same of the nearest whole number, ties to even, to which ``plus`` is added."""
        made = self._as_int32(value, ("cvt", "rounded"))
        if plus:
            made = self.builder.add(made, splat_constant(made.type, plus))
        return self._narrowed(made, target, saturating)

    def needed(
        self, limits: Sequence[tuple[str, float]], target: DType, most: float
    ) -> Sequence[tuple[str, float]]:
        """Those ``limits`` of a float32 that it takes before conversion to ``target``.

        Instructions that narrow whole numbers to bytes saturate, so that numbers that fit int32, as
        those of an absolute value of ``most`` at most, take none. Of what does not, the least whole
        number, bytes without a sign get the 0 that a NaN is to become; registers for masks come
        with instructions that take a step for it, which saves nothing.
        """
        ends = zip(("maximum", "minimum"), integer_limits(target), strict=True)
        if target.bytes > 1 or self.level.isa not in ("avx2", "avx512"):
            return limits
        if sorted(limits) != sorted(ends):
            return limits
        if most < LEAST_WHOLE:
            return []
        if target.is_signed or self.level.has_masks:
            return limits
        return [limit for limit in limits if limit[0] == "minimum"]

    def _narrowed(self, made: ir.Value, target: DType, saturating: bool) -> ir.Value:
        """An int32 in the range of ``target``, or limited to it, in as many bytes."""
        if saturating:
            for relation, limit in zip("<>", integer_limits(target), strict=True):
                end = splat_constant(made.type, limit)
                made = self.builder.select(self.builder.icmp_signed(relation, made, end), end, made)
        return self.builder.trunc(made, register_type(target, self.lanes))

    def _as_int32(self, value: ir.Value, instruction: tuple[str, str]) -> ir.Value:
        if self.level.isa == "neon":
            return self._whole(value, instruction[1])
        # The instruction gives -2**31 for a NaN, whose lower half is 0: no comparison is needed.
        bits = self.builder.bitcast(value, self.single.int_type)
        name = f"{instruction[1]}_float32"
        body = partial(_as_int32, instruction[0])
        return vector_functions.call(self.single, name, body, bits)

    def _whole(self, value: ir.Value, how: str) -> ir.Value:
        """The same in int32 where no instruction says what becomes of a NaN."""
        build = self.builder
        is_number = build.fcmp_ordered("ord", value, value)
        safe = build.select(is_number, value, splat_constant(value.type, 0.0))
        near = self.single.round_even(safe) if how == "rounded" else safe
        return build.fptosi(near, self.single.int_type)

    def cast(self, value: ir.Value, source: DType, target: DType) -> ir.Value:
        """``value`` of type ``source`` as ``target``; both native."""
        if source is target:
            return value
        if source.is_half:
            wide = self._from_half(value, source)
            return self.cast(wide, DType.FLOAT32, target)
        if target.is_half:
            if source is DType.FLOAT64:
                return self._to_half(self._round_to_odd(value), target)
            return self._to_half(self.cast(value, source, DType.FLOAT32), target)
        if source.is_float:
            return self._from_float(value, target)
        return self._from_integer(value, source, target)

    def _from_float(self, value: ir.Value, target: DType) -> ir.Value:
        kind = register_type(target, self.lanes)
        if target is DType.BOOL:
            return self.builder.fcmp_unordered("!=", value, splat_constant(value.type, 0.0))
        if target.is_float:
            widens = target is DType.FLOAT64
            return self.builder.fpext(value, kind) if widens else self.builder.fptrunc(value, kind)
        return self._saturate(value, target)

    def _saturate(self, value: ir.Value, target: DType) -> ir.Value:
        """A float as an integer: the nearest end of the range outside it, zero for a NaN.

        LLVM's saturating conversions mean the same, but its loop vectoriser handles this form
        better.
        """
        build = self.builder
        low, high = integer_limits(target)
        if target.bytes < 4:
            return self._saturate_narrow(value, target)
        below = build.fcmp_ordered("<", value, splat_constant(value.type, float(low)))
        above = build.fcmp_ordered(">=", value, splat_constant(value.type, float(high + 1)))
        is_nan = build.fcmp_unordered("uno", value, value)
        outside = build.or_(is_nan, build.or_(below, above))
        safe = build.select(outside, splat_constant(value.type, 0.0), value)
        kind = register_type(target, self.lanes)
        whole = build.fptosi(safe, kind) if target.is_signed else build.fptoui(safe, kind)
        whole = build.select(below, splat_constant(kind, low), whole)
        return build.select(above, splat_constant(kind, high), whole)

    def _saturate_narrow(self, value: ir.Value, target: DType) -> ir.Value:
        """The same for integers whose ends are floats: limited before it is converted.

        AVX2 narrows whole numbers by instructions that saturate, which LLVM takes where it sees the
        ends again; otherwise it picks their lower bytes out.
        """
        build = self.builder
        is_nan = build.fcmp_unordered("uno", value, value)
        limited = build.select(is_nan, splat_constant(value.type, 0.0), value)
        for limit, beyond in zip(integer_limits(target), ("<", ">"), strict=True):
            end = splat_constant(value.type, float(limit))
            limited = build.select(build.fcmp_ordered(beyond, limited, end), end, limited)
        whole = build.fptosi(limited, self.single.int_type)
        return self._narrowed(whole, target, self.level.isa == "avx2")

    def _from_integer(self, value: ir.Value, source: DType, target: DType) -> ir.Value:
        kind = register_type(target, self.lanes)
        build = self.builder
        if target is DType.BOOL:
            return build.icmp_unsigned("!=", value, splat_constant(value.type, 0))
        if target.is_float:
            return build.sitofp(value, kind) if source.is_signed else build.uitofp(value, kind)
        before = 0 if source is DType.BOOL else source.bytes
        if target.bytes == before:
            return value
        if target.bytes < before:
            return build.trunc(value, kind)
        return build.sext(value, kind) if source.is_signed else build.zext(value, kind)

    def _from_half(self, value: ir.Value, source: DType) -> ir.Value:
        """A 16-bit pattern as float32."""
        build, single = self.builder, self.single
        if source is DType.BFLOAT16:
            wide = build.zext(value, single.int_type)
            return single.from_bits(build.shl(wide, single.integer(16)))
        if self.level.has_half_conversion:
            half = build.bitcast(value, lanes_of(ir.HalfType(), self.lanes))
            return build.fpext(half, single.float_type)
        wide = build.zext(value, single.int_type)
        size = build.shl(build.and_(wide, single.integer(0x7FFF)), single.integer(13))
        # Multiplication moves the exponent's bias, and makes subnormal halves normal.
        finite = single.to_bits(single.scale(single.from_bits(size), 2.0**112))
        special = build.icmp_unsigned(">=", size, single.integer(0x7C00 << 13))
        size = build.select(special, build.or_(size, single.integer(0x7F800000)), finite)
        sign = build.shl(build.and_(wide, single.integer(0x8000)), single.integer(16))
        return single.from_bits(build.or_(size, sign))

    def _to_half(self, value: ir.Value, target: DType) -> ir.Value:
        """A float32 as a 16-bit pattern, rounded to nearest even.

        In integer arithmetic where the float32 has just been rounded from float64, although
        processors have an instruction: LLVM would merge the two roundings into one that no
        instruction does, and call a function for it.
        """
        if target is DType.BFLOAT16:
            return self._to_bfloat16(value)
        is_rounded = getattr(value, "opname", None) == "fptrunc"
        if self.level.has_half_conversion and not is_rounded:
            half = self.builder.fptrunc(value, lanes_of(ir.HalfType(), self.lanes))
            return self.builder.bitcast(half, self.short)
        return self._to_float16(value)

    def _to_bfloat16(self, value: ir.Value) -> ir.Value:
        build, single = self.builder, self.single
        bits = single.to_bits(value)
        top = build.lshr(bits, single.integer(16))
        even = build.and_(top, single.integer(1))
        rounded = build.add(build.add(bits, single.integer(0x7FFF)), even)
        rounded = build.lshr(rounded, single.integer(16))
        quiet = build.or_(top, single.integer(0x40))
        return build.trunc(build.select(single.is_nan(value), quiet, rounded), self.short)

    def _to_float16(self, value: ir.Value) -> ir.Value:
        build, single = self.builder, self.single
        bits = single.to_bits(value)
        size = build.and_(bits, single.integer(0x7FFFFFFF))
        shift = single.integer(13)
        even = build.and_(build.lshr(size, shift), single.integer(1))
        moved = build.sub(size, single.integer((112 << 23) - 0xFFF))
        normal = build.lshr(build.add(moved, even), shift)
        # Adding 0.5 aligns a number below the normal halves with their subnormal step, rounding it.
        aligned = single.add(single.from_bits(size), single.constant(0.5))
        subnormal = build.sub(single.to_bits(aligned), single.integer(0x3F000000))
        tiny = build.icmp_unsigned("<", size, single.integer(113 << 23))
        result = build.select(tiny, subnormal, normal)
        # From the middle of the last half and 2**16 upward everything is an infinity.
        huge = build.icmp_unsigned(">=", size, single.integer(0x477FF000))
        result = build.select(huge, single.integer(0x7C00), result)
        payload = build.or_(build.lshr(size, shift), single.integer(0x7E00))
        quiet = build.and_(payload, single.integer(0x7FFF))
        result = build.select(single.is_nan(value), quiet, result)
        sign = build.and_(build.lshr(bits, single.integer(16)), single.integer(0x8000))
        return build.trunc(build.or_(result, sign), self.short)

    def _round_to_odd(self, value: ir.Value) -> ir.Value:
        """A float64 as the float32 toward zero from it, made odd when inexact.

        Rounding that again to fewer digits gives what rounding once would have given.
        """
        build, single, double = self.builder, self.single, self.double
        near = build.fptrunc(value, single.float_type)
        back = build.fpext(near, double.float_type)
        bits = single.to_bits(near)
        above = double.compare(">", double.absolute(back), double.absolute(value))
        toward = build.sub(bits, build.zext(above, single.int_type))
        odd = build.or_(toward, single.integer(1))
        inexact = double.compare("!=", back, value)
        return single.from_bits(build.select(inexact, odd, bits))


_CONVERSIONS = {
    4: "x86.sse2.{}ps2dq",
    8: "x86.avx.{}.ps2dq.256",
    16: "x86.avx512.mask.{}ps2dq.512",
}
_CURRENT_ROUNDING = 4  # in what AVX-512 calls an embedded rounding: none


def _as_int32(instruction: str, a: Arithmetic, bits: ir.Value) -> ir.Value:
    """A register of float32, given as its bits, as int32; what does not fit is -2**31."""
    value = a.from_bits(bits)
    operands = [value]
    if a.lanes == 16:
        every = ir.Constant(ir.IntType(16), -1)
        operands += [bits, every, ir.Constant(ir.IntType(32), _CURRENT_ROUNDING)]
    name = _CONVERSIONS[a.lanes].format(instruction)
    return call_intrinsic(a.builder, name, a.int_type, [], operands)
