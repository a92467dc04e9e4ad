"""Statements and scalar values of tile programs as LLVM IR.

One :class:`FunctionFrame` per function being written: where buffers lie, what names mean, and the
values already computed in the current block and those around it. Loops are left in a form that
LLVM's vectoriser takes. Start with :meth:`FunctionFrame.statements`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from llvmlite import ir

from tilewright.backend.cpu.byte_loops import write_byte_loop
from tilewright.backend.cpu.checked_loops import is_by_elements
from tilewright.backend.cpu.code_product import CodeShape, code_product_function
from tilewright.backend.cpu.cover import stepping
from tilewright.backend.cpu.dots import DotProducts, Products, contiguous_products
from tilewright.backend.cpu.emitter import Emitter
from tilewright.backend.cpu.indices import I64, IndexEmitter, word
from tilewright.backend.cpu.interleaved import write_interleaved
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.parallel_loops import LoopHints, fills_vectors, mark_loop
from tilewright.backend.cpu.picked_loops import write_lookups
from tilewright.backend.cpu.product import ProductShape, product_function
from tilewright.backend.cpu.register_tile import most_vectors
from tilewright.backend.cpu.repeated_loops import write_repeats
from tilewright.backend.cpu.row_loops import RowLoop, row_loop, write_row_loop
from tilewright.backend.cpu.running import running_step, write_running
from tilewright.backend.cpu.search_loops import write_sought
from tilewright.backend.cpu.streams import streamed_loop
from tilewright.backend.cpu.transposed_runs import write_transposed
from tilewright.ir.scalar import ADDING
from tilewright.ir.stage_axis import NEVER, Role, StageAxis
from tilewright.ir.tile import (
    IDENTITY,
    Accumulator,
    Apply,
    Check,
    CodeView,
    Convert,
    Guarded,
    IndexValue,
    Let,
    LetDistance,
    LetIndex,
    Literal,
    Load,
    Local,
    Loop,
    Product,
    Stage,
    Statement,
    Store,
    Sums,
    TileBuffer,
    TransposeBlock,
    Value,
    View,
)
from tilewright.shape import Expr, constant, minimum
from tilewright.target.core_model import MASKED_VECTOR_BYTES

VECTORS_AT_A_TIME = 4  # of 4-byte elements: as many as LLVM interleaves of a light loop


class ProductWriter(Protocol):
    """Writes a product that is finished by stores, whose frame is the whole function's."""

    def begin_task(self) -> None:
        """The blocks of a task are named: note what is the same for all of it."""
        ...

    def write(self) -> None:
        """Write the product at this place."""
        ...


class FunctionFrame:
    """The state of writing one function. ``names`` maps symbols and loop variables to values.

    ``finished`` has what writes its products that are finished by stores.
    """

    def __init__(
        self,
        builder: ir.IRBuilder,
        level: Level,
        pointers: dict[str, ir.Value],
        names: dict[str, ir.Value],
        status: ir.Value,
    ) -> None:
        self.builder = builder
        self.level = level
        self.emitter = Emitter(builder, level)
        self.indices = IndexEmitter(builder)
        self.pointers = pointers
        self.names = names
        self.status = status
        self.locals: dict[str, ir.Value] = {}
        self.running: dict[str, ir.Value] = {}
        self.finished: dict[Product, ProductWriter] = {}
        self.near: set[TileBuffer] = set()
        self.lengths: dict[str, Expr | None] = {}
        self._memo: list[dict[int, ir.Value]] = [{}]
        self._index_memo: list[dict[Expr, ir.Value]] = [{}]

    # ------------------------------------------------------------ scopes

    def enter(self) -> None:
        """Values computed from here on are forgotten at :meth:`leave`."""
        self._memo.append({})
        self._index_memo.append({})

    def leave(self) -> None:
        """End of a block that does not dominate what follows."""
        self._memo.pop()
        self._index_memo.pop()

    # ------------------------------------------------------------ values

    def index(self, expression: Expr) -> ir.Value:
        """An index expression, computed once per block."""
        for memo in self._index_memo:
            if expression in memo:
                return memo[expression]
        made = self.indices.emit(expression, self.names)
        self._index_memo[-1][expression] = made
        return made

    def value(self, value: Value) -> ir.Value:
        """A scalar value, computed once per block."""
        for memo in self._memo:
            if id(value) in memo:
                return memo[id(value)]
        made = self._value(value)
        self._memo[-1][id(value)] = made
        return made

    def _value(self, value: Value) -> ir.Value:
        match value:
            case Load(buffer=buffer, offset=offset):
                pointer = self.pointers[buffer.name]
                address = self.emitter.gep(pointer, buffer.dtype, self.index(offset))
                return self.emitter.load(address, buffer.dtype)
            case Literal(value=number, dtype=dtype):
                return self.emitter.constant(number, dtype)
            case IndexValue(expression=expression):
                return self.index(expression)
            case Apply(function=function, operands=operands):
                arguments = [self.value(operand) for operand in operands]
                if function in ADDING:
                    return self.emitter.adding(function, value.dtype, arguments)
                return self.emitter.apply(function, value.operand_type, arguments)
            case Convert():
                return self.emitter.convert(self.value, value)
            case Local(name=name, dtype=dtype):
                if name.startswith(IDENTITY):
                    return self.emitter.identity(name[len(IDENTITY) :], dtype)
                return self.locals[name]
            case Guarded():
                return self._guarded(value)

    def _guarded(self, value: Guarded) -> ir.Value:
        truth = self.indices.truth(value.predicate, self.names)
        function = self.builder.function
        inside = function.append_basic_block("inside")
        outside = function.append_basic_block("outside")
        joined = function.append_basic_block("joined")
        self.builder.cbranch(truth, inside, outside)
        ends: list[tuple[ir.Value, ir.Block]] = []
        for block, choice in ((inside, value.inside), (outside, value.outside)):
            self.builder.position_at_end(block)
            self.enter()
            made = self.value(choice)
            self.leave()
            ends.append((made, self.builder.block))
            self.builder.branch(joined)
        self.builder.position_at_end(joined)
        phi = self.builder.phi(ends[0][0].type)
        for made, block in ends:
            phi.add_incoming(made, block)
        return phi

    # ------------------------------------------------------------ statements

    def statements(self, body: Iterable[Statement]) -> None:
        """Write statements in order."""
        for statement in body:
            match statement:
                case Let(name=name, value=value):
                    self.locals[name] = self.value(value)
                case LetIndex():
                    self._let_index(statement)
                case Loop():
                    self._loop(statement)
                case Store(buffer=buffer, offset=offset, value=value):
                    pointer = self.pointers[buffer.name]
                    address = self.emitter.gep(pointer, buffer.dtype, self.index(offset))
                    self.emitter.store(self.value(value), address, buffer.dtype)
                case TransposeBlock():
                    self._transpose(statement)
                case LetDistance():
                    self._distance(statement)
                case Product(target=Sums() as target, right=CodeView() as right):
                    self._code_product(statement, target, right)
                case Product(target=Sums() as target):
                    self._product(statement, target)
                case Product():
                    self.finished[statement].write()
                case Stage():
                    self._stage(statement)
                case Check(value=value, check=check):
                    self._report(self.value(value), check, (word(0), word(0)))

    def _transpose(self, block: TransposeBlock) -> None:
        dtype = block.target.dtype
        arguments: list[ir.Value] = []
        for buffer, offset, row in (
            (block.source, block.source_offset, block.source_row),
            (block.target, block.target_offset, block.target_row),
        ):
            address = self.emitter.gep(self.pointers[buffer.name], dtype, self.index(offset))
            arguments += [address, self.index(row)]
        arguments += [self.index(block.rows), self.index(block.columns)]
        write_transposed(self.builder, self.level, block, arguments, self.index(block.run))

    def _distance(self, statement: LetDistance) -> None:
        target = self.builder.ptrtoint(self.pointers[statement.target.name], I64)
        pointer = self.pointers[statement.buffer.name]
        place = self.emitter.gep(pointer, statement.dtype, self.index(statement.offset))
        self.names[statement.name] = self.builder.sub(target, self.builder.ptrtoint(place, I64))

    def _stage(self, stage: Stage) -> None:
        self.enter()
        parallel = [axis for axis in stage.axes if axis.role is Role.PARALLEL]
        for axis in parallel:
            first = axis.place * axis.block
            self.names[str(axis.begin)] = self.index(first)
            self.names[str(axis.end)] = self.index(minimum(first + axis.block, axis.extent))
        if parallel:
            for product in self.finished.values():
                product.begin_task()
        self._reduced([axis for axis in stage.axes if axis not in parallel], stage)
        self.leave()

    def _reduced(self, axes: Sequence[StageAxis], stage: Stage) -> None:
        """All blocks of some axes of a stage; without any, what is done with one."""
        if not axes:
            for part in (stage.load, stage.body, stage.store):
                self.statements(part)
            return
        axis = axes[0]
        limit, step = self.index(axis.extent), self.index(axis.block)

        def block(first: ir.Value) -> ir.Value:
            self.names[str(axis.begin)] = first
            self.enter()
            self.names[str(axis.end)] = self.index(minimum(axis.begin + axis.block, axis.extent))
            self._reduced(axes[1:], stage)
            self.leave()
            return step

        stepping(self.builder, str(axis.begin), (word(0), limit), block, always=True)

    def _product(self, product: Product, target: Sums) -> None:
        builder, dtype, left, right = self.builder, product.dtype, product.left, product.right
        assert isinstance(left, View) and not left.panel
        sizes = [end - begin for begin, end in (product.rows, product.columns, product.depth)]
        wide = most_vectors(self.level) * self.level.lanes(dtype.bytes)
        tail = sizes[1] % wide
        shape = ProductShape(
            dtype,
            tail.value if tail.is_constant else None,
            right.buffer.scratch or right.panel > 0,
            left.depth.value if left.depth.is_constant and left.depth.value > 0 else None,
            left.row is constant(1),
        )
        places = [
            self.emitter.gep(self.pointers[place.buffer.name], dtype, self.index(place.offset))
            for place in (target, left, right)
        ]
        single = right.panel < wide and sizes[1].is_constant and sizes[1].value <= right.panel
        assert single or right.panel in (0, wide), "panels as wide as a tile, or a single one"
        strides = (target.row, left.row, left.depth, right.row, right.depth)
        target_row, left_row, left_deep, *right_strides = map(self.index, strides)
        limits = [self.index(size) for size in sizes]
        resume = self.indices.truth(target.resume, self.names)
        operands = [places[0], target_row, places[1], left_row, left_deep, places[2]]
        function = product_function(builder.module, self.level, shape)
        builder.call(function, [*operands, *right_strides, *limits, resume])

    def _code_product(self, product: Product, target: Sums, right: CodeView) -> None:
        left, zeros = product.left, right.zeros
        assert isinstance(left, View) and target.resume is NEVER
        known = left.depth.value if left.depth.is_constant and left.depth.value > 0 else None
        single = zeros if isinstance(zeros, int) else None
        shape = CodeShape(right.bits, right.block, right.tail, single, right.panel, known)
        points = right.scales if isinstance(zeros, int) else zeros
        sums, rows, words, scales, zero_points = (
            self.emitter.gep(self.pointers[buffer.name], buffer.dtype, self.index(offset))
            for buffer, offset in (
                (target.buffer, target.offset),
                (left.buffer, left.offset),
                (right.buffer, right.offset),
                (right.scales, right.place),
                (points, right.place),
            )
        )
        sizes = [end - begin for begin, end in (product.rows, product.columns, product.depth)]
        strides = (target.row, left.row, left.depth, right.row, right.blocks, *sizes)
        target_row, left_row, left_deep, along, blocks, *limits = map(self.index, strides)
        function = code_product_function(self.builder.module, self.level, shape)
        left_side = [sums, target_row, rows, left_row, left_deep]
        right_side = [words, along, scales, zero_points, blocks]
        self.builder.call(function, [*left_side, *right_side, *limits])

    def _report(self, failed: ir.Value, check: int, details: tuple[ir.Value, ir.Value]) -> None:
        """Write the status and return from the function if ``failed``."""
        function = self.builder.function
        report = function.append_basic_block("report")
        proceed = function.append_basic_block("proceed")
        self.builder.cbranch(failed, report, proceed)
        self.builder.position_at_end(report)
        for position, content in ((0, word(check + 1)), (2, details[0]), (3, details[1])):
            address = self.builder.gep(self.status, [word(position)], source_etype=I64)
            self.builder.store(content, address)
        self.builder.ret_void()
        self.builder.position_at_end(proceed)

    def _let_index(self, statement: LetIndex) -> None:
        value = self.value(statement.value)
        if statement.check is None:
            self.names[statement.name] = value
            return
        limit = self.index(statement.limit)
        negative = self.builder.icmp_signed("<", value, word(0))
        index = self.builder.select(negative, self.builder.add(value, limit), value)
        outside = self.builder.icmp_unsigned(">=", index, limit)
        self._report(outside, statement.check, (value, limit))
        self.names[statement.name] = index

    def _loop(self, loop: Loop) -> None:
        if (products := contiguous_products(loop)) is not None:
            self._dots(loop, products)
            return
        bounds = self.index(loop.begin), self.index(loop.end)
        row = row_loop(self, loop) if self.level.vector_bytes >= MASKED_VECTOR_BYTES else None
        if loop.may_stream:
            streamed_loop(self, loop, bounds, partial(self._beside_lines, loop, row))
            return
        if (made := write_sought(self, loop, bounds)) is None and row is not None:
            made = write_row_loop(self, row, bounds)
        if made is not None:
            self._totals(loop, made)
            return
        if write_interleaved(self, loop) or write_repeats(self, loop, bounds):
            return
        if write_lookups(self, loop, bounds):
            return
        if (running := running_step(loop)) is not None:
            bounds = write_running(self, loop, running, bounds), bounds[1]
        carried, nothing = self.running.get, self.emitter.identity
        values = [carried(a.name, nothing(a.kind, a.value.dtype)) for a in loop.accumulators]
        if loop.masked and self.level.vector_bytes >= MASKED_VECTOR_BYTES:
            whole = self._end_of_vectors(*bounds)
            values = self._iterations(loop, (bounds[0], whole), values, masked=False)
            bounds = whole, bounds[1]
        values = self._iterations(loop, bounds, values, masked=loop.masked)
        for accumulator, value in zip(loop.accumulators, values, strict=True):
            self._bind_running(accumulator, value)

    def _bind_running(self, accumulator: Accumulator, value: ir.Value) -> None:
        """A loop has left a value: what is around it goes on from there."""
        self.locals[accumulator.name] = value
        if accumulator.name in self.running:
            self.running[accumulator.name] = value

    def _beside_lines(
        self, loop: Loop, row: RowLoop | None, begin: ir.Value, end: ir.Value
    ) -> None:
        """The iterations in [begin, end) of a loop of which others may be streamed."""
        if row is None:
            self.usual(loop, begin, end)
        else:
            write_row_loop(self, replace(row, length=None), (begin, end))

    def usual(self, loop: Loop, begin: ir.Value, end: ir.Value) -> None:
        """The iterations in [begin, end) of a loop that reduces nothing."""
        self._iterations(loop, write_byte_loop(self, loop, (begin, end)), [], masked=False)

    def _end_of_vectors(self, begin: ir.Value, end: ir.Value) -> ir.Value:
        """Where the last of the vectors ends that are taken several at a time."""
        step = VECTORS_AT_A_TIME * self.level.lanes(4)
        count = self.builder.sub(end, begin)
        some = self.builder.icmp_signed("<", word(0), count)
        count = self.builder.select(some, self.builder.and_(count, word(-step)), word(0))
        return self.builder.add(begin, count)

    def _iterations(
        self,
        loop: Loop,
        bounds: tuple[ir.Value, ir.Value],
        starts: list[ir.Value],
        *,
        masked: bool,
    ) -> list[ir.Value]:
        """Iterations of a loop, and what its accumulators are after them."""
        begin, end = bounds
        function = self.builder.function
        first = len(function.blocks)
        body = function.append_basic_block("loop")
        done = function.append_basic_block("done")
        before = self.builder.block
        self.builder.cbranch(self.builder.icmp_signed("<", begin, end), body, done)
        self.builder.position_at_end(body)
        variable = self.builder.phi(I64)
        variable.add_incoming(begin, before)
        phis = self._phis(starts, before)
        outer_running = dict(self.running)
        self.running.update({a.name: p for a, p in zip(loop.accumulators, phis, strict=True)})
        self.names[loop.variable] = variable
        self.enter()
        self.statements(loop.body)
        finals = [self._step(loop, position, phi) for position, phi in enumerate(phis)]
        self.leave()
        self.running = outer_running
        following = self.builder.add(variable, word(1), flags=("nsw",))
        latch = self.builder.block
        variable.add_incoming(following, latch)
        for phi, final in zip(phis, finals, strict=True):
            phi.add_incoming(final, latch)
        again = self.builder.cbranch(self.builder.icmp_signed("<", following, end), body, done)
        blocks = function.blocks[first:]
        hints = LoopHints(
            independent=loop.independent,
            masked=masked and self.level.has_masks,
            by_elements=is_by_elements(loop),
            fills_vectors=fills_vectors(loop, self.level),
        )
        mark_loop(function.module, blocks, again, hints)
        self.builder.position_at_end(done)
        results: list[ir.Value] = []
        for start, final in zip(starts, finals, strict=True):
            result = self.builder.phi(start.type)
            result.add_incoming(start, before)
            result.add_incoming(final, latch)
            results.append(result)
        return results

    def _dots(self, loop: Loop, products: Products) -> None:
        """A loop that only adds products; loads of the same elements are one stream."""
        begin = self.index(loop.begin)
        streams: dict[tuple[str, Expr], ir.Value] = {}
        dtype = products[0][0].dtype
        names = self.names | {loop.variable: begin}
        for load in (load for pair in products for load in pair):
            key = (load.buffer.name, load.offset)
            if key not in streams:
                place = self.indices.emit(load.offset, names)
                streams[key] = self.emitter.gep(self.pointers[load.buffer.name], dtype, place)
        numbers = {key: number for number, key in enumerate(streams)}
        keys = [[(load.buffer.name, load.offset) for load in pair] for pair in products]
        pairs = [(numbers[left], numbers[right]) for left, right in keys]
        steps = self.builder.sub(self.index(loop.end), begin)
        negative = self.builder.icmp_signed("<", steps, word(0))
        steps = self.builder.select(negative, word(0), steps)
        length, given = loop.end - loop.begin, list(streams.values())
        known = max(length.value, 0) if length.is_constant else None
        far = self.indices.truth(loop.streamed, self.names) if loop.may_stream else None
        made = DotProducts(self.builder, self.level, dtype, given, pairs, known, far)
        self._totals(loop, made.sums(steps))

    def _totals(self, loop: Loop, totals: Sequence[ir.Value]) -> None:
        """What a loop's accumulators are after it, which began with nothing."""
        for accumulator, total in zip(loop.accumulators, totals, strict=True):
            start, dtype = self.running.get(accumulator.name), accumulator.value.dtype
            if start is not None:
                total = self.emitter.combine(accumulator.kind, dtype, start, total)
            self._bind_running(accumulator, total)

    def _phis(self, starts: list[ir.Value], before: ir.Block) -> list[ir.PhiInstr]:
        """Values of a loop that begin as ``starts`` where ``before`` enters it."""
        phis = [self.builder.phi(start.type) for start in starts]
        for phi, start in zip(phis, starts, strict=True):
            phi.add_incoming(start, before)
        return phis

    def _step(self, loop: Loop, position: int, phi: ir.Value) -> ir.Value:
        """The running value after one iteration; an inner loop has carried it on already."""
        accumulator = loop.accumulators[position]
        value = accumulator.value
        if isinstance(value, Local) and value.name == accumulator.name:
            return self.locals[accumulator.name]
        return self.emitter.combine(accumulator.kind, value.dtype, phi, self.value(value))
