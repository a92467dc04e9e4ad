"""Reading an expression back from its text: `parse(str(e)) is e`.

The grammar is Python's for `+ - * // %`, comparisons `== != < <= > >=` (one, not a chain),
brackets and the functions min, max, ceil_div, select, logical_and, logical_or, logical_not. In a
longer text an expression ends before the first token that cannot carry it on. May import `expr` and
`functions`. Start reading at :func:`parse`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

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
_TOKEN = re.compile(r"\s*([0-9]+|\$[0-9]+|[^\W\d][\w.]*|//|[<>=!]=|[-+*%<>(),])")
_PARENTHESIS = re.compile(r"[()]")

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
    parser = _Parser(text)
    result = parser.comparison()
    parser.expect_end()
    return result


def parse_prefix(text: str, begin: int, names: Mapping[str, Expr]) -> tuple[Expr, int]:
    """The longest expression that begins at a place of the text, and the place where it ends.

    ``names`` are expressions that ``$1``, ``$2``, … stand for. :class:`DimensionError` if there is
    no expression.
    """
    parser = _Parser(text, begin, names)
    result = parser.comparison()
    return result, parser.position


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


class _Parser:
    """Recursive descent, one method for each level of precedence.

    Tokens are found one by one: what follows an expression need not be made of them. Calls that are
    written alike are read once: a price says the same hundreds of times, within itself.
    """

    def __init__(self, text: str, begin: int = 0, names: Mapping[str, Expr] | None = None) -> None:
        self.text = text
        self.begin = begin
        self.names = names or {}
        self.position = begin
        self._next: re.Match[str] | None = _TOKEN.match(text, begin)
        self._ends: dict[int, int] = {}
        self._calls: dict[str, Expr] = {}

    def _error(self, place: str) -> DimensionError:
        text = _shortened(self.text[self.begin :])
        return DimensionError(
            f"{text!r} is not an expression: it cannot be read {place}",
            hint="write sums and products of names and integers, //, %, min, max, ceil_div, select",
        )

    def _rest(self) -> str:
        """What is not read yet, for messages."""
        rest = self.text[self.position :].strip()
        return repr(_shortened(rest)) if rest else "its end"

    def expect_end(self) -> None:
        """Refuse a text that goes on behind the expression."""
        if self.text[self.position :].strip():
            raise self._error(f"from {self._rest()}")

    def _peek(self) -> str:
        return self._next[1] if self._next is not None else ""

    def _advance(self) -> None:
        assert self._next is not None
        self._go_to(self._next.end())

    def _go_to(self, position: int) -> None:
        self.position = position
        self._next = _TOKEN.match(self.text, position)

    def _take(self, token: str) -> bool:
        if self._peek() == token:
            self._advance()
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise self._error(f"at {self._rest()}, where {token!r} belongs")

    def comparison(self) -> Expr:
        """A sum, or two that are compared."""
        left = self._sum()
        compare = _COMPARISONS.get(self._peek())
        if compare is None:
            return left
        self._advance()
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
        is_number = "0" <= token[:1] <= "9"
        if not (is_number or token[:1].isidentifier() or token == "(" or token in self.names):
            raise self._error(f"at {self._rest()}")
        self._advance()
        if token == "(":
            result = self.comparison()
            self._expect(")")
            return result
        if is_number:
            return constant(int(token))
        if token in self.names:
            return self.names[token]
        return self._call(token) if self._take("(") else symbol(token)

    def _call(self, name: str) -> Expr:
        if name not in _FUNCTIONS:
            raise self._error(f"because there is no function {name!r}")
        written = f"{name}({self.text[self.position : self._end(self.position)]}"
        known = self._calls.get(written)
        if known is not None:
            self._go_to(self._end(self.position))
            return known
        found = self._calls[written] = self._called(name)
        return found

    def _end(self, begin: int) -> int:
        """Where a call ends whose operands begin at a place; that place where it never does."""
        if begin not in self._ends:
            opened = [begin]
            for found in _PARENTHESIS.finditer(self.text, begin):
                if found[0] == "(":
                    opened.append(found.end())
                else:
                    self._ends[opened.pop()] = found.end()
                if not opened:
                    break
            self._ends |= {place: place for place in opened}
        return self._ends[begin]

    def _called(self, name: str) -> Expr:
        operands: list[Expr] = []
        while not self._take(")"):
            if operands:
                self._expect(",")
            operands.append(self.comparison())
        function, least, most = _FUNCTIONS[name]
        if not least <= len(operands) <= most:
            raise self._error(f"because {name} has {len(operands)} operands")
        return function(*operands)
