"""Functions of one byte as lookups in a table of 256.

Instructions that permute find an element of a register or two by the low bits of every lane; the
other bits choose among what several of them find. Vectors of 64 bytes take four permutations of
words, which hold two entries each, 128 apart; those of 32 bytes take sixteen of 16 entries each.
Without such instructions bytes are looked up one by one. Start with :func:`looked_up`.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import TypeVar

from llvmlite import ir

from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.math_arithmetic import call_intrinsic, splat_constant

_I8, _I16, _I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
_HALF = 128  # entries
_WORDS = 32  # of 16 bits in a register of 64 bytes
_PIECE = 16  # bytes of a register that are permuted among each other
_T = TypeVar("_T")


def looked_up(builder: ir.IRBuilder, level: Level, table: bytes, x: ir.Value) -> ir.Value:
    """``table[byte]`` for a byte or every lane of a vector of bytes."""
    kind = x.type
    if not isinstance(kind, ir.VectorType):
        return _entry(builder, table, x)
    lanes, size = kind.count, level.vector_bytes
    if not level.has_lookup:
        made: ir.Value = ir.Constant(kind, ir.Undefined)
        for lane in (ir.Constant(_I32, n) for n in range(lanes)):
            found = _entry(builder, table, builder.extract_element(x, lane))
            made = builder.insert_element(made, found, lane)
        return made
    find = _in_words if level.isa == "avx512" else _in_pieces
    parts = [
        find(builder, table, _lanes(builder, x, range(first, first + size), lanes))
        for first in range(0, lanes, size)
    ]
    while len(parts) > 1:
        size *= 2
        parts = [_joined(builder, *pair, size) for pair in _runs(parts, 2)]
    return parts[0] if lanes >= size else _lanes(builder, parts[0], range(lanes), size)


def _runs(row: Sequence[_T], count: int) -> list[Sequence[_T]]:
    """A row in parts of so many."""
    return [row[first : first + count] for first in range(0, len(row), count)]


def _entry(builder: ir.IRBuilder, table: bytes, byte: ir.Value) -> ir.Value:
    """The entry for one byte, out of memory."""
    name, kind = f"bytes.{sha256(table).hexdigest()}", ir.ArrayType(_I8, len(table))
    entries = builder.module.globals.get(name)
    if entries is None:
        entries = ir.GlobalVariable(builder.module, kind, name)
        entries.linkage, entries.global_constant = "internal", True
        entries.initializer = ir.Constant(kind, bytearray(table))
    place = builder.zext(byte, ir.IntType(64))
    return builder.load(builder.gep(entries, [place], source_etype=_I8), align=1, typ=_I8)


def _lanes(builder: ir.IRBuilder, x: ir.Value, places: range, there: int) -> ir.Value:
    """Lanes of a vector; those beyond the last of all that are ``there`` hold anything."""
    order = [min(place, there - 1) for place in places]
    kind = ir.VectorType(_I32, len(order))
    return builder.shuffle_vector(x, x, ir.Constant(kind, order))


def _joined(builder: ir.IRBuilder, low: ir.Value, high: ir.Value, count: int) -> ir.Value:
    order = ir.Constant(ir.VectorType(_I32, count), [*range(count)])
    return builder.shuffle_vector(low, high, order)


def _in_words(builder: ir.IRBuilder, table: bytes, x: ir.Value) -> ir.Value:
    """A register of 64 bytes: words of two entries each, found for bytes of even and odd lanes."""
    bytes_, words = ir.VectorType(_I8, 2 * _WORDS), ir.VectorType(_I16, _WORDS)
    entries = [table[n] | table[n + _HALF] << 8 for n in range(_HALF)]
    registers = [ir.Constant(words, [*part]) for part in _runs(entries, _WORDS)]
    pairs = builder.bitcast(x, words)

    def found(places: ir.Value) -> ir.Value:
        low, high = (
            call_intrinsic(builder, "x86.avx512.vpermi2var.hi.512", words, [], [one, places, other])
            for one, other in _runs(registers, 2)
        )
        bit = builder.and_(places, splat_constant(words, 2 * _WORDS))
        return builder.select(builder.icmp_unsigned("!=", bit, splat_constant(words, 0)), high, low)

    eight = splat_constant(words, 8)
    even, odd = found(pairs), found(builder.lshr(pairs, eight))
    is_odd = ir.Constant(ir.VectorType(ir.IntType(1), 2 * _WORDS), [0, 1] * _WORDS)

    def woven(of_even: ir.Value, of_odd: ir.Value) -> ir.Value:
        first, second = (builder.bitcast(part, bytes_) for part in (of_even, of_odd))
        return builder.select(is_odd, second, first)

    lower = woven(even, builder.shl(odd, eight))
    upper = woven(builder.lshr(even, eight), odd)
    return builder.select(builder.icmp_signed("<", x, splat_constant(bytes_, 0)), upper, lower)


def _in_pieces(builder: ir.IRBuilder, table: bytes, x: ir.Value) -> ir.Value:
    """A register of 32 bytes: what each piece of the table has at the low four bits.

    The instruction gives 0 where the highest bit is set, which makes one of both halves 0.
    """
    kind, words = ir.VectorType(_I8, 2 * _PIECE), ir.VectorType(_I16, _PIECE)

    def found(part: Sequence[int], places: ir.Value) -> ir.Value:
        entries = ir.Constant(kind, [*part, *part])
        return call_intrinsic(builder, "x86.avx2.pshuf.b", kind, [], [entries, places])

    def with_bit(bit: int) -> ir.Value:
        """The lanes with a bit moved to the highest one."""
        moved = builder.shl(builder.bitcast(x, words), splat_constant(words, 7 - bit))
        return builder.bitcast(moved, kind)

    halves: list[ir.Value] = []
    choices = [with_bit(bit) for bit in (4, 5, 6)]
    other = builder.xor(x, splat_constant(kind, _HALF))
    for places, half in ((x, table[:_HALF]), (other, table[_HALF:])):
        parts = [found(part, places) for part in _runs(half, _PIECE)]
        for choice in choices:
            parts = [
                call_intrinsic(builder, "x86.avx2.pblendvb", kind, [], [*pair, choice])
                for pair in _runs(parts, 2)
            ]
        halves += parts
    return builder.or_(halves[0], halves[1])


__all__ = ["looked_up"]
