"""What the iterations of an innermost loop take of a core: its ports, lanes and chains.

A loop whose values need no more than vectors is counted by the vector, the last of which may have
lanes without use; others by the element. Imports ir, shape and target. Start with
:func:`loop_cycles`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tilewright.cost.instructions import conversion_steps, is_folded
from tilewright.cost.positions import divisions_in
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import ADDING, DIVISIONS, MULTIPLY_ADD, SCALAR_FUNCTIONS, table_of
from tilewright.ir.tile import (
    Accumulator,
    Apply,
    Check,
    Convert,
    Guarded,
    IndexValue,
    Let,
    LetIndex,
    Literal,
    Load,
    Local,
    Loop,
    Statement,
    Store,
    Value,
)
from tilewright.ir.tile_interleaved import (
    MOST_PICKED,
    Interleaved,
    Key,
    Phase,
    interleaved_loop,
)
from tilewright.ir.tile_walk import (
    is_innermost,
    is_light_on_bytes,
    is_strided,
    own_values,
    slope,
    stride,
    value_loads,
    value_parts,
    value_symbols,
)
from tilewright.shape import Expr, ceil_div, constant, minimum, symbol
from tilewright.target import Target
from tilewright.target.core_model import (
    VECTORS_TOGETHER,
    WIDE_VECTOR_BYTES,
    is_halved,
    lanes_along,
)
from tilewright.target.loop_costs import LoopCosts

ADDITIONS = ("add", "subtract")  # have pipes of their own
# Instructions, and loads of tables beside them, by which a vector of so many bytes looks up 256
# (``backend/cpu/byte_tables.py``); shorter vectors have none for it.
LOOKUPS = {64: (15, 0), 32: (35, 16)}
SLOW_OPERATIONS = 4  # scalar operations of a function from which on it is none of one instruction


@dataclass
class Work:
    """Cycles of the ports for one vector, or for one element; ``fixed`` are those of the loop.

    ``added`` are those of the pipes that add, which are a part of those of ``arithmetic``, and so
    are ``functions``, those of what is more than an instruction: it takes as long for one element.
    ``gathers`` says that elements are loaded one by one from places that lie apart. What is read
    in turn is ``interleaved`` if it is picked after it is combined, and ``whole`` once it is.
    ``kept`` counts where what is the same for all vectors is an operand.
    """

    load: float = 0.0
    store: float = 0.0
    arithmetic: float = 0.0
    added: float = 0.0
    functions: float = 0.0
    count: float = 0.0
    fixed: float = 0.0
    is_vector: bool = True
    gathers: bool = False
    seen: set[int] = field(default_factory=set[int])
    picked: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    interleaved: Interleaved | None = None
    whole: set[Key] = field(default_factory=set[Key])
    kept: Counter[Value] = field(default_factory=Counter[Value])

    @property
    def cycles(self) -> float:
        """Of one vector: what its busiest port needs; loads and stores have their own."""
        return max(self.load, self.store, self.arithmetic, self.added)

    def single(self, costs: LoopCosts) -> float:
        """Cycles of one element by itself."""
        return self.count * costs.scalar + self.functions


@dataclass(frozen=True)
class Core:
    """The part of a machine that computes."""

    target: Target
    costs: LoopCosts

    def lanes(self, size: int) -> int:
        """Elements of ``size`` bytes in a vector."""
        return max(1, self.target.vector_bytes // size)

    def multiply_add(self, dtype: DType) -> float:
        """Cycles of a vector of multiply-adds, 0.0 where the target does not say.

        They have pipes of their own, unlike the mixture that ``LoopCosts.instruction`` is measured
        with: a core may take longer for one of the mixture, or for a multiply-add.
        """
        rate = self.target.multiply_adds_per_cycle(dtype.value)
        return self.lanes(dtype.bytes) / rate if rate else 0.0


def is_vector(part: Statement) -> bool:
    """Whether a statement is a vector without a loop: the one around it hides behind its ports."""
    return isinstance(part, Loop) and is_innermost(part) and (part.end - part.begin).is_constant


def loop_values(loop: Loop) -> list[Value]:
    """Every value of a loop, of those inside as well."""
    values = [a.value for a in loop.accumulators]
    for part in loop.body:
        if isinstance(part, Loop):
            values += loop_values(part)
        elif isinstance(part, Let | Store | LetIndex | Check):
            values.append(part.value)
    return values


def scalar_cycles(core: Core, values: Iterable[Value]) -> float:
    """Cycles of values that are computed once."""
    work = Work(is_vector=False)
    for value in values:
        _add(core, work, value, None, {}, 1)
    return work.count * core.costs.scalar + work.fixed


def loop_cycles(core: Core, loop: Loop, length: Expr) -> Expr:
    """Thousandths of cycles of an innermost loop with so many iterations."""
    costs = core.costs
    lanes, work = loop_work(core, loop)
    enter = work.fixed
    if _is_running(loop, _stores(loop)):
        work.arithmetic += costs.running
    if work.gathers and (work.functions or is_strided(loop_values(loop), loop.variable)):
        # LLVM makes no vectors: what it takes to gather them looks dearer than single functions,
        # and where a distance is known in a call only, it makes them for neighbours alone.
        _, work = loop_work(core, loop, 1)
        work.is_vector = False
    if not work.is_vector:
        each = work.single(costs) + work.load + work.store
        if loop.accumulators:
            each = max(each, costs.latency)
        return length * _thousandths(each) + _once(length, enter + costs.enter)
    if loop.accumulators:
        enter += sum(_combining(a, costs) for a in loop.accumulators)
        work.arithmetic = max(work.arithmetic, costs.latency / VECTORS_TOGETHER)
    return _vectors(core, loop, length, lanes, work) + _once(length, enter)


def _stores(loop: Loop) -> list[Store]:
    return [part for part in loop.body if isinstance(part, Store)]


def loop_work(core: Core, loop: Loop, lanes: int = 0) -> tuple[int, Work]:
    """Elements of a vector of an innermost loop, and what it takes; ``lanes`` if not 0."""
    stores = _stores(loop)
    values = own_values(loop)
    widths = [_width(value) for value in values] + [s.buffer.dtype.bytes for s in stores]
    lanes = lanes or core.lanes(max(widths, default=4))
    work = Work(interleaved=interleaved_loop(loop))
    names = {p.name for p in loop.body if isinstance(p, Let)} | {loop.variable}
    varying = dict.fromkeys(names, True)
    for value in values:
        _add(core, work, value, loop.variable, varying, lanes)
    for store in stores:
        _add_store(core, work, store, loop.variable, lanes)
    for accumulator in loop.accumulators:
        _add_combination(work, accumulator, core.costs)
    _add_kept(core, work, len(stores) + len(loop.accumulators))
    return lanes, work


def loop_instructions(core: Core, loop: Loop, length: Expr, each: float) -> Expr:
    """``each`` for every instruction of an innermost loop that computes, rounded.

    Those that combine the lanes of its sums in the end are among them.
    """
    lanes, work = loop_work(core, loop)
    vectors = ceil_div(length, lanes) if work.is_vector else length
    own = work.arithmetic / core.costs.instruction if work.is_vector else work.count
    ending = 2 * (lanes.bit_length() - 1) * len(loop.accumulators)
    return vectors * round(own * each) + round(ending * each)


def _once(length: Expr, cycles: float) -> Expr:
    """Thousandths of so many cycles, of a loop that is entered."""
    return minimum(length, 1) * _thousandths(cycles)


def _vectors(core: Core, loop: Loop, length: Expr, lanes: int, work: Work) -> Expr:
    """Thousandths of cycles of all vectors of a loop: some together, single ones, and the last."""
    costs = core.costs
    one, group = _thousandths(work.cycles), VECTORS_TOGETHER * lanes
    if length.is_constant and length.value <= group:
        masked = ends_under_mask(core, loop)
        return constant(_unrolled(core, masked, length.value, lanes, work))
    stretches = minimum(length // group, 1) + minimum(length % group // lanes, 1)
    entered = (stretches + minimum(length % lanes, 1)) * _thousandths(costs.enter)
    if ends_under_mask(core, loop) or lanes == 1:
        return ceil_div(length, lanes) * one + entered
    half = max(1, lanes // 2)
    scalar = _thousandths(work.single(costs))
    return length // lanes * one + length % lanes // half * one + length % half * scalar + entered


def _unrolled(core: Core, masked: bool, length: int, lanes: int, work: Work) -> int:
    """Thousandths of cycles of so many iterations without a loop.

    What is no whole vector is computed in shorter ones, each half as long as the one before, unless
    it is masked. A core that computes long vectors in halves takes half as long for those.
    """
    whole, left = divmod(length, lanes)
    if masked:
        is_short = lanes_along(length, lanes, core.target.vector_bytes // lanes) < lanes
        each = half_cycles(core, work) if is_short else work.cycles
        return -(-length // lanes) * _thousandths(each)
    shorter = half_cycles(core, work)
    single = min(shorter, work.single(core.costs))
    pieces = (left >> 1).bit_count() * shorter + (left & 1) * single
    return _thousandths(whole * work.cycles + pieces)


def half_cycles(core: Core, work: Work) -> float:
    """Cycles of half a vector or less."""
    halved = is_halved(core.target.vector_bytes, core.target.fma_pipes)
    return work.cycles / 2 if halved else work.cycles


def ends_under_mask(core: Core, loop: Loop) -> bool:
    """Whether the last vector of a loop is under a mask, as code for these vectors is written."""
    has_masks = core.target.vector_bytes >= WIDE_VECTOR_BYTES
    return loop.masked and (has_masks or not is_light_on_bytes(loop))


def _combining(accumulator: Accumulator, costs: LoopCosts) -> float:
    """Cycles to make one of all lanes of an accumulator."""
    dtype = accumulator.value.dtype
    return costs.extreme if is_extreme(accumulator.kind, dtype) else costs.combine


def is_extreme(function: str, dtype: DType) -> bool:
    """Whether a function is the greatest or least of floats, which may be no numbers."""
    return function in ("maximum", "minimum") and not dtype.is_integer


def _add_combination(work: Work, accumulator: Accumulator, costs: LoopCosts) -> None:
    dtype = accumulator.value.dtype
    if accumulator.kind == "sum" and not dtype.is_integer:
        work.added += costs.addition
    work.arithmetic += combination_cycles(costs, accumulator.kind, dtype)


def combination_cycles(costs: LoopCosts, kind: str, dtype: DType) -> float:
    """Cycles of a vector that joins its accumulator, a sum or an extreme.

    An extreme also notes, by pairs, what is no number.
    """
    return costs.instruction * (2 if is_extreme(kind, dtype) else 1)


def _thousandths(cycles: float) -> int:
    return round(1000 * cycles)


def _width(value: Value) -> int:
    """Bytes of the widest element that is loaded or computed."""
    parts = (part for part in value_parts(value) if not isinstance(part, Literal | IndexValue))
    return max((part.dtype.bytes for part in parts), default=1)


def _is_running(loop: Loop, stores: Iterable[Store]) -> bool:
    """Whether an iteration reads what another one has written."""
    places = {s.buffer: s.offset for s in stores}
    values = [part.value for part in loop.body if isinstance(part, Let | Store)]
    return any(
        load.buffer in places
        and stride(load.offset, loop.variable) in (1, -1)
        and _follows(places[load.buffer] - load.offset)
        for value in values
        for load in value_loads(value)
    )


def _follows(distance: Expr) -> bool:
    """Whether elements so far apart are neighbours."""
    return distance.is_constant and abs(distance.value) == 1


def _add_store(core: Core, work: Work, store: Store, variable: str, lanes: int) -> None:
    step = slope(store.offset, variable)
    work.count += 1
    size = store.buffer.dtype.bytes
    if step == 1:
        aligned = is_aligned(core, store.offset, variable, size)
        each = core.costs.aligned_store if aligned else core.costs.store
        work.store += each * lanes * size / core.target.vector_bytes
    elif step is None:
        work.count += lanes
        work.store += core.costs.gather * lanes
    _add_index(core, work, store.offset, variable)


def _add(
    core: Core, work: Work, value: Value, variable: str | None, varying: Mapping[str, bool],
    lanes: int,
) -> None:  # fmt: skip
    """What a value adds for one vector, or once where it is the same for all of them."""
    if id(value) in work.seen:
        return
    work.seen.add(id(value))
    if variable is not None and _is_same(value, varying):
        if not isinstance(value, Literal | Local | Load):
            work.fixed += scalar_cycles(core, (value,))
        return
    phase = None if work.interleaved is None else work.interleaved.phase(value)
    if phase is not None:
        _add_whole(core, work, phase, lanes)
        work.arithmetic += _picking(core.costs, phase.step)
        return
    match value:
        case Load(offset=offset):
            _add_load(core, work, value, variable, lanes)
            if variable is not None:
                _add_index(core, work, offset, variable)
        case Apply(function=function, operands=operands):
            for operand in operands:
                _add(core, work, operand, variable, varying, lanes)
                is_read = variable is not None and isinstance(operand, Load | Local)
                if is_read and _is_same(operand, varying):
                    work.kept[operand] += 1
            if not is_folded(value, core.target.vector_bytes):
                _add_function(core, work, function, value.operand_type, lanes)
        case Convert(operand=operand):
            _add(core, work, operand, variable, varying, lanes)
            steps = conversion_steps(operand.dtype, value.dtype, core.costs)
            work.count += steps
            work.arithmetic += steps * core.costs.instruction
        case Guarded(predicate=predicate, inside=inside, outside=outside):
            if variable is None or variable not in predicate.free_symbols:
                work.fixed += core.costs.guard  # asked before the loop
            else:
                work.is_vector, lanes = False, 1
                work.load += core.costs.guard
            for side in (inside, outside):
                _add(core, work, side, variable, varying, lanes)
        case IndexValue():
            work.count += 1
            work.arithmetic += core.costs.instruction
        case Literal() | Local():
            pass


def is_aligned(core: Core, offset: Expr, variable: str, size: int) -> bool:
    """Whether vectors begin on a line, as buffers do: all before them is whole vectors."""
    lanes, own = core.lanes(size), symbol(variable)
    return all(coefficient % lanes == 0 for _, coefficient in (offset - own).terms)


def _is_same(value: Value, varying: Mapping[str, bool]) -> bool:
    """Whether a value is the same in all iterations, so that it is known before them."""
    return not any(name in varying for name in value_symbols(value, {}))


def _add_kept(core: Core, work: Work, results: int) -> None:
    """Loads of what registers do not keep beside the results: it is an operand in memory then.

    One register is for what is loaded meanwhile.
    """
    room, wanted = max(core.target.free_registers - results - 1, 0), len(work.kept)
    if wanted > room:
        work.load += work.kept.total() * (wanted - room) / wanted * core.costs.aligned_load


def _add_load(core: Core, work: Work, load: Load, variable: str | None, lanes: int) -> None:
    costs, size = core.costs, load.buffer.dtype.bytes
    work.count += 1
    if variable is None:
        return
    step = stride(load.offset, variable)
    each = costs.aligned_load if is_aligned(core, load.offset, variable, size) else costs.load
    if step == 1:
        work.load += each * lanes * size / core.target.vector_bytes
    elif step is not None and 1 < abs(step) <= MOST_PICKED:
        first = load.offset - load.offset.constant_term % abs(step)
        if (load.buffer.name, str(first)) not in work.picked:
            work.picked.add((load.buffer.name, str(first)))  # all are picked out of the same
            work.load += each * abs(step)
        work.arithmetic += _picking(costs, abs(step))
        work.count += 2 * abs(step)
    elif step == -1:
        work.load += each
        work.arithmetic += 2 * costs.instruction
    elif step != 0:
        work.load += costs.gather * lanes
        work.count += lanes
        work.gathers = True


def _picking(costs: LoopCosts, step: int) -> float:
    """Cycles to pick every ``step``-th element out of as many vectors."""
    return 2 * costs.instruction * (step - 1)


def _add_whole(core: Core, work: Work, phase: Phase, lanes: int) -> None:
    """The vectors of all phases, which are loaded or combined once."""
    if phase.key in work.whole:
        return
    work.whole.add(phase.key)
    if phase.first is not None:
        each = core.costs.load * lanes * phase.dtype.bytes / core.target.vector_bytes
        work.load += each * phase.step
        work.count += phase.step
        return
    for operand in phase.operands:
        _add_whole(core, work, operand, lanes)
    for _ in range(phase.step):
        _add_function(core, work, phase.function, phase.dtype, lanes)


def _add_index(core: Core, work: Work, offset: Expr, variable: str) -> None:
    """Divisions in a position that changes from element to element."""
    divisions = divisions_in(offset, variable)
    if divisions:
        work.is_vector = False
        work.load += divisions * core.costs.divide


def _add_lookup(core: Core, work: Work, lanes: int) -> None:
    """Bytes looked up in a table of 256: by permutations of registers, or one by one."""
    costs, found = core.costs, LOOKUPS.get(core.target.vector_bytes)
    work.count += 2
    if found is None or lanes == 1:
        work.load += costs.gather * lanes
        work.functions += costs.gather
        work.gathers = True
        return
    instructions, loads = found
    work.arithmetic += instructions * costs.instruction
    work.load += loads * costs.aligned_load


def _add_function(core: Core, work: Work, name: str, dtype: DType, lanes: int) -> None:
    if table_of(name) is not None:
        _add_lookup(core, work, lanes)
        return
    cycles, steps = function_cycles(core.costs, name, dtype, lanes)
    if name == MULTIPLY_ADD:
        cycles = core.multiply_add(dtype) or cycles
    work.arithmetic += cycles
    work.count += steps or 1
    if not steps:
        work.functions += cycles
    elif name in ADDITIONS and not dtype.is_integer:
        work.added += core.costs.addition


def function_cycles(costs: LoopCosts, name: str, dtype: DType, lanes: int) -> tuple[float, float]:
    """Cycles of a function of a vector of so many elements, and how many simple instructions it is.

    Of what is more than simple instructions, which takes as long for one element, they are 0.
    """
    known = None if name in ADDING else costs.function(name)
    operations = 1 if name in ADDING else SCALAR_FUNCTIONS[name].cost
    if dtype.is_integer and name in DIVISIONS:
        known = costs.whole * lanes / 16 * max(1.0, dtype.bytes / 4)
    if known is None and operations >= SLOW_OPERATIONS:
        known = operations * costs.instruction
    if known is None:
        steps = costs.compare if is_extreme(name, dtype) else 1.0
        return costs.instruction * steps, steps
    return known * (costs.double if dtype is DType.FLOAT64 else 1.0), 0.0
