"""Time the policies that choose block sizes beside each other, on products drawn at random.

    python scripts/compare_policies.py --products 12 --shapes 4
    python scripts/compare_policies.py --constant none --threads 1

Each product has constant weights and any number of rows (or no size is known: ``--constant none``),
is compiled once by every policy, and called at several shapes; the calls take turns. Printed are
the speed of each policy as a part of the fastest at each shape (geometric mean and least), how many
variants it keeps, and how long a compilation takes.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tilewright.bench.clock import SystemClock
from tilewright.bench.turns import time_variants
from tilewright.bench.variants import variants_of
from tilewright.compile import compile_stages
from tilewright.policy import POLICIES
from tilewright.runtime.model import CompiledModel

MOST = 4096  # of any size


@dataclass
class Results:
    """What was seen of one policy."""

    speeds: list[float] = field(default_factory=list[float])
    variants: list[int] = field(default_factory=list[int])
    seconds: list[float] = field(default_factory=list[float])


def product(columns: int, depth: int, constant: bool) -> onnx.ModelProto:
    """m rows by weights, or a product of which no size is known."""
    sizes: list[list[int | str]] = [["m", depth], [depth, columns]]
    if not constant:
        sizes = [["m", "k"], ["k", "n"]]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip("ab", sizes[: 1 if constant else 2], strict=False)
    ]
    weights = np.random.default_rng(0).standard_normal((depth, columns), np.float32)
    known = [numpy_helper.from_array(weights, "b")] if constant else []
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", sizes[1][1]])
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    graph = helper.make_graph([node], "product", inputs, [output], known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def call(model: CompiledModel, rows: int, columns: int, depth: int) -> Callable[[], object]:
    """A call of ``model`` at a shape."""
    shapes = {"a": (rows, depth), "b": (depth, columns)}
    inputs = {t.name: np.ones(shapes[t.name], np.float32) for t in model.inputs}
    return lambda: model.run(inputs)


def main() -> None:
    """Draw products, time them, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--products", type=int, default=12)
    parser.add_argument("--shapes", type=int, default=4, help="of each product")
    parser.add_argument("--constant", choices=("right", "none"), default="right")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each shape")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    generator = np.random.default_rng(given.seed)

    def draw(low: int = 1) -> int:
        return round(math.exp(generator.uniform(math.log(low), math.log(MOST))))

    found = {name: Results() for name in POLICIES}
    for _ in range(given.products):
        columns, depth = draw(16), draw(16)
        model = product(columns, depth, given.constant == "right")
        models: list[CompiledModel] = []
        for name, results in found.items():
            started = time.perf_counter()
            dims = {size: (0, MOST) for size in ("m", "n", "k")}
            dims = dims if given.constant == "none" else {"m": dims["m"]}
            made = compile_stages(model, dims=dims, policy=name)
            results.seconds.append(time.perf_counter() - started)
            (program,) = made.contents.programs.values()
            results.variants.append(max(1, sum(map(len, variants_of(program)))))
            models.append(CompiledModel.from_contents(made.contents, num_threads=given.threads))
        for _ in range(given.shapes):
            rows = draw()
            calls = [call(m, rows, columns, depth) for m in models]
            times = time_variants(calls, SystemClock(given.threads), given.seconds)
            for results, seconds in zip(found.values(), times, strict=True):
                results.speeds.append(min(times) / seconds)
    print(f"{'policy':10} {'speed':>7} {'least':>7} {'variants':>9} {'compile s':>10}")
    for name, results in found.items():
        speed = math.exp(statistics.fmean(math.log(s) for s in results.speeds))
        print(
            f"{name:10} {speed:7.3f} {min(results.speeds):7.3f} "
            f"{statistics.fmean(results.variants):9.1f} {statistics.median(results.seconds):10.2f}"
        )


if __name__ == "__main__":
    main()
