"""Arithmetic on float32 or float64 values, scalar or vector, that LLVM keeps exactly as written.

:class:`Arithmetic` wraps an ``IRBuilder`` with the few operations that the elementary functions are
built from. It hides what a level lacks: on the baseline there is no fused multiply-add and no
rounding instruction, and LLVM would call libm for them; here they become plain operations. Nothing
carries fast-math flags, because range reduction relies on the order of operations. Imports
``machine`` only.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from llvmlite import ir

from tilewright.backend.cpu.machine import Level


def lanes_of(scalar: ir.Type, lanes: int) -> ir.Type:
    """``scalar`` itself for one lane, else the vector type."""
    return scalar if lanes == 1 else ir.VectorType(scalar, lanes)


def splat_constant(kind: ir.Type, value: object) -> ir.Constant:
    """A constant with ``value`` in every lane, of which llvmlite makes one object for all lanes."""
    return ir.Constant(kind, value)


def _suffix(kind: ir.Type) -> str:
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{_suffix(kind.element)}"
    if isinstance(kind, ir.PointerType):
        return "p0"
    if isinstance(kind, ir.IntType):
        return f"i{kind.width}"
    names: dict[ir.Type, str] = {
        ir.FloatType(): "f32",
        ir.DoubleType(): "f64",
        ir.HalfType(): "f16",
    }
    return names[kind]


def call_intrinsic(
    builder: ir.IRBuilder,
    name: str,
    result: ir.Type,
    overloads: Sequence[ir.Type],
    operands: Sequence[ir.Value],
    flags: Sequence[str] = (),
) -> ir.Value:
    """Call ``llvm.<name>`` with the mangled suffix of ``overloads``, declaring it once a module."""
    full = ".".join(["llvm", name, *(_suffix(kind) for kind in overloads)])
    module = builder.module
    function = module.globals.get(full)
    if function is None:
        signature = ir.FunctionType(result, [operand.type for operand in operands])
        function = ir.Function(module, signature, full)
    return builder.call(function, list(operands), fastmath=tuple(flags))


class Arithmetic:
    """Operations on values of one floating-point width.

    ``bits`` is 32 or 64 and ``lanes`` the number of elements of each value. ``mantissa`` and
    ``bias`` describe the format.
    """

    def __init__(self, builder: ir.IRBuilder, level: Level, lanes: int, bits: int) -> None:
        self.builder = builder
        self.level = level
        self.lanes = lanes
        self.bits = bits
        self.mantissa, self.bias = (23, 127) if bits == 32 else (52, 1023)
        self.float_type = lanes_of(ir.FloatType() if bits == 32 else ir.DoubleType(), lanes)
        self.int_type = lanes_of(ir.IntType(bits), lanes)
        self.infinity = self.constant(float("inf"))
        self.nan = self.constant(float("nan"))

    @property
    def single(self) -> bool:
        """Whether values are float32."""
        return self.bits == 32

    def wide(self) -> Arithmetic:
        """The same lanes in float64."""
        return Arithmetic(self.builder, self.level, self.lanes, 64)

    def widen(self, value: ir.Value) -> ir.Value:
        """float32 to float64."""
        return self.builder.fpext(value, self.wide().float_type)

    def narrow(self, value: ir.Value) -> ir.Value:
        """float64 to this (float32) width, rounding to nearest even."""
        return self.builder.fptrunc(value, self.float_type)

    def rounded(self, value: float) -> float:
        """``value`` rounded to this width."""
        return struct.unpack("f", struct.pack("f", value))[0] if self.single else value

    def constant(self, value: float) -> ir.Constant:
        """``value`` rounded to this width, in every lane."""
        return splat_constant(self.float_type, self.rounded(value))

    def integer(self, value: int) -> ir.Constant:
        """An integer as wide as the floats, in every lane."""
        return splat_constant(self.int_type, value)

    def pattern(self, value: float) -> int:
        """The bits of ``value`` in this width, as a non-negative integer."""
        if self.single:
            return struct.unpack("I", struct.pack("f", value))[0]
        return struct.unpack("Q", struct.pack("d", value))[0]

    def add(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.fadd(a, b)

    def subtract(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.fsub(a, b)

    def multiply(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.fmul(a, b)

    def divide(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.fdiv(a, b)

    def negate(self, a: ir.Value) -> ir.Value:
        return self.builder.fneg(a)

    def scale(self, a: ir.Value, factor: float) -> ir.Value:
        """``a * factor``."""
        return self.builder.fmul(a, self.constant(factor))

    def multiply_add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """``a * b + c``, rounded once where the level can, else twice."""
        if self.level.has_fma:
            return self._same("fma", a, b, c)
        return self.builder.fadd(self.builder.fmul(a, b), c)

    def polynomial(self, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
        """The polynomial with these coefficients, constant first, by Horner's rule."""
        value: ir.Value = self.constant(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            value = self.multiply_add(value, x, self.constant(coefficient))
        return value

    def _same(self, name: str, *operands: ir.Value) -> ir.Value:
        return call_intrinsic(self.builder, name, self.float_type, [self.float_type], operands)

    def absolute(self, a: ir.Value) -> ir.Value:
        return self._same("fabs", a)

    def copy_sign(self, magnitude: ir.Value, sign: ir.Value) -> ir.Value:
        return self._same("copysign", magnitude, sign)

    def square_root(self, a: ir.Value) -> ir.Value:
        return self._same("sqrt", a)

    def compare(self, relation: str, a: ir.Value, b: ir.Value | float) -> ir.Value:
        """Ordered comparison (false with a NaN); ``b`` may be a number."""
        other = self.constant(b) if isinstance(b, (int, float)) else b
        return self.builder.fcmp_ordered(relation, a, other)

    def is_nan(self, a: ir.Value) -> ir.Value:
        return self.builder.fcmp_unordered("uno", a, a)

    def select(self, condition: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.select(condition, a, b)

    def at_most(self, a: ir.Value, limit: float) -> ir.Value:
        """The smaller of ``a`` and ``limit``; a NaN stays."""
        return self.select(self.compare(">", a, limit), self.constant(limit), a)

    def at_least(self, a: ir.Value, limit: float) -> ir.Value:
        """The larger of ``a`` and ``limit``; a NaN stays."""
        return self.select(self.compare("<", a, limit), self.constant(limit), a)

    def to_bits(self, a: ir.Value) -> ir.Value:
        return self.builder.bitcast(a, self.int_type)

    def from_bits(self, a: ir.Value) -> ir.Value:
        return self.builder.bitcast(a, self.float_type)

    def round_even(self, a: ir.Value) -> ir.Value:
        """The nearest integer, ties to even; the sign of zero stays."""
        if self.level.has_rounding:
            return self._same("roundeven", a)
        # Adding 2**mantissa pushes the fraction out; larger values are integers already.
        limit = float(2**self.mantissa)
        size = self.absolute(a)
        pushed = self.builder.fadd(size, self.constant(limit))
        near = self.builder.fsub(pushed, self.constant(limit))
        return self.select(self.compare("<", size, limit), self.copy_sign(near, a), a)

    def _directed(self, name: str, a: ir.Value) -> ir.Value:
        if self.level.has_rounding:
            return self._same(name, a)
        near = self.round_even(a)
        relation, step = (">", -1.0) if name == "floor" else ("<", 1.0)
        correction = self.select(
            self.compare(relation, near, a), self.constant(step), self.constant(0.0)
        )
        return self.copy_sign(self.builder.fadd(near, correction), a)

    def floor(self, a: ir.Value) -> ir.Value:
        return self._directed("floor", a)

    def ceil(self, a: ir.Value) -> ir.Value:
        return self._directed("ceil", a)

    def truncate(self, a: ir.Value) -> ir.Value:
        """Rounds toward zero; the sign of zero stays."""
        if self.level.has_rounding:
            return self._same("trunc", a)
        return self.copy_sign(self._directed("floor", self.absolute(a)), a)

    def shifted_round(self, product: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Round to an integer n with an addition: (n as a float, bits whose low part is n).

        ``product`` must be below 2**(mantissa-2) in size. A NaN gives a NaN and arbitrary bits.
        """
        magic = self.constant(1.5 * 2.0**self.mantissa)
        shifted = self.builder.fadd(product, magic)
        return self.builder.fsub(shifted, magic), self.to_bits(shifted)

    def rounded_product(
        self, x: ir.Value, factor: float, parts: int = 1, offset: int = 0
    ) -> tuple[ir.Value, ir.Value]:
        """n nearest to x factor among the multiples of 1/parts, and bits that end in n parts.

        ``offset`` is added to what the bits end in. As :meth:`shifted_round` otherwise.
        """
        magic = self.constant((1.5 * 2.0**self.mantissa + offset) / parts)
        shifted = self.multiply_add(x, self.constant(factor), magic)
        return self.builder.fsub(shifted, magic), self.to_bits(shifted)

    def power_of_two(self, biased: ir.Value) -> ir.Value:
        """2**(e - bias) from an integer whose low exponent field holds e in [0, 2*bias+1]."""
        return self.from_bits(self.builder.shl(biased, self.integer(self.mantissa)))

    def two_sum(self, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The rounded sum of any two numbers, and what rounding lost."""
        total = self.builder.fadd(a, b)
        part = self.builder.fsub(total, a)
        lost = self.builder.fadd(
            self.builder.fsub(a, self.builder.fsub(total, part)), self.builder.fsub(b, part)
        )
        return total, lost

    def two_product(self, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The rounded product, and what rounding lost (when neither over- nor underflows)."""
        product = self.builder.fmul(a, b)
        if self.level.has_fma:
            return product, self._same("fma", a, b, self.builder.fneg(product))
        a_high, a_low = self._halves(a)
        b_high, b_low = self._halves(b)
        lost = self.builder.fsub(self.builder.fmul(a_high, b_high), product)
        lost = self.builder.fadd(lost, self.builder.fmul(a_high, b_low))
        lost = self.builder.fadd(lost, self.builder.fmul(a_low, b_high))
        return product, self.builder.fadd(lost, self.builder.fmul(a_low, b_low))

    def _halves(self, a: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Two numbers of half the digits that sum to ``a``."""
        digits = (self.mantissa + 2) // 2
        mask = (1 << self.bits) - (1 << digits)
        high = self.from_bits(self.builder.and_(self.to_bits(a), self.integer(mask)))
        return high, self.builder.fsub(a, high)
