"""Attention in one kernel: scores of a tile of keys stay in registers.

A program has a tile of rows (queries) of one batch element and goes over the keys tile by tile,
with a running maximum and a running total for each row (M. Milakov, N. Gimelshein, "Online
normalizer calculation for softmax", 2018; T. Dao et al., "FlashAttention", 2022). Head sizes are
whole in a tile. Both products are made by matrix units: unlike in a single product, whose operands
would be split again for every tile of results, queries and weights are split where they are made.
Start with :func:`write_attention`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tilewright.backend.gpu.axes import Axis, Placer, merged
from tilewright.backend.gpu.functions import literal
from tilewright.backend.gpu.kernel import TYPES, TileSize, TritonKernel
from tilewright.backend.gpu.products import LEAST, dot, held, know
from tilewright.backend.gpu.tile import BOTH, Tile
from tilewright.backend.gpu.writer import Term, Writer
from tilewright.ir.access import ContractionAccess, contraction_access
from tilewright.ir.attention import Attention, attention_of, context_of
from tilewright.ir.kernel import Kernel
from tilewright.ir.tile import Apply, Local, Store, Value
from tilewright.shape import Expr, less, product, symbol
from tilewright.tile.nests import target_buffers
from tilewright.tile.products.contraction import result_stores
from tilewright.tile.products.frame import declare
from tilewright.tile.values.lowering import Lowering


@dataclass(frozen=True)
class _Most:
    """Of a tile: rows, keys, and elements of rows of sums and of keys.

    The sums are in registers, queries, keys, values and weights in shared memory, split in two.
    """

    rows: int
    keys: int
    sums: int
    area: int


_LARGE = _Most(128, 64, 8192, 4096)  # 164 KiB of shared memory, as Ampere and Hopper servers have
_SMALL = _Most(32, 32, 2048, 2048)  # 56 KiB
WIDEST = 256  # head size of which the least tiles still fit
_ROW = frozenset((0,))


def write_attention(kernel: Kernel, lowering: Lowering) -> TritonKernel:
    """The kernel of an attention with its epilogue."""
    return _Attention(kernel, lowering, _found(kernel), _LARGE).write("attention")


def write_small_attention(kernel: Kernel, lowering: Lowering) -> TritonKernel:
    """The same in tiles for GPUs with less shared memory."""
    return _Attention(kernel, lowering, _found(kernel), _SMALL).write("small_attention")


def _found(kernel: Kernel) -> Attention:
    found = attention_of(kernel.seed, kernel.seeds[-1], set(kernel.body))
    assert found is not None, f"{kernel.label}: not an attention"
    return found


@dataclass
class _Attention:
    kernel: Kernel
    lowering: Lowering
    attention: Attention
    most: _Most
    writer: Writer = field(init=False)

    def write(self, name: str) -> TritonKernel:
        """The whole text."""
        self.writer = Writer(self.lowering)
        targets, attention = target_buffers(self.kernel), self.attention
        scope, memory = self.lowering.scope, self.lowering.memory
        first = contraction_access(attention.scores, scope, memory)
        second = contraction_access(attention.context, scope, memory)
        width = tuple((f"_d{i}", size) for i, (_, size) in enumerate(second.columns))
        names = ("batch", "m", "n", "k", "d")
        groups = (first.batch, first.rows, first.columns, first.summed, width)
        batch, rows, keys, _, wide = (declare(self.lowering, axes) for axes in groups)
        moves = self._moves(first, second, (*batch, *rows, *keys))
        index = tuple(map(scope.resolve, (*batch, *rows, *wide)))
        know(self.lowering, attention.context, index, self._context(first))
        moves += result_stores(self.lowering, targets, index)
        axes, body = merged(
            self.lowering,
            [Axis(name, group) for name, group in zip(names, groups, strict=True)],
            self.writer.stores([*self.lowering.blocks[0].statements, *moves]),
        )
        self._write(axes, self.writer.stores(body))
        return self.writer.kernel(name, self.kernel, targets, ("ROWS", "WIDTH"))

    def _moves(
        self, first: ContractionAccess, second: ContractionAccess, place: tuple[Expr, ...]
    ) -> list[Store]:
        """Queries, keys, what is shown of scores, and values, each on its tile."""
        lowering, attention = self.lowering, self.attention
        queries, keys = attention.scores.inputs
        names = [name for name, _ in (*second.summed, *second.columns)]
        own = [name for name, _ in first.columns] + [f"_d{i}" for i in range(len(second.columns))]
        renamed = {name: symbol(other) for name, other in zip(names, own, strict=True)}
        at = tuple(e.substitute(renamed) for e in second.right_index)
        made = [
            held("queries", lowering.value(queries, first.left_index)),
            held("keys", lowering.value(keys, first.right_index)),
            held("values", lowering.value(attention.context.inputs[1], at)),
        ]
        index = tuple(map(lowering.scope.resolve, place))
        know(lowering, attention.scores, index, Local("scores", attention.scores.dtype))
        return [*made, held("shown", lowering.value(attention.shown, index))]

    def _context(self, first: ContractionAccess) -> Value:
        """The sums by the totals; without keys they are 0."""
        dtype = self.attention.context.dtype
        keys = product([size for _, size in first.columns])
        has_keys = self.lowering.scope.resolve(less(0, keys))
        total = Local("total", dtype)
        divided = Apply("divide", (Local("sums", dtype), total), dtype)
        return context_of(self.attention, divided, total, has_keys)

    # ------------------------------------------------------------ text

    def _write(self, axes: list[Axis], moves: list[Store]) -> None:
        outer, m, n, k, d = axes
        queries, keys, values, shown, *results = moves
        most = self.most
        depth = TileSize("DEPTH", k.extent, WIDEST, LEAST, whole=True)
        width = TileSize("WIDTH", d.extent, WIDEST, LEAST, whole=True)
        rows = TileSize("ROWS", m.extent, most.rows, LEAST, beside=(width.name, most.sums))
        block = TileSize("KEYS", n.extent, most.keys, LEAST, beside=(depth.name, most.area))
        writer = self.writer
        for size in (depth, width, rows, block):
            writer.tile(size)
        placer = Placer(writer)
        first = placer.cut(m, rows)
        scalars = placer.rest(outer)
        names, row_inside = placer.along(m, first, rows.name, 0)
        scalars_and_rows = scalars | names
        across, inside = placer.along(k, "0", depth.name, 1, "k_across")
        tile = Tile(writer, (rows.name, depth.name), {0: row_inside, 1: inside},
                    scalars_and_rows | across)  # fmt: skip
        query = tile.operand(queries.value)
        down, depth_inside = placer.along(k, "0", depth.name, 0, "k_down")
        wide, width_inside = placer.along(d, "0", width.name, 1)
        self._begin(rows.name, width.name)
        with writer.loop(f"for first in range(0, {placer.extent(n)}, {block.name}):"):
            names, key_inside = placer.along(n, "first", block.name, 1, "n_across")
            tile = Tile(writer, (depth.name, block.name), {0: depth_inside, 1: key_inside},
                        scalars | down | names)  # fmt: skip
            key = tile.operand(keys.value)
            writer.line(f"scores = {dot(writer, query, key, self.attention.scores, split=True)}")
            tile = Tile(writer, (rows.name, block.name), {0: row_inside, 1: key_inside},
                        scalars_and_rows | names, {"scores": Term("scores", BOTH)})  # fmt: skip
            weights = self._weigh(tile, shown.value)
            names, key_inside = placer.along(n, "first", block.name, 0, "n_down")
            tile = Tile(writer, (block.name, width.name), {0: key_inside, 1: width_inside},
                        scalars | names | wide)  # fmt: skip
            value = tile.operand(values.value)
            added = dot(writer, weights, value, self.attention.context, split=True)
            writer.line(f"sums = sums * factor + {added}")
        known = {"sums": Term("sums", BOTH), "total": Term("total", _ROW)}
        tile = Tile(writer, (rows.name, width.name), {0: row_inside, 1: width_inside},
                    scalars_and_rows | wide, known)  # fmt: skip
        for result in results:
            tile.store(result, BOTH)

    def _begin(self, rows: str, width: str) -> None:
        """No sums yet, under the lowest maximum: that of hidden keys alone moves nothing."""
        dtype = self.attention.scores.dtype
        name, lowest = TYPES[dtype][0], float(np.finfo(dtype.value).min)
        self.writer.line(f"peak = tl.full(({rows}, 1), {lowest!r}, {name})")
        self.writer.line(f"total = tl.zeros(({rows}, 1), {name})")
        self.writer.line(f"sums = tl.zeros(({rows}, {width}), {name})")

    def _weigh(self, tile: Tile, shown: Value) -> str:
        """Exponentials of what is shown under the new maximum, and by what sums move to it."""
        writer = self.writer
        term = tile.value(shown)
        mask, low = tile.inside[1], literal(float("-inf"), shown.dtype)
        writer.line(f"shown = tl.where({mask}, {term.text}, {low})")
        writer.line("raised = tl.maximum(peak, tl.max(shown, axis=1, keep_dims=True))")
        writer.line("factor = tl.exp(peak - raised)")
        writer.line("weights = tl.exp(shown - raised)")
        writer.line("total = total * factor + tl.sum(weights, axis=1, keep_dims=True)")
        writer.line("peak = raised")
        return "weights"
