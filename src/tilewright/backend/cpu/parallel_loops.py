"""Telling LLVM's vectoriser what it cannot know about a loop.

That its iterations do not depend on each other: LLVM's own analysis gives up where one writes at
several distances known only at run time. Such loops are not unrolled, either: one pass over a
vector is work enough. That few elements are left, which vectors under a mask do at once, not
scalars one by one. And that a loop which only looks up elements is better left without vectors.
Start with :func:`mark_loop`.
"""

from __future__ import annotations

from collections.abc import Iterable

from llvmlite import ir

LOOKUPS_AT_A_TIME = 4


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


def mark_loop(
    module: ir.Module,
    body: Iterable[ir.Block],
    latch: ir.Instruction,
    *,
    independent: bool,
    masked: bool,
    looks_up: bool = False,
) -> None:
    """Mark the loop of the blocks ``body`` with the branch ``latch`` back to its beginning.

    One that ``looks_up`` does nothing but that: an instruction that gathers takes as long as the
    loads of its lanes, and begins fewer of them before it waits for memory.
    """
    hints: list[str] = []
    if independent:
        group = _Distinct(module, "")
        hints.append(f'!{{!"llvm.loop.parallel_accesses", {group.get_reference()}}}')
        hints += [] if looks_up else ['!{!"llvm.loop.unroll.disable"}']
        for block in body:
            for instruction in block.instructions:
                if isinstance(instruction, ir.LoadInstr | ir.StoreInstr):
                    instruction.set_metadata("llvm.access.group", group)
    if masked:
        hints.append('!{!"llvm.loop.vectorize.predicate.enable", i1 true}')
    if looks_up:
        hints.append('!{!"llvm.loop.vectorize.enable", i1 false}')
        hints.append(f'!{{!"llvm.loop.unroll.count", i32 {LOOKUPS_AT_A_TIME}}}')
    if hints:
        latch.set_metadata("llvm.loop", _Distinct(module, ", ".join(["SELF", *hints])))
