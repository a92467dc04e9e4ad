"""Every register tile by itself, against float64: odd strides, no alignment, poison around it."""

from __future__ import annotations

import ctypes
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from llvmlite import ir

from tilewright.backend.cpu.indices import I64, word
from tilewright.backend.cpu.library import compile_module
from tilewright.backend.cpu.machine import LEVELS, Level, host_level
from tilewright.backend.cpu.register_tile import RUN_LINES, TileOperands, TileShape, most_rows
from tilewright.backend.cpu.shared import KernelModule, shared_function, shared_module
from tilewright.backend.cpu.tile_functions import (
    TILE_PLACE,
    call_sums,
    store_sums,
    tile_function,
)
from tilewright.ir.dtype import DType
from tilewright.runtime import _native
from tilewright.target.core_model import WIDE_VECTOR_BYTES

POINTER = ir.PointerType()
# The tiles of AVX-512, each vector made of two, for machines without it.
WIDE = replace(
    LEVELS["avx512"],
    name="wide",
    processor=LEVELS["avx2"].processor,
    adjustments=LEVELS["avx2"].adjustments,
    features=LEVELS["avx2"].features,
)
RUNNABLE = [level for level in LEVELS.values() if level is LEVELS[host_level().name]]
RUNNABLE += [LEVELS["x86-64"]] if host_level().name != "x86-64" else []
RUNNABLE += [WIDE] if host_level().name == "avx2" else []
DEPTHS = (0, 1, 2, 3, 5, 8, 37)
POISON = np.nan


class Tiles:
    """Callable tiles: ``run(shape, words)`` with the arguments as 64-bit words."""

    def __init__(self, level: Level, shapes: list[TileShape]) -> None:
        module = KernelModule("tiles")
        for shape in shapes:
            kinds = [*TileOperands.types(shape), *TILE_PLACE]
            function = ir.Function(module, ir.FunctionType(ir.VoidType(), (POINTER,)), _name(shape))
            builder = ir.IRBuilder(function.append_basic_block("entry"))
            arguments: list[ir.Value] = []
            for slot, kind in enumerate(kinds):
                address = builder.gep(function.args[0], [word(slot)], source_etype=I64)
                value = builder.load(address, typ=I64)
                if kind == POINTER:
                    value = builder.inttoptr(value, POINTER)
                elif kind == ir.IntType(1):
                    value = builder.trunc(value, kind)
                arguments.append(value)
            operands, place = TileOperands.of(shape, arguments[:-3]), arguments[-3:]
            sums = call_sums(builder, level, shape, operands, place)
            tallest = shape.with_height(shape.height + shape.height % 2)
            store_sums(builder, level, tallest, sums, place)
            builder.ret_void()
        image = compile_module(module, level)
        self.code = _native.Image(image.data, dict(image.functions), list(image.fixups))

    def run(self, shape: TileShape, words: list[int]) -> None:
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.code.address(_name(shape)))
        packed = np.array(words, np.int64)
        call(packed.ctypes.data)


def _name(shape: TileShape) -> str:
    return f"run_{shape.name}"


def shapes(level: Level) -> list[TileShape]:
    """Every height of every width, and the variants of each."""
    out: list[TileShape] = []
    for vectors in (1, 2, 3, 4):
        if vectors > 2 and level.registers < 32:
            continue
        for height in range(1, most_rows(level, vectors) + 1):
            plain = TileShape(DType.FLOAT32, height, vectors, 1, None)
            out += [plain, replace(plain, left_depth=None, masked=True)]
            if level.vector_bytes >= WIDE_VECTOR_BYTES:
                out += [replace(plain, halved=True), replace(plain, halved=True, masked=True)]
            if height in (1, 2, most_rows(level, vectors)):
                out += [replace(plain, gathered=True), replace(plain, prefetches=True)]
                out += [replace(plain, follows=True, masked=True)]
                out += [replace(plain, streams=True), replace(plain, gathered=True, shifted=True)]
                out += [replace(plain, gathered=True, padded=True)]
    out += [TileShape(DType.FLOAT64, height, 2, 1, None) for height in (1, 3, 6)]
    return out


@pytest.mark.slow
@pytest.mark.parametrize("level", RUNNABLE, ids=lambda level: level.name)
def test_every_tile(level: Level) -> None:
    wanted = shapes(level)
    tiles = Tiles(level, wanted)
    for number, shape in enumerate(wanted):
        for depth in DEPTHS:
            _check(tiles, level, shape, depth, np.random.default_rng(number))


@pytest.mark.parametrize("shifted", [True, False])
def test_tiles_ask_for_the_next_run_of_their_rows(shifted: bool) -> None:
    """Where a short table lists the runs of all rows; with one of every run it gained nothing."""
    shape = TileShape(DType.FLOAT32, 6, 2, 1, 16, gathered=True, shifted=shifted)
    module = KernelModule("tiles")
    shared_function(module, tile_function(LEVELS["avx2"], shape))
    (shared,) = module.shared.values()
    asked = re.findall(r"call void @.?llvm\.prefetch", str(shared_module(shared)))
    assert len(asked) == (shape.height * RUN_LINES if shifted else 0)


def _check(
    tiles: Tiles, level: Level, shape: TileShape, depth: int, random: np.random.Generator
) -> None:
    lanes, kind = level.lanes(shape.dtype.bytes), shape.dtype.numpy
    columns, width = shape.vectors * lanes, shape.width(lanes)
    valid = width - 3 if shape.masked else width
    runs = 3 if shape.gathered else 1
    deep = depth * runs
    step = shape.left_depth or 3
    left = random.standard_normal((shape.height, max(1, deep) * step + 5)).astype(kind)
    # One element off the alignment, and nothing after the last column that may be read.
    room = np.full(1 + max(1, deep) * (valid + 7), POISON, kind)
    right = room[1:].reshape(max(1, deep), valid + 7)
    right[:, :valid] = random.standard_normal((max(1, deep), valid))
    tile = np.full((shape.height + 1, columns + 3), POISON, kind)
    start = random.standard_normal((shape.height, columns)).astype(kind)
    tile[: shape.height, :columns] = start
    resume = int(depth % 2 == 1)
    zeros = np.zeros(max(1, depth), kind)
    table = np.zeros((runs, shape.height), np.int64)
    shifts = np.arange(runs, dtype=np.int64) * depth * left.itemsize
    taken = left[:, : deep * step : step]
    if shape.gathered:
        for r in range(runs):
            for i in range(shape.height):
                outside = not shape.shifted and ((r + i) % 3 == 2 or (shape.padded and r == 1))
                row, begin = i * left.strides[0], 0 if shape.shifted else shifts[r]
                table[r, i] = zeros.ctypes.data - left.ctypes.data if outside else row + begin
                if outside:
                    taken = taken.copy()
                    taken[i, r * depth : (r + 1) * depth] = 0
    if shape.padded and shape.height > 1:
        right[depth : 2 * depth] = POISON  # of a run that no row has
    following = shifts.ctypes.data if shape.shifted else shape.height
    words = [depth, left.ctypes.data, left.shape[1], step, right.ctypes.data, right.shape[1]]
    words += [valid, 1] if shape.masked else []  # whole vectors reach beyond the last row only
    words += [runs, table.ctypes.data, following] if shape.gathered else []
    words += [right.ctypes.data, 5 * columns, 1] if shape.prefetches else []
    words += [right.ctypes.data, 1, 3] if shape.follows else []
    words += [left.ctypes.data] if shape.streams else []
    words += [tile.ctypes.data, tile.shape[1], resume]
    tiles.run(shape, words)
    exact = taken.astype(np.float64) @ np.nan_to_num(right[:deep, :valid].astype(np.float64))
    exact += start[:, :valid].astype(np.float64) * resume
    unit = np.finfo(kind).eps * (8 + 2 * math.sqrt(deep + 1)) * max(1.0, np.abs(exact).max())
    found = tile[: shape.height, :valid]
    assert np.abs(found - exact).max() <= unit, (shape, depth)
    assert np.isnan(tile[shape.height]).all(), "a row below the tile was written"
    assert np.isnan(tile[:, columns:]).all(), "columns beside the tile were written"
