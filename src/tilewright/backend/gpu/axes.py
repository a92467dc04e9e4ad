"""Axes of a kernel along the axes of its tiles: several that lie one in another are one position.

Start with :class:`Axis`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.backend.gpu.indices import Indices
from tilewright.backend.gpu.kernel import TileSize
from tilewright.backend.gpu.writer import Term, Writer
from tilewright.ir.tile import Statement
from tilewright.ir.views import declare_index, unflatten
from tilewright.shape import Expr, constant, product
from tilewright.tile.nests import collapse
from tilewright.tile.values.lowering import Lowering


@dataclass(frozen=True)
class Axis:
    """One position ``name`` in the text, for named loop variables with their sizes, row-major."""

    name: str
    parts: tuple[tuple[str, Expr], ...]

    @property
    def extent(self) -> Expr:
        """How many positions there are."""
        return product([size for _, size in self.parts])


def merged(
    lowering: Lowering, axes: Sequence[Axis], statements: Sequence[Statement]
) -> tuple[list[Axis], tuple[Statement, ...]]:
    """The axes with as few loop variables as the expressions of the statements need."""
    found: list[Axis] = []
    body = tuple(statements)
    for axis in axes:
        parts = [(name, size) for name, size in axis.parts if size is not constant(1)]
        parts, body = collapse(lowering, parts, body)
        found.append(Axis(axis.name, tuple(parts)))
    return found, body


class Placer:
    """Writes where the tiles of one program lie.

    A program takes one tile of every axis; those that are cut last are the innermost of the grid.
    """

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        writer.line("task = tl.program_id(0).to(tl.int64)")

    def cut(self, axis: Axis, size: TileSize) -> str:
        """Where the tile of the program begins along an axis."""
        writer, tile = self.writer, self.writer.tile(size)
        writer.tasks.append((axis.extent, tile))
        writer.line(f"{axis.name}_tiles = tl.cdiv({self.extent(axis)}, {tile})")
        writer.line(f"{axis.name}_first = task % {axis.name}_tiles * {tile}")
        writer.line(f"task = task // {axis.name}_tiles")
        return f"{axis.name}_first"

    def rest(self, axis: Axis) -> dict[str, Term]:
        """Scalar positions along an axis that no tile lies along; it is cut last."""
        if not axis.parts:
            return {}
        self.writer.tasks.append((axis.extent, None))
        return self.names(axis, Term("task"))

    def extent(self, axis: Axis) -> str:
        """How many positions an axis has, as text."""
        return Indices(self.writer, {}).integer(axis.extent).text

    def along(
        self, axis: Axis, first: str, tile: str, along: int, name: str | None = None
    ) -> tuple[dict[str, Term], str]:
        """Positions from ``first`` on along axis 0 or 1 of a tile, and which are of the axis."""
        name = axis.name if name is None else name
        place = "[:, None]" if along == 0 else "[None, :]"
        start = "" if first == "0" else f"{first} + "
        self.writer.line(f"{name} = ({start}tl.arange(0, {tile})).to(tl.int64){place}")
        # Compared in 32 bits: in 64 they would take two registers for each element of a tile.
        rest = self.extent(axis) if first == "0" else f"{self.extent(axis)} - {first}"
        self.writer.line(f"{name}_end = tl.minimum({rest}, {tile}).to(tl.int32)")
        self.writer.line(f"{name}_inside = tl.arange(0, {tile}){place} < {name}_end")
        return self.names(axis, Term(name, frozenset((along,)))), f"{name}_inside"

    def names(self, axis: Axis, position: Term) -> dict[str, Term]:
        """The loop variables of an axis at a position of it."""
        if len(axis.parts) == 1:
            return {axis.parts[0][0]: position}
        flat = f"_{axis.name}"
        index = declare_index(self.writer.lowering.scope, flat, axis.extent)
        indices = Indices(self.writer, {flat: position})
        found: dict[str, Term] = {}
        for (name, _), part in zip(axis.parts, unflatten(index, axis.parts), strict=True):
            term = indices.integer(part)
            found[name] = Term(self.writer.assign(term.text), term.axes)
        return found
