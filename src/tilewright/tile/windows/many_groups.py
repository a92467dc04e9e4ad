"""Which convolutions register tiles with groups as lanes fit. Start with :func:`channel_tiles`."""

from __future__ import annotations

from math import prod

from tilewright.ir.dtype import DType
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Constant, Convolve
from tilewright.ir.tile import TileProgram
from tilewright.ir.views import is_view
from tilewright.target import Target
from tilewright.tile.nests import finish
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.windows.channel_tiles import ChannelTiles
from tilewright.tile.windows.channel_windows import UNROLLED_TAPS
from tilewright.tile.windows.group_geometry import (
    channels_come_first,
    most_copied,
    tile_geometry,
)
from tilewright.tile.windows.pair_tiles import PairTiles
from tilewright.tile.windows.paired_sums import PairedSums, paired_sums

LEAST_VECTOR = 32  # bytes; with shorter ones there are too few registers for sums and weights


def channel_tiles(kernel: Kernel, lowering: Lowering, target: Target) -> TileProgram | None:
    """The program of a convolution in many groups; None of other kernels, and where none fits."""
    if not _is_fit(kernel, target):
        return None
    sums = paired_sums(kernel)
    if sums is not None and _takes_pairs(kernel, lowering, sums):
        task = PairTiles(kernel, lowering, target, sums)
    elif _takes_layout(kernel, lowering):
        task = ChannelTiles(kernel, lowering, target)
    else:
        return None
    if task.band_bytes > target.levels[2].capacity // 2 or not task.write():
        return None
    body = lowering.opened_statements()
    return finish(lowering, kernel, task.grid, body, task.targets)


def _takes_pairs(kernel: Kernel, lowering: Lowering, sums: PairedSums) -> bool:
    """Whether tiles of words read the bytes as they lie, and leave results so."""
    plain = not any(map(is_view, kernel.outputs))
    primitive = kernel.seed.primitive
    if isinstance(primitive, Convolve) and primitive.channels_last:
        return plain
    return plain and len(kernel.outputs) == 1 and sums.stored in lowering.memory


def _is_fit(kernel: Kernel, target: Target) -> bool:
    """Whether groups fill vectors, by kernel and target alone."""
    seed, primitive = kernel.seed, kernel.seed.primitive
    if not isinstance(primitive, Convolve) or seed.dtype not in (DType.FLOAT32, DType.FLOAT64):
        return False
    weights = seed.inputs[1]
    if not isinstance(weights.primitive, Constant) or weights.primitive.codes is not None:
        return False
    channels, members, *taps = (size.value for size in weights.shape)
    lanes = target.vector_bytes // seed.dtype.bytes
    few = max(members, channels // max(primitive.groups, 1)) < lanes and primitive.groups > 1
    if not few and (channels, members) != (primitive.groups, 1):
        return False
    if len(taps) > 2 or min(channels, members, *taps) < 1:
        return False
    if any(spread != 1 for spread in primitive.spread) or primitive.sums is not None:
        return False
    return target.vector_bytes >= LEAST_VECTOR


def _takes_layout(kernel: Kernel, lowering: Lowering) -> bool:
    """Whether tiles read the data as they lie, and leave results so."""
    seed, primitive = kernel.seed, kernel.seed.primitive
    assert isinstance(primitive, Convolve)
    data, members = seed.inputs[0], seed.inputs[1].shape[1].value
    outputs = [output.dtype for output in kernel.outputs]
    if not primitive.channels_last:
        plain = not any(map(is_view, kernel.outputs))
        return plain and outputs == [seed.dtype] and data in lowering.memory
    views = [output for output in kernel.outputs if is_view(output)]
    if views:
        alone = outputs == [seed.dtype] and channels_come_first(views[0])
        if not alone or is_view(views[0].inputs[0]):
            return False
    return members == 1 or lowering.is_stored(data)


def is_surely_best(kernel: Kernel, target: Target) -> bool:
    """Whether tiles, if there are any, need no comparison with sums in scratch.

    With the channels last, other loops over many taps load and store every sum once for each line
    of taps, beside multiply-adds; tiles copy the operand once, before them, which may take twice as
    long. Channels are whole vectors, or there would be more work.
    """
    seed, primitive = kernel.seed, kernel.seed.primitive
    if not isinstance(primitive, Convolve) or not primitive.channels_last:
        return False
    geometry = tile_geometry(seed)
    channels, lanes = seed.shape[-1], target.vector_bytes // seed.dtype.bytes
    if not channels.is_constant or channels.value != primitive.groups or channels.value % lanes:
        return False
    lines = prod(geometry.kernel[:-1])
    return prod(geometry.kernel) > UNROLLED_TAPS and 2 * most_copied(geometry) <= lines


__all__ = ["channel_tiles", "is_surely_best"]
