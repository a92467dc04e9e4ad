"""Covering the rows of a block with register tiles, and loops: by steps that vary, and with values.

Start with :func:`heights`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from tilewright.backend.cpu.indices import I64, word

Sums = list[ir.Value]


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


def carrying(
    builder: ir.IRBuilder,
    name: str,
    bounds: tuple[ir.Value, ir.Value, ir.Value],
    start: Sequence[Sums],
    body: Callable[[ir.Value, list[Sums]], list[Sums]],
) -> list[Sums]:
    """``body`` at positions from begin to end by a step; each turn goes on from what the last made.

    The first one goes on from ``start``, which is what is left where there is none.
    """
    begin, end, step = bounds
    block = builder.function.append_basic_block(name)
    done = builder.function.append_basic_block(f"{name}.done")
    before = builder.block
    builder.cbranch(builder.icmp_signed("<", begin, end), block, done)
    builder.position_at_end(block)
    position = builder.phi(I64)
    position.add_incoming(begin, before)
    phis = [[builder.phi(value.type) for value in group] for group in start]
    made = body(position, [Sums(group) for group in phis])
    following = builder.add(position, step, flags=("nsw",))
    latch = builder.block
    position.add_incoming(following, latch)
    builder.cbranch(builder.icmp_signed("<", following, end), block, done)
    builder.position_at_end(done)
    results: list[Sums] = []
    for old, new, group in zip(start, made, phis, strict=True):
        results.append([])
        for first, last, phi in zip(old, new, group, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(last, latch)
            result = builder.phi(first.type)
            result.add_incoming(first, before)
            result.add_incoming(last, latch)
            results[-1].append(result)
    return results
