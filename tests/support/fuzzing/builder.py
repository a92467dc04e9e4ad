"""A graph that grows node by node, each evaluated at once at every shape the case will run at.

So a generator knows sizes and data as it goes: it sees which operands fit, and takes back a node
that divides by zero or overflows. A value that the ONNX reference evaluator refuses at some shape
is None there. Start with :class:`Builder`.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from .case import Array, Recipe, Sizes

MOST_ELEMENTS = 6000
MOST_INPUTS = 6
# Values beyond these are refused, so that no sum of a few of them overflows.
LARGEST = {"float16": 200.0, "float32": 1e5, "float64": 1e5}
LARGEST_INTEGER = 2**40


class Rejected(Exception):
    """The step chosen does not fit what is there; another one is tried."""


@dataclass(eq=False)
class Value:
    """A value of the graph, and what it is at every shape (None: not computable there)."""

    name: str
    arrays: list[Array | None]

    @property
    def first(self) -> Array:
        return next(a for a in self.arrays if a is not None)

    @property
    def rank(self) -> int:
        return self.first.ndim

    @property
    def dtype(self) -> np.dtype:
        return self.first.dtype

    @property
    def is_float(self) -> bool:
        return self.dtype.kind == "f"

    @property
    def is_integer(self) -> bool:
        return self.dtype.kind in "iu"

    def sizes(self, axis: int) -> tuple[int, ...]:
        """The sizes of one axis at all shapes; -1 where the value is not known."""
        return tuple(-1 if a is None else a.shape[axis] for a in self.arrays)

    def is_static(self, axis: int) -> bool:
        return len({size for size in self.sizes(axis) if size >= 0}) == 1

    def smallest(self, axis: int) -> int:
        return min(size for size in self.sizes(axis) if size >= 0)


class Builder:
    """The graph so far, with helpers to choose from it and to extend it."""

    def __init__(self, chance: random.Random, opset: int, shapes: list[Sizes], seed: int) -> None:
        self.chance = chance
        self.opset = opset
        self.shapes = shapes
        self.seed = seed
        self.is_wild = chance.random() < 0.2  # infinities and NaNs may occur at full shapes
        self.values: list[Value] = []
        self.constants: list[onnx.TensorProto] = []
        self.recipes: dict[str, Recipe] = {}
        self.nodes: list[onnx.NodeProto] = []
        self._count = 0
        self._has_empty = [0 in sizes.values() for sizes in shapes]

    # ------------------------------------------------------------ state

    def fresh(self, prefix: str = "v") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def mark(self) -> tuple[int, int, int, list[str]]:
        """Where to come back to if a step of several nodes fails; see :meth:`restore`."""
        return len(self.values), len(self.constants), len(self.nodes), list(self.recipes)

    def restore(self, mark: tuple[int, int, int, list[str]]) -> None:
        values, constants, nodes, inputs = mark
        del self.values[values:], self.constants[constants:], self.nodes[nodes:]
        self.recipes = {name: self.recipes[name] for name in inputs}

    # ------------------------------------------------------------ leaves

    def dim_for(self, sizes: Sequence[int]) -> str | int:
        """A dimension that has these sizes at the shapes: one there is, or a new name."""
        if any(size < 0 for size in sizes):
            raise Rejected("sizes are not known at every shape")
        same = [n for n in self.shapes[0] if tuple(s[n] for s in self.shapes) == tuple(sizes)]
        if same:
            return same[0]
        if len(set(sizes)) == 1 and self.chance.random() < 0.7:
            return sizes[0]
        name = self.fresh("d")
        for known, size in zip(self.shapes, sizes, strict=True):
            known[name] = size
        return name

    def input(
        self, dtype: str, dims: Sequence[str | int], low: float = 0.0, high: float = 1.0
    ) -> Value:
        if len(self.recipes) >= MOST_INPUTS:
            raise Rejected("enough inputs")
        name = self.fresh("x")
        recipe = Recipe(dtype, tuple(dims), low, high)
        if max(math.prod(recipe.shape(sizes)) for sizes in self.shapes) > MOST_ELEMENTS:
            raise Rejected("too large")
        arrays: list[Array | None] = [recipe.data(name, s, self.seed) for s in self.shapes]
        self.recipes[name] = recipe
        return self._keep(Value(name, arrays))

    def constant(self, array: Any, dtype: str | None = None) -> Value:
        """An initializer, or a Constant node."""
        data = np.asarray(array, dtype)
        if self.chance.random() < 0.15:
            tensor = numpy_helper.from_array(data)
            return self.node("Constant", value=tensor)
        name = self.fresh("c")
        self.constants.append(numpy_helper.from_array(data, name))
        return Value(name, [data] * len(self.shapes))

    def integers(self, *numbers: int) -> Value:
        """A constant vector of int64."""
        return self.constant(np.array(numbers, np.int64))

    def weights(self, *shape: int, dtype: str = "float32", scale: float = 0.5) -> Value:
        generator = np.random.default_rng(self.chance.randrange(1 << 30))
        return self.constant((generator.standard_normal(shape) * scale).astype(dtype))

    # ------------------------------------------------------------ nodes

    def node(self, operator: str, *inputs: Value | None, **attributes: Any) -> Value:
        return self.nodes_of(operator, 1, *inputs, **attributes)[0]

    def nodes_of(
        self,
        operator: str,
        count: int,
        *inputs: Value | None,
        captured: Sequence[Value] = (),
        **attributes: Any,
    ) -> list[Value]:
        """A node of ``count`` outputs; ``captured`` are the values its nested graphs read."""
        names = [self.fresh() for _ in range(count)]
        given = ["" if i is None else i.name for i in inputs]
        made = helper.make_node(operator, given, names, **attributes)
        operands = {i.name: i for i in (*inputs, *captured) if i is not None}
        arrays = self._evaluate(made, operands)
        results = [
            Value(n, [None if r is None else r[k] for r in arrays]) for k, n in enumerate(names)
        ]
        for result in results:
            self._accept(result)
        self.nodes.append(made)
        return [self._keep(result) for result in results]

    def _keep(self, value: Value) -> Value:
        self.values.append(value)
        return value

    def _evaluate(
        self, made: onnx.NodeProto, operands: dict[str, Value]
    ) -> list[list[Array] | None]:
        try:
            evaluate = evaluator(made, tuple(operands), self.opset)
        except Exception as error:  # it lacks some attributes of some operators
            raise Rejected("refused by the reference") from error
        results: list[list[Array] | None] = []
        for number in range(len(self.shapes)):
            feeds = {name: value.arrays[number] for name, value in operands.items()}
            if any(array is None for array in feeds.values()):
                results.append(None)
                continue
            try:
                results.append(evaluate(feeds))
            except Exception:  # the reference refuses in many ways
                results.append(None)
        return results

    def _accept(self, value: Value) -> None:
        """Refuse what is known at too few shapes, too large, or would differ by rounding alone."""
        known = [a for a in value.arrays if a is not None]
        if len(known) * 2 <= len(value.arrays) or value.arrays[0] is None:
            raise Rejected("refused by the reference at too many shapes")
        if any(a.dtype.kind not in "fbiu" for a in known):
            raise Rejected("neither numbers nor booleans")
        if len({(a.ndim, a.dtype) for a in known}) != 1:
            raise Rejected("rank or type differ between shapes")
        if max(a.size for a in known) > MOST_ELEMENTS:
            raise Rejected("too large")
        for array, has_empty in zip(value.arrays, self._has_empty, strict=True):
            if array is None or not array.size:
                continue
            if array.dtype.kind == "f":
                finite = np.isfinite(array)
                if not (finite.all() or self.is_wild or has_empty):
                    raise Rejected("not finite")
                limit = LARGEST.get(array.dtype.name, 100.0)
                if np.abs(array[finite]).max(initial=0.0) > limit:
                    raise Rejected("too large a number")
            elif array.dtype.kind in "iu" and np.abs(array.astype(float)).max() > LARGEST_INTEGER:
                raise Rejected("too large an integer")

    # ------------------------------------------------------------ choices

    def pick(self, fits: Callable[[Value], bool] = lambda value: True) -> Value:
        """A value that fits, the later ones more often."""
        found = [value for value in self.values if fits(value)]
        if not found:
            raise Rejected("no such value")
        return self.chance.choices(found, [1 + k for k in range(len(found))])[0]

    def pick_float(self, least_rank: int = 0, most_rank: int = 9) -> Value:
        return self.pick(lambda v: v.is_float and least_rank <= v.rank <= most_rank)

    def flip(self, probability: float = 0.5) -> bool:
        return self.chance.random() < probability

    def axis(self, value: Value) -> int:
        """Any axis, counted from the front or the back."""
        if value.rank == 0:
            raise Rejected("a scalar has no axis")
        return self.chance.randrange(-value.rank, value.rank)

    def partner(self, value: Value, dtype: str | None = None) -> Value:
        """Another operand of the same type that broadcasts with it."""
        wanted = np.dtype(dtype or value.dtype)
        kind = self.chance.random()
        if kind < 0.45:
            found = [v for v in self.values if v.dtype == wanted and broadcasts(v, value)]
            if found:
                return self.chance.choice(found)
        if kind < 0.7 and len(self.recipes) < MOST_INPUTS:
            return self.input(wanted.name, self._broadcast_dims(value), *span(wanted))
        if kind < 0.8 and value.rank:
            sizes = [value.first.shape[a] if value.is_static(a) else 1 for a in range(value.rank)]
            if math.prod(sizes) < 200:
                return self._fixed(sizes[self.chance.randrange(value.rank) :], wanted)
        return self._fixed(self.chance.choice(([], [1], [1, 1])), wanted)

    def _fixed(self, shape: Sequence[int], dtype: np.dtype) -> Value:
        recipe = Recipe(dtype.name, tuple(shape), *span(dtype))
        return self.constant(recipe.data("c", {}, self.chance.randrange(1 << 30)))

    def _broadcast_dims(self, value: Value) -> list[str | int]:
        """Dimensions of an input that broadcasts with the value: all, the last ones, or ones."""
        axes = range(
            self.chance.randrange(value.rank) if value.rank and self.flip() else 0, value.rank
        )
        dims: list[str | int] = []
        for axis in axes:
            sizes = value.sizes(axis)
            if self.flip(0.08):  # equal or one, which only the call decides
                sizes = tuple(1 if self.flip() else size for size in sizes)
            dims.append(1 if self.flip(0.2) else self.dim_for(sizes))
        if self.flip(0.1) and len(dims) == value.rank < 4:
            dims.insert(0, self.chance.choice([*self.shapes[0]]))
        return dims

    def size(self, value: Value, axis: int) -> Value:
        """The size of an axis as a vector of one element, computed in the graph."""
        way = self.chance.randrange(3)
        if way == 0:
            return self.node("Shape", value, start=axis, end=axis + 1 if axis != -1 else value.rank)
        shape = self.node("Shape", value)
        if way == 1:
            return self.node("Gather", shape, self.integers(axis))
        stop = axis + 1 if axis != -1 else value.rank
        return self.node("Slice", shape, self.integers(axis), self.integers(stop))

    def scalar_size(self, value: Value, axis: int) -> Value:
        """The size of an axis as a scalar, computed in the graph."""
        if self.flip():
            return self.node("Gather", self.node("Shape", value), self.constant(axis, "int64"))
        return self.node("Squeeze", self.size(value, axis))


def span(dtype: np.dtype) -> tuple[float, float]:
    """The range of fresh data of a type."""
    if dtype.kind == "u":
        return 0, 7
    return (-5, 6) if dtype.kind == "i" else (0.0, 1.0)


def broadcasts(one: Value, other: Value) -> bool:
    """Whether two values broadcast at every shape where both are known, to something small."""
    for a, b in zip(one.arrays, other.arrays, strict=True):
        if a is None or b is None:
            continue
        try:
            shape = np.broadcast_shapes(a.shape, b.shape)
        except ValueError:
            return False
        if math.prod(shape) > MOST_ELEMENTS:
            return False
    return True


def evaluator(
    node: onnx.NodeProto, operands: Sequence[str], opset: int
) -> Callable[[dict[str, Any]], list[Array]]:
    """The ONNX reference evaluator of one node, from operands by name to outputs."""
    inputs = [onnx.ValueInfoProto(name=name) for name in operands]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "node", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    reference = ReferenceEvaluator(model)

    def evaluate(feeds: dict[str, Any]) -> list[Array]:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return [np.asarray(result) for result in reference.run(None, feeds)]

    return evaluate
