"""A folder with the files that Linux would show, for a machine of choice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

CacheRow = tuple[int, str, str, str]  # level, type, size, shared_cpu_list
AVX2 = "fpu avx avx2 fma f16c bmi1 bmi2"
AVX512 = f"{AVX2} avx512f avx512bw avx512cd avx512dq avx512vl"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def x86(
    root: Path, vendor: str, family: int, model: int, flags: str, name: str = "A processor"
) -> None:
    """/proc/cpuinfo of two equal processors."""
    block = (
        f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\n"
        f"model name\t: {name}\nflags\t\t: {flags}\n"
    )
    write(root / "proc/cpuinfo", f"{block}\n{block}\n")


def caches(root: Path, rows: Sequence[CacheRow]) -> None:
    for number, (level, kind, size, shared) in enumerate(rows):
        entry = root / f"sys/devices/system/cpu/cpu0/cache/index{number}"
        write(entry / "level", f"{level}\n")
        write(entry / "type", f"{kind}\n")
        write(entry / "size", f"{size}\n")
        write(entry / "shared_cpu_list", f"{shared}\n")


def siblings(root: Path, groups: Sequence[Sequence[int]]) -> None:
    for group in groups:
        for number in group:
            text = ",".join(map(str, group))
            path = root / f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list"
            write(path, text + "\n")
