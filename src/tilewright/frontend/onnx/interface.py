"""The inputs of a model as nodes, their dimensions settled together, and its outputs checked.

Start with :func:`make_inputs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

import numpy as np
import onnx_ir

from tilewright.frontend.onnx.dims import Dim, DimensionTable, Implied
from tilewright.frontend.onnx.state import State
from tilewright.frontend.onnx.tensor_types import element_type
from tilewright.frontend.onnx.values import constant_input, input_sizes, proto_of_value
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.primitives import Input
from tilewright.shape import Expr, Guard, less_equal
from tilewright.support.arguments import show
from tilewright.support.errors import InputError, InvalidModelError


def make_inputs(
    model: onnx_ir.Model,
    state: State,
    dims: Mapping[str, Dim],
    narrower: Mapping[str, Implied],
    constants: Mapping[str, np.ndarray],
) -> dict[onnx_ir.Value, Node]:
    """The node of every input; inputs that have an initializer are left to be constants.

    ``dims`` are the ranges that the caller gave, ``narrower`` those that the model implies, and
    ``constants`` the values of inputs, in the place of their initializers, too.
    """
    table = DimensionTable(state.scope, dims, narrower)
    graph = model.graph
    # Before version 4 of the format, every initializer had to be an input as well.
    with_default = graph.initializers.keys() if (model.ir_version or 0) >= 4 else frozenset[str]()
    known = [v.name or "" for v in graph.inputs]
    known = [name for name in known if name in with_default or name not in graph.initializers]
    unknown = [name for name in constants if name not in known]
    if unknown:
        hint = f"Use its inputs: {', '.join(known)}"
        raise InputError(f'the model has no input "{unknown[0]}"', hint=hint)
    state.fixed = tuple(n for n in known if n in with_default or n in constants)
    defaults = [name for name in known if name in with_default and name not in constants]
    if defaults:
        state.notes.append(f"inputs with a default are constants: {', '.join(defaults)}")
    free = [v for v in graph.inputs if v.name not in graph.initializers or v.name in constants]
    for value in free:
        sizes = None if value.name in constants else input_sizes(value)
        if sizes is not None:
            table.survey(value.name or "", sizes)
    shapes = table.settle()
    state.dimensions = table.report()
    sizes = [size for shape in shapes.values() for size in shape]
    state.facts.given = frozenset(name for size in sizes for name in size.free_symbols)
    return {value: _input(value, state, shapes, constants) for value in free}


def negative_sizes(inputs: Iterable[Node]) -> list[Guard]:
    """That no size of an input is negative, of sizes that are more than a dimension.

    An array has no such size, so that no call can fail by it, but dimensions have fewer values.
    """
    sizes = {
        size: (cast("Input", made.primitive).name, axis)
        for made in inputs
        for axis, size in enumerate(made.shape)
        if size.free_symbols and size.symbol_name is None
    }
    return [
        Guard(less_equal(0, size), f'Input "{name}", axis {axis}: {size} is a size, and at least 0')
        for size, (name, axis) in sizes.items()
    ]


def _input(
    value: onnx_ir.Value,
    state: State,
    shapes: dict[str, tuple[Expr, ...]],
    constants: Mapping[str, np.ndarray],
) -> Node:
    name = value.name or ""
    if name in constants:
        return constant_input(value, constants[name])
    if name in shapes and isinstance(value.type, onnx_ir.TensorType):
        dtype = element_type(value.type.dtype.value, f'input "{name}"')
        made = node(Input(name, dtype, shapes[name]))
    else:
        made = node(Input(name, DType.OBJECT, ()))
        proto = proto_of_value(value)
        if proto is None:
            raise InvalidModelError("the input has no type", where=f'input "{name}"')
        state.objects[made] = proto
    state.inputs.append(made)
    state.labels[made] = f'input "{name}"'
    return made


def as_constants(given: object) -> dict[str, np.ndarray]:
    """Inputs whose values are fixed, by name. Raises ``InputError`` for what names none."""
    if given is None:
        return {}
    named = isinstance(given, Mapping) and all(isinstance(name, str) for name in given)
    if not named:
        raise InputError(
            f"'constants' is {show(given)}, which names no inputs",
            hint='Give names of inputs and arrays, such as constants={"k": array}',
        )
    return dict(cast("Mapping[str, np.ndarray]", given))


def check_output(value: onnx_ir.Value, made: Node, where: str) -> None:
    """Raise ``InvalidModelError`` if an output is stated with another element type."""
    if isinstance(value.type, onnx_ir.TensorType) and made.dtype is not DType.OBJECT:
        stated = element_type(value.type.dtype.value, where)
        if stated is not made.dtype:
            raise InvalidModelError(
                f"stated as {stated.value}, but computed as {made.dtype.value}",
                where=where,
                hint="export the model again, or correct the type of the output",
            )
