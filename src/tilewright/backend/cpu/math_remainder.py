"""What division of float32 leaves, exactly, on whole registers.

Quotients below 2**29 times a divisor fit a float64, so one step there is exact. Larger ones, and
numbers that are none, are rare; they take a loop in which every step takes 24 binary digits of the
quotient. Start with :func:`truncated_remainder`.
"""

from __future__ import annotations

import math

from llvmlite import ir

from tilewright.backend.cpu import vector_functions
from tilewright.backend.cpu.math_arithmetic import Arithmetic, call_intrinsic
from tilewright.backend.cpu.vector_functions import unless_rare

_DIGITS = 29  # of a quotient: with 24 of the divisor they are those of a float64


def truncated_remainder(a: Arithmetic, x: ir.Value, y: ir.Value) -> ir.Value:
    """``x - trunc(x / y) y`` with the sign of x; a NaN for an infinite x and for y = 0."""
    if not a.single:
        # Exact for every quotient; LLVM calls fmod once per lane.
        return a.builder.frem(x, y)
    return vector_functions.call(a, "truncated_remainder", _on_register, x, y)


def _on_register(a: Arithmetic, x: ir.Value, y: ir.Value) -> ir.Value:
    wide = a.wide()
    size, divisor = a.widen(a.absolute(x)), a.widen(a.absolute(y))
    quotient = wide.truncate(wide.divide(size, divisor))
    rest = wide.subtract(size, wide.multiply(quotient, divisor))
    usual = a.copy_sign(a.narrow(_not_negative(wide, rest, divisor)), x)
    small = a.builder.and_(
        wide.compare("<", quotient, 2.0**_DIGITS), wide.compare("<", divisor, math.inf)
    )
    name = f"any_remainder.{a.lanes}"
    return unless_rare(a, (x, y), usual, a.builder.not_(small), (name, _by_steps))


def _not_negative(wide: Arithmetic, rest: ir.Value, divisor: ir.Value) -> ir.Value:
    """The rest of a quotient that may have been rounded up to an integer."""
    return wide.select(wide.compare("<", rest, 0.0), wide.add(rest, divisor), rest)


def _by_steps(a: Arithmetic, x: ir.Value, y: ir.Value) -> ir.Value:
    """Any quotient: what is left has few digits after each step, so each of them is exact."""
    builder, wide = a.builder, a.wide()
    size, divisor = a.widen(a.absolute(x)), a.widen(a.absolute(y))
    begin = builder.block
    loop, done = (builder.append_basic_block(name) for name in ("step", "stepped"))
    builder.branch(loop)
    builder.position_at_end(loop)
    rest = builder.phi(wide.float_type)
    rest.add_incoming(size, begin)
    digits = builder.and_(
        wide.to_bits(wide.divide(rest, divisor)), wide.integer(-(1 << wide.mantissa - 23))
    )
    quotient = wide.truncate(wide.from_bits(digits))
    left = wide.subtract(rest, wide.multiply(quotient, divisor))
    # An infinite divisor leaves everything; a NaN ends the loop.
    left = wide.select(wide.compare("==", divisor, math.inf), size, left)
    unfinished = builder.and_(
        wide.compare(">=", wide.absolute(left), divisor), wide.compare("<", divisor, math.inf)
    )
    rest.add_incoming(left, builder.block)
    again = call_intrinsic(
        builder, "vector.reduce.or", ir.IntType(1), [unfinished.type], [unfinished]
    )
    builder.cbranch(again, loop, done)
    builder.position_at_end(done)
    infinite = wide.compare("==", size, math.inf)
    made = wide.select(infinite, wide.nan, _not_negative(wide, left, divisor))
    return a.copy_sign(a.narrow(made), x)
