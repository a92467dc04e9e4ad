"""Which instruction set level of a model a processor runs, and which processors run a level.

Imports ``support`` and ``program``. Start reading at :func:`choose_level`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.runtime.program import LEVELS
from tilewright.support.errors import ArtifactError
from tilewright.support.text import format_list

# What a level asks of a processor, and who has made such processors.
_PROCESSORS = {
    "x86-64": "any x86-64 processor",
    "avx2": "x86-64 processors with AVX2 (Intel since Haswell, AMD since Zen)",
    "avx512": "x86-64 processors with AVX-512 (Intel servers since Skylake, AMD since Zen 4)",
    "avx512-vnni": "x86-64 processors with AVX-512 and VNNI (Intel servers since Cascade Lake, "
    "AMD since Zen 4)",
    "avx512-bf16": "x86-64 processors with AVX-512 and bfloat16 (Intel servers since Sapphire "
    "Rapids, AMD since Zen 4)",
    "avx512-amx": "x86-64 processors with AMX (Intel servers since Sapphire Rapids)",
}


def runs_on(levels: Sequence[str]) -> str:
    """Where a model with these levels runs, in a sentence; the lowest is the first."""
    sentence = f"Runs under Linux on {_PROCESSORS[levels[0]]}"
    if len(levels) == 1:
        return f"{sentence}, with code for the level {levels[0]} alone"
    return f"{sentence}, with the best for the processor of the levels {format_list(levels)}"


def choose_level(
    levels: Mapping[str, Sequence[str]],
    processor: Sequence[str],
    wanted: str | None = None,
    *,
    where: str | None = None,
) -> str:
    """The level that is ``wanted``, or the best one that ``processor`` has all features for.

    ``levels`` maps names to the features they need. Raises ArtifactError where there is none.
    """
    names = [level for level in LEVELS if level in levels]
    if wanted is not None and wanted not in levels:
        of = "" if wanted in LEVELS else f", nor has tilewright; it knows {format_list(LEVELS)}"
        raise ArtifactError(
            f"The model has no level '{wanted}'{of}; it was compiled for {format_list(names)}",
            where=where,
            hint=f"Leave the level out or choose {' or '.join(names)}, or compile the model again",
        )
    present = set(processor)
    fitting = [level for level in names if present.issuperset(levels[level])]
    if wanted is None and fitting:
        return fitting[-1]
    if wanted in fitting:
        return wanted
    lacking = [f for f in levels[wanted or names[0]] if f not in present]
    raise ArtifactError(
        f"This processor cannot run the level {wanted or names[0]}: it lacks "
        f"{format_list(lacking)}. {runs_on(names)}",
        where=where,
        hint=f"Choose the level {fitting[-1]}, or leave it out"
        if fitting
        else "Compile the model on this machine, or with the level portable",
    )
