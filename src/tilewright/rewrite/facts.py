"""What a rule is, and what it may know besides the node it looks at.

A rule must be pure and must keep the element type and the shape of its node; the driver checks
that. May import ``shape`` and ``ir``. Start with :class:`Rule`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.ir.graph import Node
from tilewright.ir.primitives import Map, Primitive
from tilewright.shape import Expr, Scope, Truth


class Facts:
    """The scope of the graph, and how often its nodes are used."""

    def __init__(self, scope: Scope, uses: Mapping[Node, int]) -> None:
        """``uses`` counts the readers of every node of the graph that is being rebuilt."""
        self.scope = scope
        self._uses = uses
        self._indexed = scope.copy()
        self._positions: dict[tuple[int, Expr], Expr] = {}

    def used_once(self, node: Node) -> bool:
        """Whether ``node`` is known to have one reader; one made by a rule is not."""
        return self._uses.get(node) == 1

    def position(self, axis: int, size: Expr) -> Expr:
        """A symbol for the position along an axis: 0 ≤ position < ``size``, which is not 0."""
        key = (axis, size)
        if key not in self._positions:
            self._positions[key] = self._indexed.fresh(f"position_{axis}", 0, size - 1)
        return self._positions[key]

    @property
    def indexed(self) -> Scope:
        """The scope in which positions are declared too."""
        return self._indexed

    def is_less(self, a: Expr, b: Expr) -> bool:
        """Whether a < b is proved."""
        return self.scope.is_less(a, b) is Truth.YES

    def is_less_equal(self, a: Expr, b: Expr) -> bool:
        """Whether a ≤ b is proved."""
        return self.scope.is_less_equal(a, b) is Truth.YES

    def same(self, a: Expr, b: Expr) -> bool:
        """Whether a = b is proved."""
        return a is b or self.scope.is_equal(a, b) is Truth.YES


Rewrite = Callable[[Node, Facts], Node | None]


@dataclass(frozen=True)
class Rule:
    """A rewrite for nodes of these primitives; of a Map with these functions, if any is named."""

    primitives: tuple[type[Primitive], ...]
    rewrite: Rewrite
    functions: tuple[str, ...] = ()

    def is_for(self, primitive: Primitive) -> bool:
        """Whether the rule may apply to a node of ``primitive``; it is called for no other."""
        named = not self.functions or (
            isinstance(primitive, Map) and primitive.function in self.functions
        )
        return named and isinstance(primitive, self.primitives)

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.rewrite.__name__

    @property
    def formula(self) -> str:
        """Before → after, and when."""
        return self.rewrite.__doc__ or ""
