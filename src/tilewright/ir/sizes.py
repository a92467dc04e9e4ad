"""Primitives with their sizes written in another way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from tilewright.ir.primitives import Opaque, Primitive, Project, TensorType
from tilewright.shape import Expr


def with_sizes(primitive: Primitive, changed: Callable[[Expr], Expr]) -> Primitive:
    """The primitive with the form that ``changed`` gives to each of its sizes."""
    if isinstance(primitive, Project):
        return replace(primitive, output=_with_sizes(primitive.output, changed))
    if isinstance(primitive, Opaque):
        types = tuple(_with_sizes(kind, changed) for kind in primitive.outputs)
        return replace(primitive, outputs=types)
    changes: dict[str, Any] = {}
    for item in fields(primitive):
        value: Any = getattr(primitive, item.name)
        if isinstance(value, Expr):
            changes[item.name] = changed(value)
        elif isinstance(value, tuple) and any(isinstance(e, Expr) for e in value):
            changes[item.name] = tuple(changed(e) for e in value)
    return replace(primitive, **changes) if changes else primitive


def _with_sizes(old: TensorType, changed: Callable[[Expr], Expr]) -> TensorType:
    return TensorType(old.dtype, tuple(changed(e) for e in old.shape))
