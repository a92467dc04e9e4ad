"""Nests of loops as all families write them: axes of the grid, blocks of columns, the program.

The axes of a ``grid`` are the tasks of a program, each with its size; what is lowered inside of
them becomes the body of a task. Start with :func:`grid_axis` and :func:`finish`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.tile import Loop, Statement, TileBuffer, TileProgram
from tilewright.ir.tile_walk import ExpressionMap, expressions
from tilewright.shape import Expr, ceil_div, constant, maximum, minimum
from tilewright.target.core_model import LINE_ELEMENTS
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.work import MOST_COLUMNS, SHARES, estimate

LEAST_COLUMNS = 128  # of a task: long runs of memory


@dataclass(frozen=True)
class Columns:
    """Neighbouring results of one task: the first one, how many, and how many at most."""

    first: Expr
    count: Expr
    most: Expr


def finish(
    lowering: Lowering,
    kernel: Kernel,
    grid: Sequence[tuple[str, Expr]],
    body: Sequence[Statement],
    targets: dict[Node, TileBuffer],
) -> TileProgram:
    """The program of statements already built; results are ordered as the kernel's outputs."""
    results = tuple(targets[o] for o in kernel.outputs)
    reads = tuple(lowering.buffers.values())
    work = estimate(grid, body)
    return TileProgram(
        reads + results,
        len(results),
        tuple(grid),
        tuple(body),
        tuple(lowering.scratch),
        tuple(lowering.checks),
        work,
    )


def target_buffers(kernel: Kernel) -> dict[Node, TileBuffer]:
    """A result buffer for every output."""
    return {o: TileBuffer(f"o{i}", o.dtype) for i, o in enumerate(kernel.outputs)}


def grid_axis(
    lowering: Lowering, grid: list[tuple[str, Expr]], size: Expr, stem: str = "i"
) -> Expr:
    """The place of a task along a new last axis of ``grid``, whose body is open from here on."""
    lowering.open()
    place = lowering.variable(size, stem)
    grid.append((str(place), size))
    return place


def block_number(
    lowering: Lowering,
    grid: list[tuple[str, Expr]],
    blocks: Expr,
    most: Expr | None = None,
    stem: str = "i",
) -> Expr:
    """The number of a task's block, which becomes the last axis of ``grid``.

    There are ``blocks`` of them, and no more than ``most`` anywhere. Where one is known to be all,
    it has no number, and this is 0.
    """
    if lowering.scope.resolve(blocks) is constant(1):
        return constant(0)
    number = lowering.variable(blocks if most is None else most, stem)
    grid.append((str(number), blocks))
    return number


def column_block(width: Expr) -> Expr:
    """Neighbouring columns of one task: long runs of memory whose running values stay in L1."""
    share = ceil_div(ceil_div(width, SHARES), LINE_ELEMENTS) * LINE_ELEMENTS
    most = minimum(maximum(share, LEAST_COLUMNS), MOST_COLUMNS)
    return even_block(width, most)


def even_block(width: Expr, most: int | Expr) -> Expr:
    """Columns of blocks of at most ``most``, whole lines, that share ``width`` out evenly."""
    even = ceil_div(width, maximum(ceil_div(width, most), 1))
    return maximum(ceil_div(even, LINE_ELEMENTS), 1) * LINE_ELEMENTS


def task_columns(
    lowering: Lowering,
    grid: list[tuple[str, Expr]],
    width: Expr,
    stem: str = "i",
    most: Expr | None = None,
) -> Columns:
    """The columns of one task, at most ``most``; its number becomes the last axis of ``grid``."""
    most = column_block(width) if most is None else most
    number = block_number(lowering, grid, ceil_div(width, most), stem=stem)
    if number is constant(0):
        return Columns(number, width, most)
    return Columns(number * most, minimum(most, width - number * most), most)


def filled(
    lowering: Lowering, bounds: tuple[Expr, Expr], extent: Expr, body: Callable[[Expr], None]
) -> Loop:
    """A loop within ``bounds`` and below ``extent``, of what ``body`` emits for its variable."""
    lowering.open()
    variable = lowering.variable(extent)
    body(variable)
    return Loop(str(variable), *bounds, lowering.close())


def collapse(
    lowering: Lowering, variables: list[tuple[str, Expr]], body: Sequence[Statement]
) -> tuple[list[tuple[str, Expr]], tuple[Statement, ...]]:
    """Merge neighbouring loops which every expression walks as one."""
    merged = list(variables)
    statements = tuple(body)
    position = len(merged) - 2
    while position >= 0:
        (outer, outer_size), (inner, inner_size) = merged[position], merged[position + 1]
        if _mergeable(outer, inner, inner_size, statements):
            fused = lowering.variable(outer_size * inner_size)
            mapping = {outer: constant(0), inner: fused}
            statements = ExpressionMap.substitution(mapping).statements(statements)
            merged[position : position + 2] = [(str(fused), outer_size * inner_size)]
        position -= 1
    return merged, statements


def _mergeable(outer: str, inner: str, size: Expr, statements: Sequence[Statement]) -> bool:
    for expression in set(expressions(statements)):
        names = expression.free_symbols
        if outer not in names and inner not in names:
            continue
        affine = expression.affine((outer, inner))
        if affine is None:
            return False
        slopes, _ = affine
        zero = constant(0)
        if slopes.get(outer, zero) is not slopes.get(inner, zero) * size:
            return False
    return True
