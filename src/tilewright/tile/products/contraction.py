"""Contractions: register tiles under cache blocks under a grid of threads.

The right operand runs along the vector lanes: a constant is packed when compiling, one whose
columns are contiguous is read in place, anything else is packed into a cache block first (which is
also where work before the contraction is evaluated). The left operand is broadcast in place.
Block sizes are expressions, so one piece of code serves every shape. Start with
:func:`lower_contraction`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from tilewright.ir.access import Access, ContractionAccess, contraction_access, operand_index
from tilewright.ir.graph import Node, expressions_of
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Constant, Contract
from tilewright.ir.stage_axis import NEVER
from tilewright.ir.tile import (
    Guarded,
    Literal,
    Load,
    Local,
    Loop,
    Statement,
    Store,
    TileBuffer,
    TransposeBlock,
    Value,
    View,
)
from tilewright.ir.tile_walk import ExpressionMap, expressions
from tilewright.ir.views import Index, is_view, linear, push_forward, unflatten
from tilewright.shape import Expr, Scope, ceil_div, constant, less, minimum, product, symbol
from tilewright.tile.moves.staged import StagedResult, staged, staged_runs
from tilewright.tile.moves.transposes import SIZES
from tilewright.tile.passes.streams import products_streamed
from tilewright.tile.products.block_sizes import (
    column_block,
    depth_block,
    most_depth,
    pack_row,
    row_block,
    rows_first,
)
from tilewright.tile.products.codes import CodeOperand, code_operand, unpacking
from tilewright.tile.products.frame import (
    Axes,
    Blocking,
    Frame,
    RegisterTile,
    declare,
    elements_per_word,
    mirror,
)
from tilewright.tile.products.program import BlockSizes, Loaded, product_program
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import LoweredStep, PackedConstant, Source

NANOSECONDS_SHIFT = 48  # multiply-adds per nanosecond of one thread, for the thread count


def lower_contraction(
    kernel: Kernel,
    lowering: Lowering,
    tile: RegisterTile,
    blocking: Blocking | None = None,
    mirrored: bool = False,
) -> LoweredStep:
    """A Contract with its epilogue: rows broadcast, columns along the lanes.

    If ``mirrored``, it is the columns that are broadcast and the rows that are along the lanes.
    """
    contract = mirror(kernel.seed) if mirrored else kernel.seed
    access = contraction_access(contract, lowering.scope, lowering.memory)
    depth = product([size for _, size in access.summed]) // elements_per_word(contract)
    registers = tile.for_product(contract)
    frame = Frame(
        kernel, lowering, registers, access.batch, access.rows, access.columns, depth,
        blocking or Blocking(), mirrored,
    )  # fmt: skip
    index = declare(lowering, access.batch)
    rows, columns = declare(lowering, access.rows), declare(lowering, access.columns)
    index += [*columns, *rows] if mirrored else [*rows, *columns]
    sources: list[Source] = []
    assert access.left is not None, f"{kernel.label}: the left operand must be affine"
    left = _in_place(access.left, lowering, elements_per_word(contract))
    right = _right_operand(frame, access, sources)
    return assemble(frame, tuple(index), left, right, sources)


def _in_place(access: Access, lowering: Lowering, word: int = 1) -> View:
    """The operand as it lies in memory; of several elements a ``word`` if they do along k."""
    buffer = lowering.buffer(access.source)
    if word == 1:
        return View(buffer, access.base, access.row, access.depth)
    assert access.is_in_words(word)
    return View(buffer, access.base // word, access.row // word, access.depth)


def _right_operand(frame: Frame, access: ContractionAccess, sources: list[Source]) -> View | Loaded:
    right = frame.contract.inputs[1]
    codes = code_operand(frame.contract, access, frame.tile.columns)
    if codes is not None:
        return _unpack_codes(frame, codes, sources)
    if is_constant(frame.lowering, right):
        packed = packed_constant(frame.contract, 1, frame.tile.columns)
        return packed_operand(frame, packed, frame.n, sources)
    if elements_per_word(frame.contract) > 1:
        return _pack_words(frame, access)
    unit = access.right is not None and access.right.row.is_constant
    is_row = access.right is not None and unit and access.right.row.value == 1
    if access.right is not None and is_row and not frame.blocking.packed:
        return _in_place(access.right, frame.lowering)
    return _pack(frame, access, right)


def _unpack_codes(frame: Frame, operand: CodeOperand, sources: list[Source]) -> Loaded:
    """A block of weights of few bits as floats; it begins with a word and ends with one."""
    row = pack_row(frame)
    unit = operand.codes.per_word
    block = ceil_div(depth_block(frame.depth, most_depth(frame, packing=True)), unit) * unit
    target = frame.lowering.scratch_buffer(frame.contract.dtype, row * block)
    sources += operand.sources
    made = packed_block(target, row, (unpacking(operand, target, row),))
    return replace(made, packed=operand.buffers)


def is_constant(lowering: Lowering, operand: Node) -> bool:
    """Whether ``operand`` is a view of a constant, which part of it known when compiling."""
    while is_view(operand) and operand not in lowering.memory:
        if not all(expression.is_constant for expression in expressions_of(operand)):
            return False
        operand = operand.inputs[0]
    return isinstance(operand.primitive, Constant)


def packed_constant(contract: Node, side: int, panel: int) -> PackedConstant:
    """Operand ``side`` of a Contract in panels: batch, then its own axes, then the summed ones."""
    primitive, operand = contract.primitive, contract.inputs[side]
    assert isinstance(primitive, Contract)
    batch, summed = [p[side] for p in primitive.batch], [p[side] for p in primitive.summed]
    free = [a for a in range(operand.rank) if a not in batch + summed]
    order = (*batch, *free, *summed)
    word = elements_per_word(contract)
    return PackedConstant(operand, order, len(batch), len(summed), panel, word)


def packed_operand(frame: Frame, packed: PackedConstant, rows: Expr, sources: list[Source]) -> View:
    """The operand that reads a constant packed when compiling."""
    buffer = TileBuffer(f"p{len(sources)}", frame.kernel.seed.dtype)
    sources.append(packed)
    size = ceil_div(rows, packed.panel) * packed.panel * frame.depth
    base = constant(0)
    for name, extent in frame.batch[len(frame.batch) - packed.lead :] if packed.lead else ():
        base = base * extent + symbol(name)
    return View(buffer, base * size, frame.depth, constant(packed.panel), packed.panel)


def _pack(frame: Frame, access: ContractionAccess, right: Node) -> Loaded:
    """Loops that evaluate a block of the right operand; the contiguous axis is innermost."""
    lowering = frame.lowering
    row = pack_row(frame)
    block = depth_block(frame.depth, most_depth(frame, packing=True))
    target = lowering.scratch_buffer(right.dtype, row * block)
    transposed = _transposed(frame, access, target, row)
    if transposed is not None:
        return packed_block(target, row, (transposed,))
    deep = access.right is not None and access.right.depth.is_constant
    depth_first = not (deep and access.right is not None and access.right.depth.value == 1)
    axes = [("_k", frame.depth), ("_n", frame.n)]
    for name, size in axes if depth_first else reversed(axes):
        lowering.opened(name, size)
    k, n = symbol("_k"), symbol("_n")
    batch = [symbol(name) for name, _ in frame.batch]
    places = (batch, unflatten(n, frame.columns), unflatten(k, access.summed))
    value = lowering.value(right, operand_index(frame.contract, 1, *places))
    place = (k - symbol("_k0")) * row + (n - symbol("_n0"))
    lowering.emit(Store(target, place, value))
    for name, _ in reversed(axes) if depth_first else axes:
        bounds = symbol(f"{name}0"), symbol(f"{name}1")
        lowering.emit(Loop(name, *bounds, lowering.close()))
    return packed_block(target, row, taken_statements(lowering))


def _pack_words(frame: Frame, access: ContractionAccess) -> Loaded:
    """The same of an operand of which several elements that follow along k become a word."""
    lowering, right = frame.lowering, access.right
    assert right is not None, f"{frame.kernel.label}: the right operand must be affine"
    word = elements_per_word(frame.contract)
    row = pack_row(frame)
    block = depth_block(frame.depth, most_depth(frame, packing=True))
    source = lowering.buffer(right.source)
    k0, k1, n0, n1 = (symbol(name) for name in ("_k0", "_k1", "_n0", "_n1"))
    if right.is_in_words(word) and access.filled % word is constant(0):
        words = lowering.scratch_buffer(frame.contract.dtype, row * block)
        apart = right.row // word
        begin = right.base // word + n0 * apart + k0
        turned = TransposeBlock(
            source, begin, apart, words, constant(0), row, n1 - n0, k1 - k0
        )  # fmt: skip
        return packed_block(words, row, (turned,))
    target = lowering.scratch_buffer(source.dtype, row * block * word)
    k = symbol("_k")
    first, place = right.base + n0 * right.row + k * word * right.depth, (k - k0) * row * word
    if right.row is constant(1):
        parts = minimum(access.filled - k * word, word)
        body: Statement = TransposeBlock(
            source, first, right.depth, target, place, constant(word), parts, n1 - n0
        )
    else:
        column = symbol("_n") - n0
        loads = [Load(source, first + column * right.row + i * right.depth) for i in range(word)]
        zero = Literal(0, source.dtype)
        stores = tuple(
            Store(target, place + column * word + i,
                  Guarded(less(k * word + i, access.filled), load, zero))
            for i, load in enumerate(loads)
        )  # fmt: skip
        body = Loop("_n", n0, n1, stores)
    return packed_block(target, row, (Loop("_k", k0, k1, (body,)),))


def packed_block(target: TileBuffer, row: Expr, load: tuple[Statement, ...]) -> Loaded:
    """A right operand of which ``load`` fills ``target`` with a block.

    Element (k, n) of it goes to ``(k - _k0) * row + (n - _n0)``.
    """
    return Loaded(View(target, constant(0), constant(1), row), load)


def _transposed(
    frame: Frame, access: ContractionAccess, target: TileBuffer, row: Expr
) -> TransposeBlock | None:
    """The packing of an operand that is contiguous along k, if it is one."""
    right = access.right
    if right is None or right.source.dtype.bytes not in SIZES:
        return None
    if not right.depth.is_constant or right.depth.value != 1:
        return None
    k0, k1, n0, n1 = (symbol(name) for name in ("_k0", "_k1", "_n0", "_n1"))
    source = frame.lowering.buffer(right.source)
    offset = right.base + n0 * right.row + k0
    return TransposeBlock(source, offset, right.row, target, constant(0), row, n1 - n0, k1 - k0)


def taken_statements(lowering: Lowering) -> tuple[Statement, ...]:
    """The statements of the outermost level, which becomes empty again."""
    body = tuple(lowering.blocks[0].statements)
    lowering.blocks[0].statements = []
    lowering.blocks[0].memo = {}
    return body


def assemble(
    frame: Frame,
    index: Index,
    left: View | Loaded,
    right: View | Loaded,
    sources: list[Source],
    block_depth: Expr | None = None,
    block_rows: Expr | None = None,
    block_columns: Expr | None = None,
) -> LoweredStep:
    """Add the epilogue and the block sizes."""
    lowering, kernel = frame.lowering, frame.kernel
    packing = isinstance(right, Loaded)
    if block_depth is None:
        block_depth = depth_block(frame.depth, most_depth(frame, packing))
    targets = {o: TileBuffer(f"o{i}", o.dtype) for i, o in enumerate(kernel.outputs)}
    if block_columns is None:
        block_columns = column_block(frame, packing)
    rows = row_block(frame, packing) if block_rows is None else block_rows
    stores = epilogue_stores(frame, index, targets)
    stages = _stages(frame, index, targets, (rows, block_columns))
    stores = tuple(
        Store(stages[s.buffer].buffer, stages[s.buffer].offset, s.value)
        if s.buffer in stages
        else s
        for s in stores
    )
    packed = [op.buffer for op in (left, right) if isinstance(op, View) and op.panel]
    packed += [b for op in (left, right) if isinstance(op, Loaded) for b in op.packed]
    count = product([size for _, size in frame.batch]) * frame.m * frame.n
    # Results that are turned on their way out do not lie row by row.
    first = NEVER if stages else rows_first(frame)
    program = product_program(
        frame,
        BlockSizes(rows, block_columns, block_depth, first),
        (left, right),
        stores,
        ((*lowering.buffers.values(), *packed), tuple(targets.values())),
        count * (frame.depth + 8) // NANOSECONDS_SHIFT + 1,
        tuple(stages.values()),
        lowering.scope.resolve(products_streamed(kernel, frame.n, stores, frame.tile)),
    )
    assert not lowering.blocks[0].statements, f"{kernel.label}: an epilogue cannot hold statements"
    return LoweredStep(program, (*lowering.buffers, *sources), tuple(kernel.outputs))


def _stages(
    frame: Frame, index: Index, targets: dict[Node, TileBuffer], blocks: tuple[Expr, Expr]
) -> dict[TileBuffer, StagedResult]:
    """The stages of results whose columns do not lie side by side."""
    scope, found = frame.lowering.scope, dict[TileBuffer, StagedResult]()
    for output, buffer in targets.items():
        _, place = shown(output, index, scope)
        offset = scope.resolve(linear(place, output.shape))
        stages = staged_runs if frame.joined else staged
        stage = stages(buffer, offset, (frame.rows, frame.columns), blocks, scope)
        if stage is not None:
            found[buffer] = stage
    return found


def shown(output: Node, index: Index, scope: Scope) -> tuple[Node, Index]:
    """The node that ``output`` is a view of, and where its element ``index`` is there."""
    base, views = output, list[Node]()
    while is_view(base):
        views.append(base)
        base = base.inputs[0]
    for view in reversed(views):
        index = push_forward(view, index, scope)
    return base, index


def epilogue_stores(
    frame: Frame, index: Index, targets: dict[Node, TileBuffer]
) -> tuple[Store, ...]:
    """Stores of the results at row "_m" and column "_n"."""
    lowering, kernel = frame.lowering, frame.kernel
    resolved = tuple(lowering.scope.resolve(i) for i in index)

    def finished(asked: Index) -> Value | None:
        return Local("accumulator", kernel.seed.dtype) if asked == resolved else None

    lowering.cached[kernel.seed] = finished
    return _flattened(frame, tuple(result_stores(lowering, targets, index)))


def result_stores(lowering: Lowering, targets: dict[Node, TileBuffer], index: Index) -> list[Store]:
    """Stores of element ``index`` of what each result is a view of, where it lies in the result."""
    stores: list[Store] = []
    for output, buffer in targets.items():
        base, place = shown(output, index, lowering.scope)
        offset = lowering.scope.resolve(linear(place, output.shape))
        stores.append(Store(buffer, offset, lowering.value(base, index)))
    return stores


def _flattened(frame: Frame, stores: tuple[Store, ...]) -> tuple[Store, ...]:
    """Replace the axes of rows and columns by the flat "_m" and "_n"."""
    scope = frame.lowering.scope
    mapping: dict[str, Expr] = {}
    for axes, flat in ((frame.rows, symbol("_m")), (frame.columns, symbol("_n"))):
        real = [(name, size) for name, size in axes if not (size.is_constant and size.value == 1)]
        mapping |= {name: constant(0) for name, _ in axes}
        if not real:
            continue
        if all(_contiguous(stores, real, scope)):
            mapping[real[-1][0]] = flat
        else:
            mapping |= zip([n for n, _ in real], unflatten(flat, real), strict=True)
    return ExpressionMap.substitution(mapping).stores(stores)


def _contiguous(stores: tuple[Store, ...], axes: Axes, scope: Scope) -> list[bool]:
    """For every expression, whether it walks the axes as one flat axis."""
    names = [name for name, _ in axes]
    verdicts: list[bool] = []
    for expression in dict.fromkeys(expressions(stores)):
        if not any(n in names for n in expression.free_symbols):
            continue
        affine = scope.resolve(expression).affine(names)
        if affine is None:
            verdicts.append(False)
            continue
        slopes = affine[0]
        for (outer, _), (inner, size) in pairwise(axes):
            zero = constant(0)
            verdicts.append(slopes.get(outer, zero) is slopes.get(inner, zero) * size)
    return verdicts
