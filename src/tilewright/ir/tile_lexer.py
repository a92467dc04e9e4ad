"""The text of tile programs as lines with a depth, and each line as tokens.

What belongs to a line stands deeper than it. A :class:`Cursor` reads one line from left to right
and says where it stands when something else is there than what has to be. Start with
:func:`source_lines`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from tilewright.ir.dtype import DType
from tilewright.shape import Expr
from tilewright.shape.parsing import parse_prefix
from tilewright.support.errors import DimensionError, InputError

_NAME = r"[^\W\d][\w.]*"
_TOKEN = re.compile(
    r"\s*(?:"
    r"(?P<reference>[%$][0-9]+)|"
    r"(?P<number>[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?)|"
    rf"(?P<name>{_NAME})|"
    r'(?P<string>"(?:[^"\\]|\\.)*")|'
    r"(?P<sign>\.\.|[-<=:,()\[\]])|"
    r"(?P<other>\S))"
)
_LONGEST = 60  # characters of a line that a message quotes


class TileSyntaxError(InputError):
    """A text is no tile program: ``expected`` belongs at a place of a line, both counted from 1."""

    def __init__(self, line: int, column: int, expected: str, found: str) -> None:
        self.line, self.column, self.expected = line, column, expected
        there = f"{found!r} stands" if found else "the line ends"
        super().__init__(
            f"The tile program cannot be read: {expected} belongs where {there}",
            where=f"line {line}, column {column}",
            hint="Write it as a dump does; the page on schedules has the grammar",
        )


@dataclass(frozen=True)
class SourceLine:
    """A line that is not empty: its number from 1 on, how far it stands to the right, its text."""

    number: int
    depth: int
    text: str


def source_lines(text: str) -> list[SourceLine]:
    """The lines of a text, without those that are empty; the first one has the depth 0."""
    lines = [
        SourceLine(number, len(line) - len(line.lstrip(" ")), line.rstrip())
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip()
    ]
    margin = lines[0].depth if lines else 0
    return [SourceLine(line.number, line.depth - margin, line.text) for line in lines]


class Cursor:
    """Reads a line; ``names`` are the expressions that $1, $2, … stand for."""

    def __init__(self, line: SourceLine, names: Mapping[str, Expr]) -> None:
        self.line = line
        self.names = names
        self._place = 0

    def _match(self) -> re.Match[str] | None:
        return _TOKEN.match(self.line.text, self._place)

    def peek(self) -> str:
        """The next token, or nothing at the end of the line."""
        found = self._match()
        return "" if found is None else found[found.lastgroup or 0]

    def ahead(self, count: int) -> list[str]:
        """The next tokens, empty ones behind the end of the line."""
        place, tokens = self._place, list[str]()
        for _ in range(count):
            tokens.append(self.peek())
            self._skip()
        self._place = place
        return tokens

    def _skip(self) -> None:
        found = self._match()
        if found is not None:
            self._place = found.end()

    def fail(self, expected: str) -> NoReturn:
        """Say that something else belongs here."""
        text = self.line.text
        rest = text[self._place :]
        column = len(text) - len(rest.lstrip()) + 1
        raise TileSyntaxError(self.line.number, column, expected, rest.strip()[:_LONGEST])

    def take(self, *tokens: str) -> bool:
        """Go over these tokens if they are what comes next."""
        if self.ahead(len(tokens)) != list(tokens):
            return False
        for _ in tokens:
            self._skip()
        return True

    def expect(self, *tokens: str) -> None:
        """Go over these tokens."""
        for token in tokens:
            if not self.take(token):
                self.fail(repr(token))

    def _kind(self, kind: str, expected: str) -> str:
        found = self._match()
        if found is None or found.lastgroup != kind:
            self.fail(expected)
        self._place = found.end()
        return found[kind]

    def is_a(self, kind: str) -> bool:
        """Whether the next token is a "name", a "number", a "string" or a "reference"."""
        found = self._match()
        return found is not None and found.lastgroup == kind

    def name(self, expected: str = "a name") -> str:
        """A name."""
        return self._kind("name", expected)

    def number(self) -> str:
        """A number without a sign, as it is written."""
        return self._kind("number", "a number")

    def integer(self) -> int:
        """An integer, perhaps with a sign."""
        sign = -1 if self.take("-") else 1
        if not self.peek().isdecimal():
            self.fail("an integer")
        return sign * int(self.number())

    def string(self) -> str:
        """A text in quotes, with them."""
        return self._kind("string", "a text in quotes")

    def reference(self, sign: str, expected: str) -> str:
        """A name such as %1 or $1."""
        if not self.peek().startswith(sign):
            self.fail(expected)
        return self._kind("reference", expected)

    def dtype(self) -> DType:
        """The name of an element type."""
        try:
            found = DType(self.peek())
        except ValueError:
            self.fail("an element type")
        self._skip()
        return found

    def expression(self) -> Expr:
        """An index expression."""
        try:
            made, self._place = parse_prefix(self.line.text, self._place, self.names)
        except DimensionError:
            self.fail("an index expression")
        return made

    def end(self) -> None:
        """The end of the line."""
        if self.peek():
            self.fail("the end of the line")


__all__ = ["Cursor", "SourceLine", "TileSyntaxError", "source_lines"]
