"""Time two versions of tilewright beside each other: is the new one as fast as the old one?

    python scripts/compare_versions.py OLD/.venv/bin/python NEW/.venv/bin/python \\
        --model models/bert-base.onnx --shapes "batch=1,sequence=5;batch=4,sequence=128" \\
        --operators gemm.csv,conv.csv,bmm.csv --cases 10

Each version runs in a process of its own, with its own interpreter, and compiles every model
itself. The two take turns in blocks; while one is timed the other sleeps. The ratio of a case is
the median over the rounds of old time over new time, so above 1 the new version is faster. A third
process runs the old version once more: how far that is from 1 tells how far to trust the ratios.
Exits with 1 if the geometric mean is below ``--least``.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

QUIET = 0.03  # seconds that the others get to go to sleep before a block
BLOCK = 0.05  # seconds of timed calls in one block
MOST_REPEATED = 4  # further rounds for each one, at most, as ``tilewright bench`` has 36 for 9
USUAL = 1 << 16  # the greatest size of a dimension for which no range is given
LARGEST = 1 << 28  # elements of the largest operand of an operator's case


@dataclass(frozen=True)
class Case:
    """A model file and the sizes of its dimensions."""

    model: Path
    sizes: dict[str, int]


class Worker:
    """One version in a process of its own, which times a block when it is asked to."""

    def __init__(self, python: Path, threads: int, level: str) -> None:
        command = [str(python), __file__, "--worker", str(threads), level]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
        )

    def ask(self, question: dict[str, Any]) -> Any:
        """Send a question and wait for its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("A worker ended; its messages stand above.")
        return json.loads(answer)

    def close(self) -> None:
        """Let the process end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def work(threads: int, level: str) -> None:
    """Answer questions: compile and load a case, or time a block of its calls."""
    import tilewright

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed shall not mix with the answers
    compiled: dict[str, Any] = {}
    model: Any = None
    inputs: dict[str, np.ndarray[Any, Any]] = {}
    for line in sys.stdin:
        question = json.loads(line)
        if "model" in question:
            path = question["model"]
            if path not in compiled:
                compiled.clear()
                # A dimension without a bound of its own may be larger than usual here.
                dims = {name: (0, size) for name, size in question["sizes"].items() if size > USUAL}
                levels: Any = level or None
                made = tilewright.compile(path, dims=dims, levels=levels, num_threads=threads)
                compiled[path] = made
            model, inputs = compiled[path], random_inputs(path, question["sizes"])
            model.run(inputs)
            answer: Any = "ready"
        else:
            answer = time_block(model, inputs)
        print(json.dumps(answer), file=answers, flush=True)


def time_block(model: Any, inputs: dict[str, np.ndarray[Any, Any]]) -> float:
    """The median seconds of a call, over one block, after one call that is not timed."""
    time.sleep(QUIET)
    model.run(inputs)
    durations: list[float] = []
    started = time.perf_counter()
    while len(durations) < 3 or time.perf_counter() - started < BLOCK:
        before = time.perf_counter()
        model.run(inputs)
        durations.append(time.perf_counter() - before)
    return float(np.median(durations))


def random_inputs(path: str, sizes: dict[str, int]) -> dict[str, np.ndarray[Any, Any]]:
    """Inputs of the sizes given: small integers, or normal numbers."""
    generator = np.random.default_rng(0)
    made: dict[str, np.ndarray[Any, Any]] = {}
    graph = onnx.load(path, load_external_data=False).graph
    weights = {weight.name for weight in graph.initializer}
    for value in graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        dimensions = tensor.shape.dim
        shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in dimensions]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if dtype.kind == "f":
            made[value.name] = generator.standard_normal(shape).astype(dtype)
        else:
            made[value.name] = np.ones(shape, dtype)
    return made


def operator_cases(suite: Path, count: int, folder: Path) -> list[Case]:
    """Models of evenly spread rows of a suite: products or convolutions with dynamic rows."""
    with suite.open(encoding="utf-8") as file:
        rows = [
            {name: int(value) for name, value in row.items() if value.lstrip("-").isdigit()}
            for row in csv.DictReader(file)
        ]
    rows = [row for row in rows if _elements(row) <= LARGEST]
    chosen = [rows[index] for index in np.linspace(0, len(rows) - 1, count).astype(int)]
    cases: list[Case] = []
    for number, row in enumerate(chosen):
        path = folder / f"{suite.stem}-{number}.onnx"
        model, sizes = _convolution(row) if "C" in row else _product(row)
        onnx.save(model, path)
        cases.append(Case(path, sizes))
    return cases


def _elements(row: dict[str, int]) -> int:
    if "C" in row:
        return row["N"] * max(row["C"], row["K"]) * row["H"] * row["W"]
    batch = row.get("B", 1)
    return batch * max(row["M"] * row["K"], row["M"] * row["N"], row["K"] * row["N"])


def _product(row: dict[str, int]) -> tuple[onnx.ModelProto, dict[str, int]]:
    m, n, k = row["M"], row["N"], row["K"]
    if "B" in row:
        left, right, out = ["b", "m", k], ["b", k, "n"], ["b", "m", "n"]
        made = _model("MatMul", {"a": left, "w": right}, {}, out)
        return made, {"b": row["B"], "m": m, "n": n}
    weight = np.random.default_rng(0).standard_normal((k, n)).astype(np.float32)
    return _model("MatMul", {"a": ["m", k]}, {"w": weight}, ["m", n]), {"m": m}


def _convolution(row: dict[str, int]) -> tuple[onnx.ModelProto, dict[str, int]]:
    groups = row.get("groups", 1)
    shape = (row["K"], row["C"] // groups, row["R"], row["S"])
    weight = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    pads = [row.get("pad_h", 0), row.get("pad_w", 0)]
    model = _model(
        "Conv",
        {"x": ["n", row["C"], "h", "w"]},
        {"f": weight},
        ["n", row["K"], "oh", "ow"],
        pads=pads + pads,
        strides=[row.get("stride_h", 1), row.get("stride_w", 1)],
        dilations=[row.get("dilation", 1)] * 2,
        group=groups,
    )
    return model, {"n": row["N"], "h": row["H"], "w": row["W"]}


def _model(
    operator: str,
    inputs: dict[str, list[Any]],
    weights: dict[str, np.ndarray[Any, Any]],
    out: list[Any],
    **attributes: Any,
) -> onnx.ModelProto:
    node = helper.make_node(operator, [*inputs, *weights], ["y"], **attributes)
    graph = helper.make_graph(
        [node],
        operator,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


def compare(
    workers: Sequence[Worker], case: Case, rounds: int, threads: int
) -> tuple[float, float, float]:
    """(milliseconds of the old version, old over new, old over its second instance).

    Rounds in which the processors moved apart are repeated, as in ``tilewright bench``.
    """
    # Workers run this file with an old version, which may not have that module.
    from tilewright.bench.clock import SystemClock, while_near

    clock = SystemClock(threads)
    for worker in workers:
        worker.ask({"model": str(case.model.resolve()), "sizes": case.sizes})
    times: list[list[float]] = [[] for _ in workers]

    def attempt() -> tuple[dict[int, float], bool]:
        turn = len(times[0]) % len(workers)
        order = list(range(len(workers)))
        was_apart = clock.is_apart()
        found: dict[int, float] = {}
        for index in order[turn:] + order[:turn]:
            found[index] = workers[index].ask({})
            was_apart |= clock.is_apart()
        return found, was_apart

    left = MOST_REPEATED * rounds
    for _ in range(rounds):
        found, discarded = while_near(clock, attempt, left)
        left -= discarded
        for index, seconds in found.items():
            times[index].append(seconds)
    old, new, again = (np.array(t) for t in times)
    return 1e3 * float(np.median(old)), float(np.median(old / new)), float(np.median(old / again))


def parse_shapes(text: str) -> list[dict[str, int]]:
    """``a=1,b=2;a=3,b=4`` as a list of sizes."""
    return [
        {name: int(size) for name, size in (part.split("=") for part in shape.split(","))}
        for shape in text.split(";")
    ]


def main() -> None:
    """Compare, print a line for every case and the geometric mean."""
    if sys.argv[1:2] == ["--worker"]:
        work(int(sys.argv[2]), sys.argv[3])
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("old", type=Path, help="the interpreter with the old version")
    parser.add_argument("new", type=Path, help="the interpreter with the new version")
    parser.add_argument("--model", type=Path, action="append", default=[], help="an ONNX file")
    parser.add_argument("--shapes", action="append", default=[], help="one for each --model")
    parser.add_argument("--operators", default="", help="CSV files of operator suites")
    parser.add_argument("--cases", type=int, default=10, help="cases of each suite")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--level", default="", help="the best of this machine unless given")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--least", type=float, default=0.99, help="the mean that is demanded")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cases = [
            Case(model, sizes)
            for model, shapes in zip(arguments.model, arguments.shapes, strict=True)
            for sizes in parse_shapes(shapes)
        ]
        for suite in filter(None, arguments.operators.split(",")):
            cases += operator_cases(Path(suite), arguments.cases, Path(folder))
        pythons = (arguments.old, arguments.new, arguments.old)
        workers = [
            Worker(python.absolute(), arguments.threads, arguments.level) for python in pythons
        ]
        ratios: list[float] = []
        twins: list[float] = []
        for case in cases:
            milliseconds, ratio, twin = compare(workers, case, arguments.rounds, arguments.threads)
            ratios.append(ratio)
            twins.append(twin)
            sizes = ", ".join(f"{name}={size}" for name, size in case.sizes.items())
            line = f"{case.model.stem:24} {sizes:32} {milliseconds:9.3f} ms"
            print(f"{line}  old/new {ratio:.3f}  old/old {twin:.3f}", flush=True)
        for worker in workers:
            worker.close()
    mean, noise = geometric_mean(ratios), geometric_mean(twins)
    print(f"geometric mean of old/new {mean:.3f}, of old/old {noise:.3f}, {len(cases)} cases")
    if mean < arguments.least:
        raise SystemExit(f"The new version is slower: {mean:.3f} is below {arguments.least}.")


def geometric_mean(values: Sequence[float]) -> float:
    """The mean of ratios."""
    return math.exp(sum(math.log(value) for value in values) / len(values))


if __name__ == "__main__":
    main()
