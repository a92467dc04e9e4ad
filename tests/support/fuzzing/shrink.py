"""A failing case made smaller, step by step, as long as it fails in the same way.

Steps: one shape; no ranges, one thread, the lowest level; fewer outputs; a node's result taken as
an input; a node replaced by one of its operands; attributes dropped; smaller sizes. Start with
:func:`shrink`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper

from .case import Case, Finding, Recipe
from .generate import names_read, needed, output_info
from .oracles import Reference, Values

Judge = Callable[[Case], Finding | None]


def shrink(case: Case, finding: Finding, judge: Judge, seconds: float) -> tuple[Case, Finding]:
    """The smallest case found in the time, and its finding."""
    end = time.monotonic() + seconds
    kind = _kind(finding)
    changed = True
    while changed and time.monotonic() < end:
        changed = False
        for candidate in _candidates(case, finding):
            if time.monotonic() > end:
                break
            found = judge(candidate)
            if found is not None and _kind(found) == kind:
                case, finding, changed = candidate, found, True
                break
    return case, finding


def _kind(finding: Finding) -> tuple[str, str]:
    """Findings of the same kind: a refusal by the same words, an exception of the same type."""
    line = finding.title
    if finding.kind in ("wrong", "hang"):
        return finding.kind, ""
    words = "".join(" " if c.isdigit() or c in "\"'" else c for c in line).split()
    return finding.kind, " ".join(words[:4])


def _candidates(case: Case, finding: Finding) -> Iterator[Case]:
    """Smaller cases, the much smaller ones first."""
    if len(case.shapes) > 1:
        if finding.sizes is not None:
            yield replace(case, shapes=(finding.sizes,))
        for k in range(len(case.shapes)):
            yield replace(case, shapes=case.shapes[:k] + case.shapes[k + 1 :])
    if case.ranges:
        yield replace(case, ranges={})
        for name in case.ranges:
            yield replace(case, ranges={k: v for k, v in case.ranges.items() if k != name})
    if len(case.threads) > 1:
        yield from (replace(case, threads=(t,)) for t in case.threads)
    if case.check:
        yield replace(case, check=False)
    if case.level not in ("x86-64", "none"):
        yield replace(case, level="x86-64")
    if case.plan != "greedy":
        yield replace(case, plan="greedy")
    yield from _fewer_outputs(case)
    yield from _cut(case)
    yield from _without_nodes(case)
    yield from _without_attributes(case)
    yield from _smaller_sizes(case)


# ---------------------------------------------------------------- the model


def _rebuilt(
    case: Case,
    nodes: list[onnx.NodeProto],
    outputs: list[onnx.ValueInfoProto],
    recipes: dict[str, Recipe],
) -> Case:
    """The case with other nodes, outputs and inputs; what is not needed goes."""
    proto = case.proto()
    kept = needed(nodes, {o.name for o in outputs})
    used = names_read(kept) | {o.name for o in outputs}
    recipes = {name: r for name, r in recipes.items() if name in used}
    graph = helper.make_graph(
        kept,
        "fuzz",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(np.dtype(r.dtype)), r.dims
            )
            for name, r in recipes.items()
        ],
        outputs,
        [c for c in proto.graph.initializer if c.name in used],
    )
    del proto.graph.node[:]
    proto.graph.CopyFrom(graph)
    dims = {dim for r in recipes.values() for dim in r.dims if isinstance(dim, str)}
    shapes: list[dict[str, int]] = []
    for sizes in case.shapes:
        left = {name: size for name, size in sizes.items() if name in dims}
        if left not in shapes:
            shapes.append(left)
    ranges = {name: r for name, r in case.ranges.items() if name in dims}
    data = proto.SerializeToString(deterministic=True)
    return replace(case, model=data, recipes=recipes, shapes=tuple(shapes), ranges=ranges)


def _fewer_outputs(case: Case) -> Iterator[Case]:
    graph = case.proto().graph
    outputs = list(graph.output)
    if len(outputs) == 1:
        return
    for output in outputs:
        yield _rebuilt(case, list(graph.node), [output], case.recipes)
    for output in outputs:
        rest = [o for o in outputs if o is not output]
        yield _rebuilt(case, list(graph.node), rest, case.recipes)


def _values(case: Case) -> list[Values]:
    """Every value at every shape, as far as the reference gives them."""
    try:
        reference = Reference(case.proto())
        return [reference.values(case.feeds(sizes)) for sizes in case.shapes]
    except Exception:
        return []


def _cut(case: Case) -> Iterator[Case]:
    """A result taken as an input, or as the output in place of all others."""
    graph = case.proto().graph
    values = _values(case)
    if not values:
        return
    outputs = {o.name for o in graph.output}
    names = [
        name
        for node in graph.node
        for name in node.output
        if name not in outputs and all(name in known for known in values)
    ]
    names = [name for name in names if values[0][name].dtype.kind in "fbiu"]
    for name in names:
        array = values[0][name]
        info = output_info(name, array.dtype, array.ndim)
        yield _rebuilt(case, list(graph.node), [info], case.recipes)
    for name in reversed(names):
        yield _with_input(case, name, [known[name] for known in values])


def _with_input(case: Case, name: str, arrays: list[np.ndarray]) -> Case:
    """The case with one value as an input of its own, with sizes as they were."""
    graph = case.proto().graph
    shapes = [dict(sizes) for sizes in case.shapes]
    dims: list[str | int] = []
    for axis in range(arrays[0].ndim):
        sizes = [array.shape[axis] for array in arrays]
        same = [n for n in shapes[0] if [s[n] for s in shapes] == sizes]
        dims.append(same[0] if same else f"{name}_{axis}")
        for known, size in zip(shapes, sizes, strict=True):
            known.setdefault(str(dims[-1]), size)
    flat = np.concatenate([array.reshape(-1) for array in arrays])
    low, high = 0.0, 1.0
    if flat.dtype.kind in "iu" and flat.size:
        low, high = float(flat.min()), float(flat.max())
    recipe = Recipe(arrays[0].dtype.name, tuple(dims), low, high)
    nodes = [node for node in graph.node if name not in node.output]
    recipes = {**case.recipes, name: recipe}
    return _rebuilt(replace(case, shapes=tuple(shapes)), nodes, list(graph.output), recipes)


def _without_nodes(case: Case) -> Iterator[Case]:
    """A node left out: those that read its result read one of its operands."""
    graph = case.proto().graph
    values = _values(case)
    if not values:
        return
    for number in reversed(range(len(graph.node))):
        node = graph.node[number]
        for operand in dict.fromkeys(node.input):
            if operand not in values[0] or not node.output:
                continue
            one, other = values[0][operand], values[0].get(node.output[0])
            if other is None or one.dtype != other.dtype:
                continue
            if node.output[0] in {o.name for o in graph.output}:
                continue
            changed = case.proto().graph
            for reader in changed.node:
                for k, name in enumerate(reader.input):
                    if name == node.output[0]:
                        reader.input[k] = operand
            yield _rebuilt(case, list(changed.node), list(graph.output), case.recipes)


def _without_attributes(case: Case) -> Iterator[Case]:
    graph = case.proto().graph
    for number, node in enumerate(graph.node):
        for k in range(len(node.attribute)):
            changed = case.proto().graph
            del changed.node[number].attribute[k]
            yield _rebuilt(case, list(changed.node), list(graph.output), case.recipes)
        if len(node.input) > 2:
            changed = case.proto().graph
            del changed.node[number].input[-1]
            yield _rebuilt(case, list(changed.node), list(graph.output), case.recipes)


def _smaller_sizes(case: Case) -> Iterator[Case]:
    if len(case.shapes) != 1 or case.ranges:
        return
    (sizes,) = case.shapes
    for name, size in sizes.items():
        for smaller in (1, 2, size // 2, size - 1):
            if 0 < smaller < size:
                yield replace(case, shapes=({**sizes, name: smaller},))
