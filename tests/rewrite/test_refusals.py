"""What rules must leave alone: signed zeros, NaN, large results, unproved ranges, other rows."""

from __future__ import annotations

import numpy as np
import pytest

from support.rewrite_cases import (
    FEW,
    MN,
    MNK,
    channels,
    convolved,
    few,
    filled_out,
    line,
    pointwise,
    pooled,
    shifted,
    size_of,
    to,
    truth,
    turned,
    x,
    y,
)
from support.rewrite_harness import (
    HIGH,
    Build,
    M,
    N,
    apply,
    fill,
    shape,
    simplified,
    spread,
    tensor,
    value,
)
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import (
    Broadcast,
    Cast,
    Concat,
    Constant,
    Contract,
    Gather,
    Reduce,
    Reshape,
    Slice,
    Transpose,
)
from tilewright.shape import Scope, constant, symbol

WIDE = value(np.arange(100.0 * 60).reshape(100, 60))
INT64 = DType.INT64

REFUSED: list[tuple[str, Build]] = [
    ("gather_by_view", lambda: node(Gather(0), line(M), spread(value(0, INT64), shape(M)))),
    (
        "contract_of_reshape",  # m rows for n = 0, too
        lambda: node(Contract((), ((0, 0),)), to(shape(N, M), tensor("a", N, 6)), tensor("b", N)),
    ),
    ("neutral_operand", lambda: apply("add", x(), fill(0.0, x()))),
    ("neutral_operand", lambda: apply("subtract", x(), fill(-0.0, x()))),
    ("neutral_operand", lambda: apply("subtract", fill(0.0, x()), x())),
    ("neutral_operand", lambda: apply("divide", fill(1.0, x()), x())),
    ("fractional_power", lambda: apply("power", x(), fill(0.5, x()))),
    ("fractional_power", lambda: apply("power", apply("add", x(), fill(9.0, x())), fill(0.5, x()))),
    ("fractional_power", lambda: apply("power", apply("absolute", x()), fill(-0.75, x()))),
    (
        "fractional_power",
        lambda: apply("power", apply("maximum", x(), fill(0.0, x())), fill(0.5, x())),
    ),
    (
        "scaled_quotient",
        lambda: apply("multiply", apply("divide", x(), fill(1e30, x())), fill(1e-30, x())),
    ),
    (
        "scaled_quotient",
        lambda: apply("multiply", apply("divide", x(), fill(0.0, x())), fill(2.0, x())),
    ),
    ("scaled_quotient", lambda: apply("multiply", apply("divide", x(), y()), fill(2.0, x()))),
    ("comparison_with_itself", lambda: apply("equal", x(), x())),
    ("select_by_known", lambda: apply("select", apply("is_nan", x()), fill(0.0, x()), x())),
    ("cast_of_lossless_cast", lambda: node(Cast(DType.FLOAT64), node(Cast(DType.INT32), x()))),
    ("cast_of_lossless_cast", lambda: node(Cast(INT64), node(Cast(DType.FLOAT64), line(N)))),
    ("cast_of_lossless_cast", lambda: node(Cast(DType.FLOAT32), node(Cast(DType.FLOAT16), x()))),
    ("division_by_power_of_two", lambda: apply("divide", x(), fill(3.0, x()))),
    ("division_by_power_of_two", lambda: apply("divide", x(), fill(2.0**-149, x()))),
    ("small_power", lambda: apply("power", line(N), fill(2, line(N)))),
    ("fold_constants", lambda: node(Gather(0), WIDE, value(np.zeros(300), INT64))),
    ("uniform_constant", lambda: value(np.ones((3, 4)))),
    ("comparison_of_positions", lambda: apply("less", line(N), fill(HIGH - 1, line(N)))),
    ("concat_of_concat", lambda: node(Concat(1), *[node(Concat(1), x(), y())] * 2)),
    ("gather_of_one", lambda: node(Gather(1), x(), value(0, INT64))),
    ("gather_of_one", lambda: node(Gather(0), tensor("v", 3, N), value(3, INT64))),
    ("gather_of_run", lambda: node(Gather(0), tensor("v", HIGH - 1, 2), line(N))),
    ("gather_of_run", lambda: node(Gather(0), tensor("v", HIGH, 2), shifted(line(N), 1))),
    ("gather_of_run", lambda: node(Gather(0), tensor("v", 6), value([-1, 0], INT64))),
    ("gather_of_run", lambda: node(Gather(0), tensor("v", 6), value([2, 1], INT64))),
    ("view_after_map", lambda: apply("add", turned(x(), 1, 0), tensor("w", N, M))),
    ("view_after_map", lambda: apply("add", turned(x(), 1, 0), to(shape(N, M), y()))),
    ("broadcast_after_map", lambda: apply("add", x(), spread(tensor("v", N), MN, 1))),
    (
        "broadcast_after_map",  # m may be 0, and a divisor too
        lambda: apply("divide", *[spread(tensor(v, N, dtype=INT64), MN, 1) for v in "ab"]),
    ),
    ("transpose_of_merge", lambda: turned(to(shape(M, 2, 3), tensor("a", M, 6)), 0, 2, 1)),
    ("transpose_of_broadcast", lambda: turned(spread(x(), MNK, 0, 1), 1, 0, 2)),
    ("slice_of_broadcast", lambda: _sliced_maybe_repeated()),
    ("window_of_pad", lambda: pooled("sum", filled_out(x(), 1.0, (0, 1), (0, 0)), N)),
    ("window_of_pad", lambda: pooled("maximum", filled_out(x(), 0.0, (0, 1), (0, 0)), N)),
    ("window_of_pad", lambda: pooled("sum", filled_out(x(), 0.0, (1, 1), (0, 0)), N)),
    ("window_of_unit_axes", lambda: pooled("sum", to(shape(M, N, 1), x()), 1, low=1)),
    ("window_of_unit_axes", lambda: pooled("sum", few(N), N, low=1)),
    ("window_of_unit_axes", lambda: pooled("sum", to(shape(N, M, 4), tensor("a", M, N, 4)), 4)),
    ("window_of_spanned_axes", lambda: pooled("sum", tensor("a", M, 1, N), M, 1, N, low=1)),
    ("broadcast_back", lambda: spread(to(shape(N, M), x()), MN, 0, 1)),
    ("broadcast_back", lambda: spread(few(1), shape(M, FEW, 4), 0, 1, 2)),
    ("convolve_of_pad", lambda: convolved(filled_out(channels(), 1.0, (0, 0, 1), (0, 0, 0)))),
    ("convolve_of_pad", lambda: convolved(filled_out(channels(), 0.0, (1, 0, 1), (0, 0, 0)))),
    ("pad_of_pointwise", lambda: pointwise(1, (1, 0), (4, N))),
    ("pad_of_pointwise", lambda: pointwise(2, (0, 0), (5, N))),
]


def as_read(table: Node) -> Node:
    """The rows of a table that data chooses."""
    return node(Gather(0), table, tensor("rows", 100, dtype=INT64))


def _sliced_maybe_repeated() -> Node:
    """The operand's size is 1 or n, known at run time only."""
    wide = node(Broadcast(shape(N), (0,)), tensor("v", M))
    return node(Slice(shape(0), (constant(0),), shape(1)), wide)


@pytest.mark.parametrize(
    ("name", "build"), [pytest.param(n, b, id=f"{n}-{i}") for i, (n, b) in enumerate(REFUSED)]
)
def test_rule_does_not_apply(name: str, build: Build) -> None:
    assert simplified(build(), name)[1] == []


def test_broadcast_constants_are_not_blown_up() -> None:
    after, _ = simplified(spread(value(np.arange(100.0)), shape(500, 100), 1))
    assert isinstance(after.outputs[0][1].primitive, Broadcast)


@pytest.mark.parametrize("shared", [False, True])
def test_large_transposed_constant_is_not_stored_twice(shared: bool) -> None:
    root = apply("add", tensor("v", 60, 100), turned(WIDE, 1, 0))
    if shared:
        root = apply("add", root, turned(apply("exponential", as_read(WIDE)), 1, 0))
    after, _ = simplified(root)
    stored = [n.shape for n in after.nodes() if isinstance(n.primitive, Constant)]
    assert (shape(60, 100) in stored) is not shared


def test_range_facts_decide() -> None:
    facts = Scope()
    facts.declare("n", 1, 8)
    n = symbol("n")
    table = tensor("v", 8, 3)
    root = node(Gather(0), table, node(Reshape((constant(1), n)), line(n)))
    after, _ = simplified(root, facts=facts)
    kinds = {type(each.primitive) for each in after.nodes()}
    assert Gather not in kinds
    assert Slice in kinds


def test_rows_of_a_normalisation_stay_in_one_shape() -> None:
    moved = node(Transpose((1, 0)), x())
    lowest = spread(node(Reduce("maximum", (1,)), moved), moved.shape, 0)
    root = apply("subtract", moved, lowest)
    after, _ = simplified(root)
    assert after.outputs[0][1] is root


def test_truth_of_mask_and_size_of_sizes() -> None:
    assert simplified(apply("logical_and", truth(), truth("other")))[1] == []
    assert simplified(size_of(M + 1))[1] == []
