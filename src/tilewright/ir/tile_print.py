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
    StageAxis,
    Statement,
    Store,
    Sums,
    TileBuffer,
    TileProgram,
    TransposeBlock,
    Value,
    View,
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
        lines += [f"scratch {self._buffer(b)}" for b in program.scratch]
        grid = ", ".join(f"{name} < {size}" for name, size in program.grid)
        return [*lines, f"grid {grid}", *self.statements(program.body, "  ")]

    def _stage(self, stage: Stage) -> list[str]:
        lines = [f"stage {', '.join(map(self._axis, stage.axes))}"]
        for title, part in (("load", stage.load), ("store", stage.store)):
            if part:
                lines += [f"  {title}", *self.statements(part, "    ")]
            if title == "load":
                lines += self.statements(stage.body, "  ")
        return lines

    @staticmethod
    def _axis(axis: StageAxis) -> str:
        return f"{axis.role.value} {axis.stem} < {axis.extent} by {axis.block}"

    def _product(self, product: Product) -> list[str]:
        target = product.target
        narrow = "" if product.narrow is None else f" of {product.narrow.value}"
        lines = [f"product {product.dtype.value}{narrow} for {self._bounds(product)}"]
        lines += [
            f"  left {self._operand(product.left)}",
            f"  right {self._operand(product.right)}",
        ]
        if isinstance(target, Sums):
            place = f"{target.buffer.name}[{target.offset}], row {target.row}"
            return [*lines, f"  into {place}, resumed if {target.resume}"]
        registers = target.registers
        lines.append(
            f"  in registers of {registers.rows} x {registers.columns}, tail {registers.tail}"
        )
        return [*lines, "  finished by", *self.statements(target.stores, "    ")]

    @staticmethod
    def _bounds(product: Product) -> str:
        axes = {"rows": product.rows, "columns": product.columns, "depth": product.depth}
        return ", ".join(f"{name} {begin} .. {end}" for name, (begin, end) in axes.items())

    def _operand(self, operand: View | RunTable) -> str:
        place = f"{operand.buffer.name}[{operand.offset}]"
        if isinstance(operand, View):
            panel = f", panel {operand.panel}" if operand.panel else ""
            panel += self._codes(operand) if isinstance(operand, CodeView) else ""
            return f"{place}, row {operand.row}, depth {operand.depth}{panel}"
        text = f"{place} in runs of {operand.run}, table {operand.table.name}, row {operand.row}"
        for name, buffer in (("zeros", operand.zeros), ("shifts", operand.shifts)):
            text += "" if buffer is None else f", {name} {buffer.name}"
        return text

    @staticmethod
    def _codes(view: CodeView) -> str:
        zeros = view.zeros if isinstance(view.zeros, int) else view.zeros.name
        text = f", {view.bits} bits less {zeros} times {view.scales.name}[{view.place}]"
        return f"{text} in {view.blocks} blocks of {view.block}, tail {view.tail}"

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
            case LetDistance() as d:
                origin = f"{d.buffer.name}[{d.offset}] of {d.dtype.value}"
                return [f"{d.name} = bytes from {origin} to {d.target.name}"]
            case Product():
                return self._product(statement)
            case Stage():
                return self._stage(statement)
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
