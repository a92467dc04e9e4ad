"""Which loads of a loop read whole stretches in turn, and what is combined before it is picked."""

from __future__ import annotations

import pytest

from tilewright.ir.tile import Apply, Loop, Store
from tilewright.ir.tile_interleaved import interleaved_loop
from tilewright.ir.tile_parse import parse_program

PROGRAM = """
buffer b0: float32
buffer b1: float32
result o0: float32
work 1
grid _i1 < n
  for {0} _i2 in 0 .. {1}
    o0[16*_i1 + _i2] = {2}
"""
SUM = "add(add(b0[32*_i1 + 2*_i2], b1[2*_i2]), add(b0[32*_i1 + 2*_i2 + 1], b1[2*_i2 + 1]))"


def loop_of(value: str, how: str = "independent", count: str = "16") -> Loop:
    (loop,) = parse_program(PROGRAM.format(how, count, value)).body
    assert isinstance(loop, Loop)
    return loop


def test_sums_of_one_phase_are_of_the_same_vectors() -> None:
    loop = loop_of(SUM)
    found = interleaved_loop(loop)
    (store,) = loop.body
    assert found is not None and isinstance(store, Store) and isinstance(store.value, Apply)
    even, odd = (found.phase(operand) for operand in store.value.operands)
    assert even is not None and odd is not None
    assert (even.step, even.number, odd.number) == (2, 0, 1)
    assert even.key == odd.key and even.function == "add"
    assert [operand.first is not None for operand in even.operands] == [True, True]
    assert found.phase(store.value) is None, "both phases are needed"


@pytest.mark.parametrize(
    "value",
    [
        "add(b0[2*_i2], b1[2*_i2])",  # every second element is left out
        "add(b0[2*_i2], b0[2*_i2 + 1])",  # neighbours alone are combined: each is picked
        "add(b0[n*_i2], b0[n*_i2 + 1])",  # nobody knows how far apart they are
        SUM.replace("b1[2*_i2 + 1]", "b1[2*_i2 + 3]"),  # two of them do not lie in turn
        f"add({SUM}, b0[7*_i2])",  # some lie too far apart to be picked
    ],
)
def test_what_is_left_to_the_vectoriser(value: str) -> None:
    assert interleaved_loop(loop_of(value)) is None


@pytest.mark.parametrize("how", [("", "16"), ("independent", "n")])
def test_only_loops_over_a_known_number_of_lanes(how: tuple[str, str]) -> None:
    assert interleaved_loop(loop_of(SUM, *how)) is None
