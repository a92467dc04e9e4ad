"""Loops that look up elements at positions read from data, which are checked piece by piece.

A loop with a way out is not vectorised, and a step that compares its position with the bounds and
counts it from the end if it is negative takes twice as long as one that only looks up. So the
positions of a piece of the loop are read first, by vectors, for their greatest as unsigned numbers:
one comparison tells whether all of them lie inside. The piece then looks up without questions.
A piece with a negative position, or one outside, is done as usual, one iteration after the other,
which reports what is wrong at the place where it is. Start with :func:`checked_loop`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from llvmlite import ir

from tilewright.backend.cpu.cover import stepping
from tilewright.backend.cpu.indices import word
from tilewright.backend.cpu.vectors import Scalars
from tilewright.ir.dtype import DType
from tilewright.ir.tile import Accumulator, Convert, Let, LetIndex, Load, Loop, Statement, Store
from tilewright.ir.tile_walk import (
    is_beside,
    looks_up_bytes,
    value_buffers,
    value_parts,
    value_symbols,
)
from tilewright.shape import symbol

PIECE = 1024  # positions: what is read of them for the check is in the first cache afterwards
LEAST_CHECKED = 18  # positions: for fewer, the vectors take longer than they save


@dataclass(frozen=True)
class CheckedLoop:
    """A loop, one that finds the greatest of its ``positions``, and one that trusts them."""

    loop: Loop
    positions: tuple[LetIndex, ...]
    asking: Loop
    trusting: Loop


def only_looks_up(loop: Loop) -> bool:
    """Whether a loop stores elements as it reads them at positions that it trusts."""
    stores = [s for s in loop.body if isinstance(s, Store)]
    trusted = [s for s in loop.body if isinstance(s, LetIndex) and s.check is None]
    return (
        len(stores) + len(trusted) == len(loop.body)
        and any(loop.variable in value_symbols(s.value, {}) for s in trusted)
        and all(isinstance(s.value, Load) for s in stores)
    )


def changes_positions(loop: Loop) -> bool:
    """Whether a loop stores at positions that are read in each turn."""
    read = {
        s.name
        for s in loop.body
        if isinstance(s, LetIndex) and loop.variable in value_symbols(s.value, {})
    }
    return any(isinstance(s, Store) and read & set(s.offset.free_symbols) for s in loop.body)


def is_by_elements(loop: Loop) -> bool:
    """Whether vectors of a loop would look up or change one lane after the other all the same."""
    return only_looks_up(loop) or changes_positions(loop) or looks_up_bytes(loop)


def checked_loop(loop: Loop) -> CheckedLoop | None:
    """How to check the positions of a loop beforehand, if they are read side by side."""
    if loop.accumulators or not all(isinstance(s, Let | LetIndex | Store) for s in loop.body):
        return None
    positions = tuple(s for s in loop.body if isinstance(s, LetIndex) and s.check is not None)
    stores = [s for s in loop.body if isinstance(s, Store)]
    if not positions or not all(_is_read(s, loop.variable) for s in positions):
        return None
    read = {buffer for s in positions for buffer in value_buffers(s.value)}
    changing = {s.name for s in loop.body if isinstance(s, Let | LetIndex)}
    limits = {name for s in positions for name in s.limit.free_symbols}
    places = {name for s in positions for name in value_symbols(s.value, {})}
    if (
        changing & places
        or {loop.variable, *changing} & limits
        or read & {s.buffer for s in stores}
    ):
        return None
    greatest = [Accumulator(s.name, "maximum", Convert(s.value, DType.UINT64)) for s in positions]
    begin, end = (symbol(f"{loop.variable}_{edge}") for edge in ("begin", "end"))
    return CheckedLoop(
        loop,
        positions,
        Loop(loop.variable, begin, end, (), tuple(greatest), masked=True),
        replace(
            loop, body=tuple(replace(s, check=None) if s in positions else s for s in loop.body)
        ),
    )


def _is_read(statement: LetIndex, variable: str) -> bool:
    """Whether a position is an element of memory, read where its neighbours lie beside it."""
    light = all(isinstance(part, Load | Convert) for part in value_parts(statement.value))
    return light and is_beside(statement.value, variable)


def write_checked_loop(
    frame: LoopFrame, checked: CheckedLoop, bounds: tuple[ir.Value, ir.Value]
) -> None:
    """The loop within ``bounds``."""
    builder, (begin, end) = frame.builder, bounds
    few = builder.icmp_signed("<", builder.sub(end, begin), word(LEAST_CHECKED))
    with builder.if_else(few) as (at_once, in_pieces):
        with at_once:
            frame.usual(checked.loop, begin, end)
        with in_pieces:
            stepping(
                builder,
                f"{checked.loop.variable}.piece",
                (begin, end),
                partial(_piece, frame, checked, end),
            )


def _piece(frame: LoopFrame, checked: CheckedLoop, end: ir.Value, first: ir.Value) -> ir.Value:
    """The iterations from ``first`` on, ``PIECE`` of them or up to ``end``."""
    builder = frame.builder
    following = builder.add(first, word(PIECE))
    last = builder.select(builder.icmp_signed("<", following, end), following, end)
    with builder.if_else(_is_outside(frame, checked, (first, last))) as (one_by_one, trusting):
        with one_by_one:
            frame.usual(checked.loop, first, last)
        with trusting:
            frame.usual(checked.trusting, first, last)
    return word(PIECE)


def _is_outside(
    frame: LoopFrame, checked: CheckedLoop, bounds: tuple[ir.Value, ir.Value]
) -> ir.Value:
    """Whether a position within ``bounds`` is negative or not below its limit."""
    asking, builder = checked.asking, frame.builder
    frame.enter()
    for edge, value in zip((asking.begin, asking.end), bounds, strict=True):
        frame.names[str(edge)] = value
    frame.statements([asking])
    found: ir.Value = ir.Constant(ir.IntType(1), 0)
    for statement in checked.positions:
        limit, greatest = frame.index(statement.limit), frame.locals[statement.name]
        found = builder.or_(found, builder.icmp_unsigned(">=", greatest, limit))
    frame.leave()
    return found


class LoopFrame(Scalars, Protocol):
    """A ``FunctionFrame``."""

    def statements(self, body: Iterable[Statement]) -> None:
        """Write statements in order."""
        ...

    def usual(self, loop: Loop, begin: ir.Value, end: ir.Value) -> None:
        """The iterations of a loop that reduces nothing, as they stand."""
        ...
