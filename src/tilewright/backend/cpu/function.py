"""Functions with the kernel interface: parameters, buffers, tasks, scratch, status.

The entry unpacks its arrays and calls a body whose buffers are ``noalias`` arguments, which is what
lets LLVM vectorise. Start with :class:`KernelFunction`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from tilewright.backend.cpu.indices import I64, IndexEmitter, word
from tilewright.backend.cpu.internal import POINTER, internal_function
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.statements import FunctionFrame
from tilewright.ir.tile import TileBuffer
from tilewright.shape import Expr, ceil_div, constant

ALIGNMENT = 64  # bytes; of every scratch buffer


def scratch_bytes(buffers: Sequence[TileBuffer]) -> Expr:
    """Bytes of thread-private memory for ``buffers``."""
    total = constant(0)
    for buffer in buffers:
        total = total + _aligned(buffer)
    return total


def _aligned(buffer: TileBuffer) -> Expr:
    assert buffer.elements is not None
    return ceil_div(buffer.elements * buffer.dtype.bytes, ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Signature:
    """What a kernel is called with: sizes (in parameter order), tensors, and scratch buffers."""

    symbols: tuple[str, ...]
    buffers: tuple[TileBuffer, ...]
    scratch: tuple[TileBuffer, ...]


class Environment:
    """The values of a kernel in memory, for functions that it calls with one pointer.

    ``names`` (symbols and what the kernel adds) are words, then come the pointers of the buffers
    and the status.
    """

    def __init__(self, signature: Signature, names: Sequence[str]) -> None:
        self.names = (*signature.symbols, *names)
        self.memory = [b.name for b in (*signature.buffers, *signature.scratch)]

    def allocate(self, frame: FunctionFrame) -> ir.Value:
        """Room for it, with all filled in but the names that the kernel adds; at its entry."""
        count = len(self.names) + len(self.memory) + 1
        place = frame.builder.alloca(ir.ArrayType(I64, count))
        place.type = POINTER  # llvmlite alone still gives it the type of what it points to
        for name in self.names:
            if name in frame.names:
                self.set(frame, place, name)
        for slot, name in enumerate(self.memory, start=len(self.names)):
            frame.builder.store(frame.pointers[name], self._slot(frame.builder, place, slot))
        frame.builder.store(frame.status, self._slot(frame.builder, place, count - 1))
        return place

    def set(self, frame: FunctionFrame, place: ir.Value, name: str) -> None:
        """Write the value that ``name`` has in ``frame``."""
        slot = self._slot(frame.builder, place, self.names.index(name))
        frame.builder.store(frame.names[name], slot)

    def frame(self, builder: ir.IRBuilder, level: Level, place: ir.Value) -> FunctionFrame:
        """The frame of a function that was given it."""
        names: dict[str, ir.Value] = {}
        pointers: dict[str, ir.Value] = {}
        for slot, name in enumerate(self.names):
            names[name] = builder.load(self._slot(builder, place, slot), typ=I64)
        for slot, name in enumerate(self.memory, start=len(self.names)):
            pointers[name] = builder.load(self._slot(builder, place, slot), typ=POINTER)
        last = self._slot(builder, place, len(self.names) + len(self.memory))
        return FunctionFrame(builder, level, pointers, names, builder.load(last, typ=POINTER))

    @staticmethod
    def _slot(builder: ir.IRBuilder, place: ir.Value, slot: int) -> ir.Value:
        return builder.gep(place, [word(slot)], source_etype=I64)


class KernelFunction:
    """Writes the entry of a kernel and the body's prologue; ``names`` and ``pointers`` by name."""

    def __init__(self, module: ir.Module, name: str, signature: Signature, level: Level) -> None:
        self.module = module
        self.level = level
        self.signature = signature
        count = len(signature.buffers) + len(signature.scratch)
        self.types = [I64, I64, *[I64] * len(signature.symbols), *[POINTER] * count, POINTER]
        body_type = ir.FunctionType(ir.VoidType(), self.types)
        self.body = internal_function(module, f"{name}.body", body_type)
        self.body.attributes.add("noinline")
        first = 2 + len(signature.symbols)
        for argument in self.body.args[first : first + count]:
            argument.add_attribute("noalias")
        self._entry(name)

    def _entry(self, name: str) -> None:
        kinds = [POINTER, POINTER, I64, I64, POINTER, POINTER]
        entry = ir.Function(self.module, ir.FunctionType(ir.VoidType(), kinds), name)
        entry.attributes.add("nounwind")
        parameters, buffers, begin, end, scratch, status = entry.args
        builder = ir.IRBuilder(entry.append_basic_block("entry"))
        names: dict[str, ir.Value] = {}
        for slot, symbol_name in enumerate(self.signature.symbols):
            address = builder.gep(parameters, [word(slot)], source_etype=I64)
            names[symbol_name] = builder.load(address, typ=I64)
        arguments = [begin, end, *names.values()]
        for slot in range(len(self.signature.buffers)):
            address = builder.gep(buffers, [word(slot)], source_etype=POINTER)
            arguments.append(builder.load(address, typ=POINTER))
        indices = IndexEmitter(builder)
        offset = constant(0)
        for buffer in self.signature.scratch:
            place = indices.emit(offset, names)
            arguments.append(builder.gep(scratch, [place], source_etype=ir.IntType(8)))
            offset = offset + _aligned(buffer)
        builder.call(self.body, [*arguments, status])
        builder.ret_void()

    def frame(self) -> tuple[FunctionFrame, ir.Value, ir.Value]:
        """The frame at the start of the body, and the first and last task."""
        builder = ir.IRBuilder(self.body.append_basic_block("entry"))
        begin, end, *rest = self.body.args
        count = len(self.signature.symbols)
        names: dict[str, ir.Value] = dict(zip(self.signature.symbols, rest[:count], strict=True))
        memory = (*self.signature.buffers, *self.signature.scratch)
        pointers: dict[str, ir.Value] = dict(
            zip([b.name for b in memory], rest[count:-1], strict=True)
        )
        frame = FunctionFrame(builder, self.level, pointers, names, rest[-1])
        frame.lengths = {b.name: b.elements for b in self.signature.scratch}
        return frame, begin, end


def task_loop(
    frame: FunctionFrame,
    bounds: tuple[ir.Value, ir.Value],
    grid: Sequence[tuple[str, Expr]],
    body: Callable[[], None],
) -> None:
    """Run ``body`` for the tasks in ``bounds`` with the grid's variables named in the frame.

    The position in the grid is found once by division and then counted on like an odometer.
    """
    begin, end = bounds
    builder, function = frame.builder, frame.builder.function
    extents = [frame.index(size) for _, size in grid]
    digits: list[ir.Value] = []
    rest = begin
    for extent in reversed(extents):
        safe = builder.select(builder.icmp_signed("==", extent, word(0)), word(1), extent)
        digits.append(builder.urem(rest, safe))
        rest = builder.udiv(rest, safe)
    digits.reverse()
    loop = function.append_basic_block("task")
    done = function.append_basic_block("end")
    before = builder.block
    builder.cbranch(builder.icmp_signed("<", begin, end), loop, done)
    builder.position_at_end(loop)
    task = builder.phi(I64)
    task.add_incoming(begin, before)
    positions: list[ir.PhiInstr] = []
    for (name, _), digit in zip(grid, digits, strict=True):
        position = builder.phi(I64)
        position.add_incoming(digit, before)
        positions.append(position)
        frame.names[name] = position
    frame.enter()
    body()
    frame.leave()
    following = builder.add(task, word(1), flags=("nsw",))
    counted: list[ir.Value] = []
    carry: ir.Value = ir.Constant(ir.IntType(1), 1)
    for position, extent in zip(reversed(positions), reversed(extents), strict=True):
        raised = builder.add(position, builder.zext(carry, I64), flags=("nsw",))
        carry = builder.icmp_signed("==", raised, extent)
        counted.append(builder.select(carry, word(0), raised))
    latch = builder.block
    task.add_incoming(following, latch)
    for position, value in zip(positions, reversed(counted), strict=True):
        position.add_incoming(value, latch)
    builder.cbranch(builder.icmp_signed("<", following, end), loop, done)
    builder.position_at_end(done)
