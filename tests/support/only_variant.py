"""Kernels of a kind with one of their variants alone: :func:`only_variant`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright.cost import Machine
from tilewright.ir.kernel import Kernel
from tilewright.tile import lower
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import Variant


def only_variant(monkeypatch: pytest.MonkeyPatch, lowering: str, name: str) -> None:
    """Let what ``tile/lower.py`` calls ``lowering`` give the variant of this name only."""
    lowered = getattr(lower, lowering)

    def chosen(
        kernel: Kernel, fresh: Callable[[], Lowering], machine: Machine
    ) -> tuple[Variant, ...]:
        found = {variant.name: variant for variant in lowered(kernel, fresh, machine)}
        return (found[name],)

    monkeypatch.setattr(lower, lowering, chosen)
