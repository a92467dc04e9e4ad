"""Numbers at the ends of their types, where a model may give any."""

from __future__ import annotations

import numpy as np
import pytest

from support.text_models import assert_as_reference, floats

LEAST, MOST = -(2**63), 2**63 - 1


@pytest.mark.parametrize("step", [LEAST, -(2**62), 2**62, MOST])
def test_a_step_of_a_slice_may_be_longer_than_any_axis(step: int) -> None:
    start, end = (0, MOST) if step > 0 else (-1, LEAST)
    text = f"""g (float[n, m] x) => (float[n, k] y)
    <int64[1] start = {{{start}}}, int64[1] end = {{{end}}}, int64[1] last = {{-1}},
     int64[1] step = {{{step}}}> {{ y = Slice(x, start, end, last, step) }}"""
    assert_as_reference(text, *({"x": floats(2, m)} for m in (0, 1, 6)))


def test_starts_ends_and_steps_of_run_time_may_be_as_large_as_their_type() -> None:
    text = """g (float[n, m] x, int64[1] start, int64[1] end, int64[1] step) => (float[n, k] y)
    <int64[1] last = {-1}> { y = Slice(x, start, end, last, step) }"""
    cuts = [(0, MOST, MOST), (MOST, LEAST, LEAST), (2**62, -(2**62), -(2**62)), (LEAST, MOST, 2)]
    feeds = [
        {"x": floats(2, m), "start": np.array([a]), "end": np.array([b]), "step": np.array([c])}
        for m in (0, 1, 7)
        for a, b, c in cuts
    ]
    assert_as_reference(text, *feeds)
