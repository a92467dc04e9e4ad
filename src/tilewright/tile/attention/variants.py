"""Variants to compute an attention, with their modelled costs.

Either in one program, with blocks for many rows and for few, or as the three kernels that it is
made of: a few rows do not fill the vectors of the former. Start with :func:`attention_variants`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.cost import AttentionSizes, Machine, attention_time, softmax_time
from tilewright.ir.access import Axes, contraction_access
from tilewright.ir.attention import Attention, attention_of
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel, kernel_of
from tilewright.ir.primitives import Map
from tilewright.ir.scalar import SCALAR_FUNCTIONS
from tilewright.ir.tile import CACHE_LINE
from tilewright.policy import ALONE
from tilewright.shape import Expr, Scope, product, symbol
from tilewright.tile.attention.attention import lower_attention
from tilewright.tile.attention.frame import AttentionBlock
from tilewright.tile.products.frame import RegisterTile
from tilewright.tile.products.variants import contraction_variants
from tilewright.tile.rows.rows import lower_rows
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import THREADS, Variant, between, workspace

# The first are whole register tiles in both products: 6 rows high, 4 vectors of 16 wide.
MANY_ROWS, UNIT_KEYS = 192, 96
SCORES_SHARE = 3  # a part of the second-level cache, for the scores of a block
SHORT_BLOCK = AttentionBlock(32, 256)
FEW_ROWS = 32  # from which on known rows fill the vectors of one program


def attention_variants(
    kernel: Kernel, scope: Scope, tile: RegisterTile, machine: Machine
) -> tuple[Variant, ...]:
    """The variants of an attention."""
    found = attention_of(kernel.seed, kernel.seeds[-1], set(kernel.body))
    assert found is not None, f"{kernel.label}: not an attention"
    blocks = (_long_block(found.scores.dtype, machine), SHORT_BLOCK)
    whole = tuple(_whole(kernel, found, scope, tile, machine, block) for block in blocks)
    rows = _size(contraction_access(found.scores, scope).rows)
    if rows.is_constant and rows.value >= FEW_ROWS:
        return whole
    return (*whole, _separate(kernel, found, scope, tile, machine))


def _long_block(dtype: DType, machine: Machine) -> AttentionBlock:
    """Many rows, and as many keys as leave room for others in the second-level cache."""
    room = machine.target.levels[2].capacity // SCORES_SHARE
    keys = room // (MANY_ROWS * dtype.bytes) // UNIT_KEYS * UNIT_KEYS
    return AttentionBlock(MANY_ROWS, max(keys, UNIT_KEYS))


def _whole(
    kernel: Kernel, attention: Attention, scope: Scope, tile: RegisterTile, machine: Machine,
    block: AttentionBlock,
) -> Variant:  # fmt: skip
    first = contraction_access(attention.scores, scope)
    second = contraction_access(attention.context, scope)
    dtype = attention.scores.dtype
    sizes = AttentionSizes(
        _size(first.batch),
        _size(first.rows),
        _size(first.columns),
        _size(first.summed),
        _size(second.columns),
        block.rows,
        block.keys,
        CACHE_LINE // dtype.bytes,
    )
    own = tile.for_type(dtype)
    shown = _operations(attention)
    cost = attention_time(sizes, dtype, (own.rows, own.columns), shown, machine, symbol(THREADS))
    alone = attention_time(sizes, dtype, (own.rows, own.columns), shown, machine, 1)
    lowering = Lowering(kernel, scope)
    step = lower_attention(kernel, attention, lowering, block, alone // 1000 + 1)
    return Variant(f"attention, {block.rows} x {block.keys}", (step,), cost)


def _size(axes: Axes) -> Expr:
    return product([size for _, size in axes])


def _operations(attention: Attention) -> int:
    """Between a score and what is shown of it."""
    count, stack, seen = 0, [attention.shown], {attention.scores}
    while stack:
        current = stack.pop()
        if current in seen or current.shape != attention.scores.shape:
            continue
        seen.add(current)
        if isinstance(current.primitive, Map):
            count += 1 + SCALAR_FUNCTIONS[current.primitive.function].cost
        stack += current.inputs
    return count


# ---------------------------------------------------------------- three kernels


def _separate(
    kernel: Kernel, attention: Attention, scope: Scope, tile: RegisterTile, machine: Machine
) -> Variant:
    """The products and the softmax between them one after the other, for few rows."""
    order = {node: number for number, node in enumerate((*kernel.reads, *kernel.body))}

    def part(seeds: tuple[Node, ...], outputs: tuple[Node, ...], *given: Node) -> Kernel:
        memory = {*kernel.reads, *given}
        return kernel_of(seeds, outputs, memory, order.__getitem__, kernel.label)

    shown, weights = attention.shown, attention.weights
    first = part((attention.scores,), (shown,))
    middle = part((attention.maximum, attention.total), (weights,), shown)
    last = part((attention.context,), kernel.outputs, weights)
    spaces = {node: workspace(node) for node in (shown, weights)}
    rows = lower_rows(middle, _fresh(middle, scope), machine)[0]
    work = softmax_time(product(weights.shape), weights.dtype, machine, symbol(THREADS))
    scores = _of_few_rows(contraction_variants(first, _fresh(first, scope), tile, machine, ALONE))
    context = _of_few_rows(contraction_variants(last, _fresh(last, scope), tile, machine, ALONE))
    steps = (*scores.steps, *rows.steps, *context.steps)
    cost = scores.cost + work + context.cost + 2000 * machine.core.threads.kernel_ns
    name = f"separate: {scores.name}; rows; {context.name}"
    return Variant(name, tuple(between(step, spaces) for step in steps), cost)


def _fresh(kernel: Kernel, scope: Scope) -> Callable[[], Lowering]:
    return lambda: Lowering(kernel, scope)


def _of_few_rows(variants: Sequence[Variant]) -> Variant:
    """Dot products where keys lie along the depth, else the first of all."""
    return next((v for v in variants if v.name == "dots"), variants[0])
