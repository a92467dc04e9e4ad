"""Random ONNX graphs, compared with the ONNX reference evaluator and ONNX Runtime.

    python scripts/fuzz_graphs.py --graphs 5000 --jobs 2
    python scripts/fuzz_graphs.py --seed 7 --graphs 500 --level avx2
    python scripts/fuzz_graphs.py --level none
    python scripts/fuzz_graphs.py --plan optimal
    python scripts/fuzz_graphs.py --replay 7:123

Each graph is compiled once, saved, loaded and run at five or six shapes with zeros and ones among
them, in a child process with limits on time and memory. What differs from both oracles, is refused
though both answer, crashes, hangs or raises an exception that is not ours is a finding; it is made
as small as it goes and printed as a test. With ``--level none`` numpy runs the tile programs that
would be compiled, of each kernel a variant at random. Exit code 1 if there is a finding.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import get_args

from tilewright.options import PlanName

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.fuzzing.check import INTERPRETED
from support.fuzzing.command import Options, fuzz, replay


def main() -> int:
    """Fuzz, or run one case again."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--graphs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first graph")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--level", action="append", help="may be repeated; 'none' without code")
    parser.add_argument("--plan", choices=get_args(PlanName), default="greedy")
    parser.add_argument("--shrink", type=float, default=60.0, help="seconds for each finding")
    parser.add_argument("--most", type=int, default=20, help="findings that are made smaller")
    parser.add_argument("--replay", metavar="SEED:NUMBER", help="run one case again, in full")
    given = parser.parse_args()
    levels = tuple(given.level or ())
    if given.plan != "greedy" and INTERPRETED in levels:
        parser.error("without code, by --level none, plans are greedy: leave out --plan")
    options = Options(given.seed, given.first, given.graphs, given.jobs, levels)
    options.shrink_seconds, options.most_shrunk = given.shrink, given.most
    options.plan = given.plan
    if given.replay is not None:
        seed, number = map(int, given.replay.split(":"))
        options.seed, options.first, options.graphs = seed, number, 1
        return replay(options)
    return fuzz(options)


if __name__ == "__main__":
    raise SystemExit(main())
