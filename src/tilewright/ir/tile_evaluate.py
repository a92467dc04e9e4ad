"""The meaning of tile programs in numpy, against which the machine code of backends is tested.

Tasks run one after the other; the innermost loops run at all of their points at once, where no
iteration reads what another one writes. Scratch memory is filled with values that no program should
use, every access has to lie in its buffer, and sums are rounded in another order than in machine
code. Start with :func:`evaluate_tile`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product as every

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import identity
from tilewright.ir.scalar import COMBINE, SCALAR_FUNCTIONS
from tilewright.ir.tile import (
    OUTSIDE,
    Check,
    Contraction,
    Gathering,
    Let,
    LetIndex,
    Local,
    Loop,
    LoopProgram,
    Operand,
    Packing,
    Product,
    Statement,
    Store,
    TileBuffer,
    TileProgram,
    TransposeBlock,
    Value,
)
from tilewright.ir.tile_values import Array, Memory, Point
from tilewright.ir.tile_walk import value_loads
from tilewright.shape import Expr

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
        if isinstance(program, LoopProgram):
            _Task(memory).statements(program.body, Point(memory, names, {}))
        else:
            _ContractionTask(program, memory, names).run()


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
                case Product():
                    self._product(statement, point)
                case Loop():
                    self._loop(statement, point)

    def _let_index(self, statement: LetIndex, point: Point) -> None:
        found = np.asarray(point.value(statement.value), np.int64)
        if statement.check is not None:
            limit = np.asarray(point.index(statement.limit))
            outside = np.broadcast_to((found < -limit) | (found >= limit), found.shape)
            if outside.any():
                wrong = int(found[outside].reshape(-1)[0])
                raise CheckFailed(statement.check, (wrong, int(limit.reshape(-1)[0])))
            found = np.where(found < 0, found + limit, found)
        point.names[statement.name] = found if found.ndim else int(found)

    def _transpose(self, block: TransposeBlock, point: Point) -> None:
        rows = np.arange(max(point.index(block.rows), 0))[:, None]
        columns = np.arange(max(point.index(block.columns), 0))
        source = rows * point.index(block.source_row) + columns
        element = block.target.dtype
        places = (point.index(block.source_offset) + source) * element.bytes
        moved = self.memory.words(block.source, places, element.bytes, element)[..., 0]
        if element.bytes == 1:
            missing = point.index(block.target_row) - len(rows)
            moved = np.pad(moved, [(0, missing), (0, 0)])
            rows = np.arange(len(moved))[:, None]
        target = columns * point.index(block.target_row) + rows
        self.memory.write(block.target, point.index(block.target_offset) + target, moved)

    def _product(self, product: Product, point: Point) -> None:
        rows, columns, depth = (
            np.arange(max(point.index(size), 0))
            for size in (product.rows, product.columns, product.depth)
        )
        if not rows.size or not columns.size:
            return
        left = rows[:, None] * point.index(product.left_row)
        left = left + depth * point.index(product.left_depth) + point.index(product.left_offset)
        right = depth[:, None] * point.index(product.right_depth) + columns
        right = right + point.index(product.right_offset)
        sums = self.memory.read(product.left, left) @ self.memory.read(product.right, right)
        place = rows[:, None] * point.index(product.target_row)
        place = place + point.index(product.target_offset)
        if point.index(product.resume):
            sums = self.memory.read(product.target, place + columns) + sums
        # Beyond the columns, up to the end of a line, nothing is said of what is written.
        lines = np.arange(point.index(product.whole_lines(product.columns)))
        self.memory.write(product.target, place + lines, np.nan)
        self.memory.write(product.target, place + columns, sums)

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
    if any(isinstance(s, Loop | Product | TransposeBlock) for s in loop.body):
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


class _ContractionTask:
    """One block of rows and columns of a contraction."""

    def __init__(self, program: Contraction, memory: Memory, names: dict[str, int]) -> None:
        self.program = program
        self.memory = memory
        self.task = _Task(memory)
        self.point = Point(memory, names, {})
        for stem, count, size, block in (
            ("_n", "_nb", program.n, program.block_n), ("_m", "_mb", program.m, program.block_m)
        ):  # fmt: skip
            first = names[count] * self.point.index(block)
            names[f"{stem}0"] = first
            names[f"{stem}1"] = min(first + self.point.index(block), self.point.index(size))
        self.rows = np.arange(names["_m0"], names["_m1"])
        self.columns = np.arange(names["_n0"], names["_n1"])
        self.narrow = program.narrow or program.dtype

    def run(self) -> None:
        """Fill tables, sum up block by block of k, finish the sums."""
        program, point = self.program, self.point
        if isinstance(program.left, Gathering):
            point.names[OUTSIDE] = _ZEROS
            self.task.statements(program.left.body, point.inner())
        depth, step = point.index(program.k), point.index(program.block_k)
        sums = np.zeros((self.rows.size, self.columns.size), program.dtype.numpy)
        for first in range(0, max(depth, 1), max(step, 1)):
            sums += self._block(first, min(first + step, depth))
        rows, columns = np.meshgrid(self.rows, self.columns, indexing="ij")
        names = {"_m": rows.reshape(-1), "_n": columns.reshape(-1)}
        if sums.size:
            inside = Point(self.memory, {**point.names, **names}, {}, sums.size)
            inside.locals["accumulator"] = sums.reshape(-1)
            self.task.statements(program.stores, inside)
        self.task.statements(program.after, point.inner())

    def _block(self, first: int, last: int) -> Array:
        """The sums over k in [first, last)."""
        program, inside = self.program, self.point.inner({"_k0": first, "_k1": last})
        depth = np.arange(first, last)
        kind = DType.INT8 if self.narrow is DType.UINT8 else self.narrow
        if isinstance(program.right, Packing):
            packing = program.right
            self.task.statements(packing.body, inside)
            place = (depth[:, None] - first) * inside.index(packing.row)
            place = place + (self.columns - self.columns[:1])
            width = program.dtype.bytes
            right = self.memory.words(packing.target, place * width, width, kind)
        else:
            right = self._in_place(program.right, self.columns, depth, kind).transpose(1, 0, 2)
        if isinstance(program.left, Gathering):
            left = self._gathered(program.left, depth, inside)
        else:
            left = self._in_place(program.left, self.rows, depth, self.narrow)
        wide = program.dtype.numpy
        left = left.reshape(self.rows.size, -1).astype(wide)
        right = right.transpose(0, 2, 1).reshape(-1, self.columns.size).astype(wide)
        return np.matmul(left, right)

    def _in_place(self, operand: Operand, rows: Array, depth: Array, kind: DType) -> Array:
        """[row, depth, element of the word]: what lies in a buffer."""
        point, width = self.point, self.program.dtype.bytes
        row = point.index(operand.row)
        if operand.panel:
            place = rows // operand.panel * operand.panel * row + rows % operand.panel
        else:
            place = rows * row
        place = place[:, None] + depth * point.index(operand.depth) + point.index(operand.base)
        return self.memory.words(operand.buffer, place * width, width, kind)

    def _gathered(self, left: Gathering, depth: Array, inside: Point) -> Array:
        """[row, depth, element of the word]: what a table says where it lies."""
        width, run = self.program.dtype.bytes, inside.index(left.run)
        number = depth // max(run, 1)
        rows = (self.rows - self.rows[:1])[:, None]
        if left.shifts is None:
            begin = self.memory.read(left.table, number * inside.index(left.row) + rows)
        else:
            begin = self.memory.read(left.table, rows) + self.memory.read(left.shifts, number)
        within = (depth - number * run) * width
        outside = begin == _ZEROS
        place = np.where(outside, 0, begin + inside.index(left.base) * width) + within
        there = np.broadcast_to(outside, place.shape)
        made = np.zeros((*place.shape, width // self.narrow.bytes), self.narrow.numpy)
        made[~there] = self.memory.words(left.buffer, place[~there], width, self.narrow)
        if left.zeros is not None:
            zeros = np.broadcast_to(within, place.shape)[there]
            made[there] = self.memory.words(left.zeros, zeros, width, self.narrow)
        return made


__all__ = ["CheckFailed", "evaluate_tile"]
