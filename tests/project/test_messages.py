"""Messages and hints are in one style: a capital letter or a name first, no full stop last."""

from __future__ import annotations

import ast
import re

import pytest
from repository import modules, tree

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


# The first words of hints: what to do, in the imperative.
ACTIONS = """add allow ask bind call cast check choose compile convert copy correct create declare divide
did export evaluate give install leave list lower make mkdir name pass pip put register remove
replace report run save set split start state test turn unset upgrade use wait write download unpack
load match raise read pad free close open try switch widen keep move build fix""".split()


def test_hints_are_actions() -> None:
    found: list[str] = []
    for module in modules():
        for call in ast.walk(tree(module)):
            if not isinstance(call, ast.Call):
                continue
            for keyword in call.keywords:
                text = _beginning(keyword.value) if keyword.arg == "hint" else None
                first = re.match(r"[\w-]+", text.lower()) if text else None
                if first is not None and first[0] not in ACTIONS:
                    found.append(f"{module}:{call.lineno}: {text}")
    assert found == []


def _beginning(value: ast.expr) -> str | None:
    """The literal text that a hint begins with, if it does."""
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
            return text
        case _:
            return None


@pytest.mark.parametrize(
    ("noun", "shown"),
    [("int", "an int"), ("float", "a float"), ("object", "an object"), ("uint8", "a uint8")],
)
def test_nouns_have_their_article(noun: str, shown: str) -> None:
    assert article(noun) == shown


def test_counted_nouns_agree_with_their_number() -> None:
    assert [format_count(n, "axis", "axes") for n in (0, 1, 2)] == ["0 axes", "1 axis", "2 axes"]
