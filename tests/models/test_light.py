"""The light models of the onnx package: real topologies of old opsets, with fixed shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from support.conformance_suite import Case, check_outputs, input_names, light_cases
from tilewright.compile import compile_model

pytestmark = pytest.mark.slow
CASES = list(light_cases())


def test_all_are_found() -> None:
    assert len(CASES) >= 8


def cases() -> Iterator[Any]:
    """A sample of every third, without the two whose kernels take longest to compile."""
    for number, case in enumerate(CASES):
        is_left_out = number % 3 or any(name in case.name for name in ("densenet", "inception"))
        marks = pytest.mark.combination if is_left_out else ()
        yield pytest.param(case, id=case.name, marks=marks)


@pytest.mark.parametrize("case", list(cases()))
def test_a_light_model(case: Case) -> None:
    model = compile_model(case.model)
    assert model.stats().opaque_operators == {}
    names = input_names(case.model)
    for given, expected in case.data_sets:
        outputs = model.run(dict(zip(names, given, strict=True)))
        check_outputs(case, expected, list(outputs.values()))
        assert all(np.isfinite(array).all() for array in outputs.values())
