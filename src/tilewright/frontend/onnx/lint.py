"""Doubts about a model that claims to be dynamic: sizes that look baked in by its export.

Two signs: a Reshape whose constant target has a positive size where the operand's axis is symbolic,
and a demand of a node that hardly any size of a dimension of the inputs fulfils. Warnings only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.ir.graph import Node
from tilewright.ir.symbolic import integer_contents
from tilewright.shape import Guard
from tilewright.support.errors import DimensionError

_TRIED = range(2, 130)


def baked_reshape(operands: Sequence[Node | None], inputs: Iterable[str]) -> str | None:
    """What is wrong with a Reshape to a constant shape, or None.

    Sizes are aligned from both ends up to the first -1, 0 or known difference; ``inputs`` are the
    symbols that graph inputs determine.
    """
    if len(operands) < 2 or operands[0] is None or operands[1] is None:
        return None
    contents = integer_contents(operands[1])
    if contents is None or not all(e.is_constant for e in contents.reshape(-1)):
        return None
    target = [e.value for e in contents.reshape(-1)]
    sizes = list(operands[0].shape)
    symbols = set(inputs)
    for step in (1, -1):
        for position, (wanted, size) in enumerate(zip(target[::step], sizes[::step], strict=False)):
            if wanted <= 0 or (size.is_constant and size.value != wanted):
                break
            if not size.is_constant and symbols.intersection(size.free_symbols):
                axis = position if step == 1 else len(sizes) - 1 - position
                return f"reshaped to the constant size {wanted} where axis {axis} is {size}"
    return None


def pinned(guard: Guard, inputs: Iterable[str]) -> str | None:
    """What is wrong with a demand that only one size fulfils, or None.

    The demand is tried at many sizes of the one dimension it is about.
    """
    symbols = guard.condition.free_symbols
    if len(symbols) != 1 or symbols[0] not in set(inputs):
        return None
    try:
        holds = [n for n in _TRIED if guard.condition.evaluate({symbols[0]: n})]
    except DimensionError:
        return None
    if len(holds) > 1:
        return None
    return f"demands of {symbols[0]}: {guard.condition}"
