"""Plan the case studies of Korch's paper with every planner, time them, and write the page.

    python scripts/case_studies.py -o docs/case-studies.md

Each study is a small model; at every shape the calls of all plans and of the peers take turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
from onnx import parser

from tilewright.bench import PeerOptions, Settings, create_peer, model_inputs, random_inputs
from tilewright.bench.clock import SystemClock
from tilewright.bench.machine import describe_machine
from tilewright.bench.measure import Call, measure
from tilewright.compile import Compilation, compile_stages
from tilewright.frontend.onnx import Dim
from tilewright.plan.planners import PLANNERS
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.program import KernelStep
from tilewright.support.text import format_count, format_seconds

HEADER = '<ir_version: 9, opset_import: ["" : 18]>\n'
PEERS = ("onnxruntime", "openvino")
Shape = Mapping[str, int]


@dataclass(frozen=True)
class Study:
    """A part of a network, what the paper says of it, and what our plans make of it."""

    title: str
    text: str
    shapes: Sequence[Shape]
    paper: str
    ours: str


STUDIES = (
    Study(
        "Softmax across the kernels of attention",
        """attention (float[batch, 2, n, 32] q, float[batch, 2, m, 32] k, float[batch, 2, m, 32] v)
        => (float[batch, 2, n, 32] y) <float scale = {0.1767767}> {
            t = Transpose <perm = [0, 1, 3, 2]> (k)
            products = MatMul (q, t)
            scores = Mul (products, scale)
            shares = Softmax <axis = -1> (scores)
            y = MatMul (shares, v)
        }""",
        ({"batch": 1, "n": 4096, "m": 64}, {"batch": 16, "n": 1024, "m": 256}),
        "Segformer's attention: Softmax is split, and its parts go to all four kernels around the "
        "two products; 1.50 times as fast as TensorRT, whose Softmax is a kernel of its own.",
        "Greedy and backbone take both products and the softmax as one kernel, which keeps a "
        "running maximum and sum, so that no score is in memory. The optimal plan takes two: the "
        "first product with the softmax of its rows, while a block of them lies in cache, and the "
        "second product. Keys are few here, so that scores need little memory; the prices of both "
        "plans are close to each other, and so are their times.",
    ),
    Study(
        "EfficientViT's attention block",
        """linear (float[batch, 96, n] x) => (float[batch, 32, n] y)
        <int64[4] parts = {0, 2, 48, -1}, int64[3] sizes = {16, 16, 16}, int64[1] last = {-1},
         int64[3] joined = {0, 32, -1}, float tiny = {1e-15}> {
            r = Reshape (x, parts)
            t = Transpose <perm = [0, 1, 3, 2]> (r)
            q0, k0, v = Split <axis = -1> (t, sizes)
            q = Relu (q0)
            k = Relu (k0)
            turned = Transpose <perm = [0, 1, 3, 2]> (k)
            both = MatMul (turned, v)
            upper = MatMul (q, both)
            total = ReduceSum <keepdims = 1> (turned, last)
            lower = MatMul (q, total)
            safe = Add (lower, tiny)
            quotient = Div (upper, safe)
            back = Transpose <perm = [0, 1, 3, 2]> (quotient)
            y = Reshape (back, joined)
        }""",
        ({"batch": 1, "n": 1024}, {"batch": 16, "n": 1024}),
        "The sum over positions is merged into a product, transpositions are computed several "
        "times, in the kernels that read them, and 7 kernels are left of 12: 3.29 times as fast "
        "as TensorRT.",
        "Five kernels at these sizes, of 16 without fusion: one clamps the keys, stores them and "
        "sums them, the products read queries and values where they lie in the image, the "
        "division belongs to the product above it, and the last kernel puts the channels first. "
        "The artifact has another way of seven kernels, which calls with other sizes take.",
    ),
    Study(
        "InstanceNorm, ReLU and Pad",
        """border (float[batch, 32, height, width] x) => (float[batch, 32, h, w] y)
        <float[32] gain = {GAIN}, float[32] shift = {GAIN}, int64[8] pads = {0,0,1,1,0,0,1,1}> {
            normal = InstanceNormalization (x, gain, shift)
            positive = Relu (normal)
            y = Pad <mode = "reflect"> (positive, pads)
        }""".replace("GAIN", ", ".join(["0.5"] * 32)),
        (
            {"batch": 1, "height": 224, "width": 224},
            {"batch": 4, "height": 97, "width": 161},
            {"batch": 32, "height": 14, "width": 14},
        ),
        "A pattern of Candy: the normalisation is split, and its last part goes into the kernel of "
        "ReLU and Pad; 1.32 times as fast as TensorRT with a kernel for each operator.",
        "Two plans in one artifact. Images with many columns get the paper's: statistics first, "
        "and what is made of them is computed where the padded image is written. Where columns "
        "are few, positions in the border cost more than they save: there the normalisation with "
        "ReLU is one kernel, whose planes stay in cache between its sweeps, and the padded copy "
        "another one. The planner finds both, and each call takes the cheaper one.",
    ),
    Study(
        "A part of Segformer without products",
        """mixed (float[batch, n, 64] x, float[batch, n, 64] skip, float[64] bias)
        => (float[batch, 64, n] y) <float[64] gain = {GAIN}> {
            biased = Add (x, bias)
            summed = Add (biased, skip)
            normal = LayerNormalization <axis = -1> (summed, gain)
            active = Sigmoid (normal)
            y = Transpose <perm = [0, 2, 1]> (active)
        }""".replace("GAIN", ", ".join(["0.5"] * 64)),
        ({"batch": 1, "n": 256}, {"batch": 16, "n": 4096}),
        "Operators that are all limited by memory: one kernel is right at batch 1, and wrong at "
        "batch 16, where several are 2.24 times as fast as the one that TVM makes. (The operators "
        "of its figure are not in the paper's text; these are ones of that kind.)",
        "One plan serves both batches. What Korch's plan changes with the batch, the order of the "
        "loops and what is kept in cache between sweeps, is chosen here inside of a kernel: a "
        "kernel has variants, and each call takes the cheapest.",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Made:
    """A study compiled with one planner."""

    compilation: Compilation
    model: CompiledModel

    def kernels(self, shape: Shape) -> list[str]:
        """What each kernel of a call holds."""
        (plan,), (program,) = (
            self.compilation.plans.values(), self.compilation.contents.programs.values()
        )  # fmt: skip
        steps = [program.steps[use.step] for use in self.model.explain(**shape)]
        numbers = dict.fromkeys(step.kernel for step in steps if isinstance(step, KernelStep))
        labels = self.compilation.graph.labels
        bodies = [plan.kernels[number] for number in numbers]
        return [
            ", ".join(dict.fromkeys(labels[n].split()[0] for n in kernel.body if n in labels))
            or kernel.label
            for kernel in bodies
        ]


def timed(study: Study, threads: int, rounds: int) -> tuple[dict[str, Made], list[list[float]]]:
    """The study with every planner, and for every shape the seconds of all plans and peers."""
    proto = parser.parse_model(HEADER + study.text)
    dims = {name: Dim(0, 1 << 14) for name in study.shapes[0]}
    made: dict[str, Made] = {}
    for name in PLANNERS:
        compilation = compile_stages(proto, dims=dims, plan=name)  # type: ignore[arg-type]
        model = CompiledModel.from_contents(compilation.contents, num_threads=threads)
        made[name] = Made(compilation, model)
    rows: list[list[float]] = []
    with TemporaryDirectory() as folder:
        path = Path(folder) / "study.onnx"
        onnx.save(proto, path)
        peers = [create_peer(name, path, PeerOptions(threads)) for name in PEERS]
        for shape in study.shapes:
            inputs = random_inputs(model_inputs(path), shape, 0)
            calls: dict[str, Call] = {
                name: partial(own.model.run, inputs) for name, own in made.items()
            }
            calls |= {peer.name: peer.prepare(inputs) for peer in peers}
            settings = Settings(rounds=rounds, most_rounds=rounds)
            measured = measure(calls, None, settings, SystemClock(threads))
            rows.append([measured.seconds(name).median for name in calls])
    return made, rows


def section(study: Study, threads: int, rounds: int) -> str:
    """The part of the page about a study."""
    made, rows = timed(study, threads, rounds)
    shapes = [" ".join(f"{n}={s}" for n, s in shape.items()) for shape in study.shapes]
    lines = [
        f"## {study.title}", "", f"*Korch:* {study.paper}", "", f"*Here:* {study.ours}", "",
        "| plan | " + " | | ".join(shapes) + " | |",
        "|---|" + "---:|---|" * len(shapes),
    ]  # fmt: skip
    for number, (name, own) in enumerate(made.items()):
        counts = [format_count(len(own.kernels(shape)), "kernel") for shape in study.shapes]
        pairs = zip(rows, counts, strict=True)
        times = " | ".join(f"{format_seconds(row[number])} | {count}" for row, count in pairs)
        lines.append(f"| {name} | {times} |")
    for number, name in enumerate(PEERS, len(made)):
        times = " | | ".join(format_seconds(row[number]) for row in rows)
        lines.append(f"| {name} | {times} | |")
    kernels = [made["optimal"].kernels(shape) for shape in study.shapes]
    for shape, held in zip(shapes, kernels, strict=True):
        where = f" at {shape}" if kernels[0] != kernels[-1] else ""
        listed = "; ".join(f"({n}) {text}" for n, text in enumerate(held, 1))
        lines += ["", f"The kernels of the optimal plan{where} hold parts of: {listed}."]
        if not where:
            break
    return "\n".join([*lines, ""])


def main() -> None:
    """Plan, time, write the page."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("-o", "--output", type=Path, default=Path("docs/case-studies.md"))
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--rounds", type=int, default=15, help="blocks of timing")
    given = arguments.parse_args()
    introduction = (
        "# Korch's case studies\n\n"
        "Korch (ASPLOS 2024, section 6.4) looks at four parts of networks in which its plan "
        "differs from that of TensorRT or TVM on a V100. Below are the same parts, or ones like "
        f"them, with tilewright's planners on {given.threads} threads of "
        f"{describe_machine().processor}: times of a call, all plans and peers in turns. Its "
        "speed-ups are of other kernels on another machine, so that only the plans can be "
        "compared. See [plans](plans.md) for the planners; `scripts/case_studies.py` writes this "
        "page.\n"
    )
    parts = [section(study, given.threads, given.rounds) for study in STUDIES]
    given.output.write_text("\n".join([introduction, *parts]), encoding="utf-8")


if __name__ == "__main__":
    main()
