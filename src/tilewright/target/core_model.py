"""What no data sheet says about a core: the price list of everything beside its peak rates.

Entries are cycles of the core's clock unless they name another unit. A preset's entries were
derived once from measurements of three cores of its kind, and are marked so (``origin``);
``tilewright tune`` puts what it measures on this machine in their place, one entry at a time, and
names it in ``measured``. Nothing here imports a compiler. Start with :class:`CoreModel`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilewright.ir.tile import LINE_BYTES
from tilewright.target.description import Target
from tilewright.target.loop_costs import HALVED, NARROW, WIDE, LoopCosts

PAGE_BYTES = 4096  # the smallest page, beyond whose end hardware does not prefetch
# Hardware asks ahead for a run of memory from its second page on: until there, each so many bytes
# take as much more as where they are a run of their own (sums of rows of 0.5 to 24 KiB that lie
# 24 KB apart, Zen 4: 50 ns for 1 KiB, 430 ns from 8 KiB on, with either count of vectors).
RUN_BYTES, FOLLOWED_BYTES = 512, 2 * PAGE_BYTES
# Rows that are taken two at a time as fast as one by one where memory is read (8 to 400 bytes were,
# 460 and more were not, on Zen 4).
PAIRED_ROW_BYTES = 448
SHORT_ROW_BYTES = 2048  # of rows up to which generated code asks ahead for those that follow
# Of a tile along k, up to which memory does not bring a line while it is computed (Zen 4: 0.1 µs),
# and hardware follows results of a single panel.
FEW_STEPS = 64
LEAST_VECTOR_BYTES = 16  # of vectors along an axis that is known to be short
THREAD_NS = 3000  # of work for each thread that the runtime gives to a kernel, as its team has it
PIECE_NS = 10000  # of work in a piece, of which a thread takes one at a time, and its share at most
MOST_PIECES = 8
LEAST_SQUARE = 4  # rows and columns of the smallest that is turned in registers
MOST_FROM_TWO = 16  # elements of vectors picked from two registers: of more it takes longer
MASKED_VECTOR_BYTES = 32  # of vectors from which on a load or store may leave out lanes
WIDE_VECTOR_BYTES = 64  # of vectors from which on a core has masks, more loads and more misses
FEWEST_REGISTERS = 16  # for vectors, of all levels that code is generated for
ADDRESSED_ROWS = 12  # of a register tile: general registers hold their places, and the loop's words
LISTED = 7  # rows of one whose places come from a table, which takes registers as well
PIECE_BYTES = 16  # of registers, within which instructions interleave elements of two of them
WORD_BYTES = 4  # of float32, and of the words of narrower elements that are as long as their sums
LINE_ELEMENTS = LINE_BYTES // WORD_BYTES
WIDE_LANES = WIDE_VECTOR_BYTES // WORD_BYTES  # elements of a word; of fewer it is not full
# Rows a multiple of so many bytes apart fall into one or two sets of a first-level cache of 64: a
# transposition that stores to eight of them at a time took twice as long on Zen 3.
CLASHING_BYTES = 2048
# Bytes of a matrix with rows of whole vectors up to which its transposition to rows that fall into
# the same sets gains by taller bands (Zen 3, rows of 1,024 elements and more: 1.07 to 1.45 times as
# fast up to 4 million bytes, mostly 0.85 to 0.9 from 6.6 million on).
NEAR_SOURCE_BYTES = 1 << 22
# Vectors side by side, so that what combines them does not wait for itself: as many as start while
# one is under way, which is ``latency / addition`` of ``LoopCosts``. All cores that were measured
# have 4 (3.9, 4.4 and 4.0), and code for a level is the same on all of them.
VECTORS_TOGETHER = 4
# Registers while a loop computes a function, counted for the exponential of a softmax: eleven
# constants and the maximum of the row; and of each vector an argument, its whole part, its rest and
# the polynomial.
FUNCTION_REGISTERS = 12
VALUE_REGISTERS = 4
# Of packed panels that stay in the first-level cache beside what else tiles read, and of results of
# a product that stay in the second one until the next kernel reads them. Code for a level is the
# same on all cores. They are not measured apart: five eighths of 32 KiB, and half of 1 MiB.
NEAR_PANEL_BYTES, NEAR_RESULT_BYTES = 20 << 10, 1 << 19
# Of operands from which on tiles ask for rows that come later: more than a second-level cache.
NEAR_OPERAND_BYTES = 1 << 20


@dataclass(frozen=True)
class TileTime:
    """A register tile of ``height`` x ``columns`` elements of float32.

    ``step_ns`` is what a step along k takes with both operands in the first-level cache.
    """

    height: int
    columns: int
    step_ns: float


@dataclass(frozen=True)
class TileCosts:
    """Register tiles beside their steps.

    ``call``: the call, the choice of the height, the first values. ``row``: of a tile, beside its
    vectors, where rows of results lie on pages of their own: to come to it, to ask for its lines,
    of which two tiles have a part (first layers of 24 to 64 rows as 6x16 and 4x24, Zen 4: 1 to 4).
    ``part`` and ``part_vector``: more for a tile with a part of its columns, and for each vector of
    its sums, which pass through memory, where the number of columns is not known when compiling.
    ``masked_row``: more for a row of a tile that is finished in its registers and stores a part of
    its last vector (Zen 4: 15 columns took 1.9 cycles of a row longer than 16 with AVX-512, 14.5
    with AVX2). ``result``: the epilogue and the store of a vector of results, one instruction each
    at least; ``scattered_result``: of one element where neighbouring lanes are rows apart.
    ``spilled``: a sum stored for the next block of the depth and loaded again. ``block``: the
    bounds of a block, and what comes before its first tile. ``near_page`` and ``far_page``: a row
    of a tile whose results go to the last cache or to memory, where there are more rows at a time
    than ``pages``. ``simple_pipes``: how many vector pipes shift, combine and add whole numbers for
    each that multiplies, which is what taking words of narrow elements apart waits for.
    """

    call: float = 24.0
    row: float = 2.0
    part: float = 20.0
    part_vector: float = 16.0
    masked_row: float = 14.5
    result: float = 2.0
    scattered_result: float = 5.0
    spilled: float = 0.3
    block: float = 150.0
    near_page: float = 1.5
    far_page: float = 9.0
    pages: int = 64
    simple_pipes: float = 2.0


@dataclass(frozen=True)
class PanelCosts:
    """Filling panels of the right operand; one element unless another unit is named.

    ``copied``: an element that lies beside the one before; ``near_row`` and ``far_row``: each row
    of a block more, in the second-level cache or beyond. ``transposed``: an element that is
    transposed. ``unpacked``: an element taken out of a word of several. Elements that are computed,
    or picked from lines, cost what the loops around them do.
    """

    copied: float = 0.33
    near_row: float = 9.0
    far_row: float = 20.0
    transposed: float = 0.4
    unpacked: float = 0.3


@dataclass(frozen=True)
class RowCosts:
    """A tile's step over rows of the right operand where they lie in memory, beside its panel's.

    ``split``: for rows a multiple of 16, 8, 4 and 1 elements of float32 apart, whose vectors cross
    lines, in full from ``split_pages[1]`` pages of memory on, a part of it for fewer; where a tile
    reads more than ``split_bytes`` of a row, less in proportion. ``conflict``:
    for rows a multiple of a page apart, within ``conflict_near`` elements; ``shared_sets``: for
    multiples of so many bytes, the cycles. ``wide``: for rows of more than ``wide_row`` elements at
    least so much, and so much more over ``wide_steps`` steps along the depth: what the hardware
    fetches ahead belongs to other panels and takes the place of this one.
    """

    split: tuple[float, float, float, float] = (1.0, 1.2, 1.6, 2.2)
    split_pages: tuple[int, int] = (20, 280)
    conflict: float = 6.0
    conflict_near: int = 8
    shared_sets: tuple[tuple[int, float], ...] = ((1024, 2.0), (256, 0.8))
    split_bytes: int = 64
    wide_row: int = 36
    wide: tuple[float, float] = (0.3, 1.0)
    wide_steps: int = 1000


@dataclass(frozen=True)
class StreamCosts:
    """What of reading operands multiply-adds do not hide.

    ``left_shown``: eighths of the time to read the left operand that are added to them; 0 where it
    hides altogether. ``again_right`` and ``again_left``: eighths for operands that are read once
    more: columns are asked for ahead, rows are not. ``scattered_rows``: pairs of the rows of the
    right operand in memory at a time and half times as long as their bytes take, ``scattered_most``
    of them for more rows; ``scattered_short`` at the least for rows of fewer than ``long_row``
    elements; none where enough misses are under way. ``scattered_packing``: the same for packing
    whole rows, or a part of each; ``scattered_near``: so many halves of that as a part are what it
    costs in the last cache. ``streamed``: an element of the left operand that comes from memory in
    long rows. ``near_left_page`` and ``far_left_page``: a row of the left operand in the last cache
    or in memory for each block of the depth, where there are more than the pages at hand.
    ``last_share``: the part of the last cache that an operand may count on, since others use it
    too. ``few_rows``: with which tiles over rows in place read as fast as memory gives; with more,
    too few loads are under way. ``misses``: lines under way at a time of what hardware does not
    foresee, ``lone_lines`` where steps of a tile read one each, of other pages. ``followed``: rows
    at a time of which hardware foresees how each goes on (measured on Zen 4: 16 are read as fast as
    8, 32 at half of that). ``handed_on``: how often the second-level caches of the threads may hold
    what one kernel hands to another until it takes longer to read.
    ``swapped_part``: waiting for panels of weights adds one over so much to a product of exchanged
    roles.
    """

    left_shown: int = 0
    again_right: int = 2
    again_left: int = 5
    scattered_rows: tuple[tuple[int, int], ...] = ((16, 4), (32, 6), (256, 7))
    scattered_most: int = 9
    scattered_short: int = 7
    long_row: int = 500
    scattered_packing: tuple[int, int] = (3, 6)
    scattered_near: int = 12
    streamed: float = 0.5
    near_left_page: float = 50.0
    far_left_page: float = 120.0
    last_share: int = 4
    few_rows: int = 24
    misses: int = 24
    lone_lines: int = 2
    followed: int = 16
    handed_on: int = 2
    swapped_part: int = 6


@dataclass(frozen=True)
class DotCosts:
    """Products as sums along vectors.

    ``known_group`` and ``any_group``: one loop, and to add the lanes of a sum and store it, for
    columns of known and of any number. ``masked``: more of a row whose last vector has a mask.
    ``step_share`` and ``stream_share``: times that of what loads and multiply-adds take for a step,
    and of what comes from the second-level cache. ``memory_shown``: for rows of up to a page,
    and for longer ones, the eighths of the time to read from memory (or of the time of the sums, if
    that is less) that do not hide behind the other; more than eight where what comes from memory
    reaches the sums late. ``result``: one element of the epilogue. ``sums``: vectors of sums in one
    loop, beyond which operands on their way are spilled.
    """

    known_group: tuple[float, float] = (6.0, 0.8)
    any_group: tuple[float, float] = (26.0, 3.2)
    masked: float = 0.7
    step_share: float = 1.15
    stream_share: float = 2.0
    short_row: int = 256
    memory_shown: tuple[int, int] = (2, 6)
    result: float = 0.5
    sums: int = 12


@dataclass(frozen=True)
class MoveCosts:
    """Elements that are moved for the sake of a product; one of them.

    ``combined``: a vector of results of parts of the depth: additions, the epilogue, the store;
    ``handed_bytes`` in a cycle, of parts that other threads have written. ``code_vector``: a vector
    of numbers that are taken out of words of codes, for several rows at a time. What is transposed
    or picked out of lines costs what the loops around it do.
    """

    combined: float = 12.0
    handed_bytes: float = 16.0
    code_vector: float = 0.45


@dataclass(frozen=True)
class AttentionCosts:
    """What attention takes beside its products, in times of a product's block (``TileCosts``).

    ``block``: a block of keys: two calls of products, short loops over rows. ``task``: a block of
    rows.
    """

    block: float = 8 / 3
    task: float = 4.0


@dataclass(frozen=True)
class ThreadCosts:
    """Threads that share a kernel.

    ``waited``: the part of a task for which they wait for each other at the end, one over so much.
    ``step_ns``: a step more in one kernel, beside the meeting of the threads; ``call_ns``: one
    beside its tasks. ``taken_ns``: a line that is written after another thread has read it, which
    its cache gives up first (measured on Zen 4 by two threads in turns: 3.5 to 6.9, however many
    lines in a row; to read what another has written takes 0.2 to 0.7 longer). ``contested_ns``: a
    line of results that two of them write at about the same time (1,523 rows of 153 sums took 8 to
    38 for each row). ``parted_ns``: the same in loops that do little but store, one such line after
    the other (rows of 513 and 961, halves of which two threads normalise or take the softmax of,
    took 110 to 205 more for each sweep over a row).
    """

    waited: int = 8
    step_ns: int = 300
    call_ns: int = 40
    taken_ns: float = 5.5
    contested_ns: int = 20
    parted_ns: int = 140


@dataclass(frozen=True)
class CoreModel:
    """The price list of one kind of core.

    ``origin`` says where entries come from that are not named in ``measured``, as "panels.copied".
    ``tiles`` are the steps of register tiles as measured; of others, as the pipes would run them.
    """

    origin: str
    tiles: tuple[TileTime, ...] = ()
    tile: TileCosts = field(default_factory=TileCosts)
    panels: PanelCosts = field(default_factory=PanelCosts)
    rows: RowCosts = field(default_factory=RowCosts)
    streams: StreamCosts = field(default_factory=StreamCosts)
    dots: DotCosts = field(default_factory=DotCosts)
    moves: MoveCosts = field(default_factory=MoveCosts)
    attention: AttentionCosts = field(default_factory=AttentionCosts)
    threads: ThreadCosts = field(default_factory=ThreadCosts)
    loops: LoopCosts = NARROW
    measured: tuple[str, ...] = ()


WIDE_STREAMS = StreamCosts(left_shown=4, scattered_rows=(), streamed=0.0)
# Measured on Zen 4 with vectors of 32 bytes: rows of 3 to 12 KB from memory, by 8 and 12 columns.
NARROWED_STREAMS = replace(WIDE_STREAMS, streamed=0.35)
WIDE_DOTS = DotCosts(known_group=(6.0, 1.1), any_group=(6.0, 1.1), masked=0.45, sums=20)
# Measured on a Zen 4 core: its second-level cache gives all that a loop asks for, and lanes of wide
# vectors are combined in four steps, each of which waits for both halves of the one before.
HALVED_TILES = TileCosts(call=10.0, part=12.0, part_vector=4.2, masked_row=1.9, block=45.0)
# The bounds of a block take as long as with wide vectors (taken over from Zen 4, not measured); the
# rest is of Zen 3, and closer to what products of few columns take on Zen 4 than its own probes.
NARROW_TILES = TileCosts(block=45.0)
HALVED_DOTS = replace(WIDE_DOTS, any_group=(13.0, 1.95), stream_share=1.25)
# Measured on the same core with vectors of 32 bytes: depths of 1 to 100, with 3 to 12 sums in a
# loop, and of over 1,400; from memory 108 to 250 MB by 2 to 4 columns, depths of 900 to 6,000.
NARROWED_DOTS = DotCosts(any_group=(17.0, 0.6), masked=2.3, stream_share=1.6, memory_shown=(14, 14))


def is_halved(vector_bytes: int, pipes: float) -> bool:
    """Whether a core computes its widest vectors in halves.

    It does where they are wide and fewer than two multiply-adds of them (``pipes``) start in a
    cycle.
    """
    return vector_bytes >= WIDE_VECTOR_BYTES and pipes < 2


def spread_elements(size: int) -> int:
    """Elements of ``size`` bytes to leave out between rows that lie whole lines apart: a line.

    Rows that begin a power of two of bytes apart share few sets of a cache; an odd number of lines
    apart, they take all sets in turn.
    """
    return LINE_BYTES // size


def ends_in_half(columns: int, lanes: int, vector_bytes: int) -> bool:
    """Whether code computes the last of so many columns in half of a vector.

    It does where vectors are wide: cores that compute them in halves take half the time for it, and
    others as long as for a whole one.
    """
    return vector_bytes >= WIDE_VECTOR_BYTES and 0 < columns % lanes <= lanes // 2


def most_thin(vector_bytes: int) -> int:
    """Rows or columns up to which a block is turned without squares.

    Each is picked out of as many vectors as there are of them, fewer than a square of eight has.
    Registers of 32 bytes come with instructions that put elements of four bytes or more anywhere,
    and shorter ones in two or three: five to seven columns of those, of which a vector is 32 to 64,
    take half as long as element by element at most.
    """
    return 7 if vector_bytes >= MASKED_VECTOR_BYTES else 4


def thin_lanes(count: int, lanes: int) -> tuple[int, ...]:
    """Elements of the vectors of which the longest that fits turns ``count`` rows or columns.

    Vectors of up to ``lanes`` elements, of few that instructions pick from two registers at once;
    shorter ones as long as squares of that size would move more than they are needed for.
    """
    longest = min(lanes, MOST_FROM_TWO)
    shorter = longest.bit_length() - LEAST_SQUARE.bit_length() if count <= LEAST_SQUARE else 0
    return tuple(longest >> halved for halved in range(shorter + 1))


def tallest(registers: int, vectors: int, parts: int = 1, *, listed: bool = False) -> int:
    """The rows of the tallest register tile so many vectors wide.

    Each vector of columns and the broadcast value take ``parts`` registers. Of rows that are
    ``listed`` in a table there are fewer: where general registers do not hold their places, LLVM
    orders a step without regard to vectors either, and stores and loads sums in every one.
    """
    free = registers - (vectors + 1) * parts
    return max(1, min(LISTED if listed else ADDRESSED_ROWS, free // vectors))


def copies_of(rows: int) -> int:
    """How many copies of the sums of so many rows take turns along k: a power of two.

    It depends on the rows alone, so that all columns of a row are summed in one order, whatever the
    width of the tile that they fall into; only tiles so wide that registers hold no copies have
    fewer.
    """
    return {1: 4, 2: 2, 3: 2}.get(rows, 1)


def usual_core(target: Target) -> CoreModel:
    """The preset for the cores of a target by the width of their vectors.

    Masks go with the vectors of the code, caches and misses with those that the core has.
    """
    is_narrow = target.vector_bytes < WIDE_VECTOR_BYTES
    own, pipes = target.vector_bytes, target.fma_pipes
    if target.core_bytes > own:
        own, pipes = target.core_bytes, target.core_pipes
    halved = is_halved(own, pipes)
    streams = WIDE_STREAMS if own >= WIDE_VECTOR_BYTES else StreamCosts()
    if is_narrow:
        return CoreModel(
            "derived from measurements of Zen 3 and Zen 4",
            tile=NARROW_TILES,
            streams=NARROWED_STREAMS if halved else streams,
            dots=NARROWED_DOTS if halved else DotCosts(),
        )
    return CoreModel(
        "derived from measurements of Zen 4 and Zen 5",
        tile=HALVED_TILES if halved else TileCosts(part=5.0, part_vector=2.0, masked_row=1.9),
        streams=streams,
        dots=HALVED_DOTS if halved else WIDE_DOTS,
        loops=HALVED if halved else WIDE,
    )


def spread_row(length: int, size: int) -> int:
    """Elements of ``size`` bytes from row to row of so many, so that rows fall into many sets."""
    clashes = length > 0 and length * size % CLASHING_BYTES == 0
    return length + spread_elements(size) if clashes else length


def vectors_together(functions: int, registers: int) -> int:
    """Vectors of a loop that combines values of so many ``functions``, computed side by side.

    There are fewer where the registers do not hold what functions need; two are held at most, and
    what others need is loaded again.
    """
    left = registers - FUNCTION_REGISTERS * min(functions, 2)
    return min(max(left // VALUE_REGISTERS, 1), VECTORS_TOGETHER)


def lanes_along(depth: int | None, lanes: int, size: int) -> int:
    """Lanes of the vectors that run along so many elements of ``size`` bytes, if that is known.

    Vectors of ``lanes`` of which a half is enough would be halved once more when their lanes are
    added up.
    """
    least = LEAST_VECTOR_BYTES // size
    while depth is not None and depth <= lanes // 2 and least <= lanes // 2:
        lanes //= 2
    return lanes
