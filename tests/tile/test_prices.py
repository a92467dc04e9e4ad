"""Prices of steps: one for all that are written alike, and the one that each has by itself."""

from __future__ import annotations

from tilewright.cost import Machine
from tilewright.ir.dtype import DType
from tilewright.ir.tile_parse import parse_program
from tilewright.shape import Expr, symbol
from tilewright.target import preset
from tilewright.tile.prices import step_price
from tilewright.tile.variants import LoweredStep, Workspace

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
