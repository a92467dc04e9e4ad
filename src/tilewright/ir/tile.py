"""The tile program: one kernel as loops, loads, scalar computation and stores on named buffers.

Indices are shape expressions over three kinds of names: the program's symbols (sizes), loop
variables, and *index locals* (positions read from data). Values are trees of scalar operations.
A :class:`LoopProgram` is a nest under a parallel grid; a :class:`Contraction` has the three stages
load, compute and store of a register tile at each level. Backends turn both into machine code.
Start with :class:`LoopProgram`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.dtype import DType
from tilewright.shape import Expr, ceil_div, constant

NEVER = constant(0)

# ---------------------------------------------------------------- values


@dataclass(frozen=True)
class TileBuffer:
    """Memory a kernel sees: a tensor handed in, or ``scratch`` private to the thread.

    ``name`` is local to the kernel. ``elements`` is the size of a scratch buffer. A ``fixed`` one
    is laid out alike for all sizes: distances in it are compiled in, however large.
    """

    name: str
    dtype: DType
    scratch: bool = False
    elements: Expr | None = None
    fixed: bool = False


@dataclass(frozen=True, eq=False)
class Load:
    """The element of ``buffer`` at the linear ``offset``."""

    buffer: TileBuffer
    offset: Expr

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype


@dataclass(frozen=True, eq=False)
class Literal:
    """A number known when compiling."""

    value: float | int | bool
    dtype: DType


@dataclass(frozen=True, eq=False)
class IndexValue:
    """An index expression as an int64 value."""

    expression: Expr
    dtype: DType = DType.INT64


MULTIPLY_ADD = "multiply_add"  # the product of two operands plus the third, rounded once or twice


@dataclass(frozen=True, eq=False)
class Apply:
    """A scalar function, or ``MULTIPLY_ADD``, which is as exact as the machine makes it.

    ``dtype`` is the result's, ``operand_type`` the last operand's.
    """

    function: str
    operands: tuple[Value, ...]
    dtype: DType

    @property
    def operand_type(self) -> DType:
        return self.operands[-1].dtype


@dataclass(frozen=True, eq=False)
class Convert:
    """A value converted to another element type."""

    operand: Value
    dtype: DType


@dataclass(frozen=True, eq=False)
class Local:
    """A scalar bound by ``Let`` or by a reduction."""

    name: str
    dtype: DType


@dataclass(frozen=True, eq=False)
class Guarded:
    """``inside`` where the index predicate is not 0, else ``outside``; only the chosen one runs."""

    predicate: Expr
    inside: Value
    outside: Value

    @property
    def dtype(self) -> DType:
        return self.inside.dtype


Value = Load | Literal | IndexValue | Apply | Convert | Local | Guarded

IDENTITY = "identity:"  # prefix of the local that stands for a reduction's neutral element


def neutral_element(kind: str, dtype: DType) -> Local:
    """The value that a reduction of ``kind`` begins with."""
    return Local(f"{IDENTITY}{kind}", dtype)


def multiplied(a: Value, b: Value, dtype: DType) -> Apply:
    """The product of two values, as one of ``dtype``."""
    factors = (x if x.dtype is dtype else Convert(x, dtype) for x in (a, b))
    return Apply("multiply", tuple(factors), dtype)


# ---------------------------------------------------------------- statements


@dataclass(frozen=True, eq=False)
class Let:
    """Bind a scalar for the rest of the block."""

    name: str
    value: Value


@dataclass(frozen=True, eq=False)
class LetIndex:
    """Bind an index local to an int64 value, from the end if negative.

    Out of ``[-limit, limit)`` the kernel reports ``check`` (an index into its messages) with the
    value and the limit, and ends. Without a check the value is in [0, limit), as it comes from a
    table that was filled under one.
    """

    name: str
    value: Value
    limit: Expr
    check: int | None


@dataclass(frozen=True, eq=False)
class Accumulator:
    """One running value of a reduction: "sum", "product", "maximum" or "minimum"."""

    name: str
    kind: str
    value: Value


@dataclass(frozen=True, eq=False)
class Loop:
    """``body`` for ``variable`` in [begin, end); ``accumulators`` are bound after the loop.

    Inside nested reduction loops of one nest, an accumulator's running value carries on.
    ``independent`` says that no iteration touches an element that another one writes. ``masked``
    asks for vectors to the very end, the last ones under a mask, where the machine has masks.
    ``streamed``, where it is not 0, asks that what its only store writes goes to memory past the
    caches; its loads and its store have stride 1 or 0 then.
    """

    variable: str
    begin: Expr
    end: Expr
    body: tuple[Statement, ...]
    accumulators: tuple[Accumulator, ...] = ()
    independent: bool = False
    masked: bool = False
    streamed: Expr = NEVER

    @property
    def may_stream(self) -> bool:
        """Whether ``streamed`` is not 0 at some sizes."""
        return self.streamed != NEVER


@dataclass(frozen=True, eq=False)
class Store:
    """Write an element."""

    buffer: TileBuffer
    offset: Expr
    value: Value


@dataclass(frozen=True, eq=False)
class Check:
    """Report message ``check`` with details if ``value`` (bool) is true."""

    value: Value
    check: int


@dataclass(frozen=True, eq=False)
class TransposeBlock:
    """``target[t + c * target_row + r] = source[s + r * source_row + c]``, r and c below limits.

    ``s`` and ``t`` are the offsets; r is below ``rows`` and c below ``columns``. Elements have 4 or
    8 bytes, which may be several of the source's: they are as wide as the target's, and so is what
    offsets and rows count. Or they have one and become words: ``target_row`` is 4 then, ``rows`` at
    most, and what is missing of a word becomes 0. It is written through registers, which no loop of
    stores is.
    """

    source: TileBuffer
    source_offset: Expr
    source_row: Expr
    target: TileBuffer
    target_offset: Expr
    target_row: Expr
    rows: Expr
    columns: Expr


CACHE_LINE = 64  # bytes; rows of scratch memory that a Product writes are whole lines


@dataclass(frozen=True, eq=False)
class Product:
    """``target[m, n] = sum over k of left[m, k] * right[k, n]`` for a block, through registers.

    m is below ``rows``, n below ``columns`` and k below ``depth``. Element (m, k) of the left
    operand is ``left_offset + m * left_row + k * left_depth`` of its buffer, (k, n) of the right
    one ``right_offset + k * right_depth + n``, (m, n) of the target ``target_offset +
    m * target_row + n``. Where the predicate ``resume`` is not 0, the sums are added to what the
    target holds. The target is scratch, whose columns are written up to the end of a cache line; a
    right operand in scratch is read up to there.
    """

    target: TileBuffer
    target_offset: Expr
    target_row: Expr
    left: TileBuffer
    left_offset: Expr
    left_row: Expr
    left_depth: Expr
    right: TileBuffer
    right_offset: Expr
    right_depth: Expr
    rows: Expr
    columns: Expr
    depth: Expr
    resume: Expr

    def whole_lines(self, columns: Expr) -> Expr:
        """So many columns, and those up to the end of the cache line."""
        elements = CACHE_LINE // self.target.dtype.bytes
        return ceil_div(columns, elements) * elements


Statement = Let | LetIndex | Loop | Store | Check | TransposeBlock | Product

# ---------------------------------------------------------------- programs


@dataclass(frozen=True, eq=False)
class LoopProgram:
    """Loops under a grid: one task per point of ``grid`` (row-major), each running ``body``.

    ``buffers`` are the tensors in the order in which they are handed in, results last
    (``results`` of them). ``checks`` are messages. ``work`` is a rough time in nanoseconds.
    """

    buffers: tuple[TileBuffer, ...]
    results: int
    grid: tuple[tuple[str, Expr], ...]
    body: tuple[Statement, ...]
    scratch: tuple[TileBuffer, ...]
    checks: tuple[str, ...]
    work: Expr


@dataclass(frozen=True, eq=False)
class Operand:
    """A contraction's operand read in place: linear offset without m, n, k, and the strides.

    ``row`` is the stride along m (left) or n (right), ``depth`` that along k. ``panel`` not 0 says
    that the buffer was packed beforehand: panels of that many rows, k-major, padded with zeros;
    ``row`` is the depth of a panel then.
    """

    buffer: TileBuffer
    base: Expr
    row: Expr
    depth: Expr
    panel: int = 0


OUTSIDE = "_outside"  # how many bytes after element ``base`` of a Gathering its zeros begin


@dataclass(frozen=True, eq=False)
class Packing:
    """Statements that fill ``target`` with the right operand for k in [_k0, _k1), n in [_n0, _n1).

    Element (k, n) goes to ``(k - _k0) * row + (n - _n0)``; "_k0", "_k1", "_n0", "_n1" are bound.
    """

    target: TileBuffer
    row: Expr
    body: tuple[Statement, ...]

    @property
    def transposes(self) -> bool:
        """Whether the operand lies contiguous along k, so that squares of it are transposed."""
        return any(isinstance(part, TransposeBlock) for part in self.body)


@dataclass(frozen=True, eq=False)
class Gathering:
    """A left operand of which every run of ``run`` elements along k lies anywhere in ``buffer``.

    ``body`` fills ``table`` for rows [_m0, _m1): entry ``r * row + (m - _m0)`` says how many bytes
    after element ``base`` run r of row m begins; for a run of ``zeros``, which it fills too, that
    is ``OUTSIDE``. With ``shifts``, which it fills as well, there is one entry for a row, to which
    entry r of ``shifts`` is added: runs lie alike in all rows. If ``buffer`` is scratch, it comes
    from ``body`` too.
    """

    buffer: TileBuffer
    base: Expr
    run: Expr
    table: TileBuffer
    row: Expr
    body: tuple[Statement, ...]
    zeros: TileBuffer | None = None
    shifts: TileBuffer | None = None


@dataclass(frozen=True, eq=False)
class Contraction:
    """C[batch, m, n] = sum over k of left[batch, m, k] * right[batch, k, n], then an epilogue.

    Level 2 is the grid of batch, n-blocks and m-blocks (``block_n``, ``block_m``: sizes as
    expressions, multiples of the register tile), level 1 the k-block ``block_k`` with the packed
    right operand, level 0 the register tile. In ``stores`` the names "_m" and "_n" are the row and
    column of the element, and ``Local("accumulator")`` is its sum. ``tail`` is the number of
    columns modulo the tile's, or None where it is not known when compiling. With a ``Gathering``,
    ``block_k`` is a multiple of its run. With ``narrow``, the type of the left operand's elements,
    each word of 32 bits in the operands holds several of them that follow each other along k, and
    k, offsets and strides count words. Results whose columns do not lie side by side go to
    ``stages``, private to the task, from where ``after`` moves them, with "_m0", "_m1", "_n0" and
    "_n1" bound.
    """

    buffers: tuple[TileBuffer, ...]
    results: int
    batch: tuple[tuple[str, Expr], ...]
    m: Expr
    n: Expr
    k: Expr
    left: Operand | Gathering
    right: Operand | Packing
    dtype: DType
    block_m: Expr
    block_n: Expr
    block_k: Expr
    tile_rows: int
    tile_columns: int
    tail: int | None
    stores: tuple[Store, ...]
    checks: tuple[str, ...]
    work: Expr
    stages: tuple[TileBuffer, ...] = ()
    after: tuple[Statement, ...] = ()
    narrow: DType | None = None

    @property
    def grid(self) -> tuple[tuple[str, Expr], ...]:
        """The tasks: batch elements, then blocks of columns, then of rows (the fastest)."""
        blocks_n, blocks_m = ceil_div(self.n, self.block_n), ceil_div(self.m, self.block_m)
        return (*self.batch, ("_nb", blocks_n), ("_mb", blocks_m))

    @property
    def scratch(self) -> tuple[TileBuffer, ...]:
        """What a task packs, looks up and stages, in memory of its own."""
        made: list[TileBuffer] = []
        if isinstance(self.left, Gathering):
            left = self.left
            others = (left.table, left.shifts, left.zeros, left.buffer)
            made += [buffer for buffer in others if buffer is not None and buffer.scratch]
        if isinstance(self.right, Packing):
            made.append(self.right.target)
        return (*made, *self.stages)


TileProgram = LoopProgram | Contraction
