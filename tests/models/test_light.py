"""The light models of the onnx package: real topologies of old opsets, with fixed shapes."""

from __future__ import annotations

import numpy as np
import pytest

from support.conformance_suite import Case, check_outputs, input_names, light_cases
from tilewright.compile import compile_model

pytestmark = pytest.mark.slow
CASES = list(light_cases())


def test_all_are_found() -> None:
    assert len(CASES) >= 8


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_a_light_model(case: Case) -> None:
    model = compile_model(case.model)
    assert model.stats().opaque_operators == {}
    names = input_names(case.model)
    for given, expected in case.data_sets:
        outputs = model.run(dict(zip(names, given, strict=True)))
        check_outputs(case, expected, list(outputs.values()))
        assert all(np.isfinite(array).all() for array in outputs.values())
