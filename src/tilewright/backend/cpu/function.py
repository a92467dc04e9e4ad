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
from tilewright.ir.tile import LINE_BYTES, TileBuffer
from tilewright.shape import Expr, ceil_div, constant

ALIGNMENT = LINE_BYTES  # of every scratch buffer
COUNTED_AXES = 2  # of a grid, the last ones: they are one loop


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
    counted: int = COUNTED_AXES,
) -> None:
    """Run ``body`` for the tasks in ``bounds`` with the grid's variables named in the frame.

    The place of the first one in the grid is found by division. From there on the axes are loops
    within each other, of which the inner ones begin at that place once and then at 0: a task may be
    as short as a row, and what only outer axes decide is computed outside of the inner loops. The
    last axes, so many of them as are ``counted``, are one loop.
    """
    begin, end = bounds
    builder = frame.builder
    one = constant(1)
    frame.names.update((name, word(0)) for name, size in grid if size is one)
    axes = [(name, frame.index(size)) for name, size in grid if size is not one]
    firsts: list[ir.Value] = []
    rest = begin
    for _, extent in reversed(axes):
        safe = builder.select(builder.icmp_signed("==", extent, word(0)), word(1), extent)
        firsts.append(builder.urem(rest, safe))
        rest = builder.udiv(rest, safe)
    some, done = (builder.append_basic_block(name) for name in ("tasks", "end"))
    builder.cbranch(builder.icmp_signed("<", begin, end), some, done)
    builder.position_at_end(some)
    _Tasks(frame, end, done, body, counted).write(axes, firsts[::-1], begin)
    builder.branch(done)
    builder.position_at_end(done)


@dataclass(frozen=True)
class _Tasks:
    """Tasks before ``end``, where ``done`` follows, as loops over the axes of a grid."""

    frame: FunctionFrame
    end: ir.Value
    done: ir.Block
    body: Callable[[], None]
    counted: int

    def write(
        self, axes: Sequence[tuple[str, ir.Value]], firsts: Sequence[ir.Value], task: ir.Value
    ) -> ir.Value:
        """The tasks from ``task`` on, which lies at ``firsts`` of these axes; what comes next."""
        if len(axes) <= self.counted:
            return self._counted(axes, firsts, task)
        builder, extent = self.frame.builder, axes[0][1]
        phis, loop = self._begun(axes[:1], (*firsts, task))
        following = self.write(axes[1:], phis[1:-1], phis[-1])
        self.frame.leave()
        more, after = (builder.append_basic_block(name) for name in ("axis_next", "axis_end"))
        builder.cbranch(builder.icmp_signed("<", following, self.end), more, self.done)
        builder.position_at_end(more)
        position = builder.add(phis[0], word(1), flags=("nsw",))
        for phi, value in zip(phis, (position, *[word(0)] * len(axes[1:]), following), strict=True):
            phi.add_incoming(value, more)
        builder.cbranch(builder.icmp_signed("<", position, extent), loop, after)
        builder.position_at_end(after)
        return following

    def _counted(
        self, axes: Sequence[tuple[str, ir.Value]], firsts: Sequence[ir.Value], task: ir.Value
    ) -> ir.Value:
        """One loop over all of these axes, which are counted on like an odometer.

        The last axis is most often the number of blocks of a row, and that is one: a loop within a
        loop for it would take as long as a short row.
        """
        builder = self.frame.builder
        left: ir.Value = word(1)
        for (_, extent), first in zip(axes, firsts, strict=True):
            left = builder.sub(builder.mul(left, extent), first)
        last = builder.add(task, left)
        last = builder.select(builder.icmp_signed("<", last, self.end), last, self.end)
        phis, loop = self._begun(axes, (*firsts, task))
        self.body()
        self.frame.leave()
        following = builder.add(phis[-1], word(1), flags=("nsw",))
        self._count_on(axes, phis[:-1])
        phis[-1].add_incoming(following, builder.block)
        after = builder.append_basic_block("axes_end")
        builder.cbranch(builder.icmp_signed("<", following, last), loop, after)
        builder.position_at_end(after)
        return following

    def _count_on(
        self, axes: Sequence[tuple[str, ir.Value]], places: Sequence[ir.PhiInstr]
    ) -> None:
        """The places along some axes of the task that follows.

        Where one axis alone is a loop, that ends with the axis, and this only goes up: addresses
        are steps from one task to the next. Those of several loops within a task would be more
        steps than registers hold.
        """
        builder = self.frame.builder
        carry: ir.Value = ir.Constant(ir.IntType(1), 1)
        for (_, extent), place in reversed(list(zip(axes, places, strict=True))):
            raised = builder.add(place, builder.zext(carry, I64), flags=("nsw",))
            if self.counted > 1:
                carry = builder.icmp_signed("==", raised, extent)
                raised = builder.select(carry, word(0), raised)
            place.add_incoming(raised, builder.block)

    def _begun(
        self, axes: Sequence[tuple[str, ir.Value]], begins: Sequence[ir.Value]
    ) -> tuple[list[ir.PhiInstr], ir.Block]:
        """A loop that carries values from ``begins`` on, of which the first are places of axes."""
        builder, before = self.frame.builder, self.frame.builder.block
        loop = builder.append_basic_block("task")
        builder.branch(loop)
        builder.position_at_end(loop)
        phis = [builder.phi(I64) for _ in begins]
        for phi, begin in zip(phis, begins, strict=True):
            phi.add_incoming(begin, before)
        self.frame.names.update((name, phi) for (name, _), phi in zip(axes, phis, strict=False))
        self.frame.enter()
        return phis, loop
