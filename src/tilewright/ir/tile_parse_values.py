"""Values of tile programs from their text.

The other direction is ``tile_print``; what both know without writing it is in ``tile_text``. Start
with :meth:`ValueReader.value`.
"""

from __future__ import annotations

from tilewright.ir.dtype import DType
from tilewright.ir.scalar import ADDING, COMBINE, SCALAR_FUNCTIONS
from tilewright.ir.tile import (
    IDENTITY,
    Apply,
    Convert,
    Guarded,
    IndexValue,
    Literal,
    Load,
    Local,
    TileBuffer,
    Value,
)
from tilewright.ir.tile_lexer import Cursor
from tilewright.ir.tile_text import INDEX_TYPE, NEUTRAL_TYPE, applied_type, number_type
from tilewright.shape import Expr

_TYPES = {dtype.value: dtype for dtype in DType}
# Numbers that are words; no local has such a name.
_WORDS: dict[str, float | bool] = {
    "True": True,
    "False": False,
    "inf": float("inf"),
    "nan": float("nan"),
}
_NEUTRAL = IDENTITY.removesuffix(":")


class ValueReader:
    """Reads values; ``types`` are those of the locals that are bound so far."""

    def __init__(self) -> None:
        self.buffers: dict[str, TileBuffer] = {}
        self.types: dict[str, DType] = {}
        self._shared: dict[str, Value] = {}

    def buffer(self, cursor: Cursor) -> TileBuffer:
        """The name of a buffer."""
        if cursor.peek() not in self.buffers:
            cursor.fail("the name of a buffer")
        return self.buffers[cursor.name()]

    def place(self, cursor: Cursor) -> tuple[TileBuffer, Expr]:
        """A buffer and an offset in brackets."""
        buffer = self.buffer(cursor)
        return buffer, _in_brackets(cursor)

    def value(self, cursor: Cursor) -> Value:
        """A value, which may begin with the name %n that it gets."""
        if not cursor.is_a("reference"):
            return self._unnamed(cursor)
        if cursor.ahead(2)[1] != ":":
            if cursor.peek() not in self._shared:
                cursor.fail("the name of a value that stands before")
            return self._shared[cursor.reference("%", "the name of a value")]
        if cursor.peek() in self._shared:
            cursor.fail("another name")
        name = cursor.reference("%", "the name of a value")
        cursor.expect(":")
        made = self._shared[name] = self._unnamed(cursor)
        return made

    def _unnamed(self, cursor: Cursor) -> Value:
        word, following = cursor.ahead(2)
        if word == "(":
            return self._guarded(cursor)
        if word == "[":
            return IndexValue(_in_brackets(cursor), _type(cursor, INDEX_TYPE))
        if word == "-" or cursor.is_a("number"):
            return self._number(cursor)
        if (word, following) == (_NEUTRAL, ":"):
            return self._neutral(cursor)
        if not cursor.is_a("name"):
            cursor.fail("a value")
        if following == "[":
            return Load(*self.place(cursor))
        if following == "(":
            return self._converted(cursor) if word in _TYPES else self._applied(cursor)
        if word in _WORDS:
            return self._number(cursor)
        return self._local(cursor)

    def _guarded(self, cursor: Cursor) -> Guarded:
        cursor.expect("(")
        inside = self.value(cursor)
        cursor.expect("if")
        predicate = cursor.expression()
        cursor.expect("else")
        outside = self.value(cursor)
        cursor.expect(")")
        return Guarded(predicate, inside, outside)

    @staticmethod
    def _number(cursor: Cursor) -> Literal:
        negative = cursor.take("-")
        word = cursor.peek()
        number: float | bool
        if word in _WORDS:
            number = _WORDS[cursor.name()]
        else:
            number = int(cursor.number()) if word.isdigit() else float(cursor.number())
        if negative:
            number = -number
        return Literal(number, _type(cursor, number_type(number)))

    @staticmethod
    def _neutral(cursor: Cursor) -> Local:
        cursor.expect(_NEUTRAL, ":")
        return Local(f"{IDENTITY}{reduction(cursor)}", _type(cursor, NEUTRAL_TYPE))

    def _local(self, cursor: Cursor) -> Local:
        known = self.types.get(cursor.peek())
        if known is None and cursor.ahead(2)[1] != ":":
            cursor.fail("the name of a value that is bound before, or one with its type")
        return Local(cursor.name(), _type(cursor, known or NEUTRAL_TYPE))

    def _converted(self, cursor: Cursor) -> Convert:
        dtype = cursor.dtype()
        cursor.expect("(")
        operand = self.value(cursor)
        cursor.expect(")")
        return Convert(operand, dtype)

    def _applied(self, cursor: Cursor) -> Apply:
        function, _, dtype = cursor.peek().partition(".")
        if function not in SCALAR_FUNCTIONS and function not in ADDING:
            cursor.fail("the name of a scalar function")
        if dtype and dtype not in _TYPES:
            cursor.fail(f"an element type behind {function!r}")
        cursor.name()
        cursor.expect("(")
        operands = [self.value(cursor)]
        while cursor.take(","):
            operands.append(self.value(cursor))
        arity = 3 if function in ADDING else SCALAR_FUNCTIONS[function].arity
        if len(operands) != arity:
            cursor.fail(f"the end of {arity} operands")
        known = applied_type(function, tuple(o.dtype for o in operands))
        result = _TYPES[dtype] if dtype else known
        if result is None:
            cursor.fail("operands of a type that the function takes, or the type of its result")
        cursor.expect(")")
        return Apply(function, tuple(operands), result)


def reduction(cursor: Cursor) -> str:
    """The kind of a reduction."""
    if cursor.peek() not in COMBINE:
        cursor.fail("a kind of reduction")
    return cursor.name()


def _in_brackets(cursor: Cursor) -> Expr:
    cursor.expect("[")
    made = cursor.expression()
    cursor.expect("]")
    return made


def _type(cursor: Cursor, known: DType) -> DType:
    """The type behind a colon, or the one that is known without."""
    return cursor.dtype() if cursor.take(":") else known


__all__ = ["ValueReader", "reduction"]
