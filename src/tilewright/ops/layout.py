"""Rules that rename, merge, split and order axes: Shape, Reshape, Squeeze, Transpose, Concat, ….

None of them computes anything. Read ``_reshape`` for how sizes of 0 and -1, known and unknown, are
resolved. Cutting and padding are in ``slicing``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph import Node
from tilewright.ir.make import transpose
from tilewright.ops.build import Builder, dimension
from tilewright.ops.record import NoRule, RuleContext, operator
from tilewright.ops.sizes import (
    data_operand,
    flattened_axes,
    integer_vector,
    is_at_least,
    is_negative,
    named,
    require_multiple,
    size_of,
)
from tilewright.shape import (
    Expr,
    Truth,
    ceil_div,
    constant,
    equal,
    exact_quotient,
    logical_not,
    maximum,
    product,
    select,
    total,
)
from tilewright.support.text import format_count


@operator("Shape", computes=False)
def _shape(context: RuleContext) -> Sequence[Node]:
    operand = context.operand(0)
    start, end = context.integer("start", 0), context.integer("end", operand.rank)
    return [integer_vector(Builder(context), operand.shape[slice(start, end)])]


@operator("Size", computes=False)
def _size(context: RuleContext) -> Sequence[Node]:
    return [dimension(context.scope.resolve(product(context.operand(0).shape)))]


@operator("Reshape", since=5, computes=False)
def _reshape(context: RuleContext) -> Sequence[Node]:
    data = data_operand(context)
    wanted = context.integers(1)
    builder = Builder(context)
    if not context.integer("allowzero", 0):
        wanted = _copied_sizes(context, data, wanted)
    sizes = _inferred_sizes(context, data, wanted)
    return [builder.reshape(data, sizes)]


def _copied_sizes(context: RuleContext, data: Node, wanted: list[Expr]) -> list[Expr]:
    """``wanted`` with the operand's size where it is 0.

    A size that the model computes from dimensions is meant as it is: it is 0 only together with the
    operand, and then copying another axis would be an accident.
    """
    out: list[Expr] = []
    for axis, size in enumerate(wanted):
        if axis >= data.rank or (is_at_least(context, size, 0) and not size.is_constant):
            out.append(size)
        elif size.is_constant:
            out.append(size if size.value else data.shape[axis])
        else:
            out.append(select(equal(size, 0), data.shape[axis], size))
    return [context.scope.resolve(size) for size in out]


def _inferred_sizes(context: RuleContext, data: Node, wanted: list[Expr]) -> list[Expr]:
    """``wanted`` with -1 replaced, guarded so that the numbers of elements agree."""
    scope = context.scope
    count = scope.resolve(product(data.shape))
    message = "the operand cannot be reshaped: the number of elements differs"
    if any(is_negative(context, size) for size in wanted):
        # Only one size may be -1, so the others are what they say.
        wanted = [s if is_negative(context, s) else size_of(context, s, "a size") for s in wanted]
    if not all(is_at_least(context, s, 0) or is_negative(context, s) for s in wanted):
        sizes = _sizes_of_run_time(context, count, wanted)
        context.require(equal(count, product(sizes)), f"{message} ({count} into {sizes})")
        return sizes
    unknown = [size for size in wanted if is_negative(context, size)]
    for size in unknown:
        context.require(equal(size, -1), "a size must be -1, 0 or more")
    context.require(constant(int(len(unknown) < 2)), "only one size may be -1")
    known = scope.resolve(product(s for s in wanted if s not in unknown))
    if not unknown:
        context.require_equal(count, known, message)
        return wanted
    # Where an exact quotient exists it also is the size meant when nothing is divided by nothing,
    # above all one without the sizes that stay as they are.
    kept = _leading_alike(context, data, wanted)
    rest = scope.resolve(product(data.shape[kept:]))
    missing = exact_quotient(
        rest, scope.resolve(product(s for s in wanted[kept:] if s not in unknown))
    )
    if missing is None:
        missing = exact_quotient(count, known)
    if missing is None:
        missing = scope.resolve(count // maximum(known, 1))
    sizes = [missing if size in unknown else size for size in wanted]
    context.require(equal(count, product(sizes)), f"{message} ({count} into {sizes})")
    return sizes


def _leading_alike(context: RuleContext, data: Node, wanted: list[Expr]) -> int:
    """How many leading axes keep their sizes."""
    alike = 0
    for own, size in zip(Builder(context).shape(data.shape), wanted, strict=False):
        if own is not size:
            break
        alike += 1
    return alike


def _sizes_of_run_time(context: RuleContext, count: Expr, wanted: list[Expr]) -> list[Expr]:
    """Sizes of which each may turn out to be -1 as symbols of their own."""
    others = product(select(equal(size, -1), 1, size) for size in wanted)
    missing = count // maximum(others, 1)
    perhaps = [size for size in wanted if not is_at_least(context, size, 0)]
    symbols = named(Builder(context), [select(equal(s, -1), missing, s) for s in perhaps])
    sizes = [size_of(context, symbol, "a size") for symbol in symbols]
    return [sizes.pop(0) if size in perhaps else size for size in wanted]


@operator("Flatten", computes=False)
def _flatten(context: RuleContext) -> Sequence[Node]:
    data = data_operand(context)
    value = context.integer("axis", 1)
    axis = value + data.rank if value < 0 else value
    message = f"axis {value} is none of 0 to {data.rank}, before which a tensor can be cut"
    context.require(constant(int(0 <= axis <= data.rank)), message)
    sizes = [product(data.shape[:axis]), product(data.shape[axis:])]
    return [Builder(context).reshape(data, sizes)]


def _axes(context: RuleContext) -> list[int] | None:
    """The axes, or None."""
    return None if context.optional(1) is None else context.static_integers(1, "axes")


@operator("Squeeze", computes=False)
def _squeeze(context: RuleContext) -> Sequence[Node]:
    data = data_operand(context)
    builder = Builder(context)
    given = _axes(context)
    axes: list[int] = []
    if given is not None:
        axes = flattened_axes(given, data.rank, builder)
        for axis in axes:
            context.require_equal(data.shape[axis], constant(1), f"axis {axis} is squeezed")
    else:
        for axis, size in enumerate(data.shape):
            if context.scope.is_equal(size, 1) is Truth.YES:
                axes.append(axis)
            else:
                message = f"axis {axis} would vanish at size 1: give the axes of Squeeze"
                context.require(logical_not(equal(size, 1)), message)
    return [builder.reshape(data, [s for a, s in enumerate(data.shape) if a not in axes])]


@operator("Unsqueeze", computes=False)
def _unsqueeze(context: RuleContext) -> Sequence[Node]:
    data = data_operand(context)
    builder = Builder(context)
    given = _axes(context)
    if given is None:
        given = context.static_integers(1, "axes")
    axes = flattened_axes(given, data.rank + len(given), builder)
    return [builder.unsqueeze(data, axes)]


@operator("Transpose", computes=False)
def _transpose(context: RuleContext) -> Sequence[Node]:
    data = data_operand(context)
    permutation = context.integer_list("perm", range(data.rank - 1, -1, -1))
    return [transpose(data, permutation)]


@operator("Concat", since=4, computes=False)
def _concat(context: RuleContext) -> Sequence[Node]:
    parts = [data_operand(context, index) for index in range(len(context.inputs))]
    builder = Builder(context)
    return [builder.concat(parts, builder.axis(context.integer("axis"), parts[0].rank))]


@operator("Split", since=2, computes=False)
def _split(context: RuleContext) -> Sequence[Node]:
    data = data_operand(context)
    builder = Builder(context)
    axis = builder.axis(context.integer("axis", 0), data.rank)
    size = data.shape[axis]
    if context.optional(1) is not None:
        sizes = [size_of(context, s, "the size of a part") for s in context.integers(1)]
    else:
        sizes = _even_sizes(context, size)
    if len(sizes) != context.output_count:
        message = (
            f"{format_count(len(sizes), 'size')} for {format_count(context.output_count, 'output')}"
        )
        raise NoRule(message, where=context.where)
    context.require_equal(total(sizes), size, "the parts must make up the whole axis")
    out: list[Node] = []
    start: Expr = constant(0)
    for part in sizes:
        out.append(builder.slice_axis(data, axis, start, part))
        start = start + part
    return out


def _even_sizes(context: RuleContext, size: Expr) -> list[Expr]:
    """Equal parts; with ``num_outputs`` the last one may be smaller."""
    count = context.integer("num_outputs", context.output_count)
    if context.scope.divisible(size, count) is Truth.YES or not context.has("num_outputs"):
        message = f"an axis of size {size} must split into {count} equal parts"
        return [require_multiple(context, size, count, message)] * count
    part = ceil_div(size, count)
    last = size_of(context, size - part * (count - 1), "the size of the last part")
    return [part] * (count - 1) + [last]


@operator("Expand", since=8, computes=False)
def _expand(context: RuleContext) -> Sequence[Node]:
    data = data_operand(context)
    wanted = tuple(size_of(context, s, "a size") for s in context.integers(1))
    builder = Builder(context)
    return [builder.expand(data, builder.joint_shape([data.shape, wanted]))]


@operator("Tile", since=6, computes=False)
def _tile(context: RuleContext) -> Sequence[Node]:
    data = data_operand(context)
    builder = Builder(context)
    repeats = [size_of(context, r, "a number of repetitions") for r in context.integers(1)]
    return [repeat_blocks(builder, data, repeats)]


def repeat_blocks(builder: Builder, data: Node, repeats: Sequence[Expr]) -> Node:
    """``data`` laid ``repeats[a]`` times one after another along each axis a."""
    spread: list[Expr] = []
    merged: list[Expr] = []
    axes: list[int] = []
    for size, count in zip(data.shape, repeats, strict=True):
        once = builder.scope.is_equal(count, 1) is Truth.YES
        if not once and builder.scope.is_equal(size, 1) is Truth.YES:
            axes.append(len(spread))
            spread.append(count)
        else:
            spread += [size] if once else [count, size]
            axes.append(len(spread) - 1)
        merged.append(size * count)
    return builder.reshape(builder.broadcast(data, spread, axes), merged)


def _block_size(context: RuleContext) -> int:
    size = context.integer("blocksize")
    context.require(constant(int(size > 0)), "blocksize must be positive")
    return size


@operator("DepthToSpace", computes=False)
def _depth_to_space(context: RuleContext) -> Sequence[Node]:
    data = data_operand(context)
    builder = Builder(context)
    block = _block_size(context)
    batch, depth, height, width = data.shape
    message = f"the depth must be a multiple of {block * block}"
    channels = require_multiple(context, depth, block * block, message)
    if context.text("mode", "DCR") == "DCR":
        apart = builder.reshape(data, [batch, block, block, channels, height, width])
        ordered = transpose(apart, [0, 3, 4, 1, 5, 2])
    else:
        apart = builder.reshape(data, [batch, channels, block, block, height, width])
        ordered = transpose(apart, [0, 1, 4, 2, 5, 3])
    return [builder.reshape(ordered, [batch, channels, height * block, width * block])]


@operator("SpaceToDepth", computes=False)
def _space_to_depth(context: RuleContext) -> Sequence[Node]:
    data = data_operand(context)
    builder = Builder(context)
    block = _block_size(context)
    batch, channels, height, width = data.shape
    message = f"height and width must be multiples of {block}"
    rows = require_multiple(context, height, block, message)
    columns = require_multiple(context, width, block, message)
    apart = builder.reshape(data, [batch, channels, rows, block, columns, block])
    order = [0, 3, 5, 1, 2, 4] if context.text("mode", "DCR") == "DCR" else [0, 1, 3, 5, 2, 4]
    ordered = transpose(apart, order)
    return [builder.reshape(ordered, [batch, channels * block * block, rows, columns])]
