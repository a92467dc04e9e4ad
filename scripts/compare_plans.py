"""Time the planners beside each other on models, each compiled by every one of them.

    python scripts/compare_plans.py models/bert-base.onnx --shapes "batch=1,sequence=16"
    python scripts/compare_plans.py models/*.onnx --plans greedy,optimal

At every shape the calls of all plans take turns. Printed are for each plan its kernels, the time by
the model of the machine and the measured one as a part of the first plan's (geometric mean over
shapes, least and greatest), the bytes of machine code, and the seconds of planning and of the whole
compilation. Of a plan with several ways to compute a part, the one that is best for all shapes is
listed as well. With ``--without-rewriting`` every plan is made of the graph as it is ("kept") and
of the rewritten one. The plan "measured" is the optimal one whose best choices were decided by
running kernels.

In the end: the rank correlation of modelled and measured times over all plans, shapes and models,
and of how many pairs of plans of a model whose modelled times at a shape are more than 5 % apart
the measured ones have the same order. ``--save`` writes every time there.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np

from tilewright.backend.cpu.machine import LEVELS, host_level
from tilewright.backend.cpu.program import lowering_of
from tilewright.bench.clock import SystemClock
from tilewright.bench.inputs import model_inputs, random_inputs
from tilewright.bench.shapes import choose_shapes
from tilewright.bench.turns import time_variants
from tilewright.bench.variants import Variants
from tilewright.compile import Compilation, compile_stages
from tilewright.compile_machines import host_machine
from tilewright.ir.kernel import Plan
from tilewright.plan.planners import PLANNERS
from tilewright.plan.prices import KernelPrices
from tilewright.runtime.model import CompiledModel
from tilewright.tile.variants import THREADS

Shape = Mapping[str, int]
MEASURED = "measured"
APART = 1.05  # modelled times of two plans that are told apart


@dataclass
class Results:
    """What was seen of one plan of one model; ``first`` where it always takes its first ways."""

    made: Compilation
    seconds: float
    threads: int
    first: bool = False
    measured: list[float] = field(default_factory=list[float])
    modelled: list[float] = field(default_factory=list[float])

    @property
    def plan(self) -> Plan:
        """Of the one level, with the ways that are taken."""
        (plan,) = self.made.plans.values()
        if not self.first:
            return plan
        others = {n for n, (_, ways) in plan.memberships().items() if 0 not in ways}
        return Plan(tuple(k for n, k in enumerate(plan.kernels) if n not in others))

    def model(self, shape: Shape) -> CompiledModel:
        """What runs at a shape."""
        variants = Variants(self.made.contents, self.threads)
        if not self.first:
            return CompiledModel.from_contents(self.made.contents, num_threads=self.threads)
        chosen = zip(variants.program.choices, variants.chosen(shape), strict=True)
        return variants.model(
            tuple(0 if choice.symbol.startswith("way") else own for choice, own in chosen)
        )

    @property
    def code(self) -> int:
        """Bytes of machine code."""
        return sum(len(image.data) for image in self.made.contents.images.values())

    @property
    def kernels(self) -> str:
        """How many; those that not all shapes launch after a plus."""
        optional = len(self.plan.memberships())
        return str(len(self.plan.kernels) - optional) + (f"+{optional}" if optional else "")


def modelled(results: Results, shape: Shape) -> float:
    """Picoseconds of a plan at a shape."""
    made = results.made
    lowering = lowering_of(made.graph, LEVELS[host_level().name], machine=host_machine())
    missing = {name: 1 for name in made.graph.scope.symbols if name not in shape}
    prices = KernelPrices(lowering, [{**missing, **shape, THREADS: results.threads}])
    return prices.of_plan(results.plan)[0]


def compared(path: Path, given: argparse.Namespace) -> dict[str, Results]:
    """Every plan of a model at every shape."""
    found: dict[str, Results] = {}
    forms = [(name, rewriting) for name in given.plans for rewriting in given.forms]
    for plan, rewriting in forms:
        started = time.perf_counter()
        is_measured = plan == MEASURED
        made = compile_stages(
            path, plan="optimal" if is_measured else plan, measure=is_measured, rewriting=rewriting
        )
        name = f"{plan}, kept" if rewriting is False else plan
        found[name] = Results(made, time.perf_counter() - started, given.threads)
        if found[name].plan.alternatives:
            found[f"{name}, 1 way"] = replace(found[name], first=True, measured=[], modelled=[])
    (first, *_) = found.values()
    usual = CompiledModel.from_contents(first.made.contents, num_threads=given.threads)
    # At empty shapes nothing is computed.
    shapes = [s for s in choose_shapes(usual, given.shapes) if all(s.values())]
    if not shapes:
        raise SystemExit(f"{path.name}: all shapes of {given.shapes!r} are empty; give others")
    for shape in shapes:
        inputs = random_inputs(model_inputs(path), shape, 0)
        models = [results.model(shape) for results in found.values()]
        calls: list[Callable[[], object]] = [partial(model.run, inputs) for model in models]
        times = time_variants(calls, SystemClock(given.threads), given.seconds)
        for results, seconds in zip(found.values(), times, strict=True):
            results.measured.append(seconds)
            results.modelled.append(modelled(results, shape))
    return found


def ratios(own: Sequence[float], base: Sequence[float]) -> str:
    """The geometric mean of ratios, their least and their greatest."""
    found = [a / b for a, b in zip(own, base, strict=True)]
    mean = math.exp(statistics.fmean(math.log(ratio) for ratio in found))
    return f"{mean:6.3f} ({min(found):.3f} to {max(found):.3f})"


def saved(path: Path, found: Mapping[str, Results]) -> list[dict[str, object]]:
    """Every plan of a model in plain numbers: seconds, picoseconds by the model, bytes of code."""
    return [
        {
            "model": path.stem, "plan": name, "kernels": own.kernels, "code": own.code,
            "planned": own.made.planning, "compiled": own.seconds,
            "modelled": own.modelled, "measured": own.measured,
        }
        for name, own in found.items()
    ]  # fmt: skip


def agreement(found: Iterable[Sequence[Results]]) -> str:
    """How far the model of the machine orders plans as the clock does."""
    pairs: list[tuple[float, float]] = []
    right = apart = 0
    for plans in found:
        pairs += [pair for own in plans for pair in zip(own.modelled, own.measured, strict=True)]
        for one, other in combinations(plans, 2):
            for modelled, measured in zip(
                np.divide(one.modelled, other.modelled),
                np.divide(one.measured, other.measured), strict=True,
            ):  # fmt: skip
                if max(modelled, 1 / modelled) > APART:
                    apart += 1
                    right += (modelled > 1) == (measured > 1)
    ranks = [np.argsort(np.argsort(times)) for times in zip(*pairs, strict=True)]
    correlation = float(np.corrcoef(ranks)[0, 1])
    return (
        f"{len(pairs)} times of plans: rank correlation {correlation:.3f}; "
        f"of {apart} pairs more than {100 * (APART - 1):.0f} % apart {right} are in that order"
    )


def main() -> None:
    """Compile, time, print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--plans", type=lambda text: text.split(","), default=[*PLANNERS, MEASURED])
    parser.add_argument("--shapes", default="random:6", help="as of the verb verify")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save", type=Path, metavar="FILE.json", help="every time, as JSON")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each shape")
    parser.add_argument(
        "--without-rewriting", dest="forms", action="store_const", const=(False, True),
        default=(None,), help="each plan without and with rewriting by price",
    )  # fmt: skip
    given = parser.parse_args()
    everything: list[Sequence[Results]] = []
    rows: list[dict[str, object]] = []
    for path in given.models:
        found = compared(path, given)
        everything.append(tuple(found.values()))
        rows += saved(path, found)
        base = next(iter(found.values()))
        print(f"{path.name}: time as a part of {next(iter(found))}'s")
        print(
            f"{'plan':14} {'kernels':>7} {'modelled':>24} {'measured':>24} {'code':>9} "
            f"{'planned':>7} {'s':>6}"
        )
        for name, own in found.items():
            print(
                f"{name:14} {own.kernels:7} {ratios(own.modelled, base.modelled):>24} "
                f"{ratios(own.measured, base.measured):>24} {own.code:9} {own.made.planning:7.1f} "
                f"{own.seconds:6.1f}",
                flush=True,
            )
    print(agreement(everything))
    if given.save is not None:
        given.save.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
