"""The table of rules, in the order in which they are tried on a node.

Each is described by its own docstring. Read :data:`RULES`.
"""

from __future__ import annotations

from tilewright.ir.primitives import (
    ArgReduce,
    Broadcast,
    Cast,
    Concat,
    Constant,
    Contract,
    Convolve,
    Dimension,
    Gather,
    GatherElements,
    GatherND,
    Iota,
    Map,
    Pad,
    Primitive,
    Reduce,
    Reshape,
    Scan,
    ScatterElements,
    ScatterND,
    Slice,
    Transpose,
    Window,
)
from tilewright.rewrite import elementwise, fold, layout, linear, motion, parts
from tilewright.rewrite.facts import Rule

COMPUTED: tuple[type[Primitive], ...] = (
    Map, Cast, Reduce, ArgReduce, Scan, Reshape, Transpose, Slice, Pad, Concat, Contract, Convolve,
    Window, Gather, GatherElements, GatherND, ScatterElements, ScatterND,
)  # fmt: skip

RULES: tuple[Rule, ...] = (
    Rule(COMPUTED, fold.fold_constants),
    Rule((Dimension,), fold.dimension_to_constant),
    Rule((Iota,), fold.iota_along_one_axis),
    Rule((Iota,), fold.iota_of_one_element),
    Rule((*COMPUTED, Broadcast), fold.known_integers),
    Rule((Constant,), fold.uniform_constant),
    Rule((Reshape,), layout.reshape_to_own_shape),
    Rule((Reshape,), layout.reshape_of_reshape),
    Rule((Reshape,), layout.reshape_of_broadcast),
    Rule((Transpose,), layout.transpose_by_identity),
    Rule((Transpose,), layout.transpose_of_unit_axes),
    Rule((Transpose,), layout.transpose_of_transpose),
    Rule((Transpose,), layout.transpose_of_broadcast),
    Rule((Broadcast,), layout.broadcast_to_own_shape),
    Rule((Broadcast,), layout.broadcast_of_broadcast),
    Rule((Broadcast,), layout.broadcast_without_unit_axes),
    Rule((Slice,), parts.slice_of_all),
    Rule((Slice,), parts.slice_of_slice),
    Rule((Slice,), parts.slice_of_pad),
    Rule((Slice,), parts.slice_of_concat),
    Rule((Slice,), layout.slice_of_broadcast),
    Rule((Concat,), parts.concat_of_one),
    Rule((Concat,), parts.concat_of_concat),
    Rule((Pad,), parts.pad_by_nothing),
    Rule((Pad,), parts.pad_of_pad),
    Rule((Gather,), parts.gather_of_one),
    Rule((Gather,), parts.gather_of_run),
    Rule((Gather,), parts.gather_from_one_row),
    Rule((Gather,), parts.gather_by_view),
    Rule((Cast,), elementwise.cast_to_own_type),
    Rule((Cast,), elementwise.cast_of_lossless_cast),
    Rule((Map,), elementwise.neutral_operand),
    Rule((Map,), elementwise.twice_the_same),
    Rule((Map,), elementwise.involution),
    Rule((Map,), elementwise.select_by_known),
    Rule((Map,), elementwise.logic_with_known),
    Rule((Map,), elementwise.small_power),
    Rule((Map,), elementwise.division_by_power_of_two),
    Rule((Map,), elementwise.comparison_with_itself),
    Rule((Map,), elementwise.comparison_of_positions),
    Rule((Map,), linear.scale_before_bias),
    Rule((Map,), linear.scale_into_convolution),
    Rule((Map,), linear.scale_into_contraction),
    Rule((Contract,), linear.contract_of_transpose),
    Rule((Map, Cast), motion.broadcast_after_map),
    Rule((Map, Cast), motion.view_after_map),
)
