"""Tile programs to a code image: one LLVM module per instruction set level.

Kernels that are the same program (layers of a model usually are) become one function. Start with
:class:`CodeGenerator`.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from tilewright.backend.cpu.contraction import (
    contraction_grid,
    contraction_scratch,
    write_contraction,
)
from tilewright.backend.cpu.function import KernelFunction, Signature, scratch_bytes, task_loop
from tilewright.backend.cpu.link import link
from tilewright.backend.cpu.machine import Level, compile_object
from tilewright.ir.tile import Contraction, LoopProgram, TileProgram
from tilewright.ir.tile_print import print_tile
from tilewright.ir.tile_walk import program_expressions
from tilewright.runtime.program import CodeImage
from tilewright.shape import Expr, product, symbol


@dataclass(frozen=True)
class KernelCode:
    """How to call a kernel: its function, the sizes it takes, its tasks and its scratch bytes."""

    function: str
    parameters: tuple[Expr, ...]
    grid: Expr
    scratch: Expr


class CodeGenerator:
    """Collects kernels for one level and compiles them together."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self.module = ir.Module("kernels")
        self._known: dict[str, KernelCode] = {}

    def add(self, program: TileProgram) -> KernelCode:
        """The code of ``program``, shared with an equal one."""
        text = print_tile(program)
        if text not in self._known:
            name = f"kernel_{len(self._known)}"
            self._known[text] = self._write(name, program)
        return self._known[text]

    def _write(self, name: str, program: TileProgram) -> KernelCode:
        symbols = program_symbols(program)
        parameters = tuple(symbol(s) for s in symbols)
        if isinstance(program, Contraction):
            write_contraction(self.module, name, program, symbols, self.level)
            grid, scratch = contraction_grid(program), contraction_scratch(program)
        else:
            self._write_loops(name, program, symbols)
            grid, scratch = program.grid, program.scratch
        tasks = product([size for _, size in grid])
        return KernelCode(name, parameters, tasks, scratch_bytes(scratch))

    def _write_loops(self, name: str, program: LoopProgram, symbols: tuple[str, ...]) -> None:
        signature = Signature(symbols, program.buffers, program.scratch)
        function = KernelFunction(self.module, name, signature, self.level)
        frame, begin, end = function.frame()

        def body() -> None:
            frame.statements(program.body)

        task_loop(frame, (begin, end), program.grid, body)
        frame.builder.ret_void()

    def image(self) -> CodeImage:
        """Machine code of everything added."""
        data = compile_object(self.module, self.level)
        return link(data, self.level.name, self.level.features)


def program_symbols(program: TileProgram) -> tuple[str, ...]:
    """The sizes that a tile program mentions, sorted; local names begin with "_"."""
    found: dict[str, None] = {}
    for expression in program_expressions(program):
        found.update(dict.fromkeys(s for s in expression.free_symbols if not s.startswith("_")))
    return tuple(sorted(found))
