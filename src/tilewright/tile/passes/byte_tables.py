"""Bytes computed of one byte each, looked up in a table.

Such a function has 256 results, whatever it is made of: what is dequantised, goes through a
function and is quantised again is known for every byte when compiling. A loop looks them up where
that takes less time by its price than to compute them. Tables hold what the values mean in numpy,
as constants that are folded do. Start with :func:`with_byte_tables`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from tilewright.cost.machine import Machine
from tilewright.cost.vector_work import Core, loop_cycles
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import ADDING, table_name
from tilewright.ir.tile import (
    Apply,
    Convert,
    Let,
    Literal,
    Load,
    Local,
    Loop,
    Stage,
    Statement,
    Store,
    Value,
)
from tilewright.ir.tile_values import Memory, Point
from tilewright.ir.tile_walk import (
    ExpressionMap,
    is_side_by_side,
    may_fault,
    slope,
    value_parts,
    value_symbols,
)
from tilewright.shape import constant
from tilewright.tile.variants import LoweredStep
from tilewright.tile.work import estimate

BYTES = (DType.INT8, DType.UINT8)
LONG = constant(4096)  # iterations for which loops of unknown length are priced: a page of bytes
_BYTE = "byte"


def with_byte_tables(steps: Iterable[LoweredStep], machine: Machine) -> tuple[LoweredStep, ...]:
    """The steps of a kernel, whose loops look up functions of bytes where that takes less time."""
    core = Core(machine.target, machine.core.loops)
    return tuple(_step(step, core) for step in steps)


def _step(step: LoweredStep, core: Core) -> LoweredStep:
    program = step.program
    body = _statements(program.body, core)
    if body == program.body:
        return step
    work = estimate(program.grid, body)
    return replace(step, program=replace(program, body=body, work=work))


def _statements(body: Iterable[Statement], core: Core) -> tuple[Statement, ...]:
    return tuple(_statement(part, core) for part in body)


def _statement(part: Statement, core: Core) -> Statement:
    match part:
        case Loop():
            if is_side_by_side(part):
                return _loop(part, core)
            made = _statements(part.body, core)
            return part if made == part.body else replace(part, body=made)
        case Stage(load=load, body=body, store=store):
            made = tuple(_statements(each, core) for each in (load, body, store))
            return part if made == (load, body, store) else Stage(part.axes, *made)
        case _:
            return part


def _loop(loop: Loop, core: Core) -> Loop:
    """A loop of vectors, with lookups if it is shorter by them."""
    stores = [part for part in loop.body if isinstance(part, Store)]
    if not any(part.buffer.dtype in BYTES for part in stores):
        return loop
    bound = {part.name: part.value for part in loop.body if isinstance(part, Let)}
    lookups = _Lookups(loop.variable, bound)
    body = [
        replace(part, value=lookups.value(part.value)) if isinstance(part, Store) else part
        for part in loop.body
    ]
    if not lookups.made:
        return loop
    made = replace(loop, body=_without_unused(body))
    length = loop.end - loop.begin
    length = length if length.is_constant else LONG
    before, after = (loop_cycles(core, each, length).value for each in (loop, made))
    return made if after < before else loop


def _without_unused(body: Iterable[Statement]) -> tuple[Statement, ...]:
    """Statements without values that nothing after them uses."""
    kept: list[Statement] = []
    used: set[str] = set()
    for part in reversed([*body]):
        if isinstance(part, Let) and part.name not in used:
            continue
        if isinstance(part, Let | Store):
            used |= value_symbols(part.value, {})
        kept.insert(0, part)
    return tuple(kept)


class _Inlined(ExpressionMap):
    """Values of one byte that is loaded, as those of a name."""

    def _value(self, value: Value) -> Value:
        if isinstance(value, Load):
            return Local(_BYTE, value.buffer.dtype)
        if isinstance(value, Local) and value.name in self.scalars:
            return self.value(self.scalars[value.name])
        return super()._value(value)


class _Lookups(ExpressionMap):
    """Values of a loop in which what is computed of one byte is looked up.

    ``scalars`` are the values that names of the loop stand for.
    """

    def __init__(self, variable: str, scalars: Mapping[str, Value]) -> None:
        super().__init__(lambda e: e, scalars)
        self.variable = variable
        self.made = False
        self._reads: dict[int, tuple[Value, list[Load] | None]] = {}

    def _value(self, value: Value) -> Value:
        if isinstance(value, Apply | Convert) and value.dtype in BYTES:
            loads = self._loads(value)
            if loads is not None and len(loads) == 1:
                table = self._table(value, loads[0].buffer.dtype)
                if table is not None:
                    self.made = True
                    return Apply(table_name(table), (loads[0],), value.dtype)
        return value if isinstance(value, Local) else super()._value(value)

    def _loads(self, value: Value) -> list[Load] | None:
        """The elements that a value is computed of; None where it is of more than bytes."""
        found = self._reads.get(id(value))
        if found is None:
            found = self._reads[id(value)] = (value, self._loads_of(value))
        return found[1]

    def _loads_of(self, value: Value) -> list[Load] | None:
        match value:
            case Load(buffer=buffer, offset=offset):
                is_byte = buffer.dtype in BYTES and slope(offset, self.variable) == 1
                return [value] if is_byte else None
            case Literal():
                return []
            case Local(name=name) if name in self.scalars:
                return self._loads(self.scalars[name])
            case Convert(operand=operand):
                return self._loads(operand)
            case Apply(function=function, operands=operands) if (
                function not in ADDING and not may_fault(value)
            ):
                found: dict[object, Load] = {}
                for loads in map(self._loads, operands):
                    if loads is None:
                        return None
                    found |= {(load.buffer, load.offset): load for load in loads}
                return [*found.values()]
            case _:
                return None

    def _table(self, value: Value, dtype: DType) -> bytes | None:
        """What a value is for every byte, if no number becomes whole that has no place there."""
        given = np.arange(256, dtype=np.uint8).view(dtype.numpy)
        inlined = _Inlined(lambda e: e, self.scalars).value(value)
        point = Point(Memory({}), {}, {_BYTE: given}, given.size)
        for part in value_parts(inlined):
            if isinstance(part, Convert) and part.dtype.is_integer and part.operand.dtype.is_float:
                numbers = np.trunc(np.asarray(point.value(part.operand), np.float64))
                limits = np.iinfo(part.dtype.value)
                if not ((limits.min <= numbers) & (numbers <= limits.max)).all():
                    return None
        results = np.broadcast_to(point.value(inlined), given.shape)
        return results.astype(value.dtype.numpy).tobytes()


__all__ = ["with_byte_tables"]
