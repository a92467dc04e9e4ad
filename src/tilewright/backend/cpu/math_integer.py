"""What the scalar functions mean for integers and bool: one row per function.

Integers wrap. Shifts by the width or more give zero. Division is in ``math_division``. ``UNARY``
and ``BINARY`` map the names of ``ir.scalar`` to functions of an :class:`Integers`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.math_arithmetic import lanes_of, splat_constant
from tilewright.backend.cpu.math_division import Division


@dataclass(frozen=True)
class Integers:
    """Integers of one width; ``bits`` is 1 for bool, which is unsigned."""

    builder: ir.IRBuilder
    level: Level
    lanes: int
    bits: int
    signed: bool

    @property
    def division(self) -> Division:
        """Their division, for which vectors have no instruction."""
        return Division(self.builder, self.level, self.lanes, self.bits, self.signed)

    @property
    def type(self) -> ir.Type:
        """The register type."""
        return lanes_of(ir.IntType(self.bits), self.lanes)

    def constant(self, value: int) -> ir.Constant:
        """``value`` in every lane."""
        return splat_constant(self.type, value)

    def compare(self, relation: str, a: ir.Value, b: ir.Value) -> ir.Value:
        """Comparison as numbers of this signedness."""
        if self.signed:
            return self.builder.icmp_signed(relation, a, b)
        return self.builder.icmp_unsigned(relation, a, b)

    @property
    def is_bool(self) -> bool:
        """Whether these are truth values."""
        return self.bits == 1


def _same(i: Integers, x: ir.Value) -> ir.Value:
    return x


def _negate(i: Integers, x: ir.Value) -> ir.Value:
    return i.builder.sub(i.constant(0), x)


def _absolute(i: Integers, x: ir.Value) -> ir.Value:
    if not i.signed:
        return x
    return i.builder.select(i.compare("<", x, i.constant(0)), _negate(i, x), x)


def _sign(i: Integers, x: ir.Value) -> ir.Value:
    one = i.builder.zext(truth(i, x), i.type) if not i.is_bool else x
    if not i.signed:
        return one
    return i.builder.select(i.compare("<", x, i.constant(0)), i.constant(-1), one)


def truth(i: Integers, x: ir.Value) -> ir.Value:
    """Whether a number is not zero."""
    return x if i.is_bool else i.builder.icmp_unsigned("!=", x, i.constant(0))


def _logical_not(i: Integers, x: ir.Value) -> ir.Value:
    return i.builder.icmp_unsigned("==", x, i.constant(0))


def _bitwise_not(i: Integers, x: ir.Value) -> ir.Value:
    return i.builder.not_(x)


def _never(i: Integers, x: ir.Value) -> ir.Value:
    return splat_constant(lanes_of(ir.IntType(1), i.lanes), 0)


def _add(i: Integers, x: ir.Value, y: ir.Value) -> ir.Value:
    return i.builder.or_(x, y) if i.is_bool else i.builder.add(x, y)


def _subtract(i: Integers, x: ir.Value, y: ir.Value) -> ir.Value:
    return i.builder.sub(x, y)


def _multiply(i: Integers, x: ir.Value, y: ir.Value) -> ir.Value:
    return i.builder.and_(x, y) if i.is_bool else i.builder.mul(x, y)


def _divide(i: Integers, x: ir.Value, y: ir.Value) -> ir.Value:
    return i.division.apply("divide", x, y)


def _truncated_remainder(i: Integers, x: ir.Value, y: ir.Value) -> ir.Value:
    return i.division.apply("truncated_remainder", x, y)


def _remainder(i: Integers, x: ir.Value, y: ir.Value) -> ir.Value:
    return i.division.apply("remainder", x, y)


def _power(i: Integers, x: ir.Value, y: ir.Value) -> ir.Value:
    """By squares, one for each bit of the exponent; those of a known exponent are folded."""
    build, one, zero = i.builder, i.constant(1), i.constant(0)
    result, square = one, x
    for bit in range(i.bits):
        bits = build.and_(build.lshr(y, i.constant(bit)), one)
        factor = build.select(build.icmp_unsigned("!=", bits, zero), square, one)
        result, square = build.mul(result, factor), build.mul(square, square)
    if not i.signed:
        return result
    # Of 1 / x^-y nothing is left but where x is 1 or -1, whose powers repeat themselves.
    is_unit = build.icmp_unsigned("<=", build.add(x, one), i.constant(2))
    is_lost = build.and_(i.compare("<", y, zero), build.not_(is_unit))
    return build.select(is_lost, zero, result)


def _maximum(i: Integers, x: ir.Value, y: ir.Value) -> ir.Value:
    return i.builder.or_(x, y) if i.is_bool else i.builder.select(i.compare(">", x, y), x, y)


def _minimum(i: Integers, x: ir.Value, y: ir.Value) -> ir.Value:
    return i.builder.and_(x, y) if i.is_bool else i.builder.select(i.compare("<", x, y), x, y)


def _logical_and(i: Integers, x: ir.Value, y: ir.Value) -> ir.Value:
    return i.builder.and_(truth(i, x), truth(i, y))


def _logical_or(i: Integers, x: ir.Value, y: ir.Value) -> ir.Value:
    return i.builder.or_(truth(i, x), truth(i, y))


def _logical_xor(i: Integers, x: ir.Value, y: ir.Value) -> ir.Value:
    return i.builder.xor(truth(i, x), truth(i, y))


def _bitwise_and(i: Integers, x: ir.Value, y: ir.Value) -> ir.Value:
    return i.builder.and_(x, y)


def _bitwise_or(i: Integers, x: ir.Value, y: ir.Value) -> ir.Value:
    return i.builder.or_(x, y)


def _bitwise_xor(i: Integers, x: ir.Value, y: ir.Value) -> ir.Value:
    return i.builder.xor(x, y)


def _shift(i: Integers, x: ir.Value, y: ir.Value, left: bool) -> ir.Value:
    zero = i.constant(0)
    valid = i.builder.icmp_unsigned("<", y, i.constant(i.bits))
    amount = i.builder.select(valid, y, zero)
    if left:
        return i.builder.select(valid, i.builder.shl(x, amount), zero)
    if not i.signed:
        return i.builder.select(valid, i.builder.lshr(x, amount), zero)
    # numpy shifts by a negative amount as by the largest one, which leaves only the sign.
    sign = i.builder.ashr(x, i.constant(i.bits - 1))
    beyond = i.builder.select(i.compare("<", y, zero), sign, zero)
    return i.builder.select(valid, i.builder.ashr(x, amount), beyond)


def _shift_left(i: Integers, x: ir.Value, y: ir.Value) -> ir.Value:
    return _shift(i, x, y, True)


def _shift_right(i: Integers, x: ir.Value, y: ir.Value) -> ir.Value:
    return _shift(i, x, y, False)


def _equal(i: Integers, x: ir.Value, y: ir.Value) -> ir.Value:
    return i.compare("==", x, y)


def _less(i: Integers, x: ir.Value, y: ir.Value) -> ir.Value:
    return i.compare("<", x, y)


def _less_equal(i: Integers, x: ir.Value, y: ir.Value) -> ir.Value:
    return i.compare("<=", x, y)


UNARY: dict[str, Callable[[Integers, ir.Value], ir.Value]] = {
    "negate": _negate,
    "absolute": _absolute,
    "sign": _sign,
    "floor": _same,
    "ceil": _same,
    "round_even": _same,
    "truncate": _same,
    "logical_not": _logical_not,
    "bitwise_not": _bitwise_not,
    "is_nan": _never,
    "is_infinite": _never,
}

BINARY: dict[str, Callable[[Integers, ir.Value, ir.Value], ir.Value]] = {
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "divide": _divide,
    "remainder": _remainder,
    "truncated_remainder": _truncated_remainder,
    "power": _power,
    "maximum": _maximum,
    "minimum": _minimum,
    "logical_and": _logical_and,
    "logical_or": _logical_or,
    "logical_xor": _logical_xor,
    "bitwise_and": _bitwise_and,
    "bitwise_or": _bitwise_or,
    "bitwise_xor": _bitwise_xor,
    "shift_left": _shift_left,
    "shift_right": _shift_right,
    "equal": _equal,
    "less": _less,
    "less_equal": _less_equal,
}
