"""Row kernels: softmax, normalisations and other reductions with the work around them.

A program has a few short rows or a long one. Where they fit one tile, each element is read once and
all that is made of it stays in registers; otherwise every sweep of the kernel
(``tile.rows.stages``) goes over the row tile by tile, with running values side by side that are
combined at its end. Start with :func:`write_rows`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.backend.gpu.axes import Axis, Placer, merged
from tilewright.backend.gpu.functions import identity
from tilewright.backend.gpu.kernel import TileSize, TritonKernel
from tilewright.backend.gpu.products import held, know
from tilewright.backend.gpu.tile import BOTH, Tile
from tilewright.backend.gpu.writer import EACH, Term, Writer
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.tile import Local, Store
from tilewright.ir.views import linear
from tilewright.shape import Expr, constant
from tilewright.tile.products.frame import declare
from tilewright.tile.rows.stages import RowStages, Sweep, kind_of
from tilewright.tile.values.lowering import Lowering

AREA = 4096  # elements of a tile of several rows: what 4 warps hold
COLUMNS = 16384  # of a tile of one row, which is alone on its multiprocessor, so all warps hold it
FEW = 16  # elements that a thread holds of it


def write_rows(kernel: Kernel, lowering: Lowering) -> TritonKernel:
    """The kernel of rows of which a tile has at least one as a whole."""
    return _Rows(kernel, lowering, AREA, True).kernel("rows_whole")


def write_long_rows(kernel: Kernel, lowering: Lowering) -> TritonKernel:
    """The kernel of longer rows that still are in one tile as a whole."""
    return _Rows(kernel, lowering, COLUMNS, True).kernel("long_rows_whole")


def write_rows_in_tiles(kernel: Kernel, lowering: Lowering) -> TritonKernel:
    """The kernel of rows of any length, which are gone over tile by tile."""
    return _Rows(kernel, lowering, COLUMNS, False).kernel("rows_in_tiles")


@dataclass
class _Rows:
    rows: Kernel
    lowering: Lowering
    columns: int
    whole: bool
    stages: RowStages = field(init=False)
    writer: Writer = field(init=False)

    def __post_init__(self) -> None:
        self.stages = RowStages(self.rows, self.lowering, keeps=False)
        self.writer = Writer(self.lowering)

    def kernel(self, name: str) -> TritonKernel:
        """The whole text."""
        space, sizes = self.stages.space, self.stages.space.shape
        kept = tuple((f"_m{a}", sizes[a]) for a in space.kept)
        reduced = tuple((f"_n{a}", sizes[a]) for a in space.wide if a in space.axes)
        place = dict(zip(space.kept, declare(self.lowering, kept), strict=True))
        inner = [a for a in space.wide if a in space.axes]
        place |= zip(inner, declare(self.lowering, reduced), strict=True)
        index = [place.get(a, constant(0)) for a in range(len(sizes))]
        sweeps = self.stages.sweeps()
        moves = [move for sweep in sweeps for move in self._moves(sweep, index)]
        moves += self._results(place)
        moves = [*self.lowering.blocks[0].statements, *moves]
        groups = (Axis("m", kept), Axis("n", reduced))
        axes, body = merged(self.lowering, groups, self.writer.stores(moves))
        self._write(axes, sweeps, self.writer.stores(body))
        held, each = ("ROWS", "COLUMNS"), EACH if self.columns == AREA else FEW
        return self.writer.kernel(name, self.rows, self.stages.targets, held, each)

    def _moves(self, sweep: Sweep, index: list[Expr]) -> list[Store]:
        """The operands of the reductions of a sweep, then the elements that it writes."""
        lowering, stages = self.lowering, self.stages
        made = [
            held(f"operand{number}", lowering.value(reduction.inputs[0], index))
            for number, reduction in enumerate(sweep.reductions)
        ]
        for output in sweep.outputs:
            offset = lowering.scope.resolve(linear(index, stages.space.shape))
            made.append(Store(stages.targets[output], offset, stages.element(output, index)))
        for reduction in sweep.reductions:
            self._know(reduction, index)
        return made

    def _know(self, reduction: Node, index: list[Expr]) -> None:
        """The result of a reduction has a name from now on."""
        axes, resolve = self.stages.space.axes, self.lowering.scope.resolve
        kept = tuple(resolve(i) for a, i in enumerate(index) if a not in axes)
        know(self.lowering, reduction, kept, Local(self._name(reduction), reduction.dtype))

    def _name(self, reduction: Node) -> str:
        return f"result{self.rows.seeds.index(reduction)}"

    def _results(self, place: dict[int, Expr]) -> list[Store]:
        """What there is one of for each row."""
        made: list[Store] = []
        for output in self.stages.results:
            index = self.stages.row_index(output.shape, place)
            offset = self.lowering.scope.resolve(linear(index, output.shape))
            value = self.lowering.value(output, index)
            made.append(Store(self.stages.targets[output], offset, value))
        return made

    # ------------------------------------------------------------ text

    def _write(self, axes: list[Axis], sweeps: list[Sweep], moves: list[Store]) -> None:
        writer, (m, n) = self.writer, axes
        placer = Placer(writer)
        columns = TileSize("COLUMNS", n.extent, self.columns, whole=self.whole)
        rows = TileSize("ROWS", m.extent, AREA, beside=(columns.name, AREA))
        writer.tile(columns)
        first = placer.cut(m, rows)
        names, inside = placer.along(m, first, rows.name, 0)
        known: dict[str, Term] = {}
        across = Tile(writer, (rows.name, columns.name), {0: inside}, names, known)
        of_whole = self._along(placer, n, across, "0") if self.whole else None
        rest = iter(moves)
        for sweep in sweeps:
            own = [next(rest) for _ in (*sweep.reductions, *sweep.outputs)]
            if of_whole is None:
                self._in_tiles(placer, n, across, sweep, own)
            else:
                self._at_once(of_whole, sweep, own)
        for result in rest:
            across.store(result, frozenset((0,)))

    def _along(self, placer: Placer, n: Axis, across: Tile, first: str) -> Tile:
        """The tile of rows from one column on."""
        columns = across.blocks[1]
        names, inside = placer.along(n, first, columns, 1)
        return Tile(
            self.writer,
            across.blocks,
            {0: across.inside[0], 1: inside},
            {**across.names, **names},
            across.locals,
        )

    def _at_once(self, tile: Tile, sweep: Sweep, moves: list[Store]) -> None:
        count = len(sweep.reductions)
        for reduction, move in zip(sweep.reductions, moves[:count], strict=True):
            kind = kind_of(reduction)
            value = tile.full(move.value, identity(kind, reduction.dtype))
            self._keep(tile, reduction, value)
        for move in moves[count:]:
            tile.store(move, BOTH)

    def _in_tiles(
        self, placer: Placer, n: Axis, across: Tile, sweep: Sweep, moves: list[Store]
    ) -> None:
        writer, count = self.writer, len(sweep.reductions)
        running = [across.start(kind_of(r), r.dtype) for r in sweep.reductions]
        with writer.loop(f"for first in range(0, {placer.extent(n)}, {across.blocks[1]}):"):
            tile = self._along(placer, n, across, "first")
            for name, reduction, move in zip(running, sweep.reductions, moves, strict=False):
                kind, dtype = kind_of(reduction), reduction.dtype
                value = tile.full(move.value, identity(kind, dtype))
                writer.line(f"{name} = {tile.folded(kind, name, value, dtype)}")
            for move in moves[count:]:
                tile.store(move, BOTH)
        for name, reduction in zip(running, sweep.reductions, strict=True):
            self._keep(across, reduction, name)

    def _keep(self, tile: Tile, reduction: Node, value: str) -> None:
        """The result of a reduction, which later sweeps read."""
        found = tile.reduced(kind_of(reduction), value, reduction.dtype)
        tile.locals[self._name(reduction)] = found
