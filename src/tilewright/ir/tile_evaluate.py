"""The meaning of tile programs in numpy, against which the machine code of backends is tested.

Tasks run one after the other; the innermost loops run at all of their points at once, where no
iteration reads what another one writes. Scratch memory is filled with values that no program should
use, every access has to lie in its buffer, and sums are rounded in another order than in machine
code. Start with :func:`evaluate_tile`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product as every
from math import prod

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import identity
from tilewright.ir.listed_view import ListedView
from tilewright.ir.scalar import COMBINE, SCALAR_FUNCTIONS
from tilewright.ir.stage_axis import Role, StageAxis
from tilewright.ir.tile import (
    Check,
    CodeView,
    Finish,
    Let,
    LetDistance,
    LetIndex,
    Local,
    Loop,
    Product,
    RunTable,
    Stage,
    Statement,
    Store,
    Sums,
    TileBuffer,
    TileProgram,
    TransposeBlock,
    Value,
    View,
)
from tilewright.ir.tile_values import Array, Memory, Point
from tilewright.ir.tile_walk import value_loads
from tilewright.shape import Expr, constant

_ZEROS = 1 << 48  # bytes after the data of a gathered operand at which its zeros are said to lie


class CheckFailed(Exception):
    """A program reports its message ``check`` with two numbers, and ends."""

    def __init__(self, check: int, details: tuple[int, int]) -> None:
        super().__init__(f"message {check} with {details[0]} and {details[1]}")
        self.check = check
        self.details = details


def evaluate_tile(
    program: TileProgram, arrays: Mapping[str, Array], sizes: Mapping[str, int]
) -> None:
    """Run ``program`` on ``arrays``, which are its buffers by name; results are written to theirs.

    ``sizes`` are the values of all symbols. Raises :class:`CheckFailed` for a message of the
    program, and :class:`~tilewright.ir.tile_values.OutsideBuffer` for an access beside a buffer.
    """
    for names in _points(program.grid, dict(sizes)):
        memory = Memory({**arrays, **_poisoned(program.scratch, sizes)})
        _Task(memory).statements(program.body, Point(memory, names, {}))


def _points(grid: Iterable[tuple[str, Expr]], sizes: dict[str, int]) -> Iterator[dict[str, int]]:
    """The names of all tasks, the last axis the fastest."""
    axes = [(name, range(size.evaluate(sizes))) for name, size in grid]
    for place in every(*(values for _, values in axes)):
        yield sizes | dict(zip((name for name, _ in axes), place, strict=True))


def _poisoned(buffers: Iterable[TileBuffer], sizes: Mapping[str, int]) -> dict[str, Array]:
    """Memory for scratch buffers, with contents that show if they are used."""
    made: dict[str, Array] = {}
    for buffer in buffers:
        assert buffer.elements is not None, buffer
        count = max(buffer.elements.evaluate(sizes), 0)
        poison = np.nan if buffer.dtype.is_float else 0
        made[buffer.name] = np.full(count, poison, buffer.dtype.numpy)
        if not buffer.dtype.is_float:
            made[buffer.name].view(np.uint8)[...] = 1 if buffer.dtype is DType.BOOL else 0x55
    return made


class _Task:
    """Statements of one task."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.running: dict[str, object] = {}
        self.waiting: dict[Product, Array] = {}  # sums that blocks of the depth have made so far
        self.ends = True  # whether these are the last blocks of all reductions around

    def statements(self, body: Iterable[Statement], point: Point) -> None:
        """Statements in order."""
        for statement in body:
            match statement:
                case Let(name=name, value=value):
                    point.locals[name] = point.value(value)
                case LetIndex():
                    self._let_index(statement, point)
                case Store(buffer=buffer, offset=offset, value=value):
                    stored = point.value(value)
                    self.memory.write(buffer, point.index(offset), stored)
                case Check(value=value, check=check):
                    if np.any(point.value(value)):
                        raise CheckFailed(check, (0, 0))
                case TransposeBlock():
                    self._transpose(statement, point)
                case LetDistance(name=name):
                    point.names[name] = _ZEROS
                case Product():
                    self._product(statement, point)
                case Stage():
                    self._stage(statement, point)
                case Loop():
                    self._loop(statement, point)

    def _let_index(self, statement: LetIndex, point: Point) -> None:
        found = np.asarray(point.value(statement.value), np.int64)
        if statement.check is not None:
            # Either may vary along a loop in which the other stands still.
            found, limit = np.broadcast_arrays(found, point.index(statement.limit))
            outside = (found < -limit) | (found >= limit)
            if outside.any():
                raise CheckFailed(statement.check, (int(found[outside][0]), int(limit[outside][0])))
            found = np.where(found < 0, found + limit, found)
        point.names[statement.name] = found if found.ndim else int(found)

    def _transpose(self, block: TransposeBlock, point: Point) -> None:
        for place in range(point.index(block.run)):
            self._transpose_part(block, point, place)

    def _transpose_part(self, block: TransposeBlock, point: Point, place: int) -> None:
        """The elements at one place of every run."""
        run = point.index(block.run)
        rows = np.arange(max(point.index(block.rows), 0))[:, None]
        columns = np.arange(max(point.index(block.columns), 0))
        source = point.index(block.source_offset) + place
        source = source + rows * point.index(block.source_row) + columns * run
        element = block.target.dtype
        moved = self.memory.words(block.source, source * element.bytes, element.bytes, element)
        moved = moved[..., 0]
        if block.makes_words:
            missing = point.index(block.target_row) - len(rows)
            moved = np.pad(moved, [(0, missing), (0, 0)])
            rows = np.arange(len(moved))[:, None]
        target = point.index(block.target_offset) + place
        target = target + columns * point.index(block.target_row) + rows * run
        self.memory.write(block.target, target, moved)

    # ------------------------------------------------------------ stages and products

    def _stage(self, stage: Stage, point: Point) -> None:
        inside = point.inner()
        for axis in stage.axes:
            if axis.role is Role.PARALLEL:
                first = inside.index(axis.place * axis.block)
                _bind(axis, inside, first)
        self._reduced([a for a in stage.axes if a.role is Role.REDUCTION], stage, inside)

    def _reduced(self, axes: Sequence[StageAxis], stage: Stage, point: Point) -> None:
        """All blocks of some axes, those of the last axis the fastest."""
        if not axes:
            for part in (stage.load, stage.body, stage.store):
                self.statements(part, point)
            return
        axis, ends = axes[0], self.ends
        extent, block = point.index(axis.extent), point.index(axis.block)
        for first in range(0, max(extent, 1), max(block, 1)):
            inside = point.inner()
            _bind(axis, inside, first)
            self.ends = ends and first + block >= extent
            self._reduced(axes[1:], stage, inside)
        self.ends = ends

    def _product(self, product: Product, point: Point) -> None:
        places = [
            np.arange(point.index(begin), max(point.index(begin), point.index(end)))
            for begin, end in (product.rows, product.columns, product.depth)
        ]
        sums = self._sums(product, point, places)
        target = product.target
        if isinstance(target, Sums):
            written = point.index(product.written(target, constant(sums.shape[1])))
            self._leave(target, point, sums, written)
            return
        sums = self.waiting.pop(product, np.zeros_like(sums)) + sums
        if self.ends:
            self._finish(target, point, (places[0], places[1]), sums)
        else:
            self.waiting[product] = sums

    def _sums(self, product: Product, point: Point, places: Sequence[Array]) -> Array:
        """What a block of the depth adds."""
        rows, columns, depth = places
        narrow = product.narrow or product.dtype
        reader = _Reader(self.memory, point, product.dtype)
        if isinstance(product.left, RunTable):
            left = reader.runs(product.left, rows.size, depth, narrow)
        else:
            left = reader.view(product.left, rows.size, depth.size, narrow)
        kind = DType.INT8 if narrow is DType.UINT8 else narrow
        if isinstance(product.right, CodeView):
            right = reader.codes(product.right, columns.size, depth.size)
        else:
            right = reader.view(product.right, columns.size, depth.size, kind)
        wide = product.dtype.numpy
        return np.matmul(
            left.reshape(rows.size, prod(left.shape[1:])).astype(wide),
            right.reshape(columns.size, prod(right.shape[1:])).astype(wide).T,
        )

    def _leave(self, target: Sums, point: Point, sums: Array, written: int) -> None:
        rows, columns = sums.shape
        if not sums.size:
            return
        place = np.arange(rows)[:, None] * point.index(target.row) + point.index(target.offset)
        if point.index(target.resume):
            sums = self.memory.read(target.buffer, place + np.arange(columns)) + sums
        # Beyond the columns, up to the end of a line, nothing is said of what is written.
        self.memory.write(target.buffer, place + np.arange(written), np.nan)
        self.memory.write(target.buffer, place + np.arange(columns), sums)

    def _finish(
        self, target: Finish, point: Point, places: tuple[Array, Array], sums: Array
    ) -> None:
        rows, columns = np.meshgrid(*places, indexing="ij")
        names = {"_m": rows.reshape(-1), "_n": columns.reshape(-1)}
        if sums.size:
            inside = Point(self.memory, {**point.names, **names}, {}, sums.size)
            inside.locals["accumulator"] = sums.reshape(-1)
            self.statements(target.stores, inside)

    # ------------------------------------------------------------ loops

    def _loop(self, loop: Loop, point: Point) -> None:
        begin, end = point.index(loop.begin), point.index(loop.end)
        starts = [
            self.running.get(a.name, identity(a.kind, np.dtype(a.value.dtype.numpy)))
            for a in loop.accumulators
        ]
        if _at_once(loop):
            finals = self._all_points(loop, point, (begin, end), starts)
        else:
            finals = self._in_turn(loop, point, (begin, end), starts)
        for accumulator, final in zip(loop.accumulators, finals, strict=True):
            point.locals[accumulator.name] = final
            if accumulator.name in self.running:
                self.running[accumulator.name] = final

    def _all_points(
        self, loop: Loop, point: Point, bounds: tuple[int, int], starts: list[object]
    ) -> list[object]:
        count = bounds[1] - bounds[0]
        if count <= 0:
            return starts
        inside = point.inner({loop.variable: np.arange(*bounds)}, count)
        self.statements(loop.body, inside)
        finals: list[object] = []
        for accumulator, start in zip(loop.accumulators, starts, strict=True):
            values = np.broadcast_to(np.asarray(inside.value(accumulator.value)), (count,))
            function = SCALAR_FUNCTIONS[COMBINE[accumulator.kind]].meaning
            assert isinstance(function, np.ufunc)
            with np.errstate(all="ignore"):
                made = function.reduce(values, initial=start, dtype=values.dtype)
            finals.append(made)
        return finals

    def _in_turn(
        self, loop: Loop, point: Point, bounds: tuple[int, int], starts: list[object]
    ) -> list[object]:
        before, current = dict(self.running), starts
        for position in range(*bounds):
            self.running.update(
                {a.name: value for a, value in zip(loop.accumulators, current, strict=True)}
            )
            inside = point.inner({loop.variable: position})
            self.statements(loop.body, inside)
            current = [
                self._step(loop, number, inside, value) for number, value in enumerate(current)
            ]
        self.running = before
        return current

    def _step(self, loop: Loop, number: int, inside: Point, running: object) -> object:
        """The running value after one iteration; an inner loop has carried it on already."""
        accumulator = loop.accumulators[number]
        value = accumulator.value
        if isinstance(value, Local) and value.name == accumulator.name:
            return inside.locals[accumulator.name]
        combine = SCALAR_FUNCTIONS[COMBINE[accumulator.kind]].meaning
        with np.errstate(all="ignore"):
            made = combine(np.asarray(running), np.asarray(inside.value(value)))
        return np.asarray(made).astype(value.dtype.numpy)[()]


def _at_once(loop: Loop) -> bool:
    """Whether a loop can run statement by statement, each at all of its points."""
    if any(isinstance(s, Loop | Product | Stage | TransposeBlock) for s in loop.body):
        return False
    carried = {a.name for a in loop.accumulators}
    if any(isinstance(a.value, Local) and a.value.name in carried for a in loop.accumulators):
        return False
    if loop.independent:
        return True
    stored = {s.buffer.name for s in loop.body if isinstance(s, Store)}
    values: list[Value] = [a.value for a in loop.accumulators]
    values += [s.value for s in loop.body if isinstance(s, Let | LetIndex | Store | Check)]
    return all(load.buffer.name not in stored for v in values for load in value_loads(v))


def _bind(axis: StageAxis, point: Point, first: int) -> None:
    """Name the ends of the block of ``axis`` that begins at ``first``."""
    last = min(first + point.index(axis.block), point.index(axis.extent))
    point.names |= {str(axis.begin): first, str(axis.end): last}


class _Reader:
    """Operands of products: [row or column, depth, element of the word]."""

    def __init__(self, memory: Memory, point: Point, dtype: DType) -> None:
        self.memory = memory
        self.point = point
        self.width = dtype.bytes

    def view(self, view: View, count: int, depth: int, kind: DType) -> Array:
        """What lies in a buffer."""
        rows, row = np.arange(count), self.point.index(view.row)
        if view.panel:
            place = rows // view.panel * view.panel * row + rows % view.panel
        elif isinstance(view, ListedView) and view.has_lines:
            line = max(self.point.index(view.line), 1)
            place = rows // line * self.point.index(view.pitch) + rows % line
        else:
            place = rows * row
        place = place[:, None] + np.arange(depth) * self.point.index(view.depth)
        place = (place + self.point.index(view.offset)) * self.width
        if isinstance(view, ListedView):
            place = place + self.memory.read(view.shifts, np.arange(depth))
        return self.memory.words(view.buffer, place, self.width, kind)

    def codes(self, view: CodeView, count: int, depth: int) -> Array:
        """The numbers that codes stand for."""
        rows, k = np.arange(count)[:, None], np.arange(depth)
        panel, within = rows // view.panel, rows % view.panel

        def place(along: Array, most: Expr, first: Expr) -> Array:
            lines = panel * self.point.index(most) + along
            return self.point.index(first) + lines * view.panel + within

        words = self.memory.read(view.buffer, place(k // view.per_word, view.row, view.offset))
        shifted = words.view(np.uint32) >> (k % view.per_word * view.bits).astype(np.uint32)
        whole = (shifted & np.uint32((1 << view.bits) - 1)).astype(np.float32)
        at = place(k // view.block, view.blocks, view.place)
        zeros = view.zeros
        zero = zeros if isinstance(zeros, int) else self.memory.read(zeros, at)
        scale = self.memory.read(view.scales, at)
        return (whole - np.asarray(zero, np.float32)) * scale

    def runs(self, left: RunTable, count: int, depth: Array, kind: DType) -> Array:
        """What a table says where it lies."""
        width, point = self.width, self.point
        run = point.index(left.run)
        number, rows = depth // max(run, 1), np.arange(count)[:, None]
        if left.shifts is None:
            begin = self.memory.read(left.table, number * point.index(left.row) + rows)
        else:
            begin = self.memory.read(left.table, rows) + self.memory.read(left.shifts, number)
        within = (depth - number * run) * point.index(left.depth) * width
        outside = begin == _ZEROS
        place = np.where(outside, 0, begin + point.index(left.offset) * width) + within
        there = np.broadcast_to(outside, place.shape)
        made = np.zeros((*place.shape, width // kind.bytes), kind.numpy)
        made[~there] = self.memory.words(left.buffer, place[~there], width, kind)
        if left.zeros is not None:
            zeros = np.broadcast_to(within, place.shape)[there]
            made[there] = self.memory.words(left.zeros, zeros, width, kind)
        return made


__all__ = ["CheckFailed", "evaluate_tile"]
