"""Messages and hints are in one style: a capital letter or a name first, no full stop last."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.repository import modules, tree
from tilewright.support import errors
from tilewright.support.errors import InputError, sentence
from tilewright.support.text import article, format_count


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("there is no such file.", "There is no such file"),
        ("the model's file is damaged", "The model's file is damaged"),
        ('"x" has 3 axes.', '"x" has 3 axes'),
        ("num_threads is 0", "num_threads is 0"),
        ("onnx.checker says no", "onnx.checker says no"),
        ("dims=(1, 2) is missing", "dims=(1, 2) is missing"),
        ("1 input is missing", "1 input is missing"),
        ("choose from a, b, …", "Choose from a, b, …"),
        ("and so on...", "And so on..."),
        ("", ""),
    ],
)
def test_every_message_begins_and_ends_alike(given: str, shown: str) -> None:
    assert sentence(given) == shown


def test_errors_put_their_message_and_hint_into_the_style() -> None:
    error = InputError("there is no input.", where="input x", hint="name one of a, b.")
    assert str(error) == "There is no input\n  where: input x\n  try: Name one of a, b"
    assert (error.message, error.hint) == ("There is no input", "Name one of a, b")


@pytest.mark.parametrize(
    ("noun", "shown"),
    [("int", "an int"), ("float", "a float"), ("object", "an object"), ("uint8", "a uint8")],
)
def test_nouns_have_their_article(noun: str, shown: str) -> None:
    assert article(noun) == shown


def test_counted_nouns_agree_with_their_number() -> None:
    assert [format_count(n, "axis", "axes") for n in (0, 1, 2)] == ["0 axes", "1 axis", "2 axes"]


# ---------------------------------------------------------------- all that the sources can say

ERRORS = {name for name in vars(errors) if name.endswith("Error")} | {"third_party"}
VERB = re.compile(
    r"(Add|Allow|Ask|Bind|Call|Cast|Check|Choose|Compile|Convert|Copy|Correct|Declare|Did|Divide|"
    r"Export|Give|Install|Leave|Lower|Make|Name|Pass|Put|Replace|Report|Set|Start|Test|Turn|Use|"
    r"Write|Load|Download|Unpack|Upgrade|Save|Run|Read|Create|Evaluate|Split|Register|Remove|Wait|"
    r"Free|Close|Open|Widen|Keep|Move|Build|Try|Unset|List|Mkdir|Pip)\b"
)


def beginnings(text: ast.expr) -> Iterator[str]:
    """With what a text can begin, as far as the source says it."""
    match text:
        case ast.Constant(value=str(value)):
            yield value
        case ast.JoinedStr(values=[first, *_]):
            yield from beginnings(first)
        case ast.BinOp(left=left):
            yield from beginnings(left)
        case ast.IfExp(body=body, orelse=otherwise):
            yield from beginnings(body)
            yield from beginnings(otherwise)


def messages_and_hints(module: Path) -> Iterator[tuple[int, str, bool]]:
    """Line, first words, and whether they are a hint."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "hint" for target in node.targets
        ):
            yield from ((node.lineno, text, True) for text in beginnings(node.value))
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in ERRORS and node.args:
            yield from ((node.lineno, text, False) for text in beginnings(node.args[0]))
        for keyword in node.keywords:
            if keyword.arg == "hint":
                yield from ((node.lineno, text, True) for text in beginnings(keyword.value))


def test_messages_begin_with_a_capital_letter_or_a_quoted_name() -> None:
    wrong = [
        f"{module}:{line}: {text}"
        for module in modules()
        for line, text, is_hint in messages_and_hints(module)
        if text and not is_hint and not re.match(r"[A-Z\"'0-9(]", sentence(text))
    ]
    assert wrong == [], "put the name into quotes"


@pytest.mark.slow
def test_hints_are_actions() -> None:
    wrong = [
        f"{module}:{line}: {text}"
        for module in modules()
        for line, text, is_hint in messages_and_hints(module)
        if is_hint and text and not VERB.match(sentence(text))
    ]
    assert wrong == [], "say what to do, beginning with a verb"
