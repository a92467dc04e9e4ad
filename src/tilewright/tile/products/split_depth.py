"""Contractions whose sums are split: parts of k are tasks of their own, added up afterwards.

That pays where there are too few rows and columns for the threads and k is long. The first step is
any other variant that has one step, with the parts as one more batch axis and what they sum up to
in a workspace; the second adds the parts in a fixed order, as a tree, and evaluates the epilogue.
The number of parts is fixed, so results do not depend on the number of threads. Start with
:func:`lower_split_depth`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.cost import Machine
from tilewright.ir.dtype import DType
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Contract
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.stage_axis import NEVER
from tilewright.ir.tile import (
    Apply,
    Load,
    Loop,
    Stage,
    Statement,
    Store,
    TileBuffer,
    TileProgram,
    TransposeBlock,
    Value,
    View,
)
from tilewright.ir.tile_walk import ExpressionMap
from tilewright.ir.views import Index, linear
from tilewright.shape import Expr, ceil_div, constant, maximum, minimum, product, symbol
from tilewright.tile.loops.loops import lower_loops
from tilewright.tile.products.block_sizes import depth_block
from tilewright.tile.products.contraction import lower_contraction
from tilewright.tile.products.frame import RegisterTile
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import LoweredStep, Workspace
from tilewright.tile.work import PARTS

ALIGNMENT = 8  # parts begin at a multiple of it
PART = "_s"

LowerVariant = Callable[
    [Kernel, Callable[[], Lowering], RegisterTile], tuple[LoweredStep, ...] | None
]


def lower_plain(
    kernel: Kernel, fresh: Callable[[], Lowering], tile: RegisterTile
) -> tuple[LoweredStep, ...]:
    """The standard variant of a Contract."""
    return (lower_contraction(kernel, fresh(), tile),)


def lower_split_depth(
    kernel: Kernel,
    fresh: Callable[[], Lowering],
    tile: RegisterTile,
    whole: LowerVariant = lower_plain,
) -> tuple[LoweredStep, ...] | None:
    """Two steps, the first of them ``whole`` in parts; None where that does not apply.

    It does not where ``whole`` does not, nor with several results of different shapes.
    """
    seed = kernel.seed
    if not isinstance(seed.primitive, Contract) or len({o.shape for o in kernel.outputs}) > 1:
        return None
    alone = replace(kernel, outputs=(seed,))
    steps = whole(alone, fresh, tile)
    if steps is None or len(steps) != 1:
        return None
    count = product(seed.shape)
    workspace = Workspace("parts", seed.dtype, count * PARTS)
    split = _split(steps[0].program, _Parts(kernel, count))
    first = LoweredStep(split, steps[0].reads, (workspace,))
    return first, _combine(kernel, fresh(), workspace, count)


def longest_part(program: TileProgram) -> TileProgram:
    """A first step as it is in its deepest part: what its time is computed from."""
    nest = ProductNest.of(program)
    steps = nest.steps
    depth = replace(nest.depth, extent=nest.k.substitute({PART: constant(0)}))
    return nest.with_blocks(replace(nest.blocks, body=(replace(steps, axes=(depth,)),)))


def combine_time(kernel: Kernel, machine: Machine) -> Expr:
    """Picoseconds of the second step: one more step, and elements of all parts to add."""
    target, core, dtype = machine.target, machine.core, kernel.seed.dtype
    lanes = max(1, target.vector_bytes // dtype.bytes)
    handed = PARTS * dtype.bytes / core.moves.handed_bytes
    each = machine.picoseconds(core.moves.combined / lanes + handed)
    return product(kernel.seed.shape) * each + round(1000 * (target.sync_ns + core.threads.step_ns))


@dataclass(frozen=True)
class _Parts:
    """Which part of k the task's part has, and where it stores."""

    kernel: Kernel
    count: Expr

    @property
    def depth(self) -> Expr:
        """All of k."""
        seed = self.kernel.seed
        assert isinstance(seed.primitive, Contract)
        left = seed.inputs[0]
        return product([left.shape[i] for i, _ in seed.primitive.summed])

    @property
    def longest(self) -> Expr:
        """The depth of a part; the last ones may have less, or nothing."""
        return ceil_div(self.depth, PARTS * ALIGNMENT) * ALIGNMENT

    @property
    def first(self) -> Expr:
        """Where the part begins along k."""
        return symbol(PART) * self.longest

    @property
    def length(self) -> Expr:
        """How deep the part is."""
        return maximum(minimum(self.longest, self.depth - self.first), 0)

    def store(self, store: Store) -> Store:
        """The same in the part's own place."""
        return replace(store, offset=store.offset + symbol(PART) * self.count)

    def moved(self, statement: Statement) -> Statement:
        """What empties a stage, into the part's own place."""
        if isinstance(statement, TransposeBlock):
            offset = statement.target_offset + symbol(PART) * self.count
            return replace(statement, target_offset=offset)
        assert isinstance(statement, Loop)
        return replace(statement, body=tuple(map(self.moved, statement.body)))


def _split(program: TileProgram, parts: _Parts) -> TileProgram:
    nest = ProductNest.find(program)
    if nest is None:
        target = program.buffers[-1]
        body = tuple(_restricted(statement, parts, target) for statement in program.body)
    else:
        body = (_split_stages(nest, parts),)
    return replace(program, grid=((PART, constant(PARTS)), *program.grid), body=body)


def _split_stages(nest: ProductNest, parts: _Parts) -> Stage:
    """Stages in which k counts from the beginning of the part."""
    product, depth, (left, right) = nest.product, nest.depth, (nest.left, nest.right)
    assert isinstance(left, View)
    block = minimum(depth.block, depth_block(parts.longest, depth.block))
    places = {str(end): end + parts.first for end in depth.bounds}
    stores = tuple(
        store if store.buffer.scratch else parts.store(store) for store in nest.finish.stores
    )
    product = replace(
        product,
        left=_shifted(left, parts),
        right=right if nest.is_packing else _shifted(right, parts),
        target=replace(nest.finish, stores=stores, streamed=NEVER),
    )
    steps = Stage(
        (replace(depth, extent=parts.length, block=block),),
        ExpressionMap.substitution(places).statements(nest.steps.load),
        (product,),
    )
    return replace(nest.blocks, body=(steps,), store=tuple(map(parts.moved, nest.blocks.store)))


def _shifted(operand: View, parts: _Parts) -> View:
    return replace(operand, offset=operand.offset + parts.first * operand.depth)


def _restricted(statement: Statement, parts: _Parts, target: TileBuffer) -> Statement:
    """Loops that sum go over the part; results go to the part's own place."""
    match statement:
        case Loop(accumulators=()):
            body = tuple(_restricted(inner, parts, target) for inner in statement.body)
            return replace(statement, body=body)
        case Loop():
            return replace(statement, begin=parts.first, end=parts.first + parts.length)
        case Store(buffer=buffer) if buffer is target:
            return parts.store(statement)
        case _:
            return statement


def _combine(kernel: Kernel, lowering: Lowering, workspace: Workspace, count: Expr) -> LoweredStep:
    """The sum of all parts and the epilogue, element by element."""
    seed, buffer = kernel.seed, TileBuffer("w", workspace.dtype)

    def whole(index: Index) -> Value:
        place = lowering.scope.resolve(linear(index, seed.shape))
        parts: list[Value] = [Load(buffer, place + count * part) for part in range(PARTS)]
        return _tree(parts, workspace.dtype)

    lowering.cached[seed] = whole
    program = lower_loops(kernel, lowering)
    read = len(program.buffers) - program.results
    buffers = (*program.buffers[:read], buffer, *program.buffers[read:])
    reads = (*lowering.buffers, workspace)
    return LoweredStep(replace(program, buffers=buffers), reads, tuple(kernel.outputs))


def _tree(values: list[Value], dtype: DType) -> Value:
    while len(values) > 1:
        pairs = zip(values[::2], values[1::2], strict=True)
        values = [Apply("add", pair, dtype) for pair in pairs]
    return values[0]
