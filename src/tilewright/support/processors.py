"""How many threads this process may use: affinity, hardware threads of one core, control groups.

The one answer to that question, for calls of models and for descriptions of machines. ``root``
stands for the root of the file system in every function, so that tests can use a folder. Imports
the standard library and ``errors``. Start reading at :func:`usable_units`.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path

from tilewright.support.errors import ResourceError

ROOT = Path("/")
THREADS_VARIABLE = "TILEWRIGHT_NUM_THREADS"


def default_threads() -> int:
    """The threads of a call: TILEWRIGHT_NUM_THREADS, or else :func:`usable_units`.

    Raises ResourceError where the variable holds no number of threads.
    """
    text = os.environ.get(THREADS_VARIABLE, "").strip()
    if not text:
        return usable_units(allowed_processors())
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise ResourceError(
            f"The environment variable {THREADS_VARIABLE} is {text!r}, which is no number of "
            "threads",
            hint=f"Set {THREADS_VARIABLE} to a whole number from 1 on, or unset it",
        )
    return int(text)


def usable_units(processors: Sequence[int], root: Path = ROOT) -> int:
    """Cores among ``processors``, at most what the quota allows (rounded up).

    Hardware threads of one core count once: they share the units that kernels keep busy.
    """
    limit = quota(root)
    count = len(cores(tuple(processors), root))
    return max(1, count if limit is None else min(count, math.ceil(limit)))


def usable_processors(root: Path = ROOT) -> int:
    """The processors of this process, at most what the quota allows (rounded up).

    Hardware threads of one core count each: compiling waits for memory rather than for the units.
    """
    limit, count = quota(root), len(allowed_processors())
    return max(1, count if limit is None else min(count, math.ceil(limit)))


def allowed_processors() -> tuple[int, ...]:
    """The processors that this process may run on: those of its main thread."""
    try:
        return tuple(sorted(os.sched_getaffinity(os.getpid())))
    except (AttributeError, OSError):  # not Linux; the main thread has ended
        return tuple(range(os.cpu_count() or 1))


@functools.lru_cache(maxsize=64)
def cores(processors: tuple[int, ...], root: Path = ROOT) -> tuple[tuple[int, ...], ...]:
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


def processor_list(text: str) -> tuple[int, ...]:
    """The numbers in a list such as "0-3,8,10-11"; empty where it makes no sense."""
    found: list[int] = []
    for part in text.strip().split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is not None:
            found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(found)


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
