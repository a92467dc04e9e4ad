"""Turning everything that is fixed during a call into parameters of the kernel.

Sub-expressions without loop variables (sizes, strides, block sizes, and large constants such as the
width of a layer) become parameters which the runtime evaluates once per shape. The code then holds
no division by sizes, and layers that differ only in their sizes share one function. Small constants
stay, since strides and taps known when compiling make better code. Start with :func:`parametrise`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilewright.ir.tile import (
    Contraction,
    Gathering,
    LoopProgram,
    Operand,
    Packing,
    TileBuffer,
    TileProgram,
)
from tilewright.ir.tile_walk import ExpressionMap
from tilewright.shape import Expr, constant, product, symbol, total
from tilewright.shape.expr import Atom, apply_operation
from tilewright.shape.table import Operation

LARGEST_KEPT = 64  # constants up to this are strides, taps and tiles worth compiling for
MOST_ELEMENTS = 1 << 62  # no constant is larger


def parametrise(program: TileProgram) -> tuple[TileProgram, dict[str, Expr]]:
    """The program over parameters "p0", "p1", … and what each one stands for."""
    parameters = _Parameters()
    mapping = _Parametrising(parameters)
    if isinstance(program, LoopProgram):
        general: TileProgram = replace(
            program,
            grid=parameters.axes(program.grid),
            scratch=tuple(parameters.buffer(b) for b in program.scratch),
            body=mapping.statements(program.body),
        )
    else:
        general = _contraction(program, parameters, mapping)
    return general, {name: e for e, name in parameters.names.items()} | parameters.owned


def _contraction(
    program: Contraction, parameters: _Parameters, mapping: ExpressionMap
) -> Contraction:
    """Every part of the frame has parameters of its own, so that sizes which happen to be equal in
    one layer but not in the next do not make the code of two."""
    rewrite, own = parameters.rewrite, parameters.own

    def gathered(side: Gathering) -> Gathering:
        return replace(
            side,
            buffer=parameters.scratch(side.buffer) if side.buffer.scratch else side.buffer,
            base=rewrite(side.base),
            run=own(side.run),
            table=parameters.scratch(side.table),
            row=own(side.row),
            body=mapping.statements(side.body),
            zeros=None if side.zeros is None else parameters.scratch(side.zeros),
            shifts=None if side.shifts is None else parameters.scratch(side.shifts),
        )

    def operand(side: Operand) -> Operand:
        base, row, depth = rewrite(side.base), rewrite(side.row), rewrite(side.depth)
        return replace(side, base=base, row=row, depth=depth)

    left, right = program.left, program.right
    return replace(
        program,
        batch=tuple((name, own(size)) for name, size in program.batch),
        m=own(program.m),
        n=own(program.n),
        k=own(program.k),
        left=gathered(left) if isinstance(left, Gathering) else operand(left),
        right=operand(right)
        if isinstance(right, Operand)
        else Packing(
            parameters.scratch(right.target), own(right.row), mapping.statements(right.body)
        ),
        block_m=own(program.block_m),
        block_n=own(program.block_n),
        block_k=own(program.block_k),
        stores=mapping.stores(program.stores),
        stages=tuple(map(parameters.scratch, program.stages)),
        after=mapping.statements(program.after),
    )


class _Parametrising(ExpressionMap):
    def __init__(self, parameters: _Parameters) -> None:
        super().__init__(parameters.rewrite)
        self.parameters = parameters

    def offset(self, buffer: TileBuffer, offset: Expr, /) -> Expr:
        """The place in a buffer; within a fixed one, all distances stay known."""
        return self.parameters.layout(offset) if buffer.fixed else self.expression(offset)


class _Parameters:
    def __init__(self) -> None:
        self.largest = LARGEST_KEPT
        self.names: dict[Expr, str] = {}
        self.owned: dict[str, Expr] = {}

    def axes(self, axes: Iterable[tuple[str, Expr]]) -> tuple[tuple[str, Expr], ...]:
        return tuple((name, self.rewrite(size)) for name, size in axes)

    def buffer(self, buffer: TileBuffer) -> TileBuffer:
        assert buffer.elements is not None
        return replace(buffer, elements=self.rewrite(buffer.elements))

    def own(self, expression: Expr) -> Expr:
        """A parameter of its own, whatever else has the same value, if it is fixed."""
        if _varies(expression):
            return self.rewrite(expression)
        name = f"q{len(self.owned)}"
        self.owned[name] = expression
        return symbol(name)

    def scratch(self, buffer: TileBuffer) -> TileBuffer:
        """The buffer with a parameter of its own for its size."""
        assert buffer.elements is not None
        return replace(buffer, elements=self.own(buffer.elements))

    def rewrite(self, expression: Expr) -> Expr:
        """The expression with every maximal part that is fixed during a call as a parameter."""
        if not _varies(expression):
            return self._fixed(expression)
        factors: dict[tuple[Atom, ...], list[Expr]] = {}
        for monomial, coefficient in expression.terms:
            moving = tuple(a for a in monomial.atoms if _moves(a))
            fixed = product([_alone(a) for a in monomial.atoms if not _moves(a)])
            factors.setdefault(moving, []).append(fixed * coefficient)
        return total(
            self._fixed(total(parts)) * product([self._moving(a) for a in moving])
            for moving, parts in factors.items()
        )

    def layout(self, expression: Expr) -> Expr:
        """The expression with sizes alone as parameters, and all constants kept."""
        self.largest = MOST_ELEMENTS
        made = self.rewrite(expression)
        self.largest = LARGEST_KEPT
        return made

    def _fixed(self, expression: Expr) -> Expr:
        # A known number stays apart: places that differ by one are seen to do so.
        known = expression.constant_term
        known = known if abs(known) <= self.largest else 0
        rest = expression - known
        if rest is constant(0):
            return expression
        name = self.names.setdefault(rest, f"p{len(self.names)}")
        return symbol(name) + known

    def _moving(self, atom: Atom) -> Expr:
        if atom.operation is Operation.SYMBOL:
            return symbol(atom.name)
        return apply_operation(atom.operation, tuple(map(self.rewrite, atom.operands)))


def _varies(expression: Expr) -> bool:
    return any(name.startswith("_") for name in expression.free_symbols)


def _moves(atom: Atom) -> bool:
    if atom.operation is Operation.SYMBOL:
        return atom.name.startswith("_")
    return any(map(_varies, atom.operands))


def _alone(atom: Atom) -> Expr:
    if atom.operation is Operation.SYMBOL:
        return symbol(atom.name)
    return apply_operation(atom.operation, atom.operands)
