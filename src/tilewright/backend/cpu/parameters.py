"""Turning everything that is fixed during a call into parameters of the kernel.

Sub-expressions without loop variables (sizes, strides, block sizes, and large constants such as the
width of a layer) become parameters which the runtime evaluates once per shape. The code then holds
no division by sizes, and layers that differ only in their sizes share one function. Small constants
stay, since strides and taps known when compiling make better code. Start with :func:`parametrise`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain

from tilewright.ir.listed_view import ListedView
from tilewright.ir.stage_axis import NEVER, Role, StageAxis
from tilewright.ir.tile import Finish, Product, RunTable, Statement, Sums, TileBuffer, TileProgram
from tilewright.ir.tile_walk import ExpressionMap, stages
from tilewright.shape import Expr, constant, product, select, symbol, total
from tilewright.shape.expr import Atom, apply_operation, rebuild
from tilewright.shape.table import Operation
from tilewright.tile.variants import THREADS

LARGEST_KEPT = 64  # constants up to this are strides, taps and tiles worth compiling for
MOST_ELEMENTS = 1 << 62  # no constant is larger


def parametrise(program: TileProgram) -> tuple[TileProgram, dict[str, Expr]]:
    """The program over parameters "p0", "p1", … and what each one stands for.

    Every part of the frame that stages make has parameters of its own, so that sizes which happen
    to be equal in one layer but not in the next do not make the code of two.
    """
    parameters = _Parameters()
    blocks = _blocks(program.body)
    size = parameters.own if any(stages(program.body)) else parameters.rewrite
    sizes = {name: size(extent) for name, extent in program.grid if name not in blocks}
    scratch = tuple(_resized(buffer, size) for buffer in program.scratch)
    body = _Parametrising(parameters).statements(program.body)
    sizes |= _blocks(body)
    grid = tuple((name, sizes[name]) for name, _ in program.grid)
    general = replace(program, grid=grid, scratch=scratch, body=body)
    fixed = {name: e for e, name in parameters.names.items()} | parameters.owned
    made: dict[Atom, Expr] = {}
    return general, {name: _without_faults(e, made) for name, e in fixed.items()}


def _blocks(body: Iterable[Statement]) -> dict[str, Expr]:
    """The variables of the grid that count blocks of stages, and how far."""
    axes = (axis for stage in stages(body) for axis in stage.axes)
    tasks = (axis.counters for axis in axes if axis.role is Role.PARALLEL)
    return dict(chain.from_iterable(tasks))


def _resized(buffer: TileBuffer, size: Callable[[Expr], Expr]) -> TileBuffer:
    assert buffer.elements is not None
    return replace(buffer, elements=size(buffer.elements))


class _Parametrising(ExpressionMap):
    def __init__(self, parameters: _Parameters) -> None:
        super().__init__(parameters.rewrite)
        self.parameters = parameters

    def offset(self, buffer: TileBuffer, offset: Expr, /) -> Expr:
        """The place in a buffer; within a fixed one, all distances stay known."""
        return self.parameters.layout(offset) if buffer.fixed else self.expression(offset)

    def axis(self, axis: StageAxis) -> StageAxis:
        """An axis of a stage, with parameters of its own."""
        own, outermost = self.parameters.own, axis.outermost
        outermost = outermost if outermost is NEVER else own(outermost)
        return replace(axis, extent=own(axis.extent), block=own(axis.block), outermost=outermost)

    def product(self, product: Product) -> Product:
        """A product; what lies in the scratch of a stage has strides of its own."""
        made, right = super().product(product), product.right
        if isinstance(product.target, Finish) and right.buffer.scratch:
            depth = (
                right.depth if isinstance(right, ListedView) else self.parameters.own(right.depth)
            )
            return replace(made, right=replace(made.right, row=right.row, depth=depth))
        if isinstance(product.target, Sums):
            return replace(made, columns=(made.columns[0], self._with_tail(*product.columns)))
        return made

    def _with_tail(self, begin: Expr, end: Expr) -> Expr:
        """Where columns end; the code knows their number modulo ``LARGEST_KEPT``.

        That is a multiple of any vector's elements, so that it knows how many fill no vectors.
        """
        columns = end - begin
        if not columns.is_constant or columns.value <= LARGEST_KEPT:
            return self.expression(end)
        whole, tail = divmod(columns.value, LARGEST_KEPT)
        return self.expression(begin) + self.parameters.own(constant(whole)) * LARGEST_KEPT + tail

    def runs(self, table: RunTable) -> RunTable:
        """An operand with a table, whose frame is the stage's."""
        own = self.parameters.own
        offset, depth = self.expression(table.offset), self.expression(table.depth)
        return replace(table, offset=offset, run=own(table.run), row=own(table.row), depth=depth)


class _Parameters:
    def __init__(self) -> None:
        self.largest = LARGEST_KEPT
        self.names: dict[Expr, str] = {}
        self.owned: dict[str, Expr] = {}

    def own(self, expression: Expr) -> Expr:
        """A parameter of its own, whatever else has the same value, if it is fixed."""
        if _varies(expression):
            return self.rewrite(expression)
        name = f"q{len(self.owned)}"
        self.owned[name] = expression
        return symbol(name)

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
        beside = next((e for e in (rest - 1, rest + 1) if e in self.names), None)
        if rest.is_constant and beside is not None:  # such as the elements of a row, and its last
            return symbol(self.names[beside]) + (rest - beside)
        name = self.names.setdefault(rest, f"p{len(self.names)}")
        return symbol(name) + known

    def _moving(self, atom: Atom) -> Expr:
        if atom.operation is Operation.SYMBOL:
            return symbol(atom.name)
        return apply_operation(atom.operation, tuple(map(self.rewrite, atom.operands)))


def _without_faults(expression: Expr, made: dict[Atom, Expr]) -> Expr:
    """The expression with quotients by 0 as 0: axes of no elements have no positions to compute.

    ``made`` holds what atoms have become.
    """
    atoms = [atom for monomial, _ in expression.terms for atom in monomial.atoms]
    for atom in atoms:
        if atom.operation is Operation.SYMBOL or atom in made:
            continue
        operands = tuple(_without_faults(operand, made) for operand in atom.operands)
        value = apply_operation(atom.operation, operands)
        is_quotient = atom.operation in (Operation.FLOORDIV, Operation.MOD, Operation.CEILDIV)
        if is_quotient and not operands[1].is_constant:
            value = select(operands[1], value, 0)
        made[atom] = value
    return rebuild(expression, {atom: made[atom] for atom in atoms if atom in made})


def _is_local(name: str) -> bool:
    """Whether a symbol is made by the program, as variables of loops are; others are sizes."""
    return name.startswith("_") and name != THREADS


def _varies(expression: Expr) -> bool:
    return any(map(_is_local, expression.free_symbols))


def _moves(atom: Atom) -> bool:
    if atom.operation is Operation.SYMBOL:
        return _is_local(atom.name)
    return any(map(_varies, atom.operands))


def _alone(atom: Atom) -> Expr:
    if atom.operation is Operation.SYMBOL:
        return symbol(atom.name)
    return apply_operation(atom.operation, atom.operands)
