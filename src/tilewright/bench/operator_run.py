# pyright: basic
"""Times operators: a group is compiled once, then each of its cases is put beside the peers.

Contenders alternate in short blocks (see ``measure``); in some cases a second instance of the
subject runs along, which shows how far ratios can be trusted; what multiplies nothing has a plain
copy of as many bytes along, which is its limit unless computing takes longer. Memory is given back
after each case. May import the rest of the package and compile. Start with `run_groups`.
"""

from __future__ import annotations

import ctypes
import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import numpy as np
import onnx

from tilewright.bench.arithmetic import computing_seconds
from tilewright.bench.clock import Clock, SystemClock
from tilewright.bench.compare import OTHER_OUTPUTS, TWIN, first_line, largest_difference
from tilewright.bench.contender import as_arrays
from tilewright.bench.measure import Measurement, Settings, measure
from tilewright.bench.operator_report import OperatorRow
from tilewright.bench.operators import AnyGroup, Problem, aligned_array
from tilewright.bench.peers.operators import prepare_peer
from tilewright.bench.report import Failure
from tilewright.bench.suites import AnyCase, spread
from tilewright.bench.tolerance import tolerances
from tilewright.compile import Compilation, compile_stages
from tilewright.ops.reference import evaluate_payload
from tilewright.runtime.model import CompiledModel
from tilewright.support.errors import ExecutionError, TilewrightError
from tilewright.target import detect

SUBJECT = "tilewright"
COPY = "copy"
QUICK = Settings(
    rounds=3, most_rounds=9, quiet=0.015, block=0.02, single=0.1, steady=0.08, patience=4.0
)

_CHUNK = 1 << 22  # elements that are compared at a time, as float64
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # numbers of glibc's options


@dataclass(frozen=True)
class Plan:
    """What to do: the peers' modules by name, threads, settings, and one in how many has a twin."""

    peers: Mapping[str, ModuleType]
    threads: int
    settings: Settings = QUICK
    self_checks: int = 12


Progress = Callable[[int, AnyCase], None]


def run_groups(
    groups: Sequence[AnyGroup], plan: Plan, progress: Progress, clock: Clock | None = None
) -> Iterator[OperatorRow]:
    """One row for each case, as soon as it is measured.

    ``progress`` is called before each case with the number done. Errors of the subject and of the
    peers become failures in the row.
    """
    clock = clock or SystemClock(plan.threads)
    count = sum(len(group.cases) for group in groups)
    checked = set(spread(count, plan.self_checks))
    done = 0
    for group in groups:
        model, make_problem = group.prepare()
        progress(done, group.cases[0])
        started = time.perf_counter()
        compiled = _compile(model, group)
        compile_seconds = time.perf_counter() - started
        for index, case in enumerate(group.cases):
            if index:
                progress(done, case)
            if isinstance(compiled, Failure):
                row = _failed(case, group.constant, compiled)
            else:
                is_checked = done in checked
                row = _run_case(compiled, make_problem(case), plan, clock, is_checked)
            yield row.compiled_in(compile_seconds)
            done += 1
            _give_memory_back()


def _compile(model: onnx.ModelProto, group: AnyGroup) -> Compilation | Failure:
    # Whatever goes wrong in one group, even in the compiler, must not lose hours of figures of the
    # others; it is told in the report.
    try:
        return compile_stages(model, dims=group.ranges, fallback="error")
    except Exception as error:
        return Failure(SUBJECT, first_line(error))


def _failed(case: AnyCase, constant: str, failure: Failure) -> OperatorRow:
    return OperatorRow(case, constant, {}, {}, {}, (failure,), None)


def _run_case(
    compiled: Compilation, problem: Problem, plan: Plan, clock: Clock, is_checked: bool
) -> OperatorRow:
    case = problem.case
    model = _instantiate(compiled, plan.threads)
    arrays = tuple(problem.inputs.values())
    try:
        expected = as_arrays(model(*arrays))
        _check(problem, expected, compiled)
    except TilewrightError as error:
        return _failed(case, problem.constant, Failure(SUBJECT, first_line(error)))
    calls: dict[str, Callable[[], object]] = {SUBJECT: partial(model, *arrays)}
    twins: tuple[str, str] | None = None
    if is_checked:
        twins = (SUBJECT + TWIN, SUBJECT)
        calls[SUBJECT + TWIN] = partial(_instantiate(compiled, plan.threads), *arrays)
    differences, failures = _prepare_peers(problem, plan, expected, calls)
    if case.flops == 0:
        calls[COPY] = _copy(case.bytes, plan.threads)
    del expected
    _give_memory_back()
    with _recycled_memory():
        measured = measure(calls, twins, plan.settings, clock)
    others = (SUBJECT + TWIN, COPY)
    return OperatorRow(
        case=case,
        constant=problem.constant,
        rounds={name: times for name, times in measured.rounds.items() if name not in others},
        ratios=_ratios(measured),
        differences=differences,
        failures=tuple(failures),
        self_ratio=measured.ratio(*twins).median if twins else None,
        copy_seconds=measured.seconds(COPY).median if COPY in calls else None,
        computing_seconds=computing_seconds(compiled.graph, case.sizes, detect(), plan.threads),
        repeated=measured.repeated,
    )


def _check(problem: Problem, actual: Sequence[np.ndarray], compiled: Compilation) -> None:
    """Compare with the reference, where there is one. Raises ExecutionError for a difference."""
    if problem.reference is None:
        return
    # The evaluator may raise any error of its own, which must not end the run.
    try:
        expected = problem.reference()
    except Exception as error:
        raise ExecutionError(
            f"The reference failed: {first_line(error)}.", where=problem.case.name
        ) from error
    allowed = tolerances(compiled.graph, problem.case.sizes)
    for name, own, wanted in zip(problem.results, actual, expected, strict=True):
        difference = _difference(own, wanted)
        if difference > allowed[name]:
            raise ExecutionError(
                f"The result differs from the reference by {difference:.1e}, "
                f"and {allowed[name]:.1e} is allowed.",
                where=f"{name} of {problem.case.name}, {problem.case.describe()}",
            )


def _copy(size: int, threads: int) -> Callable[[], object]:
    """A copy of as many bytes, of which half are read and half are written."""
    (target, source), *others = _copied(size, threads)
    if not others:
        return partial(np.copyto, target, source)
    pool = ThreadPoolExecutor(len(others))

    def together() -> None:
        copies = [pool.submit(np.copyto, *pair) for pair in others]
        np.copyto(target, source)
        for copied in copies:
            copied.result()

    return together


def _copied(size: int, threads: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The target and the source of each thread that copies.

    What no cache holds is copied by all threads at once, which share the memory: one alone has
    more than its part of the bandwidth. Of what a cache holds one thread copies its share alone,
    since waking the others would take longer than many a copy.
    """
    share = (max(1, size // 2 // threads),)
    largest = max(level.capacity or 0 for level in detect().levels)
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(threads if size > largest else 1):
        target, source = aligned_array(share, np.uint8), aligned_array(share, np.uint8)
        target.fill(0)
        source.fill(1)
        pairs.append((target, source))
    return pairs


def _ratios(measured: Measurement) -> dict[str, float]:
    return {
        name: measured.ratio(name, SUBJECT).median
        for name in measured.rounds
        if not name.startswith(SUBJECT) and name != COPY
    }


def _prepare_peers(
    problem: Problem,
    plan: Plan,
    expected: Sequence[np.ndarray],
    calls: dict[str, Callable[[], object]],
) -> tuple[dict[str, float], list[Failure]]:
    """Add the call of each peer to ``calls``; differences from the subject's result, failures.

    A peer whose results are not the same arrays up to rounding has computed something else, and is
    left out.
    """
    differences: dict[str, float] = {}
    failures: list[Failure] = []
    for name, module in plan.peers.items():
        # An engine may raise any error of its own, and it must not end the comparison.
        try:
            prepared = prepare_peer(module, problem, plan.threads)
            if prepared is None:
                continue
            difference = _largest_difference(expected, prepared.outputs())
        except Exception as error:
            failures.append(Failure(name, first_line(error)))
            continue
        if math.isfinite(difference):
            differences[name] = difference
            calls[name] = prepared.call
        else:
            failures.append(Failure(name, OTHER_OUTPUTS))
    return differences, failures


def _largest_difference(expected: Sequence[np.ndarray], actual: Sequence[np.ndarray]) -> float:
    """Of all results, infinite where their number differs."""
    if len(expected) != len(actual):
        return math.inf
    return max(map(_difference, expected, actual))


def _difference(expected: np.ndarray, actual: np.ndarray) -> float:
    """The largest difference relative to the largest magnitude, with little memory."""
    if expected.shape != actual.shape:
        return float("inf")
    if expected.size <= _CHUNK:
        return largest_difference([expected], [actual])
    scale = max(float(np.abs(part).max()) for part in _parts(expected))
    pairs = zip(_parts(expected), _parts(actual), strict=True)
    worst = max(float(np.abs(one - other).max()) for one, other in pairs)
    return worst / scale if np.isfinite(worst) else float("inf")


def _parts(array: np.ndarray) -> Iterator[np.ndarray]:
    """Some rows at a time, as f64: neither booleans nor bytes can be subtracted as they are."""
    rows = max(1, _CHUNK * len(array) // array.size)
    for start in range(0, len(array), rows):
        yield array[start : start + rows].astype(np.float64)


def _instantiate(compiled: Compilation, threads: int) -> CompiledModel:
    return CompiledModel.from_contents(
        compiled.contents, evaluate=evaluate_payload, num_threads=threads
    )


@contextmanager
def _recycled_memory() -> Iterator[None]:
    """Let glibc keep what is freed, for engines that allocate each result anew.

    Otherwise the system would clear the pages of a large result in every call, which takes longer
    than many a product, and which a program that runs one layer after the other does not see.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is None:
        yield
        return
    option(_MMAP_MAX, 0)
    option(_TRIM_THRESHOLD, (1 << 31) - 1)
    try:
        yield
    finally:
        option(_MMAP_MAX, 1 << 16)
        option(_TRIM_THRESHOLD, 1 << 17)


def _give_memory_back() -> None:
    """Collect garbage, and hand what the allocator keeps to the system where it can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
