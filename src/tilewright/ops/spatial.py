"""Where windows lie: strides, dilations, padding and output sizes of convolutions and pooling.

Everything follows from the sizes of the operand, which may be symbolic, and from the attributes.
:func:`geometry` is what rules call; a :class:`Geometry` is what it answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ops.build import Builder
from tilewright.ops.record import NoRule, RuleContext
from tilewright.shape import (
    Expr,
    ceil_div,
    constant,
    equal,
    less_equal,
    logical_or,
    maximum,
    minimum,
)
from tilewright.support.errors import InvalidModelError


@dataclass(frozen=True)
class Geometry:
    """Per spatial axis: output element o reads operand element o * stride + tap * dilation - low.

    ``low`` and ``high`` are the declared paddings, ``sizes`` the output's, ``input`` the operand's.
    ``overhang`` tells where the last window may reach beyond the declared padding (rounding up).
    """

    input: tuple[Expr, ...]
    kernel: tuple[Expr, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[Expr, ...]
    high: tuple[Expr, ...]
    sizes: tuple[Expr, ...]
    overhang: tuple[bool, ...]

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.strides)


def per_axis(context: RuleContext, name: str, rank: int, default: int) -> tuple[int, ...]:
    """A list attribute with one entry per spatial axis."""
    values = context.integer_list(name, [default] * rank) or [default] * rank
    if len(values) != rank:
        message = f"attribute {name!r} has {len(values)} entries for {rank} spatial axes"
        raise InvalidModelError(message, where=context.where)
    return tuple(values)


def explicit_pads(context: RuleContext, rank: int) -> tuple[list[int], list[int]]:
    """The attribute ``pads`` as amounts before and after every axis."""
    pads = context.integer_list("pads", [0] * (2 * rank)) or [0] * (2 * rank)
    if len(pads) != 2 * rank:
        message = f"attribute 'pads' has {len(pads)} entries for {rank} spatial axes"
        raise InvalidModelError(message, where=context.where)
    if min(pads, default=0) < 0:
        raise NoRule("negative padding", where=context.where)
    return pads[:rank], pads[rank:]


def automatic_padding(context: RuleContext) -> str:
    """The attribute ``auto_pad``: NOTSET, SAME_UPPER, SAME_LOWER or VALID."""
    mode = context.text("auto_pad", "NOTSET") or "NOTSET"
    if mode not in ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"):
        raise InvalidModelError(f"'auto_pad' is {mode!r}", where=context.where)
    return mode


def positive(context: RuleContext, name: str, values: Sequence[int]) -> tuple[int, ...]:
    """Strides and dilations, which must be positive."""
    if min(values, default=1) < 1:
        raise InvalidModelError(f"{name} must be positive: {list(values)}", where=context.where)
    return tuple(values)


def geometry(
    b: Builder, spatial: Sequence[Expr], kernel: Sequence[Expr], *, ceil: bool, fits: bool = False
) -> Geometry:
    """The geometry of windows of ``kernel`` over ``spatial`` sizes by the node's attributes.

    If ``fits``, it is demanded that a window fits into what is not empty, as ONNX Runtime and
    PyTorch do of convolutions; where nothing is padded, that tells much of the sizes.
    """
    context, rank = b.context, len(spatial)
    strides = positive(context, "strides", per_axis(context, "strides", rank, 1))
    dilations = positive(context, "dilations", per_axis(context, "dilations", rank, 1))
    mode = automatic_padding(context)
    before, after = explicit_pads(context, rank) if mode == "NOTSET" else ([0] * rank, [0] * rank)
    low: list[Expr] = []
    high: list[Expr] = []
    sizes: list[Expr] = []
    overhang = tuple(ceil and mode[:4] != "SAME" and stride > 1 for stride in strides)
    for axis in range(rank):
        extent = (kernel[axis] - 1) * dilations[axis] + 1
        if mode.startswith("SAME"):
            pads, size = _same(spatial[axis], extent, strides[axis], mode)
        else:
            pads = (constant(before[axis]), constant(after[axis]))
            size = _size(b, axis, spatial[axis], extent, strides[axis], pads, ceil)
            if fits:
                _demand_fit(b, axis, spatial[axis], extent, pads)
        low.append(pads[0])
        high.append(pads[1])
        sizes.append(size)
    return Geometry(
        tuple(spatial), tuple(kernel), strides, dilations,
        b.shape(low), b.shape(high), b.shape(sizes), overhang,
    )  # fmt: skip


def _same(size: Expr, extent: Expr, stride: int, mode: str) -> tuple[tuple[Expr, Expr], Expr]:
    """Paddings and size for one output element per ``stride`` operand elements."""
    out = ceil_div(size, stride)
    padding = maximum(0, (out - 1) * stride + extent - size)
    smaller = padding // 2
    larger = padding - smaller
    return ((smaller, larger) if mode == "SAME_UPPER" else (larger, smaller)), out


def _size(
    b: Builder, axis: int, size: Expr, extent: Expr, stride: int,
    pads: tuple[Expr, Expr], ceil: bool,
) -> Expr:  # fmt: skip
    room = size + pads[0] + pads[1] - extent
    if ceil:
        # The last window must start inside of the operand or of the padding before it.
        out = minimum(ceil_div(room, stride) + 1, ceil_div(size + pads[0], stride))
    else:
        out = room // stride + 1
    b.context.require(less_equal(0, out), _too_small(axis, size, extent))
    return out


def _demand_fit(b: Builder, axis: int, size: Expr, extent: Expr, pads: tuple[Expr, Expr]) -> None:
    missing = extent - pads[0] - pads[1]
    fits = logical_or(less_equal(missing, 1), less_equal(missing, size))
    b.context.require(logical_or(fits, equal(size, 0)), _too_small(axis, size, extent))


def _too_small(axis: int, size: Expr, extent: Expr) -> str:
    return f"spatial axis {axis} of size {size} is too small for a window of {extent}"
