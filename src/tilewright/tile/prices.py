"""The price of a variant without products: of its steps, one after the other.

It is the cost by which the runtime chooses between variants, and what one thread takes for a step
is the work by which it gives the step threads. Start with :func:`priced`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tilewright.cost import LoopPrice, Machine, loop_price, taken_time
from tilewright.ir.graph import Node
from tilewright.ir.tile_structure import structure_of
from tilewright.shape import Expr, constant, product, select, symbol, total
from tilewright.tile.variants import THREADS, LoweredStep, Source, Variant, Workspace


def priced(variants: Iterable[Variant], machine: Machine) -> tuple[Variant, ...]:
    """The variants with the prices of their steps."""
    made: list[Variant] = []
    for variant in variants:
        prices = [step_price(step, machine) for step in variant.steps]
        steps = tuple(
            shared_out(step, _work(price, machine))
            for step, price in zip(variant.steps, prices, strict=True)
        )
        cost = total(price.time(machine, symbol(THREADS)) for price in prices)
        cost = cost + _taken(variant.steps, prices, machine)
        made.append(Variant(variant.name, steps, cost))
    return tuple(made)


def _work(price: LoopPrice, machine: Machine) -> Expr:
    """Nanoseconds on one thread; next to nothing where several threads would take longer."""
    work, alone = price.alone // 1000 + 1, price.is_for_one(machine, symbol(THREADS))
    return work if alone is constant(0) else select(alone, 1, work)


def _taken(steps: Sequence[LoweredStep], prices: Sequence[LoopPrice], machine: Machine) -> Expr:
    """Picoseconds for memory between steps that the readers of the last call hold."""
    workers = [price.workers(symbol(THREADS)) for price in prices]
    writers = {
        space: number
        for number, step in enumerate(steps)
        for space in step.writes
        if isinstance(space, Workspace)
    }
    return total(
        taken_time(space.elements * space.dtype.bytes, machine, workers[first], workers[number])
        for number, step in enumerate(steps)
        for space in dict.fromkeys(step.reads)
        if isinstance(space, Workspace) and (first := writers.get(space, number)) < number
    )


def with_costs(variants: Sequence[Variant], machine: Machine) -> tuple[Variant, ...]:
    """The variants, each with a cost; one alone has none where nothing was to be chosen."""
    if len(variants) == 1 and variants[0].cost is constant(0):
        return priced(variants, machine)
    return tuple(variants)


def step_price(step: LoweredStep, machine: Machine) -> LoopPrice:
    """The price of one step, whose tensors have the sizes of what it reads and writes.

    Most steps are part of several variants, and of several kernels: each is priced once.
    """
    program = step.program
    found = zip(program.buffers, (*step.reads, *step.writes), strict=True)
    sizes = {buffer.name: size for buffer, node in found if (size := _elements(node)) is not None}
    key = (structure_of((program.grid, program.body)), tuple(sizes.items()))
    price = machine.known_prices.get(key)
    if price is None:
        price = machine.known_prices[key] = loop_price(program, machine, sizes)
    return price


def shared_out(step: LoweredStep, work: Expr) -> LoweredStep:
    """The step of ``work``, nanoseconds on one thread, by which calls give it threads."""
    return replace(step, program=replace(step.program, work=work))


def near_prices(steps: Iterable[LoweredStep], machine: Machine) -> tuple[LoopPrice, ...]:
    """The prices of steps whose operands and results are in cache."""
    prices = (step_price(step, machine) for step in steps)
    return tuple(replace(price, alone=price.computed, shared=total(())) for price in prices)


def _elements(source: Source | Workspace) -> Expr | None:
    match source:
        case Node():
            return product(source.shape)
        case Workspace():
            return source.elements
        case _:
            return None
