"""The transform of Winograd's sums into results. Start with :func:`result_step`."""

from __future__ import annotations

from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.tile import TileBuffer, TransposeBlock
from tilewright.ir.views import declare_index, linear
from tilewright.shape import Expr, constant, minimum
from tilewright.tile.convolutions.winograd_tiles import (
    CHANNEL_BLOCK,
    Part,
    Planes,
    Tiles,
    Transform,
    TransformGrid,
)
from tilewright.tile.convolutions.winograd_transforms import apply_columns
from tilewright.tile.moves.transposes import SIZES
from tilewright.tile.products.contraction import shown
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import LoweredStep, Workspace


def result_step(
    kernel: Kernel, lowering: Lowering, tiles: Tiles, room: int, space: Workspace
) -> LoweredStep:
    """The step that reads ``space`` and writes the kernel's outputs.

    The products of a task's tiles, their pixels and what is stored of them are in cache together,
    in ``room`` bytes.
    """
    width = min(CHANNEL_BLOCK, tiles.outputs)
    block = (tiles.products**2 + 2 * tiles.size**2) * width * tiles.node.dtype.bytes
    grid = TransformGrid(lowering, tiles)
    part = grid.part(max(room // block, 1), tiles.outputs)
    source = TileBuffer("w0", tiles.node.dtype)
    targets = result_buffers(kernel)
    transform = ResultTransform(kernel, lowering, tiles, part)
    transform.emit(Planes.of_all(source, tiles, tiles.outputs, part), targets)
    program = grid.program(tuple(targets.values()), (source,))
    return LoweredStep(program, (space, *lowering.buffers), tuple(kernel.outputs))


def result_buffers(kernel: Kernel) -> dict[Node, TileBuffer]:
    """A buffer for each output of a kernel."""
    return {o: TileBuffer(f"o{i}", o.dtype) for i, o in enumerate(kernel.outputs)}


class ResultTransform(Transform):
    """At m A of every tile into lines of pixels, and the epilogue on those that are outputs.

    Results that have their channels first are staged line by line.
    """

    def __init__(self, kernel: Kernel, lowering: Lowering, tiles: Tiles, part: Part) -> None:
        super().__init__(kernel, lowering, tiles, part)
        self.pixels = part.across * tiles.size
        elements = tiles.size * tiles.products * part.width
        self.sums = lowering.scratch_buffer(self.dtype, constant(elements))
        self.lines = lowering.scratch_buffer(self.dtype, self.pixels * part.width * tiles.size)

    def emit(self, planes: Planes, targets: dict[Node, TileBuffer]) -> None:
        """Statements that read the sums of the part and write what is shown of its outputs."""
        self.loop((0, self.part.here), self.part.across, lambda t: self._tile(planes, t))
        self._epilogue(targets)

    def _tile(self, planes: Planes, t: Expr) -> None:
        tiles = self.tiles

        def down(j: Expr) -> None:
            def channel(c: Expr) -> None:
                place = self.part.channel + c
                values = [
                    self.load(planes.buffer, planes.place(i * tiles.products + j, t, place))
                    for i in range(tiles.products)
                ]
                made = apply_columns(self.matrices.result, values, self.dtype)
                for i, value in enumerate(made):
                    where = (i * tiles.products + j) * self.part.width + c
                    self.lowering.store(self.sums, where, value)

            self.along_channels(channel)

        def along(i: Expr) -> None:
            def channel(c: Expr) -> None:
                values = [
                    self.load(self.sums, (i * tiles.products + j) * self.part.width + c)
                    for j in range(tiles.products)
                ]
                made = apply_columns(self.matrices.result, values, self.dtype)
                for j, value in enumerate(made):
                    where = self._pixel(i, t * tiles.size + j, c)
                    self.lowering.store(self.lines, where, value)

            self.along_channels(channel)

        self.loop((0, tiles.products), tiles.products, down)
        self.loop((0, tiles.size), tiles.size, along)

    def _pixel(self, line: Expr, pixel: Expr, channel: Expr) -> Expr:
        """Where an output is in scratch."""
        return (line * self.pixels + pixel) * self.part.width + channel

    def _epilogue(self, targets: dict[Node, TileBuffer]) -> None:
        tiles, shape, lowering = self.tiles, self.node.shape, self.lowering
        top, left = self.part.row * tiles.size, self.part.first * tiles.size
        bottom = minimum(top + tiles.size, shape[1])
        right = minimum(left + self.part.here * tiles.size, shape[2])
        stages = {
            output: lowering.scratch_buffer(output.dtype, self.pixels * self.part.width)
            for output in targets
            if self._is_turned(output)
        }

        def row(y: Expr) -> None:
            def column(x: Expr) -> None:
                def channel(o: Expr) -> None:
                    where = self._pixel(y - top, x - left, o - self.part.channel)
                    index = tuple(lowering.scope.resolve(i) for i in (self.part.batch, y, x, o))
                    lowering.cached[self.node] = {index: self.load(self.lines, where)}.get
                    staged = self._pixel(constant(0), x - left, o - self.part.channel)
                    for output, buffer in targets.items():
                        base, place = shown(output, index, lowering.scope)
                        target, offset = buffer, linear(place, output.shape)
                        if output in stages:
                            target, offset = stages[output], staged
                        lowering.store(target, offset, lowering.value(base, index))

                bounds = (self.part.channel, self.part.channel + self.part.channels)
                self.loop(bounds, shape[3], channel)

            self.loop((left, right), shape[2], column)
            for output, stage in stages.items():
                self._leave(stage, output, targets[output], (y, left, right))

        self.loop((top, bottom), shape[1], row)

    def _leave(
        self, stage: TileBuffer, output: Node, target: TileBuffer, line: tuple[Expr, Expr, Expr]
    ) -> None:
        """Part of a line of results, from the stage to its place with the channels first."""
        y, left, right = line
        corner = (self.part.batch, y, left, self.part.channel)
        _, place = shown(output, corner, self.lowering.scope)
        source = stage, constant(0), constant(self.part.width)
        result = target, linear(place, output.shape), self.node.shape[1] * self.node.shape[2]
        self.lowering.emit(TransposeBlock(*source, *result, right - left, self.part.channels))

    def _is_turned(self, output: Node) -> bool:
        """Whether a result has its channels first."""
        scope, shape = self.lowering.scope.copy(), self.node.shape
        index = tuple(declare_index(scope, f"_o{axis}", size) for axis, size in enumerate(shape))
        _, place = shown(output, index, scope)
        affine = scope.resolve(linear(place, output.shape)).affine([str(index[-1])])
        if affine is None or output.dtype.bytes not in SIZES:
            return False
        return affine[0].get(str(index[-1]), constant(0)) is not constant(1)
