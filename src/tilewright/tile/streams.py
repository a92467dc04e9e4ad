"""Results too large for the caches, written past them.

A store reads its cache line first, unless it is non-temporal: an addition of two arrays then moves
three words for each element, not four. Stored as usual, what of the result stays in the last cache
is read from there by the kernel after it. Of ``T`` bytes that a kernel reads and writes, a cache of
``C`` bytes that replaces lines without regard to their order keeps a share of ``C / T``. Streaming
a result of ``W`` bytes saves reading ``W * (1 - C / T)`` and costs the consumer ``W * C / T``: it
pays from ``T = 2 * C`` on. So this is a variant, whose cost says which of the two it is. Start with
:func:`with_streams`.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.cost import Machine
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.tile import (
    CACHE_LINE,
    Apply,
    Convert,
    Guarded,
    IndexValue,
    Let,
    Loop,
    LoopProgram,
    Statement,
    Store,
    Value,
)
from tilewright.ir.tile_walk import slope, value_loads
from tilewright.shape import (
    Expr,
    Scope,
    constant,
    less_equal,
    logical_and,
    maximum,
    minimum,
    product,
    select,
)
from tilewright.tile.variants import LoweredStep, Variant

SHORTEST = 1024  # bytes that a loop writes: of less, lines at both ends are too large a part


def with_streams(
    kernel: Kernel, steps: tuple[LoweredStep, ...], scope: Scope, machine: Machine
) -> tuple[Variant, ...]:
    """The steps of a kernel as a variant, and with the results of the last one streamed."""
    usual = Variant("loops", steps, constant(0))
    program = steps[-1].program
    assert isinstance(program, LoopProgram)
    fits = _fits(kernel, machine)
    if scope.bounds(fits).low == 1:
        return (usual,)
    stream = _Streams()
    streamed = replace(program, body=stream.statements(program.body))
    if not stream.runs:
        return (usual,)
    written = sum((_bytes(o) for o in kernel.outputs), constant(0)) // CACHE_LINE
    rates = [level.bandwidth for level in machine.target.levels[-2:]]
    near, far = (machine.picoseconds(CACHE_LINE / rate) for rate in rates)
    long = logical_and(*(less_equal(SHORTEST, run) for run in stream.runs))
    last = replace(steps[-1], program=streamed)
    return (
        replace(usual, cost=scope.resolve(written * select(fits, near, 2 * far))),
        Variant(
            "streamed", (*steps[:-1], last), scope.resolve(written * select(long, far, 4 * far))
        ),
    )


def _bytes(node: Node) -> Expr:
    return product(node.shape) * node.dtype.bytes


def _fits(kernel: Kernel, machine: Machine) -> Expr:
    """Whether the last cache holds half of what is written and read, of a table not more of it."""
    written = sum((_bytes(o) for o in kernel.outputs), constant(0))
    read = sum((minimum(_bytes(node), written) for node in kernel.reads), constant(0))
    return less_equal(written + read, 2 * machine.target.levels[-2].capacity)


class _Streams:
    """Marks the loops whose results are streamed; ``runs`` are the bytes that each writes."""

    def __init__(self) -> None:
        self.runs: list[Expr] = []

    def statements(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple(self._loop(s) if isinstance(s, Loop) else s for s in body)

    def _loop(self, loop: Loop) -> Loop:
        if any(isinstance(statement, Loop) for statement in loop.body):
            return replace(loop, body=self.statements(loop.body))
        store = _streamable(loop)
        if store is None:
            return loop
        length = loop.end - loop.begin
        zeros = {n: constant(0) for n in length.free_symbols if n.startswith("_")}
        self.runs.append(maximum(length.substitute(zeros), 0) * store.buffer.dtype.bytes)
        return replace(loop, streamed=True)


def _streamable(loop: Loop) -> Store | None:
    """The only store of a loop that fills memory of the kernel from values read side by side."""
    if loop.accumulators or not all(isinstance(part, Let | Store) for part in loop.body):
        return None
    stores = [part for part in loop.body if isinstance(part, Store)]
    if len(stores) != 1 or stores[0].buffer.scratch or slope(stores[0].offset, loop.variable) != 1:
        return None
    values = [part.value for part in loop.body if isinstance(part, Let | Store)]
    return stores[0] if all(_is_beside(value, loop) for value in values) else None


def _is_beside(value: Value, loop: Loop) -> bool:
    match value:
        case Apply(operands=operands):
            return all(_is_beside(operand, loop) for operand in operands)
        case Convert(operand=operand):
            return _is_beside(operand, loop)
        case Guarded():
            return False
        case IndexValue(expression=expression):
            return loop.variable not in expression.free_symbols
        case _:
            return all(slope(load.offset, loop.variable) is not None for load in value_loads(value))
