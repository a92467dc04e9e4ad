"""On which machine and with which versions a figure was measured.

Imports support; names no host and no time.
"""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import dataclass
from pathlib import Path

from tilewright.support.processors import allowed_processors

_PACKAGES = ("tilewright", "numpy", "onnxruntime", "openvino", "torch")


@dataclass(frozen=True)
class Machine:
    """The processor's name, the cores this process may use, and the versions of what was timed."""

    processor: str
    cores: int
    system: str
    versions: dict[str, str]


def describe_machine() -> Machine:
    """This machine."""
    versions: dict[str, str] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return Machine(_processor(), len(allowed_processors()), platform.system(), versions)


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
