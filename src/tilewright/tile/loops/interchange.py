"""Private reductions whose elements lie side by side along the results, not along the reduction.

A nest computes one result after the other, each by a loop of its own. Where that loop walks memory
with a stride, while neighbouring results read neighbouring elements, the two loops are exchanged:
the running values of a block of results lie in scratch, and vectors run along the results. Start
with :func:`interchanged`; it knows accesses only, and no operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.ir.tile import (
    Let,
    Load,
    Local,
    Loop,
    Statement,
    Store,
    TileBuffer,
    Value,
    neutral_element,
)
from tilewright.ir.tile_walk import ExpressionMap, value_loads
from tilewright.shape import Expr, constant, symbol
from tilewright.tile.loops.searches import Searching
from tilewright.tile.loops.side_by_side import combined, row_groups, side_by_side
from tilewright.tile.nests import Columns
from tilewright.tile.values.best_position import Search, place_of, searched
from tilewright.tile.values.lowering import Lowering

# What takes rows into the running values of a result.
Step = Callable[[Expr, Sequence[Expr]], list[Statement]]


def interchanged(
    lowering: Lowering, variable: str, body: Sequence[Statement], block: Columns
) -> tuple[Statement, ...]:
    """The loop of ``variable`` over a block of results, in a body that :func:`reduces_across`."""
    exchange = _Exchange(lowering, variable, block)
    made: list[Statement] = []
    left = list(body)
    while left:
        statement = left.pop(0)
        if not isinstance(statement, Loop):
            made.append(exchange.along(lambda v, s=statement: [exchange.at(v).statement(s)]))
            continue
        following = left[0] if left else None
        search = searched(statement, following) if isinstance(following, Loop) else None
        if isinstance(following, Loop) and search is not None:
            made += exchange.search(search, statement, following)
            del left[0]
        else:
            made += exchange.reduction(statement)
    return tuple(made)


def reduces_across(variable: str, body: Sequence[Statement]) -> bool:
    """Whether a body stores what loops reduce, with elements side by side along ``variable``."""
    loops = [statement for statement in body if isinstance(statement, Loop)]
    stores = [statement for statement in body if isinstance(statement, Store)]
    if not loops or len(loops) + len(stores) < len(body):
        return False
    nests = [_nest(loop) for loop in loops]
    if any(nest is None or _depends(nest, variable) for nest in nests):
        return False
    across = [_lies_across(nest, variable) for nest in nests if nest is not None]
    return all(lies is not False for lies in across) and any(across)


def _nest(loop: Loop) -> list[Loop] | None:
    """Loops inside each other that do nothing but reduce, the innermost last; or None."""
    if not loop.accumulators:
        return None
    if any(isinstance(statement, Loop) for statement in loop.body):
        (inner, *others) = loop.body
        found = _nest(inner) if isinstance(inner, Loop) and not others else None
        return None if found is None else [loop, *found]
    if all(isinstance(statement, Let) for statement in loop.body):
        return [loop]
    return None


def _depends(nest: Sequence[Loop] | None, variable: str) -> bool:
    bounds = [bound for loop in nest or () for bound in (loop.begin, loop.end)]
    return any(variable in bound.free_symbols for bound in bounds)


def _lies_across(nest: Sequence[Loop], variable: str) -> bool | None:
    """Whether the elements of a reduction lie along ``variable``; None if they do not say."""
    innermost = nest[-1]
    across = False
    for load in _loads(innermost):
        affine = load.offset.affine((variable, innermost.variable))
        if affine is None:
            return False
        slopes, zero = affine[0], constant(0)
        beside, further = slopes.get(variable, zero), slopes.get(innermost.variable, zero)
        if beside not in (zero, constant(1)):
            return False
        if further is constant(1) and beside is zero:
            continue
        if further is constant(1):
            return False
        across = across or beside is constant(1)
    return across or None


def _loads(loop: Loop) -> Iterator[Load]:
    for statement in loop.body:
        if isinstance(statement, Let):
            yield from value_loads(statement.value)
    for accumulator in loop.accumulators:
        yield from value_loads(accumulator.value)


@dataclass
class _Exchange:
    """The running values in scratch, one row of a block's size for each reduction."""

    lowering: Lowering
    result: str
    block: Columns
    running: dict[str, TileBuffer] = field(default_factory=dict[str, TileBuffer])

    def along(self, body: Callable[[Expr], list[Statement]]) -> Loop:
        """A loop over the results."""
        variable = self.lowering.variable(self.block.most)
        return side_by_side(str(variable), self.block.count, body(variable))

    def at(self, variable: Expr, rows: Mapping[str, Expr] | None = None) -> ExpressionMap:
        """What rewrites statements for result ``variable`` of the block, and for certain rows."""
        place = self.block.first + variable
        read: dict[str, Value] = {
            name: Load(buffer, variable) for name, buffer in self.running.items()
        }
        return ExpressionMap.substitution({self.result: place, **(rows or {})}, read)

    def search(self, search: Search, best: Loop, place: Loop) -> list[Statement]:
        """One pass over the elements of two loops: the best so far and its place, side by side."""
        (elements,), (places,) = self._rows(best), self._rows(place)
        searching = Searching(self.lowering, search, elements, places)

        def step(variable: Expr, rows: Sequence[Expr]) -> list[Statement]:
            rewritten = (self.at(variable, {best.variable: row}) for row in rows)
            found = [
                (rewrite.value(search.element), place_of(row, places.dtype))
                for rewrite, row in zip(rewritten, rows, strict=True)
            ]
            return searching.step(variable, found)

        return [self.along(lambda v: searching.begun(v, best.begin)), *self._steps(best, step)]

    def _rows(self, loop: Loop) -> list[TileBuffer]:
        """A row of running values for each accumulator of a loop."""
        for accumulator in loop.accumulators:
            row = self.lowering.scratch_buffer(accumulator.value.dtype, self.block.most)
            self.running[accumulator.name] = row
        return [self.running[accumulator.name] for accumulator in loop.accumulators]

    def reduction(self, outermost: Loop) -> list[Statement]:
        """The neutral elements, then the loops of the reduction around the one over results."""
        nest = _nest(outermost)
        assert nest is not None
        innermost = nest[-1]
        self._rows(innermost)
        made: tuple[Statement, ...] = self._steps(
            innermost, lambda variable, rows: self._combined(innermost, variable, rows)
        )
        for loop in reversed(nest[:-1]):
            made = (Loop(loop.variable, loop.begin, loop.end, made),)
        return [self.along(lambda v: self._neutral(innermost, v)), *made]

    def _steps(self, loop: Loop, step: Step) -> tuple[Statement, ...]:
        """The loops over the rows of ``loop``, around those over the results."""
        bounds, row = (loop.begin, loop.end), symbol(loop.variable)
        return row_groups(
            self.lowering, bounds, row, lambda rows: self.along(lambda v: step(v, rows))
        )

    def _neutral(self, loop: Loop, variable: Expr) -> list[Statement]:
        return [
            Store(self.running[a.name], variable, neutral_element(a.kind, a.value.dtype))
            for a in loop.accumulators
        ]

    def _combined(self, loop: Loop, variable: Expr, rows: Sequence[Expr]) -> list[Statement]:
        """The elements of ``rows`` combined, and taken into the running values."""
        made: list[Statement] = []
        taken: list[list[Value]] = [[] for _ in loop.accumulators]
        for row in rows:
            rewrite = self.at(variable, {loop.variable: row})
            for statement in loop.body:
                assert isinstance(statement, Let)
                name = self.lowering.name("v")
                made.append(Let(name, rewrite.value(statement.value)))
                rewrite.scalars[statement.name] = Local(name, statement.value.dtype)
            for values, a in zip(taken, loop.accumulators, strict=True):
                values.append(rewrite.value(a.value))
        for values, a in zip(taken, loop.accumulators, strict=True):
            # What is loaded where the result is stored comes second: LLVM would store all but
            # its NaNs, under a mask, which takes some cores ten times as long.
            before = Load(self.running[a.name], variable)
            value = combined(a.kind, [combined(a.kind, values), before])
            made.append(Store(before.buffer, variable, value))
        return made
