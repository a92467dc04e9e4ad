"""Choices as machine code: the position of the least cost, for whatever sizes there are."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.backend.cpu.generate import CodeGenerator
from tilewright.backend.cpu.machine import host_level
from tilewright.runtime import _native
from tilewright.shape import Expr, ceil_div, maximum, minimum, select, symbol

M, N = symbol("m"), symbol("n")
COSTS = (
    ceil_div(M, 6) * ceil_div(N, 16) * 100 + 7,
    M * N + select(N % 16, 1, 0),
    maximum(M, N) * 40 // maximum(minimum(M, N), 1),
    M * N + select(N % 16, 1, 0),
)


def chooser(costs: Sequence[Expr]) -> tuple[object, ctypes._CFuncPtr, tuple[str, ...]]:
    """What keeps the code, the function, and the names of its arguments."""
    code = CodeGenerator(host_level())
    name, arguments = code.add_choice(costs)
    assert code.add_choice(costs) == (name, arguments)
    image = code.image()
    mapped = _native.Image(image.data, dict(image.functions), list(image.fixups))
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.POINTER(ctypes.c_int64))
    return mapped, kind(mapped.address(name)), arguments


KEPT, CHOOSE, ARGUMENTS = chooser(COSTS)


def choose(sizes: dict[str, int]) -> int:
    """The choice at given sizes."""
    values = np.array([sizes[name] for name in ARGUMENTS], np.int64)
    return CHOOSE(values.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)))


@settings(deadline=None, max_examples=200)
@given(m=st.integers(0, 5000), n=st.integers(0, 5000))
def test_the_first_of_the_least_is_chosen(m: int, n: int) -> None:
    costs = [cost.evaluate({"m": m, "n": n}) for cost in COSTS]
    assert choose({"m": m, "n": n}) == costs.index(min(costs))


@settings(deadline=None)
@given(m=st.integers(-(2**63), 2**63 - 1), n=st.integers(-(2**63), 2**63 - 1))
def test_costs_that_do_not_fit_make_some_choice(m: int, n: int) -> None:
    assert 0 <= choose({"m": m, "n": n}) < len(COSTS)
