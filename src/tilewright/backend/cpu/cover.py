"""Covering the rows of a block with register tiles, and loops by steps that vary.

Start with :func:`heights`.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from tilewright.backend.cpu.indices import word


def heights(builder: ir.IRBuilder, rows: ir.Value, most: int) -> tuple[ir.Value, ir.Value]:
    """The smaller of two neighbouring heights that cover the rows, and how many are taller."""
    tiles = builder.udiv(builder.add(rows, word(most - 1)), word(most))
    safe = builder.select(builder.icmp_signed("==", tiles, word(0)), word(1), tiles)
    return builder.udiv(rows, safe), builder.urem(rows, safe)


def by_height(
    builder: ir.IRBuilder, height: ir.Value, most: int, call: Callable[[int], None]
) -> None:
    """The code of ``call`` for every height from 1 to ``most``, and a jump to the right one."""
    done = builder.function.append_basic_block("stored")
    switch = builder.switch(height, done)
    for rows in range(1, most + 1):
        block = builder.function.append_basic_block(f"height{rows}")
        switch.add_case(word(rows), block)
        builder.position_at_end(block)
        call(rows)
        builder.branch(done)
    builder.position_at_end(done)


def by_vectors(
    builder: ir.IRBuilder,
    columns: ir.Value,
    lanes: int,
    most: int,
    write: Callable[[int], None],
    least: int = 1,
) -> None:
    """The code of ``write`` for the fewest vectors from ``least`` to ``most`` that hold columns."""
    if least == most:
        write(most)
        return
    enough = builder.icmp_signed("<=", columns, word(least * lanes))
    with builder.if_else(enough) as (narrow, wide):
        with narrow:
            write(least)
        with wide:
            by_vectors(builder, columns, lanes, most, write, least + 1)


def stepping(
    builder: ir.IRBuilder,
    name: str,
    bounds: tuple[ir.Value, ir.Value],
    body: Callable[[ir.Value], ir.Value],
    always: bool = False,
) -> None:
    """``body`` at positions from begin to end; it says how far the next one is from this one.

    With ``always`` it runs once at least.
    """
    begin, end = bounds
    block = builder.function.append_basic_block(name)
    done = builder.function.append_basic_block(f"{name}.done")
    before = builder.block
    if always:
        builder.branch(block)
    else:
        builder.cbranch(builder.icmp_signed("<", begin, end), block, done)
    builder.position_at_end(block)
    position = builder.phi(word(0).type)
    position.add_incoming(begin, before)
    following = builder.add(position, body(position))
    position.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, end), block, done)
    builder.position_at_end(done)
