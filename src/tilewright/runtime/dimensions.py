"""Dimensions as a user gives them, by name, to ask what a call at these would do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.runtime.program import Program
from tilewright.shape import completed as with_derived
from tilewright.support.arguments import LARGEST, as_integer, show
from tilewright.support.errors import DimensionError


def completed(program: Program, given: Mapping[str, int]) -> dict[str, int]:
    """``given`` with all dimensions that follow from them.

    The dimension of a ragged batch is the length of every sequence. Raises ``DimensionError`` for
    a size that is none, for a name that the program does not know, and for a missing dimension.
    """
    ragged = program.ragged
    dims = {name: _size(name, size) for name, size in given.items()}
    if ragged is not None and ragged.name in dims:
        length = dims.pop(ragged.name)
        dims.setdefault(ragged.positions, length * dims.get(ragged.batch, 0))
    unknown = [name for name in dims if name not in program.symbols]
    derived = {s.symbol: s.formula for s in program.bindings if s.input_index is None}
    dims = with_derived(derived, dims)
    missing = [source.symbol for source in program.bindings if source.symbol not in dims]
    if unknown or missing:
        problem = (
            f"no dimension is called '{unknown[0]}'"
            if unknown
            else f"dimension '{missing[0]}' is missing"
        )
        own = [s.symbol for s in program.bindings if s.symbol not in derived]
        raise DimensionError(
            f"The dimensions do not fit: {problem}",
            hint=f"Give values for {', '.join(own) or 'none'}",
        )
    return dims


def _size(name: str, size: Any) -> int:
    """A size as an integer, numpy's included."""
    number = as_integer(size)
    if number is None or not 0 <= number <= LARGEST:
        raise DimensionError(
            f"{show(size)} is no size for dimension '{name}'",
            hint="Give a whole number from 0 on",
        )
    return number
