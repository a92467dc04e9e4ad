"""The table of operators is complete: every record can be used and found in ONNX."""

from __future__ import annotations

import onnx.defs

import tilewright.ops
from tilewright.frontend.onnx.legacy import OLDEST_RULES
from tilewright.ops.contributed import ADDED
from tilewright.ops.record import OPERATORS, find_operator

assert tilewright.ops.__all__, "importing the package fills the table"
ROWS = sorted(OPERATORS)
NEWEST = onnx.defs.onnx_opset_version()


def test_the_table_is_filled() -> None:
    assert len(ROWS) > 100


def test_records_are_complete() -> None:
    for (domain, name), rows in OPERATORS.items():
        assert rows, name
        for row in rows:
            assert (row.domain, row.name) == (domain, name)
            assert callable(row.rule), name
            assert row.since >= 1, name
        assert len({row.since for row in rows}) == len(rows), f"two rules for one opset: {name}"


def test_records_are_operators_of_onnx() -> None:
    unknown = [name for domain, name in ROWS if domain == "" and not onnx.defs.has(name)]
    assert set(unknown) <= set(ADDED)


def test_every_rule_can_be_reached() -> None:
    """Operators of older opsets are rewritten before a rule is chosen."""
    for (domain, name), rows in OPERATORS.items():
        first = OLDEST_RULES if domain == "" else 1
        chosen = {find_operator(domain, name, opset) for opset in range(first, NEWEST + 1)}
        unreachable = [row.rule.__name__ for row in rows if row not in chosen]
        assert unreachable == [], name


def test_rules_of_one_operator_say_what_they_do() -> None:
    """Where the name of the operator does not tell two rules apart, their sentences do."""
    for (_, name), rows in OPERATORS.items():
        sentences = [row.rule.__doc__ for row in rows]
        assert len(rows) == 1 or (all(sentences) and len({*sentences}) == len(rows)), name
