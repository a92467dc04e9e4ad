"""Writing ONNX nodes: names, constants, and shape expressions as integer arithmetic.

The half of ``export`` that knows nothing of primitives. A shape expression becomes a rank-0 int64
tensor; a shape, an int64 vector. Start with :class:`OnnxWriter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tilewright.shape import Expr, Scope, symbol
from tilewright.shape.expr import Atom
from tilewright.shape.table import Operation
from tilewright.support.errors import DimensionError

Array = np.ndarray[Any, Any]


class OnnxWriter:
    """Collects nodes and initializers; values are names.

    ``symbols`` maps a dimension to the rank-0 int64 tensor that holds it.
    """

    def __init__(self, scope: Scope, taken: Sequence[str]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.symbols: dict[str, str] = {}
        self._scope = scope
        self._taken = set(taken)
        self._count = 0
        self._constants: dict[tuple[object, ...], str] = {}
        self._expressions: dict[Expr, str] = {}

    def fresh(self) -> str:
        """A name that nothing else has."""
        while True:
            name = f"v{self._count}"
            self._count += 1
            if name not in self._taken:
                self._taken.add(name)
                return name

    def emit(
        self, operator: str, inputs: Sequence[str], domain: str = "", **attributes: Any
    ) -> str:
        """A node with one output; attributes of None are left out."""
        return self.emit_many(operator, inputs, 1, domain, **attributes)[0]

    def emit_many(
        self, operator: str, inputs: Sequence[str], count: int, domain: str = "", **attributes: Any
    ) -> list[str]:
        """A node with ``count`` outputs."""
        names = [self.fresh() for _ in range(count)]
        present = {k: v for k, v in attributes.items() if v is not None}
        self.nodes.append(helper.make_node(operator, inputs, names, domain=domain, **present))
        return names

    def constant(self, array: Array) -> str:
        """An initializer; small equal ones are shared."""
        key = (array.dtype.str, str(array.dtype), array.shape, array.tobytes())
        small = array.dtype != object and array.size <= 64
        if small and key in self._constants:
            return self._constants[key]
        name = self.fresh()
        self.initializers.append(numpy_helper.from_array(array, name=name))
        if small:
            self._constants[key] = name
        return name

    def integer(self, value: int) -> str:
        """A rank-0 int64."""
        return self.constant(np.array(value, dtype=np.int64))

    def integers(self, values: Sequence[int]) -> str:
        """An int64 vector."""
        return self.constant(np.array(values, dtype=np.int64).reshape(len(values)))

    # ------------------------------------------------------------ expressions

    def sizes(self, expressions: Sequence[Expr]) -> str:
        """An int64 vector of shape expressions."""
        if all(e.is_constant for e in expressions):
            return self.integers([e.value for e in expressions])
        one = self.integers([1])
        parts = [
            self.integers([e.value])
            if e.is_constant
            else self.emit("Reshape", [self.expression(e), one])
            for e in expressions
        ]
        return parts[0] if len(parts) == 1 else self.emit("Concat", parts, axis=0)

    def expression(self, expression: Expr) -> str:
        """A rank-0 int64 with the value of a shape expression."""
        if expression.is_constant:
            return self.integer(expression.value)
        found = self._expressions.get(expression)
        if found is None:
            found = self._sum(expression)
            self._expressions[expression] = found
        return found

    def _sum(self, expression: Expr) -> str:
        total: str | None = None
        for monomial, coefficient in expression.terms:
            factors = [self._atom(atom) for atom in monomial.atoms]
            if coefficient != 1 or not factors:
                factors.append(self.integer(coefficient))
            term = factors[0]
            for factor in factors[1:]:
                term = self.emit("Mul", [term, factor])
            total = term if total is None else self.emit("Add", [total, term])
        return self.integer(0) if total is None else total

    def _atom(self, atom: Atom) -> str:
        if atom.operation is Operation.SYMBOL:
            return self._symbol(atom.name)
        x = [self.expression(operand) for operand in atom.operands]
        match atom.operation:
            case Operation.FLOORDIV:
                return self._floor_divide(x[0], x[1])
            case Operation.CEILDIV:
                return self.emit("Neg", [self._floor_divide(self.emit("Neg", [x[0]]), x[1])])
            case Operation.MOD:
                return self.emit("Mod", x)
            case Operation.MINIMUM:
                return self.emit("Min", x)
            case Operation.MAXIMUM:
                return self.emit("Max", x)
            case Operation.EQUAL:
                return self._number(self.emit("Equal", x))
            case Operation.LESS_EQUAL:
                return self._number(self.emit("LessOrEqual", x))
            case Operation.SELECT:
                return self.emit("Where", [self._truth(x[0]), x[1], x[2]])
            case Operation.NOT:
                return self._number(self.emit("Not", [self._truth(x[0])]))
            case _:
                name = "And" if atom.operation is Operation.AND else "Or"
                joined = self._truth(x[0])
                for operand in x[1:]:
                    joined = self.emit(name, [joined, self._truth(operand)])
                return self._number(joined)

    def _symbol(self, name: str) -> str:
        found = self.symbols.get(name)
        if found is not None:
            return found
        resolved = self._scope.resolve(symbol(name))
        if resolved is symbol(name) and name in self._scope.definitions:
            resolved = self._scope.definitions[name]
        if resolved is symbol(name):
            raise DimensionError(f'nothing determines the dimension "{name}"')
        return self.expression(resolved)

    def _floor_divide(self, a: str, b: str) -> str:
        """ONNX's integer division truncates; a multiple of the divisor has nothing to cut off."""
        remainder = self.emit("Mod", [a, b])
        return self.emit("Div", [self.emit("Sub", [a, remainder]), b])

    def _truth(self, x: str) -> str:
        return self.emit("Cast", [x], to=onnx.TensorProto.BOOL)

    def _number(self, x: str) -> str:
        return self.emit("Cast", [x], to=onnx.TensorProto.INT64)
