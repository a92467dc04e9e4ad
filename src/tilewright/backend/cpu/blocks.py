"""The bounds of a block of a contraction by name, and where a tile of it is."""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

M0, M1, N0, N1, K0, K1 = "_m0", "_m1", "_n0", "_n1", "_k0", "_k1"


@dataclass
class Place:
    """Where one tile is: first row and column, height, valid columns, its number in the panel."""

    m: ir.Value
    n: ir.Value
    height: ir.Value
    columns: ir.Value
    number: ir.Value
