"""Extremes that are kept in memory: whole vectors are stored, not all but their NaNs."""

from __future__ import annotations

import re

import pytest

from support.graph_kit import F32, Space
from support.kernel_modules import modules_of_variants
from tilewright.backend.cpu.machine import LEVELS, assembly
from tilewright.ir.graph import node
from tilewright.ir.primitives import Reduce


@pytest.mark.parametrize("kind", ["maximum", "minimum"])
def test_running_extremes_are_stored_without_a_mask(kind: str) -> None:
    space = Space()
    rows, columns = space.dimensions("r c")
    graph = space.graph(node(Reduce(kind, (0,)), space.input("x", F32, rows, columns)))
    stored: list[str] = []
    for module in modules_of_variants(graph, "avx2"):
        text = assembly(module, LEVELS["avx2"])
        assert re.search(rf"v{kind[:3]}ps .*%ymm", text.replace("\t", " "))
        stored += re.findall(r"vmaskmovps\s+%ymm\d+, %ymm\d+, .*\(", text)
    assert not stored
