"""Several operators in a row, as an exporter writes them: rules applied on one set of facts.

A :class:`Composition` is to the importer what ``operator_harness.fission`` is to one node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import tilewright.ops  # noqa: F401  (registers the rules)
from support.operator_harness import Array, run
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Constant, Input
from tilewright.ops.record import ImportFacts, RuleContext, apply_rule, find_operator
from tilewright.shape import Expr, Scope, as_expr

OPSET = 24


class Composition:
    """Builds a graph operator by operator; symbols are declared in ``scope``."""

    def __init__(self) -> None:
        self.scope = Scope()
        self.facts = ImportFacts(self.scope)
        self.inputs: list[Node] = []

    def input(self, dtype: DType, *sizes: Expr | int) -> Node:
        """A graph input x0, x1, … in order."""
        shape = tuple(as_expr(size) for size in sizes)
        made = node(Input(f"x{len(self.inputs)}", dtype, shape))
        self.inputs.append(made)
        return made

    def constant(self, values: Any, dtype: Any = np.int64) -> Node:
        """A constant, int64 unless said otherwise."""
        return node(Constant.of(np.array(values, dtype=dtype)))

    def all(
        self, operator: str, *operands: Node | None, outputs: int = 1, **attributes: Any
    ) -> list[Node]:
        """All outputs of an operator."""
        row = find_operator("", operator, OPSET)
        assert row is not None, operator
        context = RuleContext(
            operator, operands, attributes, outputs, OPSET, f'{operator} "test"', self.facts
        )
        return apply_rule(row, context)

    def __call__(self, operator: str, *operands: Node | None, **attributes: Any) -> Node:
        """The first output of an operator."""
        return self.all(operator, *operands, **attributes)[0]

    def run(self, output: Node, arrays: Sequence[Array]) -> Array:
        """The value of a node, with all types, shapes and guards checked."""
        graph = Graph(
            "composed", tuple(self.inputs), (("y", output),), self.scope,
            tuple(self.facts.bindings), tuple(self.facts.guards),
        )  # fmt: skip
        return run(graph, arrays)[0]
