"""Random expressions as trees of plain tuples, which are built and, separately, evaluated.

A tree is an int, a symbol's name, or (operation, tree, …). The reference evaluates trees with
Python's integers only, so that it shares nothing with the code under test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

from tilewright.shape import (
    Expr,
    as_expr,
    ceil_div,
    equal,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    select,
    symbol,
)

Tree = Any
SYMBOLS = ("a", "b", "c", "d")

# name -> (builder of expressions, reference on integers, number of operands)
OPERATIONS: dict[str, tuple[Callable[..., Expr], Callable[..., int], int]] = {
    "+": (lambda x, y: x + y, lambda x, y: x + y, 2),
    "-": (lambda x, y: x - y, lambda x, y: x - y, 2),
    "*": (lambda x, y: x * y, lambda x, y: x * y, 2),
    "neg": (lambda x: -x, lambda x: -x, 1),
    "//": (lambda x, y: x // y, lambda x, y: x // y, 2),
    "%": (lambda x, y: x % y, lambda x, y: x % y, 2),
    "ceil_div": (ceil_div, lambda x, y: -((-x) // y), 2),
    "min": (minimum, min, 3),
    "max": (maximum, max, 2),
    "==": (equal, lambda x, y: int(x == y), 2),
    "<": (less, lambda x, y: int(x < y), 2),
    "<=": (less_equal, lambda x, y: int(x <= y), 2),
    "and": (logical_and, lambda x, y: int(bool(x) and bool(y)), 2),
    "or": (logical_or, lambda x, y, z: int(bool(x) or bool(y) or bool(z)), 3),
    "not": (logical_not, lambda x: int(not x), 1),
    "select": (select, lambda c, x, y: x if c else y, 3),
}
# How often each is drawn: arithmetic and division are where most rules are.
_WEIGHTS = ["+"] * 5 + ["-"] * 3 + ["*"] * 4 + ["//"] * 4 + ["%"] * 4 + list(OPERATIONS)

leaves = st.one_of(st.sampled_from(SYMBOLS), st.sampled_from(SYMBOLS), st.integers(-6, 12))


def _grow(children: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    def node(name: str) -> st.SearchStrategy[Tree]:
        return st.tuples(st.just(name), *([children] * OPERATIONS[name][2]))

    return st.sampled_from(_WEIGHTS).flatmap(node)


trees = st.recursive(leaves, _grow, max_leaves=10)
environments = st.fixed_dictionaries({name: st.integers(-7, 9) for name in SYMBOLS})


def build(tree: Tree) -> Expr:
    """The tree as an expression."""
    if isinstance(tree, str):
        return symbol(tree)
    if isinstance(tree, int):
        return as_expr(tree)
    return OPERATIONS[tree[0]][0](*(build(child) for child in tree[1:]))


def reference(tree: Tree, environment: Mapping[str, int]) -> int:
    """The value of the tree; ZeroDivisionError where any part of it divides by zero."""
    if isinstance(tree, str):
        return environment[tree]
    if isinstance(tree, int):
        return tree
    return OPERATIONS[tree[0]][1](*(reference(child, environment) for child in tree[1:]))
