"""Which arguments of a call are missing, unknown or too many.

Imports ``support`` only. Start reading at :func:`refusal`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tilewright.support.errors import InputError
from tilewright.support.text import format_count

# What to try where a dictionary of all inputs stands in the place of one.
BY_MAPPING = "Call model.run(inputs) or model(**inputs) with a dictionary of inputs"


def refusal(
    names: Sequence[str],
    expected: str,
    args: Sequence[Any],
    named: Iterable[str],
    fixed: Sequence[str],
) -> InputError | None:
    """What is wrong with the arguments by position and those ``named``; None if they fit.

    ``names`` are the model's inputs, ``expected`` is what they are for people. ``fixed`` names
    those of the ONNX model that became constants.
    """
    by_name, given = list(named), len(args)
    unknown = [name for name in by_name if name not in names]
    twice = [name for name in names[:given] if name in by_name]
    missing = [name for name in names[given:] if name not in by_name]
    became = [name for name in unknown if name in fixed]
    if became:
        return _is_constant(became[0])
    if unknown:
        problem = f"The model has no input {_quoted(unknown)}"
    elif given > len(names):
        problem = f"The model takes {format_count(len(names), 'input')}, not {given}"
    elif twice:
        problem = f"Input {_quoted(twice)} is given twice, by position and by name"
    elif missing:
        what, are = ("Inputs", "are") if len(missing) > 1 else ("Input", "is")
        problem = f"{what} {_quoted(missing)} {are} missing"
    else:
        return None
    if missing and any(isinstance(value, Mapping) for value in args):
        return InputError(problem, hint=BY_MAPPING)
    return InputError(problem, hint=f"Give the inputs ({expected})")


def _is_constant(name: str) -> InputError:
    """What is wrong with giving an input that has a value in the model or got one from options."""
    return InputError(
        f"Input '{name}' became a constant when the model was compiled",
        hint=f'Leave it out; or compile with constants={{"{name}": array}} (--constants on the '
        "command line) for another value; or, to give it in calls, compile without that option "
        "and without an initializer of this name in the ONNX model",
    )


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
