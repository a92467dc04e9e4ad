"""``tilewright doctor``: what this machine is, and whether everything needed is there.

Start with :func:`doctor`.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import Annotated

import typer

from tilewright.backend.cpu.machine import host_level
from tilewright.bench.machine import describe_machine, usable_cores
from tilewright.bench.peak import measure_peak
from tilewright.cli.options import JsonFlag
from tilewright.cli.output import Output, table
from tilewright.runtime import _native
from tilewright.support.text import format_bytes

_PEERS = ("onnxruntime", "openvino", "torch", "transformers")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_GROUPS = Path("/sys/fs/cgroup")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def doctor(
    measure: Annotated[
        bool, typer.Option(help="Measure multiply-adds and memory reads of one core.")
    ] = True,
    as_json: JsonFlag = False,
) -> None:
    """Show the processor, threads, versions, and what one core can do; exit code 1 if parts miss.

    Example: [bold]tilewright doctor[/]
    """
    output = Output(as_json=as_json)
    level = host_level()
    facts: dict[str, object] = {
        "tilewright": importlib.metadata.version("tilewright"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": describe_machine().processor,
        "level": level.name,
        "vector_bytes": level.vector_bytes,
        "caches": caches(),
        "cores": os.cpu_count(),
        "cores_by_affinity": usable_cores(),
        "cores_by_quota": quota(),
        "default_threads": _native.default_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "native_extension": Path(_native.__file__).name,
        "cache_directory": None,
    }
    if measure:
        with output.progress.activity("Measuring one core"):
            peak = measure_peak()
        facts["flops_per_core"] = peak.flops
        facts["read_bytes_per_second_per_core"] = peak.bytes_per_second
    needed, peers = _versions(_requirements()), _versions(_PEERS)
    missing = [name for name, version in needed.items() if version is None]
    output.document({**facts, "dependencies": needed, "peers": peers, "missing": missing})
    rows = [(name.replace("_", " "), _text(name, value)) for name, value in facts.items()]
    rows += [("needs", _listing(needed)), ("peers", _listing(peers))]
    output.show(table("", "", rows=rows))
    if missing:
        output.show(f"Missing: {', '.join(missing)}. Install them with pip.")
        raise typer.Exit(1)


def caches() -> dict[str, int]:
    """Bytes of each cache that the first core sees, by level and kind."""
    found: dict[str, int] = {}
    for entry in sorted(_CACHES.glob("index*")):
        try:
            level, kind, size = ((entry / n).read_text().strip() for n in ("level", "type", "size"))
        except OSError:
            continue
        match = re.fullmatch(r"(\d+)([KMG]?)", size)
        if match is not None:
            suffix = {"Data": "d", "Instruction": "i"}.get(kind, "")
            found[f"L{level}{suffix}"] = int(match[1]) * _UNITS.get(match[2], 1)
    return found


def quota() -> float | None:
    """The processors that the control group of this process allows, None without a limit."""
    try:
        limit, period = (_GROUPS / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        limit = int((_GROUPS / "cpu/cpu.cfs_quota_us").read_text())
        return limit / int((_GROUPS / "cpu/cpu.cfs_period_us").read_text()) if limit > 0 else None
    except (OSError, ValueError):
        return None


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
    if name == "memory_bytes" and isinstance(value, int):
        return format_bytes(value)
    return "none" if value is None else str(value)
