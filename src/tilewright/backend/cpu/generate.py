"""Tile programs to a code image for one instruction set level.

Kernels that are the same program (layers of a model usually are) become one function, named after
what it computes. Start with :class:`CodeGenerator`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

from llvmlite import ir

from tilewright.backend.cpu.choices import write_choice
from tilewright.backend.cpu.finished_product import FinishedProduct, kernel_scratch
from tilewright.backend.cpu.function import KernelFunction, Signature, scratch_bytes, task_loop
from tilewright.backend.cpu.library import Compilation, Unit
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.parameters import parametrise
from tilewright.backend.cpu.short_rows import write_short_rows
from tilewright.backend.cpu.streams import write_fence
from tilewright.backend.cpu.whole_rows import with_whole_rows
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.tile import TileProgram
from tilewright.ir.tile_print import print_tile
from tilewright.ir.tile_scratch import used_lengths
from tilewright.runtime.program import CodeImage
from tilewright.shape import Expr, encode_least, product


@dataclass(frozen=True)
class KernelCode:
    """How to call a kernel: its function, the parameters, its tasks in all and in how many rounds,
    and its scratch bytes.
    """

    function: str
    parameters: tuple[Expr, ...]
    grid: Expr
    rounds: Expr
    scratch: Expr


class CodeGenerator:
    """Collects kernels for one level and compiles them, each by itself.

    ``compilation`` is begun with what is sure to be wanted, and ends with the image.
    """

    def __init__(self, level: Level, compilation: Compilation | None = None) -> None:
        self.level = level
        self._compilation = compilation or Compilation(level)
        self.units: dict[str, Unit] = {}  # by the name of the function
        self._made: dict[TileProgram, KernelCode] = {}
        self._choices: dict[tuple[Expr, ...], tuple[str, tuple[str, ...]]] = {}

    def add(self, program: TileProgram) -> KernelCode:
        """The code of ``program``, shared with an equal one."""
        if program not in self._made:
            self._made[program] = self._added(program)
        return self._made[program]

    def _added(self, program: TileProgram) -> KernelCode:
        general, parameters = parametrise(program)
        symbols = tuple(parameters)
        key = f"{print_tile(general)}\n{symbols}"
        name = f"kernel_{_digest(key)}"
        self.units.setdefault(
            name, Unit(key, lambda module: self._write(module, name, general, symbols))
        )
        tasks, scratch = product([size for _, size in program.grid]), kernel_scratch(program)
        own = tasks, program.rounds, scratch_bytes(scratch)
        return KernelCode(name, tuple(parameters.values()), *own)

    def add_choice(self, costs: tuple[Expr, ...]) -> tuple[str, tuple[str, ...]]:
        """The function that finds the least of ``costs``, and the names of its arguments."""
        if costs not in self._choices:
            self._choices[costs] = self._added_choice(costs)
        return self._choices[costs]

    def _added_choice(self, costs: tuple[Expr, ...]) -> tuple[str, tuple[str, ...]]:
        arguments = tuple(sorted({name for cost in costs for name in cost.free_symbols}))
        code = encode_least(costs, {name: slot for slot, name in enumerate(arguments)})
        key = f"least {len(arguments)} {code}"
        name = f"choice_{_digest(key)}"
        if name not in self.units:
            self.units[name] = Unit(key, lambda module: write_choice(module, name, code, arguments))
            self._compilation.begin(self.units[name])
        return name, arguments

    def _write(
        self, module: ir.Module, name: str, program: TileProgram, symbols: tuple[str, ...]
    ) -> None:
        signature = Signature(symbols, program.buffers, kernel_scratch(program))
        function = KernelFunction(module, name, signature, self.level)
        frame, begin, end = function.frame()
        frame.lengths |= {b.name: used for b, used in used_lengths(program).items()}
        nest = ProductNest.find(program)
        if nest is not None:
            frame.finished[nest.product] = FinishedProduct(frame, nest, signature, name)

        def write_tasks(form: TileProgram) -> None:
            frame.enter()
            task_loop(frame, (begin, end), form.grid, lambda: frame.statements(form.body))
            frame.leave()

        rows = with_whole_rows(program)
        if rows is None:
            write_tasks(program)
        else:
            is_whole = frame.indices.truth(rows[0], frame.names)
            with frame.builder.if_else(is_whole) as (whole, other):
                with whole:
                    form = rows[1]
                    write_short_rows(frame, (begin, end), form, lambda: write_tasks(form))
                with other:
                    write_tasks(program)
        write_fence(frame, program.body)
        frame.builder.ret_void()

    def image(self, functions: Collection[str] | None = None) -> CodeImage:
        """Machine code of everything added, or of these functions alone."""
        wanted = self.units if functions is None else functions
        units = [unit for name, unit in self.units.items() if name in wanted]
        with self._compilation as compilation:
            return compilation.image(units)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:12]
