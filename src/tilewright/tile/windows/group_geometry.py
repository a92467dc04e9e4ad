"""What register tiles with groups as lanes read and make, in numbers.

Start with :func:`tile_geometry`.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Constant, Convolve, Transpose
from tilewright.ir.tile import TileBuffer, Value
from tilewright.ir.tile_walk import value_loads
from tilewright.shape import Expr
from tilewright.tile.windows.bands import Geometry

TOGETHER = 64  # multiply-adds of one loop body; of more, LLVM moves loads ahead and sums to memory
IN_FLIGHT = 2  # registers for what is read, one of them ahead
OUTPUTS = 8  # of a tile: as many sums are in flight
COLUMNS = 64  # of outputs in a task at most
ROWS = 16  # of outputs in a task at most; as many as windows reach beyond them, if these are more


def tile_geometry(seed: Node) -> Geometry:
    """The window of a Convolve."""
    primitive = seed.primitive
    assert isinstance(primitive, Convolve)
    data, weights = seed.inputs
    kernel = tuple(size.value for size in weights.shape[2:])
    strides, dilations = primitive.strides, primitive.dilations
    return Geometry("sum", kernel, strides, dilations, primitive.low, data, primitive.spatial.start)


def most_rows(geometry: Geometry, lines: int) -> int:
    """Rows of outputs in a task, of at most so many ``lines`` in scratch if they can be fewer.

    What windows reach beyond them is copied twice at most, but where memory is short.
    """
    if len(geometry.kernel) == 1:
        return 1
    most = (lines - geometry.reach(0) - 1) // geometry.strides[0] + 1
    return max(1, min(most, _usual_rows(geometry)))


def most_copied(geometry: Geometry) -> Fraction:
    """Elements of the operand that a large task copies for each output."""
    copied = geometry.span(-1, COLUMNS).value
    if len(geometry.kernel) == 1:
        return Fraction(copied, COLUMNS)
    rows = _usual_rows(geometry)
    return Fraction(copied * geometry.span(0, rows).value, rows * COLUMNS)


def _usual_rows(geometry: Geometry) -> int:
    """Rows of outputs in a task where memory is not short."""
    return max(ROWS, geometry.reach(0))


def made_beside(made: int, taps: int, free: int) -> int:
    """How many of the channels that are made of a group a tile has beside each other.

    Two, if their sums and the weights of some taps fit the registers: what is read is loaded once
    for both.
    """
    fits = 2 * (OUTPUTS + min(taps, 2)) + IN_FLIGHT <= free
    return 2 if fits and made % 2 == 0 else 1


def blocks_of(
    taps: int, outputs: int, apart: tuple[int, int], free: int, beside: int
) -> list[tuple[int, int, int]]:
    """Taps along a row in blocks of which so many ``free`` registers hold the weights.

    That is for some blocks of equal length: the first tap, how many blocks, and their taps. Of a
    row, ``outputs`` and taps lie so many vectors ``apart``.
    """
    stride, dilation = apart
    most = max(1, TOGETHER // (outputs * beside))
    room = max(1, (free - outputs * beside - IN_FLIGHT) // beside)
    if (outputs - 1) * stride // dilation + 1 > room:  # taps that meet outputs at a time
        most = min(most, room)
    blocks = -(-taps // most)
    longer, least = taps % blocks, taps // blocks
    found = [(0, longer, least + 1), (longer * (least + 1), blocks - longer, least)]
    return [block for block in found if block[1]]


def fits_body(
    lines: int, taps: int, outputs: int, apart: tuple[int, int], free: int, beside: int
) -> bool:
    """Whether a loop body has so many lines of taps, between which sums need not be stored.

    Registers have to hold the weights of all taps of a line. See :func:`blocks_of`.
    """
    if lines * taps * outputs * beside > TOGETHER or lines < 2:
        return False
    return len(blocks_of(taps, outputs, apart, free, beside)) == 1


def group_vectors(weights: Node, groups: int, lanes: int) -> Node:
    """Constant weights [channel, member, kernel…] as [block, made, member, kernel…, lane].

    Lanes are groups, those that are missing at the end zeros.
    """
    primitive = weights.primitive
    assert isinstance(primitive, Constant)
    taps = primitive.array
    blocks, made = -(-groups // lanes), taps.shape[0] // groups
    padded = np.zeros((blocks * lanes, made, *taps.shape[1:]), taps.dtype)
    padded[:groups] = taps.reshape(groups, made, *taps.shape[1:])
    split = padded.reshape(blocks, lanes, *padded.shape[1:])
    return node(Constant.of(np.moveaxis(split, 1, -1), weights.dtype))


def channels_come_first(output: Node) -> bool:
    """Whether a result is the transposition of one that has its channels last."""
    last = output.rank - 1
    return output.primitive == Transpose((0, last, *range(1, last)))


def is_free_of(value: Value, pixel: tuple[Expr, Expr], sums: TileBuffer) -> bool:
    """Whether what is read beside the ``sums`` is of the channel alone, whichever the pixel."""
    names = {str(variable) for variable in pixel}
    return all(
        load.buffer is sums or names.isdisjoint(load.offset.free_symbols)
        for load in value_loads(value)
    )
