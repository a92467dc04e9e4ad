"""One open loop level while a kernel is lowered. The record is :class:`Block`."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.ir.graph import Node
from tilewright.ir.tile import Statement, Value
from tilewright.ir.views import Index
from tilewright.shape import Expr


@dataclass
class Block:
    """Statements of one open loop level, and what is already computed there.

    ``positions`` are those read from data, by the value, the size of the axis, and whether the
    loops inside run.
    """

    statements: list[Statement] = field(default_factory=list[Statement])
    extents: list[Expr] = field(default_factory=list[Expr])
    memo: dict[tuple[Node, Index], Value] = field(default_factory=dict[tuple[Node, Index], Value])
    positions: dict[tuple[Value, Expr, Expr], Expr] = field(
        default_factory=dict[tuple[Value, Expr, Expr], Expr]
    )
