"""Reading an expression back from its text: `parse(str(e)) is e`.

The grammar is Python's for `+ - * // %`, comparisons `== != < <= > >=` (one, not a chain),
brackets and the functions min, max, ceil_div, select, logical_and, logical_or, logical_not. May
import `expr` and `functions`. Start reading at :func:`parse`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tilewright.shape.expr import Expr, constant, symbol
from tilewright.shape.functions import (
    ceil_div,
    equal,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    select,
)
from tilewright.support.errors import DimensionError

_LONGEST = 200  # characters of a text that a message quotes
_TOKEN = re.compile(r"\s*(\d+|[A-Za-z_][A-Za-z0-9_.]*|//|[<>=!]=|[-+*%<>(),])")

# name -> (function, least and greatest number of operands)
_FUNCTIONS: dict[str, tuple[Callable[..., Expr], int, int]] = {
    "min": (minimum, 1, 1 << 30),
    "max": (maximum, 1, 1 << 30),
    "ceil_div": (ceil_div, 2, 2),
    "select": (select, 3, 3),
    "logical_and": (logical_and, 0, 1 << 30),
    "logical_or": (logical_or, 0, 1 << 30),
    "logical_not": (logical_not, 1, 1),
}


def _not_equal(left: Expr, right: Expr) -> Expr:
    return logical_not(equal(left, right))


def _greater(left: Expr, right: Expr) -> Expr:
    return less(right, left)


def _greater_equal(left: Expr, right: Expr) -> Expr:
    return less_equal(right, left)


_COMPARISONS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "==": equal,
    "!=": _not_equal,
    "<": less,
    "<=": less_equal,
    ">": _greater,
    ">=": _greater_equal,
}


def parse(text: str) -> Expr:
    """The expression that the text writes; :class:`DimensionError` if it writes none."""
    return _Parser(text).parse()


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


class _Parser:
    """Recursive descent, one method for each level of precedence."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        self.index = 0
        position = 0
        end = len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise self._error(f"at {_shortened(text[position:].strip())!r}")
            self.tokens.append(match[1])
            position = match.end()

    def _error(self, place: str) -> DimensionError:
        return DimensionError(
            f"{_shortened(self.text)!r} is not an expression: it cannot be read {place}",
            hint="write sums and products of names and integers, //, %, min, max, ceil_div, select",
        )

    def _peek(self) -> str:
        return self.tokens[self.index] if self.index < len(self.tokens) else ""

    def _take(self, token: str) -> bool:
        if self._peek() == token:
            self.index += 1
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise self._error(f"at {self._peek() or 'its end'!r}, where {token!r} belongs")

    def parse(self) -> Expr:
        result = self._comparison()
        if self._peek():
            raise self._error(f"from {self._peek()!r}")
        return result

    def _comparison(self) -> Expr:
        left = self._sum()
        compare = _COMPARISONS.get(self._peek())
        if compare is None:
            return left
        self.index += 1
        return compare(left, self._sum())

    def _sum(self) -> Expr:
        result = self._product()
        while True:
            if self._take("+"):
                result = result + self._product()
            elif self._take("-"):
                result = result - self._product()
            else:
                return result

    def _product(self) -> Expr:
        result = self._signed()
        while True:
            if self._take("*"):
                result = result * self._signed()
            elif self._take("//"):
                result = result // self._signed()
            elif self._take("%"):
                result = result % self._signed()
            else:
                return result

    def _signed(self) -> Expr:
        return -self._signed() if self._take("-") else self._primary()

    def _primary(self) -> Expr:
        token = self._peek()
        self.index += 1
        if token == "(":
            result = self._comparison()
            self._expect(")")
            return result
        if token[:1].isdigit():
            return constant(int(token))
        if not (token[:1].isalpha() or token[:1] == "_"):
            raise self._error(f"at {token or 'its end'!r}")
        if self._take("("):
            return self._call(token)
        return symbol(token)

    def _call(self, name: str) -> Expr:
        if name not in _FUNCTIONS:
            raise self._error(f"because there is no function {name!r}")
        operands: list[Expr] = []
        while not self._take(")"):
            if operands:
                self._expect(",")
            operands.append(self._comparison())
        function, least, most = _FUNCTIONS[name]
        if not least <= len(operands) <= most:
            raise self._error(f"because {name} has {len(operands)} operands")
        return function(*operands)
