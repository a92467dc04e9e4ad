"""Results that a register tile would have to write element by element, staged in cache instead.

Where the columns of a contraction do not lie side by side in a result but its rows do (channels
first computed with the channels last, or with the roles of the operands exchanged), a task writes
its block to scratch memory and transposes it at the end, through registers. Start with
:func:`staged`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.tile import Load, Loop, Statement, Store, TileBuffer, TransposeBlock
from tilewright.ir.views import unflatten
from tilewright.shape import Expr, Scope, ceil_div, constant, maximum, minimum, product, symbol
from tilewright.target.core_model import spread_elements
from tilewright.tile.moves.transposes import SIZES

Axes = Sequence[tuple[str, Expr]]


@dataclass(frozen=True)
class StagedResult:
    """Scratch for one result, the place of element ("_m", "_n") there, and what empties it."""

    buffer: TileBuffer
    offset: Expr
    after: Statement


def staged(
    result: TileBuffer, offset: Expr, axes: tuple[Axes, Axes], blocks: tuple[Expr, Expr],
    scope: Scope,
) -> StagedResult | None:  # fmt: skip
    """The stage of a result at ``offset`` over row and column ``axes``, or None if it needs none.

    ``blocks`` are the rows and columns of a task.
    """
    if any(size is constant(0) for group in axes for _, size in group):
        return None  # there is no result to move
    rows, columns = ([a for a in group if not _is_one(a[1])] for group in axes)
    if len(columns) != 1 or not rows or result.dtype.bytes not in (1, *SIZES):
        return None
    column = columns[0][0]
    affine = offset.affine([*(name for name, _ in rows), column])
    if affine is None:
        return None
    slopes, base = affine
    across = slopes.get(column, constant(0))
    inner = _contiguous(rows, slopes)
    if _is_one(across) or not inner:
        return None
    m0, m1, n0, n1 = (symbol(name) for name in ("_m0", "_m1", "_n0", "_n1"))
    width = blocks[1] + spread_elements(result.dtype.bytes)
    stage = TileBuffer(f"stage_{result.name}", result.dtype, True, blocks[0] * width)
    base = base + across * n0

    def block(first: Expr, last: Expr, target: Expr) -> TransposeBlock:
        source = (first - m0) * width
        return TransposeBlock(stage, source, width, result, target, across, last - first, n1 - n0)

    outer = rows[: len(rows) - len(inner)]
    after: Statement = block(m0, m1, base + m0)
    if outer:
        run = maximum(product([size for _, size in inner]), 1)
        position = symbol("_run")
        scope.declare("_run", 0)
        target, rest = base, position
        for name, size in reversed(outer):
            here = rest if name == outer[0][0] else rest % size
            target, rest = target + slopes.get(name, constant(0)) * here, rest // maximum(size, 1)
        first, last = maximum(m0, position * run), minimum(m1, (position + 1) * run)
        body = block(first, last, target + first - position * run)
        after = Loop("_run", m0 // run, ceil_div(m1, run), (body,))
    place = (symbol("_m") - m0) * width + symbol("_n") - n0
    return StagedResult(stage, place, after)


def staged_runs(
    result: TileBuffer, offset: Expr, axes: tuple[Axes, Axes], blocks: tuple[Expr, Expr],
    scope: Scope,
) -> StagedResult | None:  # fmt: skip
    """The stage of a result whose columns lie side by side in runs alone, None where all do.

    It is copied run by run. Otherwise it is as :func:`staged`.
    """
    (rows, columns), (m0, m1, n0, n1) = axes, map(symbol, ("_m0", "_m1", "_n0", "_n1"))
    affine = offset.affine([name for group in axes for name, _ in group])
    if affine is None:
        return None
    slopes, base = affine
    inner = _contiguous(columns, slopes)
    outer = columns[: len(columns) - len(inner)]
    if not outer or len(rows) != 1:
        return None
    run = maximum(product([size for _, size in inner]), 1)
    position, row, x = (scope.declare(name, 0) for name in ("_run", "_row", "_x"))
    target = base + slopes.get(rows[0][0], constant(0)) * row - position * run
    for (name, _), at in zip(outer, unflatten(position, outer), strict=True):
        target = target + slopes.get(name, constant(0)) * at
    width = blocks[1] + spread_elements(result.dtype.bytes)
    stage = TileBuffer(f"stage_{result.name}", result.dtype, True, blocks[0] * width)
    copied = Store(result, target + x, Load(stage, (row - m0) * width + x - n0))
    bounds = maximum(n0, position * run), minimum(n1, (position + 1) * run)
    line = Loop("_row", m0, m1, (Loop("_x", *bounds, (copied,)),))
    after = Loop("_run", n0 // run, ceil_div(n1, run), (line,))
    place = (symbol("_m") - m0) * width + symbol("_n") - n0
    return StagedResult(stage, place, after)


def _contiguous(rows: Axes, slopes: dict[str, Expr]) -> list[tuple[str, Expr]]:
    """The last row axes that lie side by side."""
    inner: list[tuple[str, Expr]] = []
    expected = constant(1)
    for name, size in reversed(rows):
        if slopes.get(name, constant(0)) is not expected:
            break
        inner.insert(0, (name, size))
        expected = expected * size
    return inner


def _is_one(size: Expr) -> bool:
    return size.is_constant and size.value == 1
