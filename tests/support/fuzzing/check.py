"""One case: compiled, saved, loaded, run at every shape, and compared with two oracles.

Runs in a child process, see :mod:`pool`; ``stage`` tells the parent what is about to run, so that
it knows whose a crash is. Start with :func:`check`.
"""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tilewright
from tilewright.support.errors import InternalError, TilewrightError

from .case import Array, Case, Finding, Sizes
from .interpreted import Interpreted
from .limits import doubtful, doubtful_in_runtime, doubtful_of_nothing, limit, unspecified
from .oracles import MORE_TRIALS, Reference, Values, difference, onnxruntime_session

INTERPRETED = "none"  # instead of an instruction set level
REFERENCE, RUNTIME = "onnx.reference", "onnxruntime"


@dataclass
class Outcome:
    """What came of a case: a finding or none, and whether anything was compared."""

    finding: Finding | None = None
    compared: int = 0
    operators: list[str] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)
    ended_in: str | None = None  # the stage of a crash or hang


@dataclass
class Expected:
    """What the oracles say at one shape, by oracle; an oracle that refuses is not there.

    ``widened`` makes the allowances of more trials.
    """

    sizes: Sizes
    feeds: Values
    answers: dict[str, Values]
    allowances: Values | None
    widened: Callable[[], Values | None]

    @property
    def is_certain(self) -> bool:
        """Whether both oracles answer in full."""
        counts = [len(answer) for answer in self.answers.values()]
        return len(counts) == 2 and counts[0] == counts[1]


def check(
    case: Case, stage: Callable[[str], None] = lambda name: None, without: Collection[str] = ()
) -> Outcome:
    """Compare one case; ``without`` are oracles not to ask."""
    outcome = Outcome(operators=case.operators())
    expected = _ask_oracles(case, stage, without, outcome)
    stage("compile")
    try:
        with tempfile.TemporaryDirectory() as folder:
            model = _through_artifact(case, Path(folder) / "case.tw", stage)
            _run(case, model, expected, outcome, stage)
    except InternalError as error:
        outcome.finding = _foreign(error, None)
    except TilewrightError as error:
        _refused(error, expected, outcome)
    except Exception as error:
        outcome.finding = _foreign(error, None)
    return outcome


def _through_artifact(case: Case, path: Path, stage: Callable[[str], None]) -> Any:
    if case.level == INTERPRETED:
        return Interpreted(case)
    made = tilewright.compile(
        case.model, dims=case.ranges, levels=[case.level], plan=case.plan, check=case.check
    )
    stage("save")
    made.save(path)
    stage("load")
    return tilewright.load(path)


def _ask_oracles(
    case: Case, stage: Callable[[str], None], without: Collection[str], outcome: Outcome
) -> list[Expected]:
    reference: Reference | None = None
    session: Callable[[Values], Values] | None = None
    proto = case.proto()
    doubted, wrong_there = doubtful(proto), doubtful_in_runtime(proto)
    empty_doubted = doubtful_of_nothing(proto)
    if REFERENCE not in without:
        stage(REFERENCE)
        reference = _or_none(Reference, proto)
    if RUNTIME not in without:
        stage(RUNTIME)
        session = _or_none(onnxruntime_session, case.model)
    found: list[Expected] = []
    for sizes in case.shapes:
        feeds = case.feeds(sizes)
        answers: dict[str, Values] = {}
        allowances: Values | None = None
        widened: Callable[[], Values | None] = _nothing
        unspecified_by: str | None = None
        if reference is not None:
            stage(REFERENCE)
            base = _or_none(reference.values, feeds)
            if base is not None:
                unspecified_by = unspecified(proto, base)
                answers[REFERENCE] = {
                    n: base[n] for n in reference.outputs if n in base and n not in doubted
                }
                asked = (reference.allowances, feeds, base, case.seed)
                allowances = _or_none(*asked)
                widened = partial(_or_none, *asked, MORE_TRIALS)
        if session is not None:
            stage(RUNTIME)
            answer = _or_none(session, feeds)
            if answer is not None:
                doubted_here = wrong_there | (empty_doubted if 0 in sizes.values() else set())
                answers[RUNTIME] = {n: a for n, a in answer.items() if n not in doubted_here}
        if unspecified_by is not None:
            outcome.limits.append(unspecified_by)
            answers = {}
        found.append(Expected(sizes, feeds, answers, allowances, widened))
    return found


def _nothing() -> Values | None:
    return None


def _or_none(ask: Callable[..., Any], *arguments: Any) -> Any:
    """An oracle refuses with exceptions of many kinds."""
    try:
        return ask(*arguments)
    except Exception:
        return None


def _refused(error: TilewrightError, expected: list[Expected], outcome: Outcome) -> None:
    """A refusal to compile is a finding where both oracles answer at some shape."""
    why = limit(str(error))
    if why is not None:
        outcome.limits.append(why)
    elif any(e.is_certain for e in expected):
        sizes = next(e.sizes for e in expected if e.is_certain)
        outcome.finding = Finding("refused", f"compile: {error}", sizes)


def _run(
    case: Case, model: Any, expected: list[Expected], outcome: Outcome, stage: Callable[[str], None]
) -> None:
    for threads in case.threads:
        model.num_threads = threads
        first: dict[str, Array] | None = None
        for one in [*expected, expected[0]]:
            stage(f"call with {threads} threads at {one.sizes}")
            try:
                results = {k: np.asarray(v) for k, v in model.run(one.feeds).items()}
            except InternalError as error:
                outcome.finding = _foreign(error, one.sizes)
                return
            except TilewrightError as error:
                why = limit(str(error))
                if why is not None:
                    outcome.limits.append(why)
                elif one.is_certain:
                    outcome.finding = Finding("refused", f"call: {error}", one.sizes)
                    return
                continue
            except Exception as error:
                outcome.finding = _foreign(error, one.sizes)
                return
            text = _judge(results, one, one.allowances)
            if text is not None:
                text = _judge(results, one, one.widened())
            outcome.compared += bool(one.answers)
            if text is None and one is expected[0]:
                first = first or results
                if any(first[n].tobytes() != a.tobytes() for n, a in results.items()):
                    text = "other bits when called again"
            if text is not None:
                outcome.finding = Finding("wrong", f"{text}\nthreads: {threads}", one.sizes)
                return


def _judge(results: Values, expected: Expected, allowances: Values | None) -> str | None:
    """None if each output agrees with an oracle, or none answers."""
    if not expected.answers:
        return None
    allowances = allowances or {}
    for name, ours in results.items():
        texts = {
            oracle: difference(ours, np.asarray(answer[name]), allowances.get(name))
            for oracle, answer in expected.answers.items()
            if name in answer
        }
        if texts and all(text is not None for text in texts.values()):
            lines = [f"{oracle}: {text}" for oracle, text in texts.items()]
            return "\n".join([f"output {name}", *lines])
    return None


def _foreign(error: Exception, sizes: Sizes | None) -> Finding:
    return Finding("foreign", f"{type(error).__name__}: {error}\n{traceback.format_exc()}", sizes)
