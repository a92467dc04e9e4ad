"""The table of operators is complete: every record can be used and found in ONNX."""

from __future__ import annotations

import onnx.defs

import tilewright.ops
from tilewright.ops.record import OPERATORS

assert tilewright.ops.__all__, "importing the package fills the table"
ROWS = sorted(OPERATORS)


def test_the_table_is_filled() -> None:
    assert len(ROWS) > 100


def test_records_are_complete() -> None:
    for (domain, name), rows in OPERATORS.items():
        assert rows, name
        for row in rows:
            assert (row.domain, row.name) == (domain, name)
            assert callable(row.rule), name
            assert row.rule.__doc__ or row.rule.__name__, name
            assert row.since >= 1, name
        assert len({row.since for row in rows}) == len(rows), f"two rules for one opset: {name}"


def test_records_are_operators_of_onnx() -> None:
    unknown = [name for domain, name in ROWS if domain == "" and not onnx.defs.has(name)]
    assert unknown == []
