"""Loops that look for the first or the last of some elements, and end where they find one.

A vector of elements is one comparison, and the lane of the first one that is looked for is counted
in its mask: no positions are computed on the way, and in the mean half of the elements are read.
Start with :func:`write_sought`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce

from llvmlite import ir

from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.indices import I64, word
from tilewright.backend.cpu.math_arithmetic import call_intrinsic
from tilewright.backend.cpu.vectors import Scalars, VectorFrame, VectorPlace
from tilewright.ir.tile import IndexValue, Loop, Value
from tilewright.ir.tile_sought import Sought, sought
from tilewright.ir.tile_walk import lies_near, may_fault, value_loads, value_parts
from tilewright.target.core_model import MASKED_VECTOR_BYTES, WORD_BYTES

_I1, _I32 = ir.IntType(1), ir.IntType(32)
# Vectors before it is asked whether there is a hit in them: of more, more are read for nothing.
TOGETHER = 2
MASK_BITS = 64  # of a general register: so many lanes are told apart at once
_Test = Callable[[VectorFrame], ir.Value]


@dataclass(frozen=True)
class SeekingLoop:
    """A loop that is written as vectors, of ever fewer elements: so many lanes, and vectors."""

    loop: Loop
    sought: Sought
    steps: tuple[tuple[int, int], ...]


def write_sought(
    frame: Scalars, loop: Loop, bounds: tuple[ir.Value, ir.Value]
) -> list[ir.Value] | None:
    """What a loop within ``bounds`` finds, from nothing, if it looks for elements along a row."""
    if frame.level.vector_bytes < MASKED_VECTOR_BYTES:
        return None
    seeking = seeking_loop(frame, loop)
    if seeking is None:
        return None
    found = seeking.sought
    frame.enter()
    if found.asked is None or found.same is None:
        made = _Search(frame, seeking, bounds, lambda v: v.value(found.condition)).write()
    else:
        made = _among_numbers(frame, seeking, bounds, (found.asked, frame.value(found.same)))
    frame.leave()
    return [made]


def seeking_loop(frame: Scalars, loop: Loop) -> SeekingLoop | None:
    """How to write a loop that looks for elements, if all that it reads lies side by side."""
    found = sought(loop) if loop.masked else None
    if found is None or not any(value_loads(found.condition)):
        return None
    parts = list(value_parts(found.condition))
    if any(may_fault(p) or not lies_near(p, loop.variable, lambda _: False) for p in parts):
        return None
    widest = max(part.dtype.bytes for part in parts if not isinstance(part, IndexValue))
    lanes = frame.level.lanes(widest)
    steps = [(lanes, TOGETHER), (lanes, 1)] if TOGETHER * lanes <= MASK_BITS else [(lanes, 1)]
    words = frame.level.lanes(WORD_BYTES)
    if words < lanes and not frame.level.has_masks:
        steps.append((words, 1))  # narrow elements are loaded one by one under a mask
    return SeekingLoop(loop, found, tuple(steps))


def _among_numbers(
    frame: Scalars,
    seeking: SeekingLoop,
    bounds: tuple[ir.Value, ir.Value],
    compared: tuple[Value, ir.Value],
) -> ir.Value:
    """One comparison says "equal or no number", once it is known whether it is with a number."""
    builder, (asked, same) = frame.builder, compared
    is_number = builder.fcmp_ordered("ord", same, same)
    with builder.if_else(is_number) as (number, none):
        with number:
            first = _Search(frame, seeking, bounds, partial(_equals, asked, same)).write()
            after_first = builder.block
        with none:
            second = _Search(frame, seeking, bounds, partial(_is_nan, asked)).write()
            after_second = builder.block
    made = builder.phi(first.type)
    made.add_incoming(first, after_first)
    made.add_incoming(second, after_second)
    return made


def _equals(asked: Value, same: ir.Value, frame: VectorFrame) -> ir.Value:
    """Whether elements equal a number, or are none."""
    return frame.builder.fcmp_unordered("==", frame.value(asked), frame.vector.splat(same))


def _is_nan(asked: Value, frame: VectorFrame) -> ir.Value:
    value = frame.value(asked)
    return frame.builder.fcmp_unordered("uno", value, value)


class _Search:
    """The vectors of a loop in the order of the search, each of which may be the last one."""

    def __init__(
        self,
        frame: Scalars,
        seeking: SeekingLoop,
        bounds: tuple[ir.Value, ir.Value],
        test: _Test,
    ) -> None:
        self.frame = frame
        self.builder = frame.builder
        self.seeking = seeking
        self.bounds = bounds
        self.test = test
        self.hits: list[tuple[ir.Value, ir.Block]] = []
        self.found = frame.builder.function.append_basic_block("found")

    def write(self) -> ir.Value:
        """The position that is found, in its type."""
        builder, (begin, end), loop = self.builder, self.bounds, self.seeking
        count = builder.sub(end, begin)
        count = builder.select(builder.icmp_signed("<", word(0), count), count, word(0))
        stretches: list[tuple[ir.Value, ir.Value, int, int]] = []
        for lanes, vectors in loop.steps:
            whole = builder.add(begin, builder.and_(count, word(-lanes * vectors)))
            stretches.append((stretches[-1][1] if stretches else begin, whole, lanes, vectors))
        _, rest, lanes, _ = stretches[-1]
        if loop.sought.last:
            self._rest(rest, lanes)
            for stretch in reversed(stretches):
                self._stretch(*stretch)
        else:
            for stretch in stretches:
                self._stretch(*stretch)
            self._rest(rest, lanes)
        return self._result()

    def _stretch(self, begin: ir.Value, end: ir.Value, lanes: int, vectors: int) -> None:
        """So many vectors at a time within bounds that are a multiple of them apart."""
        builder, step = self.builder, vectors * lanes
        body = builder.function.append_basic_block("search")
        done = builder.function.append_basic_block("search.done")
        before, last = builder.block, self.seeking.sought.last
        first = builder.sub(end, word(step)) if last else begin
        builder.cbranch(builder.icmp_signed("<", begin, end), body, done)
        builder.position_at_end(body)
        position = builder.phi(I64)
        position.add_incoming(first, before)
        self._ask([builder.add(position, word(n * lanes)) for n in range(vectors)], lanes)
        following = builder.add(position, word(-step if last else step), flags=("nsw",))
        position.add_incoming(following, builder.block)
        comparison, bound = (">=", begin) if last else ("<", end)
        builder.cbranch(builder.icmp_signed(comparison, following, bound), body, done)
        builder.position_at_end(done)

    def _rest(self, begin: ir.Value, lanes: int) -> None:
        """What is no whole vector, under a mask."""
        builder, end = self.builder, self.bounds[1]
        with builder.if_then(builder.icmp_signed("<", begin, end)):
            self._ask([begin], lanes, builder.trunc(builder.sub(end, begin), _I32))

    def _ask(self, firsts: Sequence[ir.Value], lanes: int, count: ir.Value | None = None) -> None:
        """Go to where something is found, if it is among these vectors."""
        builder, frame, loop = self.builder, self.frame, self.seeking
        frame.enter()
        places = [VectorPlace(loop.loop.variable, f, count, count is not None) for f in firsts]
        tests = [self.test(VectorFrame(frame, lanes, place, {})) for place in places]
        frame.leave()
        if count is not None:
            mask = Emitter(builder, frame.level, lanes).lane_mask(count)
            tests = [builder.and_(test, mask) for test in tests]
        some = reduce(builder.or_, tests)
        some = call_intrinsic(builder, "vector.reduce.or", _I1, [some.type], [some])
        hit = builder.function.append_basic_block("hit")
        proceed = builder.function.append_basic_block("proceed")
        builder.cbranch(some, hit, proceed)
        builder.position_at_end(hit)
        self.hits.append((builder.add(firsts[0], self._lane(tests, lanes)), hit))
        builder.branch(self.found)
        builder.position_at_end(proceed)

    def _lane(self, tests: Sequence[ir.Value], lanes: int) -> ir.Value:
        """The first or the last lane for which a test is true, of which there is one."""
        builder = self.builder
        bits: ir.Value = ir.Constant(I64, 0)
        for number, test in enumerate(tests):
            own = builder.zext(builder.bitcast(test, ir.IntType(lanes)), I64)
            bits = builder.or_(bits, builder.shl(own, ir.Constant(I64, number * lanes)))
        name = "ctlz" if self.seeking.sought.last else "cttz"
        zeros = call_intrinsic(builder, name, I64, [I64], [bits, ir.Constant(_I1, 1)])
        return builder.sub(word(MASK_BITS - 1), zeros) if name == "ctlz" else zeros

    def _result(self) -> ir.Value:
        """The position where something is found, or what stands for none."""
        builder, frame, loop = self.builder, self.frame, self.seeking
        (accumulator,) = loop.loop.accumulators
        joined = builder.function.append_basic_block("sought")
        nothing = frame.emitter.identity(accumulator.kind, accumulator.value.dtype)
        is_some = builder.icmp_signed("<", *self.bounds)
        frame.enter()
        nowhere = builder.select(is_some, frame.value(loop.sought.nowhere), nothing)
        frame.leave()
        without = builder.block
        builder.branch(joined)
        builder.position_at_end(self.found)
        where = builder.phi(I64)
        for position, block in self.hits:
            where.add_incoming(position, block)
        frame.enter()
        frame.names[loop.loop.variable] = where
        place = frame.value(loop.sought.place)
        frame.leave()
        within = builder.block
        builder.branch(joined)
        builder.position_at_end(joined)
        made = builder.phi(place.type)
        made.add_incoming(nowhere, without)
        made.add_incoming(place, within)
        return made


__all__ = ["write_sought"]
