"""The time of a product of few rows by weights of few bits. Start with :func:`few_rows_time`."""

from __future__ import annotations

from tilewright.cost.machine import Machine, workers_for
from tilewright.ir.codes import WORD
from tilewright.shape import Expr, ceil_div, maximum

ROWS_AT_A_TIME = 4  # that share what is taken apart


def few_rows_time(
    sizes: tuple[Expr, Expr, Expr], bits: int, machine: Machine, threads: Expr | int
) -> Expr:
    """Picoseconds of a product of so many rows, columns and depth, read from words of codes.

    Taking numbers apart and multiplying them hides behind reading them, or the other way round.
    """
    rows, columns, depth = sizes
    target = machine.target
    lanes = max(1, target.vector_bytes // 4)
    vectors = ceil_div(columns, lanes) * depth
    unpacked = ceil_div(rows, ROWS_AT_A_TIME) * machine.picoseconds(machine.core.moves.code_vector)
    computed = vectors * (unpacked + rows * machine.picoseconds(1 / target.fma_pipes))
    words = columns * depth * bits // WORD
    read = words // 64 * machine.reading(words, 4, 1)
    return maximum(computed // workers_for(computed, threads), read)


__all__ = ["few_rows_time"]
