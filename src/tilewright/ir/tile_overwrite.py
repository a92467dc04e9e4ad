"""Whether a result of a tile program may lie where one of its operands does.

It may if every element of the operand is read, for the last time, before the program writes the
element at the same place, and by the task that writes it: other tasks may run at any time. That is
proved of the accesses alone, for all sizes. Two of them that are inside of the same loops touch the
same element only in the same iteration if each of these loops moves both of them further than all
that varies within it; then the order of statements decides. What is not proved is not allowed.
Start with :class:`Overwriting`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.ir.tile import TileBuffer, TileProgram
from tilewright.ir.tile_access import Trace, trace
from tilewright.ir.tile_proofs import AccessProofs, touches_alike
from tilewright.ir.tile_walk import ExpressionMap
from tilewright.shape import Scope


class Overwriting:
    """Answers for one program; ``scope`` is what is known of its sizes and is not changed."""

    def __init__(self, program: TileProgram, scope: Scope) -> None:
        self._program = program
        self._scope = scope.copy()
        self._found: Trace | None = None
        self._known: dict[tuple[TileBuffer, TileBuffer], bool] = {}

    def allows(self, operand: TileBuffer, result: TileBuffer) -> bool:
        """Whether ``result`` may be written to the memory of ``operand``."""
        pair = (operand, result)
        if pair not in self._known:
            self._known[pair] = self._allows(operand, result)
        return self._known[pair]

    def _allows(self, operand: TileBuffer, result: TileBuffer) -> bool:
        results = self._program.buffers[len(self._program.buffers) - self._program.results :]
        if operand.dtype is not result.dtype or operand.scratch or operand in results:
            return False
        if result not in results:
            return False
        if self._found is None:
            self._found = trace(self._program, self._scope)
        found = self._found
        if found.problems or operand in found.untracked or result in found.untracked:
            return False
        own = {a: None for a in found.accesses if a.buffer in (operand, result)}
        reads = [(at, a) for at, a in enumerate(own) if a.buffer == operand]
        writes = [(at, a) for at, a in enumerate(own) if a.buffer == result]
        if not writes or not all(write.writes for _, write in writes):
            return False
        if any(access.width != operand.dtype.bytes for access in own):
            return False
        proofs = AccessProofs(Trace(own), self._scope)
        happening = set(proofs.accesses)
        return all(
            at < later and touches_alike(proofs, read, write)
            for at, read in reads
            for later, write in writes
            if read in happening and write in happening
        )


def in_place(program: TileProgram, pairs: Mapping[TileBuffer, TileBuffer]) -> TileProgram:
    """The program that finds each operand in ``pairs`` where the result of the pair is written.

    The operands stay among its buffers, and nothing is read there.
    """
    rewriting = ExpressionMap(lambda expression: expression, read_from=pairs)
    return replace(program, body=rewriting.statements(program.body))


__all__ = ["Overwriting", "in_place"]
