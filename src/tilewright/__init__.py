"""tilewright compiles an ONNX model once, for every shape in the ranges of its dimensions.

    model = tilewright.compile("bert.onnx", dims={"batch": (1, 64), "seq": (0, 512)})
    outputs = model(input_ids=ids, attention_mask=mask)
    model.save("bert.tw"); model = tilewright.load("bert.tw")

These are the public names. What a name needs is imported by its first use, the only imports inside
functions: loading and running an artifact needs the runtime alone, and the help of the command line
needs neither that nor the compiler.
Records of what is done go to the logger ``tilewright``.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tilewright.options import CompileOptions, lists_options
from tilewright.support import errors
from tilewright.support.arguments import MOST_THREADS, choice, file_path, limit, switch
from tilewright.support.collector import paused_collector
from tilewright.support.errors import TilewrightError
from tilewright.support.version import VERSION

if TYPE_CHECKING:
    from typing import Unpack

    import torch

    from tilewright.frontend.onnx import Dim
    from tilewright.frontend.onnx.source import Source
    from tilewright.frontend.torch import DynamicAxes
    from tilewright.runtime.limits import set_memory_limit
    from tilewright.runtime.model import CompiledModel as Model
    from tilewright.runtime.sequences import Ragged

__all__ = [
    "Dim",
    "Model",
    "Ragged",
    "TilewrightError",
    "__version__",
    "compile",
    "errors",
    "from_torch",
    "load",
    "set_memory_limit",
]

__version__ = VERSION

logging.getLogger(__name__).addHandler(logging.NullHandler())


@lists_options
def compile(
    source: Source,
    *,
    num_threads: int | None = None,
    max_bytes: int | None = None,
    flush_denormals: bool = False,
    **options: Unpack[CompileOptions],
) -> Model:
    """Compile an ONNX model once, for every shape in the ranges of its dimensions.

    ``source`` is a path, serialised bytes, or an ONNX model in memory, as ``torch.onnx.export``
    returns it. ``num_threads`` and ``max_bytes`` limit each call; ``flush_denormals=True`` treats
    denormal numbers as zero, because some processors are very slow with them. The options:

    ``dims`` maps names of dimensions to ``Dim(low, high, multiple_of)``, to ``(low, high)`` or
    ``(low, high, multiple_of)`` with both ends included and None for an open one, to a Python
    ``range``, or to the one size that it may have. An open end lies where the model sets a limit,
    else at 0 or 65536; both are open of a dimension that is not named. ``Dim`` tells of ``ragged``.

    ``fallback="error"`` refuses operators without a rule, which otherwise run on the ONNX reference
    evaluator and are named in ``stats()``. ``constants`` maps inputs to the values that they have.

    ``levels`` names the instruction sets to generate code for, one or several of "x86-64", "avx2",
    "avx512", "avx512-vnni", "avx512-bf16", "avx512-amx", or is "portable" for code that runs on
    every processor and uses what it has, but for AMX; unless given, it is the level of ``target``
    or of this machine.
    ``target`` is the machine by whose costs kernel variants are chosen: the name of a preset, or a
    TOML file, which gives the same artifact on any host; unless given, this machine as far as it is
    known (see ``tilewright tune``) for its own levels, and usual ones for others.

    ``policy`` names the method that chooses the block sizes of matrix products: "auto", or for
    comparison "vortex", which keeps more of them, "dietcode" or "ftuner". ``plan`` names the way
    operators are joined to kernels: "greedy", or "optimal", which takes the kernels whose modelled
    time is least; for comparison "partition", the same where nothing is computed twice, "backbone",
    which joins them around products and reductions, or "none". ``rewriting=True`` also looks for
    cheaper forms of parts, as ``plan="optimal"`` does unless it is False; ``measure=True`` runs
    kernels of the best plans to decide. ``max_arena``, such as "64M", limits the bytes between its
    kernels at all declared shapes; ResourceError says how many are needed.
    ``accuracy="strict"`` does without faster algorithms whose rounding errors are larger.
    ``precision="bfloat16"`` rounds constant weights, and the data they are multiplied by, to
    bfloat16 and sums products in float32; ``"int8"`` quantises them, data anew for every row, and
    sums in int32. Both halve or quarter the weights on every processor; those with instructions
    for such products compute them faster as well.

    ``check=True`` verifies what every stage has made and raises ``VerificationError`` where it is
    wrong; unless given, the environment variable ``TILEWRIGHT_CHECK`` decides. ``dump`` names a
    folder into which every stage is written as text.

    Raises subclasses of ``TilewrightError`` only.
    """
    with paused_collector():
        from tilewright.compile import compile_model

    return compile_model(
        source,
        num_threads=limit("num_threads", num_threads, MOST_THREADS),
        max_bytes=limit("max_bytes", max_bytes),
        flush_denormals=switch("flush_denormals", flush_denormals),
        **options,
    )


@lists_options
def from_torch(
    module: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: DynamicAxes | None = None,
    compare: bool = True,
    num_threads: int | None = None,
    max_bytes: int | None = None,
    flush_denormals: bool = False,
    **options: Unpack[CompileOptions],
) -> Model:
    """Export a PyTorch module, compile it, and compare both.

    ``args`` and ``kwargs`` are an example of what ``module`` is called with: tensors, and tuples,
    lists, dictionaries and dataclasses of them; other values are fixed. ``dynamic`` names the axes
    that stay dynamic: a dictionary by the names of the arguments, or an entry for each positional
    one. An entry is ``{axis: name}``, a list with a name or None for every axis, or None, and has
    the form of an argument that holds several tensors. Axes of one name are equally long; ``dims``
    gives ranges for the names. The example must have 2 or more elements along them.

    The model is called with the tensors in the order of ``args`` and then ``kwargs``, and gives
    tensors. Its results are compared with those of the module for the example and, if some axes are
    dynamic, at other sizes, since an export may fix a size without a word; ``compare=False`` leaves
    that out. The other arguments are those of ``compile``.

    Raises InvalidModelError where PyTorch cannot export the module or where results differ, and
    else what ``compile`` raises. Needs the packages torch and onnxscript.
    """
    missing = [name for name in ("torch", "onnxscript") if find_spec(name) is None]
    if missing:
        raise errors.UnsupportedError(
            f"a PyTorch module is exported with {missing[0]}, which is not installed",
            hint='Run pip install "tilewright[torch]"',
        )
    from tilewright.frontend.torch import ExportedModule

    is_compared = switch("compare", compare)
    exported = ExportedModule(module, args, {} if kwargs is None else kwargs, dynamic)
    model = compile(
        exported.model,
        num_threads=num_threads,
        max_bytes=max_bytes,
        flush_denormals=flush_denormals,
        **options,
    )
    if is_compared:
        # What the export has fixed is a limit of the model, and no range that anyone declared.
        declared = (d for d in model.info.dimensions if d.origin != "model")
        exported.compare(model, {d.name: (d.low, d.high, d.multiple_of) for d in declared})
    return model


def load(
    path: str | os.PathLike[str],
    *,
    verify: bool = True,
    copy: bool = False,
    level: str | None = None,
    num_threads: int | None = None,
    max_bytes: int | None = None,
    flush_denormals: bool = False,
) -> Model:
    """A model from an artifact that ``Model.save`` or ``tilewright compile`` wrote.

    No compiler is loaded. ``verify=False`` skips the digests of the weights, which protect against
    damage. Weights stay in the file, where processes share them; a call after the file was written
    into is refused, and ``copy=True`` reads the weights into memory for files that may change.
    Files of up to 4 MiB are always read into memory.
    ``level`` is the best one for this processor unless given. An artifact holds machine code: load
    only files you trust. Operators without a kernel, which ``Model.info.fallbacks`` names, need the
    package onnx; loading without it is refused. Raises subclasses of ``TilewrightError`` only.
    """
    from tilewright.runtime.model import CompiledModel
    from tilewright.runtime.program import LEVELS

    return CompiledModel.load(
        file_path(path),
        verify=switch("verify", verify),
        copy=switch("copy", copy),
        level=None if level is None else choice("level", level, LEVELS),
        evaluate=None if find_spec("onnx") is None else _evaluate,
        num_threads=limit("num_threads", num_threads, MOST_THREADS),
        max_bytes=limit("max_bytes", max_bytes),
        flush_denormals=switch("flush_denormals", flush_denormals),
    )


def _evaluate(payload: bytes, inputs: Sequence[Any]) -> list[Any]:
    """One operator without a kernel; the reference is imported by the first that needs it."""
    from tilewright.ops.reference import evaluate_payload

    return evaluate_payload(payload, inputs)


def __getattr__(name: str) -> Any:
    match name:
        case "Dim":
            from tilewright.frontend.onnx import Dim

            return Dim
        case "Model":
            from tilewright.runtime.model import CompiledModel

            return CompiledModel
        case "Ragged":
            from tilewright.runtime.sequences import Ragged

            return Ragged
        case "set_memory_limit":
            from tilewright.runtime.limits import set_memory_limit

            return set_memory_limit
        case _:
            raise AttributeError(f"module 'tilewright' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, the lazy ones included, and nothing that they are made of."""
    return list(__all__)


class _Package(ModuleType):
    """Keeps ``tilewright.compile`` the function: importing the module so named would replace it."""

    def __setattr__(self, name: str, value: object) -> None:
        if name != "compile" or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
