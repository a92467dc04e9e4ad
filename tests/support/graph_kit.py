"""Small primitive graphs, compiled for several levels and compared with numpy.

:class:`Space` declares dimensions and inputs; :func:`check` compiles a graph for the baseline and
for this machine, runs it at given sizes in guarded memory (see ``guarded``) and through the
runtime, and compares with the graph's own meaning evaluated in float64.
:func:`tolerance` is the only place that says how far apart results may be.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from support import guarded, turns
from tilewright.backend.cpu.machine import LEVELS, host_level, host_levels
from tilewright.backend.cpu.program import CompiledProgram, build_program
from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import evaluate
from tilewright.ir.graph import Graph, Node, node, topological
from tilewright.ir.kernel import Plan
from tilewright.ir.primitives import (
    Broadcast,
    Cast,
    Constant,
    Contract,
    Convolve,
    Input,
    Map,
    Reduce,
)
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.prepare import prepare
from tilewright.runtime.artifact import ArtifactContents
from tilewright.runtime.model import CompiledModel
from tilewright.shape import Expr, Scope, as_expr, constant
from tilewright.stages import Stages, is_checked

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]
FLOATS = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)
F32, F64, I64, BOOL = DType.FLOAT32, DType.FLOAT64, DType.INT64, DType.BOOL
BOTH_LEVELS = tuple(dict.fromkeys(("x86-64", host_level().name)))
VECTOR_LEVELS = tuple(
    level.name for level in host_levels() if level.name in ("avx2", "avx512")
)  # of those that this machine runs
# The tiles and vectors of AVX-512, each vector made of two, for machines without it.
WIDE = "avx512 on avx2"
WIDE_LEVEL = replace(
    LEVELS["avx512"],
    processor=LEVELS["avx2"].processor,
    adjustments=LEVELS["avx2"].adjustments,
    features=LEVELS["avx2"].features,
    isa="x86-64",  # no lookups: they are instructions on whole registers
)


def tolerance(dtype: DType, length: int, magnitude: float) -> float:
    """How far a result of ``length`` rounded operations may be from the exact one.

    Roundings of random sign grow as the square root of their number, in units of the type's
    precision at the largest magnitude involved; 8 units leave room for elementary functions.
    """
    precision = {DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7, DType.FLOAT32: 2.0**-23}
    unit = precision.get(dtype, 2.0**-52)
    return unit * (8 + 2 * math.sqrt(length)) * max(1.0, magnitude)


class Space:
    """Dimensions and inputs of one graph."""

    def __init__(self) -> None:
        self.scope = Scope()
        self.inputs: list[Node] = []

    def dimension(self, name: str, low: int = 0, high: int | None = 1 << 20) -> Expr:
        """A named size."""
        return self.scope.declare(name, low, high)

    def dimensions(self, names: str) -> list[Expr]:
        """Several, names separated by spaces."""
        return [self.dimension(name) for name in names.split()]

    def input(self, name: str, dtype: DType, *shape: Expr | int) -> Node:
        """A graph input."""
        self.inputs.append(node(Input(name, dtype, tuple(map(as_expr, shape)))))
        return self.inputs[-1]

    def carry(self, *sizes: Expr) -> None:
        """An input that no output reads, for dimensions that no other input has."""
        self.input("carrier", DType.UINT8, *sizes)

    def graph(self, *outputs: Node) -> Graph:
        """The graph with outputs y0, y1, …, as the pipeline hands it to the planner."""
        named = tuple((f"y{i}", output) for i, output in enumerate(outputs))
        return prepare(Graph("test", tuple(self.inputs), named, self.scope))


def apply(function: str, *operands: Node) -> Node:
    """A ``Map``; operands of lower rank are broadcast to the first of the highest."""
    shape = max((o.shape for o in operands), key=len)
    return node(Map(function), *(spread(o, shape) for o in operands))


def spread(operand: Node, shape: Sequence[Expr], axes: Sequence[int] | None = None) -> Node:
    """``operand`` broadcast to ``shape``, its axes the last ones unless ``axes`` says more."""
    if operand.shape == tuple(shape):
        return operand
    lead = len(shape) - operand.rank
    places = tuple(range(lead, len(shape))) if axes is None else tuple(axes)
    return node(Broadcast(tuple(shape), places), operand)


def kept(operand: Node, kind: str, axes: Sequence[int]) -> Node:
    """A reduction spread over its operand's shape again."""
    left = tuple(a for a in range(operand.rank) if a not in axes)
    return spread(node(Reduce(kind, tuple(axes)), operand), operand.shape, left)


def softmax(x: Node, axes: Sequence[int] = ()) -> Node:
    """A softmax over some axes, the last one unless they are given."""
    over = tuple(axes) or (x.rank - 1,)
    powers = apply("exponential", apply("subtract", x, kept(x, "maximum", over)))
    return apply("divide", powers, kept(powers, "sum", over))


def scalar(value: float | int | bool, dtype: DType = F32) -> Node:
    """A constant of rank 0."""
    return node(Constant.of(np.asarray(value, dtype.numpy), dtype))


def fixed(array: Array) -> Node:
    """A constant tensor."""
    return node(Constant.of(array))


def mostly_slow(values: Sequence[Any], *quick: str) -> list[Any]:
    """Parameters of a test, of which only those called ``quick`` are in the quick suite."""
    made: list[Any] = []
    for value in values:
        name = str(getattr(value, "value", getattr(value, "name", value))).replace(" ", "")
        made.append(pytest.param(value, id=name, marks=() if name in quick else pytest.mark.slow))
    return made


def few_or_many(few: int, many: int, most: int = 0) -> list[Any]:
    """How many cases a test draws: in the quick suite the first of those of the whole suite.

    These are the first of the ``most`` that are drawn where all cases are asked for.
    """
    made = [
        pytest.param(few, id=str(few), marks=pytest.mark.beginning),
        pytest.param(many, id=str(many), marks=pytest.mark.slow),
    ]
    if most:
        made.append(
            pytest.param(most, id=str(most), marks=[pytest.mark.slow, pytest.mark.combination])
        )
    return made


# ---------------------------------------------------------------- data


def data(dtype: DType, shape: Sequence[int], seed: int = 0, low: int = -9, high: int = 9) -> Array:
    """Normal floats, integers in [low, high] that fit the type, or coin flips."""
    generator = np.random.default_rng(seed + 7919 * len(shape) + sum(shape))
    if dtype is BOOL:
        return generator.integers(0, 2, shape).astype(bool)
    if dtype.is_float:
        return generator.standard_normal(shape).astype(dtype.numpy)
    return generator.integers(0 if dtype.is_unsigned else low, high + 1, shape).astype(dtype.numpy)


Fill = Callable[[str, DType, tuple[int, ...]], Array]


def default_fill(name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
    """What inputs hold unless a test says otherwise."""
    return data(dtype, shape, seed=sum(map(ord, name)))


def inputs_at(graph: Graph, sizes: Sizes, fill: Fill = default_fill) -> dict[str, Array]:
    """Inputs of a graph at given sizes."""
    made: dict[str, Array] = {}
    for entry in graph.inputs:
        primitive = entry.primitive
        assert isinstance(primitive, Input)
        shape = tuple(size.evaluate(sizes) for size in entry.shape)
        made[primitive.name] = fill(primitive.name, entry.dtype, shape)
    return made


# ---------------------------------------------------------------- the exact meaning


def widened(graph: Graph) -> Graph:
    """The same graph with every floating-point type replaced by float64."""
    wide: dict[Node, Node] = {}
    for current in topological((*graph.roots, *graph.inputs)):
        primitive = current.primitive
        if isinstance(primitive, Input) and primitive.dtype in FLOATS:
            primitive = Input(primitive.name, F64, primitive.shape)
        elif isinstance(primitive, Constant) and primitive.dtype in FLOATS:
            primitive = Constant.of(primitive.array.astype(np.float64))
        elif isinstance(primitive, Cast) and primitive.dtype in FLOATS:
            primitive = Cast(F64)
        elif isinstance(primitive, Contract | Convolve) and primitive.sums is F32:
            primitive = replace(primitive, sums=None)
        wide[current] = node(primitive, *(wide[i] for i in current.inputs))
    outputs = tuple((name, wide[n]) for name, n in graph.outputs)
    return Graph(graph.name, tuple(wide[i] for i in graph.inputs), outputs, graph.scope)


def exact(graph: Graph, inputs: Mapping[str, Array], sizes: Sizes) -> dict[str, Array]:
    """The outputs with all floating-point work done in float64."""
    wide = {
        n: a.astype(np.float64) if DType.of(a.dtype) in FLOATS else a for n, a in inputs.items()
    }
    return evaluate(widened(graph), wide, sizes)


def assert_close(
    got: Array, want: Array, dtype: DType, bound: tuple[int, float], what: str
) -> None:
    """Equal within :func:`tolerance`; NaN and infinities in the same places; integers exactly."""
    assert got.shape == want.shape, f"{what}: shape {got.shape}, not {want.shape}"
    assert got.dtype == dtype.numpy, f"{what}: {got.dtype}, not {dtype.value}"
    if dtype not in FLOATS:
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    wide = got.astype(np.float64)
    limit = float(np.finfo(np.float32).max) if dtype is F32 else math.inf
    want = np.where(np.abs(want) > limit, np.copysign(np.inf, want), want)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(wide[~finite], want[~finite], err_msg=what)
    largest = float(np.max(np.abs(want[finite]), initial=0.0))
    length, scale = bound
    allowed = tolerance(dtype, length, max(largest, scale))
    error = np.abs(np.where(finite, wide, 0) - np.where(finite, want, 0))
    worst = float(np.max(error, initial=0.0))
    assert worst <= allowed, (
        f"{what}: off by {worst:.3g} at {np.unravel_index(np.argmax(error), error.shape)}, "
        f"allowed {allowed:.3g}"
    )


# ---------------------------------------------------------------- compiling and running


class Compiled:
    """A graph compiled for some levels, by the greedy plan unless another one is given."""

    def __init__(
        self, graph: Graph, levels: Sequence[str] = BOTH_LEVELS, plan: Plan | None = None
    ) -> None:
        self.graph = graph
        self.plan: Plan = plan_greedily(graph) if plan is None else plan
        stages = Stages(check=is_checked(None))
        stages.graph("prepare", graph)
        stages.plan(graph, self.plan, "tests")
        self.findings = stages.findings
        self.levels: dict[str, CompiledProgram] = {
            level: build_program(
                graph,
                self.plan,
                LEVELS.get(level, WIDE_LEVEL),
                observe=partial(stages.kernel, level),
            )
            for level in levels
        }

    @functools.cached_property
    def model(self) -> CompiledModel:
        """The best level, run by the runtime."""
        level, made = list(self.levels.items())[-1]
        return CompiledModel.from_contents(
            ArtifactContents({level: made.program}, {level: made.image}, {level: made.constants}),
            level=level,
            num_threads=2,
        )

    def guarded(
        self, level: str, inputs: Mapping[str, Array], sizes: Sizes, **options: Any
    ) -> dict[str, Array]:
        """The outputs of one level, run between guard pages."""
        made = self.levels[level]
        return guarded.execute(made.program, made.image, made.constants, inputs, sizes, **options)


def here(levels: Sequence[str]) -> tuple[str, ...]:
    """What stands for some levels on this machine: AVX-512's tiles on AVX2 where it has no more."""
    wide = "avx512" if "avx512" in VECTOR_LEVELS else WIDE
    return tuple(wide if level == "avx512" else level for level in levels)


VARIANTS = (
    {"at_end": True, "poison": 0xFF, "pieces": 1},
    {"at_end": False, "poison": 0xA5, "pieces": 3},
)


def check(
    graph: Graph,
    cases: Sequence[Sizes],
    *,
    length: int | Callable[[Sizes], int] = 1,
    scale: float = 1.0,
    fill: Fill = default_fill,
    levels: Sequence[str] | None = None,
    plan: Plan | None = None,
) -> Compiled:
    """Compile once, and compare at every size, level and placement of memory.

    Without ``levels`` quick tests have both, and slow ones take turns with them (see ``turns``);
    those that are given become levels of this machine (see ``here``). The last one is run by
    the runtime, too, if it has its name.

    ``length`` is the number of roundings behind one result (of a reduction: its length), ``scale``
    the magnitude of values on the way to it where that is larger than the results'.
    """
    levels = turns.taken(BOTH_LEVELS) if levels is None else here(levels)
    compiled = Compiled(graph, levels, plan)
    for sizes in cases:
        inputs = inputs_at(graph, sizes, fill)
        with np.errstate(all="ignore"):
            want = exact(graph, inputs, sizes)
        count = length if isinstance(length, int) else length(sizes)
        for level in levels:
            for options in VARIANTS:
                got = compiled.guarded(level, inputs, sizes, **options)
                compare_outputs(
                    graph, got, want, (count, scale), f"{level} {dict(sizes)} {options}"
                )
        if levels[-1] in LEVELS:
            got = compiled.model.run(inputs)
            compare_outputs(graph, got, want, (count, scale), f"runtime {dict(sizes)}")
    return compiled


def compare_outputs(
    graph: Graph,
    got: Mapping[str, Array],
    want: Mapping[str, Array],
    bound: tuple[int, float],
    what: str,
) -> None:
    """Results beside what they should be; ``bound`` is (roundings, magnitude on the way)."""
    for name, root in graph.outputs:
        expected = np.asarray(want[name])
        if root.dtype not in FLOATS:
            expected = expected.astype(root.dtype.numpy)
        assert_close(got[name], expected, root.dtype, bound, f"{name} {what}")


def kinds(compiled: Compiled) -> list[str]:
    """The kinds of the plan's kernels, for tests of what is fused."""
    return [kernel.kind.value for kernel in compiled.plan.kernels]


__all__ = [
    "BOOL",
    "BOTH_LEVELS",
    "F32",
    "F64",
    "FLOATS",
    "I64",
    "WIDE",
    "Compiled",
    "Space",
    "apply",
    "check",
    "compare_outputs",
    "constant",
    "data",
    "exact",
    "few_or_many",
    "fixed",
    "inputs_at",
    "kept",
    "kinds",
    "mostly_slow",
    "scalar",
    "softmax",
    "spread",
    "tolerance",
]  # fmt: skip
