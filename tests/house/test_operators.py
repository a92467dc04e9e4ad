"""The table of operators is complete: every record can be used and found in ONNX."""

from __future__ import annotations

import onnx.defs
import pytest

import tilewright.ops
from tilewright.ops.record import OPERATORS

assert tilewright.ops.__all__, "importing the package fills the table"
ROWS = sorted(OPERATORS)


def test_the_table_is_filled() -> None:
    assert len(ROWS) > 100


@pytest.mark.parametrize(("domain", "name"), ROWS)
def test_records_are_complete(domain: str, name: str) -> None:
    rows = OPERATORS[domain, name]
    assert rows
    for row in rows:
        assert (row.domain, row.name) == (domain, name)
        assert callable(row.rule)
        assert row.rule.__doc__ or row.rule.__name__
        assert row.since >= 1
    assert len({row.since for row in rows}) == len(rows), "two rules for one opset"


@pytest.mark.parametrize("name", sorted(name for domain, name in ROWS if domain == ""))
def test_records_are_operators_of_onnx(name: str) -> None:
    assert onnx.defs.has(name), f"ONNX defines no {name}"
