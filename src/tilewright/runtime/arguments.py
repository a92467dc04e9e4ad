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
    names: Sequence[str], expected: str, args: Sequence[Any], named: Iterable[str]
) -> InputError | None:
    """What is wrong with the arguments by position and those ``named``; None if they fit.

    ``names`` are the model's inputs, ``expected`` is what they are for people.
    """
    by_name, given = list(named), len(args)
    unknown = [name for name in by_name if name not in names]
    twice = [name for name in names[:given] if name in by_name]
    missing = [name for name in names[given:] if name not in by_name]
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


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
