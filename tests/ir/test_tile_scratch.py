"""Which scratch memory loops use from its first element on, and how much of it."""

from __future__ import annotations

import pytest

from tilewright.ir.tile_parse import parse_program
from tilewright.ir.tile_scratch import used_lengths

PROGRAM = """\
buffer b0: float32
result o0: float32
scratch s0: float32 of 64
work 1
grid _i1 < rows
  for masked _i2 in {first}
    s0[{stored}] = b0[_i1*64 + _i2]
  for _i3 in 0 .. 4
    for masked _i4 in {second}
      o0[_i1*64 + _i4] = s0[{loaded}]
"""


@pytest.mark.parametrize(
    ("first", "stored", "second", "loaded", "used"),
    [
        ("0 .. n", "_i2", "0 .. n", "_i4", "n"),
        ("0 .. n - _i1", "_i2", "0 .. n - _i1", "_i4", "-_i1 + n"),
        ("0 .. n", "_i2", "0 .. 5", "_i4", None),  # the others are read elsewhere
        ("0 .. n", "_i2", "0 .. n", "_i4 + 1", None),
        ("0 .. n", "_i2 + n", "0 .. n", "_i4", None),
        ("0 .. n", "_i2", "1 .. n", "_i4", None),
        ("0 .. n - _i3", "_i2", "0 .. n - _i3", "_i4", None),  # as many in each turn alone
    ],
)
def test_used_lengths(first: str, stored: str, second: str, loaded: str, used: str | None) -> None:
    text = PROGRAM.format(first=first, stored=stored, second=second, loaded=loaded)
    found = {buffer.name: str(end) for buffer, end in used_lengths(parse_program(text)).items()}
    assert found == ({} if used is None else {"s0": used})
