"""The same generator for another architecture: tiles cross-compiled for NEON."""

from __future__ import annotations

import re

import pytest
from llvmlite import ir

from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.machine import NEON, assembly
from tilewright.backend.cpu.register_tile import TileShape, most_rows
from tilewright.backend.cpu.shared import shared_module
from tilewright.backend.cpu.tile_functions import tile_function
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import MULTIPLY_ADD_PAIRS


@pytest.mark.parametrize("vectors", [1, 2, 4])
def test_tiles_multiply_and_add_in_registers(vectors: int) -> None:
    height = most_rows(NEON, vectors)
    shape = TileShape(DType.FLOAT32, height, vectors, 1, 4 * vectors)
    text = assembly(shared_module(tile_function(NEON, shape)), NEON)
    assert text.count("fmla") >= height * vectors
    body = re.search(r"(?m)^(\.LBB\d+_\d+):.*?b\.\w+\s+\1$", text, re.DOTALL)
    assert body is not None, "the loop along k"
    assert not re.search(r"\bst[rpu]+\s+q\d+.*\[sp", body[0]), "no sum is spilled in the loop"


def test_words_are_taken_apart() -> None:
    word = ir.VectorType(ir.IntType(32), 4)
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(word, [word] * 3), "words")
    builder = ir.IRBuilder(function.append_basic_block())
    emitter = Emitter(builder, NEON, 4)
    builder.ret(emitter.adding(MULTIPLY_ADD_PAIRS, DType.INT32, function.args))
    text = assembly(module, NEON)
    assert re.search(r"\bs?m(ul|la)l?\b", text)
