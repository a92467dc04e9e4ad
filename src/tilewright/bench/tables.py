# pyright: basic
"""Suites that come with tilewright: small ONNX models from tables, one case a line.

``memory`` holds operators limited by memory, ``attention`` scaled dot-product attention. Cases of
one form (all but the sizes is alike) are compiled once. `TableCase` knows the operations and bytes
of a case, counted on the model with all sizes fixed. May import support, numpy and onnx. Start with
`read_table`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser, shape_inference

from tilewright.bench.operators import Problem, aligned_array, random_array
from tilewright.bench.table_reference import evaluate

TABLES = ("memory", "attention")

_FOLDER = Path(__file__).parent / "tables"
_HEADER = '<ir_version: 10, opset_import: ["" : 23]>'
# What these read of their first operand depends on the indices, and is as large as the result.
_PICKING = ("Gather", "GatherElements", "GatherND", "Slice")
# The smallest extent of a dynamic axis; an image must hold the largest window once.
_LEAST = {"depth": 2, "height": 7, "width": 7}
_SMALLEST_VARIANCE = np.float32(0.25)


@dataclass(frozen=True)
class Form:
    """A model up to the sizes of its dynamic axes: ONNX's text for inputs, constants and nodes."""

    inputs: str
    constants: str
    nodes: str

    def parse(self, sizes: Mapping[str, int]) -> onnx.ModelProto:
        """The model, whose random constants have a type but no value yet.

        Axes that ``sizes`` names are fixed, the others are dynamic.
        """
        constants = f"<{self.constants}>" if self.constants else ""
        text = f"{_HEADER} case ({self.inputs}) => () {constants} {{ {self.nodes} }}"
        model = parser.parse_model(text)
        graph = model.graph
        read = {name for node in graph.node for name in node.input}
        results = [name for node in graph.node for name in node.output if name not in read]
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in results)
        for value in graph.input:
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param in sizes:
                    dim.dim_value = sizes[dim.dim_param]
        return model

    def build(self, sizes: Mapping[str, int]) -> onnx.ModelProto:
        """The model with all its constants and the types of its results."""
        model = self.parse(sizes)
        graph = model.graph
        for value in graph.value_info:
            array = _floats(_shape(value), value.name, self.nodes)
            graph.initializer.append(numpy_helper.from_array(array, value.name))
        del graph.value_info[:]
        return _inferred(model)


@dataclass(frozen=True)
class TableCase:
    """One line of a table. ``flops`` are those of products alone; ``bytes`` what must be moved."""

    suite: str
    name: str
    kind: str
    sizes: Mapping[str, int]
    form: Form
    flops: int
    bytes: int

    def describe(self) -> str:
        """The sizes of the dynamic axes."""
        return " ".join(f"{name}={size}" for name, size in self.sizes.items())


@dataclass(frozen=True)
class TableGroup:
    """Cases of one form, compiled once for ranges that cover them all."""

    form: Form
    ranges: Mapping[str, tuple[int, int]]
    cases: tuple[TableCase, ...]
    constant: str = "none"

    def prepare(self) -> tuple[onnx.ModelProto, Callable[[TableCase], Problem]]:
        """The model with its dynamic axes, and what makes the problem of a case."""
        return self.form.build({}), make_table_problem


def read_table(name: str) -> tuple[TableCase, ...]:
    """The cases of one of `TABLES`."""
    lines = (_FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split("|") for line in lines if line and not line.startswith("#")]
    return tuple(make_table_case(name, *(part.strip() for part in row)) for row in rows)


def make_table_case(
    kind: str, suite: str, name: str, inputs: str, constants: str, nodes: str, listed: str
) -> TableCase:
    """The case of one line, with its operations and bytes counted; ``listed`` are its sizes."""
    sizes = {axis: int(size) for axis, _, size in (pair.partition("=") for pair in listed.split())}
    case = TableCase(suite, name, kind, sizes, Form(inputs, constants, nodes), flops=0, bytes=0)
    return _counted(case)[0]


def resize_case(case: TableCase, sizes: Mapping[str, int]) -> TableCase | None:
    """The same model at other sizes, counted anew.

    None where there is nothing to compare: a result is known to be empty, or a scatter has fewer
    places than updates, each of which replaces one.
    """
    try:
        found, model = _counted(replace(case, sizes=sizes))
    except shape_inference.InferenceError:
        return None
    if any(_is_empty(value) for value in model.graph.output):
        return None
    shapes = {value.name: _shape(value) for value in model.graph.input}
    for node in model.graph.node:
        attributes = _attributes(node)
        if node.op_type.startswith("Scatter") and "reduction" not in attributes:
            axis = attributes.get("axis", 0)
            if shapes[node.input[1]][axis] > shapes[node.input[0]][axis]:
                return None
    return found


def _counted(case: TableCase) -> tuple[TableCase, onnx.ModelProto]:
    """The case with its operations and bytes, and the model with the types of all values."""
    model = case.form.parse(case.sizes)
    read = [*model.graph.input, *model.graph.value_info]
    model = _inferred(model)
    flops = _product_flops(model) if case.kind == "attention" else 0
    return replace(case, flops=flops, bytes=_moved_bytes(model, read)), model


def group_table_cases(cases: Sequence[TableCase]) -> tuple[TableGroup, ...]:
    """The cases by their form, in the order in which they come."""
    forms: dict[Form, list[TableCase]] = {}
    for case in cases:
        forms.setdefault(case.form, []).append(case)
    groups: list[TableGroup] = []
    for form, own in forms.items():
        ranges = {
            axis: (_LEAST.get(axis, 1), max(case.sizes[axis] for case in own))
            for axis in own[0].sizes
        }
        groups.append(TableGroup(form, ranges, tuple(own)))
    return tuple(groups)


def make_table_problem(case: TableCase) -> Problem:
    """The data of one case, its model with fixed sizes, room for the results and a reference."""
    model = case.form.build(case.sizes)
    inputs = {value.name: _input(value, model) for value in model.graph.input}
    results = {
        value.name: aligned_array(_shape(value), _dtype(value)) for value in model.graph.output
    }
    reference = partial(evaluate, model, inputs)
    return Problem(case, "none", model.SerializeToString(), inputs, None, results, reference)


# ---------------------------------------------------------------- what a case takes


def _product_flops(model: onnx.ModelProto) -> int:
    """Operations of all products, a multiplication and an addition being two; masks save none."""
    graph, count = model.graph, 0
    shapes = {v.name: _shape(v) for v in (*graph.input, *graph.value_info, *graph.output)}
    for node in graph.node:
        if node.op_type == "MatMul":
            count += 2 * math.prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]
        elif node.op_type == "Attention":
            query, key, value = (shapes[name] for name in node.input[:3])
            count += 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])
    return count


def _moved_bytes(model: onnx.ModelProto, read: Sequence[onnx.ValueInfoProto]) -> int:
    """Each input and random constant read once, each result written once.

    Of data that is picked from, as much is read as is written.
    """
    picked = {node.input[0] for node in model.graph.node if node.op_type in _PICKING}
    written = [*model.graph.output]
    moved = [value for value in read if value.name not in picked] + written
    moved += written if picked else []
    return sum(math.prod(_shape(value)) * _dtype(value).itemsize for value in moved)


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the types of all values; ONNX has no inference for GroupNormalization."""
    model = shape_inference.infer_shapes(model, data_prop=True)
    graph = model.graph
    types = {value.name: value.type for value in (*graph.input, *graph.value_info)}
    for node in graph.node:
        if node.op_type == "GroupNormalization":
            known = onnx.ValueInfoProto(name=node.output[0], type=types[node.input[0]])
            outputs = [value for value in graph.output if value.name == known.name]
            for value in outputs or [graph.value_info.add()]:
                value.CopyFrom(known)
    return shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


def _shape(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)


def _is_empty(value: onnx.ValueInfoProto) -> bool:
    """Whether there is an axis without elements; inference does not know all of them."""
    dims = value.type.tensor_type.shape.dim
    return any(dim.HasField("dim_value") and dim.dim_value < 1 for dim in dims)


def _dtype(value: onnx.ValueInfoProto) -> np.dtype:
    return helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)


# ---------------------------------------------------------------- data


def _floats(shape: tuple[int, ...], name: str, seed: str) -> np.ndarray:
    array = random_array(shape, f"{name} {shape} {seed}")
    return np.abs(array) + _SMALLEST_VARIANCE if name == "variance" else array


def _input(value: onnx.ValueInfoProto, model: onnx.ModelProto) -> np.ndarray:
    """Seeded random data: indices within what they index, divisors not 0, others as they come."""
    shape, dtype = _shape(value), _dtype(value)
    array = random_array(shape, f"{value.name} {shape}")
    if dtype.kind == "b":
        array = array > 0
    elif dtype.kind in "iu":
        array = (
            _indices(value.name, array, model)
            if value.name == "indices"
            else 200 * (array + np.float32(0.5 if dtype.kind == "u" else 0))
        )
        if value.name == "divisors":
            array = np.where(np.trunc(array) == 0, 7, array)
    made = aligned_array(shape, dtype)
    made[...] = array.astype(dtype)
    return made


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {found.name: helper.get_attribute_value(found) for found in node.attribute}


def _indices(name: str, array: np.ndarray, model: onnx.ModelProto) -> np.ndarray:
    """Indices for the node that takes them; those of a scatter that replaces are distinct."""
    graph = model.graph
    (node,) = [node for node in graph.node if name in node.input]
    shapes = {value.name: _shape(value) for value in graph.input}
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    attributes = _attributes(node)
    if node.op_type == "OneHot":
        (depth,) = [t for t in graph.initializer if t.name == node.input[1]]
        bound = int(numpy_helper.to_array(depth))
    else:
        bound = shapes[node.input[0]][attributes.get("axis", 0)]
    if node.op_type.startswith("Scatter") and "reduction" not in attributes:
        # The order of random numbers, spread over what is indexed.
        axis = attributes.get("axis", 0)
        return np.argsort(array, axis=axis) * (bound // array.shape[axis])
    return np.minimum((array + 0.5) * bound, bound - 1)
