"""The choice of a variant as machine code: the position of the least of several costs.

A choice is made at every new shape, a model has one for every contraction, and an interpreter meets
each of their operations cold. Start with :func:`write_choice`.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from tilewright.backend.cpu.indices import I64, IndexEmitter, word
from tilewright.backend.cpu.shared import KernelModule

POINTER = ir.PointerType()


def write_choice(
    module: KernelModule, name: str, code: Sequence[int], arguments: Sequence[str]
) -> None:
    """Add ``i64 name(const i64 *arguments)``; ``code`` is what ``encode_least`` gives for them."""
    module.straight = True
    function = ir.Function(module, ir.FunctionType(I64, [POINTER]), name)
    function.attributes.add("nounwind")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    values = [
        builder.load(builder.gep(function.args[0], [word(slot)], source_etype=I64), typ=I64)
        for slot in range(len(arguments))
    ]
    builder.ret(_Costs(builder).run(code, values))


class _Costs(IndexEmitter):
    """Arithmetic that is defined for whatever sizes an input claims to have.

    A cost that does not fit 64 bits makes for a bad choice, which is right all the same.
    """

    def _add(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.add(a, b)

    def _subtract(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.sub(a, b)

    def _multiply(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.mul(a, b)

    def _divisor(self, b: ir.Value) -> ir.Value:
        return b if isinstance(b, ir.Constant) else self._maximum(b, word(1))
