"""Values of tile programs in numpy, at one point of their loops or at many at once.

A :class:`Point` knows what names mean there. It follows the rule by which backends write code: a
value that several statements share is computed once in a block, where it is first needed. Start
with :meth:`Point.value`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import identity
from tilewright.ir.scalar import ADDING, SCALAR_FUNCTIONS
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
from tilewright.shape import Expr
from tilewright.shape.expr import Atom
from tilewright.shape.table import Operation

Array = np.ndarray[Any, Any]
Index = Any  # an int, or an int64 array with one element for each point


class OutsideBuffer(Exception):
    """A program reads or writes beside a buffer."""


class Memory:
    """The buffers of a running program, each as one row of elements."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self.arrays = {name: array.reshape(-1) for name, array in arrays.items()}

    def checked(self, buffer: TileBuffer, offset: Index, size: int) -> Index:
        """``offset``, which is below ``size``; raises :class:`OutsideBuffer` if it is not."""
        places = np.asarray(offset)
        if places.size and (places.min() < 0 or places.max() >= size):
            wrong = places[(places < 0) | (places >= size)].reshape(-1)[0]
            raise OutsideBuffer(f"element {wrong} of the {size} of {buffer.name}")
        return offset

    def read(self, buffer: TileBuffer, offset: Index) -> Any:
        """Elements of a buffer."""
        array = self.arrays[buffer.name]
        return array[self.checked(buffer, offset, array.size)]

    def write(self, buffer: TileBuffer, offset: Index, value: Any) -> None:
        """Write elements; of several for one place, the last stays."""
        array = self.arrays[buffer.name]
        single = np.ndim(offset) == 0 and np.ndim(value)
        array[self.checked(buffer, offset, array.size)] = value[-1] if single else value

    def words(self, buffer: TileBuffer, places: Array, bytes_: int, dtype: DType) -> Array:
        """The ``bytes_`` bytes from each of ``places`` on, as elements of ``dtype`` (last axis)."""
        raw = self.arrays[buffer.name].view(np.uint8)
        self.checked(buffer, places + (bytes_ - 1), raw.size)
        self.checked(buffer, places, raw.size)
        whole = raw[places[..., None] + np.arange(bytes_)]
        return whole.view(dtype.numpy)


class Point:
    """What names and locals mean at ``count`` points of a loop, or at one if it is None.

    A point made of another one forgets what it computes itself, and sees what that one knows, of
    which it has the points ``chosen``.
    """

    def __init__(
        self,
        memory: Memory,
        names: dict[str, Index],
        values: dict[str, Any],
        count: int | None = None,
        outer: Point | None = None,
        chosen: Array | None = None,
    ) -> None:
        self.memory = memory
        self.names = names
        self.locals = values
        self.count = count
        self._outer = outer
        self._chosen = chosen
        self._known: dict[int, Any] = {}

    def inner(self, names: dict[str, Index] | None = None, count: int | None = None) -> Point:
        """A block inside of this one, with ``names`` more; at ``count`` points if that is given."""
        made = {**self.names, **(names or {})}
        count = self.count if count is None else count
        return Point(self.memory, made, self.locals, count, self)

    def _of(self, chosen: Array) -> Point:
        """Some of the points."""
        names = {name: _picked(value, chosen) for name, value in self.names.items()}
        values = {name: _picked(value, chosen) for name, value in self.locals.items()}
        return Point(self.memory, names, values, len(chosen), self, chosen)

    # ------------------------------------------------------------ index expressions

    def index(self, expression: Expr) -> Index:
        """An index expression."""
        names = self.names
        if all(isinstance(names[name], int) for name in expression.free_symbols):
            return expression.evaluate(names)
        return self._sum(expression)

    def _sum(self, expression: Expr) -> Index:
        total: Index = 0
        for monomial, coefficient in expression.terms:
            factor: Index = coefficient
            for atom in monomial.atoms:
                factor = factor * self._atom(atom)
            total = total + factor
        return total

    def _atom(self, atom: Atom) -> Index:
        if atom.operation is Operation.SYMBOL:
            return self.names[atom.name]
        with np.errstate(all="ignore"):
            return _applied(atom.operation, [self._sum(operand) for operand in atom.operands])

    # ------------------------------------------------------------ values

    def value(self, value: Value) -> Any:
        """A value, computed once in a block."""
        found = self._remembered(value)
        if found is None:
            with np.errstate(all="ignore"):
                found = self._value(value)
            self._known[id(value)] = found
        return found

    def _remembered(self, value: Value) -> Any:
        found = self._known.get(id(value))
        if found is None and self._outer is not None:
            found = self._outer._remembered(value)
            if found is not None and self._chosen is not None:
                found = _picked(found, self._chosen)
        return found

    def _value(self, value: Value) -> Any:
        match value:
            case Load(buffer=buffer, offset=offset):
                return self.memory.read(buffer, self.index(offset))
            case Literal(value=number, dtype=dtype):
                return dtype.numpy.type(number)
            case IndexValue(expression=expression):
                return np.asarray(self.index(expression), np.int64)[()]
            case Apply():
                return self._apply(value)
            case Convert(operand=operand, dtype=dtype):
                return _converted(self.value(operand), dtype)
            case Local(name=name, dtype=dtype) if name.startswith(IDENTITY):
                return identity(name[len(IDENTITY) :], np.dtype(dtype.numpy))
            case Local(name=name):
                return self.locals[name]
            case Guarded():
                return self._guarded(value)

    def _apply(self, value: Apply) -> Any:
        operands = [self.value(operand) for operand in value.operands]
        if value.function in ADDING:
            return _converted(ADDING[value.function](*operands), value.dtype)
        arrays = [np.asarray(operand) for operand in operands]
        made = SCALAR_FUNCTIONS[value.function].meaning(*arrays)
        return np.asarray(made).astype(value.dtype.numpy, copy=False)[()]

    def _guarded(self, value: Guarded) -> Any:
        truth = np.asarray(self.index(value.predicate)) != 0
        if truth.all() or not truth.any():
            return self.inner().value(value.inside if truth.all() else value.outside)
        made = np.empty(truth.shape, value.dtype.numpy)
        for chosen, choice in ((truth, value.inside), (~truth, value.outside)):
            (places,) = np.nonzero(chosen)
            made[places] = self._of(places).value(choice)
        return made


def _picked(value: Any, chosen: Array) -> Any:
    return value[chosen] if np.ndim(value) else value


def _converted(value: Any, dtype: DType) -> Any:
    array = np.asarray(value)
    return (array != 0 if dtype is DType.BOOL else array.astype(dtype.numpy))[()]


def _applied(operation: Operation, x: list[Index]) -> Index:
    match operation:
        case Operation.FLOORDIV:
            return x[0] // x[1]
        case Operation.MOD:
            return x[0] % x[1]
        case Operation.CEILDIV:
            return -(-x[0] // x[1])
        case Operation.MINIMUM:
            return _folded(np.minimum, x)
        case Operation.MAXIMUM:
            return _folded(np.maximum, x)
        case Operation.EQUAL:
            return np.equal(x[0], x[1]).astype(np.int64)
        case Operation.LESS_EQUAL:
            return np.less_equal(x[0], x[1]).astype(np.int64)
        case Operation.SELECT:
            return np.where(np.not_equal(x[0], 0), x[1], x[2])
        case Operation.AND:
            return _folded(np.logical_and, x).astype(np.int64)
        case Operation.OR:
            return _folded(np.logical_or, x).astype(np.int64)
        case Operation.NOT:
            return np.equal(x[0], 0).astype(np.int64)
        case _:
            raise AssertionError(f"no meaning for {operation.name}")


def _folded(function: np.ufunc, operands: list[Index]) -> Any:
    made: Any = operands[0]
    for operand in operands[1:]:
        made = function(made, operand)
    return np.asarray(made)


__all__ = ["Memory", "OutsideBuffer", "Point"]
