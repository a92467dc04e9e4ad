"""The text of a tile program is read back as the same program, and other text is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.tile_equality import difference
from tilewright.ir.dtype import DType
from tilewright.ir.listed_view import ListedView
from tilewright.ir.stage_axis import Role, StageAxis
from tilewright.ir.tile import (
    Accumulator,
    Apply,
    Check,
    CodeView,
    Convert,
    Finish,
    Guarded,
    IndexValue,
    Let,
    LetDistance,
    LetIndex,
    Literal,
    Load,
    Local,
    Loop,
    Product,
    Registers,
    RunTable,
    Stage,
    Statement,
    Store,
    Sums,
    TileBuffer,
    TileProgram,
    TransposeBlock,
    Value,
    View,
    neutral_element,
)
from tilewright.ir.tile_lexer import TileSyntaxError
from tilewright.ir.tile_parse import parse_program
from tilewright.ir.tile_print import print_program, print_tile
from tilewright.shape import Expr, ceil_div, constant, less_equal, maximum, minimum, symbol

F32, F64, I32, I64, BOOL = DType.FLOAT32, DType.FLOAT64, DType.INT32, DType.INT64, DType.BOOL
N, AT, ZERO, ONE = symbol("n"), symbol("_i"), constant(0), constant(1)
X, AT_X, OUT = TileBuffer("x", F32), TileBuffer("at", I64), TileBuffer("o", F32)
TABLE, BYTES = TileBuffer("t", I64), TileBuffer("u", DType.UINT8)
BLOCK = TileBuffer("s", F32, scratch=True, elements=16 * ceil_div(N, 16), fixed=True)
SUM = Local("_s", F32)


def program(*body: Statement, **others: Any) -> TileProgram:
    buffers = (X, AT_X, TABLE, BYTES, OUT)
    made = TileProgram(buffers, 1, (("_g", ceil_div(N, 16)),), body, (BLOCK,), (), ZERO)
    return replace(made, **others)


def loop(*body: Statement, **others: Any) -> Loop:
    return replace(Loop("_i", ZERO, N, body), **others)


def product(**others: Any) -> Product:
    """One that leaves its sums in scratch."""
    made = Product(
        F32, View(X, AT * 3, N, ONE), View(X, ZERO, 16 * N, constant(16), panel=16),
        (ZERO, minimum(N, 6)), (ONE, N), (AT, AT + 4), Sums(BLOCK, ZERO, constant(16), N - 1),
    )  # fmt: skip
    return replace(made, **others)


def codes(bits: int, zeros: TileBuffer | int) -> CodeView:
    """A right operand of few bits."""
    return CodeView(
        AT_X, 16 * N, ceil_div(N, 8), constant(16), 16, bits=bits, block=32, blocks=N,
        tail=3, scales=X, zeros=zeros, place=AT * N,
    )  # fmt: skip


def staged() -> Stage:
    """A product of blocks with all that may come with it."""
    runs = RunTable(X, AT, constant(4), TABLE, N, 3 * N, zeros=BLOCK, shifts=AT_X)
    stores = (Store(OUT, symbol("_m") * N + symbol("_n"), Local("accumulator", I32)),)
    finish = Finish(stores, Registers(6, 16, 3), less_equal(9, N), less_equal(11, N))
    inner = product(dtype=I32, left=runs, target=finish, narrow=DType.UINT8)
    other = replace(inner, target=replace(finish, registers=Registers(4, 8, None)))
    moved = TransposeBlock(X, AT, N, BLOCK, ONE, constant(16), minimum(N, 4), constant(5))
    first = less_equal(N, 7)
    axes = tuple(StageAxis(f"_{role.value}", N, constant(8), role, first) for role in Role)
    return Stage(axes, (moved,), (Stage(axes[1:], (), (inner, other)),), (loop(moved),))


SHARED = Load(X, AT)
VALUES: dict[str, Value] = {
    "numbers": Apply("add", (Literal(1.5, F32), Literal(-2.0, F32)), F32),
    "small and large": Apply("add", (Literal(1e-45, F32), Literal(-3.4e38, F32)), F32),
    "zeros": Apply("add", (Literal(-0.0, F64), Literal(0.0, F64)), F64),
    "no numbers": Apply("add", (Literal(float("nan"), F32), Literal(float("-inf"), F32)), F32),
    "infinite": Literal(float("inf"), F64),
    "integers": Apply("add", (Literal(-7, I64), Literal(7, I64)), I64),
    "other integers": Literal(1 << 63, DType.UINT64),
    "an integer as a float": Literal(0, F32),
    "truth": Apply("logical_or", (Literal(True, BOOL), Literal(False, BOOL)), BOOL),
    "truth as a number": Literal(True, I32),
    "an index": IndexValue(AT * 2 + 1),
    "an index of another type": IndexValue(less_equal(AT, N), BOOL),
    "a conversion": Convert(Convert(SHARED, DType.BFLOAT16), I32),
    "a comparison": Apply("less", (Load(X, AT), Load(X, AT + 1)), BOOL),
    "a choice": Apply("select", (Literal(True, BOOL), Load(X, AT), Load(X, AT + 1)), F32),
    "a multiplication with a sum": Apply("multiply_add", (SHARED, Literal(2.0, F32), SUM), F32),
    "words multiplied": Apply(
        "multiply_add_pairs", tuple(Literal(n, DType.INT32) for n in (65537, -3, 5)), DType.INT32
    ),
    "a result of another type": Apply("multiply_add", (SHARED, SHARED, SHARED), F64),
    "operands of several types": Apply("multiply", (SHARED, Literal(2.0, F64)), F64),
    "a guard": Guarded(less_equal(AT, N - 2), Load(X, AT + 1), Guarded(N, SHARED, SHARED)),
    "a neutral element": neutral_element("maximum", F32),
    "a neutral integer": neutral_element("minimum", I32),
    "a local that nothing binds": Local("_other", I64),
    "what is shared": Apply("multiply", (SHARED, SHARED), F32),
    "what is not": Apply("multiply", (Load(X, AT), Load(X, AT)), F32),
}
BINDING = loop(Let("_s", Literal(0.0, F32)), Let("_s", Literal(0.0, F64)), Let("_s", SUM))
STATEMENTS: dict[str, tuple[Statement, ...]] = {
    "a loop": (loop(Store(OUT, AT, SHARED)),),
    "an independent loop": (loop(independent=True),),
    "a masked loop": (loop(masked=True, begin=N - 5),),
    "a streamed loop": (loop(independent=True, masked=True, streamed=less_equal(9, N)),),
    "a loop that asks ahead": (loop(masked=True, ahead=4096),),
    "a streamed loop that asks ahead": (loop(streamed=less_equal(9, N), ahead=64),),
    "running values": (
        loop(
            Let("_v", SHARED),
            accumulators=(Accumulator("_s", "sum", SUM), Accumulator("_p", "product", SHARED)),
        ),
        Store(OUT, ZERO, SUM),
    ),
    "a name bound twice": (BINDING, Store(OUT, ZERO, SUM)),
    "positions": (
        LetIndex("_at", Load(AT_X, ZERO), N, 1),
        LetIndex("_in", IndexValue(N), N, None),
    ),
    "a distance": (LetDistance("_far", X, AT, DType.INT8, BLOCK),),
    "a check": (Check(Apply("is_nan", (SHARED,), BOOL), 0),),
    "a transposition": (TransposeBlock(X, ZERO, N, BLOCK, ONE, N, minimum(N, 4), N),),
    "a transposition of runs": (TransposeBlock(X, ZERO, N, BLOCK, ONE, N, N, N, run=N),),
    "a product": (product(), product(narrow=DType.BFLOAT16)),
    "a product with a table of rows": (
        product(right=ListedView(BLOCK, ZERO, ONE, ZERO, 16, shifts=TABLE)),
        product(right=ListedView(BLOCK, ZERO, ONE, ZERO, shifts=TABLE, line=N, pitch=N + 3)),
    ),
    "products by few bits": (product(right=codes(4, 8)), product(right=codes(8, BYTES))),
    "stages": (staged(), Stage((), (), (Check(Literal(True, BOOL), 0),))),
    "nothing": (),
}  # fmt: skip
PROGRAMS = {
    **{name: program(loop(Store(OUT, AT, value))) for name, value in VALUES.items()},
    **{name: program(*body) for name, body in STATEMENTS.items()},
    "no grid": program(grid=()),
    "several results": program(results=3),
    "no buffers": program(buffers=(), scratch=(), results=0),
    "messages": program(checks=('a "quoted"\nline', "Größe {0} of {1}"), work=3 * N + 1),
}
ALL = program(
    *(loop(Store(OUT, AT, value)) for value in VALUES.values()),
    *(statement for body in STATEMENTS.values() for statement in body),
    checks=("first", "second"),
    work=N * N,
    in_rounds=True,
)  # fmt: skip
PROGRAMS["everything at once"] = ALL


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_printed_is_read_back(name: str) -> None:
    made = PROGRAMS[name]
    text = print_program(made)
    assert difference(made, parse_program(text)) is None
    assert print_program(parse_program(text)) == text


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_identity_is_read_back_without_messages(name: str) -> None:
    made = PROGRAMS[name]
    assert difference(replace(made, checks=(), work=ZERO), parse_program(print_tile(made))) is None


# ---------------------------------------------------------------- nothing is left out


def objects(part: Any) -> Iterator[Any]:
    """All statements, values and what they are made of."""
    if isinstance(part, tuple):
        for inner in part:
            yield from objects(inner)
    elif is_dataclass(part) and not isinstance(part, Expr):
        yield part
        for field in fields(part):
            yield from objects(getattr(part, field.name))


def test_every_statement_and_value_is_read_back_with_each_of_its_fields() -> None:
    """What is added to tile programs has to be added here, too."""
    found = list(objects(ALL))
    kinds = {type(one) for one in found}
    assert kinds >= {*get_args(Statement), *get_args(Value)}
    usual: set[str] = set()
    for kind in kinds:
        for field in fields(kind):
            if field.default is not MISSING:
                of_kind = [one for one in found if type(one) is kind]
                if all(getattr(one, field.name) == field.default for one in of_kind):
                    usual.add(f"{kind.__name__}.{field.name}")
    assert not usual


def test_what_differs_prints_differently() -> None:
    """Code is shared by programs that print the same."""
    plain = program(loop(Store(OUT, AT, SHARED)))
    moving = replace(BLOCK, fixed=False)
    load = Load(OUT, ZERO)
    first, second = (
        program(Store(OUT, ZERO, load), Store(OUT, ONE, other))
        for other in (load, Load(OUT, ZERO))
    )  # fmt: skip
    index, truth = (
        program(loop(Store(OUT, AT, IndexValue(AT, dtype)))) for dtype in (I64, BOOL)
    )  # fmt: skip
    for left, right in (
        (plain, replace(plain, scratch=(moving,))),
        (plain, replace(plain, results=2)),
        (first, second),
        (index, truth),
    ):
        assert difference(left, right) is not None
        assert print_tile(left) != print_tile(right)


# ---------------------------------------------------------------- names


WORDS = [
    "if",
    "else",
    "by",
    "below",
    "row",
    "x",
    "of",
    "in",
    "streamed",
    "independent",
    "masked",
    "index",
    "check",
    "for",
    "stage",
    "load",
    "store",
    "product",
    "rows",
    "columns",
    "depth",
    "panel",
    "table",
    "zeros",
    "resumed",
    "finished",
    "work",
    "grid",
    "min",
    "select",
    "nan",
    "a..b",
]


@pytest.mark.parametrize("word", WORDS)
def test_a_dimension_may_be_called_as_a_word_of_the_grammar(word: str) -> None:
    size = symbol(word)
    block = TransposeBlock(X, size, size, BLOCK, size, size, size, size)
    guarded = Guarded(size, Load(X, size), IndexValue(size, F32))
    made = program(
        loop(Store(OUT, size, guarded), block, begin=size, end=size, streamed=size),
        product(rows=(size, size), columns=(size, size), depth=(size, size)),
        Loop(word, size, size, (LetIndex(word, IndexValue(size), size, 0),)),
        Stage((StageAxis(word, size, size, Role.REDUCTION),), (), ()),
        grid=((word, size + 1),),
        work=size,
    )
    assert difference(made, parse_program(print_program(made))) is None


def test_a_price_is_written_in_as_much_text_as_it_has_parts() -> None:
    def text_of(depth: int) -> str:
        price = N
        for _ in range(depth):  # twice as long at each step, written out
            price = maximum(price * price + 1, 3 * price + symbol("columns"))
        made = program(loop(), work=price)
        text = print_program(made)
        assert difference(made, parse_program(text)) is None
        assert parse_program(text).work is price
        return text

    shallow, deep, deeper = map(len, map(text_of, (2, 5, 8)))
    assert abs((deeper - deep) - (deep - shallow)) <= 60  # terms may change their order


def test_names_of_long_sizes_are_read() -> None:
    long = minimum(ceil_div(N, 1000), symbol("another_size"))
    made = program(loop(end=long), loop(end=16 * long), work=long)
    text = print_program(made)
    named = [line for line in text.splitlines() if line.startswith("$")]
    assert [line[:2] for line in named] == ["$2", "$1"]
    assert text.count("another_size") == 1
    assert difference(made, parse_program(text)) is None


# ---------------------------------------------------------------- what is no program

HEAD = "buffer x: float32\nresult o: float32\nscratch s: float32 of 16\n"
OPEN = "grid _g < n\n  "
WRONG = {
    "": (1, 1, "a line that begins with 'grid'"),
    "buffer x": (1, 9, "':'"),
    "buffer x: flaot32": (1, 11, "an element type"),
    "buffer x: float32\nbuffer x: float32": (2, 8, "another name than that of a buffer before"),
    "buffer x: float32, loose": (1, 18, "the end of the line"),
    "check 1: \"first\"\ngrid": (1, 7, "'0'"),
    "check 0: first\ngrid": (1, 10, "a text in quotes"),
    "check 0: \"\\q\"\ngrid": (1, 14, 'a text without the escapes of "\\q"'),
    "work n +\ngrid": (1, 6, "an index expression"),
    "$1 = $2\ngrid": (1, 6, "an index expression"),
    "grid _g n": (1, 9, "'<'"),
    "grid\ngrid": (2, 1, "the end of the program"),
    HEAD + "gird": (4, 1, "'grid'"),
    HEAD + OPEN + "o[0 = 1.0": (5, 7, "']'"),
    HEAD + OPEN + "o[0] = y[0]": (5, 10, "the name of a buffer"),
    HEAD + OPEN + "o[0] = add(1.0)": (5, 17, "the end of 2 operands"),
    HEAD + OPEN + "o[0] = sum(1.0)": (5, 10, "the name of a scalar function"),
    HEAD + OPEN + "o[0] = add.real(1.0, 1.0)": (5, 10, "an element type behind 'add'"),
    HEAD + OPEN + "o[0] = add(1.0, 1)": (
        5, 20, "operands of a type that the function takes, or the type of its result",
    ),
    HEAD + OPEN + "o[0] = _v": (
        5, 10, "the name of a value that is bound before, or one with its type",
    ),
    HEAD + OPEN + "o[0] = %0": (5, 10, "the name of a value that stands before"),
    HEAD + OPEN + "o[0] = add(%0:x[0], %0:x[0])": (5, 23, "another name"),
    HEAD + OPEN + "o[0] = (x[0] if n)": (5, 20, "'else'"),
    HEAD + OPEN + "o[0] = identity:average": (5, 19, "a kind of reduction"),
    HEAD + OPEN + "o[0] = ]": (5, 10, "a value"),
    HEAD + OPEN + "o[0] = 1.0 2.0": (5, 14, "the end of the line"),
    HEAD + OPEN + "x[0], row 1 = x[0]": (5, 17, "'transposed'"),
    HEAD + OPEN + "check 1.5 if x[0]": (5, 9, "an integer"),
    HEAD + OPEN + "while _i in 0 .. n": (5, 3, "a statement"),
    HEAD + OPEN + "for _i in 0 . n": (5, 15, "'..'"),
    HEAD + OPEN + "for _i in 0 .. n\n     o[0] = 1.0": (6, 6, "a line that stands 1 to the left"),
    HEAD + OPEN + "for _i in 0 .. n\n    _s = sum of 1.0\n    o[0] = 1.0": (
        7, 6, "'='",
    ),
    HEAD + OPEN + "stage serial _m < n by 4": (5, 9, "one of parallel, reduction"),
    HEAD + OPEN + "product float32 for rows 0 .. 1, columns 0 .. 1, depth 0 .. 1": (
        5, 64, "a line that begins with 'left'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_program_is_refused_with_its_place(text: str) -> None:
    line, column, expected = WRONG[text]
    with pytest.raises(TileSyntaxError) as caught:
        parse_program(text)
    error = caught.value
    assert (error.line, error.column, error.expected) == (line, column, expected)
    assert error.where == f"line {line}, column {column}"
    assert expected in str(error)


PRODUCT = """grid
  product float32 for rows 0 .. 1, columns 0 .. 1, depth 0 .. 1
    left x[0], row 1, depth 1
    right x[0], row 1, depth 1
"""
REGISTERS = "    in registers of 6 x 16\n    finished by\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PRODUCT, "a line that begins with 'in'"),
        (PRODUCT.replace("right x[0], row 1, depth 1", "right x[0] in runs of 1, table x, row 1")
         + REGISTERS, "a right operand that is no table of runs"),
        (PRODUCT + REGISTERS + "      o[0], row 1 = transposed x[0], row 1: 1 x 1",
         "a store of an element, not a transposition"),
    ],
)  # fmt: skip
def test_parts_of_products_that_do_not_belong_there(text: str, expected: str) -> None:
    with pytest.raises(TileSyntaxError) as caught:
        parse_program(HEAD + text)
    assert caught.value.expected == expected


def test_lines_without_text_and_a_common_margin_do_not_matter() -> None:
    text = print_program(ALL)
    moved = "\n\n".join(f"      {line}" for line in text.splitlines())
    assert difference(ALL, parse_program(moved)) is None


TEXT = print_program(ALL)
PIECES = [
    "",
    " ",
    "  ",
    "\n",
    "(",
    ")",
    "[",
    ":",
    "%0",
    "$1",
    "-1",
    "n",
    "float32",
    "if",
    "of",
    '"',
]


@given(st.integers(0, len(TEXT)), st.integers(0, 9), st.sampled_from(PIECES))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_damaged_text_is_a_program_or_refused(place: int, dropped: int, piece: str) -> None:
    """It never ends in any other error."""
    damaged = TEXT[:place] + piece + TEXT[place + dropped :]
    try:
        made = parse_program(damaged)
    except TileSyntaxError as error:
        assert 1 <= error.line <= damaged.count("\n") + 1
    else:
        assert difference(made, parse_program(print_program(made))) is None
