"""Telling LLVM's vectoriser what it cannot know about a loop.

That its iterations do not depend on each other: LLVM's own analysis gives up where one writes at
several distances known only at run time. Such loops are not unrolled, either: one pass over a
vector is work enough. That few elements are left, which vectors under a mask do at once, not
scalars one by one. That a loop which looks up or changes elements at positions is better left
without vectors. And that the iterations of a short loop are to be one vector, not a row of scalars.
Start with :func:`mark_loop`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from llvmlite import ir

from tilewright.backend.cpu.machine import Level
from tilewright.ir.tile import Loop, Store
from tilewright.ir.tile_walk import is_innermost, slope

LOOKUPS_AT_A_TIME = 4  # so that the loop's own instructions are a small part


class _Distinct(ir.MDValue):
    """A metadata node that is equal to no other, with text in place of operands."""

    def __init__(self, module: ir.Module, text: str) -> None:
        super().__init__(module, (), str(len(module.metadata)))
        self.text = text.replace("SELF", self.get_reference())

    def descr(self, buf: list[str]) -> None:
        buf += (f"distinct !{{{self.text}}}", "\n")

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


@dataclass(frozen=True)
class LoopHints:
    """What is to be said of a loop.

    ``by_elements`` are those that do nothing but look up, and those that change what lies at
    positions that are read: an instruction that gathers takes as long as the loads of its lanes,
    and begins fewer of them before it waits for memory; one that scatters takes longer. One that
    ``fills_vectors`` has as many iterations as make vectors, and is not to be unrolled before.
    """

    independent: bool
    masked: bool
    by_elements: bool
    fills_vectors: bool


def mark_loop(
    module: ir.Module, body: Iterable[ir.Block], latch: ir.Instruction, hints: LoopHints
) -> None:
    """Mark the loop of the blocks ``body`` with the branch ``latch`` back to its beginning."""
    said: list[str] = []
    if hints.independent:
        group = _Distinct(module, "")
        said.append(f'!{{!"llvm.loop.parallel_accesses", {group.get_reference()}}}')
        for block in body:
            for instruction in block.instructions:
                if isinstance(instruction, ir.LoadInstr | ir.StoreInstr):
                    instruction.set_metadata("llvm.access.group", group)
    if not hints.by_elements and (hints.independent or hints.fills_vectors):
        said.append('!{!"llvm.loop.unroll.disable"}')
    if hints.masked:
        said.append('!{!"llvm.loop.vectorize.predicate.enable", i1 true}')
    if hints.by_elements:
        said.append('!{!"llvm.loop.vectorize.enable", i1 false}')
        said.append(f'!{{!"llvm.loop.unroll.count", i32 {LOOKUPS_AT_A_TIME}}}')
    if said:
        latch.set_metadata("llvm.loop", _Distinct(module, ", ".join(["SELF", *said])))


def fills_vectors(loop: Loop, level: Level) -> bool:
    """Whether a known number of iterations makes whole vectors of its own results.

    Unrolled before it is vectorised, such a loop would leave only the loop around it to vectors,
    whose elements lie apart. That is as well for less than half a vector. Without registers for
    masks, single elements that are left over after only one vector take longer than it saves.
    """
    length = loop.end - loop.begin
    if loop.accumulators or not length.is_constant:
        return False
    stores = [part for part in loop.body if isinstance(part, Store)]
    if not stores or not is_innermost(loop):
        return False
    lanes = level.lanes(max(store.buffer.dtype.bytes for store in stores))
    if 2 * length.value < lanes:
        return False
    ends_whole = level.has_masks or length.value % lanes == 0 or length.value >= 2 * lanes
    return ends_whole and all(slope(s.offset, loop.variable) == 1 for s in stores)
