"""Products of few known columns and short rows: narrow vectors, wide panels, prices, prefetches."""

from __future__ import annotations

import re

import pytest
from llvmlite import ir

from support.graph_kit import F32, F64, Space, check, data, fixed, mostly_slow
from tilewright.backend.cpu.dots import DotProducts
from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.backend.cpu.machine import LEVELS
from tilewright.backend.cpu.shared import KernelModule, shared_module
from tilewright.backend.cpu.transpose import transpose_function
from tilewright.cost import Machine
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Contract, Convolve, Slice, Transpose
from tilewright.ir.product_nest import ProductNest
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import ceil_div, constant
from tilewright.target import preset
from tilewright.target.core_model import lanes_along
from tilewright.tile import lower
from tilewright.tile.lower import lower_kernel
from tilewright.tile.products.dots import lower_dots
from tilewright.tile.variants import THREADS, Variant

pytestmark = pytest.mark.sampled(8)

NARROW = ("x86-64", "avx2", "avx512")
MANY = 1 << 21  # rows that no cache holds


def product(columns: int, depth: int, dtype: DType = F32) -> Graph:
    """Rows by a constant of so many columns."""
    space = Space()
    x = space.input("x", dtype, space.dimension("m", 0, 1 << 22), constant(depth))
    weights = fixed(data(F32, (depth, columns), 3).astype(dtype.numpy))
    return space.graph(node(Contract((), ((1, 0),)), x, weights))


def variants(graph: Graph, level: str, processor: str) -> tuple[Variant, ...]:
    (kernel,) = plan_greedily(graph).kernels
    machine = Machine(preset(processor))
    return lower_kernel(kernel, graph.scope, register_tile(LEVELS[level]), machine=machine).variants


def taken(graph: Graph, level: str, processor: str, rows: int) -> str:
    """The name of the cheapest variant."""
    found = variants(graph, level, processor)
    return min(found, key=lambda v: v.cost.evaluate({"m": rows, THREADS: 1})).name


@pytest.mark.parametrize("depth", mostly_slow([*range(2, 10), 12, 16, 17], "3", "7", "17"))
@pytest.mark.parametrize("dtype", mostly_slow([F32, F64], "float32"))
def test_dots_along_short_rows(monkeypatch: pytest.MonkeyPatch, depth: int, dtype: DType) -> None:
    def forced(kernel: object, fresh: object, tile: object, *_: object) -> tuple[Variant, ...]:
        steps = lower_dots(kernel, fresh, tile)  # type: ignore[arg-type]
        assert steps is not None
        return (Variant("dots", steps, constant(0)),)

    monkeypatch.setattr(lower, "contraction_variants", forced)
    graph = product(3, depth, dtype)
    check(graph, [{"m": m} for m in (0, 1, 4, 5, 13, 67)], length=depth, levels=NARROW)


def test_vectors_are_no_longer_than_short_rows() -> None:
    assert [lanes_along(depth, 16, 4) for depth in (0, 3, 4, 5, 8, 9, 31)] == [
        4,
        4,
        4,
        8,
        8,
        16,
        16,
    ]
    assert lanes_along(None, 16, 4) == 16
    assert lanes_along(1, 4, 4) == 4
    assert [lanes_along(depth, 8, 8) for depth in (1, 2, 3, 5)] == [2, 2, 4, 8]


@pytest.mark.parametrize(("level", "processor"), [("avx512", "zen5"), ("avx2", "zen3")])
def test_what_is_short_or_narrow_has_its_price(level: str, processor: str) -> None:
    for columns, depth in ((1, 5), (2, 8), (3, 12)):
        assert taken(product(columns, depth), level, processor, MANY) == "dots"
    # Rows of seven results share pages, so that many of them at a time cost no more.
    rows, _ = taken(product(7, 5), level, processor, MANY).split(" x ", 1)
    assert int(rows) > 64


@pytest.mark.parametrize("columns", mostly_slow([15, 16, 17, 23, 24, 25, 47], "17", "24"))
def test_one_wide_panel_for_a_few_columns_more(columns: int) -> None:
    graph = product(columns, 7)
    nest = ProductNest.of(variants(graph, "avx2", "zen3")[0].steps[-1].program)
    wide = (nest.registers.rows, nest.registers.columns) == (4, 24)
    # 47 columns are two panels of three vectors rather than three of two.
    assert wide == (16 < columns <= 24 or columns == 47)
    check(graph, [{"m": m} for m in (0, 1, 3, 4, 5, 97)], length=7, levels=("avx2",))


def test_the_wide_panel_follows_the_type() -> None:
    for columns, size in ((12, (4, 12)), (13, (6, 8))):
        nest = ProductNest.of(
            variants(product(columns, 7, F64), "avx2", "zen3")[0].steps[-1].program
        )
        assert (nest.registers.rows, nest.registers.columns) == size


@pytest.mark.parametrize(
    ("columns", "widths"), [(40, (24, 16)), (72, (24, 0)), (65, (24, 17)), (32, (16, 0))]
)
def test_two_widths_cover_the_columns(columns: int, widths: tuple[int, int]) -> None:
    """With AVX2, whole panels of three vectors leave fewer or better panels than those of two."""
    graph = product(columns, 7)
    nest = ProductNest.of(variants(graph, "avx2", "zen3")[0].steps[-1].program)
    assert (nest.registers.columns, nest.registers.tail) == widths
    check(graph, [{"m": m} for m in (0, 1, 3, 4, 5, 13)], length=7, levels=("avx2",))


def strided(space: Space, channels: int, given: int) -> Node:
    """A convolution of every second pixel of every second line."""
    height, width = space.dimensions("h w")
    x = space.input("x", F32, space.dimension("n"), constant(channels), height, width)
    sizes = tuple(ceil_div(size, 2) for size in (height, width))
    made = Convolve((2, 2), (1, 1), (1, 1), (constant(0),) * 2, sizes, 1)
    return node(made, x, fixed(data(F32, (given, channels, 1, 1), 3)))


def test_several_lines_are_picked_at_a_time() -> None:
    space = Space()
    graph = space.graph(strided(space, 5, 70))
    found = variants(graph, "avx512", "zen5")
    steps = next(v.steps for v in found if v.name.endswith("channels last"))
    assert len(steps) == 2
    sizes = {"n": 3, "h": 69, "w": 9}
    tasks = steps[0].program.grid[-1][1].evaluate(sizes)
    assert tasks == 5  # of 35 lines: a sixteenth of all is seven
    cases = [sizes, *({"n": n, "h": h, "w": w} for n, h, w in ((0, 3, 3), (1, 1, 1), (4, 67, 31)))]
    check(graph, cases, length=5)


def test_rows_of_any_length_are_turned_while_others_are_asked_for() -> None:
    space = Space()
    m, n = space.dimensions("m n")
    x = space.input("x", F32, m, n)
    graph = space.graph(node(Transpose((1, 0)), x))
    cases = [{"m": m, "n": n} for m, n in ((0, 5), (33, 17), (131, 49), (64, 64), (65, 131))]
    check(graph, cases, levels=NARROW)


THIN_SIZES = (
    (100, 3),
    (3, 100),
    (64, 2),
    (2, 65),
    (4, 67),
    (129, 4),
    (15, 3),
    (3, 16),
    (5, 33),
    (47, 6),
    (7, 16),
    (17, 7),
    (6, 15),
    (8, 31),
    (17, 3),
    (2, 3),
    (2, 2),
    (9, 2),
    (4, 5),
    (3, 8),
    (3, 1),
    (0, 3),
)


@pytest.mark.parametrize(
    "dtype", mostly_slow([F32, F64, DType.FLOAT16, DType.INT8], "float32", "int8")
)
@pytest.mark.parametrize("columns", [0, 1])
def test_two_or_three_rows_or_columns_are_turned(dtype: DType, columns: int) -> None:
    """As whole vectors where they lie side by side, or else (``columns`` left out) one by one."""
    space = Space()
    m, n = space.dimensions("m n")
    x = space.input("x", dtype, m, n + columns)
    if columns:
        x = node(Slice((constant(0), constant(1)), (m, n), (constant(1), constant(1))), x)
    graph = space.graph(node(Transpose((1, 0)), x))
    sizes = [*THIN_SIZES, (5400, 3), (3, 1500)]
    check(graph, [{"m": m, "n": n} for m, n in sizes], levels=NARROW)


@pytest.mark.parametrize(("level", "lanes"), [("x86-64", 4), ("avx2", 8), ("avx512", 16)])
def test_thin_blocks_are_stored_in_whole_vectors(level: str, lanes: int) -> None:
    """Three columns out of three vectors, or three rows into them, take two shuffles for each."""
    module = KernelModule("transpositions")
    transpose_function(module, LEVELS[level], F32, along_target=False, words=False)
    (shared,) = module.shared.values()
    blocks = str(shared_module(shared)).split("loop.done")

    def of(count: int) -> int:
        stores, shuffles = count, count * (count - 1)
        kinds = [(b.count(f"store <{lanes} x"), b.count("shufflevector")) for b in blocks]
        return kinds.count((stores, shuffles))

    assert of(3) == 2
    assert of(7) == (2 if lanes > 4 else 0), "where instructions put elements anywhere"


@pytest.mark.parametrize(("depth", "lanes", "asked"), [(7, 8, 10), (20, 16, 9), (None, 16, 10)])
def test_dots_ask_for_the_rows_after_short_ones(depth: int | None, lanes: int, asked: int) -> None:
    """Rows shorter than a vector are read under a mask alone, where nothing else asks ahead."""
    module = ir.Module()
    kind = ir.FunctionType(ir.FloatType(), [ir.PointerType(), ir.PointerType(), ir.IntType(64)])
    function = ir.Function(module, kind, "sums")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    left, right, steps = function.args
    made = DotProducts(builder, LEVELS["avx512"], F32, [left, right], [(0, 1)], depth)
    builder.ret(made.sums(steps)[0])
    text = str(function)
    assert f"<{lanes} x float>" in text and f"<{2 * lanes} x float>" not in text
    assert len(re.findall(r"call void @\S*llvm.prefetch", text)) == asked


def test_squares_ask_for_rows_of_the_next_band() -> None:
    module = KernelModule("transpositions")
    transpose_function(module, LEVELS["avx2"], F32, along_target=False, words=False)
    (shared,) = module.shared.values()
    text = str(shared_module(shared))
    asked = re.findall(r"call void @\S*llvm.prefetch\S*\(.*i32 2, i32 1\)", text)
    assert len(asked) == 8 + 4  # for each row of a square, of which there are two sizes


@pytest.mark.parametrize(
    ("level", "dtype", "lanes"),
    [("avx2", DType.INT8, 32), ("avx512", DType.INT8, 64), ("avx512", DType.FLOAT16, 32)],
)
def test_narrow_squares_store_whole_registers_of_pieces(
    level: str, dtype: DType, lanes: int
) -> None:
    """Every stored register takes as many steps as a piece of it has binary digits."""
    module = KernelModule("transpositions")
    transpose_function(module, LEVELS[level], dtype, along_target=False, words=False)
    (shared,) = module.shared.values()
    pieces, turns = lanes * dtype.bytes // 16, 16 // dtype.bytes
    shuffles = turns * (pieces - 1 + turns.bit_length() - 1)
    blocks = str(shared_module(shared)).split("loop.done")
    found = [
        b for b in blocks
        if b.count(f"store <{lanes} x") == turns and b.count("shufflevector") == shuffles
    ]  # fmt: skip
    assert len(found) == 1


@pytest.mark.parametrize("along_target", [False, True])
def test_small_squares_of_bytes_fill_registers(along_target: bool) -> None:
    """Two squares of eight, beside or below each other, make eight registers of their columns."""
    module = KernelModule("transpositions")
    transpose_function(module, LEVELS["avx2"], DType.UINT8, along_target, words=False)
    (shared,) = module.shared.values()
    blocks = str(shared_module(shared)).split("br ")
    tall = [b for b in blocks if b.count("store <16 x") == 8 and b.count("load <8 x") == 16]
    wide = [b for b in blocks if b.count("store <8 x") == 16 and b.count("load <16 x") == 8]
    assert len(tall) == len(wide) == 2, "of one band, and of several"


@pytest.mark.parametrize("dtype", [DType.UINT8, DType.INT16])
def test_pieces_of_every_shape_are_right(dtype: DType) -> None:
    space = Space()
    x = space.input("x", dtype, space.dimension("a"), space.dimension("b"))
    graph = space.graph(node(Transpose((1, 0)), x))
    sides = (0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 25, 67)
    check(graph, [{"a": a, "b": b} for a in sides for b in sides], levels=("x86-64", "avx2"))
