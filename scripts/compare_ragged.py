"""Time batches of sequences of their own lengths beside peers, which get padded batches.

    python scripts/compare_ragged.py models/bert-base.onnx --batch 16 --against onnxruntime,openvino

Lengths are drawn from a lognormal distribution with the mean of --mean, cut at --longest. The
sequences of a batch are drawn together; peers are given them padded to the longest one, with a mask
where the model has one. All take turns in blocks; each is checked against the first peer at every
position that is no padding. Printed is the time of each peer as a multiple of tilewright's.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.bench import PeerOptions, Settings, create_peer
from tilewright.bench.clock import SystemClock
from tilewright.bench.measure import measure

Array = np.ndarray[Any, Any]
SPREAD = 0.8  # standard deviation of the logarithm of lengths
TOLERANCE = 1e-3


def lengths_of(chance: np.random.Generator, count: int, mean: float, longest: int) -> list[int]:
    """Lengths whose distribution has the mean before it is cut."""
    centre = math.log(mean) - SPREAD**2 / 2
    drawn = chance.lognormal(centre, SPREAD, count)
    return np.clip(np.rint(drawn), 1, longest).astype(int).tolist()


def tokens(chance: np.random.Generator, name: str, length: int) -> Array:
    """One sequence of an input: ones for a mask, zeros for a type, else numbers of tokens."""
    if "mask" in name:
        return np.ones(length, np.int64)
    return np.zeros(length, np.int64) if "type" in name else chance.integers(1, 1000, length)


def padded(sequences: Sequence[Array]) -> Array:
    """The sequences in one array, with zeros after them."""
    longest = max(len(sequence) for sequence in sequences)
    return np.stack([np.pad(sequence, (0, longest - len(sequence))) for sequence in sequences])


def difference(own: Any, other: Array) -> float:
    """The largest difference at positions that are no padding."""
    worst = 0.0
    for number, mine in enumerate(own):
        theirs = other[number] if other.ndim == mine.ndim + 1 else other
        worst = max(worst, float(np.abs(mine - theirs[: len(mine)]).max(initial=0.0)))
    return worst


def main() -> None:
    """Compile, draw batches, check, time, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--names", default="batch,sequence", help="of the two dimensions")
    parser.add_argument("--against", default="onnxruntime,openvino", help="peers, with commas")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--batches", type=int, default=4, help="how many are drawn")
    parser.add_argument("--mean", type=float, default=60)
    parser.add_argument("--longest", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="blocks of timing for each batch")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    batch, length = given.names.split(",")
    dims = {batch: (0, given.batch), length: tw.Dim(0, given.longest, ragged=batch)}
    ragged = tw.compile(given.model, dims=dims, num_threads=given.threads)
    plain_dims = {batch: (0, given.batch), length: (0, given.longest)}
    plain = tw.compile(given.model, dims=plain_dims, num_threads=given.threads)
    options = PeerOptions(given.threads)
    peers = {name: create_peer(name, given.model, options) for name in given.against.split(",")}
    chance = np.random.default_rng(given.seed)
    ratios: dict[str, list[float]] = {}
    for number in range(given.batches):
        lengths = lengths_of(chance, given.batch, given.mean, given.longest)
        names = [spec.name for spec in ragged.inputs]
        own = {name: [tokens(chance, name, n) for n in lengths] for name in names}
        full = {name: padded(sequences) for name, sequences in own.items()}
        results = next(iter(ragged.run(own).values()))
        reference = next(iter(peers.values())).outputs(full)[0]
        if (worst := difference(results, reference)) > TOLERANCE:
            raise SystemExit(f"The results differ by {worst:.1e} at lengths {lengths}")
        calls: dict[str, Callable[[], object]] = {
            "tilewright": partial(ragged.run, own), "padded": partial(plain.run, full),
            **{name: peer.prepare(full) for name, peer in peers.items()},
        }  # fmt: skip
        settings = Settings(rounds=given.rounds, most_rounds=given.rounds)
        measured = measure(calls, None, settings, SystemClock(given.threads))
        found = {name: measured.ratio(name, "tilewright").median for name in calls}
        seconds = measured.seconds("tilewright").median
        waste = given.batch * max(lengths) / sum(lengths)
        text = ", ".join(f"{name} {ratio:.2f}" for name, ratio in found.items())
        print(
            f"batch {number}: {sum(lengths)} positions, longest {max(lengths)}, padded to "
            f"{waste:.2f} times as many; {1000 * seconds:.1f} ms; times its time: {text}",
            flush=True,
        )
        for name, ratio in found.items():
            ratios.setdefault(name, []).append(ratio)
    for name, all_found in list(ratios.items())[1:]:
        mean = math.exp(statistics.fmean(map(math.log, all_found)))
        least, most = min(all_found), max(all_found)
        print(f"{name:12} {mean:.2f} ({least:.2f} to {most:.2f}) times tilewright's time")


if __name__ == "__main__":
    main()
