"""Thousands of calls at random shapes: no compiling, no leak, no slow first calls, the same bits.

    python scripts/soak.py --calls 10000

A model (bert-2l by default, written by `scripts/export_models.py`) is compiled once, saved, and
loaded in a fresh process that never imports a compiler. There it is called at random shapes in its
range. Afterwards: the memory held after the first 500 calls may have grown by 5 % at most; the
first call at a new shape takes at most 3 times as long as later ones at that shape (median); eight
threads calling the model at once get the same bits as one. The overhead of a call from Python is
printed for a model of one kernel. Exit code 1 if a limit is passed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tilewright

MODEL = Path(__file__).resolve().parent.parent / "models" / "bert-2l.onnx"
RANGES = {"batch": (0, 64), "sequence": (0, 512)}
TOKENS = 160  # most of one call, so that thousands of calls take minutes
WARM_CALLS = 500
GROWTH, FIRST_CALL, OVERHEAD = 1.05, 3.0, 15e-6
THREADS = 8
TIMED_SHAPES, THREAD_SHAPES = 60, 24
COMPILERS = ("llvmlite", "onnx", "onnx_ir", "tilewright.backend", "tilewright.frontend")

Inputs = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Soaked:
    """What was measured."""

    calls: int
    shapes: int
    growth: float
    first_call: float
    same_bits: bool
    compilers: list[str]
    overhead: float


def resident_bytes() -> int:
    """Memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def draw(chance: random.Random) -> tuple[int, int]:
    """Batch and sequence, evenly in the logarithm, some of them 0."""
    while True:
        batch = int(math.exp(chance.uniform(0, math.log(65)))) - (chance.random() < 0.05)
        sequence = int(math.exp(chance.uniform(0, math.log(513)))) - (chance.random() < 0.05)
        if batch * sequence <= TOKENS:
            return batch, sequence


def inputs_at(shape: tuple[int, int]) -> Inputs:
    """Token ids that depend on nothing but the shape."""
    ids = np.random.default_rng(shape).integers(0, 1000, shape)
    return {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "token_type_ids": np.zeros_like(ids),
    }


def soak(artifact: Path, single: Path, calls: int, seed: int = 0) -> Soaked:
    """Call the model; meant for a process of its own."""
    model = tilewright.load(artifact)
    chance = random.Random(seed)
    seen: dict[tuple[int, int], None] = {}
    for _ in range(min(calls, WARM_CALLS)):
        shape = draw(chance)
        seen[shape] = None
        model.run(inputs_at(shape))
    before = resident_bytes()
    for _ in range(calls - WARM_CALLS):
        shape = draw(chance)
        seen[shape] = None
        outputs = model.run(inputs_at(shape))
        assert outputs["last_hidden_state"].shape == (*shape, 768)
    growth = resident_bytes() / before
    return Soaked(
        calls,
        len(seen),
        growth,
        first_call_ratio(tilewright.load(artifact), chance),
        same_bits(model, chance),
        [name for name in COMPILERS if name in sys.modules],
        call_overhead(tilewright.load(single)),
    )


def first_call_ratio(model: tilewright.Model, chance: random.Random) -> float:
    """The median over new shapes of the first call's time by the median of the next five."""
    for _ in range(5):
        model.run(inputs_at((2, 50)))
    ratios: list[float] = []
    for shape in dict.fromkeys(draw(chance) for _ in range(TIMED_SHAPES)):
        given = inputs_at(shape)
        times: list[float] = []
        for _ in range(6):
            start = time.perf_counter()
            model.run(given)
            times.append(time.perf_counter() - start)
        ratios.append(times[0] / statistics.median(times[1:]))
    return statistics.median(ratios)


def same_bits(model: tilewright.Model, chance: random.Random) -> bool:
    """Whether threads that call at once, at shapes in different orders, get what one gets."""
    shapes = list(dict.fromkeys(draw(chance) for _ in range(THREAD_SHAPES)))
    given = {shape: inputs_at(shape) for shape in shapes}
    expected = {shape: model.run(given[shape])["last_hidden_state"].tobytes() for shape in shapes}
    right = [False] * THREADS

    def work(number: int) -> None:
        order = shapes[:]
        random.Random(number).shuffle(order)
        right[number] = all(
            model.run(given[shape])["last_hidden_state"].tobytes() == expected[shape]
            for shape in order
        )

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return all(right)


def call_overhead(model: tilewright.Model, calls: int = 2000) -> float:
    """Seconds of one call that does next to nothing: the median of batches."""
    given = np.ones(8, np.float32)
    batches: list[float] = []
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(calls // 20):
            model(given)
        batches.append((time.perf_counter() - start) / (calls // 20))
    return statistics.median(batches)


def build(folder: Path, model: Path) -> tuple[Path, Path]:
    """The artifacts of the model and of one that has a single small kernel."""
    from onnx import TensorProto, helper

    artifact, single = folder / "model.tw", folder / "single.tw"
    tilewright.compile(model, dims=RANGES).save(artifact)
    entries = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in ("x", "y")]
    node = helper.make_node("Neg", ["x"], ["y"])
    graph = helper.make_graph([node], "single", entries[:1], entries[1:])
    tilewright.compile(helper.make_model(graph)).save(single)
    return artifact, single


def soak_in_new_process(model: Path, calls: int) -> Soaked:
    """Compile here, call there."""
    with tempfile.TemporaryDirectory() as folder:
        artifact, single = build(Path(folder), model)
        command = [sys.executable, __file__, "--child", str(artifact), str(single), str(calls)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the soaking process failed:\n{done.stderr}")
    return Soaked(**json.loads(done.stdout))


def main() -> int:
    """Soak and print what was found."""
    if sys.argv[1:2] == ["--child"]:
        artifact, single, calls = sys.argv[2:5]
        print(json.dumps(vars(soak(Path(artifact), Path(single), int(calls)))))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--model", type=Path, default=MODEL)
    options = parser.parse_args()
    found = soak_in_new_process(options.model, options.calls)
    rows = (
        ("calls, different shapes", f"{found.calls}, {found.shapes}", True),
        ("compilers loaded", ", ".join(found.compilers) or "none", not found.compilers),
        ("memory after by before", f"{found.growth:.3f}", found.growth <= GROWTH),
        ("first call by later ones", f"{found.first_call:.2f}", found.first_call <= FIRST_CALL),
        (f"{THREADS} threads, same bits", "yes" if found.same_bits else "no", found.same_bits),
        ("overhead of a call", f"{found.overhead * 1e6:.1f} µs", found.overhead <= OVERHEAD),
    )
    for name, value, right in rows:
        print(f"{name:26} {value:>16}  {'' if right else '<- beyond the limit'}")
    return 0 if all(right for _, _, right in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
