"""Loops that are nothing but sums of products of contiguous elements, as explicit vectors.

LLVM would finish such a loop one element at a time and interleave sums by its own rules. Here every
vector is loaded once however many products need it, few sums are kept in several copies to hide the
latency of a multiply-add, and the last elements are read under a mask. Start with
:func:`contiguous_products` and :class:`DotProducts`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from tilewright.backend.cpu.cover import Sums, carrying
from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.indices import I64, word
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.math_arithmetic import call_intrinsic
from tilewright.ir.dtype import DType
from tilewright.ir.tile import Apply, Load, Loop
from tilewright.target.core_model import PAGE_BYTES, lanes_along

SUMS_IN_FLIGHT = 12  # more than the 8 that a latency of 4 cycles and two starts in each ask for
LEAST_UNROLL = 2  # vectors along the loop per iteration: hides the loop's own instructions
AHEAD_BYTES = PAGE_BYTES  # that left streams are asked for before they are read
MOST_READ_AHEAD = 8  # sums; of more, LLVM would spill what it reads ahead

Products = tuple[tuple[Load, Load], ...]


def contiguous_products(loop: Loop) -> Products | None:
    """The factors of every sum if ``loop`` only adds products of contiguous floats, else None."""
    if loop.body or not loop.accumulators:
        return None
    pairs: list[tuple[Load, Load]] = []
    for accumulator in loop.accumulators:
        value = accumulator.value
        if accumulator.kind != "sum" or value.dtype not in (DType.FLOAT32, DType.FLOAT64):
            return None
        if not isinstance(value, Apply) or value.function != "multiply":
            return None
        left, right = value.operands
        if not isinstance(left, Load) or not isinstance(right, Load):
            return None
        if not (_is_contiguous(left, loop.variable) and _is_contiguous(right, loop.variable)):
            return None
        pairs.append((left, right))
    same = all(left.dtype is pairs[0][0].dtype for left, _ in pairs)
    return tuple(pairs) if same else None


def _is_contiguous(load: Load, variable: str) -> bool:
    affine = load.offset.affine((variable,))
    if affine is None or variable not in affine[0]:
        return False
    slope = affine[0][variable]
    return slope.is_constant and slope.value == 1


class DotProducts:
    """Writes sums of ``steps`` products; ``pairs`` say which of ``streams`` each multiplies.

    A stream is the address of its first element. ``known`` is how many steps there are where that
    is known when compiling, ``far`` (i1) whether the left streams come from memory.
    """

    def __init__(
        self,
        builder: ir.IRBuilder,
        level: Level,
        dtype: DType,
        streams: Sequence[ir.Value],
        pairs: Sequence[tuple[int, int]],
        known: int | None = None,
        far: ir.Value | None = None,
    ) -> None:
        self.builder = builder
        self.level = level
        self.dtype = dtype
        self.streams = streams
        self.pairs = pairs
        self.lefts = sorted({left for left, _ in pairs})
        self.order = self._order()
        self.lanes = lanes_along(known, level.lanes(dtype.bytes), dtype.bytes)
        self.may_be_short = known is None or known < self.lanes
        self.vector = Emitter(builder, level, self.lanes)
        self.scalar = Emitter(builder, level)
        self.far = far
        self.ahead = self._ahead()

    def sums(self, steps: ir.Value) -> Sums:
        """One scalar for every pair."""
        builder, copies = self.builder, self._copies()
        unroll = max(LEAST_UNROLL, copies) if len(self.pairs) <= MOST_READ_AHEAD else copies
        zero: ir.Value = self.vector.constant(0.0, self.dtype)
        carried: Sums = [zero] * (copies * len(self.pairs))
        whole = builder.and_(steps, word(-self.lanes))
        main = builder.sub(whole, builder.srem(whole, word(self.lanes * unroll)))
        carried = self._vectors("dots", (word(0), main), carried, unroll)
        carried = self._vectors("dots.rest", (main, whole), carried, 1)
        carried = self._tail(whole, steps, carried)
        count = len(self.pairs)
        parts = [carried[i : i + count] for i in range(0, len(carried), count)]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [self._added(parts[i], parts[i + half]) for i in range(half)]
        return self._totals(parts[0])

    def _totals(self, vectors: Sums) -> Sums:
        """The sum of the lanes of every vector; as many as there are lanes are added together."""
        if len(vectors) == 1:
            return [self.vector.reduce_lanes("sum", self.dtype, vectors[0])]
        scalars: Sums = []
        for begin in range(0, len(vectors), self.lanes):
            group = vectors[begin : begin + self.lanes]
            count, segment = len(group), self.lanes
            while segment > 1:
                pairs = zip(group[::2], [*group[1::2], group[-1]], strict=False)
                group = [self._merged(one, other, segment) for one, other in pairs]
                segment //= 2
            lanes = [ir.Constant(ir.IntType(32), lane) for lane in range(count)]
            scalars += [self.builder.extract_element(group[0], lane) for lane in lanes]
        return scalars

    def _merged(self, one: ir.Value, other: ir.Value, segment: int) -> ir.Value:
        """Add the halves of every segment; those of ``one`` come before those of ``other``."""
        half = segment // 2
        firsts = [at + lane for at in range(0, 2 * self.lanes, segment) for lane in range(half)]
        kind = ir.VectorType(ir.IntType(32), self.lanes)
        low, high = (
            self.builder.shuffle_vector(
                one, other, ir.Constant(kind, [lane + s for lane in firsts])
            )
            for s in (0, half)
        )
        return self.builder.fadd(low, high)

    def _order(self) -> list[int]:
        """Pairs in an order that holds few vectors: the side with more streams changes last."""
        lefts, rights = ({pair[side] for pair in self.pairs} for side in (0, 1))
        held, passing = (0, 1) if len(lefts) <= len(rights) else (1, 0)
        places = range(len(self.pairs))
        return sorted(places, key=lambda at: (self.pairs[at][passing], self.pairs[at][held]))

    def _prefetch(self, *read: ir.Value) -> None:
        """Ask for what follows in the left streams, which the hardware does not foresee.

        They are short, or too many with those of the columns. What comes from memory comes to the
        second cache, as the requests of the first one, of which there are some 24 at a time, would
        keep waiting what is read meanwhile.
        """
        builder = self.builder
        ahead = [builder.add(place, self.ahead) for place in read]
        lefts = [self.streams[at] for at in self.lefts]
        places = [self.scalar.gep(left, self.dtype, at) for at in ahead for left in lefts]
        if self.far is None:
            self._ask(places, near=True)
            return
        with builder.if_else(self.far) as (far, near):
            with far:
                self._ask(places, near=False)
            with near:
                self._ask(places, near=True)

    def _ask(self, places: Sequence[ir.Value], *, near: bool) -> None:
        for place in places:
            self.scalar.prefetch(place, near=near)

    def _ahead(self) -> ir.Value:
        """How many elements after one that is read another one is asked for.

        Short rows are read some at a time: those that come next begin behind all of these.
        """
        size, builder = self.dtype.bytes, self.builder
        least = word(AHEAD_BYTES // size)
        if self.far is None or len(self.lefts) == 1:
            return least
        first, second = (builder.ptrtoint(self.streams[at], I64) for at in self.lefts[:2])
        row = builder.sdiv(builder.sub(second, first), word(size))
        rows = builder.mul(row, word(len(self.lefts)))
        short = builder.icmp_unsigned("<=", row, word(PAGE_BYTES // size))
        short = builder.and_(short, builder.icmp_signed(">", rows, least))
        return builder.select(builder.and_(short, self.far), rows, least)

    def _copies(self) -> int:
        copies = 1
        while 2 * copies * len(self.pairs) <= SUMS_IN_FLIGHT:
            copies *= 2
        return copies

    def _added(self, one: Sums, other: Sums) -> Sums:
        return [self.builder.fadd(a, b) for a, b in zip(one, other, strict=True)]

    def _vectors(
        self, name: str, bounds: tuple[ir.Value, ir.Value], start: Sums, unroll: int
    ) -> Sums:
        """Products of ``unroll`` vectors at a time from begin to end; copies take turns."""
        count = len(self.pairs)

        def body(position: ir.Value, sums: Sums) -> Sums:
            made = list(sums)
            places = [self.builder.add(position, word(n * self.lanes)) for n in range(unroll)]
            self._prefetch(*places)
            for turn, place in enumerate(places):
                first = turn * count % len(made)
                made[first : first + count] = self._step(
                    made[first : first + count], lambda stream, at=place: self._vector(stream, at)
                )
            return made

        step = word(unroll * self.lanes)
        (made,) = carrying(
            self.builder, name, (*bounds, step), [start], lambda at, sums: [body(at, *sums)]
        )
        return made

    def _tail(self, whole: ir.Value, steps: ir.Value, carried: Sums) -> Sums:
        """The last elements, fewer than a vector, added to the first copy."""
        builder, count = self.builder, len(self.pairs)
        before = builder.block
        with builder.if_then(builder.icmp_signed("<", whole, steps)):
            if self.may_be_short:  # then nothing else has asked for what follows
                self._prefetch(whole)
            mask = self.vector.lane_mask(builder.sub(steps, whole))
            made = self._step(carried[:count], lambda stream: self._masked(stream, whole, mask))
            inside = builder.block
        results: Sums = []
        for old, new in zip(carried[:count], made, strict=True):
            phi = builder.phi(old.type)
            phi.add_incoming(old, before)
            phi.add_incoming(new, inside)
            results.append(phi)
        return results + carried[count:]

    def _step(self, sums: Sums, read: Callable[[ir.Value], ir.Value]) -> Sums:
        values: dict[int, ir.Value] = {}
        out = list(sums)
        for position in self.order:
            left, right = (
                values[side]
                if side in values
                else values.setdefault(side, read(self.streams[side]))
                for side in self.pairs[position]
            )
            out[position] = self._multiply_add(left, right, out[position])
        return out

    def _vector(self, stream: ir.Value, place: ir.Value) -> ir.Value:
        return self.vector.load(self.scalar.gep(stream, self.dtype, place), self.dtype)

    def _masked(self, stream: ir.Value, place: ir.Value, mask: ir.Value) -> ir.Value:
        address = self.scalar.gep(stream, self.dtype, place)
        return self.vector.masked_load(address, self.dtype, mask)

    def _multiply_add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        if self.level.has_fma:
            return call_intrinsic(self.builder, "fma", c.type, [c.type], [a, b, c])
        return self.builder.fadd(self.builder.fmul(a, b), c)
