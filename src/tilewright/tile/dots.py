"""Contractions as dot products: both operands are contiguous along k, and one side is narrow.

Vectors run along k. A task multiplies a block of rows with all columns, a few rows by a few columns
in one loop, so that what is loaded is used several times; then the epilogue is evaluated on the
sums in scratch. The longer side serves as rows. Start with :func:`lower_dots`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilewright.ir.access import Access, ContractionAccess, contraction_access
from tilewright.ir.dtype import DType
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Contract
from tilewright.ir.tile import (
    Accumulator,
    Apply,
    Let,
    Load,
    Local,
    Loop,
    LoopProgram,
    Operand,
    Statement,
    Store,
    TileBuffer,
)
from tilewright.ir.tile_walk import ExpressionMap
from tilewright.shape import Expr, ceil_div, constant, maximum, minimum, product, symbol
from tilewright.tile.contraction import (
    NANOSECONDS_SHIFT,
    Frame,
    RegisterTile,
    declare,
    epilogue_stores,
    is_constant,
    mirror,
    packed_constant,
    packed_operand,
)
from tilewright.tile.lowering import Lowering
from tilewright.tile.ways import LoweredStep, Source

MOST_ROWS = 64  # per task
SHARES = 16  # tasks to make at least where there are enough rows
MOST_SUMS = 12  # of one loop: as many as the registers hold beside what is loaded
MOST_GROUP = 4  # rows or columns of one loop
WIDEST = 6  # columns of known number that are not divided into groups


def lower_dots(
    kernel: Kernel, fresh: Callable[[], Lowering], tile: RegisterTile
) -> tuple[LoweredStep, ...] | None:
    """The step of a Contract of floats with both operands contiguous along k; None for others."""
    lowering = fresh()
    backbone = kernel.backbone
    if not isinstance(backbone.primitive, Contract):
        return None
    if backbone.dtype not in (DType.FLOAT32, DType.FLOAT64):
        return None
    lowering.materialised -= set(kernel.group) | set(kernel.outputs)
    access = contraction_access(backbone, lowering.scope, lowering.materialised)
    mirrored = _is_longer(access.columns, access.rows)
    if mirrored:
        access = contraction_access(mirror(backbone), lowering.scope, lowering.materialised)
    depth = product([size for _, size in access.summed])
    frame = Frame(
        kernel, lowering, tile.for_type(backbone.dtype), access.batch, access.rows, access.columns,
        depth, mirrored=mirrored,
    )  # fmt: skip
    dots = _Dots.of(frame, access)
    return None if dots is None else (dots.step(),)


def _is_longer(one: tuple[tuple[str, Expr], ...], other: tuple[tuple[str, Expr], ...]) -> bool:
    """Whether ``one`` has more elements, as far as is known; an unknown size counts as many."""
    long, short = product([size for _, size in one]), product([size for _, size in other])
    if not short.is_constant:
        return False
    return not long.is_constant or long.value > short.value


class _Dots:
    """Writes the program. Rows and columns are those of ``frame``."""

    def __init__(self, frame: Frame, left: Operand, right: Operand, sources: list[Source]) -> None:
        self.frame = frame
        self.left = left
        self.right = right
        self.sources = sources
        self.dtype = frame.kernel.backbone.dtype
        rows = _row_group(frame.n)
        share = ceil_div(ceil_div(frame.m, SHARES), rows) * rows
        self.rows = rows
        self.block = minimum(maximum(share, rows), MOST_ROWS)
        self.first = symbol("_mb") * self.block
        self.count = minimum(self.block, frame.m - self.first)
        self.depths = constant(0), frame.depth
        self.sums = frame.lowering.scratch_buffer(self.dtype, self.block * frame.n)

    @staticmethod
    def of(frame: Frame, access: ContractionAccess) -> _Dots | None:
        """None if an operand is not contiguous along k and cannot be made so when compiling."""
        sources: list[Source] = []
        sides: list[Operand] = []
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
        program = LoopProgram(
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
        """All rows: groups of several, then what is left one by one."""
        groups = self.count // self.rows
        body: list[Statement] = [self._rows("_g", constant(0), groups, self.rows)]
        if self.rows > 1:
            body.append(self._rows("_r", groups * self.rows, self.count, 1))
        return body

    def _rows(self, name: str, begin: Expr, end: Expr, height: int) -> Loop:
        """A loop over groups of ``height`` rows; a group of one has the row as its number."""
        body: list[Statement] = []
        for variable, first, last, width in _column_groups(self.frame.n):
            columns = first + symbol(variable) * width
            nest = self._products(symbol(name) * height, height, columns, width)
            body.append(Loop(variable, constant(0), last, tuple(nest)))
        return Loop(name, begin, end, tuple(body))

    def _products(self, row: Expr, height: int, column: Expr, width: int) -> list[Statement]:
        """One loop for ``height`` by ``width`` sums, and what stores them to scratch."""
        lowering = self.frame.lowering
        k = lowering.name("k")
        places = [(row + i, column + j) for i in range(height) for j in range(width)]
        sums: list[Accumulator] = []
        for i, j in places:
            left = self._load(self.left, self.first + i, k)
            right = self._load(self.right, j, k)
            value = Apply("multiply", (left, right), self.dtype)
            sums.append(Accumulator(lowering.name("r"), "sum", value))
        statements: list[Statement] = [Loop(k, *self.depths, (), tuple(sums))]
        for (i, j), accumulator in zip(places, sums, strict=True):
            total = Local(accumulator.name, self.dtype)
            statements.append(Store(self.sums, i * self.frame.n + j, total))
        return statements

    @staticmethod
    def _load(side: Operand, row: Expr, k: str) -> Load:
        return Load(side.buffer, side.base + row * side.row + symbol(k) * side.depth)

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
        single = frame.n.is_constant and frame.n.value == 1
        row = symbol("_f")
        column = constant(0) if single else symbol("_c")
        places = {"_m": self.first + row, "_n": column}
        sum_ = Let("accumulator", Load(self.sums, row * frame.n + column))
        body: tuple[Statement, ...] = (sum_, *ExpressionMap.substitution(places).stores(stores))
        if not single:
            body = (Loop("_c", constant(0), frame.n, body),)
        return Loop("_f", constant(0), self.count, body)


def _operand(
    frame: Frame, side: int, found: Access | None, rows: Expr, sources: list[Source]
) -> Operand | None:
    """Operand ``side`` with stride 1 along k, transposed when compiling if need be."""
    lowering, contract = frame.lowering, frame.contract
    if found is not None and found.depth.is_constant and found.depth.value == 1:
        buffer = lowering.buffer(found.source)
        return Operand(buffer, found.base, found.row, found.depth)
    if not is_constant(lowering, contract.inputs[side]):
        return None
    packed = packed_operand(frame, packed_constant(contract, side, 1), rows, sources)
    return Operand(packed.buffer, packed.base, frame.depth, constant(1), 1)


def _row_group(columns: Expr) -> int:
    """Rows of one loop: with its columns they make as many sums as the registers hold."""
    width = columns.value if columns.is_constant else MOST_GROUP
    if width > WIDEST:
        width = MOST_GROUP
    return max(min(MOST_SUMS // max(width, 1), MOST_GROUP), 1)


def _column_groups(columns: Expr) -> Iterator[tuple[str, Expr, Expr, int]]:
    """Groups that cover the columns: loop variable, first column, number of groups, width."""
    if columns.is_constant and columns.value <= WIDEST:
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
