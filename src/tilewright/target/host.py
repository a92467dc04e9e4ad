"""What Linux tells about the processor, without running anything on it.

``root`` stands for the root of the file system in every function, so that tests can use a folder.
What cannot be read is left out. Imports the standard library and ``support``. Start with
:func:`processor`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tilewright.support.arguments import byte_count
from tilewright.support.processors import ROOT, processor_list


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
        capacity = byte_count(size)
        if capacity is not None and level.isdecimal():
            found.append(HostCache(int(level), kind, capacity, processor_list(shared)))
    return tuple(found)


def highest_clock_ghz(root: Path = ROOT) -> float | None:
    """The highest clock that the system says the first processor may run at, None if unsaid."""
    path = root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"
    try:
        return int(path.read_text()) / 1e6
    except (OSError, ValueError):
        return None
