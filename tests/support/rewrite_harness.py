"""Small graphs for rules, and checks that a rule applies and keeps every value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import evaluate
from tilewright.ir.graph import Graph, Node, node, topological
from tilewright.ir.primitives import Broadcast, Constant, Input, Map
from tilewright.rewrite import RULES, simplify
from tilewright.shape import Expr, Scope, as_expr, constant, symbol

NAMES = ("m", "n", "k")
M, N, K = (symbol(name) for name in NAMES)
HIGH = 64
BY_NAME = {rule.name: rule for rule in RULES}
Build = Callable[[], Node]


def shape(*sizes: int | Expr) -> tuple[Expr, ...]:
    return tuple(as_expr(s) for s in sizes)


def zeros(count: int) -> tuple[Expr, ...]:
    return (constant(0),) * count


def ones(count: int) -> tuple[Expr, ...]:
    return (constant(1),) * count


def tensor(name: str, *sizes: int | Expr, dtype: DType = DType.FLOAT32) -> Node:
    return node(Input(name, dtype, shape(*sizes)))


def value(values: Any, dtype: DType = DType.FLOAT32) -> Node:
    return node(Constant.of(np.asarray(values).astype(dtype.numpy), dtype))


def spread(x: Node, sizes: tuple[Expr, ...], *axes: int) -> Node:
    return node(Broadcast(sizes, axes), x)


def fill(number: Any, like: Node, dtype: DType | None = None) -> Node:
    return spread(value(number, dtype or like.dtype), like.shape)


def apply(function: str, *operands: Node) -> Node:
    return node(Map(function), *operands)


def scope() -> Scope:
    result = Scope()
    for name in NAMES:
        result.declare(name, 0, HIGH)
    return result


def graph_of(root: Node, facts: Scope | None = None) -> Graph:
    nodes = topological([root])
    inputs = tuple(n for n in nodes if isinstance(n.primitive, Input))
    labels = {n: f"made by {i}" for i, n in enumerate(nodes)}
    return Graph("case", inputs, (("out", root),), facts or scope(), labels=labels)


def random_inputs(graph: Graph, sizes: dict[str, int], seed: int = 0) -> dict[str, Any]:
    """Values with zeros of both signs, infinities and NaN among them, and small integers."""
    generator = np.random.default_rng(seed)
    out: dict[str, Any] = {}
    for each in graph.inputs:
        assert isinstance(each.primitive, Input)
        dims = tuple(e.evaluate(sizes) for e in each.shape)
        if each.dtype.is_float:
            drawn = generator.standard_normal(dims)
            special = generator.choice([0.0, -0.0, np.inf, -np.inf, np.nan], dims)
            drawn = np.where(generator.random(dims) < 0.1, special, drawn)
        elif each.dtype is DType.BOOL:
            drawn = generator.random(dims) < 0.5
        else:
            drawn = generator.integers(0, 2, dims)
        out[each.primitive.name] = drawn.astype(each.dtype.numpy)
    return out


def values(graph: Graph, sizes: dict[str, int], seed: int = 0) -> Any:
    return evaluate(graph, random_inputs(graph, sizes, seed), sizes)["out"]


def assert_identical(before: Any, after: Any) -> None:
    """Equal bit by bit, NaN like any other value."""
    assert before.dtype == after.dtype
    assert before.shape == after.shape
    np.testing.assert_array_equal(before, after)
    if before.dtype.kind == "f":
        known = ~np.isnan(before)
        np.testing.assert_array_equal(np.signbit(before[known]), np.signbit(after[known]))


def simplified(root: Node, *names: str, facts: Scope | None = None) -> tuple[Graph, list[str]]:
    """The graph of ``root`` after the named rules (all, if none is named), and those that fired."""
    fired: list[str] = []
    rules = tuple(BY_NAME[name] for name in names) or RULES
    graph = graph_of(root, facts)
    return simplify(graph, trace=lambda name, *_: fired.append(name), rules=rules), fired
