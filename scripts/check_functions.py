"""Compare the functions of whole registers with float64 over all numbers of float32.

``python scripts/check_functions.py [--stride N]`` looks at every N-th bit pattern, all of them by
default, which takes minutes for each function; prints the largest error in units in the last place
per level and function, and fails above 2 or where special values differ.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "backend" / "cpu"))

from conftest import Loops
from tilewright.backend.cpu.math_lookup import register_functions
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import SCALAR_FUNCTIONS

Array = np.ndarray[Any, Any]

PART = 1 << 20  # arguments at a time
MOST = 2.0  # units in the last place


def _arguments(stride: int) -> Iterator[Array]:
    for first in range(0, 1 << 32, PART * stride):
        patterns = np.arange(PART, dtype=np.uint64) * stride + first
        yield patterns.astype(np.uint32).view(np.float32)


def _error(actual: Array, exact: Array) -> float:
    """The largest distance in units in the last place; infinite if special values differ."""
    with np.errstate(all="ignore"):
        expected = exact.astype(np.float32)
        units = np.abs(actual - exact) / np.spacing(np.abs(expected)).astype(np.float64)
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    finite = np.isfinite(actual) & np.isfinite(expected)
    return float(np.where(finite, units, np.where(same, 0.0, np.inf)).max())


def _worst(call: Callable[[Array], Array], name: str, stride: int) -> float:
    meaning = SCALAR_FUNCTIONS[name].meaning
    worst = 0.0
    for x in _arguments(stride):
        with np.errstate(all="ignore"):
            exact = meaning(x.astype(np.float64))
        worst = max(worst, _error(call(x), exact))
    return worst


def main() -> None:
    """Print a line per level and function."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stride", type=int, default=1)
    stride: int = parser.parse_args().stride
    loops, failed = Loops(), False
    for level in loops.levels():
        for name in register_functions(level):
            module = ir.Module("check")
            loops.add_function(module, name, level, DType.FLOAT32)
            address = loops.load(module, level)(name)

            def call(x: Array, address: int = address) -> Array:
                return loops.call(address, [x], np.dtype(np.float32))

            worst = _worst(call, name, stride)
            failed |= worst > MOST
            print(f"{level.name:12} {name:20} {worst:.3f}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
