"""What the transforms of Winograd's convolution go through: tiles of pixels, and their products.

The products of all tiles, or of those of one task, lie product by product: [products^2, tiles,
channels]. Both transforms are separable: down the columns, then along the rows, with scratch
between; the innermost loops run along the channels. Start with :class:`Tiles`, then
:class:`Transform`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Convolve
from tilewright.ir.tile import (
    Load,
    Loop,
    TileBuffer,
    TileProgram,
    Value,
)
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    maximum,
    minimum,
)
from tilewright.target.core_model import LINE_ELEMENTS
from tilewright.tile.convolutions.winograd_transforms import Form, transforms
from tilewright.tile.nests import grid_axis
from tilewright.tile.values.lowering import Lowering

CHANNEL_BLOCK = 128  # channels that a transform goes through at a time at most
PLANE_UNIT = 1024  # elements: planes begin at multiples of it, and …
PLANE_SHIFT = 48  # … this many later each, so that they do not meet in the same cache sets


@dataclass(frozen=True)
class Tiles:
    """How the outputs of ``node`` are cut into tiles; ``rows`` x ``columns`` of them per map.

    ``channels`` and ``outputs`` are those of all ``groups``.
    """

    node: Node
    form: Form
    groups: int
    channels: int
    outputs: int
    rows: Expr
    columns: Expr

    @staticmethod
    def of(node: Node, form: Form) -> Tiles:
        """The tiles of a Convolve."""
        primitive, weights = node.primitive, node.inputs[1]
        assert isinstance(primitive, Convolve)
        rows, columns = (ceil_div(node.shape[axis], form.size) for axis in (1, 2))
        outputs, channels = (extent.value for extent in weights.shape[:2])
        groups = primitive.groups
        return Tiles(node, form, groups, groups * channels, outputs, rows, columns)

    @property
    def depth(self) -> int:
        """Channels that one output sums over."""
        return self.channels // self.groups

    @property
    def size(self) -> int:
        """Outputs per axis of a tile."""
        return self.form.size

    @property
    def products(self) -> int:
        """Products per axis of a tile."""
        return self.form.products

    @property
    def count(self) -> Expr:
        """Tiles in all."""
        return self.node.shape[0] * self.rows * self.columns

    def plane(self, width: int) -> Expr:
        """Elements from one product of all tiles to the next, ``width`` to a tile."""
        return ceil_div(self.count * width, PLANE_UNIT) * PLANE_UNIT + PLANE_SHIFT

    def planes(self, width: int) -> Expr:
        """Elements of all products."""
        return self.plane(width) * self.products**2


@dataclass(frozen=True)
class Part:
    """Tiles of one row of a map, and some of their channels: what is transformed at a time.

    They are ``here`` tiles from column ``first`` on, ``across`` at most, and ``channels`` from
    ``channel`` on, ``width`` at most.
    """

    batch: Expr
    row: Expr
    first: Expr
    here: Expr
    across: Expr
    channel: Expr
    channels: Expr
    width: int


@dataclass(frozen=True)
class Planes:
    """Where the products of a part's tiles lie, ``width`` channels to each.

    A product's ``plane`` is so long; tile 0 of the part is number ``first`` in it.
    """

    buffer: TileBuffer
    plane: Expr
    width: int
    first: Expr

    @staticmethod
    def of_all(buffer: TileBuffer, tiles: Tiles, width: int, part: Part) -> Planes:
        """Those of all tiles in a workspace."""
        first = (part.batch * tiles.rows + part.row) * tiles.columns + part.first
        return Planes(buffer, tiles.plane(width), width, first)

    def place(self, product: Expr | int, tile: Expr, channel: Expr) -> Expr:
        """Where channel ``channel`` of a product of a tile of the part is."""
        return self.plane * product + (self.first + tile) * self.width + channel


class Transform:
    """Emits statements that go through the tiles and channels of a part."""

    def __init__(self, kernel: Kernel, lowering: Lowering, tiles: Tiles, part: Part) -> None:
        self.kernel = kernel
        self.lowering = lowering
        self.tiles = tiles
        self.part = part
        self.node = tiles.node
        self.dtype = tiles.node.dtype
        self.matrices = transforms(tiles.form)

    def loop(
        self,
        bounds: tuple[Expr | int, Expr | int],
        extent: Expr | int,
        body: Callable[[Expr], None],
    ) -> None:
        """See :func:`emit_loop`."""
        emit_loop(self.lowering, bounds, extent, body)

    def along_channels(self, body: Callable[[Expr], None]) -> None:
        """The innermost loop; the variable counts from 0."""
        self.loop((0, self.part.channels), self.part.width, body)

    def load(self, buffer: TileBuffer, offset: Expr) -> Value:
        return Load(buffer, self.lowering.scope.resolve(offset))


def emit_loop(
    lowering: Lowering,
    bounds: tuple[Expr | int, Expr | int],
    extent: Expr | int,
    body: Callable[[Expr], None],
) -> None:
    """``body`` for a variable in ``bounds``, which lie within [0, extent)."""
    begin, end, most = (constant(e) if isinstance(e, int) else e for e in (*bounds, extent))
    lowering.open()
    variable = lowering.variable(most)
    body(variable)
    inner = lowering.close()
    lowering.emit(Loop(str(variable), begin, end, inner))


def channel_block(width: int) -> int:
    """Balanced blocks of channels, whole cache lines unless there is one block only."""
    blocks = -(-width // CHANNEL_BLOCK)
    whole = -(-width // (blocks * LINE_ELEMENTS)) * LINE_ELEMENTS
    return min(width, whole)


@dataclass
class TransformGrid:
    """The tasks of a program of transforms: a batch element, rows and columns of tiles, and more.

    Axes are opened in the order in which they are asked for.
    """

    lowering: Lowering
    tiles: Tiles
    axes: list[tuple[str, Expr]] = field(default_factory=list[tuple[str, Expr]])

    def axis(self, size: Expr) -> Expr:
        """The place of a task along an axis of ``size``."""
        return grid_axis(self.lowering, self.axes, size)

    def part(self, most: int, width: int) -> Part:
        """The part of a task that has up to ``most`` tiles of a row and a block of channels."""
        tiles, block = self.tiles, channel_block(width)
        count = maximum(ceil_div(tiles.columns, most), 1)
        across = ceil_div(tiles.columns, count)
        batch, row = self.axis(tiles.node.shape[0]), self.axis(tiles.rows)
        first = self.axis(count) * across
        channel, channels = constant(0), constant(width)
        if block < width:
            channel = self.axis(constant(-(-width // block))) * block
            channels = minimum(block, width - channel)
        here = maximum(minimum(across, tiles.columns - first), 0)
        self.lowering.open()
        return Part(batch, row, first, here, across, channel, channels, block)

    def program(self, results: Sequence[TileBuffer], others: Sequence[TileBuffer]) -> TileProgram:
        """The program of what was emitted; ``others`` are read beside the kernel's tensors."""
        lowering = self.lowering
        body = lowering.opened_statements()
        return TileProgram(
            (*others, *lowering.buffers.values(), *results),
            len(results),
            tuple(self.axes),
            tuple(body),
            tuple(lowering.scratch),
            tuple(lowering.checks),
            constant(1),  # the work is known once the step has a price
        )
