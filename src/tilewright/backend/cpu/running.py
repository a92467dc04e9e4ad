"""Running sums along neighbouring elements, a vector at a time.

Each element is the one before it combined with a value: one by one, that is the latency of an
addition for each. The combinations of all first elements of a vector take a step for every binary
digit of its lanes, and only the last of them is waited for (Sklansky, "Conditional-sum addition
logic", 1960). Sums are added in another order for that, always the same. Start with
:func:`running_step`.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.indices import I64, word
from tilewright.backend.cpu.vectors import Scalars, VectorFrame, VectorPlace, address_of
from tilewright.ir.scalar import COMBINE
from tilewright.ir.tile import Apply, Load, Loop, Store, Value
from tilewright.ir.tile_walk import ExpressionMap, is_beside, slope, stride, value_buffers
from tilewright.shape import constant, symbol

_KINDS = {function: kind for kind, function in COMBINE.items()}
_I32 = ir.IntType(32)


@dataclass(frozen=True)
class RunningStep:
    """One step of a loop: ``function`` of ``before`` and ``value`` is stored.

    Of a ``descending`` one, whose elements follow each other downwards, ``store`` and ``value`` say
    what is done where the loop's variable is the negative of this: so they lie upwards.
    """

    store: Store
    before: Load
    value: Value
    function: str
    descending: bool


def running_step(loop: Loop) -> RunningStep | None:
    """What a loop does if it stores running combinations of values side by side and no more."""
    if loop.accumulators or len(loop.body) != 1 or not isinstance(loop.body[0], Store):
        return None
    store = loop.body[0]
    made = store.value
    if not isinstance(made, Apply) or made.function not in _KINDS or made.dtype.is_half:
        return None
    before, value = made.operands
    last = store.offset.substitute({loop.variable: symbol(loop.variable) - constant(1)})
    if not isinstance(before, Load) or (before.buffer, before.offset) != (store.buffer, last):
        return None
    descending = stride(store.offset, loop.variable) == -1
    if descending:
        variable = symbol(loop.variable)
        negated = ExpressionMap.substitution({loop.variable: constant(0) - variable})
        (store,), value = negated.stores([store]), negated.value(value)
    if slope(store.offset, loop.variable) != 1 or not is_beside(value, loop.variable):
        return None
    if store.buffer in value_buffers(value):
        return None  # what a vector reads of the results is not there yet
    return RunningStep(store, before, value, made.function, descending)


def write_running(
    frame: Scalars, loop: Loop, step: RunningStep, bounds: tuple[ir.Value, ir.Value]
) -> ir.Value:
    """The whole vectors of the iterations within ``bounds``; where the rest begins."""
    builder, dtype = frame.builder, step.store.buffer.dtype
    lanes = frame.level.lanes(dtype.bytes)
    vector = Emitter(builder, frame.level, lanes)
    begin, end = bounds
    body, done = (builder.append_basic_block(name) for name in ("running", "ran"))
    entry = builder.block
    last = builder.sub(end, word(lanes))
    some = builder.icmp_signed("<=", begin, last)
    first_block = builder.append_basic_block("first")
    builder.cbranch(some, first_block, done)
    builder.position_at_end(first_block)
    address = address_of(frame, step.before.buffer, step.before.offset, {loop.variable: begin})
    start = vector.splat(frame.emitter.load(address, dtype))
    builder.branch(body)
    builder.position_at_end(body)
    position, carried = builder.phi(I64), builder.phi(start.type)
    position.add_incoming(begin, first_block)
    carried.add_incoming(start, first_block)
    frame.enter()
    place = position
    if step.descending:
        place = builder.neg(builder.add(position, word(lanes - 1)))
    values = VectorFrame(frame, lanes, VectorPlace(loop.variable, place), {})
    made = _prefixes(vector, step, values.value(step.value))
    made = vector.apply(step.function, dtype, [carried, made])
    address = address_of(frame, step.store.buffer, step.store.offset, {loop.variable: place})
    vector.store(made, address, dtype)
    frame.leave()
    following = builder.add(position, word(lanes), flags=("nsw",))
    position.add_incoming(following, builder.block)
    latest = 0 if step.descending else lanes - 1
    everywhere = ir.Constant(ir.VectorType(_I32, lanes), [latest] * lanes)
    carried.add_incoming(builder.shuffle_vector(made, made, everywhere), builder.block)
    builder.cbranch(builder.icmp_signed("<=", following, last), body, done)
    after = builder.block
    builder.position_at_end(done)
    rest = builder.phi(I64)
    rest.add_incoming(begin, entry)
    rest.add_incoming(following, after)
    return rest


def _prefixes(vector: Emitter, step: RunningStep, value: ir.Value) -> ir.Value:
    """In every lane, the combination of all lanes up to it, or down to it."""
    builder, dtype, lanes = vector.builder, step.store.buffer.dtype, vector.lanes
    neutral = vector.identity(_KINDS[step.function], dtype)
    distance = 1
    while distance < lanes:
        # The later half of every 2·distance lanes takes in the last one of the first half, the
        # others what is neutral: shifting a whole vector upwards took twice as long on Zen 4.
        order = [
            lane & -(2 * distance) | distance - 1 if lane & distance else lanes
            for lane in range(lanes)
        ]
        if step.descending:
            order = [lanes - 1 - lane if lane < lanes else lanes for lane in order]
            order.reverse()
        moved = builder.shuffle_vector(
            value, neutral, ir.Constant(ir.VectorType(_I32, lanes), order)
        )
        value = vector.apply(step.function, dtype, [moved, value])
        distance *= 2
    return value
