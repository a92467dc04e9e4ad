"""Loops that write whole cache lines past the caches.

A store to a line that is in no cache reads the line first. Non-temporal stores of whole lines do
not, and leave in the caches what is there. Lines are whole from the first multiple of 64 bytes on;
elements before and after are written as usual. Such stores overtake others: whoever writes a
kernel ends it with a fence (:func:`write_fence`). Start with :func:`streamed_loop`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.indices import I64, word
from tilewright.backend.cpu.vectors import Scalars, VectorFrame, VectorPlace, address_of
from tilewright.ir.tile import CACHE_LINE, Let, Loop, Statement, Store

LINES_AT_A_TIME = 4

Bounds = tuple[ir.Value, ir.Value]


def streamed_loop(
    frame: Scalars, loop: Loop, bounds: Bounds, usual: Callable[[ir.Value, ir.Value], None]
) -> None:
    """The iterations within ``bounds``; ``usual`` writes those of a range one by one."""
    (store,) = [statement for statement in loop.body if isinstance(statement, Store)]
    builder, (begin, end) = frame.builder, bounds
    first, last = _whole_lines(frame, store, loop.variable, bounds)
    usual(begin, first)
    body = builder.append_basic_block("lines")
    done = builder.append_basic_block("lines_done")
    before = builder.block
    builder.cbranch(builder.icmp_signed("<", first, last), body, done)
    builder.position_at_end(body)
    position = builder.phi(I64)
    position.add_incoming(first, before)
    frame.enter()
    for line in range(LINES_AT_A_TIME):
        elements = CACHE_LINE // store.buffer.dtype.bytes
        _line(frame, loop, builder.add(position, word(line * elements)), store)
    frame.leave()
    following = builder.add(position, word(_step(store)), flags=("nsw",))
    position.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, last), body, done)
    builder.position_at_end(done)
    usual(last, end)


def has_streams(body: Sequence[Statement]) -> bool:
    """Whether some loop of a kernel writes past the caches."""
    loops = [statement for statement in body if isinstance(statement, Loop)]
    return any(loop.streamed or has_streams(loop.body) for loop in loops)


def write_fence(builder: ir.IRBuilder) -> None:
    """Everything stored so far is seen before anything that is stored later."""
    builder.fence("seq_cst")


def _step(store: Store) -> int:
    return LINES_AT_A_TIME * CACHE_LINE // store.buffer.dtype.bytes


def _whole_lines(frame: Scalars, store: Store, variable: str, bounds: Bounds) -> Bounds:
    """The first and the end of the iterations that fill whole groups of lines."""
    builder, (begin, end) = frame.builder, bounds
    size = store.buffer.dtype.bytes
    address = address_of(frame, store.buffer, store.offset, {variable: begin})
    number = builder.ptrtoint(address, I64)
    missing = builder.and_(builder.sub(word(0), number), word(CACHE_LINE - 1))
    head = builder.udiv(missing, word(size))
    # Memory that does not begin at a multiple of its elements has no line that they fill.
    fills = builder.icmp_signed("==", builder.mul(head, word(size)), missing)
    first = builder.add(begin, head)
    first = builder.select(builder.icmp_signed("<", first, end), first, end)
    rest = builder.select(fills, builder.sub(end, first), word(0))
    groups = builder.sdiv(rest, word(_step(store)))
    return first, builder.add(first, builder.mul(groups, word(_step(store))))


def _line(frame: Scalars, loop: Loop, first: ir.Value, store: Store) -> None:
    """The iterations of one line, as many vectors as it has."""
    dtype = store.buffer.dtype
    lanes = min(frame.level.vector_bytes, CACHE_LINE) // dtype.bytes
    vector = Emitter(frame.builder, frame.level, lanes)
    for number in range(CACHE_LINE // (lanes * dtype.bytes)):
        place = VectorPlace(loop.variable, frame.builder.add(first, word(number * lanes)))
        values = VectorFrame(frame, lanes, place, {})
        for statement in loop.body:
            if isinstance(statement, Let):
                values.locals[statement.name] = values.value(statement.value)
        address = address_of(frame, store.buffer, store.offset, {loop.variable: place.first})
        vector.store_streamed(values.value(store.value), address, dtype)
