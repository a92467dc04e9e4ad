"""Elementary functions of float32 whose coefficients are looked up in vector registers.

Splitting the arguments into as many pieces as a register has elements makes polynomials short: one
instruction gives every lane the coefficient of its piece. Divisions and second branches of the
functions in ``math_exponential`` fall away. AVX-512 also has instructions that take numbers apart
and put them together, subnormal ones as well. All functions here take a whole register. Pieces with
polynomials of their own are the classical way of table-driven functions (Tang, "Table-driven
implementation of the exponential function in IEEE floating-point arithmetic", 1989). Imports
``math_arithmetic`` and the tables; start with :func:`lookup`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from tilewright.backend.cpu import math_lookup_tables as tables
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.math_arithmetic import Arithmetic, call_intrinsic, splat_constant
from tilewright.backend.cpu.math_tables import LOG2_SINGLE
from tilewright.backend.cpu.math_trigonometric import register_cosine, register_sine

Function = Callable[[Arithmetic, ir.Value], ir.Value]

_FROM_THREE_QUARTERS = 3  # mantissas in [3/4, 3/2), in the immediate of the instruction
_NAN_IF_NEGATIVE = 2 << 2  # the sign, in the same immediate
_I32 = ir.IntType(32)


def lookup(a: Arithmetic, table: Sequence[float], index: ir.Value) -> ir.Value:
    """``table[i]`` for i the low bits of every lane of ``index``; as long as a register."""
    assert len(table) == a.lanes == a.level.lanes(4)
    name = "x86.avx512.permvar.sf.512" if a.lanes == 16 else "x86.avx2.permps"
    entries = ir.Constant(a.float_type, [float(v) for v in table])
    return call_intrinsic(a.builder, name, a.float_type, [], [entries, index])


@dataclass(frozen=True)
class _Pieces:
    """Multiples of a width up to ``limit``, beyond which an odd function is 1."""

    limit: float
    width: float

    def nearest(self, a: Arithmetic, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        """(u, bits whose low part is k) with |x| = k width + u."""
        size = a.at_most(a.absolute(x), self.limit)
        piece, index = a.rounded_product(size, 1 / self.width)
        return a.multiply_add(piece, a.constant(-self.width), size), index


def _error_function(a: Arithmetic, x: ir.Value) -> ir.Value:
    """A polynomial for each piece."""
    if a.lanes == 16:
        width, rows = tables.ERROR_PIECES_16_WIDTH, tables.ERROR_PIECES_16
    else:
        width, rows = tables.ERROR_PIECES_8_WIDTH, tables.ERROR_PIECES_8
    u, index = _Pieces(4.0, width).nearest(a, x)
    value = lookup(a, rows[-1], index)
    for row in reversed(rows[1:-1]):
        value = a.multiply_add(value, u, lookup(a, row, index))
    # The factor of u is 1 + P near 0, where an error of P counts least.
    value = a.add(lookup(a, rows[0], index), a.multiply_add(value, u, u))
    return a.copy_sign(value, x)


def _hyperbolic_tangent(a: Arithmetic, x: ir.Value) -> ir.Value:
    """tanh(v + u) = t + w (1 - t**2) / (1 + t w) with t = tanh(v) from a table and w = tanh(u)."""
    if a.lanes == 16:
        width, steps = tables.TANGENT_STEPS_16_WIDTH, tables.TANGENT_STEPS_16
        slopes = tables.TANGENT_SLOPES_16
        within = tables.TANGENT_WITHIN_16
    else:
        width, steps = tables.TANGENT_STEPS_8_WIDTH, tables.TANGENT_STEPS_8
        slopes = tables.TANGENT_SLOPES_8
        within = tables.TANGENT_WITHIN_8
    u, index = _Pieces(9.011, width).nearest(a, x)
    z = a.multiply(u, u)
    near = a.multiply_add(a.multiply(u, z), a.polynomial(z, within), u)
    step = lookup(a, steps, index)
    rise = a.multiply(near, lookup(a, slopes, index))
    value = a.add(step, a.divide(rise, a.multiply_add(step, near, a.constant(1.0))))
    return a.copy_sign(value, x)


def _masked(a: Arithmetic, name: str, operands: Sequence[ir.Value]) -> ir.Value:
    """An instruction of AVX-512 on all lanes, with the usual rounding."""
    everywhere = ir.Constant(ir.IntType(16), -1)
    nothing = splat_constant(a.float_type, 0.0)
    arguments = [*operands, nothing, everywhere, ir.Constant(_I32, 4)]
    return call_intrinsic(a.builder, f"x86.avx512.mask.{name}.ps.512", a.float_type, [], arguments)


def _exponential(a: Arithmetic, x: ir.Value) -> ir.Value:
    """2**(n + k/16) (1 + p) with n + k/16 nearest to x / log(2)."""
    x = a.at_least(a.at_most(x, 90.0), -105.0)
    n, index = a.rounded_product(x, 1 / math.log(2), len(tables.EXPONENTIAL_STEPS))
    high, low = LOG2_SINGLE
    r = a.multiply_add(n, a.constant(-high), x)
    r = a.multiply_add(n, a.constant(-low), r)
    p = a.polynomial(r, tables.EXPONENTIAL_WITHIN)
    p = a.multiply_add(a.multiply(r, r), p, r)
    step = lookup(a, tables.EXPONENTIAL_STEPS, index)
    # The instruction takes the integer part of n itself.
    return _masked(a, "scalef", [a.multiply_add(step, p, step), n])


def _logarithm(a: Arithmetic, x: ir.Value) -> ir.Value:
    """k log(2) - log(c) + log(1 + r) with 2**k (1 + r) / c = x.

    The instructions give what is wanted for zero, infinity and NaN; the mantissa of a negative
    number is none.
    """
    how = ir.Constant(_I32, _NAN_IF_NEGATIVE | _FROM_THREE_QUARTERS)
    mantissa = _masked(a, "getmant", [x, how])
    k = a.subtract(_masked(a, "getexp", [x]), _masked(a, "getexp", [mantissa]))
    index = a.builder.lshr(a.to_bits(mantissa), a.integer(a.mantissa - 4))
    r = a.multiply_add(mantissa, lookup(a, tables.LOGARITHM_FACTORS, index), a.constant(-1.0))
    p = a.polynomial(r, tables.LOGARITHM_WITHIN)
    p = a.multiply_add(a.multiply(r, r), p, r)
    high, low = LOG2_SINGLE
    whole = a.multiply_add(k, a.constant(high), lookup(a, tables.LOGARITHM_STEPS, index))
    return a.add(whole, a.multiply_add(k, a.constant(low), p))


def register_functions(level: Level) -> dict[str, Function]:
    """The functions that ``level`` computes in this way."""
    if not level.has_lookup:
        return {}
    found: dict[str, Function] = {
        "error_function": _error_function,
        "hyperbolic_tangent": _hyperbolic_tangent,
        "sine": register_sine,
        "cosine": register_cosine,
    }
    if level.lanes(4) == 16:
        found |= {"exponential": _exponential, "logarithm": _logarithm}
    return found
