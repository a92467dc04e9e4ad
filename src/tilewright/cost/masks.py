"""Whether a mask makes the rest of a loop shorter. Imports ir and target.

Start with :func:`masks_pay`.
"""

from __future__ import annotations

from tilewright.cost.vector_work import Core, half_cycles, is_extreme, loop_work
from tilewright.ir.tile import Loop, Store
from tilewright.ir.tile_sought import sought
from tilewright.ir.tile_walk import own_values, value_loads
from tilewright.target.core_model import LEAST_VECTOR_BYTES, WIDE_VECTOR_BYTES, WORD_BYTES

# Elements of rows that are vectors by themselves; of fewer LLVM makes better ones.
LEAST_ROW = LEAST_VECTOR_BYTES // WORD_BYTES
LEAST_MASKED = WORD_BYTES  # of elements that narrower vectors load and store under masks


def masks_pay(core: Core, loop: Loop) -> bool:
    """Whether a mask makes the rest of an innermost loop shorter, of whatever length it is.

    A rest without one is half a vector, if there are so many, and single elements, in two loops.
    For short rows of known length LLVM finds better: it makes vectors across several of them.
    Searches end where they find something, and extremes ask for numbers beside, with masks only.
    """
    lanes, work = loop_work(core, loop)
    length, half = loop.end - loop.begin, lanes // 2
    if length.is_constant:
        return length.value >= max(half, LEAST_ROW)
    extremes = any(is_extreme(a.kind, a.value.dtype) for a in loop.accumulators)
    if extremes or sought(loop) is not None:
        return True
    if core.target.vector_bytes < WIDE_VECTOR_BYTES and _narrowest(loop) < LEAST_MASKED:
        return False
    single, enter = work.single(core.costs), core.costs.enter
    if loop.accumulators:  # what several vectors have combined is combined once more
        return work.cycles + 2 * enter < half_cycles(core, work) / 2 + (half - 1) / 2 * single
    single += work.load + work.store
    return work.cycles < (half_cycles(core, work) + enter) / 2 + (half - 1) / 2 * single


def _narrowest(loop: Loop) -> int:
    """Bytes of the narrowest element of a loop in memory, as many as any mask has where none is."""
    loads = [load.buffer.dtype.bytes for value in own_values(loop) for load in value_loads(value)]
    stores = [s.buffer.dtype.bytes for s in loop.body if isinstance(s, Store)]
    return min([*loads, *stores], default=LEAST_MASKED)


__all__ = ["masks_pay"]
