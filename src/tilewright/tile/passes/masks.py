"""Loops over elements whose rests are vectors under a mask.

What is left of a loop after its whole vectors, LLVM computes element by element: up to fifteen
calls of a function, each of which takes as long as a vector. Under a mask they are one. So are
those of what a loop reduces, as the position of an extreme, which are up to 63 where LLVM takes
four vectors at a time. Rows of fewer than half a vector stay as they are: there LLVM makes vectors
across several of them. Start with :func:`with_masks`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilewright.cost.machine import Machine
from tilewright.cost.masks import masks_pay
from tilewright.cost.vector_work import Core
from tilewright.ir.tile import Loop, Stage, Statement
from tilewright.ir.tile_walk import (
    is_innermost,
    is_side_by_side,
    may_fault,
    own_values,
    reduces_side_by_side,
    value_parts,
)
from tilewright.target.core_model import MASKED_VECTOR_BYTES
from tilewright.tile.variants import LoweredStep


def with_masks(steps: Iterable[LoweredStep], machine: Machine) -> tuple[LoweredStep, ...]:
    """The steps of a kernel, with masks in loops of vectors that are shorter by them."""
    if machine.target.vector_bytes < MASKED_VECTOR_BYTES:
        return tuple(steps)
    core = Core(machine.target, machine.core.loops)
    return tuple(
        replace(step, program=replace(step.program, body=_statements(step.program.body, core)))
        for step in steps
    )


def _statements(body: Iterable[Statement], core: Core) -> tuple[Statement, ...]:
    return tuple(_statement(part, core) for part in body)


def _statement(part: Statement, core: Core) -> Statement:
    match part:
        case Loop():
            return _loop(part, core)
        case Stage(load=load, body=body, store=store):
            made = (_statements(each, core) for each in (load, body, store))
            return Stage(part.axes, *made)
        case _:
            return part


def _loop(loop: Loop, core: Core) -> Loop:
    if not is_innermost(loop):
        return replace(loop, body=_statements(loop.body, core))
    return replace(loop, masked=True) if _is_vectors(loop) and masks_pay(core, loop) else loop


def _is_vectors(loop: Loop) -> bool:
    """Whether whole vectors may be computed of a loop, elements beyond its end among them."""
    parts = (part for value in own_values(loop) for part in value_parts(value))
    is_near = is_side_by_side(loop) or reduces_side_by_side(loop)
    return is_near and not loop.independent and not any(map(may_fault, parts))


__all__ = ["with_masks"]
