"""How operands of products lie in memory."""

from __future__ import annotations

from tilewright.ir.access import contraction_access
from tilewright.ir.dtype import DType
from tilewright.ir.graph import node
from tilewright.ir.primitives import Contract, Input
from tilewright.shape import Scope, Truth, constant


def test_rows_follow_each_other_though_their_strides_are_written_otherwise() -> None:
    scope = Scope()
    height = scope.declare("k", 3)
    width = scope.declare("m", 4, None, multiple_of=4) // 2 - 1  # 2 * (m // 2) is written m
    left = node(Input("x", DType.FLOAT32, (height, height - 2, width)))
    right = node(Input("y", DType.FLOAT32, (width, constant(3))))
    made = node(Contract((), ((2, 0),)), left, right)
    access = contraction_access(made, scope, (left, right)).left
    assert access is not None
    assert scope.is_equal(access.row, width) is Truth.YES
    assert access.depth is constant(1)
