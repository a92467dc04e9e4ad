"""Rules that move constants into the weights of contractions and convolutions.

Scaling weights per channel rounds every weight once; that changes results by no more than the
rounding of the scaling it replaces. May import ``shape`` and ``ir``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import (
    Broadcast,
    Constant,
    Contract,
    Convolve,
    Input,
    Map,
    Reshape,
    Shape,
    Slice,
    Transpose,
)
from tilewright.ir.views import groups
from tilewright.rewrite.build import (
    contents,
    elements,
    filled,
    is_map,
    is_one,
    literal,
    reshape,
    single_value,
)
from tilewright.rewrite.elementwise import is_power_of_two
from tilewright.rewrite.facts import Facts
from tilewright.shape import Expr


def contract_of_transpose(x: Node, facts: Facts) -> Node | None:
    """Contract(Transpose(a), b) → Contract(a, b) on other axes, free axes keeping their order."""
    assert isinstance(x.primitive, Contract)
    pairs = [x.primitive.batch, x.primitive.summed]
    operands = list(x.inputs)
    for side, operand in enumerate(x.inputs):
        if not isinstance(operand.primitive, Transpose):
            continue
        permutation = operand.primitive.permutation
        paired = {pair[side] for row in pairs for pair in row}
        free = [p for axis, p in enumerate(permutation) if axis not in paired]
        if free != sorted(free):
            continue
        operands[side] = operand.inputs[0]
        pairs = [tuple(_moved(pair, side, permutation) for pair in row) for row in pairs]
    if operands == list(x.inputs):
        return None
    return node(replace(x.primitive, batch=pairs[0], summed=pairs[1]), *operands)


def _moved(pair: tuple[int, int], side: int, permutation: tuple[int, ...]) -> tuple[int, int]:
    left, right = pair
    return (permutation[left], right) if side == 0 else (left, permutation[right])


def scale_into_convolution(x: Node, facts: Facts) -> Node | None:
    """p = Convolve(a, W): p * c → Convolve(a, W * c), c constant per channel, p used only here."""
    for product, scale in _factors(x):
        if not isinstance(product.primitive, Convolve) or not facts.used_once(product):
            continue
        data, weights = product.inputs
        factors = per_axis(scale, product.primitive.channel_axis)
        array = contents(weights)
        if factors is None or array is None or not x.dtype.is_float:
            continue
        view = (-1, *(1,) * (array.ndim - 1))
        scaled = literal(array * factors.reshape(view), x.dtype)
        return node(product.primitive, data, scaled)
    return None


def scale_into_contraction(x: Node, facts: Facts) -> Node | None:
    """p = Contract(a, W): p * 2^k → Contract(a, W * 2^k), exactly, p used only here."""
    for product, scale in _factors(x):
        if not isinstance(product.primitive, Contract) or not facts.used_once(product):
            continue
        left, right = product.inputs
        array, value = contents(right), single_value(scale)
        if array is None or value is None or not is_power_of_two(value, x.dtype):
            continue
        scaled = (array * value).astype(array.dtype)
        if np.isfinite(scaled).all() and np.array_equal(scaled / value, array):
            return node(product.primitive, left, literal(scaled, x.dtype))
    return None


def scale_after_contraction(x: Node, facts: Facts) -> Node | None:
    """Contract(V(a * s), W(b * t)) → Contract(V(a), W(b)) * (s t), of numbers s, t and views V, W.

    Only of a or b that is a Slice or an Input: others are scaled by the kernel that computes
    them, these would need a pass of their own. Every sum is rounded by the scale, not every term;
    only sums beyond the range of the type, which s and t would have kept small, differ by more.
    """
    if not x.dtype.is_float or x.dtype.is_half:
        return None
    factor, operands = 1.0, list[Node]()
    for operand in x.inputs:
        plain, scale = _without_scale(operand)
        operands.append(plain)
        factor *= scale
    if operands == list(x.inputs):
        return None
    return node(Map("multiply"), node(x.primitive, *operands), filled(factor, x))


def _without_scale(x: Node) -> tuple[Node, float]:
    """``x`` without the multiplication by a number below its views, and that number."""
    views: list[Node] = []
    current = x
    while isinstance(current.primitive, Reshape | Transpose):
        views.append(current)
        current = current.inputs[0]
    for scaled, scale in _factors(current):
        value = single_value(scale)
        if value is not None and isinstance(scaled.primitive, Slice | Input):
            for view in reversed(views):
                scaled = node(view.primitive, scaled)
            return scaled, float(value)
    return x, 1.0


def scale_before_bias(x: Node, facts: Facts) -> Node | None:
    """(p + b) * c → p * c + b * c, b and c constant, where p * c goes into the weights of p.

    p is a convolution and c per channel, or p a contraction and c a power of two (then exact).
    """
    for biased, scale in _factors(x):
        if not is_map(biased, "add") or not facts.used_once(biased):
            continue
        for product, bias in (biased.inputs, biased.inputs[::-1]):
            if not _is_constant(bias) or not facts.used_once(product):
                continue
            if _takes_scale(product, scale):
                scaled = node(Map("multiply"), product, scale)
                return node(Map("add"), scaled, node(Map("multiply"), bias, scale))
    return None


def _takes_scale(product: Node, scale: Node) -> bool:
    if product.inputs and not isinstance(product.inputs[-1].primitive, Constant):
        return False
    if isinstance(product.primitive, Convolve):
        return per_axis(scale, product.primitive.channel_axis) is not None
    value = single_value(scale)
    exact = value is not None and is_power_of_two(value, scale.dtype)
    return isinstance(product.primitive, Contract) and exact


def _is_constant(x: Node) -> bool:
    inner = x.inputs[0] if isinstance(x.primitive, Broadcast) else x
    return isinstance(inner.primitive, Constant)


def _factors(x: Node) -> list[tuple[Node, Node]]:
    """The two operands of a multiplication, in both orders."""
    return [(x.inputs[0], x.inputs[1]), (x.inputs[1], x.inputs[0])] if is_map(x, "multiply") else []


def per_axis(x: Node, axis: int) -> np.ndarray | None:
    """The constant vector (or single element) that is broadcast along one axis to make ``x``."""
    array = contents(x.inputs[0]) if isinstance(x.primitive, Broadcast) else None
    if array is None:
        return None
    assert isinstance(x.primitive, Broadcast)
    wide = [a for a, size in zip(x.primitive.axes, array.shape, strict=True) if size != 1]
    return array.reshape(-1) if wide in ([], [axis]) else None


def contract_of_reshape(x: Node, facts: Facts) -> Node | None:
    """Contract(Reshape(a), b) → Reshape(Contract(a, b)), as far as only free axes are reshaped.

    Where summed or batch axes are reshaped too, that part of the reshape stays: Reshape(a, …). So
    does a part whose two sides are only known to have as many elements where no other axis is
    empty: a sum over nothing has elements, and as many as the shape of the result says.
    """
    assert isinstance(x.primitive, Contract)
    pairs = (x.primitive.batch, x.primitive.summed)
    for side, operand in enumerate(x.inputs):
        if not isinstance(operand.primitive, Reshape):
            continue
        base = operand.inputs[0]
        paired = {pair[side] for row in pairs for pair in row}
        shape, places = _without_free(base.shape, operand.shape, paired, facts)
        if shape == operand.shape:
            continue
        moved = [tuple(_replaced(pair, side, places) for pair in row) for row in pairs]
        operands = list(x.inputs)
        operands[side] = reshape(base, shape)
        made = node(replace(x.primitive, batch=moved[0], summed=moved[1]), *operands)
        return reshape(made, x.shape)
    return None


def contract_of_unit_axes(x: Node, facts: Facts) -> Node | None:
    """Contract(Reshape(a), b), batch axes of size 1 → Reshape(Contract(a', b')) without them."""
    assert isinstance(x.primitive, Contract)
    batch = x.primitive.batch
    units = [pair for pair in batch if is_one(x.inputs[0].shape[pair[0]])]
    if not units or not any(isinstance(i.primitive, Reshape) for i in x.inputs):
        return None
    dropped = [{pair[side] for pair in units} for side in range(2)]
    kept = [
        [axis for axis in range(operand.rank) if axis not in dropped[side]]
        for side, operand in enumerate(x.inputs)
    ]
    rows = [
        tuple((kept[0].index(i), kept[1].index(j)) for i, j in row if (i, j) not in units)
        for row in (batch, x.primitive.summed)
    ]
    operands = [
        reshape(operand, tuple(operand.shape[axis] for axis in kept[side]))
        for side, operand in enumerate(x.inputs)
    ]
    made = node(replace(x.primitive, batch=rows[0], summed=rows[1]), *operands)
    return reshape(made, x.shape)


def _without_free(
    source: Shape, target: Shape, paired: set[int], facts: Facts
) -> tuple[Shape, dict[int, int]]:
    """``target`` with the groups of axes that are not ``paired`` as in ``source``.

    Also where each paired axis of ``target`` is in it.
    """
    shape: list[Expr] = []
    places: dict[int, int] = {}
    for left, right in groups(source, target):
        kept = facts.same(elements(source, left), elements(target, right))
        if kept and paired.isdisjoint(right):
            # Axes of one element that the target does without are not added: where a size is 0,
            # those of the target are of the run before, and there would be more of them each time.
            shape += [source[axis] for axis in left] if right else []
            continue
        for axis in right:
            places[axis] = len(shape)
            shape.append(target[axis])
    return tuple(shape), places


def _replaced(pair: tuple[int, int], side: int, places: dict[int, int]) -> tuple[int, int]:
    left, right = pair
    return (places[left], right) if side == 0 else (left, places[right])
