"""Lowering primitives to scalar values: what is element ``index`` of a node?

:class:`Lowering` answers that by pulling the index back through layout primitives, applying scalar
functions, and stopping at what the kernel reads. Work that needs statements (positions read from
data, private reductions) is placed in the outermost open loop where its operands are known. Start
with :meth:`Lowering.value`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tilewright.ir.access import below_reshapes
from tilewright.ir.decay import DECAY, decays
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import (
    ArgReduce,
    Broadcast,
    Cast,
    Concat,
    Constant,
    Contract,
    Convolve,
    Dimension,
    Gather,
    GatherElements,
    GatherND,
    Iota,
    Map,
    Pad,
    Reduce,
    Reshape,
    Slice,
    Transpose,
    Window,
)
from tilewright.ir.progressions import is_known_below, known_integer
from tilewright.ir.scalar import DIVISIONS
from tilewright.ir.tile import (
    Accumulator,
    Apply,
    Check,
    Convert,
    Guarded,
    IndexValue,
    LetIndex,
    Literal,
    Load,
    Local,
    Loop,
    TileBuffer,
    Value,
    multiplied,
    neutral_element,
)
from tilewright.ir.views import Index, declare_index, linear, looked_up, pull_back
from tilewright.shape import (
    Expr,
    Scope,
    Truth,
    as_expr,
    constant,
    less,
    less_equal,
    logical_and,
    select,
)
from tilewright.tile.values import whole
from tilewright.tile.values.best_position import best_position
from tilewright.tile.values.taps import Tap, geometry, tap_position
from tilewright.tile.values.writer import ProgramWriter


class Lowering(ProgramWriter):
    """State while one kernel is lowered: the program written so far, and what values are known.

    ``memory`` are the nodes that the kernel reads, ``cached`` what gives elements of a node that
    was computed before, or None for an element that was not.
    """

    def __init__(self, kernel: Kernel, scope: Scope) -> None:
        super().__init__(scope)
        self.memory = frozenset(kernel.reads)
        self.kernel = kernel
        self.cached: dict[Node, Callable[[Index], Value | None]] = {}
        self._below: dict[tuple[Node, Expr], bool] = {}  # whether all positions are known

    def continued(self, kernel: Kernel, scope: Scope) -> Lowering:
        """A lowering of another kernel into the same program: names, buffers and messages go on.

        Facts about indices do not: names of axes mean something else there.
        """
        made = Lowering(kernel, scope)
        made.continue_program(self)
        return made

    def is_stored(self, node: Node) -> bool:
        """Whether the elements of a node are in memory in its own order."""
        return below_reshapes(node, self.memory) in self.memory

    def stored(self, node: Node) -> TileBuffer:
        """The memory of a node or of one that it is a Reshape of."""
        return self.buffer(below_reshapes(node, self.memory))

    # ------------------------------------------------------------ values

    def value(self, node: Node, index: Sequence[Expr | int]) -> Value:
        """Element ``index`` of ``node``; equal questions share one answer."""
        position = tuple(self.scope.resolve(as_expr(i)) for i in index)
        key = (node, position)
        for block in self.blocks:
            if key in block.memo:
                return block.memo[key]
        made = self._value(node, position)
        self.blocks[self.level_of(self.symbols(made))].memo[key] = made
        return made

    def _value(self, node: Node, index: Index) -> Value:
        if node in self.cached:
            found = self.cached[node](index)
            if found is not None:
                return found
        base = below_reshapes(node, self.memory)
        if base in self.memory or (isinstance(base.primitive, Constant) and base.rank > 0):
            return Load(self.buffer(base), self.scope.resolve(linear(index, node.shape)))
        match node.primitive:
            case Constant(array=array):
                return Literal(array.item() if node.dtype is not DType.BFLOAT16
                               else float(array), node.dtype)  # fmt: skip
            case Dimension(value=value):
                return IndexValue(value)
            case Iota(axis=axis):
                return IndexValue(index[axis])
            case Map(function=function):
                return self._map(node, function, index)
            case Cast(dtype=dtype):
                return self._cast(self.value(node.inputs[0], index), dtype)
            case Reshape() | Transpose() | Broadcast() | Slice():
                return self.value(node.inputs[0], pull_back(node, index, self.scope))
            case Pad():
                return self._pad(node, index)
            case Concat(axis=axis):
                return self._concat(node, axis, index)
            case Gather() | GatherElements() | GatherND():
                find = partial(self.position, node)
                return self.value(node.inputs[0], looked_up(node, index, find))
            case _:
                return self._reduced(node, index)

    def _map(self, node: Node, function: str, index: Index) -> Value:
        operands = tuple(self.value(i, index) for i in node.inputs)
        if function == "subtract":
            shifted = whole.minus(*operands)
            if shifted is not None:
                return shifted
        if decays(node):
            function = DECAY
        made = Apply(function, operands, node.dtype)
        integer = operands[-1].dtype.is_integer
        if integer and function in DIVISIONS:
            self._check_divisor(operands[1])
        return made

    def _check_divisor(self, divisor: Value) -> None:
        if isinstance(divisor, Literal) and divisor.value != 0:
            return
        level = self.level_of(self.symbols(divisor))
        zero = Apply("equal", (divisor, Literal(0, divisor.dtype)), DType.BOOL)
        runs = self.runs_within(level)
        if not _is_zero(runs):
            found = _where(runs, zero, Literal(False, DType.BOOL))
            check = self.check("integer division by zero")
            self.blocks[level].statements.append(Check(found, check))

    def _cast(self, value: Value, dtype: DType) -> Value:
        if isinstance(value, Literal) and dtype.is_float and not dtype.is_half:
            return Literal(float(value.value), dtype)
        same = whole.as_float(value) if dtype is DType.FLOAT32 else None
        return Convert(value, dtype) if same is None else same

    def _pad(self, node: Node, index: Index) -> Value:
        primitive = node.primitive
        assert isinstance(primitive, Pad)
        operand = node.inputs[0]
        inside = constant(1)
        shifted: list[Expr] = []
        for i, low, high, size in zip(
            index, primitive.low, primitive.high, operand.shape, strict=True
        ):
            shifted.append(i - low)
            if not _is_zero(low):
                inside = logical_and(inside, less_equal(low, i))
            if not _is_zero(high):
                inside = logical_and(inside, less(i, low + size))
        fill = self.value(node.inputs[1], ())
        return self.guarded(self.scope.resolve(inside), operand, tuple(shifted), fill)

    def guarded(self, predicate: Expr, node: Node, index: Index, fill: Value) -> Value:
        """Element ``index`` of ``node`` where ``predicate`` is not 0, else ``fill``."""
        if predicate.is_constant:
            return self.value(node, index) if predicate.value else fill
        return Guarded(predicate, self.value(node, index), fill)

    def _concat(self, node: Node, axis: int, index: Index) -> Value:
        begin = constant(0)
        parts: list[tuple[Expr, Node, Index]] = []
        for operand in node.inputs:
            shifted = (*index[:axis], index[axis] - begin, *index[axis + 1 :])
            begin = begin + operand.shape[axis]
            parts.append((begin, operand, shifted))
        made = self.value(parts[-1][1], parts[-1][2])
        for end, operand, shifted in reversed(parts[:-1]):
            made = self.guarded(self.scope.resolve(less(index[axis], end)), operand, shifted, made)
        return made

    # ------------------------------------------------------------ positions read from data

    def position(self, node: Node, index: Index, limit: Expr) -> Expr:
        """An index local holding element ``index`` of a node's indices, checked for ``limit``.

        It is found in the outermost body in which it is known, but only if the loops inside of
        that run: there may be no such element otherwise. What indices alone decide is no local.
        """
        indices = node.inputs[1]
        known = self._known(indices, index, limit)
        if known is not None:
            return self.scope.resolve(known)
        value = self.value(indices, index)
        name = self.name("g")
        where = self.kernel.labels.get(node, self.kernel.label)
        message = f"{where}: index {{0}} is out of bounds for an axis of size {{1}}"
        level = self.level_of((*self.symbols(value), *limit.free_symbols))
        runs = self.runs_within(level)
        if _is_zero(runs):
            return constant(0)
        key = (value, limit, runs)
        known = self.blocks[level].positions.get(key)
        if known is not None:
            return known
        value = _where(runs, value, Literal(0, DType.INT64))
        some = limit if runs.is_constant else select(runs, limit, 1)
        statement = LetIndex(name, value, some, self.check(message))
        self.blocks[level].statements.append(statement)
        self.depth[name] = level
        made = declare_index(self.scope, name, limit)
        self.blocks[level].positions[key] = made
        return made

    def _known(self, indices: Node, index: Index, limit: Expr) -> Expr | None:
        key = (indices, limit)
        if key not in self._below:
            self._below[key] = is_known_below(indices, limit, self.scope)
        return known_integer(indices, index, self.scope) if self._below[key] else None

    # ------------------------------------------------------------ private reductions

    def _reduced(self, node: Node, index: Index) -> Value:
        match node.primitive:
            case Reduce(kind=kind, axes=axes):
                return self._reduce(node, kind, axes, index)
            case ArgReduce():
                return self._arg_reduce(node, index)
            case Contract():
                return self._contract(node, index)
            case Convolve():
                return self._convolve(node, index)
            case Window():
                return self._window(node, index)
            case _:
                raise AssertionError(f"{node!r} must live in memory")

    def _while_existing(self, node: Node, index: Index, end: Expr) -> Expr:
        """``end``, or 0 where ``node`` has no element ``index``, which may be 0 all the same."""
        known = [size for i, size in zip(index, node.shape, strict=True) if i.is_constant]
        exists = self.scope.resolve(logical_and(*(less(0, size) for size in known)))
        return end if exists.is_constant and exists.value else select(exists, end, 0)

    def nest(
        self, node: Node, index: Index, extents: Sequence[Expr], kind: str,
        inner: Callable[[Index], Value], dtype: DType,
    ) -> Value:  # fmt: skip
        """``inner``, of type ``dtype``, reduced over loops [0, extent) for element ``index``.

        They are placed as far out as they can be.
        """
        level = self.level_of(_symbols(index))
        outer, self.blocks = self.blocks, self.blocks[: level + 1]
        name = self.name("r")
        variables: list[Expr] = []
        ends = [self._while_existing(node, index, end) for end in extents[:1]] + [*extents[1:]]
        for extent, end in zip(extents, ends, strict=True):
            variable = self.name("k")
            self.depth[variable] = len(self.blocks)
            variables.append(declare_index(self.scope, variable, extent))
            self.open()
            self.blocks[-1].extents.append(end)
        value = inner(tuple(variables))
        for end, variable in reversed(list(zip(ends, variables, strict=True))):
            body = self.close()
            step = Accumulator(name, kind, value)
            self.emit(Loop(str(variable), constant(0), end, body, (step,)))
            value = Local(name, dtype)
        self.blocks = outer
        self.depth[name] = level
        return Local(name, dtype)

    def _reduce(self, node: Node, kind: str, axes: tuple[int, ...], index: Index) -> Value:
        operand = node.inputs[0]

        def inner(inner_index: Index) -> Value:
            reduced, kept = iter(inner_index), iter(index)
            full = [next(reduced) if a in axes else next(kept) for a in range(operand.rank)]
            return self.value(operand, full)

        return self.nest(node, index, [operand.shape[a] for a in axes], kind, inner, node.dtype)

    def _arg_reduce(self, node: Node, index: Index) -> Value:
        primitive = node.primitive
        assert isinstance(primitive, ArgReduce)
        axis = primitive.axis
        length = node.inputs[0].shape[axis]

        def element(k: Index) -> Value:
            return self.value(node.inputs[0], (*index[:axis], *k, *index[axis:]))

        def nest(kind: str, inner: Callable[[Index], Value], dtype: DType) -> Value:
            return self.nest(node, index, [length], kind, inner, dtype)

        is_short = self.scope.is_less(length, 2**31) is Truth.YES
        kept = DType.INT32 if is_short else DType.INT64
        found = best_position(primitive, (length, node.inputs[0].dtype), kept, element, nest)
        some = self.scope.resolve(less(0, self._while_existing(node, index, length)))
        nothing = Literal(0, DType.INT64)
        return nothing if _is_zero(some) else _where(some, found, nothing)

    def _contract(self, node: Node, index: Index) -> Value:
        primitive = node.primitive
        assert isinstance(primitive, Contract)
        left, right = node.inputs
        batch, summed = primitive.batch, primitive.summed
        free = left.rank - len(batch) - len(summed)

        def inner(k: Index) -> Value:
            left_fixed = {i: index[p] for p, (i, _) in enumerate(batch)}
            right_fixed = {j: index[p] for p, (_, j) in enumerate(batch)}
            for position, (i, j) in enumerate(summed):
                left_fixed[i] = right_fixed[j] = k[position]
            a = self.value(left, _fill(left.rank, left_fixed, index[len(batch) :]))
            b = self.value(right, _fill(right.rank, right_fixed, index[len(batch) + free :]))
            return multiplied(a, b, node.dtype)

        return self.nest(node, index, [left.shape[i] for i, _ in summed], "sum", inner, node.dtype)

    def _convolve(self, node: Node, index: Index) -> Value:
        primitive = node.primitive
        assert isinstance(primitive, Convolve)
        data, weights = node.inputs
        per_group = weights.shape[0] // primitive.groups
        channels = weights.shape[1]
        axis, spatial = primitive.channel_axis, primitive.spatial
        first = self.scope.resolve(index[axis] // per_group) * channels
        zero = Literal(0, data.dtype)

        def inner(k: Index) -> Value:
            taps, sizes = geometry(primitive), data.shape[spatial]
            positions, inside = tap_position(
                taps, index[spatial], k[1:], primitive.low, sizes, self.scope
            )
            place = [index[0], *positions]
            place.insert(axis, first + k[0])
            read = self.guarded(inside, data, tuple(place), zero)
            weight = self.value(weights, (index[axis], *k))
            return multiplied(read, weight, node.dtype)

        return self.nest(node, index, weights.shape[1:], "sum", inner, node.dtype)

    def _window(self, node: Node, index: Index) -> Value:
        primitive = node.primitive
        assert isinstance(primitive, Window)
        operand = node.inputs[0]
        axes = primitive.windowed(operand.rank)
        taps = [Tap(s, d, 1) for s, d in zip(primitive.strides, primitive.dilations, strict=True)]

        def inner(k: Index) -> Value:
            positions, inside = tap_position(
                taps, index[axes], k, primitive.low, operand.shape[axes], self.scope
            )
            neutral = neutral_element(primitive.kind, node.dtype)
            place = (*index[: axes.start], *positions, *index[axes.stop :])
            return self.guarded(inside, operand, place, neutral)

        return self.nest(
            node, index, [*map(constant, primitive.kernel)], primitive.kind, inner, node.dtype
        )


def _where(predicate: Expr, value: Value, otherwise: Value) -> Value:
    """``value`` where the predicate, which may, is not 0; it is not computed elsewhere."""
    return value if predicate.is_constant else Guarded(predicate, value, otherwise)


def _symbols(index: Index) -> tuple[str, ...]:
    return tuple(s for e in index for s in e.free_symbols)


def _is_zero(e: Expr) -> bool:
    return e is constant(0)


def _fill(rank: int, fixed: dict[int, Expr], free: Index) -> list[Expr]:
    remaining = iter(free)
    return [fixed[a] if a in fixed else next(remaining) for a in range(rank)]
