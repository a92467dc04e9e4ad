"""The options of a compilation: their names, types and defaults, in one list.

``tilewright.compile`` and every stage below it take the keywords of :class:`CompileOptions`. Types
alone are imported here, so that the list costs nothing where nothing is compiled.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, cast

from tilewright.support.errors import InputError

if TYPE_CHECKING:
    import os

    import numpy as np

    from tilewright.frontend.onnx import DimLike
    from tilewright.target import Target

LevelName = Literal[
    "portable", "x86-64", "avx2", "avx512", "avx512-vnni", "avx512-bf16", "avx512-amx"
]
FallbackName = Literal["reference", "error"]
AccuracyName = Literal["standard", "strict"]
PrecisionName = Literal["float32", "bfloat16", "int8"]
PolicyName = Literal["auto", "vortex", "dietcode", "ftuner"]
PlanName = Literal["greedy", "optimal", "partition", "backbone", "none"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


class CompileOptions(TypedDict, total=False):
    """How to compile a model; ``tilewright.compile`` says what each option means."""

    dims: Mapping[str, DimLike] | None
    fallback: FallbackName
    constants: Mapping[str, np.ndarray[Any, Any]] | None
    levels: LevelName | Sequence[LevelName] | None
    accuracy: AccuracyName
    precision: PrecisionName
    policy: PolicyName
    plan: PlanName
    max_arena: int | str | None
    rewriting: bool | None
    measure: bool
    target: Target | str | os.PathLike[str] | None
    check: bool | None
    dump: str | os.PathLike[str] | None


DEFAULTS: CompileOptions = {
    "dims": None,
    "fallback": "reference",
    "constants": None,
    "levels": None,
    "accuracy": "standard",
    "precision": "float32",
    "policy": "auto",
    "plan": "greedy",
    "max_arena": None,
    "rewriting": None,
    "measure": False,
    "target": None,
    "check": None,
    "dump": None,
}


def complete(options: CompileOptions) -> Mapping[str, Any]:
    """The options with the defaults of those that are left out. Raises InputError for others."""
    for name in options:
        if name not in DEFAULTS:
            close = difflib.get_close_matches(name, DEFAULTS, 1)
            hint = f'Did you mean "{close[0]}"?' if close else f"Use one of {', '.join(DEFAULTS)}"
            raise InputError(f'There is no option "{name}"', hint=hint)
    return {**DEFAULTS, **options}


def lists_options(function: _Function) -> _Function:
    """Give a function that takes options the signature with all of them, for help to show."""
    signature = inspect.signature(function)
    keywords = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
        for name, default in DEFAULTS.items()
    ]
    described = signature.replace(parameters=[*keywords, *options])
    cast("Any", function).__signature__ = described
    return function
