"""tilewright compiles a tensor program of unknown shapes once, for every shape in its range.

    model = tilewright.compile("bert.onnx", dims={"batch": (1, 64), "seq": (0, 512)})
    outputs = model(input_ids=ids, attention_mask=mask)
    model.save("bert.tw"); model = tilewright.load("bert.tw")

These are the public names. Loading and running an artifact needs the runtime alone, so the compiler
is imported by the first use of :func:`compile` or ``Dim``: the only imports inside functions.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tilewright.runtime.limits import set_memory_limit
from tilewright.runtime.model import CompiledModel
from tilewright.support import errors
from tilewright.support.errors import DimensionError, TilewrightError

if TYPE_CHECKING:
    import numpy as np

    from tilewright.compile import Source
    from tilewright.frontend.onnx import Dim

    DimLike = Dim | int | tuple[int, int] | tuple[int, int, int]

__all__ = [
    "Dim",
    "Model",
    "TilewrightError",
    "__version__",
    "compile",
    "errors",
    "load",
    "set_memory_limit",
]

__version__ = version("tilewright")
Model = CompiledModel


def compile(
    source: Source,
    *,
    dims: Mapping[str, DimLike] | None = None,
    fallback: str = "reference",
    constants: Mapping[str, np.ndarray[Any, Any]] | None = None,
    levels: Sequence[str] | None = None,
    accuracy: str = "standard",
    precision: str = "float32",
    num_threads: int | None = None,
    max_bytes: int | None = None,
    flush_denormals: bool = False,
) -> Model:
    """Compile an ONNX model once, for every shape in the ranges of its dimensions.

    ``source`` is a path, serialised bytes, or an ONNX model in memory. ``dims`` maps names of
    dimensions to ``Dim(low, high, multiple_of)``, to ``(low, high)`` with both ends included, or to
    the one size it may have; the others get what the model implies, or 0..65536.
    ``fallback="error"`` refuses operators without a rule, which otherwise run on the ONNX reference
    evaluator and are named in ``stats()``. ``constants`` fixes inputs. ``levels`` names the
    instruction sets to generate code for, of "x86-64", "avx2", "avx512", "avx512-vnni",
    "avx512-bf16"; this machine's by default. ``accuracy="strict"`` does without faster algorithms
    whose rounding errors are larger. ``precision="bfloat16"`` rounds constant weights, and the data
    they are multiplied by, to bfloat16 and sums products in float32; ``"int8"`` quantises them,
    data anew for every row, and sums in int32. Both halve or quarter the weights on every
    processor; those with instructions for such products compute them faster as well.
    ``num_threads`` and ``max_bytes`` limit each call of the model; ``flush_denormals=True`` takes
    numbers below the normal ones as zeros, which some processors compute much faster. Raises
    subclasses of ``TilewrightError`` only.
    """
    from tilewright.compile import compile_model

    ranges = {name: _dim(name, given) for name, given in (dims or {}).items()}
    return compile_model(
        source,
        dims=ranges,
        fallback=fallback,
        constants=constants,
        levels=levels,
        accuracy=accuracy,
        precision=precision,
        num_threads=num_threads,
        max_bytes=max_bytes,
        flush_denormals=flush_denormals,
    )


def load(
    path: str | os.PathLike[str],
    *,
    verify: bool = True,
    level: str | None = None,
    num_threads: int | None = None,
    max_bytes: int | None = None,
    flush_denormals: bool = False,
) -> Model:
    """A model from an artifact that ``Model.save`` or ``tilewright compile`` wrote.

    No compiler is loaded. ``verify=False`` skips the hashes of the sections, which protect against
    damage. ``level`` is the best one for this processor unless given. An artifact holds machine
    code: load only files you trust. For the rest see :func:`compile`. Raises ``ArtifactError``.
    """
    return CompiledModel.load(
        path,
        verify=verify,
        level=level,
        evaluate=_evaluate,
        num_threads=num_threads,
        max_bytes=max_bytes,
        flush_denormals=flush_denormals,
    )


def _evaluate(payload: bytes, inputs: Sequence[Any]) -> list[Any]:
    """One operator without a kernel; the reference is imported by the first that needs it."""
    from tilewright.ops.reference import evaluate_payload

    return evaluate_payload(payload, inputs)


def _dim(name: str, given: object) -> Dim:
    from tilewright.frontend.onnx import Dim

    match given:
        case Dim():
            return given
        case int():
            return Dim(given, given)
        case (int(low), int(high)):
            return Dim(low, high)
        case (int(low), int(high), int(multiple_of)):
            return Dim(low, high, multiple_of)
        case _:
            raise DimensionError(
                f"{given!r} is not a range",
                where=f'dimension "{name}"',
                hint="give tilewright.Dim(low, high, multiple_of), (low, high), or one size",
            )


def __getattr__(name: str) -> Any:
    if name == "Dim":
        from tilewright.frontend.onnx import Dim

        return Dim
    raise AttributeError(f"module 'tilewright' has no attribute {name!r}")


class _Package(ModuleType):
    """Keeps ``tilewright.compile`` the function: importing the module so named would replace it."""

    def __setattr__(self, name: str, value: object) -> None:
        if name != "compile" or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
