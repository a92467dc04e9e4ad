"""A condition on the dimensions of a call, with the sentence to raise where it fails.

May import `expr`. Start reading at :class:`Guard`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.shape.expr import Expr
from tilewright.support.errors import DimensionError

_PLACEHOLDER = re.compile(r"\{([^\W\d][\w.]*)\}")
_VALUE = r"[^{},]* = \{[^}]*\}"
_VALUES = re.compile(rf", where {_VALUE}(?: and {_VALUE})*(?=\.?\Z)")


@dataclass(frozen=True)
class Guard:
    """A condition that holds where it is not zero.

    `message` is a full sentence; `{name}` in it stands for the value of the symbol of that name.
    """

    condition: Expr
    message: str

    def render(self, environment: Mapping[str, int]) -> str:
        """The message with the values of the symbols in it."""
        return _PLACEHOLDER.sub(
            lambda match: str(environment.get(match[1], match[0])), self.message
        )

    def check(self, environment: Mapping[str, int]) -> None:
        """:class:`DimensionError` with the message where the condition fails."""
        if self.condition.evaluate(environment) == 0:
            raise DimensionError(self.render(environment))


def without_values(message: str) -> str:
    """A message as a sentence about the model, without the values that :func:`values_of` shows."""
    return _VALUES.sub("", message)


def values_of(names: Mapping[str, str] | Sequence[str]) -> str:
    """', where "a" = {a} and "b" = {b}', or nothing: the end of a sentence about symbols.

    A mapping says what each symbol is called in it.
    """
    if not names:
        return ""
    called = names if isinstance(names, Mapping) else {name: f'"{name}"' for name in names}
    return ", where " + " and ".join(f"{text} = {{{name}}}" for name, text in called.items())
