"""Tile programs from their text: ``parse_program(print_program(p))`` is ``p`` again.

Every statement has a method; its first two words decide which. Errors are
:class:`~tilewright.ir.tile_lexer.TileSyntaxError`, with the line and what belongs there. The text
of ``print_tile`` is read, too, as a program without messages. Start with :func:`parse_program`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

from tilewright.ir.dtype import DType
from tilewright.ir.listed_view import ListedView
from tilewright.ir.scalar import COMBINE
from tilewright.ir.stage_axis import NEVER, Role, StageAxis
from tilewright.ir.tile import (
    Accumulator,
    Bounds,
    Check,
    CodeView,
    Finish,
    Let,
    LetDistance,
    LetIndex,
    Loop,
    Product,
    Registers,
    RunTable,
    Stage,
    Statement,
    Store,
    Sums,
    TileBuffer,
    TileProgram,
    TransposeBlock,
    View,
)
from tilewright.ir.tile_lexer import Cursor, SourceLine, TileSyntaxError, source_lines
from tilewright.ir.tile_parse_values import ValueReader, reduction
from tilewright.ir.tile_text import STEP
from tilewright.shape import Expr, constant

_ROLES = {role.value: role for role in Role}


def parse_program(text: str) -> TileProgram:
    """The program that a text writes.

    Raises :class:`~tilewright.ir.tile_lexer.TileSyntaxError` where it writes none.
    """
    return _Reader(source_lines(text)).program()


class _Reader:
    """Goes over lines; a method that reads a statement leaves the first line behind it."""

    def __init__(self, lines: list[SourceLine]) -> None:
        self.lines = lines
        self.at = 0
        self.names: dict[str, Expr] = {}
        self.values = ValueReader()
        self.statements_by_word: dict[str, Callable[[Cursor], Statement]] = {
            "index": self._index,
            "distance": self._distance,
            "check": self._check,
            "for": self._loop,
            "product": self._product,
            "stage": self._stage,
        }

    # ------------------------------------------------------------ lines

    def _next(self, depth: int) -> Cursor | None:
        """The next line if it stands at this depth; None at the end of its block."""
        if self.at == len(self.lines) or self.lines[self.at].depth < depth:
            return None
        line = self.lines[self.at]
        cursor = Cursor(line, self.names)
        if line.depth > depth:
            cursor.fail(f"a line that stands {line.depth - depth} to the left")
        return cursor

    def _block(self, depth: int) -> Iterator[Cursor]:
        """The lines at this depth, each of which the caller reads with all that is deeper."""
        while (cursor := self._next(depth)) is not None:
            yield cursor

    def _line(self, depth: int, word: str) -> Cursor:
        """The next line, which has to begin with this word at this depth."""
        cursor = self._next(depth)
        if cursor is None:
            last = self.lines[self.at - 1] if self.at else SourceLine(1, 0, "")
            expected = f"a line that begins with {word!r}"
            raise TileSyntaxError(last.number, len(last.text) + 1, expected, "")
        cursor.expect(word)
        return cursor

    def _end(self, cursor: Cursor) -> None:
        cursor.end()
        self.at += 1

    # ------------------------------------------------------------ programs

    def program(self) -> TileProgram:
        """The whole text."""
        tensors: list[TileBuffer] = []
        results: list[TileBuffer] = []
        scratch: list[TileBuffer] = []
        checks: list[str] = []
        work = constant(0)
        for cursor in self._block(0):
            if cursor.take("buffer"):
                tensors.append(self._buffer(cursor))
            elif cursor.take("result"):
                results.append(self._buffer(cursor))
            elif cursor.take("scratch"):
                scratch.append(self._buffer(cursor, scratch=True))
            elif cursor.take("check"):
                checks.append(self._message(cursor, len(checks)))
            elif cursor.ahead(3)[::2] == ["work", "="]:  # a part of the time, with a name before =
                cursor.expect("work")
                self._definition(cursor)
            elif cursor.take("work"):
                work = cursor.expression()
            elif cursor.is_a("reference"):
                self._definition(cursor)
            else:
                break
            self._end(cursor)
        cursor = self._line(0, "grid")
        in_rounds = cursor.take("rounds")
        grid = self._grid(cursor)
        body = self._statements(len(STEP))
        for cursor in self._block(0):
            cursor.fail("the end of the program")
        buffers = (*tensors, *results)
        own = tuple(scratch), tuple(checks)
        return TileProgram(buffers, len(results), grid, body, *own, work, in_rounds)

    def _definition(self, cursor: Cursor) -> None:
        name = cursor.reference("$", "a name such as $1")
        cursor.expect("=")
        self.names[name] = cursor.expression()

    def _buffer(self, cursor: Cursor, *, scratch: bool = False) -> TileBuffer:
        if cursor.peek() in self.values.buffers:
            cursor.fail("another name than that of a buffer before")
        name = cursor.name()
        cursor.expect(":")
        dtype = cursor.dtype()
        elements = cursor.expression() if cursor.take("of") else None
        fixed = cursor.take(",", "fixed")
        made = self.values.buffers[name] = TileBuffer(name, dtype, scratch, elements, fixed)
        return made

    @staticmethod
    def _message(cursor: Cursor, number: int) -> str:
        cursor.expect(str(number), ":")
        text = cursor.string()
        try:
            return str(json.loads(text))
        except ValueError:
            cursor.fail(f"a text without the escapes of {text}")

    def _grid(self, cursor: Cursor) -> tuple[tuple[str, Expr], ...]:
        axes: list[tuple[str, Expr]] = []
        while not axes or cursor.take(","):
            if not axes and not cursor.peek():
                break
            name = cursor.name()
            cursor.expect("<")
            axes.append((name, cursor.expression()))
        self._end(cursor)
        return tuple(axes)

    # ------------------------------------------------------------ statements

    def _statements(self, depth: int) -> tuple[Statement, ...]:
        return tuple(self._statement(cursor) for cursor in self._block(depth))

    def _statement(self, cursor: Cursor) -> Statement:
        word, second = cursor.ahead(2)
        if second == "=":
            return self._let(cursor)
        if second == "[":
            return self._store(cursor)
        if word not in self.statements_by_word:
            cursor.fail("a statement")
        cursor.expect(word)
        return self.statements_by_word[word](cursor)

    def _let(self, cursor: Cursor) -> Let:
        name = cursor.name()
        cursor.expect("=")
        value = self.values.value(cursor)
        self._end(cursor)
        self.values.types[name] = value.dtype
        return Let(name, value)

    def _store(self, cursor: Cursor) -> Store | TransposeBlock:
        buffer, offset = self.values.place(cursor)
        if not cursor.take(","):
            cursor.expect("=")
            made = Store(buffer, offset, self.values.value(cursor))
            self._end(cursor)
            return made
        cursor.expect("row")
        row = cursor.expression()
        cursor.expect("=", "transposed")
        source, source_offset = self.values.place(cursor)
        cursor.expect(",", "row")
        source_row = cursor.expression()
        cursor.expect(":")
        rows = cursor.expression()
        cursor.expect("x")
        columns = cursor.expression()
        run = cursor.expression() if cursor.take("of") else constant(1)
        self._end(cursor)
        return TransposeBlock(
            source, source_offset, source_row, buffer, offset, row, rows, columns, run
        )

    def _index(self, cursor: Cursor) -> LetIndex:
        name = cursor.name()
        cursor.expect("=")
        value = self.values.value(cursor)
        cursor.expect("below")
        limit = cursor.expression()
        check = None
        if cursor.take("else"):
            cursor.expect("check")
            check = cursor.integer()
        self._end(cursor)
        return LetIndex(name, value, limit, check)

    def _distance(self, cursor: Cursor) -> LetDistance:
        name = cursor.name()
        cursor.expect("=", "bytes", "from")
        buffer, offset = self.values.place(cursor)
        cursor.expect("of")
        dtype = cursor.dtype()
        cursor.expect("to")
        target = self.values.buffer(cursor)
        self._end(cursor)
        return LetDistance(name, buffer, offset, dtype, target)

    def _check(self, cursor: Cursor) -> Check:
        check = cursor.integer()
        cursor.expect("if")
        value = self.values.value(cursor)
        self._end(cursor)
        return Check(value, check)

    def _loop(self, cursor: Cursor) -> Loop:
        depth = cursor.line.depth + len(STEP)
        independent = cursor.ahead(2)[1] != "in" and cursor.take("independent")
        masked = cursor.ahead(2)[1] != "in" and cursor.take("masked")
        variable = cursor.name("a loop variable")
        cursor.expect("in")
        begin, end = self._bounds(cursor)
        streamed = NEVER
        if cursor.take("streamed"):
            cursor.expect("if")
            streamed = cursor.expression()
        ahead = self._ahead(cursor)
        self._end(cursor)
        body: list[Statement] = []
        accumulators: list[Accumulator] = []
        for inner in self._block(depth):
            _, equals, kind, of = inner.ahead(4)
            if accumulators or (equals == "=" and kind in COMBINE and of == "of"):
                accumulators.append(self._accumulator(inner))
            else:
                body.append(self._statement(inner))
        self.values.types.update({a.name: a.value.dtype for a in accumulators})
        return Loop(
            variable, begin, end, tuple(body), tuple(accumulators), independent, masked, streamed,
            ahead,
        )  # fmt: skip

    def _ahead(self, cursor: Cursor) -> int:
        if not cursor.take("asking"):
            return 0
        count = cursor.integer()
        cursor.expect("bytes")
        cursor.expect("ahead")
        return count

    def _accumulator(self, cursor: Cursor) -> Accumulator:
        name = cursor.name("the name of a running value")
        cursor.expect("=")
        kind = reduction(cursor)
        cursor.expect("of")
        value = self.values.value(cursor)
        self._end(cursor)
        return Accumulator(name, kind, value)

    @staticmethod
    def _bounds(cursor: Cursor) -> Bounds:
        begin = cursor.expression()
        cursor.expect("..")
        return begin, cursor.expression()

    # ------------------------------------------------------------ stages and products

    def _stage(self, cursor: Cursor) -> Stage:
        depth = cursor.line.depth + len(STEP)
        axes: list[StageAxis] = []
        while cursor.peek():
            if axes:
                cursor.expect(",")
            axes.append(self._axis(cursor))
        self._end(cursor)
        load = self._part("load", depth)
        body: list[Statement] = []
        for inner in self._block(depth):
            if inner.ahead(2) == ["store", ""]:
                break
            body.append(self._statement(inner))
        return Stage(tuple(axes), load, tuple(body), self._part("store", depth))

    def _part(self, word: str, depth: int) -> tuple[Statement, ...]:
        """The statements below a line that is nothing but this word, if it comes next."""
        cursor = self._next(depth)
        if cursor is None or cursor.ahead(2) != [word, ""]:
            return ()
        self.at += 1
        return self._statements(depth + len(STEP))

    @staticmethod
    def _axis(cursor: Cursor) -> StageAxis:
        if cursor.peek() not in _ROLES:
            cursor.fail(f"one of {', '.join(_ROLES)}")
        role = _ROLES[cursor.name()]
        stem = cursor.name()
        cursor.expect("<")
        extent = cursor.expression()
        cursor.expect("by")
        axis = StageAxis(stem, extent, cursor.expression(), role)
        if cursor.peek() != "outermost":
            return axis
        cursor.expect("outermost")
        cursor.expect("if")
        return replace(axis, outermost=cursor.expression())

    def _product(self, cursor: Cursor) -> Product:
        depth = cursor.line.depth + len(STEP)
        dtype = cursor.dtype()
        narrow = cursor.dtype() if cursor.take("of") else None
        cursor.expect("for", "rows")
        rows = self._bounds(cursor)
        cursor.expect(",", "columns")
        columns = self._bounds(cursor)
        cursor.expect(",", "depth")
        extent = self._bounds(cursor)
        self._end(cursor)
        left = self._operand(self._line(depth, "left"))
        cursor = self._line(depth, "right")
        right = self._operand(cursor)
        if not isinstance(right, View):
            raise TileSyntaxError(
                cursor.line.number, 1, "a right operand that is no table of runs", cursor.line.text
            )
        target = self._target(depth, dtype)
        return Product(dtype, left, right, rows, columns, extent, target, narrow)

    def _operand(self, cursor: Cursor) -> View | RunTable:
        buffer, offset = self.values.place(cursor)
        if not cursor.take("in"):
            cursor.expect(",", "row")
            row = cursor.expression()
            cursor.expect(",", "depth")
            extent = cursor.expression()
            panel = cursor.integer() if cursor.take(",", "panel") else 0
            view = View(buffer, offset, row, extent, panel)
            if cursor.take(",", "shifts"):
                shifts = self.values.buffer(cursor)
                view = ListedView(buffer, offset, row, extent, panel, shifts=shifts)
                if cursor.take(",", "lines"):
                    line = cursor.expression()
                    cursor.expect("by")
                    view = replace(view, line=line, pitch=cursor.expression())
            elif cursor.take(","):
                view = self._codes(cursor, view)
            self._end(cursor)
            return view
        cursor.expect("runs", "of")
        run = cursor.expression()
        cursor.expect(",", "table")
        table = self.values.buffer(cursor)
        cursor.expect(",", "row")
        row = cursor.expression()
        depth = cursor.expression() if cursor.take(",", "depth") else constant(1)
        zeros = self.values.buffer(cursor) if cursor.take(",", "zeros") else None
        shifts = self.values.buffer(cursor) if cursor.take(",", "shifts") else None
        self._end(cursor)
        return RunTable(buffer, offset, run, table, row, depth, zeros, shifts)

    def _codes(self, cursor: Cursor, view: View) -> CodeView:
        bits = cursor.integer()
        cursor.expect("bits", "less")
        number = cursor.is_a("number")
        zeros = cursor.integer() if number else self.values.buffer(cursor)
        cursor.expect("times")
        scales, place = self.values.place(cursor)
        cursor.expect("in")
        blocks = cursor.expression()
        cursor.expect("blocks", "of")
        block = cursor.integer()
        cursor.expect(",", "tail")
        tail = cursor.integer()
        return CodeView(
            view.buffer, view.offset, view.row, view.depth, view.panel, bits=bits, block=block,
            blocks=blocks, tail=tail, scales=scales, zeros=zeros, place=place,
        )  # fmt: skip

    def _target(self, depth: int, dtype: DType) -> Sums | Finish:
        cursor = self._next(depth)
        if cursor is not None and cursor.take("into"):
            buffer, offset = self.values.place(cursor)
            cursor.expect(",", "row")
            row = cursor.expression()
            cursor.expect(",", "resumed", "if")
            resume = cursor.expression()
            self._end(cursor)
            return Sums(buffer, offset, row, resume)
        cursor = self._line(depth, "in")
        cursor.expect("registers", "of")
        rows = cursor.integer()
        cursor.expect("x")
        columns = cursor.integer()
        tail = cursor.integer() if cursor.take(",", "tail") else None
        self._end(cursor)
        cursor = self._line(depth, "finished")
        told = {"streamed": NEVER, "ahead": NEVER}
        for name in told:
            if cursor.take(name):
                cursor.expect("if")
                told[name] = cursor.expression()
        cursor.expect("by")
        self._end(cursor)
        self.values.types["accumulator"] = dtype
        stores: list[Store] = []
        for inner in self._block(depth + len(STEP)):
            statement = self._store(inner)
            if not isinstance(statement, Store):
                inner.fail("a store of an element, not a transposition")
            stores.append(statement)
        return Finish(tuple(stores), Registers(rows, columns, tail), **told)


__all__ = ["parse_program"]
