"""What kernels become as text, without Triton: positions, launches, arguments, a whole kernel."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.gpu_graphs import dense_gelu, every_kind, softmax_of_rows
from support.gpu_kit import UNITS, written
from support.graph_kit import F32, Space, apply
from tilewright.backend.gpu.functions import HELPERS
from tilewright.backend.gpu.generate import triton_kernels
from tilewright.backend.gpu.indices import Indices
from tilewright.backend.gpu.kernel import TileSize
from tilewright.backend.gpu.writer import Term, Writer
from tilewright.plan.greedy import plan_greedily
from tilewright.shape import (
    Expr,
    Scope,
    ceil_div,
    constant,
    less,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    select,
)
from tilewright.tile.lower import lower_kernel
from tilewright.tile.products.frame import RegisterTile
from tilewright.tile.values.lowering import Lowering

# ---------------------------------------------------------------- positions


class Integer:
    """An integer whose quotients are rounded towards 0, as Triton's are."""

    def __init__(self, value: Any) -> None:
        self.value = int(value.value if isinstance(value, Integer) else value)

    def __floordiv__(self, other: Any) -> Integer:
        divisor = int(Integer(other).value)
        quotient = abs(self.value) // abs(divisor)
        return Integer(quotient if (self.value < 0) == (divisor < 0) else -quotient)

    def __mod__(self, other: Any) -> Integer:
        return self - (self // other) * other

    def __rfloordiv__(self, other: Any) -> Integer:
        return Integer(other) // self

    def __rmod__(self, other: Any) -> Integer:
        return Integer(other) % self

    def __add__(self, other: Any) -> Integer:
        return Integer(self.value + Integer(other).value)

    def __sub__(self, other: Any) -> Integer:
        return Integer(self.value - Integer(other).value)

    def __mul__(self, other: Any) -> Integer:
        return Integer(self.value * Integer(other).value)

    def __radd__(self, other: Any) -> Integer:
        return self + other

    def __rsub__(self, other: Any) -> Integer:
        return Integer(other) - self

    def __rmul__(self, other: Any) -> Integer:
        return self * other

    def __neg__(self) -> Integer:
        return Integer(-self.value)

    def __eq__(self, other: object) -> Any:
        return Integer(self.value == Integer(other).value)

    def __hash__(self) -> int:
        return hash(self.value)

    def __ne__(self, other: object) -> Any:
        return Integer(self.value != Integer(other).value)

    def __lt__(self, other: Any) -> Integer:
        return Integer(self.value < Integer(other).value)

    def __le__(self, other: Any) -> Integer:
        return Integer(self.value <= Integer(other).value)

    def __gt__(self, other: Any) -> Integer:
        return Integer(other) < self

    def __ge__(self, other: Any) -> Integer:
        return Integer(other) <= self

    def __and__(self, other: Any) -> Integer:
        return Integer(self.value & Integer(other).value)

    def __or__(self, other: Any) -> Integer:
        return Integer(self.value | Integer(other).value)

    def to(self, dtype: str) -> Integer:
        assert dtype == "int64"
        return self


class Language:
    """The part of Triton's language that positions are written in."""

    int64 = "int64"

    @staticmethod
    def where(condition: Any, one: Any, other: Any) -> Integer:
        return Integer(one if Integer(condition).value else other)

    @staticmethod
    def zeros(shape: tuple[int, ...], dtype: str) -> Integer:
        return Integer(0)

    @staticmethod
    def maximum(one: Any, other: Any) -> Integer:
        return Integer(max(Integer(one).value, Integer(other).value))

    @staticmethod
    def minimum(one: Any, other: Any) -> Integer:
        return Integer(min(Integer(one).value, Integer(other).value))


def joined(parts: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    """Expressions of expressions; divisors are sizes that are not 0."""
    pairs = st.tuples(parts, parts)
    divided = st.tuples(parts, st.sampled_from([constant(3), SCOPE_SIZES[0], SCOPE_SIZES[1]]))
    return st.one_of(
        pairs.map(lambda p: p[0] + p[1]),
        pairs.map(lambda p: p[0] - 2 * p[1]),
        pairs.map(lambda p: p[0] * p[1]),
        pairs.map(lambda p: minimum(p[0], p[1])),
        pairs.map(lambda p: maximum(p[0], p[1])),
        pairs.map(lambda p: logical_and(less(p[0], p[1]), logical_not(less(p[1], 5)))),
        pairs.map(lambda p: logical_or(less(p[0], p[1]), less(p[1], -5))),
        divided.map(lambda p: p[0] // p[1]),
        divided.map(lambda p: p[0] % p[1]),
        divided.map(lambda p: ceil_div(p[0], p[1])),
        st.tuples(pairs, pairs).map(lambda p: select(less(*p[0]), *p[1])),
    )


SCOPE = Scope()
SCOPE_SIZES = [SCOPE.declare("a", 1, 9), SCOPE.declare("b.c", 0, 9), SCOPE.declare("_i", 0, 9)]
EXPRESSIONS = st.recursive(st.sampled_from([*SCOPE_SIZES, constant(-4)]), joined, max_leaves=5)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(EXPRESSIONS, st.integers(1, 9), st.integers(1, 9), st.integers(0, 9), st.booleans())
def test_positions_have_the_value_of_their_expression(
    e: Expr, a: int, b: int, i: int, in_tile: bool
) -> None:
    """Divisors that may be 0 are not here; what is negative is divided as it should."""
    writer = writer_in(SCOPE)
    term = Indices(writer, {"_i": Term("i", frozenset((0,)))}, in_tile).integer(e)
    names: dict[str, Any] = {"tl": Language, "i": Integer(i)}
    sizes = {"a": a, "b.c": b}
    names |= {writer.sizes[s]: Integer(v) for s, v in sizes.items() if s in writer.sizes}
    for name, source in HELPERS.items():
        if name.startswith("floor"):
            exec(source.replace("@triton.jit", ""), names)
    assert Integer(eval(term.text, names)).value == e.evaluate({**sizes, "_i": i}), term.text
    assert ("_i" in e.free_symbols) == (term.axes == {0})


def writer_in(scope: Scope) -> Writer:
    """A writer of any kernel, with facts."""
    space = Space()
    x = space.input("x", F32, space.dimension("n"))
    (kernel,) = plan_greedily(space.graph(apply("negate", x))).kernels
    return Writer(Lowering(kernel, scope))


def test_sizes_of_like_names_are_different_arguments() -> None:
    writer = writer_in(Scope())
    assert [writer.size(name) for name in ("a.b", "a_b", "a.b")] == [
        "size_a_b",
        "size_a_b_1",
        "size_a_b",
    ]


# ---------------------------------------------------------------- launches


@given(st.integers(0, 10_000), st.sampled_from([1, 16]), st.booleans())
def test_tiles_are_powers_of_two_that_hold_the_axis_or_are_as_large_as_may_be(
    size: int, least: int, whole: bool
) -> None:
    made = TileSize("T", Scope().declare("n"), 1024, least, whole).at({"n": size}, {})
    if whole and size > 1024:
        assert made is None
        return
    assert made is not None and made & (made - 1) == 0 and least <= made <= 1024
    assert made >= min(size, 1024) and (made == least or made < 2 * size)


def test_tiles_beside_others_share_an_area() -> None:
    tile = TileSize("T", Scope().declare("n"), 64, 16, beside=("U", 4096))
    assert [tile.at({"n": 99}, {"U": other}) for other in (1, 64, 128, 512)] == [64, 64, 32, 16]


def test_there_is_no_program_for_nothing() -> None:
    ((kernel,),) = written(dense_gelu(Space()))
    launch = kernel.launch({"b": 0, "m": 3, "n": 5, "k": 7}, UNITS)
    assert launch is not None and launch.tasks == 0
    launch = kernel.launch({"b": 2, "m": 65, "n": 65, "k": 0}, 1)
    assert launch is not None and launch.tasks == 3 * 2


def test_tiles_are_halved_until_every_multiprocessor_has_one() -> None:
    ((kernel,),) = written(dense_gelu(Space()))
    sizes = {"b": 1, "m": 128, "n": 256, "k": 32}
    found = [kernel.launch(sizes, units) for units in (1, 9, 17, 132, 10_000)]
    made = [launch for launch in found if launch is not None]
    assert [launch.tasks for launch in made] == [8, 16, 32, 128 * 256 // 256, 128 * 256 // 256]
    assert [(made[i].constants["ROWS"], made[i].constants["COLUMNS"]) for i in (0, 2, 4)] == [
        (64, 64), (32, 32), (16, 16),
    ]  # fmt: skip


def test_large_tiles_have_more_warps() -> None:
    short, long, tiled = written(softmax_of_rows(Space()))[0]
    for columns, wanted in ((3, 4), (1024, 4), (4097, None), (16384, None)):
        launch = short.launch({"b": 4096, "c": columns}, UNITS)
        assert (launch and launch.warps) == wanted
    for columns, wanted in ((4097, 16), (16384, 16), (16385, None)):
        launch = long.launch({"b": 4096, "c": columns}, UNITS)
        assert (launch and launch.warps) == wanted
    launch = tiled.launch({"b": 4096, "c": 1 << 20}, UNITS)
    assert launch is not None and launch.warps == 16


def test_rows_that_are_apart_by_multiples_of_what_is_loaded_at_once() -> None:
    ((kernel,),) = written(dense_gelu(Space()))
    for n, k in ((48, 31), (33, 64), (1, 1), (64, 0)):
        launch = kernel.launch({"b": 16, "m": 16, "n": n, "k": k}, UNITS)
        assert launch is not None
        wanted = ["b0", "size_k"] if k % 16 == 0 else []
        wanted += ["b1", "b2", "o0", "size_n"] if n % 16 == 0 else []
        assert sorted(launch.multiples) == sorted(wanted)


# ---------------------------------------------------------------- text


@pytest.mark.parametrize("name", every_kind())
def test_the_processor_lowers_the_same_kernel(name: str) -> None:
    """Nothing above the backend knows for which machine a kernel is."""
    graph, sizes = every_kind()[name]
    (kernel,) = plan_greedily(graph).kernels
    assert lower_kernel(
        kernel, graph.scope, RegisterTile(6, 16, narrow_rows=4, room=384 << 10)
    ).variants
    first, again = (triton_kernels(kernel, graph.scope) for _ in range(2))
    assert first == again
    assert all(made.launch(sizes, UNITS) is not None for made in first[:1])
    assert {node for made in first for _, node in made.reads} == set(kernel.reads)


def test_the_text_of_a_product_with_bias_and_gelu() -> None:
    ((kernel,),) = written(dense_gelu(Space()))
    assert kernel.signature == {
        **dict.fromkeys(("b0", "b1", "b2", "o0"), "*fp32"),
        **dict.fromkeys(("size_n", "size_b", "size_m", "size_k"), "i64"),
    }
    assert kernel.source == GOLDEN


GOLDEN = """\
import triton
import triton.language as tl


@triton.jit
def product(
    b0,
    b1,
    b2,
    o0,
    size_n,
    size_b,
    size_m,
    size_k,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    task = tl.program_id(0).to(tl.int64)
    n_tiles = tl.cdiv(size_n, COLUMNS)
    n_first = task % n_tiles * COLUMNS
    task = task // n_tiles
    m_tiles = tl.cdiv(size_b*size_m, ROWS)
    m_first = task % m_tiles * ROWS
    task = task // m_tiles
    m = (m_first + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    m_end = tl.minimum(size_b*size_m - m_first, ROWS).to(tl.int32)
    m_inside = tl.arange(0, ROWS)[:, None] < m_end
    n = (n_first + tl.arange(0, COLUMNS)).to(tl.int64)[None, :]
    n_end = tl.minimum(size_n - n_first, COLUMNS).to(tl.int32)
    n_inside = tl.arange(0, COLUMNS)[None, :] < n_end
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, size_k, DEPTH):
        k_left = (first + tl.arange(0, DEPTH)).to(tl.int64)[None, :]
        k_left_end = tl.minimum(size_k - first, DEPTH).to(tl.int32)
        k_left_inside = tl.arange(0, DEPTH)[None, :] < k_left_end
        v1 = tl.load(b0 + (m*size_k + k_left), mask=m_inside & k_left_inside, other=0.0)
        k_right = (first + tl.arange(0, DEPTH)).to(tl.int64)[:, None]
        k_right_end = tl.minimum(size_k - first, DEPTH).to(tl.int32)
        k_right_inside = tl.arange(0, DEPTH)[:, None] < k_right_end
        v2 = tl.load(b1 + (k_right*size_n + n), mask=k_right_inside & n_inside, other=0.0)
        sums = tl.dot(v1, v2, sums, input_precision="ieee", out_dtype=tl.float32)
    v3 = tl.load(b2 + n, mask=n_inside, other=0.0)
    v4 = sums + v3
    v5 = v4 * 0.5
    v6 = v4 * 0.7071067690849304
    v7 = tl.erf(v6)
    v8 = 1.0 + v7
    v9 = v5 * v8
    tl.store(o0 + (m*size_n + n), v9, mask=m_inside & n_inside)
"""
