"""Row kernels that are computed by the variant of one name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright.cost import Machine
from tilewright.ir.kernel import Kernel
from tilewright.tile import lower
from tilewright.tile.rows.rows import lower_rows
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import Variant


def take_variant(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """Row kernels take it where there is one, else "rows"; the names of all that there were."""
    found: list[str] = []

    def chosen(
        kernel: Kernel, fresh: Callable[[], Lowering], machine: Machine
    ) -> tuple[Variant, ...]:
        variants = {variant.name: variant for variant in lower_rows(kernel, fresh, machine)}
        found.extend(variants)
        return (variants.get(name, variants["rows"]),)

    monkeypatch.setattr(lower, "lower_rows", chosen)
    return found


def sizes_of(rows: list[tuple[int, ...]]) -> list[dict[str, int]]:
    """Sizes by the names of the dimensions: a, b, c and d."""
    return [dict(zip("abcd", row, strict=True)) for row in rows]
