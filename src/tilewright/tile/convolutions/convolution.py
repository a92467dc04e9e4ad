"""Convolutions as contractions: rows are output channels, columns are output pixels.

Channels-first data is read as it is: a 1x1 convolution reads its pixels in place; any other packs a
block of (channel, tap) x pixel into cache, row segment by row segment, with zeros where a tap lies
outside. Nothing is unrolled in memory. Weights are packed when compiling. Start with
:func:`lower_convolution`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.cost import Machine, contraction_time, contraction_work, taken_time, workers_for
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Constant, Convolve, Transpose
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.tile import Load, Loop, Store, View
from tilewright.policy import Policy
from tilewright.policy.cover import Bound
from tilewright.rewrite.precision import Narrower, never_narrowed
from tilewright.shape import Expr, Scope, ceil_div, constant, maximum, minimum, product, symbol
from tilewright.tile.convolutions.channel_lines import PackedLines
from tilewright.tile.convolutions.gathered import gathered_time, lower_channels_last
from tilewright.tile.convolutions.phase_lines import PhaseLines, shares_lines
from tilewright.tile.convolutions.pointwise import listed_variant, turned_way
from tilewright.tile.convolutions.whole_windows import windows_way
from tilewright.tile.convolutions.winograd import winograd_variants
from tilewright.tile.narrow import converted, meetings, narrow_kernel
from tilewright.tile.passes.masks import with_masks
from tilewright.tile.prices import shared_out
from tilewright.tile.products.block_sizes import PACKED_DEPTH, depth_block, most_depth, pack_row
from tilewright.tile.products.contraction import assemble, packed_block, packed_operand
from tilewright.tile.products.frame import Blocking, Frame, RegisterTile, declare
from tilewright.tile.products.program import Loaded
from tilewright.tile.products.tiles import kernel_tiles
from tilewright.tile.products.variants import Choice, Way, best_somewhere, needed, plain_ways
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.values.taps import has_one_tap, is_pointwise
from tilewright.tile.variants import (
    THREADS,
    Accuracy,
    LoweredStep,
    PackedConstant,
    Source,
    Variant,
    between,
    workspace,
)

# How far the variants that are kept may be from the best of all.
CLOSE = Bound(mean=0.005, worst=0.05, most=8)
# Blocks that read weights once, which in a network come from farther away than prices know, stay
# unless others are faster by this part, a fiftieth: with equal prices ResNet-50 lost as much.
FELT = 50


def lower_convolution(
    kernel: Kernel,
    fresh: Callable[[], Lowering],
    tile: RegisterTile,
    accuracy: Accuracy,
    machine: Machine,
    policy: Policy,
    narrower: Narrower = never_narrowed,
) -> tuple[Variant, ...]:
    """The variants to compute a Convolve with its epilogue; ``fresh`` makes a lowering for each.

    ``narrower`` says which convolutions may be computed in fewer bits as well.
    """
    primitive = kernel.seed.primitive
    assert isinstance(primitive, Convolve)
    choice = Choice(machine, policy, fresh().scope)
    if primitive.channels_last:
        direct = _direct_variants(kernel, fresh, tile, choice)
        direct = (*direct, *_turned_first(kernel, tile, choice))
        copied = windows_way(kernel, fresh, tile, machine)
        direct = (*direct, *(choice.blocked_variants([copied]) if copied else ()))
        direct_only = accuracy is Accuracy.STRICT or primitive.sums is not None
        others = () if direct_only else winograd_variants(kernel, fresh, tile, machine)
        narrow = _narrow_variants(kernel, fresh().scope, tile, machine, narrower)
        # Others' code and weights would be for nothing.
        return needed((*direct, *others, *narrow), fresh().scope, machine, CLOSE)

    def lower(blocking: Blocking) -> tuple[LoweredStep, ...]:
        return (_packed(kernel, fresh(), tile, blocking),)

    def lower_joined(blocking: Blocking) -> tuple[LoweredStep, ...]:
        return (_packed(kernel, fresh(), tile, blocking, joined=True),)

    if not has_one_tap(kernel.seed):
        return _tapped_variants(kernel, fresh, tile, choice)
    ways, _ = plain_ways(lower)
    turned = turned_way(kernel, fresh, tile, machine)
    ways = ways if turned is None else (*ways, turned)
    if _are_joined(kernel, fresh()):
        ways = (*ways, Way(", images joined", lower_joined, packed=True))
    listed = listed_variant(kernel, fresh, tile, machine)
    return best_somewhere((*choice.blocked_variants(ways), *([listed] if listed else [])))


def _tapped_variants(
    kernel: Kernel, fresh: Callable[[], Lowering], tile: RegisterTile, choice: Choice
) -> tuple[Variant, ...]:
    """Several taps, channels first: lines are copied for every tap, or for all that share them."""
    machine, made = choice.machine, list[Variant]()
    names = ["packed", *(["packed lines"] if shares_lines(kernel.seed) else [])]
    for shared, name in enumerate(names):

        def lower(size: RegisterTile, shared: bool = bool(shared)) -> LoweredStep:
            return _packed(kernel, fresh(), size, Blocking(), shared=shared)

        step = lower(kernel_tiles(tile, lower, choice.scope, machine))
        nest = ProductNest.of(step.program)
        time = contraction_time(nest, machine, symbol(THREADS))
        step = shared_out(step, contraction_work(nest, machine))
        made.append(Variant(name, (step,), time))
    return needed(made, choice.scope, machine, CLOSE)


def _direct_variants(
    kernel: Kernel, fresh: Callable[[], Lowering], tile: RegisterTile, choice: Choice
) -> tuple[Variant, ...]:
    """The plain algorithm with the channels last: what one tap of every pixel is, a product."""
    node, machine = kernel.seed, choice.machine
    shape = kernel_tiles(
        tile, lambda size: lower_channels_last(kernel, fresh(), size), choice.scope, machine
    )

    def lower(blocking: Blocking | None = None) -> tuple[LoweredStep, ...]:
        return (lower_channels_last(kernel, fresh(), shape, blocking),)

    (step,) = with_masks(lower(), machine)
    if is_pointwise(node) and fresh().is_stored(node.inputs[0]):
        ways, nest = plain_ways(lower)
        time = contraction_time(nest, machine, symbol(THREADS))
        return choice.blocked_variants(ways, (Variant("gathered", (step,), time - time // FELT),))
    step = shared_out(step, contraction_work(ProductNest.of(step.program), machine))
    return (
        Variant("gathered", (step,), gathered_time(ProductNest.of(step.program), node, machine)),
    )


def _turned_first(kernel: Kernel, tile: RegisterTile, choice: Choice) -> tuple[Variant, ...]:
    """The same with its data transposed by a step before, where it has the channels first.

    Lines that are copied instead are copied for every block of channels of the result, and for all
    taps, those over padding too. Which of both is taken is decided by price in the call.
    """
    node, scope, machine = kernel.seed, choice.scope, choice.machine
    data = node.inputs[0]
    if data in kernel.reads or not isinstance(data.primitive, Transpose):
        return ()
    place = {n: number for number, n in enumerate((*kernel.reads, *kernel.body))}.__getitem__
    before = kernel.part((), (data,), kernel.reads, place)
    after = kernel.part(kernel.seeds, kernel.outputs, {*kernel.reads, data}, place)
    spaces = {data: workspace(data)}
    made: list[Variant] = []
    for moved in converted(before, scope, machine):
        waited = moved.cost + meetings(moved.steps, machine)
        for direct in _direct_variants(after, lambda: Lowering(after, scope), tile, choice):
            steps = tuple(between(step, spaces) for step in (*moved.steps, *direct.steps))
            taken = _taken_time(data, machine, moved.steps[-1], direct.steps[0])
            made.append(Variant(f"turned; {direct.name}", steps, waited + direct.cost + taken))
    return tuple(made)


def _taken_time(data: Node, machine: Machine, writer: LoweredStep, reader: LoweredStep) -> Expr:
    """Picoseconds for lines of transposed data that another thread has read in the last call.

    Both steps share the pixels out alike: half of the lines, where shares end elsewhere (two
    threads of Zen 4: 2.1 to 3.4 ns for each line that a thread writes).
    """
    half = product(data.shape) * data.dtype.bytes // 2
    works = (1000 * step.program.work for step in (writer, reader))
    return taken_time(half, machine, *(workers_for(work, symbol(THREADS)) for work in works))


def _narrow_variants(
    kernel: Kernel, scope: Scope, tile: RegisterTile, machine: Machine, narrower: Narrower
) -> tuple[Variant, ...]:
    """The same convolution over narrow operands, for each way to convert its data first."""
    narrow = narrow_kernel(kernel, narrower)
    if narrow is None:
        return ()
    step = lower_channels_last(narrow.product, Lowering(narrow.product, scope), tile)
    cost = gathered_time(ProductNest.of(step.program), narrow.product.seed, machine)
    return tuple(
        Variant(
            f"gathered, {prepared.name}",
            (*prepared.steps, narrow.placed(step)),
            prepared.cost + cost,
        )
        for prepared in narrow.prepared(scope, machine)
    )


def _packed(
    kernel: Kernel,
    lowering: Lowering,
    tile: RegisterTile,
    blocking: Blocking,
    joined: bool = False,
    shared: bool = False,
) -> LoweredStep:
    """Pixels of an image along the columns, or if they are ``joined`` those of all images.

    Lines that are copied are ``shared`` by taps, or have a copy for each.
    """
    node = kernel.seed
    primitive = node.primitive
    assert isinstance(primitive, Convolve)
    data, weights = node.inputs
    per_group = weights.shape[0] // primitive.groups
    images, groups = ("_b0", data.shape[0]), ("_b1", constant(primitive.groups))
    rows = (("_m0", per_group),)
    pixels = tuple((f"_n{i + 2}", size) for i, size in enumerate(node.shape[2:]))
    batch, columns = ((groups,), (images, *pixels)) if joined else ((images, groups), pixels)
    depth = product(weights.shape[1:])
    shape = tile.for_type(node.dtype)
    frame = Frame(kernel, lowering, shape, batch, rows, columns, depth, blocking, joined=joined)
    *image, b1 = declare(lowering, batch)
    (m,) = declare(lowering, rows)
    image, place = [*image, *declare(lowering, columns)][:1], declare(lowering, pixels)
    index = (*image, b1 * per_group + m, *place)
    sources: list[Source] = []
    left = _weights(frame, weights, primitive.groups, sources)
    if has_one_tap(node):
        return assemble(frame, index, left, _pixels(frame, node), sources)
    if shared:
        own = PhaseLines.of(frame, node)
        right, columns = own.packed(frame), own.columns
        return assemble(frame, index, left, right, sources, depth, block_columns=columns)
    taps = product(weights.shape[2:])
    block = constant(max(1, PACKED_DEPTH // max(1, taps.value)) * taps.value)
    lines = PackedLines.of(frame, node, minimum(maximum(depth, 1), block))
    right = lines.packed(frame)
    return assemble(frame, index, left, right, sources, lines.depth, block_columns=lines.columns)


def _are_joined(kernel: Kernel, lowering: Lowering) -> bool:
    """Whether a Convolve of one tap has a way for the pixels of several images together.

    Of an epilogue with operands of the result's shape, elements would be read one by one.
    """
    node, memory = kernel.seed, lowering.memory
    if node.shape[0] is constant(1) or not is_pointwise(node) or node.inputs[0] not in memory:
        return False
    others = [read for read in kernel.reads if read is not node.inputs[0]]
    return all(isinstance(read.primitive, Constant) for read in others)


def _weights(frame: Frame, weights: Node, groups: int, sources: list[Source]) -> View:
    per_group = weights.shape[0] // groups
    if isinstance(weights.primitive, Constant):
        order = tuple(range(weights.rank))
        packed = PackedConstant(weights, order, -groups, weights.rank - 1, frame.tile.rows)
        operand = packed_operand(frame, packed, per_group, sources)
        size = ceil_div(per_group, packed.panel) * packed.panel * frame.depth
        return replace(operand, offset=symbol("_b1") * size)
    base = symbol("_b1") * per_group * frame.depth
    return View(frame.lowering.buffer(weights), base, frame.depth, constant(1))


def _pixels(frame: Frame, node: Node) -> View | Loaded:
    """The right operand of one tap."""
    lowering = frame.lowering
    data, weights = node.inputs
    if not is_pointwise(node) or data not in lowering.memory:
        return PackedLines.of(frame, node, _packed_depth(frame)).packed(frame)
    pixels = product(data.shape[2:])
    base = (symbol("_b0") * data.shape[1] + symbol("_b1") * weights.shape[1]) * pixels
    source = lowering.buffer(data)
    if frame.joined:
        return _pack_images(frame, node)
    if not frame.blocking.packed:
        return View(source, base, constant(1), pixels)
    return _pack_pixels(frame, Load(source, base + symbol("_k") * pixels + symbol("_n")))


def _packed_depth(frame: Frame) -> Expr:
    """Channels of a block."""
    return depth_block(frame.depth, most_depth(frame, packing=True))


def _pack_pixels(frame: Frame, pixel: Load) -> Loaded:
    """Copy a block of channels by pixels."""
    row = pack_row(frame)
    target = frame.lowering.scratch_buffer(pixel.buffer.dtype, row * _packed_depth(frame))
    k0, k1, n0, n1 = (symbol(name) for name in ("_k0", "_k1", "_n0", "_n1"))
    place = (symbol("_k") - k0) * row + symbol("_n") - n0
    line = Loop("_n", n0, n1, (Store(target, place, pixel),))
    return packed_block(target, row, (Loop("_k", k0, k1, (line,)),))


def _pack_images(frame: Frame, node: Node) -> Loaded:
    """Copy a block of channels by the pixels of several images, image by image."""
    data, per_group = node.inputs[0], node.inputs[1].shape[1]
    pixels, row = product(data.shape[2:]), pack_row(frame)
    source, some = frame.lowering.buffer(data), maximum(pixels, 1)
    target = frame.lowering.scratch_buffer(data.dtype, row * _packed_depth(frame))
    k0, k1, n0, n1 = (symbol(name) for name in ("_k0", "_k1", "_n0", "_n1"))
    image = frame.lowering.scope.declare("_i", 0)
    channel = image * data.shape[1] + symbol("_b1") * per_group + symbol("_k") - image
    pixel = Load(source, channel * pixels + symbol("_n"))
    place = (symbol("_k") - k0) * row + symbol("_n") - n0
    bounds = maximum(n0, image * pixels), minimum(n1, (image + 1) * pixels)
    line = Loop("_n", *bounds, (Store(target, place, pixel),))
    body = Loop("_i", n0 // some, ceil_div(n1, some), (Loop("_k", k0, k1, (line,)),))
    return packed_block(target, row, (body,))
