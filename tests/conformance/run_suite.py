"""Run the ONNX backend test suite on tilewright and count what compiles.

    python tests/conformance/run_suite.py --mode interpreter --kind node -k softmax --json out.json

``interpreter`` evaluates the imported graph with numpy; ``compiled`` goes through the compiler. A
case is *compiled* when no node runs on the ONNX reference evaluator, *partly* when some do, and
*reference* when all do. Operands that decide structure and are inputs of the case become constants.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.conformance_suite import KINDS, Case, check_outputs, input_names, load_cases
from tilewright.frontend.onnx import ImportReport, StructuralInputs, import_model
from tilewright.ir.evaluate import evaluate
from tilewright.ir.graph import Graph
from tilewright.ops.reference import evaluate_payload
from tilewright.shape import InputPattern, bind_inputs
from tilewright.support.errors import TilewrightError


@dataclass
class Outcome:
    """What became of one case: compiled, partly, reference, or failed with a reason."""

    kind: str
    name: str
    status: str
    seconds: float
    reason: str = ""
    fallbacks: list[str] = field(default_factory=list[str])
    constants: list[str] = field(default_factory=list[str])


ARRAYS = (np.ndarray, np.generic)
Feeds = dict[str, Any]
Run = Callable[[Feeds], list[Any]]


def symbols_of(graph: Graph, feeds: Feeds) -> dict[str, int]:
    """The sizes that the inputs determine."""
    inputs = [i.primitive for i in graph.inputs]
    patterns = [InputPattern(i.name, i.shape) for i in inputs]  # type: ignore[union-attr]
    plan = bind_inputs(patterns, graph.scope)
    return plan.solve([np.shape(feeds[p.name]) if p.shape else () for p in patterns])


def interpret(case: Case, constants: Feeds) -> tuple[Run, ImportReport]:
    """The case as a function that evaluates the imported graph, and the report."""
    graph, report = import_model(case.model, constants=constants)

    def run(feeds: Feeds) -> list[Any]:
        symbols = symbols_of(graph, feeds)
        results = evaluate(graph, feeds, symbols, evaluate_payload)
        return [results[name] for name, _ in graph.outputs]

    return run, report


def compiled(case: Case, constants: Feeds) -> tuple[Run, ImportReport]:
    """The case as a compiled model, and the report of its import."""
    from tilewright.compile import compile_model

    model = compile_model(case.model.SerializeToString(), constants=constants)
    report = import_model(case.model, constants=constants).report

    def run(feeds: Feeds) -> list[Any]:
        results = model.run(feeds)
        return [results[v.name] for v in case.model.graph.output]

    return run, report


MODES = {"interpreter": interpret, "compiled": compiled}


def prepare(case: Case, mode: str, feeds: Feeds) -> tuple[Run, ImportReport, Feeds]:
    """The case ready to run; inputs that decide structure are taken as constants."""
    try:
        run, report = MODES[mode](case, {})
        wanted = report.structural_inputs
    except StructuralInputs as error:
        run, report, wanted = None, None, error.inputs
    constants = {n: np.asarray(feeds[n]) for n in wanted if isinstance(feeds.get(n), ARRAYS)}
    if constants or run is None or report is None:
        run, report = MODES[mode](case, constants)
    return run, report, constants


def run_case(case: Case, mode: str) -> Outcome:
    """Import, run and compare one case."""
    started = time.perf_counter()
    outcome = Outcome(case.kind, case.name, "failed", 0.0)
    try:
        for inputs, expected in case.data_sets:
            feeds = dict(zip(input_names(case.model), inputs, strict=False))
            run, report, constants = prepare(case, mode, feeds)
            outcome.constants = list(constants)
            outcome.fallbacks = [f"{f.operator}: {f.reason}" for f in report.fallbacks]
            actual = run({n: v for n, v in feeds.items() if n not in constants})
            check_outputs(case, expected, actual)
            outcome.status = "compiled"
            if outcome.fallbacks:
                outcome.status = "partly" if report.compiled else "reference"
    except TilewrightError as error:
        outcome.status = "failed"
        outcome.reason = f"{type(error).__name__}: {error}".replace("\n", " | ")
    except Exception as error:  # the point of the script is to list what goes wrong
        outcome.status = "failed"
        text = " ".join(str(error).split())
        outcome.reason = f"{type(error).__name__}: {text[:300]}"
    outcome.seconds = time.perf_counter() - started
    return outcome


def summary(outcomes: Iterable[Outcome]) -> str:
    """Counts for each kind, then every case that did not compile."""
    rows = list(outcomes)
    lines: list[str] = []
    for kind in dict.fromkeys(r.kind for r in rows):
        of_kind = [r for r in rows if r.kind == kind]
        counts = Counter(r.status for r in of_kind)
        text = ", ".join(f"{counts[s]} {s}" for s in ("compiled", "partly", "reference", "failed"))
        passed = len(of_kind) - counts["failed"]
        lines.append(
            f"{kind}: {len(of_kind)} cases, {100 * passed / len(of_kind):.1f} % pass: {text}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, run, print; 1 if a case failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=sorted(MODES), default="interpreter")
    parser.add_argument("--kind", choices=KINDS, action="append", help="default: all")
    parser.add_argument("-k", default="", help="only cases whose name contains this")
    parser.add_argument("--json", type=Path, help="write the outcomes to this file")
    parser.add_argument("-q", action="store_true", help="print the counts only")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    outcomes: list[Outcome] = []
    for kind in options.kind or KINDS:
        for case in load_cases(kind):
            if options.k not in case.name:
                continue
            with redirect_stderr(io.StringIO()):
                outcome = run_case(case, options.mode)
            outcomes.append(outcome)
            if outcome.status != "compiled" and not options.q:
                detail = outcome.reason or "; ".join(dict.fromkeys(outcome.fallbacks))
                print(f"{outcome.status:9} {kind}/{case.name}: {detail}", flush=True)
    print(summary(outcomes))
    if options.json:
        options.json.write_text(json.dumps([asdict(o) for o in outcomes], indent=1))
    return 1 if any(o.status == "failed" for o in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
