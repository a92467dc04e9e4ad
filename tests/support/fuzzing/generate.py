"""A random case of a seed and a number: always the same. Start with :func:`generate`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from tilewright.options import PlanName

from . import elementwise, layout, linear, sizes, spatial
from .builder import Builder, Rejected
from .case import Case, Sizes

GROUPS = (
    (elementwise.STEPS, 4),
    (layout.STEPS, 5),
    (linear.STEPS, 5),
    (spatial.STEPS, 2),
    (sizes.STEPS, 3),
)
OPSETS = (18, 20, 21, 21, 22, 23)
DIMENSIONS = ("n", "m", "k", "h")
MOST_NODES = 12
ATTEMPTS = 60
CHECKED = 0.25  # of the graphs, as proofs about tile programs take as long as their code


def generate(seed: int, number: int, levels: Sequence[str], plan: PlanName = "greedy") -> Case:
    """The case of one number, which ``plan`` does not change.

    ``levels`` are the instruction set levels that may be chosen.
    """
    chance = random.Random(f"{seed} {number}")
    shapes = _shapes(chance)
    data_seed = chance.randrange(1 << 30)
    rest = random.Random(f"{seed} {number} level")
    is_checked = rest.random() < CHECKED
    level = rest.choice(levels)
    b = Builder(chance, chance.choice(OPSETS), shapes, data_seed)
    names = [*shapes[0]]
    for _ in range(chance.choice((1, 1, 2))):
        _first_input(b, names)
    goal = chance.randrange(3, MOST_NODES + 1)
    groups = [steps for steps, _ in GROUPS]
    weights = [weight * chance.choice((1, 1, 4)) for _, weight in GROUPS]
    for _ in range(ATTEMPTS):
        if len(b.nodes) >= goal:
            break
        steps = chance.choices(groups, weights)[0]
        step = chance.choices([*steps], [*steps.values()])[0]
        mark = b.mark()
        try:
            step(b)
        except (Rejected, ValueError, TypeError, OverflowError):  # a node that cannot be made
            b.restore(mark)
    return replace(finished(b), level=level, plan=plan, check=is_checked)


def _shapes(chance: random.Random) -> list[Sizes]:
    """Sizes of the dimensions at every shape: two full ones, then with ones and zeros."""
    names = DIMENSIONS[: chance.choice((1, 2, 2, 3, 3, 4))]
    factor = chance.choice((1, 1, 1, 2, 4, 6))  # so that reshapes can divide

    def sized(choices: Sequence[int]) -> Sizes:
        return {name: chance.choice(choices) * factor for name in names}

    small = dict(zip(names, chance.sample((2, 3, 4, 5, 7), len(names)), strict=True))
    shapes = [{name: size * factor for name, size in small.items()}]
    shapes.append(sized((1, 6, 8, 9, 16, 17, 19) if factor < 4 else (1, 2, 3)))
    shapes.append(sized((1, 2, 3)))
    empty = {**shapes[0], chance.choice(names): 0}
    shapes += [empty, {name: 1 if factor == 1 else factor for name in names}]
    if chance.random() < 0.3:
        shapes.append(dict.fromkeys(names, 0))
    return shapes


def _first_input(b: Builder, names: Sequence[str]) -> None:
    rank = b.chance.choice((1, 2, 2, 2, 3, 3, 4))
    dims: list[str | int] = [b.chance.choice(names) for _ in range(rank)]
    for axis in range(rank):
        if b.flip(0.12):
            dims[axis] = b.chance.choice((1, 3, 4, 8))
    kinds = "float32 float32 float32 float32 float32 float16 float16 float64 int64 int32 uint8 bool"
    dtype = np.dtype(b.chance.choice(kinds.split()))
    low, high = (0.0, 1.0) if dtype.kind == "f" else (0 if dtype.kind == "u" else -5, 6)
    try:
        b.input(dtype.name, dims, low, high)
    except Rejected:  # too large
        b.input(dtype.name, dims[:1], low, high)


def finished(b: Builder) -> Case:
    """The case of what was built: some values are outputs, what none of them needs goes."""
    made = {name for node in b.nodes for name in node.output}
    read = {name for node in b.nodes for name in node.input}
    results = [v for v in b.values if v.name in made]
    if not results:
        results = [b.node("Identity", b.values[0])]
    outputs = [v for v in results if v.name not in read][-4:]
    for value in results:
        if value not in outputs and b.flip(0.12):
            outputs.append(value)
    outputs = outputs or results[-1:]
    nodes = needed(b.nodes, {v.name for v in outputs})
    used = names_read(nodes)
    graph = helper.make_graph(
        nodes,
        "fuzz",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(np.dtype(r.dtype)), r.dims
            )
            for name, r in b.recipes.items()
            if name in used
        ],
        [output_info(v.name, v.dtype, v.rank) for v in outputs],
        [c for c in b.constants if c.name in used],
    )
    opsets = [helper.make_opsetid("", b.opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    recipes = {name: r for name, r in b.recipes.items() if name in used}
    dims = {dim for r in recipes.values() for dim in r.dims if isinstance(dim, str)}
    shapes = [{name: s[name] for name in s if name in dims} for s in b.shapes]
    distinct = [s for k, s in enumerate(shapes) if s not in shapes[:k]]
    ranges = _ranges(b.chance, distinct) if b.flip(0.4) else {}
    data = model.SerializeToString(deterministic=True)
    return Case(data, recipes, tuple(distinct), ranges, seed=b.seed)


def output_info(name: str, dtype: np.dtype, rank: int) -> onnx.ValueInfoProto:
    """An output of unknown sizes, which onnxruntime does not warn of."""
    kind = helper.np_dtype_to_tensor_dtype(dtype) if dtype is not None else TensorProto.FLOAT
    return helper.make_tensor_value_info(name, kind, [None] * rank)


def needed(nodes: list[onnx.NodeProto], wanted: set[str]) -> list[onnx.NodeProto]:
    kept: list[onnx.NodeProto] = []
    for node in reversed(nodes):
        if wanted & set(node.output):
            kept.append(node)
            wanted |= names_read([node])
    return kept[::-1]


def names_read(nodes: Sequence[onnx.NodeProto]) -> set[str]:
    """What nodes read, their nested graphs included."""
    found: set[str] = set()
    for node in nodes:
        found |= set(node.input)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found |= names_read(attribute.g.node)
    return found


def _ranges(chance: random.Random, shapes: Sequence[Sizes]) -> dict[str, tuple[int, ...]]:
    """Declared ranges that hold the sizes: exact ones, wide ones, with or without a multiple."""
    found: dict[str, tuple[int, ...]] = {}
    for name in shapes[0]:
        if chance.random() < 0.3:
            continue
        sizes = [s[name] for s in shapes]
        low = chance.choice((0, min(sizes)))
        high = chance.choice((max(sizes), max(sizes) + 5, 64, 512))
        high = max(high, max(sizes))
        found[name] = (low, high)
        multiples = [d for d in (2, 3, 4) if all(size % d == 0 for size in sizes)]
        if multiples and chance.random() < 0.4:
            divisor = chance.choice(multiples)
            found[name] = (-(-low // divisor) * divisor, high // divisor * divisor, divisor)
    return found
