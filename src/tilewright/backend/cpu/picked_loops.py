"""Loops that pick elements of a row at positions that a table lists, where neighbours lie near.

An instruction that gathers takes as long as the loads of its lanes. Where the elements that a
vector picks lie within two registers, as those of a resized axis do, two loads and a permutation
take their place, and several positions share the loads. Whether they do is asked for every vector;
where not, some of the following iterations are done as usual before it is asked again. A row that
fits two registers needs no question. Start with :func:`write_lookups`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce

from llvmlite import ir

from tilewright.backend.cpu.checked_loops import LoopFrame, checked_loop, write_checked_loop
from tilewright.backend.cpu.cover import stepping
from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.indices import I64, word
from tilewright.backend.cpu.math_arithmetic import call_intrinsic, lanes_of, splat_constant
from tilewright.backend.cpu.vectors import VectorFrame, VectorPlace, address_of
from tilewright.ir.dtype import DType
from tilewright.ir.tile import (
    Convert,
    IndexValue,
    Let,
    LetIndex,
    Load,
    Loop,
    Store,
    TileBuffer,
    Value,
)
from tilewright.ir.tile_walk import looks_up_bytes, may_fault, slope, value_loads, value_parts
from tilewright.shape import Expr, symbol
from tilewright.target.core_model import VECTORS_TOGETHER

REGISTERS = 2  # that a permutation picks from
MOST_BYTES = 4  # of an element: as long as a listed position
# Vectors of iterations before it is asked again whether elements lie near: as many as are computed
# together. Asking takes 1 to 2.5 % of looking them up (Zen 4), to pick what lies near half of it.
AS_USUAL = VECTORS_TOGETHER
_I1, _I32 = ir.IntType(1), ir.IntType(32)
_WORDS = {1: DType.UINT8, 2: DType.UINT16, 4: DType.UINT32}
_ROW = symbol("_row")  # stands for a position in the place of a row
_Row = tuple[TileBuffer, Expr]  # where a row lies, for a position of it


@dataclass(frozen=True)
class PickingLoop:
    """A loop that picks at ``positions`` below ``limit``; ``picked`` says at which of them."""

    loop: Loop
    positions: dict[str, Load]
    limit: Expr
    picked: dict[Load, str]


def write_lookups(frame: LoopFrame, loop: Loop, bounds: tuple[ir.Value, ir.Value]) -> bool:
    """Write a loop that looks up elements, if there is more to it than one after the other."""
    picking = picking_loop(loop) if frame.level.has_lookup else None
    if picking is not None:
        write_picking_loop(frame, picking, bounds)
        return True
    if looks_up_bytes(loop):
        frame.usual(loop, *bounds)
        return True
    checked = checked_loop(loop)
    if checked is not None:
        write_checked_loop(frame, checked, bounds)
        return True
    return False


def picking_loop(loop: Loop) -> PickingLoop | None:
    """How to pick in a loop, if all else that it reads and writes lies side by side."""
    listed = [s for s in loop.body if isinstance(s, LetIndex)]
    rest = [s for s in loop.body if isinstance(s, Let | Store)]
    if not listed or loop.accumulators or len(listed) + len(rest) < len(loop.body):
        return None
    positions, limit = _listed(listed, loop.variable), listed[0].limit
    changing = {loop.variable, *(s.name for s in listed)}
    if len(positions) < len(listed) or not changing.isdisjoint(limit.free_symbols):
        return None
    loads = dict.fromkeys(load for s in rest for load in value_loads(s.value))
    picked = {
        load: name
        for load in loads
        for name in positions
        if slope(load.offset, name) == 1 and changing & set(load.offset.free_symbols) == {name}
    }
    stores = [s for s in rest if isinstance(s, Store)]
    written = {s.buffer for s in stores}
    near = all(
        load in picked
        or (slope(load.offset, loop.variable) is not None
            and positions.keys().isdisjoint(load.offset.free_symbols))
        for load in loads
    )  # fmt: skip
    is_vector = all(_is_vector(s.value, changing) for s in rest) and all(
        slope(s.offset, loop.variable) == 1 and s.buffer.dtype.bytes <= MOST_BYTES for s in stores
    )
    if not (picked and near and is_vector) or not written.isdisjoint(load.buffer for load in loads):
        return None
    return PickingLoop(loop, positions, limit, picked)


def _listed(statements: Sequence[LetIndex], variable: str) -> dict[str, Load]:
    """Where positions are listed that are trusted, in words of 32 bits, all below one limit."""
    found: dict[str, Load] = {}
    for statement in statements:
        match statement.value:
            case Convert(operand=Load(buffer=buffer, offset=offset) as load):
                is_word = buffer.dtype is DType.INT32 and slope(offset, variable) == 1
                is_trusted = statement.check is None and statement.limit is statements[0].limit
                if is_word and is_trusted:
                    found[statement.name] = load
            case _:
                pass
    return found


def _is_vector(value: Value, changing: set[str]) -> bool:
    """Whether a value is one of whole vectors, of no longer elements than positions."""
    parts = list(value_parts(value))
    positions = [part.expression for part in parts if isinstance(part, IndexValue)]
    return (
        all(part.dtype.bytes <= MOST_BYTES for part in parts if not isinstance(part, IndexValue))
        and all(changing.isdisjoint(position.free_symbols) for position in positions)
        and not any(map(may_fault, parts))
    )


def write_picking_loop(
    frame: LoopFrame, picking: PickingLoop, bounds: tuple[ir.Value, ir.Value]
) -> None:
    """The loop within ``bounds``."""
    builder, limit = frame.builder, frame.index(picking.limit)
    lanes = frame.level.lanes(MOST_BYTES)
    is_long = builder.icmp_signed("<", word(REGISTERS * lanes), limit)
    few = builder.icmp_signed("<", builder.sub(bounds[1], bounds[0]), word(lanes))
    with builder.if_else(few) as (at_once, in_vectors):
        with at_once:  # as of borders: all that is asked takes longer than to look them up
            frame.usual(picking.loop, *bounds)
        with in_vectors, builder.if_else(is_long) as (windows, whole):
            for block, way in ((windows, _Windows), (whole, _WholeRows)):
                with block:
                    way(frame, picking, limit, lanes, bounds[1]).write(bounds[0])


class _WholeRows:
    """Rows of no more elements than two registers have, from which is picked without questions."""

    def __init__(
        self, frame: LoopFrame, picking: PickingLoop, limit: ir.Value, lanes: int, end: ir.Value
    ) -> None:
        self.frame = frame
        self.builder = frame.builder
        self.picking = picking
        self.limit = limit
        self.lanes = lanes
        self.end = end
        self.vector = Emitter(frame.builder, frame.level, lanes)

    def write(self, begin: ir.Value) -> None:
        """The iterations from ``begin`` on."""
        stepping(self.builder, f"{self.picking.loop.variable}.pick", (begin, self.end), self._step)

    def _step(self, first: ir.Value) -> ir.Value:
        builder = self.builder
        left = builder.sub(self.end, first)
        is_full = builder.icmp_signed("<=", word(self.lanes), left)
        with builder.if_else(is_full) as (full, rest):
            with full:
                long, after_full = self._vector(first, None), builder.block
            with rest:
                short, after_rest = self._vector(first, builder.trunc(left, _I32)), builder.block
        step = builder.phi(I64)
        step.add_incoming(long, after_full)
        step.add_incoming(short, after_rest)
        return step

    def _vector(self, first: ir.Value, count: ir.Value | None) -> ir.Value:
        """A vector of iterations, the last one of ``count``, and how far the next one is."""
        place = VectorPlace(self.picking.loop.variable, first, count, is_rest=count is not None)
        made = VectorFrame(self.frame, self.lanes, place, {})
        self._pick(made, {n: made.value(p) for n, p in self.picking.positions.items()}, word(0))
        return word(self.lanes)

    def _pick(self, made: VectorFrame, places: dict[str, ir.Value], base: ir.Value) -> None:
        """The iterations, which pick at ``places`` counted from ``base``."""
        self.frame.enter()
        rows: dict[_Row, list[ir.Value]] = {}
        for load, name in self.picking.picked.items():
            row = load.buffer, load.offset.substitute({name: _ROW})
            if row not in rows:
                rows[row] = [self._register(row, base, n) for n in range(REGISTERS)]
            made.memo[id(load)] = self._permuted(rows[row], places[name], load.buffer.dtype)
        for statement in self.picking.loop.body:
            if isinstance(statement, Let):
                made.locals[statement.name] = made.value(statement.value)
            elif isinstance(statement, Store):
                made.store(statement)
        self.frame.leave()

    def _register(self, row: _Row, base: ir.Value, number: int) -> ir.Value:
        """Elements of a row from ``base`` on, or as many registers later, as 32 bits each."""
        buffer, offset = row
        kind = _WORDS[buffer.dtype.bytes]
        first = self.builder.add(base, word(number * self.lanes))
        is_filled = buffer.scratch and offset is _ROW
        if is_filled:
            first = self._within(first)
        address = address_of(self.frame, buffer, offset, {str(_ROW): first})
        if is_filled:
            read = self.vector.load(address, kind)
        else:
            read = self._read(address, kind, self.builder.sub(self.limit, first))
        return self.builder.zext(read, lanes_of(_I32, self.lanes))

    def _within(self, first: ir.Value) -> ir.Value:
        """Where a register of a row in scratch begins, which has whole lines; 0 for one beyond.

        A load under a mask would wait until what was stored has left the core.
        """
        begins = self.builder.icmp_signed("<", first, self.limit)
        return self.builder.select(begins, first, word(0))

    def _read(self, address: ir.Value, kind: DType, left: ir.Value) -> ir.Value:
        """A register of memory of which so many elements are ``left``."""
        return self.vector.masked_load(address, kind, self.vector.lane_mask(left))

    def _permuted(self, row: Sequence[ir.Value], places: ir.Value, dtype: DType) -> ir.Value:
        """What lies at some places of two registers."""
        builder, kind = self.builder, lanes_of(_I32, self.lanes)
        low, high = row
        if self.frame.level.isa == "avx512":
            name = "x86.avx512.vpermi2var.d.512"
            picked = call_intrinsic(builder, name, kind, [], [low, places, high])
        else:
            halves = [
                call_intrinsic(builder, "x86.avx2.permd", kind, [], [half, places])
                for half in (low, high)
            ]
            is_high = builder.icmp_signed("<", splat_constant(kind, self.lanes - 1), places)
            picked = builder.select(is_high, halves[1], halves[0])
        return self.vector.from_words(picked, dtype)


class _Windows(_WholeRows):
    """Longer rows: two registers from where the first lane picks, if all lanes pick of these."""

    def _vector(self, first: ir.Value, count: ir.Value | None) -> ir.Value:
        builder, lanes = self.builder, self.lanes
        place = VectorPlace(self.picking.loop.variable, first, count, is_rest=count is not None)
        made = VectorFrame(self.frame, lanes, place, {})
        places = {n: made.value(p) for n, p in self.picking.positions.items()}
        base = self._base(places)
        counted = self._counted(places, base)
        with builder.if_else(self._all_near(counted, count)) as (picks, looks_up):
            with picks:
                self._pick(made, counted, base)
                picked = builder.block
            with looks_up:
                end = _least(builder, builder.add(first, word(AS_USUAL * lanes)), self.end)
                self.frame.usual(self.picking.loop, first, end)
                looked_up = builder.block
        step = builder.phi(I64)
        step.add_incoming(word(lanes), picked)
        step.add_incoming(word(AS_USUAL * lanes), looked_up)
        return step

    def _base(self, places: dict[str, ir.Value]) -> ir.Value:
        """Where registers begin: at what the first lane picks, or not beyond the last two."""
        builder = self.builder
        firsts = [builder.extract_element(each, ir.Constant(_I32, 0)) for each in places.values()]
        first = builder.sext(reduce(partial(_least, builder), firsts), I64)
        return _least(builder, first, builder.sub(self.limit, word(REGISTERS * self.lanes)))

    def _counted(self, places: dict[str, ir.Value], base: ir.Value) -> dict[str, ir.Value]:
        start = self.vector.splat(self.builder.trunc(base, _I32))
        return {name: self.builder.sub(each, start) for name, each in places.items()}

    def _all_near(self, counted: dict[str, ir.Value], count: ir.Value | None) -> ir.Value:
        """Whether all of so many lanes pick from the registers."""
        builder, vectors = self.builder, list(counted.values())
        size = ir.Constant(vectors[0].type, REGISTERS * self.lanes)
        near = reduce(builder.and_, [builder.icmp_unsigned("<", each, size) for each in vectors])
        if count is not None:
            near = builder.or_(near, builder.not_(self.vector.lane_mask(count)))
        return call_intrinsic(builder, "vector.reduce.and", _I1, [near.type], [near])

    def _within(self, first: ir.Value) -> ir.Value:
        return first

    def _read(self, address: ir.Value, kind: DType, left: ir.Value) -> ir.Value:
        return self.vector.load(address, kind)


def _least(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.icmp_signed("<", a, b), a, b)
