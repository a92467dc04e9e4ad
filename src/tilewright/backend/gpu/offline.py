"""Compiling Triton source for a GPU that need not be there, and what the code needs of it.

Start with :func:`compile_offline`.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.backend.gpu.kernel import MULTIPLE, Launch, TritonKernel, load_function
from tilewright.support.errors import UnsupportedError
from tilewright.target import Target

_ISA = re.compile(r"sm_(\d+)")
_LEAST = 80  # older multiprocessors have no matrix units that Triton uses
_RESOURCE = re.compile(r"\b(REG|STACK):(\d+)")


@dataclass(frozen=True)
class Binary:
    """Machine code of one kernel at some launch constants, and what a program of it takes.

    ``registers`` are those of a thread, ``spilled`` the bytes of its memory that stand in for
    registers, ``shared`` the bytes of memory that the threads share.
    """

    ptx: str
    cubin: bytes
    threads: int
    registers: int
    spilled: int
    shared: int


def compile_offline(kernel: TritonKernel, launch: Launch, target: Target) -> Binary:
    """Compile a kernel for some launches on a GPU of the family of ``target``.

    Raises UnsupportedError where Triton is not installed or interprets, for targets that are no
    such GPU, and for constants with which a program needs more shared memory than there is.
    """
    isa = _ISA.fullmatch(target.isa)
    if isa is None or int(isa[1]) < _LEAST:
        raise UnsupportedError(
            f"GPU code is generated for sm_{_LEAST} and newer, not for {target.isa}",
            where=f"target {target.name}",
            hint="Choose a100, rtx3090 or h100",
        )
    made, resources = _compiled(kernel, launch, int(isa[1]))
    shared = int(made.metadata.shared)
    if shared > target.block_shared_bytes:
        raise UnsupportedError(
            f"A program of {kernel.name} needs {shared} bytes of shared memory, and {target.name} "
            f"has {target.block_shared_bytes}",
            where=f"constants {launch.constants}",
            hint="Choose a variant of the kernel with smaller tiles",
        )
    threads = 32 * int(made.metadata.num_warps)
    ptx, cubin = made.asm["ptx"], made.asm["cubin"]
    return Binary(ptx, cubin, threads, resources["REG"], resources.get("STACK", 0), shared)


def _compiled(
    kernel: TritonKernel, launch: Launch, architecture: int
) -> tuple[Any, dict[str, int]]:
    """What Triton's compiler makes of a kernel, and what the assembler says of it."""
    made = compile_source(kernel.name, kernel.source, kernel.signature, launch, architecture)
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "kernel.cubin"
        binary.write_bytes(made.asm["cubin"])
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(binary)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return made, {match[1]: int(match[2]) for match in _RESOURCE.finditer(text)}


def compile_source(
    name: str,
    source: str,
    signature: Mapping[str, str],
    launch: Launch,
    architecture: int,
) -> Any:
    """Triton's ``CompiledKernel`` of a function ``name``, for all launches that differ in tasks.

    ``signature`` is that of a :class:`TritonKernel`, ``architecture`` is 90 for sm_90. Triton's own
    cache of code is a folder that goes again. Raises UnsupportedError where Triton is not installed
    or interprets.
    """
    if os.environ.get("TRITON_INTERPRET", "0") != "0":
        raise UnsupportedError(
            "Triton cannot compile in a process in which it interprets",
            where="environment variable TRITON_INTERPRET",
            hint="Compile in a process without it",
        )
    try:
        from triton import compile as compile_ast
        from triton import knobs
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
    except ImportError as error:
        raise UnsupportedError(
            "Triton is not installed, which compiles code for GPUs",
            hint='Install it with pip install "tilewright[gpu]"',
        ) from error
    function = load_function(name, source)
    names: list[str] = function.arg_names
    types = {name: signature.get(name, "constexpr") for name in names}
    fixed = {(names.index(name),): value for name, value in launch.constants.items()}
    known = [["tt.divisibility", MULTIPLE]]
    attributes = {(names.index(name),): known for name in launch.multiples}
    ast = ASTSource(fn=function, signature=types, constexprs=fixed, attrs=attributes)
    options = {"num_warps": launch.warps, "enable_fp_fusion": True}
    with tempfile.TemporaryDirectory() as folder, knobs.cache.scope():
        knobs.cache.dir = folder
        return compile_ast(ast, target=GPUTarget("cuda", architecture, 32), options=options)
