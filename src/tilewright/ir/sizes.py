"""Primitives with other sizes in the place of the symbols that they name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from tilewright.ir.primitives import Opaque, Primitive, Project, TensorType
from tilewright.shape import Expr


def with_sizes(primitive: Primitive, replaced: Mapping[str, Expr | int]) -> Primitive:
    """The primitive with the symbols in its sizes replaced."""
    if isinstance(primitive, Project):
        return replace(primitive, output=_with_sizes(primitive.output, replaced))
    if isinstance(primitive, Opaque):
        types = tuple(_with_sizes(kind, replaced) for kind in primitive.outputs)
        return replace(primitive, outputs=types)
    changes: dict[str, Any] = {}
    for item in fields(primitive):
        value: Any = getattr(primitive, item.name)
        if isinstance(value, Expr):
            changes[item.name] = value.substitute(replaced)
        elif isinstance(value, tuple) and any(isinstance(e, Expr) for e in value):
            changes[item.name] = tuple(e.substitute(replaced) for e in value)
    return replace(primitive, **changes) if changes else primitive


def _with_sizes(old: TensorType, replaced: Mapping[str, Expr | int]) -> TensorType:
    return TensorType(old.dtype, tuple(e.substitute(replaced) for e in old.shape))
