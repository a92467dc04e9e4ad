"""The price of loops without products: what it grows with, and that it orders variants."""

from __future__ import annotations

import pytest

from tilewright.cost import LoopPrice, Machine, loop_price
from tilewright.ir.tile_parse import parse_program
from tilewright.shape import constant, symbol
from tilewright.target import preset

MACHINE = Machine(preset("zen4"))
SUMS = """\
buffer b0: float32
result o0: float32
work 1
grid _i1 < rows
  for masked _i2 in 0 .. columns
    _r3 = sum of b0[_i1*columns + _i2]
  o0[_i1] = _r3
"""
SWEEPS = """\
buffer b0: float32
result o0: float32
work 1
grid _i1 < rows
  for masked _i2 in 0 .. columns
    _r3 = sum of b0[_i1*columns + _i2]
  for masked _i4 in 0 .. columns
    o0[_i1*columns + _i4] = subtract(b0[_i1*columns + _i4], _r3)
"""


def price(text: str) -> LoopPrice:
    """Of a program whose tensors have as many elements as it has rows and columns."""
    elements = symbol("rows") * symbol("columns")
    written = symbol("rows") if text is SUMS else elements
    return loop_price(parse_program(text), MACHINE, {"b0": elements, "o0": written})


def alone(text: str, rows: int, columns: int) -> int:
    """Picoseconds on one thread."""
    return price(text).alone.evaluate({"rows": rows, "columns": columns})


@pytest.mark.parametrize("text", [SUMS, SWEEPS])
@pytest.mark.parametrize(("rows", "columns"), [(0, 0), (0, 5), (5, 0), (1, 1), (7, 17), (1000, 3)])
def test_prices_are_not_negative(text: str, rows: int, columns: int) -> None:
    assert alone(text, rows, columns) >= 0


def test_a_vector_is_paid_whole() -> None:
    """Lanes without use cost what others do: one element takes about as long as a vector."""
    assert alone(SUMS, 100, 1) == pytest.approx(alone(SUMS, 100, 15), rel=0.2)
    assert alone(SUMS, 100, 17) > alone(SUMS, 100, 16)


def test_bytes_come_from_the_level_that_holds_them() -> None:
    """An element of what lies in memory takes several times that of one in the first cache."""
    near, far = alone(SUMS, 8, 512) / (8 * 512), alone(SUMS, 1 << 17, 512) / (1 << 26)
    assert far > 3 * near


def test_a_later_sweep_reads_from_near() -> None:
    """Rows that stay in the first cache are read from memory once, longer ones in each sweep."""
    short, long = alone(SWEEPS, 1 << 14, 1 << 10), alone(SWEEPS, 1, 1 << 24)
    assert long > 1.2 * short


def test_threads_share_tasks() -> None:
    """Few tasks are done by as few threads; small work by one."""
    sizes = {"rows": 64, "columns": 1 << 16}
    one, two = (price(SUMS).time(MACHINE, threads).evaluate(sizes) for threads in (1, 2))
    assert 1.5 * two < one
    single = {"rows": 1, "columns": 1 << 20}
    one, two = (price(SUMS).time(MACHINE, threads).evaluate(single) for threads in (1, 2))
    assert one == two


def small(body: str, rows: int = 1000, flag: int = 0) -> LoopPrice:
    """Of many tasks that all read the same short row, and have more scratch than they use."""
    text = (
        "buffer b0: float32\nresult o0: float32\nscratch s0: float32 of 8192, fixed\nwork 1\n"
        f"grid _i1 < rows\n{body}"
    )
    made = loop_price(parse_program(text), MACHINE, {"b0": constant(512), "o0": constant(512)})
    known = {"rows": rows, "flag": flag}
    values = (made.alone, made.computed, made.shared, made.tasks)
    return LoopPrice(*(constant(value.evaluate(known)) for value in values))


def lanes(target: str, source: str, more: str = "") -> str:
    """A loop over 32 vectors."""
    return (
        "  for _i2 in 0 .. 32\n    for independent _i3 in 0 .. 16\n"
        f"      {target} = {source}\n{more}"
    )


COPIED = lanes("s0[16*_i2 + _i3]", "b0[16*_i2 + _i3]")
PICKED = lanes("o0[16*_i2 + _i3]", "s0[32*_i2 + 2*_i3]")


def test_elements_that_lie_apart_share_lines() -> None:
    """Every second one of a row that stays in the first cache is read from there."""
    near = small(COPIED + PICKED)
    assert near.alone.value < 1.05 * near.computed.value


def test_vectors_across_lines_cost_more() -> None:
    within, across = (
        small(lanes("o0[16*_i2 + _i3]", f"s0[16*_i2 + _i3 + {shift}]", "")).computed.value
        for shift in (16, 17)
    )
    stores = small(lanes("o0[16*_i2 + _i3 + 1]", "s0[16*_i2 + _i3]")).computed.value
    costs = MACHINE.core.loops
    assert within == across  # the port of stores is busier
    assert stores / within == pytest.approx(costs.store / costs.aligned_store, rel=0.1)


def test_a_branch_that_is_not_taken_costs_a_test() -> None:
    branch = "  for _i5 in 0 .. flag == 1\n" + "".join(
        f"  {line}\n" for line in COPIED.replace("_i2", "_i6").replace("_i3", "_i7").splitlines()
    )
    plain, skipped, taken = small(PICKED), small(branch + PICKED), small(branch + PICKED, flag=1)
    assert skipped.alone.value < 1.05 * plain.alone.value
    assert taken.alone.value > 1.3 * plain.alone.value


def test_thin_blocks_are_turned_as_vectors() -> None:
    """Three columns side by side take far less than three that lie apart."""
    turned = "  s0[0], row 512 = transposed b0[0], row {}: 512 x 3\n  o0[_i1] = s0[0]\n"
    beside, apart = (small(turned.format(row)).computed.value for row in (3, 5))
    assert 3 * beside < apart
