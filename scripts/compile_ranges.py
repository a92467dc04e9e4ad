"""How long compiling takes by how wide the ranges of sizes are, and by how many sizes are unknown.

    python scripts/compile_ranges.py
    python scripts/compile_ranges.py --model bert.onnx --ranges "batch=1..8,sequence=1..8" \\
        --ranges "batch=1..65536,sequence=1..512"

Without a model it is a product m × k by k × n of which one, two or three sizes are unknown. Every
compilation runs in a process of its own with an empty cache directory, and its time counts from
the model in memory to the artifact in memory, without loading tilewright. The rounds take turns;
the median and the range of them are printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import onnx

from tilewright.bench.operators import build_product

SIZES = {"m": 768, "k": 1024, "n": 512}  # of a product, where they are known
WIDTHS = (8, 512, 65536)


@dataclass(frozen=True)
class Compiled:
    """A model file and the ranges of its sizes, as ``name=low..high`` with commas between."""

    model: Path
    ranges: str


def product(unknown: str, path: Path) -> Path:
    """A product of two run-time matrices with some sizes unknown, as a file."""
    onnx.save(build_product(*(s if s in unknown else SIZES[s] for s in "mkn")), path)
    return path


def compile_once(compiled: Compiled) -> None:
    """Print the seconds of one compilation; this process does nothing else."""
    from tilewright.compile import compile_stages

    model = onnx.load(compiled.model)
    dims: dict[str, tuple[int, int]] = {}
    for part in compiled.ranges.split(","):
        name, bounds = part.split("=")
        low, high = bounds.split("..")
        dims[name] = int(low), int(high)
    started = time.perf_counter()
    compile_stages(model, dims=dims, fallback="error")
    print(time.perf_counter() - started)


def seconds_of(compiled: Compiled) -> float:
    """Seconds of a compilation in a fresh process with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, __file__, "--once"]
        command += ["--model", str(compiled.model), "--ranges", compiled.ranges]
        environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": cache}
        done = subprocess.run(
            command, env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
    return float(done.stdout)


def main() -> None:
    """Compile, print a line for each."""
    parser = argparse.ArgumentParser(description="Time compilations by their ranges.")
    parser.add_argument("--model", type=Path, help="an ONNX file; a product unless given")
    parser.add_argument("--ranges", action="append", default=[], help="name=low..high,…")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.once:
        compile_once(Compiled(given.model, given.ranges[0]))
        return
    with tempfile.TemporaryDirectory() as folder:
        cases = [Compiled(given.model, ranges) for ranges in given.ranges]
        if given.model is None:
            for unknown in ("m", "mn", "mnk"):
                model = product(unknown, Path(folder) / f"{unknown}.onnx")
                cases += [
                    Compiled(model, ",".join(f"{size}=1..{width}" for size in unknown))
                    for width in WIDTHS
                ]
        rounds = [[seconds_of(case) for case in cases] for _ in range(given.rounds)]
    for case, times in zip(cases, zip(*rounds, strict=True), strict=True):
        middle = statistics.median(times)
        print(f"{case.ranges:40} {middle:7.2f} s  ({min(times):.2f} to {max(times):.2f})")


if __name__ == "__main__":
    main()
