"""A shortened soak: see `scripts/soak.py`, which also looks at times."""

from __future__ import annotations

import pytest
from soak import GROWTH, MODEL, WARM_CALLS, soak_in_new_process


@pytest.mark.slow
def test_many_random_shapes() -> None:
    if not MODEL.exists():
        pytest.skip("needs models/bert-2l.onnx: python scripts/export_models.py bert-2l")
    found = soak_in_new_process(MODEL, WARM_CALLS + 150)
    assert found.calls == WARM_CALLS + 150
    assert found.shapes > 150
    assert found.compilers == []
    assert found.growth <= GROWTH
    assert found.same_bits
