"""Every variant to compute a contraction, each taken for itself: exchanged roles, dots, split k."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.graph_kit import (
    F32,
    F64,
    Compiled,
    Space,
    apply,
    check,
    data,
    fixed,
    inputs_at,
    kinds,
    mostly_slow,
    scalar,
    spread,
)
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Contract, Transpose
from tilewright.runtime.artifact import ArtifactContents
from tilewright.runtime.model import CompiledModel
from tilewright.shape import constant
from tilewright.tile import lower
from tilewright.tile.products.dots import lower_dots
from tilewright.tile.products.frame import RegisterTile
from tilewright.tile.products.split_depth import LowerVariant, lower_plain, lower_split_depth
from tilewright.tile.products.swapped import lower_swapped
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import LoweredStep, Variant

pytestmark = pytest.mark.sampled(8)

Force = Callable[[LowerVariant], None]
Sizes = dict[str, int]


def sizes(*shapes: tuple[int, int, int]) -> list[Sizes]:
    return [{"m": m, "n": n, "k": k} for m, n, k in shapes]


EDGES = sizes((1, 1, 1), (0, 5, 3), (5, 0, 3), (5, 3, 0), (16, 6, 4), (17, 7, 5), (15, 5, 33),
              (67, 13, 31), (33, 97, 9))  # fmt: skip


@pytest.fixture
def force(monkeypatch: pytest.MonkeyPatch) -> Force:
    """Lets a test say which variant contractions are computed."""

    def take(variant: LowerVariant) -> None:
        def variants(
            kernel: Kernel, fresh: Callable[[], Lowering], tile: RegisterTile, *_: object
        ) -> tuple[Variant, ...]:
            steps = variant(kernel, fresh, tile)
            assert steps is not None, f"{kernel.label} cannot be computed in this way"
            return (Variant("forced", steps, constant(0)),)

        monkeypatch.setattr(lower, "contraction_variants", variants)

    return take


def depth(sizes: Sizes) -> int:
    return sizes["k"]


def matmul(left: Node, right: Node) -> Node:
    """[…, m, k] by […, k, n], all but the last two axes being the batch."""
    batch = tuple((a, a) for a in range(left.rank - 2))
    return node(Contract(batch, ((left.rank - 1, right.rank - 2),)), left, right)


# ---------------------------------------------------------------- roles exchanged


@pytest.mark.parametrize("left", mostly_slow(["mk", "km"], "mk"))
@pytest.mark.parametrize("right", mostly_slow(["kn", "nk"], "kn"))
def test_exchanged_roles_in_every_transposition(force: Force, left: str, right: str) -> None:
    force(lower_swapped)
    space = Space()
    named = dict(zip("mnk", space.dimensions("m n k"), strict=True))
    x = space.input("x", F32, *(named[a] for a in left))
    y = space.input("y", F32, *(named[a] for a in right))
    product = node(Contract((), ((left.index("k"), right.index("k")),)), x, y)
    check(space.graph(product), EDGES, length=depth)


@pytest.mark.slow
@pytest.mark.parametrize("m", mostly_slow([1, 16, 35, 131], "35"))
@pytest.mark.parametrize("dtype", mostly_slow([F32, F64], "float32"))
def test_exchanged_roles_with_a_packed_left_operand(force: Force, m: int, dtype: DType) -> None:
    force(lower_swapped)
    space = Space()
    (n,) = space.dimensions("n")
    x = space.input("x", dtype, constant(70), n)
    column = fixed(data(dtype, (m,), 5))
    product = matmul(fixed(data(dtype, (m, 70))), x)
    shifted = apply("add", product, spread(column, (constant(m), n), [0]))
    activated = apply("maximum", shifted, spread(scalar(0.0, dtype), shifted.shape))
    cases = [{"n": n} for n in (0, 1, 2, 7, 16, 33)]
    compiled = check(space.graph(activated), cases, length=70)
    assert kinds(compiled) == ["contraction"]


@pytest.mark.slow
def test_exchanged_roles_with_one_column_stored_in_vectors(force: Force) -> None:
    force(lower_swapped)
    space = Space()
    (m,) = space.dimensions("m")
    x = space.input("x", F32, m, constant(37))
    product = matmul(x, space.input("y", F32, constant(37), constant(1)))
    activated = apply("hyperbolic_tangent", product)
    check(space.graph(activated), [{"m": m} for m in (0, 1, 15, 16, 17, 83)], length=37, scale=30)


@pytest.mark.slow
def test_exchanged_roles_in_batches_with_residual_and_transposed_result(force: Force) -> None:
    force(lower_swapped)
    space = Space()
    b, m, n, k = space.dimensions("b m n k")
    x, y = space.input("x", F32, b, m, k), space.input("y", F32, b, k, n)
    residual, row = space.input("residual", F32, b, m, n), space.input("row", F32, n)
    total = apply("add", apply("add", matmul(x, y), residual), row)
    graph = space.graph(node(Transpose((0, 2, 1)), total), total)
    cases = [{"b": b, **s} for b, s in zip((3, 1, 2, 2, 0, 1, 5, 2), EDGES, strict=False)]
    check(graph, cases, length=depth)


# ---------------------------------------------------------------- dot products

DEPTHS = (0, 1, 7, 8, 33, 64, 131)


@pytest.mark.parametrize("n", mostly_slow([1, 2, 3, 4, 5, 6, 7, 13], "1", "3", "7"))
@pytest.mark.parametrize("dtype", mostly_slow([F32, F64], "float32"))
def test_dots_of_known_numbers_of_columns(force: Force, n: int, dtype: DType) -> None:
    force(lower_dots)
    space = Space()
    m, k = space.dimensions("m k")
    x, y = space.input("x", dtype, m, k), space.input("y", dtype, constant(n), k)
    product = node(Contract((), ((1, 1),)), x, y)
    row = space.input("row", dtype, constant(n))
    activated = apply("hyperbolic_tangent", apply("add", product, row))
    cases = [{"m": m, "k": k} for m, k in zip((1, 2, 0, 5, 70, 13, 3), DEPTHS, strict=True)]
    check(space.graph(activated), cases, length=depth, scale=40)


@pytest.mark.slow
def test_dots_of_any_sizes(force: Force) -> None:
    force(lower_dots)
    space = Space()
    m, n, k = space.dimensions("m n k")
    x, y = space.input("x", F32, m, k), space.input("y", F32, n, k)
    product = node(Contract((), ((1, 1),)), x, y)
    shifted = apply("add", product, space.input("row", F32, n))
    cases = [*EDGES, *sizes((1, 131, 64), (131, 1, 64), (2, 70, 9), (70, 3, 40))]
    check(space.graph(shifted), cases, length=depth)


@pytest.mark.parametrize("n", [1, 6])
def test_dots_with_a_transposed_constant(force: Force, n: int) -> None:
    force(lower_dots)
    space = Space()
    (m,) = space.dimensions("m")
    x = space.input("x", F32, m, constant(67))
    product = matmul(x, fixed(data(F32, (67, n))))
    shifted = apply("add", product, fixed(data(F32, (n,), 5)))
    activated = apply("maximum", shifted, spread(scalar(0.0), shifted.shape))
    compiled = check(space.graph(activated), [{"m": m} for m in (0, 1, 4, 70)], length=67)
    assert kinds(compiled) == ["contraction"]


@pytest.mark.parametrize("m", mostly_slow([1, 5], "1"))
def test_dots_with_few_rows_walk_the_columns(force: Force, m: int) -> None:
    force(lower_dots)
    space = Space()
    n, k = space.dimensions("n k")
    x, y = space.input("x", F32, constant(m), k), space.input("y", F32, n, k)
    product = node(Contract((), ((1, 1),)), x, y)
    residual = space.input("residual", F32, constant(m), n)
    cases = [{"n": n, "k": k} for n, k in zip((1, 2, 0, 5, 70, 13, 3), DEPTHS, strict=True)]
    check(space.graph(apply("add", product, residual)), cases, length=depth)


@pytest.mark.slow
def test_dots_in_batches_with_a_batch_of_constants(force: Force) -> None:
    force(lower_dots)
    space = Space()
    (m,) = space.dimensions("m")
    x = space.input("x", F32, constant(3), m, constant(21))
    product = matmul(x, fixed(data(F32, (3, 21, 2))))
    merged = node(Transpose((1, 0, 2)), product)
    check(space.graph(merged, product), [{"m": m} for m in (0, 1, 4, 70)], length=21)


@pytest.mark.slow
def test_dots_do_not_take_what_is_not_contiguous(force: Force) -> None:
    def refused(
        kernel: Kernel, fresh: Callable[[], Lowering], tile: RegisterTile
    ) -> tuple[LoweredStep, ...] | None:
        assert lower_dots(kernel, fresh, tile) is None
        return lower_swapped(kernel, fresh, tile)

    force(refused)
    space = Space()
    m, n, k = space.dimensions("m n k")
    product = matmul(space.input("x", F32, m, k), space.input("y", F32, k, n))
    check(space.graph(product), EDGES[:1], length=depth)


# ---------------------------------------------------------------- split depth

WHOLE = {"plain": lower_plain, "swapped": lower_swapped, "dots": lower_dots}
LONG = sizes((0, 3, 40), (5, 0, 9), (2, 3, 0), (1, 1, 1), (3, 2, 7), (6, 16, 63), (7, 17, 64),
             (5, 3, 65), (13, 5, 1031))  # fmt: skip


def in_parts(whole: LowerVariant) -> LowerVariant:
    def variant(
        kernel: Kernel, fresh: Callable[[], Lowering], tile: RegisterTile
    ) -> tuple[LoweredStep, ...] | None:
        return lower_split_depth(kernel, fresh, tile, whole)

    return variant


@pytest.mark.slow
@pytest.mark.parametrize("whole", WHOLE)
def test_split_depth_of_rows_by_rows(force: Force, whole: str) -> None:
    force(in_parts(WHOLE[whole]))
    space = Space()
    m, n, k = space.dimensions("m n k")
    x, y = space.input("x", F32, m, k), space.input("y", F32, n, k)
    product = node(Contract((), ((1, 1),)), x, y)
    shifted = apply("add", product, space.input("row", F32, n))
    check(space.graph(apply("hyperbolic_tangent", shifted)), LONG, length=depth, scale=40)


@pytest.mark.slow
@pytest.mark.parametrize("whole", mostly_slow(["plain", "swapped"], "plain"))
@pytest.mark.parametrize("dtype", mostly_slow([F32, F64, DType.INT32], "float32"))
def test_split_depth_of_operands_read_in_place(force: Force, whole: str, dtype: DType) -> None:
    force(in_parts(WHOLE[whole]))
    space = Space()
    b, m, n, k = space.dimensions("b m n k")
    x, y = space.input("x", dtype, b, m, k), space.input("y", dtype, b, k, n)
    cases = [{"b": b, **s} for b, s in zip((3, 1, 2, 2, 0, 1, 5, 2, 1), LONG, strict=True)]
    check(space.graph(matmul(x, y)), cases, length=depth)


@pytest.mark.slow
@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("k", mostly_slow([3, 64, 500, 9001], "500"))
def test_split_depth_with_a_packed_operand(force: Force, whole: str, k: int) -> None:
    force(in_parts(WHOLE[whole]))
    space = Space()
    (m,) = space.dimensions("m")
    constant_left = whole == "swapped"
    if constant_left:
        x = space.input("x", F32, constant(k), m)
        product = matmul(fixed(data(F32, (19, k))), x)
    else:
        x = space.input("x", F32, m, constant(k))
        product = matmul(x, fixed(data(F32, (k, 19))))
    residual = space.input("residual", F32, *product.shape)
    total = apply("maximum", apply("add", product, residual), spread(scalar(0.0), product.shape))
    compiled = check(space.graph(total), [{"m": m} for m in (0, 1, 6, 13)], length=k)
    assert kinds(compiled) == ["contraction"]


@pytest.mark.slow
@pytest.mark.parametrize("whole", WHOLE)
def test_split_depth_gives_the_same_bits_on_any_number_of_threads(force: Force, whole: str) -> None:
    force(in_parts(WHOLE[whole]))
    space = Space()
    m, n, k = space.dimensions("m n k")
    x, y = space.input("x", F32, m, k), space.input("y", F32, n, k)
    graph = space.graph(node(Contract((), ((1, 1),)), x, y))
    made = list(Compiled(graph).levels.values())[-1]
    level = made.image.level
    results = []
    inputs = inputs_at(graph, {"m": 7, "n": 5, "k": 60013})
    for threads in (1, 2):
        contents = ArtifactContents(
            {level: made.program}, {level: made.image}, {level: made.constants}
        )
        model = CompiledModel.from_contents(contents, level=level, num_threads=threads)
        results.append(model.run(inputs)["y0"].tobytes())
    assert results[0] == results[1]
