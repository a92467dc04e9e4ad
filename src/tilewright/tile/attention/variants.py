"""Variants to compute an attention, with their modelled costs.

Either in one program, with blocks for many rows and for few, or as the three kernels that it is
made of: a few rows do not fill the vectors of the former. Start with :func:`attention_variants`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from tilewright.cost import AttentionSizes, Machine, attention_time
from tilewright.ir.access import Axes, contraction_access
from tilewright.ir.attention import Attention, attention_of
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, ancestors
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Map
from tilewright.ir.scalar import SCALAR_FUNCTIONS
from tilewright.ir.tile import LINE_BYTES
from tilewright.policy import ALONE, FEW, BlockSizes, Extents, Kept, Problem, Space
from tilewright.policy.candidates import attention_blocks
from tilewright.policy.space import BLOCK_COLUMNS, BLOCK_ROWS
from tilewright.shape import Expr, Scope, ceil_div, constant, maximum, minimum, product, symbol
from tilewright.tile.attention.attention import lower_attention
from tilewright.tile.attention.frame import ROW, AttentionBlock, AttentionFrame
from tilewright.tile.products.frame import RegisterTile
from tilewright.tile.products.variants import contraction_variants
from tilewright.tile.rows.rows import lower_rows
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import THREADS, Once, Variant, between, made_anew, workspace

FEW_ROWS = 32  # from which on known rows fill the vectors of one program


def attention_variants(
    kernel: Kernel, scope: Scope, tile: RegisterTile, machine: Machine, once: Once = made_anew
) -> tuple[Variant, ...]:
    """The variants of an attention: blocks of rows and keys that its prices choose, and no block.

    The blocks are candidates of the machine, as those of products are; there are at most three.
    ``once`` keeps the variants of the kernels that it is made of for other kernels.
    """
    found = attention_of(kernel.seed, kernel.seeds[-1], set(kernel.body))
    assert found is not None, f"{kernel.label}: not an attention"
    rows = _size(contraction_access(found.scores, scope).rows)
    separate: tuple[Variant, ...] = ()
    if not rows.is_constant or rows.value < FEW_ROWS:
        separate = (_separate(kernel, found, scope, tile, machine, once),)
    whole = _Whole(kernel, found, scope, tile, machine)
    others = tuple(variant.cost for variant in separate)
    problem = Problem((whole.space(),), others, scope, THREADS, machine.target)
    (kept,) = FEW.choose(problem).kept
    return (*map(whole.variant, kept), *separate)


@dataclass(frozen=True)
class _Whole:
    """An attention as one program, at any block of rows and keys."""

    kernel: Kernel
    attention: Attention
    scope: Scope
    tile: RegisterTile
    machine: Machine

    def space(self) -> Space:
        """All blocks that the machine allows."""
        sizes = self._sizes(BLOCK_ROWS, BLOCK_COLUMNS)
        name = "float64" if self._dtype is DType.FLOAT64 else "float32"
        met = sizes.depth + sizes.width  # of every row and key; two panels if nobody knows
        depth = met.value if met.is_constant else 2 * self.tile.columns
        blocks = attention_blocks(self.machine.target, name, self.tile.rows, max(depth, 1))
        extents = Extents(sizes.batch, sizes.queries, sizes.keys, sizes.depth, self._dtype.bytes)
        made = tuple(BlockSizes(rows, keys, 1) for rows, keys in blocks)
        return Space(self._time(sizes, symbol(THREADS)), made, extents)

    def variant(self, kept: Kept) -> Variant:
        """The program with one of them."""
        rows, keys = kept.sizes.rows, kept.sizes.columns
        alone = self._time(self._sizes(constant(rows), constant(keys)), 1)
        step = lower_attention(
            self.kernel, self.attention, Lowering(self.kernel, self.scope),
            AttentionBlock(rows, keys), alone // 1000 + 1,
        )  # fmt: skip
        return Variant(f"attention, {rows} x {keys}", (step,), kept.cost)

    @property
    def _dtype(self) -> DType:
        return self.attention.scores.dtype

    def _sizes(self, rows: Expr, keys: Expr) -> AttentionSizes:
        first = contraction_access(self.attention.scores, self.scope)
        second = contraction_access(self.attention.context, self.scope)
        queries, all_keys = _size(first.rows), _size(first.columns)
        return AttentionSizes(
            _size(first.batch),
            queries,
            self._seen(queries, all_keys, rows),
            _size(first.summed),
            _size(second.columns),
            rows,
            keys,
            LINE_BYTES // self._dtype.bytes,
        )

    @cached_property
    def _last_key(self) -> Expr | None:
        """The last key that a row sees, by its number; None where it sees all of them."""
        lowering = Lowering(self.kernel, self.scope)
        line = LINE_BYTES // self._dtype.bytes
        frame = AttentionFrame(self.kernel, self.attention, lowering, AttentionBlock(line, line))
        visible = frame.visible()
        return None if visible is None else visible.last

    def _seen(self, queries: Expr, keys: Expr, rows: Expr) -> Expr:
        """How many keys a block of so many rows goes over, in the mean: those of its last row."""
        if self._last_key is None:
            return keys
        block = ceil_div(queries, maximum(ceil_div(queries, rows), 1))
        middle = maximum((queries + block) // 2 - 1, 0)  # the last row of the middle block
        last = self._last_key.substitute({ROW: middle})
        return minimum(maximum(last + 1, 0), keys)

    def _time(self, sizes: AttentionSizes, threads: Expr | int) -> Expr:
        own, shown = self.tile.for_type(self._dtype), _operations(self.attention)
        shape = own.rows, own.columns
        return attention_time(sizes, self._dtype, shape, shown, self.machine, threads)


def _size(axes: Axes) -> Expr:
    return product([size for _, size in axes])


def _operations(attention: Attention) -> int:
    """Between a score and what is shown of it."""
    scores = attention.scores
    between = ancestors(
        attention.shown, lambda current: current is not scores and current.shape == scores.shape
    )
    maps = [current.primitive for current in between if isinstance(current.primitive, Map)]
    return sum(1 + SCALAR_FUNCTIONS[primitive.function].cost for primitive in maps)


# ---------------------------------------------------------------- three kernels


def _separate(
    kernel: Kernel, attention: Attention, scope: Scope, tile: RegisterTile, machine: Machine,
    once: Once,
) -> Variant:  # fmt: skip
    """The products and the softmax between them one after the other, for few rows."""
    order = {node: number for number, node in enumerate((*kernel.reads, *kernel.body))}

    def part(seeds: tuple[Node, ...], outputs: tuple[Node, ...], *given: Node) -> Kernel:
        memory = {*kernel.reads, *given}
        return kernel.part(seeds, outputs, memory, order.__getitem__)

    shown, weights = attention.shown, attention.weights
    first = part((attention.scores,), (shown,))
    middle = part((attention.maximum, attention.total), (weights,), shown)
    last = part((attention.context,), kernel.outputs, weights)
    spaces = {node: workspace(node) for node in (shown, weights)}

    def product_of(part: Kernel) -> Variant:
        def make() -> tuple[Variant, ...]:
            return contraction_variants(part, _fresh(part, scope), tile, machine, ALONE)

        return _of_few_rows(once(part, "product of few rows", make))

    rows = once(middle, "rows", lambda: lower_rows(middle, _fresh(middle, scope), machine))[0]
    scores, context = product_of(first), product_of(last)
    steps = (*scores.steps, *rows.steps, *context.steps)
    cost = scores.cost + rows.cost + context.cost
    name = f"separate: {scores.name}; rows; {context.name}"
    return Variant(name, tuple(between(step, spaces) for step in steps), cost)


def _fresh(kernel: Kernel, scope: Scope) -> Callable[[], Lowering]:
    return lambda: Lowering(kernel, scope)


def _of_few_rows(variants: Sequence[Variant]) -> Variant:
    """Dot products where keys lie along the depth, else the first of all."""
    return next((v for v in variants if v.name == "dots"), variants[0])
