"""What onnx's descriptions of operators say about types: which operands and results share one.

May import numpy and onnx. Start with :func:`find_schema`.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node

_VARIADIC = onnx.defs.OpSchema.FormalParameterOption.Variadic


def find_schema(domain: str, name: str, opset: int) -> onnx.defs.OpSchema | None:
    """onnx's description of an operator at an opset, or None if it has none."""
    try:
        return onnx.defs.get_schema(name, opset, domain)
    except onnx.defs.SchemaError:
        return None


def type_names(parameters: Sequence[onnx.defs.OpSchema.FormalParameter], count: int) -> list[str]:
    """What the schema calls the types of ``count`` operands or results; "" where it names none.

    Equal names mean equal types.
    """
    names: list[str] = []
    for index in range(count):
        parameter = parameters[min(index, len(parameters) - 1)] if parameters else None
        repeated = parameter is not None and parameter.option == _VARIADIC
        known = parameter is not None and (
            (index < len(parameters) and not repeated) or (repeated and parameter.is_homogeneous)
        )
        names.append(parameter.type_str if known and parameter is not None else "")
    return names


def disagreement(
    schema: onnx.defs.OpSchema, operands: Sequence[Node | None], labels: Sequence[str]
) -> str | None:
    """A sentence on two operands whose types have to be the same and are not, or None."""
    first: dict[str, tuple[int, DType]] = {}
    names = type_names(schema.inputs, len(operands))
    for index, (operand, name) in enumerate(zip(operands, names, strict=True)):
        if operand is None or not name or operand.dtype is DType.OBJECT:
            continue
        other, dtype = first.setdefault(name, (index, operand.dtype))
        if operand.dtype is not dtype:
            return (
                f'Input {other} ("{labels[other]}") is of type {dtype.value} and input {index} '
                f'("{labels[index]}") of type {operand.dtype.value}, but they must be of one type'
            )
    return None
