"""Prices of steps: one for all that are written alike, and the one that each has by itself."""

from __future__ import annotations

from dataclasses import replace

from tilewright.cost import Machine
from tilewright.ir.dtype import DType
from tilewright.ir.tile_parse import parse_program
from tilewright.shape import Expr, constant, symbol
from tilewright.target import preset
from tilewright.tile.prices import priced, step_price
from tilewright.tile.variants import THREADS, LoweredStep, Variant, Workspace

TEXT = """\
buffer b0: float32
result o0: float32
work 1
grid _i1 < rows
  for masked _i2 in 0 .. columns
    o0[_i1*columns + _i2] = b0[_i1*columns + _i2]
"""


def step(read: Expr) -> LoweredStep:
    """One that reads a tensor of so many elements."""
    source, target = (
        Workspace(name, DType.FLOAT32, size)
        for name, size in (("read", read), ("written", symbol("rows") * symbol("columns")))
    )
    return LoweredStep(parse_program(TEXT), (source,), (target,))


def test_steps_that_are_alike_are_priced_once() -> None:
    machine = Machine(preset("zen4"))
    whole = symbol("rows") * symbol("columns")
    first = step_price(step(whole), machine)
    assert step_price(step(whole), machine) is first
    assert first == step_price(step(whole), Machine(preset("zen4")))


def test_a_price_is_that_of_its_tensors_and_machine() -> None:
    machine, other = Machine(preset("zen4")), Machine(preset("neoverse-n1"))
    whole = symbol("rows") * symbol("columns")
    first = step_price(step(whole), machine)
    assert step_price(step(symbol("rows")), machine) != first
    assert step_price(step(symbol("rows")), machine) == step_price(
        step(symbol("rows")), Machine(preset("zen4"))
    )
    assert step_price(step(whole), other) != first


def test_what_threads_leave_each_other_between_steps_costs_time() -> None:
    """Lines of a workspace that readers of the last call hold are taken from them."""
    machine = Machine(preset("zen4"))
    size = symbol("rows") * symbol("columns")
    first = step(size)
    (left,) = first.writes
    second = replace(first, reads=(left,), writes=(Workspace("last", DType.FLOAT32, size),))
    apart = replace(second, reads=first.reads)

    def cost(last: LoweredStep, threads: int) -> int:
        (made,) = priced((Variant("both", (first, last), constant(0)),), machine)
        return made.cost.evaluate({"rows": 1000, "columns": 256, THREADS: threads})

    assert cost(second, 1) == cost(apart, 1)
    lines = 1000 * 256 * 4 // 64
    taken = lines // 2 * round(1000 * machine.core.threads.taken_ns)
    assert cost(second, 2) - cost(apart, 2) == taken


def test_threads_that_would_wait_for_each_other_get_no_work() -> None:
    """Rows in two pieces are one thread's, unless each thread has rows of its own."""
    text = """\
buffer b0: float32
result o0: float32
work 1
grid _i0 < batch, _i1 < 2
  for _i2 in 0 .. rows
    for independent _i3 in 0 .. 264
      o0[528*rows*_i0 + 528*_i2 + 264*_i1 + _i3] = b0[528*rows*_i0 + 528*_i2 + 264*_i1 + _i3]
"""
    size = 528 * symbol("rows") * symbol("batch")
    source, target = (Workspace(name, DType.FLOAT32, size) for name in ("read", "written"))
    alone = LoweredStep(parse_program(text), (source,), (target,))
    machine = Machine(preset("zen4"))
    (made,) = priced((Variant("pieces", (alone,), constant(0)),), machine)
    (step_of,) = made.steps
    for batch, is_shared in ((1, False), (2, True)):
        sizes = {"rows": 400, "batch": batch}
        whole = step_price(alone, machine).alone.evaluate(sizes) // 1000 + 1
        work = step_of.program.work.evaluate({**sizes, THREADS: 2})
        assert work == (whole if is_shared else 1)
