"""The tile program: one kernel as loops, loads, scalar computation and stores on named buffers.

Indices are shape expressions over the program's symbols (sizes), loop variables, and *index locals*
(positions read from data). Values are trees of scalar operations. A :class:`TileProgram` is a nest
of statements under a parallel grid: loops over single elements, :class:`Stage`, the blocks of axes
with what is moved for each of them, and :class:`Product`, the leaf of all products of matrices.
Backends turn it into machine code. Start with :class:`TileProgram`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.dtype import DType
from tilewright.ir.stage_axis import NEVER, StageAxis
from tilewright.shape import Expr, ceil_div, constant

SINGLE = constant(1)

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


@dataclass(frozen=True, eq=False)
class Apply:
    """A scalar function, or one of ``ADDING``, which are as exact as the machine makes them.

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

    Inside nested reduction loops of one nest, an accumulator's running value carries on, from one
    loop to the next as well where several follow each other inside another. ``independent`` says
    that no iteration touches an element that another one writes. ``masked`` asks for vectors to the
    very end, the last ones under a mask, where the machine has masks. ``streamed``, where it is not
    0, asks that what its only store writes goes to memory past the caches (its loads and its store
    have stride 1 or 0 then), or that first factors of sums of products come by way of the second
    cache. ``ahead``, where it is not 0, asks for lines so many bytes beyond what is read of memory.
    """

    variable: str
    begin: Expr
    end: Expr
    body: tuple[Statement, ...]
    accumulators: tuple[Accumulator, ...] = ()
    independent: bool = False
    masked: bool = False
    streamed: Expr = NEVER
    ahead: int = 0

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

    ``s`` and ``t`` are the offsets; r is below ``rows`` and c below ``columns``. The source's
    elements may be narrower than the target's: they are taken to be as wide, and so is what offsets
    and rows count. Bytes that go to scratch memory 4 apart become words: there are 4 ``rows`` at
    most, and what is missing of a word becomes 0. It is written through registers, which no loop
    of stores is. With a ``run``, so many elements move as one: c and r count runs, rows are whole
    runs apart.
    """

    source: TileBuffer
    source_offset: Expr
    source_row: Expr
    target: TileBuffer
    target_offset: Expr
    target_row: Expr
    rows: Expr
    columns: Expr
    run: Expr = SINGLE

    @property
    def makes_words(self) -> bool:
        """Whether bytes become words of four."""
        is_word = self.target_row is constant(4)
        return self.target.scratch and self.target.dtype.bytes == 1 and is_word


@dataclass(frozen=True, eq=False)
class LetDistance:
    """Bind an index local to how many bytes ``target`` begins after element ``offset`` of a buffer.

    ``dtype`` says what elements of ``buffer`` are counted.
    """

    name: str
    buffer: TileBuffer
    offset: Expr
    dtype: DType
    target: TileBuffer


# ---------------------------------------------------------------- products


@dataclass(frozen=True, eq=False)
class View:
    """An operand of a :class:`Product` as it lies in memory, from the product's first element on.

    Element (i, k) is ``offset + i * row + k * depth`` of the buffer, where i counts rows of a left
    operand and columns of a right one. With ``panel`` the buffer was packed beforehand, in panels
    of so many i, k-major, padded with zeros; the product begins with a panel. ``depth`` is
    ``panel`` then, and ``row`` how many k a panel has: the next one begins ``panel * row`` later.
    """

    buffer: TileBuffer
    offset: Expr
    row: Expr
    depth: Expr
    panel: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class CodeView(View):
    """A right operand of whole numbers of ``bits`` bits, packed beforehand in panels.

    Words of 32 bits in ``buffer`` hold the numbers of one i at k that follow each other, the first
    one in the lowest bits: number q is (q - zero) * scale. A panel has ``row`` words along k, of
    which ``tail`` numbers are in the last one (0: it is full), and ``blocks`` scales, one for
    ``block`` k: the scale of i at k is in ``scales``, ``(i // panel * blocks + k // block) * panel
    + i % panel`` after ``place``. So are zero points, if they are not one number. The depth of the
    product is all of k.
    """

    bits: int
    block: int
    blocks: Expr
    tail: int
    scales: TileBuffer
    zeros: TileBuffer | int
    place: Expr

    @property
    def per_word(self) -> int:
        """How many numbers a word holds."""
        return 32 // self.bits

    @property
    def parameters(self) -> tuple[TileBuffer, ...]:
        """The buffers that have an element for every block."""
        return (self.scales, *([] if isinstance(self.zeros, int) else [self.zeros]))


@dataclass(frozen=True, eq=False)
class RunTable:
    """A left operand of which every run of ``run`` elements along k lies anywhere in ``buffer``.

    These are ``depth`` elements apart. Entry ``r * row + i`` of ``table`` says how many bytes after
    element ``offset`` run r of row i begins; rows count from the product's first one, runs from the
    depth 0. Of runs in ``zeros``, which end there, those that all rows have need not be multiplied.
    With ``shifts``, rows have one entry each, to which entry r of ``shifts`` is added.
    """

    buffer: TileBuffer
    offset: Expr
    run: Expr
    table: TileBuffer
    row: Expr
    depth: Expr
    zeros: TileBuffer | None = None
    shifts: TileBuffer | None = None


LINE_BYTES = 64  # of a cache; rows of scratch memory that a Product writes are whole lines


@dataclass(frozen=True, eq=False)
class Sums:
    """Where a :class:`Product` leaves its sums: (i, j) at ``offset + i * row + j`` in scratch.

    Where the predicate ``resume`` is not 0, they are added to what is there. Columns are written up
    to the end of a cache line, or of a panel of a :class:`CodeView`, whose products begin anew.
    """

    buffer: TileBuffer
    offset: Expr
    row: Expr
    resume: Expr

    def whole_lines(self, columns: Expr) -> Expr:
        """So many columns, and those up to the end of the cache line."""
        elements = LINE_BYTES // self.buffer.dtype.bytes
        return ceil_div(columns, elements) * elements


@dataclass(frozen=True)
class Registers:
    """What the registers of a machine hold of the sums of a :class:`Product`: rows and columns.

    ``tail`` is the product's columns modulo theirs, or None where it is not known.
    """

    rows: int
    columns: int
    tail: int | None


@dataclass(frozen=True, eq=False)
class Finish:
    """What becomes of the sums of a :class:`Product` after the last block of the depth.

    Until then the machine keeps them where it likes. In ``stores`` the names "_m" and "_n" are the
    row and column of an element, and ``Local("accumulator")`` is its sum; ``streamed`` is that of a
    :class:`Loop`. Where ``ahead`` is not 0, tiles ask for rows of columns a block of them ahead.
    """

    stores: tuple[Store, ...]
    registers: Registers
    streamed: Expr = NEVER
    ahead: Expr = NEVER


Bounds = tuple[Expr, Expr]


@dataclass(frozen=True, eq=False)
class Product:
    """Sums over k of left[m, k] * right[k, n] for a block, through registers.

    ``rows``, ``columns`` and ``depth`` are where m, n and k begin and end. The right operand lies
    contiguous along n or in panels; where :class:`Sums` are left, one in scratch is read up to the
    end of a cache line. Sums are of type ``dtype``. With ``narrow``, the type of the left operand's
    elements, each word of so many bytes in the operands holds several of them that follow each
    other along k, and depth, offsets and strides count words.
    """

    dtype: DType
    left: View | RunTable
    right: View
    rows: Bounds
    columns: Bounds
    depth: Bounds
    target: Sums | Finish
    narrow: DType | None = None

    @property
    def finishes_once(self) -> bool:
        """Whether the stores of a :class:`Finish` are run once for every element.

        If not, a machine may run those of the last columns again, to the same results: it moves the
        last block of registers back until all of its columns are there.
        """
        tail = self.target.registers.tail if isinstance(self.target, Finish) else 0
        return tail == 0 or self.right.panel > 0

    def written(self, target: Sums, columns: Expr) -> Expr:
        """How many columns of :class:`Sums` are written for so many of the product."""
        if isinstance(self.right, CodeView):
            return ceil_div(columns, self.right.panel) * self.right.panel
        return target.whole_lines(columns)


# ---------------------------------------------------------------- stages


@dataclass(frozen=True, eq=False)
class Stage:
    """Blocks of axes, and for each block what is moved to it, done with it and moved from it.

    ``load`` fills memory that is near (packs, transposes, says where things lie), ``body`` computes
    on it, perhaps in stages of smaller blocks, and ``store`` moves results out of it.
    """

    axes: tuple[StageAxis, ...]
    load: tuple[Statement, ...]
    body: tuple[Statement, ...]
    store: tuple[Statement, ...] = ()


Statement = Let | LetIndex | LetDistance | Loop | Store | Check | TransposeBlock | Product | Stage

# ---------------------------------------------------------------- programs


@dataclass(frozen=True, eq=False)
class TileProgram:
    """Statements under a grid: one task per point of ``grid`` (row-major), each running ``body``.

    ``buffers`` are the tensors in the order in which they are handed in, results last
    (``results`` of them). ``checks`` are messages. ``work`` is a rough time in nanoseconds. With
    ``in_rounds`` the first axis of the grid counts rounds: no task of a round begins before all
    tasks of the one before have ended.
    """

    buffers: tuple[TileBuffer, ...]
    results: int
    grid: tuple[tuple[str, Expr], ...]
    body: tuple[Statement, ...]
    scratch: tuple[TileBuffer, ...]
    checks: tuple[str, ...]
    work: Expr
    in_rounds: bool = False

    @property
    def rounds(self) -> Expr:
        """How many rounds of tasks there are, one after the other."""
        return self.grid[0][1] if self.in_rounds else constant(1)
