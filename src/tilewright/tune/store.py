"""Where measurements are kept: two files for each machine and instruction set level.

One is the profile of the machine, the other holds times of kernels that were run for the planner.
They are in the cache directory. A file that is damaged or from another version counts as not there.
Imports target and support. Start with :func:`load_profile`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilewright.support.cache import cache_directory, replace_file
from tilewright.support.errors import ResourceError
from tilewright.support.processors import ROOT
from tilewright.support.version import VERSION
from tilewright.target import host
from tilewright.target.loop_costs import LoopCosts
from tilewright.tune.peak import LevelReads
from tilewright.tune.profile import Profile, TileTiming
from tilewright.tune.streams import MeasuredStreams

_FORMAT, _TIMES_FORMAT = 6, 1  # of files of profiles and of kernel times; others are not read


@dataclass(frozen=True)
class Fingerprint:
    """What a measurement depends on."""

    processor: str
    features: tuple[str, ...]
    caches: tuple[str, ...]
    version: str

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that differ where any of it does."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def fingerprint(root: Path = ROOT) -> Fingerprint:
    """That of this machine and this version of tilewright."""
    found = host.processor(root)
    caches = tuple(f"L{c.level} {c.kind} {c.capacity}" for c in host.caches(root))
    if found is None:
        return Fingerprint("unknown", (), caches, VERSION)
    name = f"{found.vendor} {found.family} {found.model} {found.name}"
    return Fingerprint(name, tuple(sorted(found.features)), caches, VERSION)


def profile_path(level: str, machine: Fingerprint | None = None) -> Path:
    """The file of one level's profile on this machine."""
    digest = (machine or fingerprint()).digest
    return cache_directory() / f"profile-{level}-{digest}.json"


def save_profile(profile: Profile) -> Path:
    """Keep a profile for this machine; its file. Raises ResourceError where it cannot be kept."""
    machine = fingerprint()
    path = profile_path(profile.level, machine)
    content = {"format": _FORMAT, "machine": asdict(machine), "profile": asdict(profile)}
    _keep(path, content, "The profile of this machine")
    return path


def kernel_times_path(level: str, machine: Fingerprint | None = None) -> Path:
    """The file of the times of one level's kernels on this machine."""
    digest = (machine or fingerprint()).digest
    return cache_directory() / f"times-{level}-{digest}.json"


def save_kernel_times(level: str, times: Mapping[str, int]) -> Path:
    """Keep picoseconds of kernels by what identifies them, beside those that are kept; the file.

    What is kept stays as it is, so that plans that were made by it are made again. Raises
    ResourceError where it cannot be kept.
    """
    machine = fingerprint()
    path = kernel_times_path(level, machine)
    every = dict(sorted({**times, **load_kernel_times(level)}.items()))
    content = {"format": _TIMES_FORMAT, "machine": asdict(machine), "picoseconds": every}
    _keep(path, content, "The times of kernels")
    return path


def load_kernel_times(level: str) -> dict[str, int]:
    """What :func:`save_kernel_times` kept; nothing where there is no file that can be used."""
    try:
        content = json.loads(kernel_times_path(level).read_text(encoding="utf-8"))
        found = dict(content["picoseconds"]) if content["format"] == _TIMES_FORMAT else {}
    except (OSError, ValueError, TypeError, KeyError):
        return {}
    is_used = all(type(value) is int and value > 0 for value in found.values())
    return found if is_used else {}


def _keep(path: Path, content: Mapping[str, object], what: str) -> None:
    """Write a file of JSON. Raises ResourceError."""
    try:
        replace_file(path, (json.dumps(content, indent=1) + "\n").encode())
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise ResourceError(
            f"{what} cannot be kept: {why}.",
            where=str(path),
            hint="set TILEWRIGHT_CACHE_DIR to a folder that can be written",
        ) from error


def load_profile(level: str) -> Profile | None:
    """The profile of this machine, None where there is none that can be used."""
    try:
        content = json.loads(profile_path(level).read_text(encoding="utf-8"))
        return _parse(content) if content["format"] == _FORMAT else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _parse(content: dict[str, Any]) -> Profile:
    found = content["profile"]
    tiles = tuple(TileTiming(**row) for row in found["tiles"])
    reads = tuple(LevelReads(**row) for row in found["reads"])
    times = [time for tile in tiles for time in (tile.step_ns, tile.streamed_step_ns)]
    rates = [rate for level in reads for rate in (level.alone, level.together)]
    if not all(value > 0 for value in (*times, *rates, found["clock_ghz"])):
        raise ValueError("a time or a rate is not positive")
    loops = None if found["loops"] is None else _parse_loops(found["loops"])
    spreads = tuple((str(name), float(apart)) for name, apart in found["loop_spreads"])
    streams = None if found["streams"] is None else MeasuredStreams(**found["streams"])
    if streams is not None and not (streams.followed >= 1 and streams.written > 0):
        raise ValueError("no row is followed, or nothing is written")
    profile = Profile(
        str(found["level"]), float(found["clock_ghz"]), tiles, reads, loops,
        float(found["clock_spread"]), spreads, streams,
    )  # fmt: skip
    if not all(apart >= 0 for _, apart in profile.spreads()):
        raise ValueError("a spread is negative")
    return profile


def _parse_loops(found: dict[str, Any]) -> LoopCosts:
    """JSON has lists in the place of tuples. Raises ValueError for a time below 0."""
    loops = LoopCosts(**{name: _tuples(value) for name, value in found.items()})
    times = [value for value in asdict(loops).values() if isinstance(value, int | float)]
    pairs = [time for _, time in (*loops.turns, *loops.functions)]
    if not all(time >= 0 for time in (*times, *pairs, *loops.reached)):
        raise ValueError("a time is negative")
    return loops


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value
