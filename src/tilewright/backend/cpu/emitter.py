"""Typed arithmetic, conversions and memory access on top of llvmlite's ``IRBuilder``.

An :class:`Emitter` writes operations on register values of the native element types, scalar for
``lanes=1`` and vectors otherwise, with the meanings of ``ir.scalar``. In registers bool is i1, and
float16 and bfloat16 are 16-bit patterns; in memory bool is one byte. Imports its siblings ``math``,
``math_integer`` and ``convert``. Start with :meth:`Emitter.apply`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from llvmlite import ir

from tilewright.backend.cpu import math as float_functions
from tilewright.backend.cpu import math_integer as integer_functions
from tilewright.backend.cpu.byte_tables import looked_up
from tilewright.backend.cpu.convert import Converter, integer_limits, register_type
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.math_arithmetic import (
    Arithmetic,
    call_intrinsic,
    lanes_of,
    splat_constant,
)
from tilewright.backend.cpu.math_integer import Integers
from tilewright.backend.cpu.narrow_dots import pair_products
from tilewright.backend.cpu.vector_functions import call
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import COMBINE, MULTIPLY_ADD, SCALAR_FUNCTIONS, table_of
from tilewright.ir.tile import Apply, Convert, Literal, Value
from tilewright.ir.tile_magnitudes import magnitude
from tilewright.support.errors import UnsupportedError

_NUMBERS_ONLY = (
    *("negate", "sign", "subtract", "divide", "remainder", "truncated_remainder", "power"),
    *("shift_left", "shift_right"),
)
_INDEX, _BYTE = ir.IntType(32), ir.IntType(8)
_ENDS = ("maximum", "minimum")  # what limits to the least and the greatest number
_REORDERED = ("reassoc", "contract")


class Emitter:
    """Writes operations on values of ``lanes`` elements at the builder's position.

    ``type`` below always means the register form. Methods raise
    :class:`~tilewright.support.errors.UnsupportedError` for a function that has no meaning for an
    element type.
    """

    def __init__(self, builder: ir.IRBuilder, level: Level, lanes: int = 1) -> None:
        self.builder = builder
        self.level = level
        self.lanes = lanes
        self._converter = Converter(builder, level, lanes)

    def with_lanes(self, lanes: int) -> Emitter:
        """The same builder and level with another number of lanes."""
        return Emitter(self.builder, self.level, lanes)

    def type(self, dtype: DType) -> ir.Type:
        """The type of a register value of a native element type."""
        return register_type(dtype, self.lanes)

    def memory_type(self, dtype: DType) -> ir.Type:
        """The scalar LLVM type of one element in memory."""
        return ir.IntType(8) if dtype is DType.BOOL else register_type(dtype, 1)

    def constant(self, value: float | int | bool, dtype: DType) -> ir.Constant:
        """``value``, rounded to ``dtype``, in every lane; integers wrap."""
        if dtype.is_half:
            pattern = np.array(value, np.float64).astype(dtype.numpy).view(np.uint16)
            return splat_constant(self.type(dtype), int(pattern))
        if dtype.is_float:
            return self._floats(dtype).constant(float(value))
        return splat_constant(
            self.type(dtype), int(value) if dtype.is_integer else int(bool(value))
        )

    def _floats(self, dtype: DType) -> Arithmetic:
        return Arithmetic(self.builder, self.level, self.lanes, 8 * dtype.bytes)

    def _integers(self, dtype: DType) -> Integers:
        bits = 1 if dtype is DType.BOOL else 8 * dtype.bytes
        return Integers(self.builder, self.level, self.lanes, bits, dtype.is_signed)

    def apply(self, function: str, dtype: DType, operands: Sequence[ir.Value]) -> ir.Value:
        """A row of ``SCALAR_FUNCTIONS`` on operands of type ``dtype`` (of "select": its values).

        Half-precision operands are computed in float32 and rounded.
        """
        table = table_of(function)
        if table is not None:
            return looked_up(self.builder, self.level, table, operands[0])
        if function == "select":
            return self.builder.select(operands[0], operands[1], operands[2])
        if dtype.is_half:
            wide = [self.cast(operand, dtype, DType.FLOAT32) for operand in operands]
            value = self.apply(function, DType.FLOAT32, wide)
            is_bool = SCALAR_FUNCTIONS[function].result == "bool"
            return value if is_bool else self.cast(value, DType.FLOAT32, dtype)
        if dtype is DType.BOOL and function in _NUMBERS_ONLY:
            raise _meaningless(function, dtype)
        if len(operands) == 1:
            return self._unary(function, dtype, operands[0])
        return self._binary(function, dtype, operands[0], operands[1])

    def _unary(self, function: str, dtype: DType, x: ir.Value) -> ir.Value:
        if dtype.is_float:
            emit = float_functions.UNARY.get(function)
            if emit is not None:
                return emit(self._floats(dtype), x)
        else:
            emit_integer = integer_functions.UNARY.get(function)
            if emit_integer is not None:
                return emit_integer(self._integers(dtype), x)
        raise _meaningless(function, dtype)

    def _binary(self, function: str, dtype: DType, x: ir.Value, y: ir.Value) -> ir.Value:
        if dtype.is_float:
            emit = float_functions.BINARY.get(function)
            if emit is not None:
                return emit(self._floats(dtype), x, y)
        else:
            emit_integer = integer_functions.BINARY.get(function)
            if emit_integer is not None:
                return emit_integer(self._integers(dtype), x, y)
        raise _meaningless(function, dtype)

    def adding(self, function: str, dtype: DType, operands: Sequence[ir.Value]) -> ir.Value:
        """One of ``ADDING`` on operands of type ``dtype``."""
        if function == MULTIPLY_ADD:
            return self.multiply_add(dtype, *operands)
        a, b, c = operands
        words = Arithmetic(self.builder, self.level, self.lanes, 32)
        return self.builder.add(call(words, "pair_products", pair_products, a, b), c)

    def multiply_add(self, dtype: DType, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """``a * b + c``; float32 and float64 are rounded once where an instruction does that."""
        if dtype.is_float and not dtype.is_half:
            return self._floats(dtype).multiply_add(a, b, c)
        return self.apply("add", dtype, [c, self.apply("multiply", dtype, [a, b])])

    def cast(self, value: ir.Value, source: DType, target: DType) -> ir.Value:
        """``value`` of type ``source`` as ``target``, both native; see ``convert``."""
        return self._converter.cast(value, source, target)

    def convert(self, evaluate: Callable[[Value], ir.Value], meaning: Convert) -> ir.Value:
        """A conversion of what ``evaluate`` gives for its operand, or for a part of that."""
        operand = meaning.operand
        shifted = _before_zero_point(meaning)
        if shifted is not None:
            value, zero = shifted
            return self._quantised(evaluate(value), zero, meaning.dtype, magnitude(value))
        if meaning.dtype.bytes < 4 and operand.dtype is DType.FLOAT32 and _is_limited(meaning):
            found, is_rounded = _before_rounding(operand), True
            if found is None:
                found, is_rounded = _before_limits(operand), False
            made, limits = evaluate(found[0]), found[1]
            kept = self._converter.needed(limits, meaning.dtype, magnitude(found[0]))
            for function, limit in kept:
                made = self.apply(
                    function, DType.FLOAT32, [self.constant(limit, DType.FLOAT32), made]
                )
            convert = self._converter.rounded if is_rounded else self._converter.limited
            return convert(made, meaning.dtype, len(kept) < len(limits))
        return self.cast(evaluate(operand), operand.dtype, meaning.dtype)

    def _quantised(self, value: ir.Value, zero: int, target: DType, most: float) -> ir.Value:
        """The nearest whole number to one of up to ``most``, plus ``zero``, in the range of a byte.

        Limits come before the rounding, which is one instruction with the conversion, and the zero
        point is added in integers. What is no number becomes the least byte.
        """
        build, both = self.builder, [*zip(_ENDS, integer_limits(target), strict=True)]
        kept = self._converter.needed(both, target, most + zero)
        for function, limit in kept:
            end = self.constant(limit - zero, DType.FLOAT32)
            if function == "maximum":
                value = build.select(build.fcmp_ordered(">", value, end), value, end)
            else:  # leaves what is no number to the conversion
                value = build.select(build.fcmp_ordered("<", end, value), end, value)
        return self._converter.rounded(value, target, len(kept) < len(both), zero)

    def splat(self, scalar_value: ir.Value) -> ir.Value:
        """A scalar in every lane."""
        if self.lanes == 1:
            return scalar_value
        kind = ir.VectorType(scalar_value.type, self.lanes)
        undefined = ir.Constant(kind, ir.Undefined)
        zero = ir.Constant(ir.IntType(32), 0)
        first = self.builder.insert_element(undefined, scalar_value, zero)
        order = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(first, undefined, order)

    def gep(self, pointer: ir.Value, dtype: DType, index: ir.Value) -> ir.Value:
        """The address ``index`` elements after ``pointer``."""
        return self.builder.gep(pointer, [index], source_etype=self.memory_type(dtype))

    def _from_memory(self, value: ir.Value, dtype: DType) -> ir.Value:
        if dtype is not DType.BOOL:
            return value
        return self.builder.icmp_unsigned("!=", value, splat_constant(value.type, 0))

    def _to_memory(self, value: ir.Value, dtype: DType) -> ir.Value:
        if dtype is not DType.BOOL:
            return value
        return self.builder.zext(value, lanes_of(ir.IntType(8), self.lanes))

    def from_words(self, words: ir.Value, dtype: DType) -> ir.Value:
        """Elements from the low bits of words of 32, as they lie in memory."""
        bits = lanes_of(ir.IntType(8 * dtype.bytes), self.lanes)
        narrow = words if dtype.bytes == 4 else self.builder.trunc(words, bits)
        kind = lanes_of(self.memory_type(dtype), self.lanes)
        return self._from_memory(self.builder.bitcast(narrow, kind), dtype)

    def load(self, pointer: ir.Value, dtype: DType, *, alignment: int | None = None) -> ir.Value:
        """``lanes`` consecutive elements; aligned as one element unless ``alignment`` says more."""
        kind = lanes_of(self.memory_type(dtype), self.lanes)
        value = self.builder.load(pointer, align=alignment or dtype.bytes, typ=kind)
        return self._from_memory(value, dtype)

    def store(
        self, value: ir.Value, pointer: ir.Value, dtype: DType, *, alignment: int | None = None
    ) -> None:
        """Write ``lanes`` consecutive elements."""
        self.builder.store(self._to_memory(value, dtype), pointer, align=alignment or dtype.bytes)

    def store_streamed(self, value: ir.Value, pointer: ir.Value, dtype: DType) -> None:
        """Write a register past the caches; the address is a multiple of its size."""
        stored = self._to_memory(value, dtype)
        made = self.builder.store(stored, pointer, align=self.lanes * dtype.bytes)
        one = self.builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        made.set_metadata("nontemporal", one)

    def prefetch(self, pointer: ir.Value, *, to_write: bool = False, near: bool = True) -> None:
        """Ask for a cache line, into the second cache if not ``near``.

        Any address will do, as nothing happens where there is none.
        """
        options = [ir.Constant(ir.IntType(32), v) for v in (int(to_write), 3 if near else 2, 1)]
        call_intrinsic(self.builder, "prefetch.p0", ir.VoidType(), [], [pointer, *options])

    def picked(self, vectors: Sequence[ir.Value], places: Sequence[tuple[int, int]]) -> ir.Value:
        """A vector of one element of each place: the number of a vector, and where in it."""
        made, kind = vectors[0], ir.VectorType(ir.IntType(32), self.lanes)
        for number, vector in enumerate(vectors[1:], start=1):
            # Lanes that a later vector fills hold anything until then.
            order = [
                i if source < number and number > 1 else self.lanes * min(source, 1) + at
                for i, (source, at) in enumerate(places)
            ]
            made = self.builder.shuffle_vector(made, vector, ir.Constant(kind, order))
        return made

    def lane_mask(self, count: ir.Value) -> ir.Value:
        """i1 vector: true in the first ``count`` lanes (any i32 or i64; negative: none)."""
        kind = ir.VectorType(count.type, self.lanes)
        indices = ir.Constant(kind, list(range(self.lanes)))
        return self.builder.icmp_signed("<", indices, self.splat(count))

    def masked_load(self, pointer: ir.Value, dtype: DType, mask: ir.Value) -> ir.Value:
        """Elements where ``mask`` (i1 vector) is true, zeros elsewhere; no other memory is read."""
        kind = ir.VectorType(self.memory_type(dtype), self.lanes)
        alignment = ir.Constant(ir.IntType(32), dtype.bytes)
        zeros = splat_constant(kind, 0)
        operands = [pointer, alignment, mask, zeros]
        value = call_intrinsic(
            self.builder, "masked.load", kind, [kind, ir.PointerType()], operands
        )
        return self._from_memory(value, dtype)

    def masked_store(
        self, value: ir.Value, pointer: ir.Value, dtype: DType, mask: ir.Value
    ) -> None:
        """Write the elements where ``mask`` (i1 vector) is true."""
        stored = self._to_memory(value, dtype)
        alignment = ir.Constant(ir.IntType(32), dtype.bytes)
        kinds = [stored.type, ir.PointerType()]
        operands = [stored, pointer, alignment, mask]
        call_intrinsic(self.builder, "masked.store", ir.VoidType(), kinds, operands)

    def store_first(self, value: ir.Value, pointer: ir.Value, dtype: DType, count: int) -> None:
        """Write the first ``count`` elements: under a mask, or as pieces where there are none.

        Without registers for masks, a store under one takes longer than several plain ones.
        """
        if self.level.has_masks:
            self.masked_store(value, pointer, dtype, self.lane_mask(ir.Constant(_INDEX, count)))
            return
        begin = 0
        while begin < count:
            lanes = 1 << ((count - begin).bit_length() - 1)
            if lanes == 1:
                piece = self.builder.extract_element(value, ir.Constant(_INDEX, begin))
            else:
                order = ir.Constant(ir.VectorType(_INDEX, lanes), [*range(begin, begin + lanes)])
                piece = self.builder.shuffle_vector(value, value, order)
            offset = ir.Constant(_INDEX, begin * dtype.bytes)
            place = self.builder.gep(pointer, [offset], source_etype=_BYTE)
            self.with_lanes(lanes).store(piece, place, dtype)
            begin += lanes

    def store_rest(self, value: ir.Value, pointer: ir.Value, dtype: DType, count: ir.Value) -> None:
        """Write the first ``count`` elements (i32), fewer than there are lanes.

        Without registers for masks, for each binary digit of ``count`` a piece with so many.
        """
        if self.level.has_masks:
            self.masked_store(value, pointer, dtype, self.lane_mask(count))
            return
        builder, half = self.builder, self.lanes // 2
        halves = [
            ir.Constant(ir.VectorType(_INDEX, half), [*range(n, n + half)]) for n in (0, half)
        ]
        low, high = (builder.shuffle_vector(value, value, order) for order in halves)
        if half == 1:
            zero = ir.Constant(_INDEX, 0)
            low, high = (builder.extract_element(part, zero) for part in (low, high))
        narrow = self.with_lanes(half)
        before, size = builder.block, ir.Constant(_INDEX, half * dtype.bytes)
        has_piece = builder.and_(count, ir.Constant(_INDEX, half))
        with builder.if_then(builder.icmp_signed("!=", has_piece, ir.Constant(_INDEX, 0))):
            narrow.store(low, pointer, dtype)
            following = builder.gep(pointer, [size], source_etype=_BYTE)
            inside = builder.block
        if half == 1:
            return
        rest, place = builder.phi(low.type), builder.phi(pointer.type)
        for phi, without, stored in ((rest, low, high), (place, pointer, following)):
            phi.add_incoming(without, before)
            phi.add_incoming(stored, inside)
        narrow.store_rest(rest, place, dtype, count)

    def combine(self, kind: str, dtype: DType, a: ir.Value, b: ir.Value) -> ir.Value:
        """One step of a reduction: "sum", "product", "maximum" or "minimum".

        Sums and products of float32 and float64 may be reordered, so that loops vectorise.
        """
        if dtype in (DType.FLOAT32, DType.FLOAT64):
            if kind == "sum":
                return self.builder.fadd(a, b, flags=_REORDERED)
            if kind == "product":
                return self.builder.fmul(a, b, flags=_REORDERED)
        return self.apply(COMBINE[kind], dtype, [a, b])

    def identity(self, kind: str, dtype: DType) -> ir.Constant:
        """The neutral element of a reduction."""
        if kind in ("sum", "product"):
            return self.constant(0 if kind == "sum" else 1, dtype)
        if dtype is DType.BOOL:
            return self.constant(kind == "minimum", dtype)
        if dtype.is_float:
            return self.constant(float("-inf") if kind == "maximum" else float("inf"), dtype)
        low, high = integer_limits(dtype)
        return self.constant(low if kind == "maximum" else high, dtype)

    def reduce_lanes(self, kind: str, dtype: DType, vector: ir.Value) -> ir.Value:
        """The reduction of the lanes of one vector, as a scalar."""
        if self.lanes == 1:
            return vector
        if dtype in (DType.FLOAT32, DType.FLOAT64):
            return self._reduce_floats(kind, dtype, vector)
        scalar = self.with_lanes(1)
        lanes = [ir.Constant(ir.IntType(32), lane) for lane in range(self.lanes)]
        total: ir.Value = self.builder.extract_element(vector, lanes[0])
        for lane in lanes[1:]:
            element = self.builder.extract_element(vector, lane)
            total = scalar.combine(kind, dtype, total, element)
        return total

    def _reduce_floats(self, kind: str, dtype: DType, vector: ir.Value) -> ir.Value:
        scalar = register_type(dtype, 1)
        names = {"sum": "fadd", "product": "fmul", "maximum": "fmaximum", "minimum": "fminimum"}
        name = f"vector.reduce.{names[kind]}"
        if kind in ("sum", "product"):
            start = self.with_lanes(1).identity(kind, dtype)
            operands, flags = [start, vector], _REORDERED
        else:
            operands, flags = [vector], ("nsz",)
        return call_intrinsic(self.builder, name, scalar, [vector.type], operands, flags)


def _meaningless(function: str, dtype: DType) -> UnsupportedError:
    return UnsupportedError(
        f"The function {function} has no meaning for elements of type {dtype.value}.",
        hint="Cast the operands to a floating-point type first.",
    )


def _before_rounding(value: Value) -> tuple[Value, list[tuple[str, float]]] | None:
    """What is rounded, and the whole limits of that: they may come before the rounding as well."""
    if not isinstance(value, Apply):
        return None
    if value.function == "round_even":
        return value.operands[0], []
    if value.function not in ("maximum", "minimum"):
        return None
    limit = next((x for x in value.operands if isinstance(x, Literal)), None)
    if limit is None or not float(limit.value).is_integer():
        return None
    found = _before_rounding(next(x for x in value.operands if x is not limit))
    return None if found is None else (found[0], [*found[1], (value.function, limit.value)])


def _before_zero_point(conversion: Convert) -> tuple[Value, int] | None:
    """What is rounded to a byte without a sign, and the zero point that is added before limits."""
    target = conversion.dtype
    if target is not DType.UINT8 or conversion.operand.dtype is not DType.FLOAT32:
        return None
    value, limits = _before_limits(conversion.operand)
    ends = [*zip(_ENDS, map(float, integer_limits(target)), strict=True)]
    if sorted(limits) != sorted(ends):
        return None
    match value:
        case Apply(
            function="add",
            operands=(Apply(function="round_even", operands=(part,)), Literal(value=zero))
            | (Literal(value=zero), Apply(function="round_even", operands=(part,))),
        ) if float(zero).is_integer() and 0 <= zero <= ends[1][1]:
            return part, int(zero)
        case _:
            return None


def _before_limits(value: Value) -> tuple[Value, list[tuple[str, float]]]:
    """What is limited by numbers, and these, the first one first."""
    limits: list[tuple[str, float]] = []
    while isinstance(value, Apply) and value.function in ("maximum", "minimum"):
        limit = next((x for x in value.operands if isinstance(x, Literal)), None)
        if limit is None:
            break
        limits.insert(0, (value.function, float(limit.value)))
        value = next(x for x in value.operands if x is not limit)
    return value, limits


def _is_limited(conversion: Convert) -> bool:
    """Whether a float becomes an integer after it was limited to the range of its type."""
    if not conversion.dtype.is_integer:
        return False
    low, high = integer_limits(conversion.dtype)
    found = _before_limits(conversion.operand)[1]
    limits = dict(found)
    least, most = limits.get("maximum", low - 1), limits.get("minimum", high + 1)
    return len(found) == len(limits) and low <= least <= most <= high
