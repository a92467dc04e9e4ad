"""Random small graphs from lists of integers, so that a failing one can be shrunk.

Every step applies one primitive (or a well-known pattern of them) to nodes chosen among those made
so far; sizes mix two dimensions and constants. Functions are smooth and bounded, so that rounding
errors do not grow. Start with :func:`build`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from support.graph_kit import F32, F64, Space, apply, data, exact, fixed, inputs_at, scalar, spread
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import (
    Broadcast,
    Cast,
    Concat,
    Constant,
    Contract,
    Convolve,
    Dimension,
    Gather,
    GatherElements,
    Input,
    Iota,
    Map,
    Pad,
    Reduce,
    Reshape,
    Scan,
    ScatterElements,
    Slice,
    Transpose,
    Window,
)
from tilewright.shape import constant, product

Pick = Callable[[int], int]
UNARY = ("hyperbolic_tangent", "negate", "absolute", "sine", "error_function")
BINARY = ("add", "subtract", "maximum", "minimum", "multiply")
MAXIMUM_RANK = 4


def bounded(made: Node) -> Node:
    return apply("hyperbolic_tangent", made)


class _Builder:
    def __init__(self) -> None:
        self.space = Space()
        a, b = self.space.dimensions("a b")
        self.a, self.b = a, b
        x = self.space.input("x", F32, a, b)
        y = self.space.input("y", F32, b)
        z = self.space.input("z", F32, a, b, constant(6))
        weights = fixed(data(F32, (6, 9)) * 0.3)
        at = self.space.input("at", DType.INT64, a)
        self.indices = at
        column = self.space.input("column", F32, a, constant(1))
        self.nodes = [x, y, z, weights, column]

    def step(self, pick: Pick) -> None:
        rules = (
            self.unary, self.binary, self.binary, self.reduce, self.softmax, self.normalise,
            self.transpose, self.merge, self.split, self.spread, self.contract, self.contract,
            self.concat, self.reverse, self.pad, self.scan, self.gather, self.window, self.convolve,
            self.narrow, self.positions, self.elements, self.scatter, self.stretch, self.mask,
            self.part,
        )  # fmt: skip
        rule = rules[pick(len(rules))]
        made = rule(self.nodes[pick(len(self.nodes))], pick)
        if made is not None and made.rank <= MAXIMUM_RANK:
            self.nodes.append(made)

    # ------------------------------------------------------------ elementwise

    def unary(self, x: Node, pick: Pick) -> Node | None:
        return apply(UNARY[pick(len(UNARY))], x)

    def binary(self, x: Node, pick: Pick) -> Node | None:
        fitting = [n for n in self.nodes if self._suffix(n, x)]
        y = fitting[pick(len(fitting))]
        if pick(4) == 0:
            condition = node(Map("less"), x, spread(scalar(0.1), x.shape))
            inside = node(Map("select"), condition, x, spread(scalar(0.1), x.shape))
            return apply("add", inside, y)
        made = apply(BINARY[pick(len(BINARY))], x, y)
        return bounded(made)

    @staticmethod
    def _suffix(small: Node, large: Node) -> bool:
        return small.rank <= large.rank and small.shape == large.shape[large.rank - small.rank :]

    def narrow(self, x: Node, pick: Pick) -> Node | None:
        wide = node(Cast(F64), x)
        return node(Cast(F32), apply("multiply", wide, scalar(0.5, F64)))

    def positions(self, x: Node, pick: Pick) -> Node | None:
        if not x.rank:
            return None
        counted = node(Cast(F32), node(Iota(x.shape, pick(x.rank))))
        size = node(Cast(F32), node(Dimension(x.shape[pick(x.rank)] + 1)))
        return apply("add", x, apply("sine", apply("divide", counted, spread(size, x.shape))))

    # ------------------------------------------------------------ reductions

    def reduce(self, x: Node, pick: Pick) -> Node | None:
        if not x.rank:
            return None
        axes = tuple(axis for axis in range(x.rank) if pick(2)) or (x.rank - 1,)
        kind = ("sum", "maximum", "minimum")[pick(3)]
        made = node(Reduce(kind, axes), x)
        return bounded(made)  # over nothing: an infinity, which this bounds

    def softmax(self, x: Node, pick: Pick) -> Node | None:
        if not x.rank:
            return None
        axis = pick(x.rank) if pick(2) else x.rank - 1
        left = tuple(a for a in range(x.rank) if a != axis)
        top = spread(node(Reduce("maximum", (axis,)), x), x.shape, left)
        powers = apply("exponential", apply("subtract", x, top))
        total = spread(node(Reduce("sum", (axis,)), powers), x.shape, left)
        return apply("divide", powers, total)

    def normalise(self, x: Node, pick: Pick) -> Node | None:
        if x.rank < 2:
            return None
        axes = (x.rank - 1,) if pick(2) else (x.rank - 2, x.rank - 1)
        left = tuple(range(x.rank - len(axes)))
        count = node(Cast(F32), node(Dimension(product([x.shape[a] for a in axes]) + 1)))

        def mean(of: Node) -> Node:
            total = node(Reduce("sum", axes), of)
            return spread(apply("divide", total, spread(count, total.shape)), x.shape, left)

        centred = apply("subtract", x, mean(x))
        variance = mean(apply("multiply", centred, centred))
        return apply("divide", centred, apply("square_root", apply("add", variance, scalar(0.1))))

    def scan(self, x: Node, pick: Pick) -> Node | None:
        if not x.rank:
            return None
        made = node(Scan("sum", pick(x.rank), bool(pick(2)), bool(pick(2))), x)
        return apply("sine", made)

    # ------------------------------------------------------------ layout

    def transpose(self, x: Node, pick: Pick) -> Node | None:
        left = list(range(x.rank))
        return node(Transpose(tuple(left.pop(pick(len(left))) for _ in range(x.rank))), x)

    def merge(self, x: Node, pick: Pick) -> Node | None:
        if x.rank < 2:
            return None
        at = pick(x.rank - 1)
        shape = (*x.shape[:at], x.shape[at] * x.shape[at + 1], *x.shape[at + 2 :])
        return node(Reshape(shape), x)

    def split(self, x: Node, pick: Pick) -> Node | None:
        for axis, size in enumerate(x.shape):
            if size.is_constant and size.value in (6, 9):
                parts = (constant(3), constant(size.value // 3))
                return node(Reshape((*x.shape[:axis], *parts, *x.shape[axis + 1 :])), x)
        return node(Reshape((*x.shape, constant(1))), x)

    def spread(self, x: Node, pick: Pick) -> Node | None:
        size = (self.a, self.b, constant(3))[pick(3)]
        axis = pick(x.rank + 1)
        axes = tuple(i if i < axis else i + 1 for i in range(x.rank))
        return node(Broadcast((*x.shape[:axis], size, *x.shape[axis:]), axes), x)

    def stretch(self, x: Node, pick: Pick) -> Node | None:
        """Axes of size 1 repeated."""
        ones = [i for i, s in enumerate(x.shape) if s.is_constant and s.value == 1]
        if not ones:
            return None
        axis = ones[pick(len(ones))]
        size = (self.a, self.b, constant(2))[pick(3)]
        shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        return node(Broadcast(shape, tuple(range(x.rank))), x)

    def mask(self, x: Node, pick: Pick) -> Node | None:
        if x.rank < 2:
            return None
        first, second = node(Iota(x.shape, x.rank - 2)), node(Iota(x.shape, x.rank - 1))
        condition = node(Map(("less", "less_equal", "equal")[pick(3)]), first, second)
        return node(Map("select"), condition, x, spread(scalar(-0.5), x.shape))

    def part(self, x: Node, pick: Pick) -> Node | None:
        """Half of an axis, from its start or its end."""
        if not x.rank:
            return None
        axis = pick(x.rank)
        size = x.shape[axis] // 2
        starts, sizes = [constant(0)] * x.rank, list(x.shape)
        starts[axis], sizes[axis] = (size if pick(2) else constant(0)), size
        return node(Slice(tuple(starts), tuple(sizes), (constant(1),) * x.rank), x)

    def concat(self, x: Node, pick: Pick) -> Node | None:
        if not x.rank:
            return None
        axis = pick(x.rank)
        fitting = [n for n in self.nodes if n.rank == x.rank and
                   all(p is q or i == axis for i, (p, q) in
                       enumerate(zip(n.shape, x.shape, strict=True)))]  # fmt: skip
        return node(Concat(axis), x, fitting[pick(len(fitting))])

    def reverse(self, x: Node, pick: Pick) -> Node | None:
        if not x.rank:
            return None
        axis = pick(x.rank)
        zero, one = constant(0), constant(1)
        starts, steps = [zero] * x.rank, [one] * x.rank
        starts[axis], steps[axis] = x.shape[axis] - 1, constant(-1)
        return node(Slice(tuple(starts), x.shape, tuple(steps)), x)

    def pad(self, x: Node, pick: Pick) -> Node | None:
        low = tuple(constant(pick(3)) for _ in range(x.rank))
        high = tuple(constant(pick(2)) for _ in range(x.rank))
        return node(Pad(low, high), x, scalar(0.25))

    # ------------------------------------------------------------ indexing

    def gather(self, x: Node, pick: Pick) -> Node | None:
        known = [i for i, s in enumerate(x.shape) if s.is_constant and s.value >= 3]
        if not known:
            return None
        return node(Gather(known[pick(len(known))]), x, self.indices)

    def elements(self, x: Node, pick: Pick) -> Node | None:
        known = [i for i, s in enumerate(x.shape) if s.is_constant and s.value >= 3]
        if not known:
            return None
        axis = known[pick(len(known))]
        return node(GatherElements(axis), x, self._indices_like(x))

    def scatter(self, x: Node, pick: Pick) -> Node | None:
        known = [i for i, s in enumerate(x.shape) if s.is_constant and s.value >= 3]
        if not known:
            return None
        axis = known[pick(len(known))]
        made = node(ScatterElements(axis, ("none", "maximum")[pick(2)]), x, self._indices_like(x),
                    apply("sine", x))  # fmt: skip
        return made

    @staticmethod
    def _indices_like(x: Node) -> Node:
        counted = node(Iota(x.shape, 0))
        three = spread(scalar(3, DType.INT64), x.shape)
        return node(Map("remainder"), counted, three)

    # ------------------------------------------------------------ linear

    def contract(self, x: Node, pick: Pick) -> Node | None:
        pairs = [(n, i, j) for n in self.nodes for i, s in enumerate(x.shape)
                 for j, t in enumerate(n.shape) if s is t]  # fmt: skip
        if not pairs:
            return None
        other, i, j = pairs[pick(len(pairs))]
        more = [(p, q) for p, s in enumerate(x.shape) for q, t in enumerate(other.shape)
                if s is t and p != i and q != j]  # fmt: skip
        batch = (more[pick(len(more))],) if more and pick(2) else ()
        if x.rank + other.rank - 2 - len(batch) > MAXIMUM_RANK:
            return None
        return apply("sine", node(Contract(batch, ((i, j),)), x, other))

    def window(self, x: Node, pick: Pick) -> Node | None:
        if not x.rank:
            return None
        kind = ("sum", "maximum")[pick(2)]
        made = Window(kind, (3,), (1,), (1,), (constant(1),), (x.shape[-1],))
        return bounded(node(made, x))

    def convolve(self, x: Node, pick: Pick) -> Node | None:
        known = [i for i, s in enumerate(x.shape) if s.is_constant and s.value in (6, 9)]
        if x.rank != 3 or not known:
            return None
        order = (0, known[-1]) if known[-1] else (1, 0)
        last = next(i for i in range(3) if i not in order)
        moved = node(Transpose((*order, last)), x)
        channels = moved.shape[1].value
        groups = (1, 3, channels)[pick(3)]
        weights = fixed(data(F32, (channels, channels // groups, 3)) * 0.3)
        one = (1,)
        made = Convolve(one, one, one, (constant(1),), (moved.shape[2],), groups)
        return apply("sine", node(made, moved, weights))


def build(numbers: Sequence[int], steps: int) -> Graph:
    """The graph that the numbers describe; missing numbers count as 0."""
    remaining = iter(numbers)

    def pick(count: int) -> int:
        return next(remaining, 0) % count

    builder = _Builder()
    for _ in range(steps):
        builder.step(pick)
    made = [n for n in builder.nodes if not isinstance(n.primitive, Input | Constant)]
    outputs = made[-1:] + [made[pick(len(made))] for _ in range(2)] if made else builder.nodes[:1]
    return builder.space.graph(*dict.fromkeys(outputs))


def fill(name: str, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Inputs: indices below 3, and normal numbers."""
    if name == "at":
        return np.arange(int(np.prod(shape))).reshape(shape) % 3
    return data(dtype, shape, seed=ord(name[0]))


def largest(graph: Graph, sizes: dict[str, int]) -> float:
    """The largest finite magnitude of any value in the graph."""
    every = tuple((str(i), n) for i, n in enumerate(graph.nodes()) if n.dtype.is_float)
    values = exact(
        Graph("all", graph.inputs, every, graph.scope), inputs_at(graph, sizes, fill), sizes
    )
    finite = [np.abs(v[np.isfinite(v)]) for v in values.values()]
    return max((float(np.max(v, initial=0.0)) for v in finite), default=1.0)
