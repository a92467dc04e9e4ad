"""Loops along rows in memory ask for the lines that they will need, where the core gains by it.

Hardware follows a row, but not every core goes on where the next page begins: there each row starts
with some loads that wait for memory. Whether asking ahead helps, and how far, is measured with the
core (``LoopCosts.ahead``); cores that follow on their own lose by it, since every line takes one
more instruction. Start with :func:`with_lookahead`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilewright.ir.tile import Loop, Stage, Statement, TileProgram
from tilewright.tile.variants import Variant


def with_lookahead(variants: Iterable[Variant], ahead: int) -> tuple[Variant, ...]:
    """The variants with ``ahead`` bytes in every loop along rows; 0 leaves them as they are."""
    if not ahead:
        return tuple(variants)
    return tuple(
        replace(
            variant,
            steps=tuple(
                replace(step, program=_asking(step.program, ahead)) for step in variant.steps
            ),
        )
        for variant in variants
    )


def _asking(program: TileProgram, ahead: int) -> TileProgram:
    return replace(program, body=_statements(program.body, ahead))


def _statements(body: tuple[Statement, ...], ahead: int) -> tuple[Statement, ...]:
    return tuple(_statement(part, ahead) for part in body)


def _statement(statement: Statement, ahead: int) -> Statement:
    match statement:
        case Loop(body=body):
            if any(isinstance(part, Loop | Stage) for part in body):
                return replace(statement, body=_statements(body, ahead))
            return replace(statement, ahead=ahead) if statement.masked else statement
        case Stage(load=load, body=body, store=store):
            parts = {"load": load, "body": body, "store": store}
            return replace(statement, **{n: _statements(b, ahead) for n, b in parts.items()})
        case _:
            return statement


__all__ = ["with_lookahead"]
