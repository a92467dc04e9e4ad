"""Random kernels run twice: as machine code, and as what their tile programs mean in numpy.

    python scripts/interpret_kernels.py --kernels 2000

Graphs are made at random, each is compiled for one level, and a variant of every kernel is taken at
random at each of five sizes with zeros and ones among them; both ways run the same variants. Every
access of either has to lie in its buffer. Ends with a traceback at the first difference.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.meanings import BothMeanings
from tilewright.backend.cpu.machine import host_levels


def main() -> int:
    """Compare until so many kernels have run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kernels", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    levels = [level.name for level in host_levels()]
    both = BothMeanings(given.seed, levels)
    while len(both.kernels) < given.kernels:
        both.compare()
    print(f"{len(both.kernels)} kernels agree at {', '.join(levels)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
