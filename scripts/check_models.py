"""The acceptance run: every model compiled once and compared with a reference at many shapes.

    python scripts/check_models.py                       # every model, all edges, 30 random shapes
    python scripts/check_models.py bert-2l --random 5

A model is compiled once for the range of its dimensions (0 included) and then run at every edge of
each dimension and at random shapes, beside ONNX Runtime; where that refuses a shape, beside onnx's
own reference. The tolerance follows from the model's dtypes and depth. No operator may run on the
reference. Shapes whose call is estimated to take longer than `--seconds` are left out. The models
are written by `scripts/export_models.py`. Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.bench.shapes import Budget, choose_shapes
from tilewright.bench.verify import References, Verification, verify
from tilewright.cli.options import inputs_for
from tilewright.compile import Compilation, compile_stages
from tilewright.frontend.onnx import Dim
from tilewright.ops.reference import evaluate_payload
from tilewright.runtime.model import CompiledModel

FOLDER = Path(__file__).resolve().parent.parent / "models"
TEXT = {"batch": Dim(0, 64), "sequence": Dim(0, 512)}
IMAGE = {"batch": Dim(0, 64), "height": Dim(32, 512), "width": Dim(32, 512)}
BATCH = {"batch": Dim(0, 64)}
PATCHES = {"batch": Dim(0, 64), "height": Dim(32, 384), "width": Dim(32, 384)}
RANGES: Mapping[str, Mapping[str, Dim]] = {
    "bert-2l": TEXT,
    "bert-base": TEXT,
    "gpt2": TEXT,
    "albert-base": TEXT,
    "vit-b16": PATCHES,
    "resnet-50": IMAGE,
    "mobilenet-v2": IMAGE,
    "segformer-b0": IMAGE,
    "segformer-short": IMAGE,
    "googlenet": IMAGE,
    "googlenet-narrow": BATCH,
    "alexnet": BATCH,
    "alexnet-narrow": BATCH,
    "vgg-16": BATCH,
    "vgg-16-narrow": BATCH,
}


@dataclass(frozen=True)
class Checked:
    """A model compiled once."""

    name: str
    path: Path
    compilation: Compilation
    model: CompiledModel
    compile_seconds: float

    def compare(self, shapes: str, *, seed: int = 0, budget: Budget | None = None) -> Verification:
        """Run at the shapes that `shapes` asks for, beside the references."""
        cases = choose_shapes(self.model, shapes, seed=seed, budget=budget)
        references = References(self.path, "onnxruntime", self.model.num_threads)
        inputs = inputs_for(self.model, None, seed)
        graph = self.compilation.graph
        return verify(self.model, graph, references, inputs, cases)


def prepare(name: str, folder: Path = FOLDER, level: str | None = None) -> Checked:
    """Compile one of the models in `folder` for the range of its dimensions.

    It is for this machine unless a `level` is given.
    """
    path = folder / f"{name}.onnx"
    started = time.perf_counter()
    made = compile_stages(path, dims=RANGES[name], levels=level)
    model = CompiledModel.from_contents(made.contents, evaluate=evaluate_payload)
    return Checked(name, path, made, model, time.perf_counter() - started)


def report(checked: Checked, found: Verification) -> None:
    """One line for the model, and one for each shape that is not simply right."""
    opaque = checked.compilation.report.opaque
    errors = [c.difference / c.tolerance for c in found.checks if c.difference and c.tolerance]
    counts = ", ".join(
        f"{found.count(verdict)} {verdict}"
        for verdict in dict.fromkeys(check.verdict for check in found.checks)
    )
    print(
        f"{checked.name:14} compiled in {checked.compile_seconds:5.1f} s  "
        f"{len(checked.compilation.plan.kernels):4} kernels  {len(found.checks):3} shapes: {counts}"
        f"  worst error {max(errors, default=0.0):.2f} of its tolerance"
        f"{'  opaque: ' + str(dict(opaque)) if opaque else ''}",
        flush=True,
    )
    for check in found.checks:
        if check.verdict != "agrees":
            sizes = ", ".join(f"{name}={size}" for name, size in check.sizes.items())
            detail = check.note or f"{check.output}: {check.difference} > {check.tolerance}"
            print(f"    {check.verdict} at {sizes}: {detail}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the models named on the command line, all of them by default."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="MODEL", help=f"of {', '.join(RANGES)}")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the models are")
    parser.add_argument("--random", type=int, default=30, help="random shapes beside the edges")
    parser.add_argument("--seconds", type=float, default=1.0, help="longest estimated call")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in RANGES]
    if unknown:
        parser.error(f"no model called {', '.join(unknown)}; there are {', '.join(RANGES)}")
    right = True
    for name in options.names or RANGES:
        checked = prepare(name, options.folder)
        budget = Budget(seconds=options.seconds)
        found = checked.compare(f"edge,random:{options.random}", seed=options.seed, budget=budget)
        report(checked, found)
        right &= found.is_right and not checked.compilation.report.opaque
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
