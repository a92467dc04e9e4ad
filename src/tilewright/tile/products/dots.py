"""Contractions as dot products: both operands are contiguous along k, and one side is narrow.

Vectors run along k. A task multiplies a block of rows with all columns, a few rows by a few columns
in one loop, so that what is loaded is used several times; then the epilogue is evaluated on the
sums in scratch. The longer side serves as rows; where neither length is known, the columns of the
contraction do, which are many where a few queries meet all keys. Start with :func:`lower_dots`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilewright.cost import Machine, of_memory, workers_for
from tilewright.ir.access import Access, ContractionAccess, contraction_access
from tilewright.ir.dtype import DType
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Contract
from tilewright.ir.stage_axis import NEVER
from tilewright.ir.tile import (
    Accumulator,
    Apply,
    Let,
    Load,
    Local,
    Loop,
    Statement,
    Store,
    TileBuffer,
    TileProgram,
    View,
)
from tilewright.ir.tile_walk import ExpressionMap
from tilewright.shape import (
    Expr,
    Scope,
    ceil_div,
    constant,
    less,
    less_equal,
    logical_or,
    maximum,
    minimum,
    product,
    select,
    symbol,
)
from tilewright.target.core_model import PAGE_BYTES, lanes_along
from tilewright.tile.products.contraction import (
    NANOSECONDS_SHIFT,
    epilogue_stores,
    is_constant,
    packed_constant,
    packed_operand,
)
from tilewright.tile.products.frame import Frame, RegisterTile, declare, mirror
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import LoweredStep, Source
from tilewright.tile.work import MANY_SHARES

MOST_ROWS = 64  # per task
MOST_GROUP = 4  # columns of one loop, or rows where registers are few
FAR_SHARE = 8  # of what a kernel moves before it streams: a quarter of the last cache
WIDEST = 8  # columns of known number that are not divided into groups


def lower_dots(
    kernel: Kernel, fresh: Callable[[], Lowering], tile: RegisterTile
) -> tuple[LoweredStep, ...] | None:
    """The step of a Contract of floats with both operands contiguous along k; None for others."""
    lowering = fresh()
    seed = kernel.seed
    if not isinstance(seed.primitive, Contract):
        return None
    if seed.dtype not in (DType.FLOAT32, DType.FLOAT64):
        return None
    access = contraction_access(seed, lowering.scope, lowering.memory)
    mirrored = _is_mirrored(_size(access.rows), _size(access.columns))
    if mirrored:
        access = contraction_access(mirror(seed), lowering.scope, lowering.memory)
    depth = product([size for _, size in access.summed])
    frame = Frame(
        kernel, lowering, tile.for_type(seed.dtype), access.batch, access.rows, access.columns,
        depth, mirrored=mirrored,
    )  # fmt: skip
    dots = _Dots.of(frame, access)
    return None if dots is None else (dots.step(),)


def _size(axes: tuple[tuple[str, Expr], ...]) -> Expr:
    return product([size for _, size in axes])


def _is_mirrored(rows: Expr, columns: Expr) -> bool:
    """Whether the columns serve as rows: unless they are known to be few, and not the longer."""
    if not _are_few(columns):
        return True
    return rows.is_constant and rows.value < columns.value


def dots_time(
    kernel: Kernel, tile: RegisterTile, machine: Machine, threads: Expr | int
) -> tuple[Expr, Expr]:
    """Picoseconds of the step of :func:`lower_dots`: with so many threads, and on one alone."""
    seed = kernel.seed
    access = contraction_access(seed, Scope())
    rows, columns = _size(access.rows), _size(access.columns)
    if _is_mirrored(rows, columns):
        rows, columns = columns, rows
    batch, depth, size = _size(access.batch), _size(access.summed), seed.dtype.bytes
    heights = _row_groups(columns, tile.sums)
    sums, left, met_by = constant(0), rows, constant(0)
    for height in heights:
        groups = left // height
        sums = sums + groups * _group_time(columns, depth, height, size, machine)
        left, met_by = left - groups * height, met_by + groups
    # All columns are met by every group of rows: again from the cache that holds them, if that is
    # not a near one.
    near = machine.holds(2, columns * depth, size)
    again = select(near, 0, maximum(met_by - 1, 0))
    read = batch * (rows + columns) * depth
    costs = machine.core.dots
    cached = machine.holds(-2, 2 * read, size)
    # Rows of less than a page are read side by side: hardware does not know where each goes on,
    # and of those that move on from loop to loop the code asks for what comes next.
    near_ends = logical_or(
        less_equal(depth, costs.short_row // size), less(PAGE_BYTES // size, depth)
    )
    scattered = select(logical_or(cached, near_ends), 2, machine.unforeseen)
    moving, staying = (rows, columns) if _are_few(columns) else (columns, rows)
    moved = batch * moving * depth // 64 * machine.reading(read, size, 1)
    moved = moved + batch * staying * depth // 64 * machine.reading(read, size, 1, scattered)
    met = batch * columns * again * depth // 64 * machine.reading(columns * depth, size, 1)
    # Reading again from beyond the second-level cache does not hide behind sums, nor does most of
    # what comes from memory, as each of many streams is short.
    tasks = maximum(batch * ceil_div(rows, _row_block(rows, heights[0])), 1)
    sums = batch * (sums + rows * columns * machine.picoseconds(costs.result))
    # Results lie along the rows of a task, which are few: the loop over them is entered each time.
    entered = tasks * (constant(1) if _are_few(columns) else columns)
    sums = sums + tasks * machine.picoseconds(_task_cycles(machine, len(heights)))
    sums = sums + entered * machine.picoseconds(machine.core.loops.enter)
    within = machine.holds(2, columns * depth // 2, size)
    alone = maximum(sums, moved + met) + select(within, 0, minimum(sums, met))
    shown = select(less_equal(depth, PAGE_BYTES // size), *costs.memory_shown)
    alone = alone + of_memory(minimum(sums, moved) * shown // 8, read * size, machine)
    workers = workers_for(alone, threads)
    begun = 1000 * machine.core.threads.call_ns
    begun = begun + minimum(workers - 1, 1) * round(1000 * machine.target.sync_ns)
    return alone // tasks * ceil_div(tasks, workers) + begun, alone


def _task_cycles(machine: Machine, heights: int) -> float:
    """Cycles of a task beside its sums: its loops, and the wait of its epilogue for single sums.

    They are stored one by one, and the epilogue loads vectors of them at once.
    """
    costs = machine.core.loops
    return costs.task + heights * costs.enter + costs.handed


def _group_time(columns: Expr, depth: Expr, height: int, size: int, machine: Machine) -> Expr:
    """Picoseconds of ``height`` rows by all columns."""
    known = depth.value if depth.is_constant else None
    lanes = lanes_along(known, max(1, machine.target.vector_bytes // size), size)
    steps = ceil_div(depth, lanes)
    # Nothing else is read meanwhile, so that all of the first-level cache may be counted on.
    stays = machine.holds(1, (height + _column_group(columns)) * depth * 3 // 4, size)
    costs = machine.core.dots
    begun, summed = costs.known_group if columns.is_constant else costs.any_group
    time = constant(0)
    for _, _, count, width in _column_groups(columns):
        near, far = _step_cycles(machine, height, width)
        step = select(stays, machine.picoseconds(near), machine.picoseconds(far))
        group = constant(machine.picoseconds(begun + summed * height * width))
        masked = machine.picoseconds(costs.masked * (height + width))
        group = group + select(depth % lanes, masked, 0)
        time = time + count * (steps * step + group)
    return time


def _step_cycles(machine: Machine, height: int, width: int) -> tuple[float, float]:
    """Cycles of a vector of every stream of a group, with columns in the first-level cache or not.

    Columns that all rows meet again come from the second-level cache if the first is too small.
    """
    target, costs = machine.target, machine.core.dots
    streams = height + width
    cycles = max(height * width / target.fma_pipes, streams / target.loads_per_cycle)
    near = cycles * costs.step_share
    passed = streams * target.vector_bytes / target.levels[2].bandwidth
    return near, max(near, costs.stream_share * passed)


class _Dots:
    """Writes the program. Rows and columns are those of ``frame``."""

    def __init__(self, frame: Frame, left: View, right: View, sources: list[Source]) -> None:
        self.frame = frame
        self.left = left
        self.right = right
        self.sources = sources
        self.dtype = frame.kernel.seed.dtype
        self.heights = _row_groups(frame.n, frame.tile.sums)
        self.block = _row_block(frame.m, self.heights[0])
        self.first = symbol("_mb") * self.block
        self.count = minimum(self.block, frame.m - self.first)
        self.depths = constant(0), frame.depth
        self.sums = frame.lowering.scratch_buffer(self.dtype, self.block * frame.n)
        rows = frame.m if _are_few(frame.n) else frame.n
        moved = product([size for _, size in frame.batch]) * rows * frame.depth * self.dtype.bytes
        far = less(frame.tile.near // FAR_SHARE, moved)
        # Of a single row no other one comes next.
        self.far = NEVER if rows is constant(1) else frame.lowering.scope.resolve(far)

    @staticmethod
    def of(frame: Frame, access: ContractionAccess) -> _Dots | None:
        """None if an operand is not contiguous along k and cannot be made so when compiling."""
        sources: list[Source] = []
        sides: list[View] = []
        for side, (found, rows) in enumerate(((access.left, frame.m), (access.right, frame.n))):
            operand = _operand(frame, side, found, rows, sources)
            if operand is None:
                return None
            sides.append(operand)
        return _Dots(frame, sides[0], sides[1], sources)

    def step(self) -> LoweredStep:
        """The program with its buffers."""
        frame = self.frame
        lowering, kernel = frame.lowering, frame.kernel
        stores, targets = self._stores()
        packed = [side.buffer for side in (self.left, self.right) if side.panel]
        body = [*self._groups(), self._finish(stores)]
        tasks = ceil_div(frame.m, self.block)
        count = product([size for _, size in frame.batch]) * frame.m * frame.n
        program = TileProgram(
            buffers=(*lowering.buffers.values(), *packed, *targets),
            results=len(targets),
            grid=(*frame.batch, ("_mb", tasks)),
            body=tuple(body),
            scratch=tuple(lowering.scratch),
            checks=tuple(lowering.checks),
            work=count * (frame.depth + 8) // NANOSECONDS_SHIFT + 1,
        )
        return LoweredStep(program, (*lowering.buffers, *self.sources), tuple(kernel.outputs))

    # ------------------------------------------------------------ sums

    def _groups(self) -> list[Statement]:
        """All rows: groups of the most rows, then what is left in groups of fewer."""
        body: list[Statement] = []
        first = constant(0)
        for height in self.heights:
            groups = (self.count - first) // height
            body.append(self._rows(f"_g{height}", first, groups, height))
            first = first + groups * height
        return body

    def _rows(self, name: str, begin: Expr, groups: Expr, height: int) -> Loop:
        """A loop over groups of ``height`` rows, the first at row ``begin`` of the task."""
        body: list[Statement] = []
        for variable, first, last, width in _column_groups(self.frame.n):
            columns = first + symbol(variable) * width
            nest = self._products(begin + symbol(name) * height, height, columns, width)
            body.append(Loop(variable, constant(0), last, tuple(nest)))
        return Loop(name, constant(0), groups, tuple(body))

    def _products(self, row: Expr, height: int, column: Expr, width: int) -> list[Statement]:
        """One loop for ``height`` by ``width`` sums, and what stores them to scratch."""
        lowering = self.frame.lowering
        k = lowering.name("k")
        places = [(row + i, column + j) for i in range(height) for j in range(width)]
        # The first factor is what moves on from loop to loop: the backend asks for it ahead.
        rows_move = _are_few(self.frame.n)
        sums: list[Accumulator] = []
        for i, j in places:
            left = self._load(self.left, self.first + i, k)
            right = self._load(self.right, j, k)
            factors = (left, right) if rows_move else (right, left)
            value = Apply("multiply", factors, self.dtype)
            sums.append(Accumulator(lowering.name("r"), "sum", value))
        statements: list[Statement] = [Loop(k, *self.depths, (), tuple(sums), streamed=self.far)]
        for (i, j), accumulator in zip(places, sums, strict=True):
            total = Local(accumulator.name, self.dtype)
            statements.append(Store(self.sums, self._place(i, j), total))
        return statements

    def _place(self, row: Expr, column: Expr) -> Expr:
        """Where a sum of a task lies: in the order in which the results do."""
        if self.frame.mirrored:
            return column * self.block + row
        return row * self.frame.n + column

    @staticmethod
    def _load(side: View, row: Expr, k: str) -> Load:
        return Load(side.buffer, side.offset + row * side.row + symbol(k) * side.depth)

    # ------------------------------------------------------------ results

    def _stores(self) -> tuple[tuple[Store, ...], list[TileBuffer]]:
        """Stores at row "_m" and column "_n" of the sum called "accumulator"."""
        frame = self.frame
        lowering, outputs = frame.lowering, frame.kernel.outputs
        targets = {o: TileBuffer(f"o{i}", o.dtype) for i, o in enumerate(outputs)}
        index = declare(lowering, frame.batch)
        rows, columns = declare(lowering, frame.rows), declare(lowering, frame.columns)
        index += [*columns, *rows] if frame.mirrored else [*rows, *columns]
        stores = epilogue_stores(frame, tuple(index), targets)
        assert not lowering.blocks[0].statements, f"{frame.kernel.label}: statements in an epilogue"
        return stores, list(targets.values())

    def _finish(self, stores: tuple[Store, ...]) -> Loop:
        frame = self.frame
        row, column = ("_f", self.count), ("_c", frame.n)
        places = {"_m": self.first + symbol("_f"), "_n": symbol("_c")}
        sum_ = Let("accumulator", Load(self.sums, self._place(symbol("_f"), symbol("_c"))))
        body: tuple[Statement, ...] = (sum_, *ExpressionMap.substitution(places).stores(stores))
        (outer, many), (inner, few) = (column, row) if frame.mirrored else (row, column)
        return Loop(outer, constant(0), many, (Loop(inner, constant(0), few, body),))


def _operand(
    frame: Frame, side: int, found: Access | None, rows: Expr, sources: list[Source]
) -> View | None:
    """Operand ``side`` with stride 1 along k, transposed when compiling if need be."""
    lowering, contract = frame.lowering, frame.contract
    if found is not None and found.depth.is_constant and found.depth.value == 1:
        buffer = lowering.buffer(found.source)
        return View(buffer, found.base, found.row, found.depth)
    if not is_constant(lowering, contract.inputs[side]):
        return None
    packed = packed_operand(frame, packed_constant(contract, side, 1), rows, sources)
    return View(packed.buffer, packed.offset, frame.depth, constant(1), 1)


def _row_groups(columns: Expr, sums: int) -> tuple[int, ...]:
    """Rows of one loop, so that there are up to so many sums; then fewer rows for what is left.

    What is left meets all columns once: where they may be many, in one loop.
    """
    height = max(1, min(sums // _column_group(columns), max(MOST_GROUP, sums // MOST_GROUP)))
    if _are_few(columns):
        return tuple(dict.fromkeys((height, 1)))
    return tuple(range(height, 0, -1))


def _are_few(columns: Expr) -> bool:
    return columns.is_constant and columns.value <= WIDEST


def _column_group(columns: Expr) -> int:
    """Columns of one loop."""
    return max(columns.value, 1) if _are_few(columns) else MOST_GROUP


def _row_block(rows: Expr, group: int) -> Expr:
    """Rows of one task, a multiple of those of a loop."""
    share = ceil_div(ceil_div(rows, MANY_SHARES), group) * group
    return minimum(maximum(share, group), MOST_ROWS // group * group)


def _column_groups(columns: Expr) -> Iterator[tuple[str, Expr, Expr, int]]:
    """Groups that cover the columns: loop variable, first column, number of groups, width."""
    if _are_few(columns):
        if columns.value:
            yield "_w", constant(0), constant(1), columns.value
        return
    first, width = constant(0), MOST_GROUP
    while width:
        whole = width == MOST_GROUP
        count = columns // width if whole else columns % (2 * width) // width
        if not (count.is_constant and count.value == 0):
            yield f"_w{width}", first, count, width
        first = first + count * width
        width //= 2
