"""Results too large for the caches, written past them.

A store reads its cache line first, unless it is non-temporal: an addition of two arrays then moves
three words for each element, not four. Stored as usual, what of the result stays in the last cache
is read from there by the kernel after it. Of ``T`` bytes that a kernel reads and writes, a cache of
``C`` bytes that replaces lines without regard to their order keeps a share of ``C / T``. Streaming
a result of ``W`` bytes saves reading ``W * (1 - C / T)`` and costs the consumer ``W * C / T``: it
pays from ``T = 2 * C`` on. One loop does both: which of them is a question to the sizes of a call.
Start with :func:`with_streams`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.ir.epilogue import COLUMN
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.stage_axis import NEVER
from tilewright.ir.tile import LINE_BYTES, Loop, Statement, Store, TileProgram
from tilewright.ir.tile_walk import is_side_by_side, slope
from tilewright.shape import (
    Expr,
    Scope,
    constant,
    less,
    less_equal,
    logical_and,
    maximum,
    minimum,
    product,
)
from tilewright.target import Target
from tilewright.tile.products.frame import RegisterTile
from tilewright.tile.variants import LoweredStep

SHORTEST = 1024  # bytes that a loop writes: of less, lines at both ends are too large a part


def with_streams(
    kernel: Kernel, steps: tuple[LoweredStep, ...], scope: Scope, target: Target
) -> tuple[LoweredStep, ...]:
    """The steps of a kernel, the results of the last one streamed where that pays."""
    large = scope.resolve(_exceeds(kernel, streamed_from(target)))
    program = steps[-1].program
    assert isinstance(program, TileProgram)
    body = _statements(program.body, large)
    return (*steps[:-1], replace(steps[-1], program=replace(program, body=body)))


def streamed_from(target: Target) -> int:
    """Bytes that a kernel reads and writes, beyond which it pays to stream its results."""
    return 2 * target.levels[-2].capacity


def products_streamed(
    kernel: Kernel, columns: Expr, stores: Sequence[Store], tile: RegisterTile
) -> Expr:
    """Whether the tiles of a product write their results past the caches; else 0.

    A row of a tile is whole lines then: rows of results, of so many ``columns``, and tiles are.
    """
    sizes = {store.buffer.dtype.bytes for store in stores}
    if any(store.buffer.scratch or slope(store.offset, COLUMN) != 1 for store in stores):
        return NEVER
    if any(tile.columns * size % LINE_BYTES for size in sizes):
        return NEVER
    whole = [less_equal(columns * size % LINE_BYTES, 0) for size in sorted(sizes)]
    return logical_and(_exceeds(kernel, tile.near), *whole)


def _exceeds(kernel: Kernel, capacity: int) -> Expr:
    """Whether more is written and read; of what is read not more than is written."""
    written = sum((_bytes(output) for output in kernel.outputs), constant(0))
    read = sum((minimum(_bytes(node), written) for node in kernel.reads), constant(0))
    return less(capacity, written + read)


def _bytes(node: Node) -> Expr:
    return product(node.shape) * node.dtype.bytes


def _statements(body: tuple[Statement, ...], large: Expr) -> tuple[Statement, ...]:
    return tuple(_loop(part, large) if isinstance(part, Loop) else part for part in body)


def _loop(loop: Loop, large: Expr) -> Loop:
    """Marked, where it writes so much of a large result that whole lines are most of it."""
    if any(isinstance(part, Loop) for part in loop.body):
        return replace(loop, body=_statements(loop.body, large))
    store = _streamable(loop)
    if store is None:
        return loop
    length = loop.end - loop.begin
    zeros = {n: constant(0) for n in length.free_symbols if n.startswith("_")}
    written = maximum(length.substitute(zeros), 0) * store.buffer.dtype.bytes
    return replace(loop, streamed=logical_and(large, less_equal(SHORTEST, written)))


def _streamable(loop: Loop) -> Store | None:
    """The only store of a loop that fills memory of the kernel from values read side by side."""
    if not is_side_by_side(loop):
        return None
    stores = [part for part in loop.body if isinstance(part, Store)]
    return stores[0] if len(stores) == 1 and not stores[0].buffer.scratch else None
