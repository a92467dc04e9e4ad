"""Where an axis of an operand is in the result: element i there depends on elements i of it alone.

:func:`carried` answers for one operand of a node; it knows the primitives, and nothing of why it is
asked. May import ``shape`` and the rest of the package.
"""

from __future__ import annotations

from tilewright.ir.graph import Node
from tilewright.ir.primitives import (
    ArgReduce,
    Broadcast,
    Cast,
    Concat,
    Contract,
    Convolve,
    Gather,
    GatherElements,
    GatherND,
    Map,
    Pad,
    Recurrence,
    Reduce,
    Reshape,
    Scan,
    ScatterElements,
    Shape,
    Slice,
    Transpose,
    Window,
)
from tilewright.shape import constant, exact_quotient, product


def carried(current: Node, operand: int, axis: int) -> int | None:
    """The axis of the result that runs along with ``axis`` of an operand; None if there is none.

    A reshape may merge other axes into it, or split them off, that follow it in memory: the result
    then has the axis that begins with it.
    """
    primitive, source = current.primitive, current.inputs[operand]
    match primitive:
        case Map() | Cast():
            return axis
        case Transpose(permutation):
            return permutation.index(axis)
        case Broadcast(shape, axes):
            place = axes[axis]
            return place if shape[place] is source.shape[axis] else None
        case Reshape(shape):
            return _reshaped(source.shape, shape, axis)
        case Reduce(axes=gone):
            return None if axis in gone else axis - sum(a < axis for a in gone)
        case ArgReduce(axis=own):
            return None if axis == own else axis - (own < axis)
        case Scan(axis=own) | Concat(axis=own):
            return None if axis == own else axis
        case ScatterElements(own):
            same = all(i.shape[axis] is source.shape[axis] for i in current.inputs)
            return axis if axis != own and same else None
        case Slice(starts, sizes, steps):
            whole = sizes[axis] is source.shape[axis]
            plain = starts[axis] is constant(0) and steps[axis] is constant(1)
            return axis if whole and plain else None
        case Pad(low, high):
            if operand or low[axis] is not constant(0) or high[axis] is not constant(0):
                return None
            return axis
        case Contract():
            return _of_product(current, primitive, operand, axis)
        case Convolve():
            return 0 if operand == axis == 0 else None
        case Window():
            windowed = primitive.windowed(source.rank)
            return None if windowed.start <= axis < windowed.stop else axis
        case Recurrence():
            return _of_recurrence(primitive, operand, axis)
        case Gather() | GatherElements() | GatherND():
            return _of_lookup(current, operand, axis)
        case _:
            return None


def _reshaped(source: Shape, target: Shape, axis: int) -> int | None:
    before = product(source[:axis])
    rest = product(source[axis:])
    for place in range(len(target)):
        same = product(target[:place]) is before and product(target[place:]) is rest
        if same and (target[place] is not constant(1) or source[axis] is constant(1)):
            pair = target[place], source[axis]
            divides = exact_quotient(*pair) is not None or exact_quotient(*pair[::-1]) is not None
            return place if divides else None
    return None


def _of_product(current: Node, contract: Contract, operand: int, axis: int) -> int | None:
    paired = [pair[operand] for pair in contract.batch]
    if axis in paired:
        return paired.index(axis)
    summed = [pair[operand] for pair in contract.summed]
    if axis in summed:
        return None
    free = [a for a in range(current.inputs[operand].rank) if a not in (*paired, *summed)]
    left = current.inputs[0].rank - len(contract.batch) - len(contract.summed)
    return len(paired) + free.index(axis) + (left if operand else 0)


def _of_recurrence(recurrence: Recurrence, operand: int, axis: int) -> int | None:
    """Rows are apart; steps, and what is in a state, are not."""
    products = len(recurrence.steps.products)
    if operand == 0:
        return 1 if axis == 1 else None
    lengths_and_states = recurrence.ragged + len(recurrence.steps.states)
    return 1 if axis == 0 and products < operand <= products + lengths_and_states else None


def _of_lookup(current: Node, operand: int, axis: int) -> int | None:
    primitive, (data, indices, *_) = current.primitive, current.inputs
    match primitive:
        case Gather(own):
            if operand:
                return own + axis
            return None if axis == own else axis + (indices.rank - 1 if axis > own else 0)
        case GatherElements(own):
            return axis if axis != own and data.shape[axis] is indices.shape[axis] else None
        case GatherND(batch):
            if operand:
                return axis if axis < indices.rank - 1 else None
            depth = indices.shape[-1].value
            if axis < batch:
                return axis
            return None if axis < batch + depth else axis - batch - depth + indices.rank - 1
        case _:
            raise AssertionError(primitive)
