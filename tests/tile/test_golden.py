"""Golden prints of small tile programs: what a softmax and a dense layer become.

Each is read back as the same program.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from support.tile_equality import difference
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import ArgReduce, Broadcast, Constant, Contract, Input, Map, Reduce
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.tile import Loop, Product, TileProgram
from tilewright.ir.tile_parse import parse_program
from tilewright.ir.tile_print import print_program, print_tile
from tilewright.plan.greedy import plan_greedily
from tilewright.policy import BlockSizes, Chosen, Kept, Problem
from tilewright.shape import Scope, constant, minimum, symbol
from tilewright.tile.attention import variants
from tilewright.tile.lower import lower_kernel
from tilewright.tile.nests import column_block
from tilewright.tile.products.frame import RegisterTile

TILE = RegisterTile(6, 16, narrow_rows=4, room=384 << 10)


def lower_only_kernel(scope: Scope, inputs: tuple[Node, ...], output: Node) -> TileProgram:
    plan = plan_greedily(Graph("golden", inputs, (("y", output),), scope))
    assert len(plan.kernels) == 1
    program = (
        lower_kernel(plan.kernels[0], scope, TILE, policy=Fixed()).variants[0].steps[0].program
    )
    assert difference(program, parse_program(print_program(program))) is None
    return program


class Fixed:
    """A policy that takes the same block sizes whatever they cost."""

    def choose(self, problem: Problem) -> Chosen:
        kept = Kept(BlockSizes(96, 128, 1024), constant(0))
        return Chosen(tuple((kept,) for _ in problem.spaces))


def softmax(x: Node, axis: int, kept: tuple[int, ...]) -> Node:
    maximum = node(Broadcast(x.shape, kept), node(Reduce("maximum", (axis,)), x))
    powers = node(Map("exponential"), node(Map("subtract"), x, maximum))
    total = node(Broadcast(x.shape, kept), node(Reduce("sum", (axis,)), powers))
    return node(Map("divide"), powers, total)


def test_softmax_sweeps_each_row_three_times() -> None:
    """The powers wait in the result; the row is divided by one reciprocal."""
    scope = Scope()
    shape = (scope.declare("rows", 0, 100), scope.declare("columns", 0, 100))
    x = node(Input("x", DType.FLOAT32, shape))
    program = lower_only_kernel(scope, (x,), softmax(x, 1, (0,)))
    assert print_tile(program) == "\n".join(
        [
            "buffer b0: float32",
            "result o0: float32",
            "grid _i1 < rows",
            "  for masked _i3 in 0 .. columns",
            "    _r2 = maximum of b0[_i1*columns + _i3]",
            "  for masked _i5 in 0 .. columns",
            "    _v6 = decay(subtract(b0[_i1*columns + _i5], _r2))",
            "    o0[_i1*columns + _i5] = _v6",
            "    _r4 = sum of _v6",
            "  _v7 = divide(1.0, _r4)",
            "  for masked _i8 in 0 .. columns",
            "    o0[_i1*columns + _i8] = multiply(o0[_i1*columns + _i8], _v7)",
        ]
    )


def test_rows_that_lie_side_by_side_are_reduced_along_the_columns() -> None:
    """Each task has a block of columns, and reads several rows before it writes one."""
    scope = Scope()
    x = node(Input("x", DType.FLOAT32, (constant(2), scope.declare("n", 0, 100))))
    maximum = node(Broadcast(x.shape, (1,)), node(Reduce("maximum", (0,)), x))
    program = lower_only_kernel(scope, (x,), node(Map("subtract"), x, maximum))
    block = str(program.scratch[0].elements)
    assert block == "16*max(1, ceil_div(n, 16))"
    first = f"16*_i1*{block.removeprefix('16*')}"
    count = "min(n - FIRST, BLOCK)"
    text = print_tile(program).replace(first, "FIRST").replace(block, "BLOCK")
    assert text.replace("min(-FIRST + n, BLOCK)", count) == "\n".join(
        [
            "buffer b0: float32",
            "result o0: float32",
            "scratch s0: float32 of BLOCK",
            "scratch s1: float32 of BLOCK",
            "grid _i1 < ceil_div(n, BLOCK)",
            f"  for independent masked _i4 in 0 .. {count}",
            "    s0[_i4] = maximum(b0[FIRST + _i4], b0[FIRST + _i4 + n])",
            f"  for independent masked _i6 in 0 .. {count}",
            "    s1[_i6] = s0[_i6]",
            f"  for independent masked _i9 in 0 .. {count}",
            "    _v10 = subtract(b0[FIRST + _i9], s1[_i9])",
            "    _v11 = subtract(b0[FIRST + _i9 + n], s1[_i9])",
            "    o0[FIRST + _i9] = _v10",
            "    o0[FIRST + _i9 + n] = _v11",
        ]
    )


def test_a_dense_layer_packs_its_weights_and_adds_its_bias_at_the_end() -> None:
    scope = Scope()
    batch = scope.declare("batch", 0, 100)
    x = node(Input("x", DType.FLOAT32, (batch, constant(32))))
    weights = node(Constant.of(np.ones((32, 48), np.float32)))
    bias = node(Constant.of(np.ones(48, np.float32)))
    product = node(Contract((), ((1, 0),)), x, weights)
    biased = node(Map("add"), product, node(Broadcast(product.shape, (1,)), bias))
    program = lower_only_kernel(scope, (x,), biased)
    # As many blocks for each thread, which has the rows to itself: weights are few.
    enough = "logical_or(6*_threads <= batch, _threads <= ceil_div(batch, 96))"
    alike = "_threads*ceil_div(ceil_div(batch, 96), _threads)"
    blocks = f"select({enough}, {alike}, ceil_div(batch, 96))"
    rows = f"max(6, 6*ceil_div(ceil_div(batch, max(1, {blocks})), 6))"
    threads = f"min(3, ceil_div(_threads, max(1, {blocks})))"
    columns = f"max(16, 16*ceil_div(ceil_div(48, max(1, {threads})), 16))"
    assert print_tile(program) == "\n".join(
        [
            "buffer b0: float32",
            "buffer b1: float32",
            "buffer p0: float32",
            "result o0: float32",
            f"grid _mb < ceil_div(batch, {rows}), _nb < ceil_div(48, {columns})",
            f"  stage parallel _m < batch by {rows}, parallel _n < 48 by {columns}",
            "    stage reduction _k < 32 by 32",
            "      product float32 for rows _m0 .. _m1, columns _n0 .. _n1, depth _k0 .. _k1",
            "        left b0[_k0 + 32*_m0], row 32, depth 1",
            "        right p0[16*_k0 + 32*_n0], row 32, depth 16, panel 16",
            "        in registers of 6 x 16, tail 0",
            "        finished by",
            "          o0[48*_m + _n] = add(accumulator, b1[_n])",
        ]
    )


def test_an_operand_that_lies_along_the_depth_is_packed_for_each_block_of_it() -> None:
    """What comes with the stage of the depth is moved for each of its blocks."""
    scope = Scope()
    m, n, k = (scope.declare(name, 0, 100) for name in "mnk")
    x, y = (node(Input(name, DType.FLOAT32, (size, k))) for name, size in (("x", m), ("y", n)))
    program = lower_only_kernel(scope, (x, y), node(Contract((), ((1, 1),)), x, y))
    nest = ProductNest.of(program)
    assert nest.is_packing and nest.is_transposing
    row = nest.right.depth
    assert [buffer.name for buffer in program.scratch] == ["s0"]
    text = print_tile(program)
    load = f"\n      load\n        s0[0], row {row} = transposed b1[_n0*k + _k0], row k: "
    assert load in text
    assert f"\n        right s0[0], row 1, depth {row}\n" in text


def test_the_position_of_a_maximum_that_does_not_exist_reads_nothing() -> None:
    """Of no row the index is 0, and so it is known outside of the loop over rows."""
    x = node(Input("x", DType.FLOAT32, (constant(0), constant(5))))
    program = lower_only_kernel(Scope(), (x,), node(ArgReduce("maximum", 1, False), x))
    assert not [
        part for part in program.body if isinstance(part, Loop) and part.end is not constant(0)
    ]


def test_positions_of_maxima_in_columns_run_along_the_columns() -> None:
    scope = Scope()
    shape = (scope.declare("rows", 0, 100), scope.declare("columns", 0, 100))
    x = node(Input("x", DType.INT32, shape))
    program = lower_only_kernel(scope, (x,), node(ArgReduce("maximum", 0, False), x))
    block, number = column_block(shape[1]), symbol("_c6")
    text = print_tile(program)
    for made, name in (
        (minimum(block, shape[1] - number * block), "COUNT"),
        (number * block, "_c6*BLOCK"),
        (block, "BLOCK"),
    ):
        text = text.replace(str(made), name)
    group = "b0[_c6*BLOCK + 4*_i8*columns + _i9"
    assert text == "\n".join(
        [
            "buffer b0: int32",
            "result o0: int64",
            "scratch s0: int32 of BLOCK",
            "scratch s1: int32 of BLOCK",
            "grid _c6 < ceil_div(columns, BLOCK)",
            "  for independent masked _i7 in 0 .. COUNT",
            "    s0[_i7] = identity:maximum:int32",
            "    s1[_i7] = int32([0])",
            "  for _i8 in 0 .. rows//4",
            "    for independent masked _i9 in 0 .. COUNT",
            "      _v10 = select(%0:logical_not(less_equal("
            f"%1:{group} + columns], %2:{group}])), %1, %2)",
            "      _v11 = select(%0, int32([4*_i8 + 1]), int32([4*_i8]))",
            "      _v12 = select(%3:logical_not(less_equal(_v10, %4:s0[_i9])), _v10, %4)",
            "      _v13 = select(%3, _v11, s1[_i9])",
            "      _v14 = select(%5:logical_not(less_equal("
            f"%6:{group} + 3*columns], %7:{group} + 2*columns])), %6, %7)",
            "      _v15 = select(%5, int32([4*_i8 + 3]), int32([4*_i8 + 2]))",
            "      _v16 = select(%8:logical_not(less_equal(_v14, _v12)), _v14, _v12)",
            "      _v17 = select(%8, _v15, _v13)",
            "      s0[_i9] = _v16",
            "      s1[_i9] = _v17",
            "  for _k3 in max(0, 4*(rows//4)) .. rows",
            "    for independent masked _i18 in 0 .. COUNT",
            "      _v19 = select(%9:logical_not(less_equal("
            "%10:b0[_c6*BLOCK + _k3*columns + _i18], %11:s0[_i18])), %10, %11)",
            "      _v20 = select(%9, int32([_k3]), s1[_i18])",
            "      s0[_i18] = _v19",
            "      s1[_i18] = _v20",
            "  for independent _i21 in 0 .. COUNT",
            "    o0[_c6*BLOCK + _i21] = (int64(s1[_i21]) if 1 <= rows else 0)",
        ]
    )


def attention() -> TileProgram:
    scope = Scope()
    m, n = scope.declare("m", 0, 1000), scope.declare("n", 0, 1000)
    queries, keys, values = (
        node(Input(name, DType.FLOAT32, (size, constant(32))))
        for name, size in (("q", m), ("k", n), ("v", n))
    )
    scores = node(Contract((), ((1, 1),)), queries, keys)
    maximum = node(Broadcast((m, n), (0,)), node(Reduce("maximum", (1,)), scores))
    powers = node(Map("exponential"), node(Map("subtract"), scores, maximum))
    total = node(Broadcast((m, n), (0,)), node(Reduce("sum", (1,)), powers))
    weights = node(Map("divide"), powers, total)
    context = node(Contract((), ((1, 0),)), weights, values)
    return lower_only_kernel(scope, (queries, keys, values), context)


def test_attention_keeps_blocks_of_scores_in_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "attention_blocks", lambda *_: ((192, 96),))
    program = attention()
    assert all(b.elements is not None and b.elements.is_constant for b in program.scratch)
    over_keys = next(p for p in program.body if isinstance(p, Loop) and p.variable == "_kb")
    products = [part for part in over_keys.body if isinstance(part, Product)]
    assert [p.depth[1].is_constant for p in products] == [True, False]
    text = print_tile(program)
    assert "s0[0], row 208 = transposed b0[" in text
    operands = "left b1[3072*_kb], row 32, depth 1", "right s0[0], row 1, depth 208"
    assert "\n      ".join((*operands, "into s1[0], row 208, resumed if 0\n")) in text
    # The values of a block, in rows of an odd number of lines.
    assert re.search(r"s7\[48\*(_i\d+) \+ (_i\d+)\] = b2\[32\*\1 \+ \2 \+ 3072\*_kb\]", text)
    operands = "left s1[0], row 1, depth 208", "right s7[0], row 1, depth 48"
    assert "\n      ".join((*operands, "into s6[0], row 32, resumed if 1\n")) in text


def test_names_of_long_sizes_stand_for_what_they_say() -> None:
    """Put back in their places, they make the program's own text."""
    program = attention()
    lines = [line for line in print_program(program).splitlines() if line[:5] != "work "]
    names = [line.split(" = ", 1) for line in lines if line.startswith("$")]
    text = "\n".join(lines[len(names) :])
    assert len(text) < len(print_tile(program))
    for name, meaning in reversed(names):
        text = re.sub(rf"{re.escape(name)}(?!\d)", lambda _, m=meaning: m, text)
    assert text == print_tile(program)
