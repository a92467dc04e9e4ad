"""Tasks that are whole rows: which programs have them, and that they compute the same."""

from __future__ import annotations

from functools import reduce

import pytest

from support.graph_kit import F32, Space, apply, check, spread
from tilewright.backend.cpu.whole_rows import with_whole_rows
from tilewright.ir.dtype import DType
from tilewright.ir.graph import node
from tilewright.ir.primitives import Transpose
from tilewright.ir.tile_parse import parse_program
from tilewright.ir.tile_print import print_program

ROWS = """\
buffer b0: float32
result o0: float32
work 1
grid _i1 < rows, _i2 < 3, _c4 < ceil_div(n, 4096)
  for _i3 in 4096*_c4 .. min(4096*_c4 + 4096, n) streamed if 5000 <= rows*n
    o0[3*_i1*n + _i2*n + _i3] = {}
"""
ELEMENT = "b0[_i1*n + _i3]"


def test_rows_of_one_block_have_no_number_of_a_block() -> None:
    made = with_whole_rows(parse_program(ROWS.format(ELEMENT)))
    assert made is not None
    is_whole, program = made
    text = print_program(program)
    assert "grid _i1 < rows, _i2 < 3\n" in text
    assert "for _i3 in 0 .. min(4096, n)\n" in text

    def whole(rows: int, n: int) -> int:
        return is_whole.evaluate({"rows": rows, "n": n})

    assert [whole(1, n) for n in (1, 4096, 4097)] == [1, 1, 0]
    assert [whole(rows, 50) for rows in (99, 100)] == [1, 0]


def test_others_are_left_alone() -> None:
    """Much is computed, there is no second axis, or rows differ in whether they are streamed."""
    much = reduce(lambda sum_, _: f"add({sum_}, {ELEMENT})", range(9), ELEMENT)
    usual = ROWS.format(ELEMENT)
    single = usual.replace("_i1 < rows, _i2 < 3, ", "").replace("3*_i1*n + _i2*n + ", "")
    for text in (
        ROWS.format(much),
        single.replace("_i1*n + ", ""),
        usual.replace("rows*n", "_i1"),
    ):
        assert with_whole_rows(parse_program(text)) is None


def test_every_row_is_computed_wherever_tasks_begin() -> None:
    """Grids of one to four axes, whose inner ones begin anywhere for the second of two threads."""
    space = Space()
    a, b, c, d = space.dimensions("a b c d")
    x, y = space.input("x", F32, a, c, d), space.input("y", F32, b, d)
    wide, tall = spread(x, (a, b, c, d), (0, 2, 3)), spread(y, (a, b, c, d), (1, 3))
    graph = space.graph(apply("add", wide, tall))
    sizes = [(0, 1, 1, 1), (1, 1, 1, 1), (2, 3, 5, 7), (7, 2, 1, 4097), (3, 1, 8, 16), (5, 6, 7, 0),
             (11, 3, 13, 33), (40, 30, 20, 15)]  # fmt: skip
    check(graph, [dict(zip("abcd", size, strict=True)) for size in sizes])


@pytest.mark.parametrize("dtype", [F32, DType.FLOAT64, DType.UINT8])
def test_rows_of_any_few_elements(dtype: DType) -> None:
    """Copied, and computed of another row, a number for each and where the elements lie."""
    space = Space()
    a, b, c = space.dimensions("a b c")
    shapes = {"x": (a, b, c), "y": (b, c), "z": (a,)}
    x, y, z = (space.input(name, dtype, *shape) for name, shape in shapes.items())
    turned = node(Transpose((1, 0, 2)), x)
    sums = apply("add", apply("add", x, spread(y, (a, b, c), (1, 2))), spread(z, (a, b, c), (0,)))
    for graph in (space.graph(turned), space.graph(sums)):
        check(graph, [{"a": 3, "b": 5, "c": n} for n in (0, 1, 2, 3, 4, 7, 8, 13, 16, 17, 31, 33)])
