"""What Linux tells about the processor, without running anything on it.

``root`` stands for the root of the file system in every function, so that tests can use a folder.
What cannot be read is left out. Imports the standard library only. Start with :func:`processor`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Processor:
    """The first processor of /proc/cpuinfo: who made it, which one, what it can do.

    ``family`` and ``model`` are x86's; on Arm they are the implementer and the part.
    """

    architecture: str
    vendor: str
    family: int
    model: int
    name: str
    features: frozenset[str]


@dataclass(frozen=True)
class HostCache:
    """A data or unified cache as /sys describes it: bytes, and the processors that share it."""

    level: int
    kind: str
    capacity: int
    processors: tuple[int, ...]


def processor(root: Path = ROOT) -> Processor | None:
    """The processor, None where there is no /proc/cpuinfo."""
    try:
        text = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields: dict[str, str] = {}
    for line in text.split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    is_arm = "CPU implementer" in fields
    keys = ("CPU implementer", "CPU part") if is_arm else ("cpu family", "model")
    return Processor(
        architecture="aarch64" if is_arm else "x86_64",
        vendor="Arm" if is_arm else fields.get("vendor_id", ""),
        family=_number(fields.get(keys[0], "")),
        model=_number(fields.get(keys[1], "")),
        name=fields.get("model name", "") or ("Arm" if is_arm else "x86-64"),
        features=frozenset(fields.get("Features" if is_arm else "flags", "").split()),
    )


def _number(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        return -1


def caches(root: Path = ROOT) -> tuple[HostCache, ...]:
    """The caches that the first processor sees, instruction caches included, from the inside."""
    found: list[HostCache] = []
    for entry in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((entry / n).read_text().strip() for n in ("level", "type", "size"))
            shared = (entry / "shared_cpu_list").read_text()
        except OSError:
            continue
        match = re.fullmatch(r"(\d+)([KMG]?)", size)
        if match is not None and level.isdecimal():
            capacity = int(match[1]) * _UNITS[match[2]]
            found.append(HostCache(int(level), kind, capacity, processor_list(shared)))
    return tuple(found)


def processor_list(text: str) -> tuple[int, ...]:
    """The numbers in a list such as "0-3,8,10-11"; empty where it makes no sense."""
    found: list[int] = []
    for part in text.strip().split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is not None:
            found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(found)


def allowed_processors() -> tuple[int, ...]:
    """The processors that this process may run on."""
    try:
        return tuple(sorted(os.sched_getaffinity(0)))
    except AttributeError:  # not Linux
        return tuple(range(os.cpu_count() or 1))


def cores(processors: Sequence[int], root: Path = ROOT) -> tuple[tuple[int, ...], ...]:
    """``processors`` grouped by the core whose hardware threads they are."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for number in processors:
        path = root / f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list"
        try:
            siblings = processor_list(path.read_text()) or (number,)
        except OSError:
            siblings = (number,)
        groups.setdefault(siblings, []).append(number)
    return tuple(tuple(group) for group in groups.values())


def quota(root: Path = ROOT) -> float | None:
    """The processors that the control groups of this process allow, None without a limit."""
    limits = [_unified_limit(folder) for folder in _group_folders(root, "")]
    limits += [_old_limit(folder) for folder in _group_folders(root, "cpu")]
    present = [limit for limit in limits if limit is not None]
    return min(present) if present else None


def _group_folders(root: Path, controller: str) -> list[Path]:
    """The control group of this process and all above it, where they can be seen."""
    base = root / "sys/fs/cgroup" / controller
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return [base]
    for line in lines:
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if (controller in names.split(",")) if controller else not names:
            parts = [part for part in path.strip("/").split("/") if part not in ("", "..")]
            return [base.joinpath(*parts[:count]) for count in range(len(parts) + 1)]
    return [base]


def _unified_limit(folder: Path) -> float | None:
    try:
        limit, period = (folder / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _old_limit(folder: Path) -> float | None:
    try:
        limit = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
        return limit / period if limit > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def usable_units(processors: Sequence[int], root: Path = ROOT) -> int:
    """Cores among ``processors``, at most what the quota allows (rounded up)."""
    limit = quota(root)
    count = len(cores(processors, root))
    return max(1, count if limit is None else min(count, math.ceil(limit)))


def highest_clock_ghz(root: Path = ROOT) -> float | None:
    """The highest clock that the system says the first processor may run at, None if unsaid."""
    path = root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"
    try:
        return int(path.read_text()) / 1e6
    except (OSError, ValueError):
        return None
