"""What ``model-error`` and ``regret``, which time kernels at random shapes, share.

Their options, and how reports and documents write a shape and what figures depend on. Start with
:func:`checked_constant` and the options above it.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.bench.machine import describe_machine
from tilewright.bench.operators import CONSTANTS
from tilewright.bench.regret_cases import CODE_LEVELS, KINDS, Setting
from tilewright.bench.suites import AnyCase
from tilewright.cli.usage import UsageError, listed

KindOption = Annotated[
    str, typer.Option(metavar="|".join(KINDS), callback=listed, help="What to time.")
]
SamplesOption = Annotated[int, typer.Option(min=1, help="Shapes to draw.")]
RangeOption = Annotated[
    str,
    typer.Option(
        "--range", metavar="LOW..HIGH", help="The range of every axis; without it the kind's."
    ),
]
ConstantOption = Annotated[
    str, typer.Option(help="The operand of a gemm known when compiling: right, left or none.")
]
CallThreadsOption = Annotated[int, typer.Option(min=1, help="Threads of a call.")]
ShapeSeedOption = Annotated[int, typer.Option(help="Of the shapes.")]
LevelOption = Annotated[
    str,
    typer.Option(
        metavar="|".join(CODE_LEVELS), callback=listed, help="Of the code; this machine's own."
    ),
]
BudgetOption = Annotated[float, typer.Option(min=1.0, help="Seconds for all shapes, about.")]
FamilyOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Only this family of attention or memory; repeatable."),
]
WorstOption = Annotated[int, typer.Option(min=0, help="How many of the worst shapes to show.")]


def checked_constant(constant: str) -> str:
    """The operand of a gemm that is known. Raises UsageError for another word."""
    if constant not in CONSTANTS:
        raise UsageError(f"{constant!r} is no operand.", hint=f"use {', '.join(CONSTANTS)}")
    return constant


def axis_range(text: str) -> tuple[int, int] | None:
    """The two ends in "1..4096", None for nothing. Raises UsageError."""
    if not text:
        return None
    low, _, high = text.partition("..")
    try:
        return int(low), int(high)
    except ValueError:
        raise UsageError(f"{text!r} is no range.", hint="write 1..4096, for example") from None


def described(case: AnyCase) -> str:
    """A shape and where it is from."""
    name = f"{case.suite}: " if case.name.isdecimal() else f"{case.suite}: {case.name}, "
    return name + case.describe()


def conditions(setting: Setting) -> str:
    """What figures depend on beside the shapes, as a report says it."""
    return (
        f"seed {setting.seed}, threads: {setting.threads}, {setting.code_level}, "
        f"{describe_machine().processor}"
    )


def setting_document(setting: Setting) -> dict[str, object]:
    """How a document of figures begins."""
    return {
        "kind": setting.kind,
        "constant": setting.constant,
        "threads": setting.threads,
        "level": setting.code_level,
        "seed": setting.seed,
    }


def case_document(case: AnyCase) -> dict[str, object]:
    """A shape as a document says it."""
    return {"family": case.suite, "name": case.name, "sizes": dict(case.sizes)}
