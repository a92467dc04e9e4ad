"""MatMul, Gemm and Einsum: every shape numpy accepts, one graph for many sizes, no copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.operator_harness import Array, check_node, compare, fission, run
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, node
from tilewright.ir.primitives import Broadcast, Contract, Input, Transpose
from tilewright.ops.record import ImportFacts, RuleContext, apply_rule, find_operator
from tilewright.shape import Expr, Scope, as_expr
from tilewright.support.errors import DimensionError, InvalidModelError


def _random(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


MATMUL_SHAPES: list[list[tuple[tuple[int, ...], tuple[int, ...]]]] = [
    [((3, 4), (4, 5)), ((1, 1), (1, 1)), ((0, 4), (4, 5)), ((3, 0), (0, 5))],
    [((4,), (4,)), ((0,), (0,)), ((1,), (1,))],
    [((4,), (4, 5)), ((1,), (1, 0))],
    [((3, 4), (4,)), ((0, 2), (2,))],
    [((2, 3, 4), (4, 5)), ((1, 3, 4), (4, 1)), ((0, 3, 4), (4, 5))],
    [((3, 4), (2, 4, 5)), ((3, 1), (1, 1, 5))],
    [
        ((2, 3, 4), (2, 4, 5)),
        ((1, 3, 4), (2, 4, 5)),
        ((2, 3, 4), (1, 4, 5)),
        ((0, 3, 4), (1, 4, 5)),
    ],
    [((2, 6, 3, 4), (6, 4, 5)), ((2, 6, 3, 4), (1, 4, 5)), ((2, 1, 3, 4), (6, 4, 5))],
    [((6, 3, 4), (2, 6, 4, 5)), ((1, 3, 4), (1, 1, 4, 5))],
    [((4,), (2, 6, 4, 5))],
    [((2, 6, 3, 4), (4,))],
]


@pytest.mark.parametrize("shapes", MATMUL_SHAPES, ids=str)
def test_matmul_of_unknown_sizes(shapes: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    graph = fission("MatMul", [np.zeros(s, np.float32) for s in shapes[0]], opset=13)
    for left, right in shapes:
        x, y = _random(*left), _random(*right, seed=1)
        compare(run(graph, [x, y])[0], np.matmul(x, y), length=8)


def test_matmul_of_types() -> None:
    for dtype in (np.float64, np.int32, np.uint32, np.int64, np.float16):
        x, y = (
            (np.arange(6).reshape(2, 3) - 2).astype(dtype),
            np.arange(12).reshape(3, 4).astype(dtype),
        )
        compare(run(fission("MatMul", [x, y], opset=13), [x, y])[0], np.matmul(x, y), length=3)


def test_matmul_refuses_other_lengths_and_scalars() -> None:
    graph = fission("MatMul", [_random(2, 3), _random(3, 4)], opset=13)
    with pytest.raises(DimensionError, match="index k"):
        run(graph, [_random(2, 3), _random(4, 4)])
    batched = fission("MatMul", [_random(2, 2, 3), _random(2, 3, 4)], opset=13)
    with pytest.raises(DimensionError, match="broadcast"):
        run(batched, [_random(2, 2, 3), _random(5, 3, 4)])
    with pytest.raises(InvalidModelError):
        fission("MatMul", [_random(2, 3), _random(4, 4)], opset=13, symbolic=False)
    with pytest.raises(InvalidModelError):
        fission("MatMul", [np.array(1.0, np.float32), _random(4, 4)], opset=13)


def _build(operator: str, shapes: list[list[str | int]], **attributes: Any) -> Graph:
    """A graph whose sizes are the named symbols or numbers."""
    scope = Scope()
    sizes: list[list[Expr]] = [
        [scope.declare(s) if isinstance(s, str) else as_expr(s) for s in shape] for shape in shapes
    ]
    inputs = tuple(
        node(Input(f"x{i}", DType.FLOAT32, tuple(shape))) for i, shape in enumerate(sizes)
    )
    row = find_operator("", operator, 13)
    assert row is not None
    facts = ImportFacts(scope)
    context = RuleContext(operator, inputs, attributes, 1, 13, operator, facts)
    (out,) = apply_rule(row, context)
    return Graph(operator, inputs, (("y0", out),), scope, (), tuple(facts.guards))


@pytest.mark.parametrize(
    ("shapes", "batch"),
    [
        ([["B", "S", 8], [8, 16]], 0),
        ([["B", "S", 8], [1, 8, 16]], 0),
        ([[1, "S", 8], ["B", 8, 16]], 0),
        ([["B", 12, "S", 8], ["B", 12, 8, "T"]], 2),
        ([["B", 12, "S", 8], ["B", 1, 8, "T"]], 1),
    ],
)
def test_axes_that_one_operand_lacks_are_free(shapes: list[list[str | int]], batch: int) -> None:
    graph = _build("MatMul", shapes)
    nodes = graph.nodes()
    (product,) = [n.primitive for n in nodes if isinstance(n.primitive, Contract)]
    assert len(product.batch) == batch
    assert not any(isinstance(n.primitive, Broadcast) for n in nodes)
    assert not graph.guards


def test_weights_times_tokens_is_one_node() -> None:
    graph = _build("MatMul", [["B", "S", 8], [8, 16]])
    assert [type(n.primitive) for n in graph.nodes()] == [Input, Input, Contract]
    gemm = _build("Gemm", [["B", 8], [16, 8]], transB=1)
    assert [type(n.primitive) for n in gemm.nodes()] == [Input, Input, Contract]
    einsum = _build("Einsum", [["B", "S", 8], [16, 8]], equation="bsk,nk->bsn")
    assert [type(n.primitive) for n in einsum.nodes()] == [Input, Input, Contract]


# ---------------------------------------------------------------- Gemm


@pytest.mark.parametrize("added", [None, (), (1,), (5,), (1, 5), (3, 1), (3, 5)])
@pytest.mark.parametrize(("left", "right"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_gemm(left: int, right: int, added: tuple[int, ...] | None) -> None:
    a, b = _random(*((4, 3) if left else (3, 4))), _random(*((5, 4) if right else (4, 5)), seed=1)
    c = None if added is None else _random(*added, seed=2)
    attributes = {"transA": left, "transB": right, "alpha": 0.5, "beta": 2.0}
    x, y = a.T if left else a, b.T if right else b
    expected = np.float32(0.5) * (x @ y)
    if c is not None:
        expected = expected + np.float32(2.0) * c
    for symbolic in (True, False):
        check_node(
            "Gemm", [a, b, c], attributes, 13, symbolic=symbolic, expected=[expected], length=8
        )


def test_gemm_of_integers_and_misfits() -> None:
    a, b = np.arange(6, dtype=np.int32).reshape(2, 3), np.arange(12, dtype=np.int32).reshape(3, 4)
    c = np.array([1, 2, 3, 4], np.int32)
    check_node("Gemm", [a, b, c], {}, 13, expected=[a @ b + c])
    graph = fission("Gemm", [_random(1, 3), _random(3, 4), _random(1, 4)], opset=13)
    with pytest.raises(DimensionError):
        run(graph, [_random(1, 3), _random(3, 4), _random(2, 4)])


# ---------------------------------------------------------------- Einsum

EQUATIONS = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("ij,kj->ki", [(2, 3), (4, 3)]),
    ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
    ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
    ("bqhd,bkhd->bhqk", [(2, 4, 3, 5), (2, 6, 3, 5)]),
    ("bhqk,bkhd->bqhd", [(2, 3, 4, 6), (2, 6, 3, 5)]),
    ("...ij,...jk->...ik", [(2, 6, 3, 4), (6, 4, 5)]),
    ("...ij,...jk", [(2, 1, 3, 4), (6, 4, 5)]),
    ("i...,i...->...", [(3, 2, 4), (3, 1, 4)]),
    ("...,...->...", [(2, 3), (3,)]),
    ("...i->...", [(2, 3, 4)]),
    ("ii->i", [(4, 4)]),
    ("ii", [(4, 4)]),
    ("iji->j", [(3, 4, 3)]),
    ("...ii->...i", [(2, 3, 3)]),
    ("iij,jii->ij", [(3, 3, 4), (4, 3, 3)]),
    ("iii->i", [(3, 3, 3)]),
    ("ij->ji", [(2, 3)]),
    ("ba", [(2, 3)]),
    ("ij->", [(2, 3)]),
    ("i,j->ij", [(2,), (3,)]),
    ("i,i->", [(4,), (4,)]),
    ("i,i->i", [(4,), (4,)]),
    ("ij,j,jk->ik", [(2, 3), (3,), (3, 4)]),
    ("a,b,c->cab", [(2,), (3,), (4,)]),
    ("ab,bc,cd,da->", [(2, 3), (3, 4), (4, 5), (5, 2)]),
    ("ij,k->ij", [(2, 3), (4,)]),
    (",ij->ji", [(), (2, 3)]),
    (" b i d , b j d -> b i j ", [(2, 3, 4), (2, 5, 4)]),
    ("Ab,bA->A", [(2, 3), (3, 2)]),
    ("bsk,nk->bsn", [(2, 3, 4), (5, 4)]),
]


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS, ids=[e for e, _ in EQUATIONS])
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    operands = [_random(*shape, seed=i) for i, shape in enumerate(shapes)]
    for symbolic in (True, False):
        check_node(
            "Einsum", operands, {"equation": equation}, 12, symbolic=symbolic,
            expected=[np.asarray(np.einsum(equation, *operands))], length=32,
        )  # fmt: skip


def test_einsum_of_empty_and_single_sizes() -> None:
    graph = fission("Einsum", [_random(2, 2), _random(2, 3)], {"equation": "ii,ij->j"}, opset=12)
    for shapes in [((0, 0), (0, 3)), ((1, 1), (1, 0)), ((3, 3), (3, 2))]:
        x, y = _random(*shapes[0]), _random(*shapes[1], seed=1)
        compare(run(graph, [x, y])[0], np.einsum("ii,ij->j", x, y), length=4)


def test_einsum_repeats_a_known_one() -> None:
    graph = _build("Einsum", [["B", 1, 4], ["B", 3, 4]], equation="bij,bij->bi")
    x, y = _random(2, 1, 4), _random(2, 3, 4, seed=1)
    compare(run(graph, [x, y])[0], np.einsum("bij,bij->bi", x, y), length=4)
    assert not any(isinstance(n.primitive, Transpose) for n in graph.nodes())


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3)]),
        ("ijk->i", [(2, 3)]),
        ("i->i", [(2, 3)]),
        ("i->ij", [(2,)]),
    ],
)
def test_einsum_refuses_what_does_not_fit(equation: str, shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(InvalidModelError):
        fission("Einsum", [_random(*s) for s in shapes], {"equation": equation}, opset=12)


# ---------------------------------------------------------------- quantised products


def _bytes(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Array:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("rows", [None, (), (1,), (3,), (2, 3, 1)])
@pytest.mark.parametrize("columns", [None, (), (1,), (5,), (2, 1, 5)])
def test_matmul_integer(rows: tuple[int, ...] | None, columns: tuple[int, ...] | None) -> None:
    x, y = _bytes((2, 3, 4), np.uint8), _bytes((2, 4, 5), np.int8, 1)
    p = None if rows is None else _bytes(rows, np.uint8, 2)
    q = None if columns is None else _bytes(columns, np.int8, 3)
    row = 0 if p is None else (p[:, None] if p.ndim == 1 else p).astype(np.int32)
    column = 0 if q is None else q.astype(np.int32)
    expected = np.matmul(x.astype(np.int32) - row, y.astype(np.int32) - column)
    check_node("MatMulInteger", [x, y, p, q], {}, 10, expected=[expected])


def _requantised(exact: Array, scale: Array, zero: Array) -> Array:
    info = np.iinfo(zero.dtype)
    scaled = np.rint((exact.astype(np.float32) * scale).astype(np.float32)) + zero.astype(
        np.float32
    )
    return np.clip(scaled, info.min, info.max).astype(zero.dtype)


@pytest.mark.parametrize("per_axis", [False, True])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_qlinear_matmul(dtype: Any, per_axis: bool) -> None:
    x, y = _bytes((3, 64), dtype), _bytes((64, 5), dtype, 1)
    p, q = (_bytes((3,), dtype, 2), _bytes((5,), dtype, 3)) if per_axis else (
        dtype(3), dtype(7))  # fmt: skip
    generator = np.random.default_rng(4)
    s, t = (generator.uniform(0.01, 0.02, n).astype(np.float32) for n in ((3,), (5,)))
    if not per_axis:
        s, t = s[0], t[0]
    zero, step = dtype(5), np.float32(0.7)
    row, rows = (p[:, None], s[:, None]) if per_axis else (p, s)
    exact = (x.astype(np.int32) - np.int32(row)) @ (y.astype(np.int32) - np.int32(q))
    expected = _requantised(exact, (rows * t) / step, zero)
    operands = [x, s, p, y, t, q, step, zero]
    check_node("QLinearMatMul", [np.asarray(v) for v in operands], {}, 10, expected=[expected])
