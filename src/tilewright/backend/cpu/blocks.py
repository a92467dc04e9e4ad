"""The bounds of a block of a product by name, and where a tile of it is."""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from tilewright.ir.tile import View
from tilewright.shape import Expr, symbol

M0, M1, N0, N1, K0, K1 = "_m0", "_m1", "_n0", "_n1", "_k0", "_k1"


@dataclass
class Place:
    """Where one tile is: first row and column, height, valid columns, its number in the panel."""

    m: ir.Value
    n: ir.Value
    height: ir.Value
    columns: ir.Value
    number: ir.Value


def origin(view: View, first: str) -> Expr:
    """Where an operand's element would lie whose row or column and depth are 0.

    ``first`` names the row or column at which the block begins.
    """
    return view.offset - symbol(first) * view.row - symbol(K0) * view.depth
