"""A module of machine code that calls register tiles again and again, for timing.

One exported function for each tile shape, ``(rounds, words)``: it calls the tile ``rounds`` times
with the arguments that ``words`` holds, and walks through several panels of the right operand in
turn. ``clock`` runs a chain of instructions of known latency. Imports backend. Start with
:func:`build`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from llvmlite import ir

from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.indices import I64, word
from tilewright.backend.cpu.internal import POINTER
from tilewright.backend.cpu.library import compile_module
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.register_tile import (
    Gathered,
    TileOperands,
    TileShape,
    with_masked_steps,
)
from tilewright.backend.cpu.shared import KernelModule
from tilewright.backend.cpu.tile_functions import call_sums, store_sums
from tilewright.runtime import _native

CHAIN = 16  # pairs of a multiplication and an exclusive or in one round of the clock
CYCLES_OF_PAIR = 4  # 3 and 1: so on every x86-64 processor of the last fifteen years


@dataclass(frozen=True)
class Words:
    """The arguments of a wrapper; addresses and element counts.

    ``panel`` elements lie between two of the ``panels`` of the right operand, which are read in
    turn.
    """

    steps: int
    left: int
    left_row: int
    left_depth: int
    right: int
    right_depth: int
    columns: int
    runs: int
    table: int
    following: int
    tile: int
    tile_row: int
    panels: int
    panel: int

    def array(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """As the wrapper reads them."""
        return np.array([getattr(self, field.name) for field in fields(self)], np.int64)


_PLACES = {field.name: number for number, field in enumerate(fields(Words))}
Wrapper = Callable[[int, int], object]


@dataclass(frozen=True)
class Wrappers:
    """Callable wrappers by the name of their shape, and the clock; ``code`` keeps them mapped."""

    tiles: dict[str, Wrapper]
    clock: Wrapper
    code: object


def build(level: Level, shapes: Sequence[TileShape]) -> Wrappers:
    """Compile and map the wrappers of ``shapes`` for a level that this processor has."""
    module = KernelModule("profile")
    for shape in shapes:
        _write_wrapper(module, level, shape)
    _write_clock(module)
    image = compile_module(module, level)
    code = _native.Image(image.data, dict(image.functions), list(image.fixups))
    signature = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)
    tiles = {shape.name: signature(code.address(_name(shape))) for shape in shapes}
    return Wrappers(tiles, signature(code.address("clock")), code)


def _name(shape: TileShape) -> str:
    return f"measure_{shape.name}"


def _start(module: ir.Module, name: str) -> tuple[ir.Function, ir.IRBuilder]:
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), (I64, I64)), name)
    function.attributes.add("nounwind")
    return function, ir.IRBuilder(function.append_basic_block("entry"))


def _write_wrapper(module: ir.Module, level: Level, shape: TileShape) -> None:
    function, builder = _start(module, _name(shape))
    rounds, words = function.args
    base = builder.inttoptr(words, POINTER)

    def argument(name: str, kind: ir.Type = I64) -> ir.Value:
        address = builder.gep(base, [word(_PLACES[name])], source_etype=I64)
        value = builder.load(address, align=8, typ=I64)
        return builder.inttoptr(value, POINTER) if kind == POINTER else value

    pointers = ("left", "right", "table", "tile")
    given = {name: argument(name, POINTER if name in pointers else I64) for name in _PLACES}
    loop, done = (function.append_basic_block(name) for name in ("loop", "done"))
    entry = builder.block
    builder.cbranch(builder.icmp_signed(">", rounds, word(0)), loop, done)
    builder.position_at_end(loop)
    left_over, panel = builder.phi(I64), builder.phi(I64)
    left_over.add_incoming(rounds, entry)
    panel.add_incoming(word(0), entry)
    offset = builder.mul(panel, given["panel"])
    right = Emitter(builder, level).gep(given["right"], shape.dtype, offset)
    place = [given["tile"], given["tile_row"], ir.Constant(ir.IntType(1), 0)]
    operands = _operands(given, right)
    if shape.masked:
        operands = with_masked_steps(builder, shape.width(level.lanes(shape.dtype.bytes)), operands)
    sums = call_sums(builder, level, shape, operands, place)
    store_sums(builder, level, shape, sums, place)
    following = builder.add(panel, word(1))
    wraps = builder.icmp_signed("==", following, given["panels"])
    panel.add_incoming(builder.select(wraps, word(0), following), loop)
    fewer = builder.sub(left_over, word(1))
    left_over.add_incoming(fewer, loop)
    builder.cbranch(builder.icmp_signed(">", fewer, word(0)), loop, done)
    builder.position_at_end(done)
    builder.ret_void()


def _operands(given: dict[str, ir.Value], right: ir.Value) -> TileOperands:
    gathered = Gathered(given["runs"], given["table"], given["following"])
    return TileOperands(
        given["steps"], given["left"], given["left_row"], given["left_depth"],
        right, given["right_depth"], columns=given["columns"], gathered=gathered,
    )  # fmt: skip


def _write_clock(module: ir.Module) -> None:
    """``rounds`` times a chain in which every instruction waits for the one before."""
    function, builder = _start(module, "clock")
    rounds, words = function.args
    base = builder.inttoptr(words, POINTER)
    factor = builder.load(base, align=8, typ=I64)
    loop, done = (function.append_basic_block(name) for name in ("loop", "done"))
    entry = builder.block
    builder.branch(loop)
    builder.position_at_end(loop)
    left_over, start = builder.phi(I64), builder.phi(I64)
    left_over.add_incoming(rounds, entry)
    start.add_incoming(factor, entry)
    value: ir.Value = start
    for _ in range(CHAIN):
        value = builder.xor(builder.mul(value, factor), factor)
    fewer = builder.sub(left_over, word(1))
    left_over.add_incoming(fewer, loop)
    start.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed(">", fewer, word(0)), loop, done)
    builder.position_at_end(done)
    builder.store(value, base, align=8)
    builder.ret_void()
