"""Tile programs as text, for people and as identity: equal text is an equal program.

``tile_parse`` reads the text back. The identity leaves messages and the rough time out, so that the
same loops in two layers of a model are one program. Start with :func:`print_program`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import count

from tilewright.ir.dtype import DType
from tilewright.ir.listed_view import ListedView
from tilewright.ir.stage_axis import NEVER, StageAxis
from tilewright.ir.tile import (
    IDENTITY,
    Apply,
    Check,
    CodeView,
    Convert,
    Guarded,
    IndexValue,
    Let,
    LetDistance,
    LetIndex,
    Literal,
    Load,
    Local,
    Loop,
    Product,
    RunTable,
    Stage,
    Statement,
    Store,
    Sums,
    TileBuffer,
    TileProgram,
    TransposeBlock,
    Value,
    View,
)
from tilewright.ir.tile_text import INDEX_TYPE, NEUTRAL_TYPE, STEP, applied_type, number_type
from tilewright.shape import Expr, constant
from tilewright.shape.sharing import shared_parts

LEAST_NAMED = 12  # characters
_CALL = re.compile(r"\b(?:max|min|ceil_div|select)\(")
_VARIABLE = re.compile(r"(?<!\w)_\w+")
_STANDS = "_named."  # and a number: the symbol that stands for $ and the number in expressions
_STANDING = re.compile(r"\b_named\.(\d+)\b")


def print_tile(program: TileProgram) -> str:
    """What the program does, one statement a line: its identity."""
    survey = _Survey.of(program)
    return "\n".join(_Printer(str, survey.shared).program(program))


def print_program(program: TileProgram) -> str:
    """The whole program, with what stays the same in a task named $1, $2, … where it is long.

    The names stand before the program.
    """
    survey = _Survey.of(program)
    names, short = _named(survey.expressions, {name for name, _ in program.grid})

    def text(expression: Expr) -> str:
        written = str(expression)
        return short.get(written, written)

    messages = [f"check {n}: {json.dumps(t)}" for n, t in enumerate(program.checks)]
    definitions = _definitions(names)
    notes = [*messages, *_work(program.work, names)]
    whole = _Printer(text, survey.shared).program(program, notes)
    return "\n".join([*definitions, *whole])


def _work(work: Expr, names: Sequence[tuple[str, str]]) -> list[str]:
    """The rough time, after a line for each part of it that occurs several times.

    Parts that have one of the ``names`` keep it; the numbers of the others follow.
    """
    known = {meaning: name[1:] for name, meaning in names}
    given = {name for name, _ in names}
    numbers = count(len(known) + 1)

    def name(part: Expr, times: int) -> str | None:
        text = part.key.text  # nothing where it is long
        found = known.get(text)
        if found is None and times > 1 and (not text or len(text) >= LEAST_NAMED):
            found = str(next(numbers))
        return None if found is None else f"{_STANDS}{found}"

    def written(expression: Expr) -> str:
        return _STANDING.sub(r"$\1", str(expression))

    named, whole = shared_parts(work, name)
    lines = [(_STANDING.sub(r"$\1", symbol), written(meaning)) for symbol, meaning in named]
    own = [f"work {symbol} = {meaning}" for symbol, meaning in lines if symbol not in given]
    return [*own, f"work {written(whole)}"]


# ---------------------------------------------------------------- names of long expressions


def _named(
    texts: Counter[str], fixed: Collection[str]
) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Names for calls that occur more than once, the longest first, and every text with them.

    ``texts`` are index expressions and how often each occurs.
    """
    names: list[tuple[str, str]] = []
    short = {text: text for text in texts}
    while True:
        calls = Counter[str]()
        for text, now in short.items():
            for call in _calls(now, fixed):
                calls[call] += texts[text]
        often = [call for call, times in calls.items() if times > 1 and len(call) >= LEAST_NAMED]
        if not often:
            return names, short
        longest = max(often, key=len)
        names.append((f"${len(names) + 1}", longest))
        short = {text: now.replace(longest, names[-1][0]) for text, now in short.items()}


def _definitions(names: Iterable[tuple[str, str]]) -> list[str]:
    """A line for each name; those that others are made of come first."""
    lines: list[str] = []
    for name, meaning in names:
        lines = [line.replace(meaning, name) for line in lines]
        lines.append(f"{name} = {meaning}")
    return lines[::-1]


def _calls(text: str, fixed: Collection[str]) -> Iterator[str]:
    """Every application of a function to sizes and ``fixed`` variables, inner ones as well."""
    for start in _CALL.finditer(text):
        depth, place = 1, start.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[place], 0)
            place += 1
        call = text[start.start() : place]
        if all(name in fixed for name in _VARIABLE.findall(call)):
            yield call


# ---------------------------------------------------------------- values


class _Values:
    """Values as text; of those that are ``shared``, each is named %n where it first occurs.

    A value that two statements share is computed once, so that what is shared belongs to what a
    program does. ``times`` counts how often each is met.
    """

    def __init__(self, expression: Callable[[Expr], str], shared: Collection[int]) -> None:
        self.expression = expression
        self.shared = shared
        self.times = Counter[int]()
        self.types: dict[str, DType] = {}  # of locals, by the binding before
        self._numbers: dict[int, int] = {}

    def text(self, value: Value) -> str:
        """A value, or its name if it has one by now."""
        if not isinstance(value, Load | Apply | Convert | Guarded):
            return self._simple(value)
        key = id(value)
        self.times[key] += 1
        if self.times[key] > 1:
            return f"%{self._numbers.get(key)}"
        if key not in self.shared:
            return self._computed(value)
        number = self._numbers[key] = len(self._numbers)
        return f"%{number}:{self._computed(value)}"

    def _computed(self, value: Load | Apply | Convert | Guarded) -> str:
        match value:
            case Load(buffer=buffer, offset=offset):
                return f"{buffer.name}[{self.expression(offset)}]"
            case Apply(function=function, operands=operands, dtype=dtype):
                inner = ", ".join(map(self.text, operands))
                known = applied_type(function, tuple(o.dtype for o in operands))
                return f"{function}{'' if known is dtype else f'.{dtype.value}'}({inner})"
            case Convert(operand=operand, dtype=dtype):
                return f"{dtype.value}({self.text(operand)})"
            case Guarded(predicate=predicate, inside=inside, outside=outside):
                chosen, when = self.text(inside), self.expression(predicate)
                return f"({chosen} if {when} else {self.text(outside)})"

    def _simple(self, value: Literal | IndexValue | Local) -> str:
        match value:
            case Literal(value=number, dtype=dtype):
                return _typed(repr(number), dtype, number_type(number))
            case IndexValue(expression=expression, dtype=dtype):
                return _typed(f"[{self.expression(expression)}]", dtype, INDEX_TYPE)
            case Local(name=name, dtype=dtype):
                neutral = name.startswith(IDENTITY)
                return _typed(name, dtype, NEUTRAL_TYPE if neutral else self.types.get(name))


def _typed(text: str, dtype: DType, known: DType | None) -> str:
    return text if dtype is known else f"{text}:{dtype.value}"


# ---------------------------------------------------------------- statements


class _Printer:
    def __init__(self, expression: Callable[[Expr], str], shared: Collection[int]) -> None:
        self.expression = expression
        self.values = _Values(expression, shared)

    def program(self, program: TileProgram, notes: Iterable[str] = ()) -> list[str]:
        tensors = len(program.buffers) - program.results
        lines = [f"buffer {self._buffer(b)}" for b in program.buffers[:tensors]]
        lines += [f"result {self._buffer(b)}" for b in program.buffers[tensors:]]
        lines += [f"scratch {self._buffer(b)}" for b in program.scratch]
        grid = ", ".join(f"{name} < {self.expression(size)}" for name, size in program.grid)
        head = "grid rounds" if program.in_rounds else "grid"
        return [*lines, *notes, f"{head} {grid}".rstrip(), *self._block(program.body)]

    def _buffer(self, buffer: TileBuffer) -> str:
        size = "" if buffer.elements is None else f" of {self.expression(buffer.elements)}"
        return f"{buffer.name}: {buffer.dtype.value}{size}{', fixed' if buffer.fixed else ''}"

    def _place(self, buffer: TileBuffer, offset: Expr) -> str:
        return f"{buffer.name}[{self.expression(offset)}]"

    def _block(self, body: Iterable[Statement]) -> list[str]:
        return [STEP + line for statement in body for line in self._statement(statement)]

    def _statement(self, statement: Statement) -> list[str]:
        e, value = self.expression, self.values.text
        match statement:
            case Let(name=name, value=bound):
                line = f"{name} = {value(bound)}"
                self.values.types[name] = bound.dtype
                return [line]
            case LetIndex(name=name, value=bound, limit=limit, check=check):
                failing = "" if check is None else f" else check {check}"
                return [f"index {name} = {value(bound)} below {e(limit)}{failing}"]
            case Store(buffer=buffer, offset=offset, value=stored):
                return [f"{self._place(buffer, offset)} = {value(stored)}"]
            case TransposeBlock() as t:
                target = f"{self._place(t.target, t.target_offset)}, row {e(t.target_row)}"
                source = f"{self._place(t.source, t.source_offset)}, row {e(t.source_row)}"
                runs = "" if t.run is constant(1) else f" of {e(t.run)}"
                return [f"{target} = transposed {source}: {e(t.rows)} x {e(t.columns)}{runs}"]
            case LetDistance() as d:
                origin = f"{self._place(d.buffer, d.offset)} of {d.dtype.value}"
                return [f"distance {d.name} = bytes from {origin} to {d.target.name}"]
            case Product():
                return self._product(statement)
            case Stage():
                return self._stage(statement)
            case Check(value=wrong, check=check):
                return [f"check {check} if {value(wrong)}"]
            case Loop():
                return self._loop(statement)

    def _loop(self, loop: Loop) -> list[str]:
        head = "for independent" if loop.independent else "for"
        head += " masked" if loop.masked else ""
        bounds = f"{self.expression(loop.begin)} .. {self.expression(loop.end)}"
        streamed = f" streamed if {self.expression(loop.streamed)}" if loop.may_stream else ""
        ahead = f" asking {loop.ahead} bytes ahead" if loop.ahead else ""
        head = f"{head} {loop.variable} in {bounds}{streamed}{ahead}"
        lines = [head, *self._block(loop.body)]
        for a in loop.accumulators:
            lines.append(f"{STEP}{a.name} = {a.kind} of {self.values.text(a.value)}")
        for a in loop.accumulators:
            self.values.types[a.name] = a.value.dtype
        return lines

    def _stage(self, stage: Stage) -> list[str]:
        lines = [f"stage {', '.join(map(self._axis, stage.axes))}".rstrip()]
        if stage.load:
            lines += [f"{STEP}load", *(STEP + line for line in self._block(stage.load))]
        lines += self._block(stage.body)
        if stage.store:
            lines += [f"{STEP}store", *(STEP + line for line in self._block(stage.store))]
        return lines

    def _axis(self, axis: StageAxis) -> str:
        extent, block = self.expression(axis.extent), self.expression(axis.block)
        text = f"{axis.role.value} {axis.stem} < {extent} by {block}"
        if axis.outermost is NEVER:
            return text
        return f"{text} outermost if {self.expression(axis.outermost)}"

    def _product(self, product: Product) -> list[str]:
        e, target = self.expression, product.target
        narrow = "" if product.narrow is None else f" of {product.narrow.value}"
        axes = {"rows": product.rows, "columns": product.columns, "depth": product.depth}
        bounds = ", ".join(f"{name} {e(begin)} .. {e(end)}" for name, (begin, end) in axes.items())
        lines = [
            f"product {product.dtype.value}{narrow} for {bounds}",
            f"{STEP}left {self._operand(product.left)}",
            f"{STEP}right {self._operand(product.right)}",
        ]
        if isinstance(target, Sums):
            place = f"{self._place(target.buffer, target.offset)}, row {e(target.row)}"
            return [*lines, f"{STEP}into {place}, resumed if {e(target.resume)}"]
        registers = target.registers
        tail = "" if registers.tail is None else f", tail {registers.tail}"
        lines.append(f"{STEP}in registers of {registers.rows} x {registers.columns}{tail}")
        self.values.types["accumulator"] = product.dtype
        stores = [STEP + line for line in self._block(target.stores)]
        streamed = f" streamed if {e(target.streamed)}" if target.streamed != NEVER else ""
        ahead = f" ahead if {e(target.ahead)}" if target.ahead != NEVER else ""
        return [*lines, f"{STEP}finished{streamed}{ahead} by", *stores]

    def _codes(self, view: CodeView) -> str:
        zeros = view.zeros if isinstance(view.zeros, int) else view.zeros.name
        scales = self._place(view.scales, view.place)
        text = f", {view.bits} bits less {zeros} times {scales}"
        return f"{text} in {self.expression(view.blocks)} blocks of {view.block}, tail {view.tail}"

    def _listed(self, view: ListedView) -> str:
        e, text = self.expression, f", shifts {view.shifts.name}"
        return text + (f", lines {e(view.line)} by {e(view.pitch)}" if view.has_lines else "")

    def _operand(self, operand: View | RunTable) -> str:
        e, place = self.expression, self._place(operand.buffer, operand.offset)
        if isinstance(operand, View):
            panel = f", panel {operand.panel}" if operand.panel else ""
            panel += self._codes(operand) if isinstance(operand, CodeView) else ""
            panel += self._listed(operand) if isinstance(operand, ListedView) else ""
            return f"{place}, row {e(operand.row)}, depth {e(operand.depth)}{panel}"
        table = f"table {operand.table.name}, row {e(operand.row)}"
        table += "" if operand.depth is constant(1) else f", depth {e(operand.depth)}"
        text = f"{place} in runs of {e(operand.run)}, {table}"
        for name, buffer in (("zeros", operand.zeros), ("shifts", operand.shifts)):
            text += "" if buffer is None else f", {name} {buffer.name}"
        return text


class _Survey:
    """A program gone over once: which values are shared, and what its index expressions are."""

    def __init__(self) -> None:
        self.expressions = Counter[str]()
        self.shared: set[int] = set()

    @staticmethod
    def of(program: TileProgram) -> _Survey:
        """The survey of a program."""
        made = _Survey()
        printer = _Printer(made._expression, ())
        printer.program(program)
        made.shared |= {key for key, times in printer.values.times.items() if times > 1}
        return made

    def _expression(self, expression: Expr) -> str:
        text = str(expression)
        self.expressions[text] += 1
        return text


__all__ = ["print_program", "print_tile"]
