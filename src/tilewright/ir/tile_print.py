"""Tile programs as text, for people and as identity: equal programs print the same.

Messages and labels are left out, so that the same loops in two layers of a model are one program.
Start with :func:`print_tile`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from tilewright.ir.tile import (
    Apply,
    Check,
    Contraction,
    Convert,
    Gathering,
    Guarded,
    IndexValue,
    Let,
    LetIndex,
    Literal,
    Load,
    Local,
    Loop,
    LoopProgram,
    Operand,
    Packing,
    Product,
    Statement,
    Store,
    TileBuffer,
    TileProgram,
    TransposeBlock,
    Value,
)

LEAST_NAMED = 12  # characters
_CALL = re.compile(r"\b(?:max|min|ceil_div|select)\(")
_VARIABLE = re.compile(r"(?<!\w)_\w+")


def print_tile(program: TileProgram) -> str:
    """The program, one statement a line; shared values are named %n where they first occur."""
    return "\n".join(_Printer().program(program))


def print_readable(program: TileProgram) -> list[str]:
    """The same in lines, with what stays the same in a task named $1, $2, … where it is long.

    The names stand before the program.
    """
    text, names = print_tile(program), list[str]()
    fixed = {name for name, _ in program.grid}
    while True:
        calls = Counter(_calls(text, fixed))
        often = [call for call, times in calls.items() if times > 1 and len(call) >= LEAST_NAMED]
        if not often:
            return [*reversed(names), *text.splitlines()]
        longest = max(often, key=len)
        name = f"${len(names) + 1}"
        names = [line.replace(longest, name) for line in names]
        names.append(f"{name} = {longest}")
        text = text.replace(longest, name)


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


class _Printer:
    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}

    def program(self, program: TileProgram) -> list[str]:
        lines = [f"buffer {self._buffer(b)}" for b in program.buffers]
        if isinstance(program, LoopProgram):
            lines += [f"scratch {self._buffer(b)}" for b in program.scratch]
            grid = ", ".join(f"{name} < {size}" for name, size in program.grid)
            return [*lines, f"grid {grid}", *self.statements(program.body, "  ")]
        return lines + self._contraction(program)

    def _contraction(self, program: Contraction) -> list[str]:
        batch = ", ".join(f"{name} < {size}" for name, size in program.batch)
        narrow = "" if program.narrow is None else f" of {program.narrow.value}"
        lines = [
            f"contraction {program.dtype.value}{narrow} batch {batch}",
            f"  m {program.m} by {program.block_m} by {program.tile_rows}",
            f"  n {program.n} by {program.block_n} by {program.tile_columns}, tail {program.tail}",
            f"  k {program.k} by {program.block_k}",
        ]
        for side, operand in (("left", program.left), ("right", program.right)):
            lines += self._operand(side, operand)
        lines += ["epilogue", *self.statements(program.stores, "  ")]
        if program.after:
            lines += [f"stage {self._buffer(stage)}" for stage in program.stages]
            lines += ["after", *self.statements(program.after, "  ")]
        return lines

    def _operand(self, side: str, operand: Operand | Packing | Gathering) -> list[str]:
        if isinstance(operand, Gathering):
            head = f"  {side} {operand.buffer.name}[{operand.base}] in runs of {operand.run}"
            head = f"{head}, table {self._buffer(operand.table)}, row {operand.row}"
            for name, buffer in (("zeros", operand.zeros), ("shifts", operand.shifts)):
                head += "" if buffer is None else f", {name} {self._buffer(buffer)}"
            return [head, *self.statements(operand.body, "    ")]
        if isinstance(operand, Packing):
            head = f"  {side} packed into {self._buffer(operand.target)}, row {operand.row}"
            return [head, *self.statements(operand.body, "    ")]
        place = f"{operand.buffer.name}[{operand.base}]"
        strides = f"row {operand.row}, depth {operand.depth}"
        return [f"  {side} {place}, {strides}, panel {operand.panel}"]

    @staticmethod
    def _buffer(buffer: TileBuffer) -> str:
        size = "" if buffer.elements is None else f" of {buffer.elements}"
        return f"{buffer.name}: {buffer.dtype.value}{size}"

    def statements(self, body: Iterable[Statement], indent: str) -> list[str]:
        lines: list[str] = []
        for statement in body:
            lines += [indent + line for line in self._statement(statement)]
        return lines

    def _statement(self, statement: Statement) -> list[str]:
        match statement:
            case Let(name=name, value=value):
                return [f"{name} = {self.value(value)}"]
            case LetIndex(name=name, value=value, limit=limit, check=check):
                failing = "" if check is None else f" else {check}"
                return [f"{name} = index {self.value(value)} below {limit}{failing}"]
            case Store(buffer=buffer, offset=offset, value=value):
                return [f"{buffer.name}[{offset}] = {self.value(value)}"]
            case TransposeBlock() as t:
                target = f"{t.target.name}[{t.target_offset}], row {t.target_row}"
                source = f"{t.source.name}[{t.source_offset}], row {t.source_row}"
                return [f"{target} = transposed {source}: {t.rows} x {t.columns}"]
            case Product() as p:
                target = f"{p.target.name}[{p.target_offset}], row {p.target_row}"
                left = f"{p.left.name}[{p.left_offset}], row {p.left_row}, depth {p.left_depth}"
                right = f"{p.right.name}[{p.right_offset}], depth {p.right_depth}"
                size = f"{p.rows} x {p.columns} x {p.depth}, resumed if {p.resume}"
                return [f"{target} = product of", f"  {left}", f"  {right}", f"  for {size}"]
            case Check(value=value, check=check):
                return [f"check {check} unless not {self.value(value)}"]
            case Loop(variable=variable, begin=begin, end=end, body=body):
                head = "for independent" if statement.independent else "for"
                head += " masked" if statement.masked else ""
                where = f" streamed if {statement.streamed}" if statement.may_stream else ""
                lines = [f"{head} {variable} in {begin} .. {end}{where}"]
                lines += self.statements(body, "  ")
                for a in statement.accumulators:
                    lines.append(f"  {a.name} = {a.kind} of {self.value(a.value)}")
                return lines

    def value(self, value: Value) -> str:
        known = self.numbers.get(id(value))
        if known is not None:
            return f"%{known}"
        text = self._value(value)
        if isinstance(value, Apply | Convert | Guarded):
            self.numbers[id(value)] = len(self.numbers)
            return f"%{self.numbers[id(value)]}:{text}"
        return text

    def _value(self, value: Value) -> str:
        match value:
            case Load(buffer=buffer, offset=offset):
                return f"{buffer.name}[{offset}]"
            case Literal(value=number, dtype=dtype):
                return f"{number!r}:{dtype.value}"
            case IndexValue(expression=expression):
                return f"({expression})"
            case Apply(function=function, operands=operands, dtype=dtype):
                inner = ", ".join(map(self.value, operands))
                return f"{function}.{dtype.value}({inner})"
            case Convert(operand=operand, dtype=dtype):
                return f"{dtype.value}({self.value(operand)})"
            case Local(name=name):
                return name
            case Guarded(predicate=predicate, inside=inside, outside=outside):
                chosen, other = self.value(inside), self.value(outside)
                return f"({chosen} if {predicate} else {other})"
