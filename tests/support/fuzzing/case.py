"""One model with all that decides a run of it: sizes, data, ranges, level and threads."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import numpy as np
import onnx

from tilewright.options import PlanName

Array = np.ndarray
Sizes = dict[str, int]


@dataclass(frozen=True)
class Recipe:
    """How the data of one input is made: its type, the names or sizes of its axes, its range.

    ``low`` and ``high`` bound integers (both included) and scale floats, which are normally
    distributed around 0 with a deviation of ``high``, or lie in ``low..high`` where ``low > 0``.
    """

    dtype: str
    dims: tuple[str | int, ...]
    low: float = 0.0
    high: float = 1.0

    def shape(self, sizes: Sizes) -> tuple[int, ...]:
        return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in self.dims)

    def data(self, name: str, sizes: Sizes, seed: int) -> Array:
        shape = self.shape(sizes)
        generator = np.random.default_rng(zlib.crc32(f"{seed} {name} {shape}".encode()))
        dtype = np.dtype(self.dtype)
        if dtype.kind == "b":
            return generator.integers(0, 2, shape).astype(bool)
        if dtype.kind in "iu":
            return generator.integers(int(self.low), int(self.high) + 1, shape).astype(dtype)
        if self.low > 0.0:
            return generator.uniform(self.low, self.high, shape).astype(dtype)
        return (generator.standard_normal(shape) * self.high).astype(dtype)


@dataclass(frozen=True)
class Case:
    """What is compiled once and run at several shapes; ``check`` verifies every stage of it."""

    model: bytes
    recipes: dict[str, Recipe]
    shapes: tuple[Sizes, ...]
    ranges: dict[str, tuple[int, ...]] = field(default_factory=dict)
    level: str = "x86-64"
    plan: PlanName = "greedy"
    threads: tuple[int, ...] = (1, 2)
    seed: int = 0
    check: bool = False

    def feeds(self, sizes: Sizes) -> dict[str, Array]:
        return {name: r.data(name, sizes, self.seed) for name, r in self.recipes.items()}

    def proto(self) -> onnx.ModelProto:
        return onnx.load_model_from_string(self.model)

    def operators(self) -> list[str]:
        """The operators of the model, those of nested graphs included, as often as they occur."""
        return [node.op_type for node in _nodes(self.proto().graph)]


@dataclass(frozen=True)
class Finding:
    """What is wrong with a case: ``kind`` and a text whose first line names it.

    Kinds: wrong, refused, foreign (an exception not ours), crash, hang.
    """

    kind: str
    text: str
    sizes: Sizes | None = None

    @property
    def title(self) -> str:
        return f"{self.kind}: {self.text.splitlines()[0] if self.text else ''}"


def _nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    found: list[onnx.NodeProto] = []
    for node in graph.node:
        found.append(node)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found += _nodes(attribute.g)
    return found
