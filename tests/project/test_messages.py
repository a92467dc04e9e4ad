"""Messages and hints are in one style: a capital letter or a name first, no full stop last."""

from __future__ import annotations

import pytest

from tilewright.support.errors import InputError, sentence


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
