"""The byte-code computes what `evaluate` does, for every operation."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import lists

from support.decoding import run
from support.generating import SYMBOLS, Tree, build, environments, trees
from tilewright.shape import constant, encode, encode_least, parse, symbol
from tilewright.shape.table import Operation
from tilewright.support.errors import DimensionError

# The package has a function of the same name.
encoding = importlib.import_module("tilewright.shape.encode")
SLOTS = {name: position for position, name in enumerate(SYMBOLS)}

NATIVE = Path(__file__).parents[2] / "src" / "native"


@settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(trees, environments)
def test_byte_code_has_the_value_of_the_expression(tree: Tree, environment: dict[str, int]):
    try:
        expression = build(tree)
        expected = expression.evaluate(environment)
    except DimensionError:
        return
    words = encode(expression, SLOTS)
    assert run(words, [environment[name] for name in SYMBOLS]) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("7", (0, 7)),
        ("0", (0, 0)),
        ("b", (1, 1)),
        ("a + b", (1, 0, 1, 1, 2)),
        ("a - b", (1, 0, 1, 1, 3)),
        ("b - a", (1, 1, 1, 0, 3)),
        ("3*a*b", (1, 0, 1, 1, 4, 0, 3, 4)),
        ("a//b", (1, 0, 1, 1, 5)),
        ("a % b", (1, 0, 1, 1, 6)),
        ("min(a, b, c)", (1, 0, 1, 1, 7, 1, 2, 7)),
        ("max(a, b)", (1, 0, 1, 1, 8)),
        ("a == b", (1, 0, 1, 1, 9)),
        ("a < b", (1, 0, 1, 1, 10)),
        ("a <= b", (1, 0, 1, 1, 11)),
        ("select(a < b, c, d)", (1, 0, 1, 1, 10, 1, 2, 1, 3, 12)),
        ("ceil_div(a, b)", (1, 0, 1, 1, 13)),
        ("logical_and(a <= b, b <= c)", (1, 0, 1, 1, 11, 1, 1, 1, 2, 11, 14)),
        ("logical_or(a <= b, b <= c)", (1, 0, 1, 1, 11, 1, 1, 1, 2, 11, 15)),
        ("logical_not(a == b)", (1, 0, 1, 1, 9, 16)),
        ("-a", (1, 0, 0, -1, 4)),
    ],
)
def test_words_of_each_operation(text: str, words: tuple[int, ...]):
    assert encode(parse(text), SLOTS) == words


def test_what_occurs_again_is_computed_once():
    words = encode(parse("a % 11*b + max(a % 11, c)"), SLOTS)
    assert words.count(6) == 1
    assert (words.count(17), words.count(18)) == (1, 1)
    assert run(words, [15, 2, 9, 0]) == 4 * 2 + 9


@pytest.mark.slow
@settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(lists(trees, min_size=1, max_size=5), environments)
def test_the_position_of_the_least(made: list[Tree], environment: dict[str, int]):
    try:
        expressions = [build(tree) for tree in made]
        values = [expression.evaluate(environment) for expression in expressions]
    except DimensionError:
        return
    words = encode_least(expressions, SLOTS)
    assert run(words, [environment[name] for name in SYMBOLS]) == values.index(min(values))


def test_constants_fit_64_bits_or_are_refused():
    for value in (2**63 - 1, -(2**63)):
        assert encode(constant(value), {}) == (0, value)
    for value in (2**63, -(2**63) - 1):
        with pytest.raises(DimensionError, match="64-bit"):
            encode(constant(value), {})


def test_a_symbol_without_a_slot_is_named():
    with pytest.raises(DimensionError, match='"n" has no slot'):
        encode(symbol("n") + 1, {"a": 0})


# What the native runtime calls the operations that Python calls otherwise.
NATIVE_NAMES = {
    "CONST": "Constant",
    "SUB": "Subtract",
    "MUL": "Multiply",
    "LESS_THAN": "Less",
    "FLOORDIV": "FloorDivide",
    "MOD": "Modulo",
    "CEILDIV": "CeilDivide",
}


@pytest.mark.skipif(not NATIVE.exists(), reason="there are no C++ sources beside a wheel")
def test_the_native_runtime_gives_every_word_the_same_number() -> None:
    """Both write the numbers by hand: the words are the format between them."""
    source = NATIVE / "expression.cpp"
    listed = re.search(r"enum Operation : std::int64_t \{(.*?)\};", source.read_text(), re.S)
    assert listed is not None
    names = [name.strip() for name in listed[1].split(",")]
    native = {name: number for number, name in enumerate(names)}
    assert native.pop("kOperationCount") == len(names) - 1
    others = ("CONST", "SUB", "MUL", "LESS_THAN", "KEEP", "RECALL")
    own = {operation.name: operation.value for operation in Operation}
    own |= {name: getattr(encoding, name) for name in others}
    camel = {name: name.title().replace("_", "") for name in own} | NATIVE_NAMES
    assert {f"k{camel[name]}": value for name, value in own.items()} == native
