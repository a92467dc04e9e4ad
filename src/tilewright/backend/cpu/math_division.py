"""Division of integers, mostly through floating point: vectors have no instruction for it.

The quotient of two integers that are exact as floats never rounds up to a whole number that it does
not reach, as long as it has no more digits than the floats. So integers of 16 bits are divided as
float32 and those of 32 bits as float64, or as float32 in registers in which all are below 2**24.
Signed ones of 64 bits are small as a rule: registers in
which all are below 2**51 are divided as float64, too. Others take two steps where vectors of 64-bit
numbers are multiplied and converted by instructions: the quotient of the nearest float64 is off by
less than its 2**-50th part, and what it leaves, which wraps and is exact, is divided by the same
reciprocal. Elsewhere the processor divides them one by one.

By 0 is divided as by 1, so that nothing traps; whoever emits the division reports the error.
Start with :meth:`Division.apply`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from llvmlite import ir

from tilewright.backend.cpu import vector_functions
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.math_arithmetic import Arithmetic, lanes_of, splat_constant
from tilewright.backend.cpu.vector_functions import unless_rare

_LARGEST = float(2**63 - 2**10)  # of the float64 that are numbers of 64 bits
_MAGIC = 1.5 * 2.0**52  # integers added to it are in the last digits of the sum


@dataclass(frozen=True)
class Division:
    """The functions "divide", "truncated_remainder" and "remainder" of integers of one width."""

    builder: ir.IRBuilder
    level: Level
    lanes: int
    bits: int
    signed: bool

    def apply(self, function: str, x: ir.Value, y: ir.Value) -> ir.Value:
        """A function of two registers, exactly."""
        known, y = _known(y), self._safe(x, y)
        if known is not None:
            # Vectors of 64-bit numbers have no upper halves of products, as others have.
            is_shift = all(abs(number) & (abs(number) - 1) == 0 for number in known)
            by_steps = self._has_steps and not is_shift
            return self._by_steps(function, x, y) if by_steps else self._plain(function, x, y)
        if self.bits == 32 and self.level.vector_bytes > 16:
            name = f"{function}_{'signed' if self.signed else 'unsigned'}"
            body = partial(_unless_long, function, self.signed)
            return vector_functions.call(self._floats(32), name, body, x, y)
        if self.bits <= 32:
            return self._as_floats(function, x, y)
        if not self.signed:
            return self._plain(function, x, y)
        body = partial(_unless_large, function)
        return vector_functions.call(self._floats(64), function, body, x, y)

    def of_any_size(self, function: str, x: ir.Value, y: ir.Value) -> ir.Value:
        """A function of two registers of which some are large: of 32 bits, or signed ones of 64."""
        if self.bits == 32:
            return self._as_floats(function, x, y)
        if self._has_steps:
            return self._by_steps(function, x, y)
        # The vectoriser leaves anything in lanes that a condition excludes.
        return self._plain(function, x, self._safe(x, y))

    @property
    def _has_steps(self) -> bool:
        return self.bits == 64 and self.signed and self.level.isa == "avx512"

    def _floats(self, bits: int) -> Arithmetic:
        return Arithmetic(self.builder, self.level, self.lanes, bits)

    def _constant(self, value: int) -> ir.Constant:
        return splat_constant(lanes_of(ir.IntType(self.bits), self.lanes), value)

    def _safe(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """``y``, or 1 where dividing by it would trap; the least number over -1 wraps to itself."""
        build = self.builder
        bad = build.icmp_unsigned("==", y, self._constant(0))
        if self.signed:
            least = build.icmp_signed("==", x, self._constant(-(1 << (self.bits - 1))))
            minus = build.icmp_signed("==", y, self._constant(-1))
            bad = build.or_(bad, build.and_(least, minus))
        return build.select(bad, self._constant(1), y)

    # ------------------------------------------------------------ one by one, or as floats

    def _plain(self, function: str, x: ir.Value, y: ir.Value) -> ir.Value:
        build = self.builder
        if function == "divide":
            return build.sdiv(x, y) if self.signed else build.udiv(x, y)
        rest = build.srem(x, y) if self.signed else build.urem(x, y)
        return self._floored(rest, y) if function == "remainder" else rest

    def _as_floats(self, function: str, x: ir.Value, y: ir.Value) -> ir.Value:
        build, floats = self.builder, self._floats(32 if self.bits <= 16 else 64)
        as_float = build.sitofp if self.signed else build.uitofp
        quotient = floats.divide(as_float(x, floats.float_type), as_float(y, floats.float_type))
        if self.bits < 32:
            quotient = build.trunc(build.fptosi(quotient, floats.int_type), x.type)
        else:
            to_integer = build.fptosi if self.signed else build.fptoui
            quotient = to_integer(quotient, x.type)
        if function == "divide":
            return quotient
        rest = self._left(x, quotient, y)
        return self._floored(rest, y) if function == "remainder" else rest

    def _left(self, x: ir.Value, quotient: ir.Value, y: ir.Value) -> ir.Value:
        return self.builder.sub(x, self.builder.mul(quotient, y))

    def _floored(self, rest: ir.Value, y: ir.Value) -> ir.Value:
        """A remainder of either sign as the one with the sign of ``y``."""
        if not self.signed:
            return rest
        return self.builder.select(self._is_beyond(rest, y), self.builder.add(rest, y), rest)

    def _is_beyond(self, rest: ir.Value, x: ir.Value) -> ir.Value:
        """Whether a remainder is not 0 and has another sign than ``x``."""
        some = self.builder.icmp_unsigned("!=", rest, self._constant(0))
        return self.builder.and_(self._differ_in_sign(rest, x), some)

    def _differ_in_sign(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.builder.icmp_signed("<", self.builder.xor(x, y), self._constant(0))

    # ------------------------------------------------------------ any numbers of 64 bits

    def _by_steps(self, function: str, x: ir.Value, y: ir.Value) -> ir.Value:
        build = self.builder
        quotient, rest = self._nearest(x, y)
        if function == "remainder":
            return self._floored(rest, y)
        beyond, apart = self._is_beyond(rest, x), self._differ_in_sign(x, y)
        if function == "divide":
            nearer = build.select(apart, self._constant(1), self._constant(-1))
            return build.select(beyond, build.add(quotient, nearer), quotient)
        step = build.select(apart, build.sub(self._constant(0), y), y)
        return build.select(beyond, build.add(rest, step), rest)

    def _nearest(self, x: ir.Value, y: ir.Value) -> tuple[ir.Value, ir.Value]:
        """A quotient less than 1 from that of the numbers, and what it leaves, of either sign.

        The first one, toward zero, leaves less than the dividend, or a 2**-50th part of it with
        the other sign. The second one is at most some thousands, and rounded to the nearest: it
        leaves half of the divisor, and little more.
        """
        build, floats = self.builder, self._floats(64)
        reciprocal = floats.divide(floats.constant(1.0), build.sitofp(y, floats.float_type))
        about = floats.multiply(build.sitofp(x, floats.float_type), reciprocal)
        first = build.fptosi(floats.at_most(about, _LARGEST), x.type)
        left = self._left(x, first, y)
        more = floats.multiply(build.sitofp(left, floats.float_type), reciprocal)
        second = _rounded(floats, more)
        return build.add(first, second), self._left(left, second, y)


# ---------------------------------------------------------------- small numbers


def _unless_large(function: str, a: Arithmetic, x: ir.Value, y: ir.Value) -> ir.Value:
    """A function of integers, in float64 unless some are too large for that."""
    build, magic = a.builder, a.integer(a.pattern(_MAGIC))
    sum_x, sum_y = build.add(x, magic), build.add(y, magic)
    small_x = a.subtract(a.from_bits(sum_x), a.constant(_MAGIC))
    small_y = a.subtract(a.from_bits(sum_y), a.constant(_MAGIC))
    quotient = a.divide(small_x, small_y)
    quotient = a.floor(quotient) if function == "remainder" else a.truncate(quotient)
    is_quotient = function == "divide"
    made = quotient if is_quotient else a.subtract(small_x, a.multiply(quotient, small_y))
    # Small numbers leave the exponent of the sum as it is.
    exponent = a.integer(a.pattern(2.0**a.mantissa))
    changed = build.or_(build.xor(sum_x, exponent), build.xor(sum_y, exponent))
    top = build.lshr(changed, a.integer(a.mantissa))
    is_large = build.icmp_unsigned("!=", top, a.integer(0))
    rare = (f"any_{function}.{a.lanes}", partial(_of_any_size, function))
    return unless_rare(a, (x, y), _rounded(a, made), is_large, rare)


def _unless_long(function: str, signed: bool, a: Arithmetic, x: ir.Value, y: ir.Value) -> ir.Value:
    """A function of integers of 32 bits, in float32 unless some have more digits than that."""
    build, most = a.builder, 1 << (a.mantissa + 1)
    small_x, small_y = (build.sitofp(v, a.float_type) for v in (x, y))
    quotient = a.divide(small_x, small_y)
    quotient = a.floor(quotient) if function == "remainder" else a.truncate(quotient)
    made = quotient
    if function != "divide":  # exact, as the product is not rounded
        made = a.multiply_add(a.negate(quotient), small_y, small_x)
    least = a.integer(most - 1 if signed else 0)
    limit = a.integer(2 * most - 1 if signed else most)
    long_x, long_y = (build.icmp_unsigned(">=", build.add(v, least), limit) for v in (x, y))
    rare = (
        f"any_{'' if signed else 'unsigned_'}{function}.{a.lanes}.32",
        partial(_of_any_size, function, signed=signed),
    )
    usual = build.fptosi(made, a.int_type)
    return unless_rare(a, (x, y), usual, build.or_(long_x, long_y), rare)


def _of_any_size(
    function: str, a: Arithmetic, x: ir.Value, y: ir.Value, *, signed: bool = True
) -> ir.Value:
    return Division(a.builder, a.level, a.lanes, a.bits, signed).of_any_size(function, x, y)


def _rounded(a: Arithmetic, value: ir.Value) -> ir.Value:
    """The integer nearest to a float64 of at most 51 digits."""
    _, digits = a.shifted_round(value)
    return a.builder.sub(digits, a.integer(a.pattern(_MAGIC)))


def _known(divisor: ir.Value) -> Sequence[int] | None:
    """The elements of a divisor that is known when compiling."""
    if not isinstance(divisor, ir.Constant):
        return None
    content: object = divisor.constant
    if isinstance(content, int):
        return [content]
    lanes = cast(list[int | ir.Constant], content)
    return [lane if isinstance(lane, int) else cast(int, lane.constant) for lane in lanes]
