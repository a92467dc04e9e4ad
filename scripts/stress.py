"""Many threads that call several models at once while others load, shrink and drop them.

    python scripts/stress.py --seconds 600

Ten small models are compiled and saved. Callers take one of them and one of some random shapes
again and again, and compare the bits of what they get with those of a call made alone. Meanwhile
two threads replace models by newly loaded ones and free what is kept. All of it happens under a
memory limit for the process. Exit code 1 where bits differ, an error other than that of the limit
is raised, most calls are refused by it, or more memory is held than it says.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

import tilewright

MEGA = 1 << 20
HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
# By name: the graph, and the shapes of its weights. ``n`` and ``m`` are random.
MODELS: dict[str, tuple[str, dict[str, tuple[int, ...]]]] = {
    "mlp": (
        "(float[n, 64] x) => (float[n, 32] y){ a = MatMul(x, w) b = Relu(a) y = MatMul(b, v) }",
        {"w": (64, 128), "v": (128, 32)},
    ),
    "softmax": ("(float[n, m] x) => (float[n, m] y) { y = Softmax<axis = -1>(x) }", {}),
    "normal": (
        "(float[n, 96] x) => (float[n, 96] y) { y = LayerNormalization<axis = -1>(x, s, t) }",
        {"s": (96,), "t": (96,)},
    ),
    "chain": (
        "(float[n, m] x) => (float[n, m] y) { a = Exp(x) b = Tanh(a) c = Add(b, x) y = Erf(c) }",
        {},
    ),
    "both": (
        "(float[n, m] x) => (float[n, n] y, float[m] z)"
        "{ t = Transpose<perm = [1, 0]>(x) y = MatMul(x, t) z = ReduceMax<keepdims = 0>(x, zero) }",
        {"zero": ()},
    ),
    "convolution": (
        "(float[n, 3, m, 16] x) => (float[n, 8, m, 16] y)"
        "{ a = Conv<pads = [1, 1, 1, 1]>(x, w) y = Relu(a) }",
        {"w": (8, 3, 3, 3)},
    ),
    "sums": (
        "(float[n, m] x) => (float[n] y) { y = ReduceSum<keepdims = 0>(x, one) }",
        {"one": ()},
    ),
    "attention": (
        "(float[n, m, 32] x) => (float[n, m, 32] y)"
        "{ t = Transpose<perm = [0, 2, 1]>(x) a = MatMul(x, t) b = Softmax<axis = -1>(a)"
        " y = MatMul(b, x) }",
        {},
    ),
    "positive": ("(float[n, m] x) => (int64[2, k] y) { y = NonZero(x) }", {}),
    "table": (
        "(float[n, m] x) => (float[n, m, 24] y)"
        "{ a = Abs(x) b = Cast<to = 7>(a) y = Gather<axis = 0>(w, b) }",
        {"w": (64, 24)},
    ),
}


@dataclass
class Model:
    """A model that is called, its artifact, and what calls give by inputs."""

    path: Path
    loaded: tilewright.Model
    cases: list[tuple[np.ndarray[Any, Any], list[bytes]]] = field(default_factory=list)


def weights(name: str, shape: tuple[int, ...], chance: np.random.Generator) -> onnx.TensorProto:
    """Random numbers; without a shape the number of an axis."""
    if not shape:
        return numpy_helper.from_array(np.array([int(name == "one")]), name)
    return numpy_helper.from_array(chance.standard_normal(shape, np.float32), name)


def results(model: tilewright.Model, x: np.ndarray[Any, Any]) -> list[bytes]:
    """The bytes of the outputs."""
    return [value.tobytes() for value in model.run({"x": x}).values()]


def make(folder: Path, name: str, chance: np.random.Generator, shapes: int) -> Model:
    """Compile, save, load, and call alone."""
    text, shapes_of_weights = MODELS[name]
    source = parser.parse_model(f"{HEAD}{name} {text}")
    source.graph.initializer.extend(
        weights(key, shape, chance) for key, shape in shapes_of_weights.items()
    )
    path = folder / f"{name}.tw"
    tilewright.compile(source).save(path)
    model = Model(path, tilewright.load(path))
    wanted = source.graph.input[0].type.tensor_type.shape.dim
    for _ in range(shapes):
        sizes = {dim: int(chance.integers(0, 300) ** 2 // 300) for dim in ("n", "m")}
        if name in ("convolution", "attention"):
            sizes["n"] = sizes["n"] % 8
        shape = [sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in wanted]
        x = chance.standard_normal(shape, np.float32)
        model.cases.append((x, results(model.loaded, x)))
    return model


class Stress:
    """What all threads share. Models are replaced as a whole, so callers need no lock."""

    def __init__(self, models: list[Model], limit: int) -> None:
        self.models = models
        self.limit = limit
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.most_held = 0
        self.is_over = threading.Event()

    def call(self, chance: random.Random) -> None:
        """One call, by one of the ways to call."""
        number = chance.randrange(len(self.models))
        held, (x, expected) = self.models[number], chance.choice(self.models[number].cases)
        loaded = held.loaded
        try:
            found = results(loaded, x)
            if chance.random() < 0.3:
                made = loaded.run({"x": x})
                own = {name: np.empty_like(value) for name, value in made.items()}
                loaded.run({"x": x}, out=own)
                found = [value.tobytes() for value in own.values()]
        except tilewright.errors.ResourceError:
            self.counts["refused"] += 1
            return
        self.counts["calls"] += 1
        if found != expected:
            self.problems.append(f"{held.path.stem} at {x.shape} gave other bits")

    def replace(self, chance: random.Random) -> None:
        """Load, shrink or drop."""
        held = self.models[chance.randrange(len(self.models))]
        action = chance.random()
        if action < 0.5:
            held.loaded = tilewright.load(held.path, verify=chance.random() < 0.5)
            self.counts["loads"] += 1
        else:
            held.loaded.shrink()
            self.counts["shrinks"] += 1
        if action > 0.95:
            gc.collect()
        time.sleep(0.002)

    def watch(self, _: random.Random) -> None:
        """Note what is held."""
        self.most_held = max(self.most_held, self.models[0].loaded.stats().process_bytes)
        time.sleep(0.001)

    def repeat(self, work: Callable[[random.Random], None], seed: int) -> None:
        """Until all is over; what a thread raises is a problem."""
        chance = random.Random(seed)
        try:
            while not self.is_over.is_set():
                work(chance)
        except Exception as error:
            self.problems.append(f"{type(error).__name__}: {error}")

    def run(self, threads: int, seconds: float, seed: int) -> None:
        """Start all threads and wait."""
        jobs = [self.call] * threads + [self.replace] * 2 + [self.watch]
        running = [
            threading.Thread(target=self.repeat, args=(job, seed + number))
            for number, job in enumerate(jobs)
        ]
        for thread in running:
            thread.start()
        self.is_over.wait(seconds)
        self.is_over.set()
        for thread in running:
            thread.join()


def main() -> int:
    """Make the models, stress them, and print what was found."""
    reader = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    reader.add_argument("--seconds", type=float, default=600)
    reader.add_argument("--threads", type=int, default=32)
    reader.add_argument("--shapes", type=int, default=24)
    reader.add_argument("--limit", type=int, default=64, help="in megabytes")
    reader.add_argument("--seed", type=int, default=0)
    options = reader.parse_args()
    sys.setswitchinterval(0.0005)  # so that threads meet in more places
    chance = np.random.default_rng(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        models = [make(Path(folder), name, chance, options.shapes) for name in MODELS]
        models[0].loaded.shrink()
        # What making the models took does not count; its peak is that of the first part.
        before = models[0].loaded.stats().process_bytes
        tilewright.set_memory_limit(options.limit * MEGA)
        stress = Stress(models, options.limit * MEGA)
        stress.run(options.threads, options.seconds, options.seed)
        models[0].loaded.shrink()
        left = models[0].loaded.stats().process_bytes
    counts = stress.counts
    rows = (
        ("calls, refused", f"{counts['calls']}, {counts['refused']}"),
        ("loads, shrinks", f"{counts['loads']}, {counts['shrinks']}"),
        ("most bytes held", f"{stress.most_held} of {stress.limit}"),
        ("bytes held before and after", f"{before}, {left}"),
    )
    for name, value in rows:
        print(f"{name:30} {value}")
    problems = sorted(set(stress.problems))
    if stress.most_held > stress.limit:
        problems.append("more memory was held than the limit says")
    if left > before:
        problems.append("memory is held by nobody")
    if counts["refused"] > counts["calls"]:
        problems.append("most calls were refused")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
