"""Compiles scalar functions into loops over arrays and runs them in this process."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from llvmlite import ir

from tilewright.backend.cpu import machine
from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.link import link
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import SCALAR_FUNCTIONS

Array = np.ndarray[Any, Any]
Body = Callable[[Emitter, Sequence[ir.Value], ir.Value], ir.Value]

_POINTER = ir.PointerType()
_INDEX = ir.IntType(64)


class Loops:
    """Builds modules of loops ``output[i] = body(inputs[i]...)``, and runs them."""

    def __init__(self) -> None:
        self._code: list[mmap.mmap] = []

    @staticmethod
    def levels() -> list[machine.Level]:
        """The levels that this processor runs."""
        return machine.host_levels()

    @staticmethod
    def add(
        module: ir.Module,
        name: str,
        level: machine.Level,
        operands: Sequence[DType],
        result: DType,
        body: Body,
        lanes: int = 1,
    ) -> None:
        """Add a function of the operand arrays, the output array and a multiple of ``lanes``."""
        kind = ir.FunctionType(ir.VoidType(), [_POINTER] * (len(operands) + 1) + [_INDEX])
        function = ir.Function(module, kind, name)
        for argument in function.args[:-1]:
            argument.add_attribute("noalias")
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        loop, done = function.append_basic_block("loop"), function.append_basic_block("done")
        entry = builder.block
        builder.branch(loop)
        builder.position_at_end(loop)
        index = builder.phi(_INDEX)
        index.add_incoming(ir.Constant(_INDEX, 0), entry)
        emitter = Emitter(builder, level, lanes)
        values = [
            emitter.load(emitter.gep(pointer, dtype, index), dtype)
            for pointer, dtype in zip(function.args[:-2], operands, strict=True)
        ]
        value = body(emitter, values, index)
        emitter.store(value, emitter.gep(function.args[-2], result, index), result)
        following = builder.add(index, ir.Constant(_INDEX, lanes))
        index.add_incoming(following, builder.block)
        more = builder.icmp_signed("<", following, function.args[-1])
        builder.cbranch(more, loop, done)
        builder.position_at_end(done)
        builder.ret_void()

    def add_function(
        self, module: ir.Module, name: str, level: machine.Level, dtype: DType, lanes: int = 1
    ) -> None:
        """Add a loop of one row of ``SCALAR_FUNCTIONS``."""
        row = SCALAR_FUNCTIONS[name]

        def body(emitter: Emitter, values: Sequence[ir.Value], index: ir.Value) -> ir.Value:
            return emitter.apply(name, dtype, values)

        operands = [dtype] * row.arity
        if row.result == "select":
            operands[0] = DType.BOOL
        result = DType.BOOL if row.result == "bool" else dtype
        self.add(module, name, level, operands, result, body, lanes)

    def load(self, module: ir.Module, level: machine.Level) -> Callable[[str], int]:
        """Compile a module; the result gives the address of a function by name."""
        image = link([machine.compile_object(module, level)], level.name, level.features)
        protection = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        memory = mmap.mmap(-1, len(image.data), prot=protection)
        memory[:] = image.data
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        library = ctypes.CDLL("libm.so.6")
        for offset, symbol, addend in image.fixups:
            external = ctypes.cast(library[symbol], ctypes.c_void_p).value if symbol else base
            assert external is not None
            memory[offset : offset + 8] = (external + addend).to_bytes(8, "little")
        self._code.append(memory)
        addresses = {name: base + offset for name, offset in image.functions.items()}
        return addresses.__getitem__

    @staticmethod
    def call(address: int, operands: Sequence[Array], result: np.dtype[Any]) -> Array:
        """Run a loop over equally long arrays, whose length is a multiple of its lanes."""
        output = np.empty(operands[0].shape, result)
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(operands) + 1), ctypes.c_int64)
        arrays = [np.ascontiguousarray(a) for a in operands]
        kind(address)(*(a.ctypes.data for a in arrays), output.ctypes.data, output.size)
        return output

    def run(
        self, name: str, level: machine.Level, operands: Sequence[Array], lanes: int = 1
    ) -> Array:
        """Compile and run one scalar function."""
        dtype = DType.of(operands[-1].dtype)
        module = ir.Module("test")
        self.add_function(module, name, level, dtype, lanes)
        is_bool = SCALAR_FUNCTIONS[name].result == "bool"
        result = np.dtype(bool) if is_bool else operands[-1].dtype
        return self.call(self.load(module, level)(name), operands, result)


@pytest.fixture(scope="session")
def loops() -> Loops:
    """The loop builder, which keeps compiled code alive for the session."""
    return Loops()
