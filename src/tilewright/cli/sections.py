"""What several verbs show of a model: its dimensions, operators, levels, and where it runs.

Imports the frontend's report and the runtime's record. Start with :func:`dimension_section`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from rich.console import RenderableType
from rich.table import Table

from tilewright.cli.output import table
from tilewright.frontend.onnx import DimensionReport, Fallback, ImportReport
from tilewright.rewrite.precision import Narrowing
from tilewright.runtime.info import ArtifactInfo, LevelInfo
from tilewright.runtime.program import Dimension
from tilewright.support.text import format_bytes, format_count, format_list

_ORIGINS = {"given": "declared", "model": "implied by the model", "default": "the default"}
_Value = TypeVar("_Value", bound=Hashable)
_LONGEST_FORMULA = 300
_MOST_NAMES = 12
_LONG_FORMULA = "a long formula, which --json shows"
_FIXED = "No dimension varies: every size of the inputs is a constant"


def dimension_section(dimensions: Sequence[DimensionReport]) -> list[RenderableType]:
    """Every dimension with its range, where the range is from, and where it stands."""
    if not dimensions:
        return [_FIXED, ""]
    rows = [
        (
            row.name,
            _range(row),
            _ORIGINS.get(row.origin, row.origin),
            ", ".join(f"{name}[{axis}]" for name, axis in row.places),
        )
        for row in dimensions
    ]
    columns = ("dimension", "range", "range is", "input and axis")
    parts: list[RenderableType] = [table(*columns, rows=rows)]
    assumed = [row for row in dimensions if row.origin == "default"]
    if assumed:
        verb = "has" if len(assumed) == 1 else "have"
        names = format_list([row.name for row in assumed])
        first = assumed[0]
        parts.append(
            f"Not declared: {names} {verb} the default range {_range(first)}; "
            f"larger sizes are refused. To declare one, add --dim {first.name}=LOW..HIGH"
        )
    return [*parts, ""]


def _range(row: DimensionReport | Dimension) -> str:
    end = "" if row.high is None else str(row.high)
    return f"{row.low}..{end}" + (f" % {row.multiple_of}" if row.multiple_of > 1 else "")


def operator_section(report: ImportReport) -> list[RenderableType]:
    """What compiles, with numbers, and what runs on the ONNX reference evaluator and why."""
    parts = compiled_operators(report.compiled)
    if not report.fallbacks:
        return [*parts, "No operator runs on the ONNX reference evaluator", ""]
    parts.append("")
    rows = [(f.operator, f.where, f.reason) for f in _distinct(report.fallbacks)]
    title = (
        f"{format_count(len(report.fallbacks), 'operator')} on the ONNX reference evaluator (slow)"
    )
    return [*parts, table("operator", "where", "reason", rows=rows, title=title), ""]


def compiled_operators(compiled: dict[str, int]) -> list[RenderableType]:
    """How many operators compile, and which."""
    counts = ", ".join(f"{name} {count}" for name, count in sorted(compiled.items()) if count)
    return [f"{format_count(sum(compiled.values()), 'operator')} compiled: {counts or 'none'}"]


def _distinct(fallbacks: Sequence[Fallback]) -> list[Fallback]:
    """One row for each operator and reason; the others are counted in it."""
    groups: dict[tuple[str, str], list[Fallback]] = {}
    for fallback in fallbacks:
        groups.setdefault((fallback.operator, fallback.reason), []).append(fallback)
    return [
        rows[0]
        if len(rows) == 1
        else dataclasses.replace(rows[0], where=f"{rows[0].where} and {len(rows) - 1} more")
        for rows in groups.values()
    ]


def narrowing_section(narrowing: Narrowing | None, precision: str) -> list[RenderableType]:
    """How many products have narrow operands, and why the others do not."""
    if narrowing is None:
        return []
    kept = sum(narrowing.kept.values())
    count = format_count(narrowing.narrowed + kept, "product")
    head = f"{narrowing.narrowed} of {count} in {precision} where that costs less"
    if not narrowing.narrowed:
        head = f"Nothing is held in {precision}: none of {count} can be, all stay in float32"
    rows = [(str(count), reason) for reason, count in narrowing.kept.items()]
    if not rows:
        return [head, ""]
    return [head, table(">in float32", "because", rows=rows), ""]


def artifact_sections(info: ArtifactInfo) -> list[RenderableType]:
    """What an artifact says of itself, but for its levels."""
    rows = [("input", spec.name, _type(spec.dtype, spec.shape)) for spec in info.inputs]
    rows += [("output", spec.name, _type(spec.dtype, spec.shape)) for spec in info.outputs]
    dimensions = [(row.name, _range(row)) for row in info.dimensions]
    compiled = {row.operator: row.count - row.opaque for row in info.operators}
    fallbacks = ", ".join(f"{name} {count}" for name, count in sorted(info.fallbacks.items()))
    return [
        table("", "name", "type", rows=rows),
        "",
        table("dimension", "range", rows=dimensions) if dimensions else _FIXED,
        "",
        *compiled_operators(compiled),
        f"On the ONNX reference evaluator (slow, needs the package onnx): {fallbacks}"
        if fallbacks
        else "No operator runs on the ONNX reference evaluator",
        "",
    ]


def _type(dtype: str, shape: Sequence[str]) -> str:
    return f"{dtype}[{', '.join(shape)}]"


def level_table(info: ArtifactInfo) -> Table:
    """The instruction sets of an artifact with their sizes; kernels share functions."""
    rows = [
        (
            level.name,
            str(level.kernels),
            str(level.functions),
            str(level.opaque_steps),
            format_bytes(level.code_bytes),
            format_bytes(level.weight_bytes),
        )
        for level in info.levels
    ]
    columns = ("level", ">kernels", ">functions", ">opaque steps", ">code", ">weights")
    return table(*columns, rows=rows)


def memory_lines(info: ArtifactInfo) -> list[str]:
    """What a call needs between kernels, in the dimensions, for each level that differs."""
    return [
        f"Bytes between kernels{where}: "
        f"{formula if len(formula) <= _LONGEST_FORMULA else _LONG_FORMULA}"
        for formula, where in _by_levels(info, lambda level: level.peak_bytes)
    ]


def measured_lines(info: ArtifactInfo) -> list[str]:
    """Which kernels were priced by running them, by level."""
    return [
        f"Priced by measurement{where}: {named(labels)}"
        for labels, where in _by_levels(info, lambda level: level.measured)
        if labels
    ]


def named(labels: Sequence[str]) -> str:
    """How many kernels these are, and their names, a number with those that are alike."""
    counts = Counter(labels)
    shown = [name if n == 1 else f"{name} ({n})" for name, n in counts.most_common(_MOST_NAMES)]
    others = len(counts) - len(shown)
    rest = [f"{others} more"] if others else []
    return f"{format_count(len(labels), 'kernel')}, {format_list([*shown, *rest])}"


def origin_lines(info: ArtifactInfo) -> list[str]:
    """Where an artifact runs, and by which machines it chooses between variants of kernels."""
    choices = [
        f"Chooses kernel variants{where} by the costs of {machine}"
        for machine, where in _by_levels(info, _machine)
    ]
    return [info.runs_on, *choices]


def _by_levels(info: ArtifactInfo, of: Callable[[LevelInfo], _Value]) -> list[tuple[_Value, str]]:
    """What is said of levels, each once, and of which: " for a and b", or "" where of all."""
    groups: dict[_Value, list[str]] = {}
    for level in info.levels:
        groups.setdefault(of(level), []).append(level.name)
    only = len(groups) == 1
    return [
        (value, "" if only else f" for {format_list(names)}") for value, names in groups.items()
    ]


def _machine(level: LevelInfo) -> str:
    machine = level.machine
    if not machine.name:
        return "an unknown machine"
    measured = f"register tiles measured (profile {machine.profile})"
    published = "register tiles not measured, see tilewright tune"
    state = measured if machine.profile else published
    return f"{machine.name} (description {machine.digest}), {state}"
