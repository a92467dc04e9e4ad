"""Telling LLVM's vectoriser that the iterations of a loop do not depend on each other.

Its own analysis gives up where one iteration writes at several distances known only at run time.
Such loops are not unrolled, either: one pass over a vector is work enough.
Start with :func:`mark_independent`.
"""

from __future__ import annotations

from collections.abc import Iterable

from llvmlite import ir


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


def mark_independent(module: ir.Module, body: Iterable[ir.Block], latch: ir.Instruction) -> None:
    """Mark the loop of the blocks ``body`` with the branch ``latch`` back to its beginning."""
    group = _Distinct(module, "")
    parallel = f'!{{!"llvm.loop.parallel_accesses", {group.get_reference()}}}'
    whole = '!{!"llvm.loop.unroll.disable"}'
    latch.set_metadata("llvm.loop", _Distinct(module, f"SELF, {parallel}, {whole}"))
    for block in body:
        for instruction in block.instructions:
            if isinstance(instruction, ir.LoadInstr | ir.StoreInstr):
                instruction.set_metadata("llvm.access.group", group)
