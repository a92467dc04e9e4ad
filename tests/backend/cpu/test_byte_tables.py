"""Tables of 256 bytes give their entries in vectors of every length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.backend.cpu import machine
from tilewright.ir.scalar import table_name


@pytest.mark.parametrize("level", machine.host_levels(), ids=lambda level: level.name)
@pytest.mark.parametrize("lanes", [1, 8, 16, 32, 64, 128])
def test_entries(loops: Any, level: machine.Level, lanes: int) -> None:
    random = np.random.default_rng(lanes)
    table = random.integers(0, 256, 256).astype(np.uint8)
    every = random.permutation(256).astype(np.uint8)
    for x in (every, every.view(np.int8)):
        made = loops.run(table_name(table.tobytes()), level, [x], lanes)
        np.testing.assert_array_equal(made.view(np.uint8), table[every])
