# pyright: basic
"""Contractions as ONNX models: cases that share everything but their dynamic axes form a group.

A group is compiled once, with its dynamic axes in a range that covers its cases; a peer gets the
model of each case with all sizes fixed. Weights and data are seeded random numbers. May import
support, numpy and onnx. Start with `group_cases`, then `build_model` and `Problem`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tilewright.bench.suites import AnyCase, Case
from tilewright.support.errors import InputError

CONSTANTS = ("right", "left", "none")
Extents = Mapping[str, int | str]

_ALIGNMENT = 64  # bytes, of operands: of a cache line and of the widest vector
_OPSET, _IR_VERSION = 17, 8  # that all peers know


class AnyGroup(Protocol):
    """Cases of one compilation: contractions (`Group`), or models of a table."""

    @property
    def ranges(self) -> Mapping[str, tuple[int, int]]:
        """Of the dynamic axes."""
        ...

    @property
    def cases(self) -> Sequence[AnyCase]:
        """In the order in which they are timed."""
        ...

    @property
    def constant(self) -> str:
        """The operand that is known when compiling; see `CONSTANTS`."""
        ...

    def prepare(self) -> tuple[onnx.ModelProto, Callable[[Any], Problem]]:
        """The model with its dynamic axes, and what makes the problem of a case."""
        ...


@dataclass(frozen=True)
class Group:
    """Contractions of one compilation: the sizes that they share, and the ranges of the others."""

    kind: str
    constant: str
    fixed: Mapping[str, int]
    ranges: Mapping[str, tuple[int, int]]
    cases: tuple[Case, ...]

    @property
    def extents(self) -> dict[str, int | str]:
        """Every size, as a number or as the name of a dynamic axis."""
        return {**self.fixed, **{name: name for name in self.ranges}}

    def prepare(self) -> tuple[onnx.ModelProto, Callable[[Case], Problem]]:
        """The model with its dynamic axes, and what makes the problem of a case."""
        weight = make_weight(self)
        return build_model(self, self.extents, weight), partial(make_problem, self, weight=weight)


@dataclass(frozen=True)
class Problem:
    """One case, ready for an engine.

    ``model`` is ONNX with all sizes fixed; ``inputs`` what comes at run time, in order; ``weight``
    the constant operand of a contraction as it stands in the model, None if both come at run time;
    ``results`` is memory for the outputs, which engines may share since they are called one after
    the other; ``reference`` computes what they must be, None where only the peers tell.
    """

    case: AnyCase
    constant: str
    model: bytes
    inputs: Mapping[str, np.ndarray]
    weight: np.ndarray | None
    results: Mapping[str, np.ndarray]
    reference: Callable[[], tuple[np.ndarray, ...]] | None = None


def group_cases(cases: Sequence[Case], constant: str) -> tuple[Group, ...]:
    """The cases of each suite by what they share, in the order in which they come.

    ``constant`` is the operand of a gemm that is known when compiling: right, left or none. Raises
    InputError for another.
    """
    if constant not in CONSTANTS:
        raise InputError(
            f"{constant!r} is no operand of a product.", hint=f"use {', '.join(CONSTANTS)}"
        )
    groups: dict[tuple[object, ...], list[Case]] = {}
    dynamic_of: dict[tuple[object, ...], tuple[str, ...]] = {}
    batched = _batched_axes(cases)
    for case in cases:
        dynamic = {
            "gemm": {"right": ("M",), "left": ("N",), "none": ("M", "N")}[constant],
            "bmm": batched.get(_family(case), ()),
            "conv": ("N", "H", "W"),
        }[case.kind]
        shared = tuple((n, size) for n, size in case.sizes.items() if n not in dynamic)
        key = (case.suite, case.kind, shared)
        groups.setdefault(key, []).append(case)
        dynamic_of[key] = dynamic
    return tuple(_group(own, dynamic_of[key], constant) for key, own in groups.items())


def _group(cases: Sequence[Case], dynamic: Sequence[str], constant: str) -> Group:
    first = cases[0]
    fixed = {name: size for name, size in first.sizes.items() if name not in dynamic}
    ranges = {
        name: (_least(name, fixed), max(case.sizes[name] for case in cases)) for name in dynamic
    }
    used = {"gemm": constant, "bmm": "none", "conv": "right"}[first.kind]
    return Group(first.kind, used, fixed, ranges, tuple(cases))


def _least(name: str, fixed: Mapping[str, int]) -> int:
    """The smallest size of a dynamic axis; an image must hold the filter once."""
    if name not in ("H", "W"):
        return 1
    taps, pad = ("R", "pad_h") if name == "H" else ("S", "pad_w")
    return max(1, fixed["dilation"] * (fixed[taps] - 1) + 1 - 2 * fixed[pad])


def _family(case: Case) -> tuple[object, ...]:
    return case.suite, case.sizes.get("trans_a"), case.sizes.get("trans_b")


def _batched_axes(cases: Sequence[Case]) -> dict[tuple[object, ...], tuple[str, ...]]:
    """The dynamic axes of batched products, for each family.

    The batch and M always are, N where it varies, K where it follows M throughout, as in the
    product of attention's weights with its values.
    """
    families: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        if case.kind == "bmm":
            families.setdefault(_family(case), []).append(case)
    found: dict[tuple[object, ...], tuple[str, ...]] = {}
    for family, own in families.items():
        dynamic = ["B", "M"]
        if len({case.sizes["N"] for case in own}) > 1:
            dynamic.append("N")
        follows = all(case.sizes["K"] == case.sizes["M"] for case in own)
        if follows and len({case.sizes["K"] for case in own}) > 1:
            dynamic.append("K")
        found[family] = tuple(dynamic)
    return found


def make_weight(group: Group) -> np.ndarray | None:
    """The constant operand of a group, as it is multiplied; None if there is none."""
    if group.constant == "none":
        return None
    _, shape = _weight_shape(group)
    return random_array(shape, f"{group.kind} weight {shape}")


def _weight_shape(group: Group) -> tuple[str, tuple[int, ...]]:
    f = group.fixed
    if group.kind == "conv":
        return "w", (f["K"], f["C"] // f["groups"], f["R"], f["S"])
    return ("b", (f["K"], f["N"])) if group.constant == "right" else ("a", (f["M"], f["K"]))


def build_model(group: Group, extents: Extents, weight: np.ndarray | None) -> onnx.ModelProto:
    """The contraction with the given extents, dynamic where they are names.

    A transposed operand that comes at run time is stored transposed and goes through Transpose.
    """
    if group.kind == "conv":
        return _build_convolution(extents, weight)
    batch = [extents["B"]] if group.kind == "bmm" else []
    shapes = {"a": [extents["M"], extents["K"]], "b": [extents["K"], extents["N"]]}
    known = {"right": "b", "left": "a", "none": ""}[group.constant]
    nodes: list[onnx.NodeProto] = []
    inputs: list[onnx.ValueInfoProto] = []
    operands: list[str] = []
    for name, shape in shapes.items():
        operands.append(name)
        if name == known:
            continue
        if extents[f"trans_{name}"] == 1:
            shape = shape[::-1]
            operands[-1] = f"{name}_transposed"
            order = [0, 2, 1] if batch else [1, 0]
            nodes.append(helper.make_node("Transpose", [name], [operands[-1]], perm=order))
        inputs.append(_value(name, [*batch, *shape]))
    nodes.append(helper.make_node("MatMul", operands, ["y"]))
    output = _value("y", [*batch, extents["M"], extents["N"]])
    return _finish(nodes, inputs, output, {known: weight} if weight is not None else {})


def build_product(m: int | str, k: int | str, n: int | str) -> onnx.ModelProto:
    """a [m, k] times b [k, n], both run-time inputs, with names for the sizes that vary."""
    extents = {"M": m, "K": k, "N": n, "trans_a": 0, "trans_b": 0}
    return build_model(Group("gemm", "none", {}, {}, ()), extents, None)


def _build_convolution(extents: Extents, weight: np.ndarray | None) -> onnx.ModelProto:
    assert weight is not None, "a convolution has constant weights"
    e = {name: extent for name, extent in extents.items() if isinstance(extent, int)}
    node = helper.make_node(
        "Conv",
        ["x", "w"],
        ["y"],
        kernel_shape=[e["R"], e["S"]],
        pads=[e["pad_h"], e["pad_w"]] * 2,
        strides=[e["stride_h"], e["stride_w"]],
        dilations=[e["dilation"]] * 2,
        group=e["groups"],
    )
    data = _value("x", [extents["N"], extents["C"], extents["H"], extents["W"]])
    result = _value("y", [extents["N"], extents["K"], None, None])
    return _finish([node], [data], result, {"w": weight})


def _value(name: str, shape: Sequence[int | str | None]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _finish(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    output: onnx.ValueInfoProto,
    weights: Mapping[str, np.ndarray],
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "contraction", inputs, [output], tensors)
    opset = helper.make_opsetid("", _OPSET)
    return helper.make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION)


def make_problem(group: Group, case: Case, weight: np.ndarray | None) -> Problem:
    """The data of one case, its model with fixed sizes, and room for the result."""
    sizes = case.sizes
    left, right, result = case.shapes
    inputs: dict[str, np.ndarray] = {}
    if group.kind == "conv":
        inputs["x"] = random_array(left, f"x {case.describe()}")
    else:
        known = {"right": "b", "left": "a", "none": ""}[group.constant]
        for name, shape in (("a", left), ("b", right)):
            if name == known:
                continue
            if sizes[f"trans_{name}"] == 1:
                shape = (*shape[:-2], shape[-1], shape[-2])
            inputs[name] = random_array(shape, f"{name} {case.describe()}")
    model = build_model(group, sizes, weight).SerializeToString()
    return Problem(case, group.constant, model, inputs, weight, {"y": aligned_array(result)})


def random_array(shape: tuple[int, ...], seed: str) -> np.ndarray:
    """Numbers between -0.5 and 0.5, the same for the same text."""
    array = aligned_array(shape)
    generator = np.random.default_rng(zlib.crc32(seed.encode()))
    generator.random(out=array, dtype=np.float32)
    array -= np.float32(0.5)
    return array


def aligned_array(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """An array without values that starts where a cache line does, as engines like it."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    room = np.empty(size + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + size].view(dtype).reshape(shape)
