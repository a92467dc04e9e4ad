"""Index expressions in Triton: integers of 64 bits, as scalars or along the axes of a tile.

Sizes are arguments; quotients are rounded down as those of ``shape`` are, also where Triton's own
are not, and no divisor is 0. Start with :meth:`Indices.integer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.backend.gpu.writer import Term, Writer
from tilewright.shape import Expr, Truth
from tilewright.shape.table import BOOLEANS, Operation

if TYPE_CHECKING:
    from tilewright.shape.expr import Atom

_BINARY = {
    Operation.EQUAL: "==",
    Operation.LESS_EQUAL: "<=",
    Operation.AND: "&",
    Operation.OR: "|",
}
ONE_ELEMENT = "tl.zeros((1, 1), tl.int64)"  # makes a tensor of a scalar that is added to it


@dataclass(frozen=True)
class Indices:
    """Prints expressions, in which ``names`` are positions in a tile, if there is one.

    Conditions are tensors in a tile, also where they are the same for all of it: the interpreter
    cannot combine a scalar one with a tensor.
    """

    writer: Writer
    names: Mapping[str, Term]
    in_tile: bool = False

    def integer(self, expression: Expr) -> Term:
        """The value of an expression."""
        if expression.atom is not None:
            return self._atom(expression.atom)
        text, axes = "", frozenset[int]()
        for monomial, coefficient in expression.terms:
            factors = [self._atom(atom) for atom in monomial.atoms]
            axes = axes.union(*(factor.axes for factor in factors))
            texts = [_bracketed(factor.text) for factor in factors]
            if abs(coefficient) != 1 or not texts:
                texts.insert(0, str(abs(coefficient)))
            sign = "-" if coefficient < 0 else "+"
            product = "*".join(texts)
            text += f" {sign} {product}" if text else ("-" if coefficient < 0 else "") + product
        return Term(text or "0", axes)

    def condition(self, expression: Expr) -> Term:
        """Whether the value of an expression is not 0."""
        atom = expression.atom
        if atom is not None and atom.operation in BOOLEANS:
            return self._truth(atom)
        value = self.integer(expression)
        return Term(f"({value.text}) != 0", value.axes)

    def _truth(self, atom: Atom) -> Term:
        if atom.operation is Operation.NOT:
            inner = self.condition(atom.operands[0])
            return Term(f"({inner.text}) == 0", inner.axes)
        sign = f" {_BINARY[atom.operation]} "
        if atom.operation in (Operation.AND, Operation.OR):
            parts = [self.condition(operand) for operand in atom.operands]
            return Term(sign.join(f"({part.text})" for part in parts), _axes(parts))
        parts = [self.integer(operand) for operand in atom.operands]
        text, axes = sign.join(part.text for part in parts), _axes(parts)
        return Term(f"{ONE_ELEMENT} + {text}" if self.in_tile and not axes else text, axes)

    def _atom(self, atom: Atom) -> Term:
        """A name or an application."""
        if atom.operation is Operation.SYMBOL:
            return self.names.get(atom.name) or Term(self.writer.size(atom.name))
        if atom.operation in BOOLEANS:
            value = self._truth(atom)
            return Term(f"({value.text}).to(tl.int64)", value.axes)
        if atom.operation is Operation.SELECT:
            chosen, *parts = self.condition(atom.operands[0]), *map(self.integer, atom.operands[1:])
            text = f"tl.where({chosen.text}, {parts[0].text}, {parts[1].text})"
            return Term(text, _axes([chosen, *parts]))
        parts = [self.integer(operand) for operand in atom.operands]
        above, below = atom.operands[0], atom.operands[-1]
        match atom.operation:
            case Operation.FLOORDIV:
                text = self._divided(above, below, "//")
            case Operation.CEILDIV:
                text = self._divided(above + below - 1, below, "//")
            case Operation.MOD:
                text = self._divided(above, below, "%")
            case _:
                name = "minimum" if atom.operation is Operation.MINIMUM else "maximum"
                text = parts[0].text
                for part in parts[1:]:
                    text = f"tl.{name}({text}, {part.text})"
        return Term(text, _axes(parts))

    def _divided(self, above: Expr, below: Expr, sign: str) -> str:
        """A quotient rounded down, or what is left of one."""
        numerator, divisor = self.integer(above).text, self._divisor(below)
        if self.writer.lowering.scope.is_less_equal(0, above) is Truth.YES:
            return f"{_bracketed(numerator)} {sign} {_bracketed(divisor)}"
        name = self.writer.helper("floor_divide")
        if sign == "%":
            name = self.writer.helper("floor_remainder")
        return f"{name}({numerator}, {divisor})"

    def _divisor(self, expression: Expr) -> str:
        """A divisor, or 1 in the place of a 0, by which only what nobody reads is divided."""
        text = self.integer(expression).text
        is_positive = self.writer.lowering.scope.is_less(0, expression) is Truth.YES
        return text if is_positive else f"tl.maximum({text}, 1)"


def _axes(parts: list[Term]) -> frozenset[int]:
    return frozenset[int]().union(*(part.axes for part in parts))


def _bracketed(text: str) -> str:
    """Text that is one operand wherever it stands."""
    return text if text.isidentifier() or text.isdigit() else f"({text})"
