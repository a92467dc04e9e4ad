"""``tilewright doctor``: what this machine is, and whether everything needed is there.

Start with :func:`doctor`.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.table import Table

from tilewright.backend.cpu.machine import Level, host_level
from tilewright.bench.machine import describe_machine
from tilewright.cli.options import JsonFlag, QuietFlag, VerboseFlag
from tilewright.cli.output import Output, table
from tilewright.cli.tune import how_sure
from tilewright.policy.candidates import CandidateTable, candidates, product_counts
from tilewright.runtime import _native
from tilewright.support.cache import cache_directory
from tilewright.support.processors import allowed_processors, default_threads, quota
from tilewright.support.text import format_bytes, format_count
from tilewright.support.version import VERSION
from tilewright.target import Target, detect, host
from tilewright.tune import Profile, load_profile
from tilewright.tune.peak import measure_peak

_PEERS = ("onnxruntime", "openvino", "torch", "transformers")
_SHOWN = 12  # candidates of each level in the table


def doctor(
    measure: Annotated[
        bool, typer.Option(help="Measure multiply-adds and memory reads of one core.")
    ] = True,
    show_candidates: Annotated[
        bool, typer.Option("--candidates", help="Show the f32 candidates of every level.")
    ] = False,
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = 0,
) -> None:
    """Show the processor, threads, versions, and what one core can do.

    The exit code is 1 if a package is missing that tilewright needs.

    \b
    Example: tilewright doctor
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    level, target = host_level(), detect()
    profile = load_profile(level.name)
    facts = _facts(level, target, profile)
    if measure:
        with output.progress.activity("Measuring one core"):
            peak = measure_peak()
        facts["flops_per_core"] = peak.flops
        facts["read_bytes_per_second_per_core"] = peak.bytes_per_second
        facts["cache_bytes_per_second_per_core"] = dict(peak.reads)
    needed, peers = _versions(_requirements()), _versions(_PEERS)
    missing = [name for name, version in needed.items() if version is None]
    found = candidates(target, "float32") if show_candidates else None
    if found is not None:
        facts["candidates"] = [[asdict(c) for c in level] for level in found.levels]
    output.document({**facts, "dependencies": needed, "peers": peers, "missing": missing})
    rows = [
        (name.replace("_", " "), _text(name, value))
        for name, value in facts.items()
        if name not in ("target", "candidates", "measured_spreads")
    ]
    rows += [("needs", _listing(needed)), ("peers", _listing(peers))]
    output.show(table("", "", rows=rows), "", *_target(target, facts))
    if profile is not None:
        output.show("", *how_sure(profile))
    if found is not None:
        output.show("", *_candidates(found))
    if missing:
        output.show(f"Missing: {', '.join(missing)}. Install them with pip.")
        raise typer.Exit(1)


def _facts(level: Level, target: Target, profile: Profile | None) -> dict[str, object]:
    """What is known of this machine without measuring now."""
    return {
        "tilewright": VERSION,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": describe_machine().processor,
        "level": level.name,
        "vector_bytes": level.vector_bytes,
        "caches": caches(),
        "cores": os.cpu_count(),
        "cores_by_affinity": len(allowed_processors()),
        "cores_by_quota": quota(),
        "default_threads": default_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "native_extension": Path(_native.__file__).name,
        "cache_directory": str(cache_directory()),
        "tiles_measured": profile is not None,
        "measured_spreads": None if profile is None else dict(profile.spreads()),
        "target": asdict(target),
    }


def caches() -> dict[str, int]:
    """Bytes of each cache that the first core sees, by level and kind."""
    kinds = {"Data": "d", "Instruction": "i"}
    return {f"L{c.level}{kinds.get(c.kind, '')}": c.capacity for c in host.caches()}


def _target(target: Target, facts: Mapping[str, object]) -> list[RenderableType]:
    """The detected machine: what is published about it, beside what was measured."""
    found = facts.get("cache_bytes_per_second_per_core")
    measured = dict(found) if isinstance(found, dict) else {}
    memory = facts.get("read_bytes_per_second_per_core")
    measured[target.levels[-1].name] = memory
    rows: list[tuple[str, ...]] = []
    for level in target.levels:
        seen = measured.get(level.name)
        rows.append(
            (
                level.name,
                format_bytes(level.capacity) if level.capacity else "",
                str(level.instances),
                str(level.sharing),
                f"{level.latency:.0f}",
                f"{level.bandwidth:.1f}",
                f"{target.bytes_per_second(level.name) / 1e9:.0f} GB/s",
                f"{seen / 1e9:.0f} GB/s" if isinstance(seen, float) else "",
            )
        )
    columns = ("level", ">size", ">of them", ">cores each", ">cycles", ">B/cycle", ">that is")
    flops = facts.get("flops_per_core")
    peak = f"{target.peak_flops('float32', 1) / 1e9:.0f} GFLOP/s a core, f32, published"
    if isinstance(flops, float):
        peak += f"; {flops / 1e9:.0f} measured"
    return [
        table(*columns, ">measured", rows=rows, title=f"Target: {target.name}"),
        f"{target.isa}, {target.units} cores at {target.clock_ghz:.1f} GHz: {peak}",
    ]


def _candidates(found: CandidateTable) -> list[RenderableType]:
    """The first candidates of each level, spread evenly over all of them."""
    tables: list[RenderableType] = []
    for number, level in enumerate(found.levels):
        step = max(1, len(level) // _SHOWN)
        rows = [
            (
                f"{c.m} x {c.n} x {c.k}",
                c.instruction,
                f"{c.share:.0%}",
                f"{c.used:.0%}",
                str(len(c.children)),
            )
            for c in level[::step]
        ]
        columns = (">m x n x k", "instruction", ">of peak", ">used", ">built from")
        title = f"Level {number}: {format_count(len(level), 'candidate')}"
        tables.append(table(*columns, rows=rows, title=title))
    if found.target.kind == "cpu":
        tables.append(_counts(found.target))
    return tables


def _counts(target: Target) -> Table:
    """What each filter of each level lets through."""
    rows = [
        (counted.level, name, format(count, ","))
        for counted in product_counts(target, "float32")
        for name, count in counted.passed
    ]
    return table("level", "filter", ">candidates", rows=rows, title="What the filters let through")


def _requirements() -> tuple[str, ...]:
    """The packages that tilewright itself needs, from its own metadata."""
    texts = importlib.metadata.requires("tilewright") or []
    names = [re.match(r"[\w.-]+", text) for text in texts if "extra ==" not in text]
    return tuple(match[0] for match in names if match is not None)


def _versions(packages: tuple[str, ...]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def _listing(versions: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version or '(missing)'}" for name, version in versions.items())


def _text(name: str, value: object) -> str:
    if name == "caches" and isinstance(value, dict):
        return ", ".join(f"{key} {format_bytes(int(size))}" for key, size in caches().items())
    if name == "flops_per_core" and isinstance(value, float):
        return f"{value / 1e9:.0f} GFLOP/s, f32"
    if name == "read_bytes_per_second_per_core" and isinstance(value, float):
        return f"{value / 1e9:.1f} GB/s"
    if name == "cache_bytes_per_second_per_core" and isinstance(value, dict):
        return ", ".join(f"{key} {rate / 1e9:.0f} GB/s" for key, rate in value.items())
    if name == "memory_bytes" and isinstance(value, int):
        return format_bytes(value)
    return "none" if value is None else str(value)
