"""The usual machine of each level, and the register tiles of its code.

Imports cost, policy, target and tile. Start with :func:`register_tile`.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.matrix_unit import COLUMNS, ROWS
from tilewright.backend.cpu.register_tile import most_rows
from tilewright.cost import Machine
from tilewright.ir.dtype import DType
from tilewright.policy.candidates import task_room
from tilewright.policy.tiles import product_tiles
from tilewright.target import preset
from tilewright.tile.passes.streams import streamed_from
from tilewright.tile.products.frame import RegisterTile

USUAL_TARGETS = {
    "x86-64": "x86-64",
    "avx2": "zen3",
    "avx512": "icelake-server",
    "avx512-vnni": "icelake-server",
    "avx512-bf16": "zen4",
    "avx512-amx": "sapphire-rapids",
}


def usual_machine(level: Level) -> Machine:
    """A machine that is common among those with the level."""
    return Machine(preset(USUAL_TARGETS[level.name]))


def register_tile(level: Level, machine: Machine | None = None) -> RegisterTile:
    """The register tiles of one level's code, as the registers and pipes of a machine allow them.

    Registers and vectors are those of the level where the machine has more.
    """
    machine = machine or usual_machine(level)
    own = machine.target
    registers = level.registers
    if own.isa == level.isa:
        registers = min(registers, own.vector_registers)
    target = replace(
        own, isa=level.isa, vector_bytes=level.vector_bytes, vector_registers=registers
    )
    usual, *others = product_tiles(target, "float32").tiles
    lanes = level.lanes(DType.FLOAT32.bytes)
    narrow = DType(level.dots[0]) if level.dots else DType.BFLOAT16
    return RegisterTile(
        usual.rows,
        usual.vectors * lanes,
        narrow_rows=min(usual.rows, most_rows(level, usual.vectors, narrow)),
        room=task_room(target),
        near=streamed_from(target),
        sums=machine.core.dots.sums,
        matrix=(ROWS, COLUMNS) if level.matrix else None,
        others=tuple((tile.rows, tile.vectors * lanes) for tile in others),
    )


__all__ = ["USUAL_TARGETS", "register_tile", "usual_machine"]
