"""Loops that write whole cache lines past the caches.

A store to a line that is in no cache reads the line first. Non-temporal stores of whole lines do
not, and leave in the caches what is there. Lines are whole from the first multiple of 64 bytes on;
elements before and after are written as usual. Such stores overtake others: whoever writes a
kernel ends it with a fence (:func:`write_fence`). Start with :func:`streamed_loop`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from llvmlite import ir

from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.indices import I64, word
from tilewright.backend.cpu.vectors import Scalars, VectorFrame, VectorPlace, address_of
from tilewright.ir.stage_axis import NEVER
from tilewright.ir.tile import LINE_BYTES, Finish, Let, Loop, Product, Stage, Statement, Store
from tilewright.shape import Expr

LINES_AT_A_TIME = 4  # so that the loop's own instructions are a small part

Bounds = tuple[ir.Value, ir.Value]


def streamed_loop(
    frame: Scalars, loop: Loop, bounds: Bounds, usual: Callable[[ir.Value, ir.Value], None]
) -> None:
    """The iterations within ``bounds``; ``usual`` writes those of a range one by one.

    There is one loop for what comes before the lines, and after them; where no line is streamed,
    for everything.
    """
    builder, end = frame.builder, bounds[1]
    names = ("look", "usual", "lines", "done")
    look, around, lines, done = (builder.append_basic_block(name) for name in names)
    wanted, asked = frame.indices.truth(loop.streamed, frame.names), builder.block
    # Where the lines lie takes as long as a short loop: it is found out only if they are streamed.
    builder.cbranch(wanted, look, around)
    builder.position_at_end(look)
    first, last = _whole_lines(frame, loop, bounds)
    looked = builder.block
    builder.branch(around)
    builder.position_at_end(around)
    begins, ends, lasts = (builder.phi(I64) for _ in range(3))
    for found, block in (((bounds[0], end, end), asked), ((bounds[0], first, last), looked)):
        for phi, value in zip((begins, ends, lasts), found, strict=True):
            phi.add_incoming(value, block)
    usual(begins, ends)
    builder.cbranch(builder.icmp_signed("<", ends, end), lines, done)
    builder.position_at_end(lines)
    _lines(frame, loop, (ends, lasts))
    for phi, value in ((begins, lasts), (ends, end), (lasts, end)):
        phi.add_incoming(value, builder.block)
    builder.branch(around)
    builder.position_at_end(done)


def write_fence(frame: Scalars, body: Sequence[Statement]) -> None:
    """Everything streamed so far is seen before anything that is stored later."""
    builder = frame.builder
    for condition in dict.fromkeys(_streamed(body)):
        with builder.if_then(frame.indices.truth(condition, frame.names)):
            builder.fence("seq_cst")


def _streamed(body: Sequence[Statement]) -> Iterator[Expr]:
    for statement in body:
        match statement:
            case Loop():
                if statement.may_stream:
                    yield statement.streamed
                yield from _streamed(statement.body)
            case Stage():
                yield from _streamed((*statement.load, *statement.body, *statement.store))
            case Product(target=Finish(streamed=streamed)) if streamed != NEVER:
                yield streamed
            case _:
                pass


def store_past(values: VectorFrame, store: Store) -> None:
    """Store a vector past the caches, or as usual where it does not begin at its size."""
    builder, dtype, vector = values.builder, store.buffer.dtype, values.vector
    value = values.value(store.value)
    place = {values.place.variable: values.place.first}
    address = address_of(values.frame, store.buffer, store.offset, place)
    number = builder.ptrtoint(address, I64)
    beside = builder.and_(number, word(vector.lanes * dtype.bytes - 1))
    with builder.if_else(builder.icmp_signed("==", beside, word(0))) as (whole, other):
        with whole:
            vector.store_streamed(value, address, dtype)
        with other:
            vector.store(value, address, dtype)


def _lines(frame: Scalars, loop: Loop, bounds: Bounds) -> None:
    """The iterations within ``bounds``, of which there are some, several lines at a time."""
    store = _store(loop)
    builder, (first, last) = frame.builder, bounds
    body, done = (builder.append_basic_block(name) for name in ("some_lines", "lines_done"))
    before = builder.block
    builder.branch(body)
    builder.position_at_end(body)
    position = builder.phi(I64)
    position.add_incoming(first, before)
    frame.enter()
    for line in range(LINES_AT_A_TIME):
        elements = LINE_BYTES // store.buffer.dtype.bytes
        _line(frame, loop, builder.add(position, word(line * elements)), store)
    frame.leave()
    following = builder.add(position, word(_step(store)), flags=("nsw",))
    position.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, last), body, done)
    builder.position_at_end(done)


def _store(loop: Loop) -> Store:
    (store,) = [statement for statement in loop.body if isinstance(statement, Store)]
    return store


def _step(store: Store) -> int:
    return LINES_AT_A_TIME * LINE_BYTES // store.buffer.dtype.bytes


def _whole_lines(frame: Scalars, loop: Loop, bounds: Bounds) -> Bounds:
    """The first and the end of the iterations that fill whole groups of lines and are streamed.

    Without any, both are the end of all iterations.
    """
    builder, (begin, end) = frame.builder, bounds
    store = _store(loop)
    size = store.buffer.dtype.bytes
    address = address_of(frame, store.buffer, store.offset, {loop.variable: begin})
    number = builder.ptrtoint(address, I64)
    missing = builder.and_(builder.sub(word(0), number), word(LINE_BYTES - 1))
    head = builder.udiv(missing, word(size))
    first = builder.add(begin, head)
    groups = builder.sdiv(builder.sub(end, first), word(_step(store)))
    # Memory that does not begin at a multiple of its elements has no line that they fill.
    fills = builder.icmp_signed("==", builder.mul(head, word(size)), missing)
    some = builder.and_(fills, builder.icmp_signed("<", word(0), groups))
    last = builder.add(first, builder.mul(groups, word(_step(store))))
    return builder.select(some, first, end), builder.select(some, last, end)


def _line(frame: Scalars, loop: Loop, first: ir.Value, store: Store) -> None:
    """The iterations of one line, as many vectors as it has."""
    dtype = store.buffer.dtype
    lanes = min(frame.level.vector_bytes, LINE_BYTES) // dtype.bytes
    vector = Emitter(frame.builder, frame.level, lanes)
    for number in range(LINE_BYTES // (lanes * dtype.bytes)):
        place = VectorPlace(loop.variable, frame.builder.add(first, word(number * lanes)))
        values = VectorFrame(frame, lanes, place, {})
        for statement in loop.body:
            if isinstance(statement, Let):
                values.locals[statement.name] = values.value(statement.value)
        address = address_of(frame, store.buffer, store.offset, {loop.variable: place.first})
        vector.store_streamed(values.value(store.value), address, dtype)
