"""Which arguments of a call are missing, unknown or too many.

Imports ``support`` only. Start reading at :func:`refusal`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.support.errors import InputError
from tilewright.support.text import format_count


def refusal(
    names: Sequence[str], expected: str, given: int, named: Iterable[str]
) -> InputError | None:
    """What is wrong with so many arguments by position and those ``named``; None if they fit.

    ``names`` are the model's inputs, ``expected`` is what they are for people.
    """
    by_name = list(named)
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
    return InputError(problem, hint=f"Give the inputs ({expected})")


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
