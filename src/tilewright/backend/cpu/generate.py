"""Tile programs to a code image: one LLVM module per instruction set level.

Kernels that are the same program (layers of a model usually are) become one function. Start with
:class:`CodeGenerator`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from tilewright.backend.cpu.choices import write_choice
from tilewright.backend.cpu.contraction import (
    contraction_grid,
    contraction_scratch,
    write_contraction,
)
from tilewright.backend.cpu.function import KernelFunction, Signature, scratch_bytes, task_loop
from tilewright.backend.cpu.link import link
from tilewright.backend.cpu.machine import Level, compile_object
from tilewright.backend.cpu.parameters import parametrise
from tilewright.ir.tile import Contraction, LoopProgram, TileProgram
from tilewright.ir.tile_print import print_tile
from tilewright.runtime.program import CodeImage
from tilewright.shape import Expr, encode_least, product


@dataclass(frozen=True)
class KernelCode:
    """How to call a kernel: its function, the parameters, its tasks and its scratch bytes."""

    function: str
    parameters: tuple[Expr, ...]
    grid: Expr
    scratch: Expr


class CodeGenerator:
    """Collects kernels for one level and compiles them together."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self.module = ir.Module("kernels")
        self._known: dict[str, str] = {}  # text of a program → its function
        self._choices: dict[tuple[int, ...], str] = {}  # byte-code → its function

    def add(self, program: TileProgram) -> KernelCode:
        """The code of ``program``, shared with an equal one."""
        general, parameters = parametrise(program)
        text = print_tile(general)
        if text not in self._known:
            self._known[text] = f"kernel_{len(self._known)}"
            self._write(self._known[text], general, tuple(parameters))
        if isinstance(program, Contraction):
            grid, scratch = contraction_grid(program), contraction_scratch(program)
        else:
            grid, scratch = program.grid, program.scratch
        tasks = product([size for _, size in grid])
        values = tuple(parameters.values())
        return KernelCode(self._known[text], values, tasks, scratch_bytes(scratch))

    def add_choice(self, costs: Sequence[Expr]) -> tuple[str, tuple[str, ...]]:
        """The function that finds the least of ``costs``, and the names of its arguments."""
        arguments = tuple(sorted({name for cost in costs for name in cost.free_symbols}))
        code = encode_least(costs, {name: slot for slot, name in enumerate(arguments)})
        if code not in self._choices:
            self._choices[code] = f"choice_{len(self._choices)}"
            write_choice(self.module, self._choices[code], code, arguments)
        return self._choices[code], arguments

    def _write(self, name: str, program: TileProgram, symbols: tuple[str, ...]) -> None:
        if isinstance(program, Contraction):
            write_contraction(self.module, name, program, symbols, self.level)
        else:
            self._write_loops(name, program, symbols)

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
