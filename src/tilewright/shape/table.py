"""The operations of expressions, and the table of the rules that simplify them.

A rule is a named function with its formula and its precondition beside it; `structural.py` and
`scoped.py` fill the two tables, and the tests prove every entry. Imports nothing of the package at
run time. Start reading at :class:`Operation`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.shape.expr import Expr
    from tilewright.shape.facts import Prover

    StructuralFunction = Callable[["Operation", tuple[Expr, ...]], Expr | None]
    ScopedFunction = Callable[["Operation", tuple[Expr, ...], Prover], Expr | None]


class Operation(IntEnum):
    """What an atom does. The values are the op words of the native byte-code (`encode.py`).

    ADD is no atom: it stands for a whole sum in the table of scoped rules.
    """

    SYMBOL = 1
    ADD = 2
    FLOORDIV = 5
    MOD = 6
    MINIMUM = 7
    MAXIMUM = 8
    EQUAL = 9
    LESS_EQUAL = 11
    SELECT = 12
    CEILDIV = 13
    AND = 14
    OR = 15
    NOT = 16


COMPARISONS = (Operation.EQUAL, Operation.LESS_EQUAL)
BOOLEANS = (*COMPARISONS, Operation.AND, Operation.OR, Operation.NOT)


@dataclass(frozen=True)
class StructuralRule:
    """A rule that needs no facts: `apply` takes the application and returns its equal, or None."""

    name: str
    formula: str
    precondition: str
    apply: StructuralFunction


@dataclass(frozen=True)
class ScopedRule:
    """A rule whose precondition has to be proved from facts; `apply` returns None where not."""

    name: str
    formula: str
    precondition: str
    apply: ScopedFunction


STRUCTURAL_RULES: dict[Operation, list[StructuralRule]] = {op: [] for op in Operation}
SCOPED_RULES: dict[Operation, list[ScopedRule]] = {op: [] for op in Operation}


def structural_rule(
    *operations: Operation, formula: str, precondition: str = "none"
) -> Callable[[StructuralFunction], StructuralFunction]:
    """Enter the decorated function in the structural table of each operation."""

    def enter(
        function: StructuralFunction,
    ) -> StructuralFunction:
        rule = StructuralRule(function.__name__, formula, precondition, function)
        for operation in operations:
            STRUCTURAL_RULES[operation].append(rule)
        return function

    return enter


def scoped_rule(
    *operations: Operation, formula: str, precondition: str
) -> Callable[
    [ScopedFunction],
    ScopedFunction,
]:
    """Enter the decorated function in the scoped table of each operation."""

    def enter(
        function: ScopedFunction,
    ) -> ScopedFunction:
        rule = ScopedRule(function.__name__, formula, precondition, function)
        for operation in operations:
            SCOPED_RULES[operation].append(rule)
        return function

    return enter
