"""Windows before several axes that none of them spans: vectors run along all of these as along one.

Sums over neighbouring channels of images are such, with the channels first. Axes are one where
whatever is read or written lies as if they were; other windows go the way of ``window_lines``. A
task has some neighbouring outputs of a row for a block of the axes, since rows may be few. Start
with :func:`lower_kept_axes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Window
from tilewright.ir.tile import Statement, TileProgram
from tilewright.ir.tile_walk import ExpressionMap, expressions
from tilewright.shape import Expr, ceil_div, constant, maximum, minimum, product
from tilewright.tile.loops.loops import CHUNK
from tilewright.tile.nests import grid_axis
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.windows.channel_windows import ChannelRow, channel_program


def lower_kept_axes(
    kernel: Kernel, fresh: Callable[[], Lowering]
) -> tuple[TileProgram, Lowering] | None:
    """The program in which axes behind those of the windows are one, if there are several such."""
    primitive = kernel.seed.primitive
    if not isinstance(primitive, Window) or primitive.trailing < 2:
        return None
    lowering = fresh()
    row = _JoinedRow(kernel, lowering, primitive.trailing)
    row.write()
    body = row.joined(lowering.opened_statements())
    return None if body is None else (channel_program(row, body), lowering)


class _JoinedRow(ChannelRow):
    """Some outputs of a row, for a block of the last ``count`` axes.

    The place in these is written as that along the last one alone, beyond whose end it goes.
    """

    def __init__(self, kernel: Kernel, lowering: Lowering, count: int) -> None:
        self.sizes = kernel.seed.shape[-count:]
        self.lanes: list[Expr] = []
        super().__init__(kernel, lowering)

    def _open_tasks(self) -> None:
        count = len(self.sizes)
        elements = product(self.sizes)
        spatial = range(self.geometry.first, self.row_axis)
        for axis in range(self.geometry.first):
            self.index[axis] = grid_axis(self.lowering, self.grid, self.seed.shape[axis])
        self._open_block(elements)
        for axis in spatial:
            self.index[axis] = grid_axis(self.lowering, self.grid, self.seed.shape[axis])
        few = ceil_div(CHUNK, maximum(self.block, 1) * self.pixels) * self.pixels
        piece = grid_axis(self.lowering, self.grid, ceil_div(self.width, few))
        self.start, self.stop = piece * few, minimum(self.width, (piece + 1) * few)
        self.lowering.open()
        self.outer = [self.lowering.variable(size) for size in self.sizes[:-1]]
        self.index[-count:-1] = self.outer

    def _interior(self) -> tuple[Expr, Expr]:
        begin, end = super()._interior()
        begin = minimum(maximum(begin, self.start), self.stop)
        return begin, maximum(begin, minimum(end, self.stop))

    def along_channels(self, condition: Expr, body: Callable[[Expr], None]) -> None:
        """The innermost loop, whose variable is noted."""

        def noted(channel: Expr) -> None:
            self.lanes.append(channel)
            body(channel)

        super().along_channels(condition, noted)

    def joined(self, body: Sequence[Statement]) -> tuple[Statement, ...] | None:
        """The statements without the outer ones of the axes; None where these are not as one."""
        outer, lanes = [str(v) for v in self.outer], {str(v) for v in self.lanes}
        steps = [product(self.sizes[place + 1 :]) for place in range(len(outer))]
        for expression in set(expressions(body)):
            inner = [name for name in expression.free_symbols if name in lanes]
            used = set(outer).intersection(expression.free_symbols)
            if not inner and not used:
                continue
            affine = expression.affine((*outer, *inner))
            if affine is None or len(inner) > 1:
                return None
            zero = constant(0)
            along = affine[0].get(inner[0], zero) if inner else zero
            for name, step in zip(outer, steps, strict=True):
                if affine[0].get(name, zero) is not along * step:
                    return None
        places: dict[str, Expr] = dict.fromkeys(outer, constant(0))
        return ExpressionMap.substitution(places).statements(body)


__all__ = ["lower_kept_axes"]
