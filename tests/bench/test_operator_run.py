from __future__ import annotations

from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright.bench import operator_run
from tilewright.bench.compare import OTHER_OUTPUTS
from tilewright.bench.measure import Settings
from tilewright.bench.operator_report import OperatorRow
from tilewright.bench.operator_run import SUBJECT, Plan, run_groups
from tilewright.bench.operators import Problem, group_cases
from tilewright.bench.peers.operators import Prepared
from tilewright.bench.suites import AnyCase, parse_shapes
from tilewright.bench.tables import (
    TableCase,
    group_table_cases,
    make_table_case,
    make_table_problem,
)
from tilewright.support.errors import UnsupportedError

SHORT = Settings(rounds=2, most_rounds=2, quiet=0.0, block=1e-4, single=0.1)


def peer(prepare: Any) -> ModuleType:
    module = ModuleType("peer")
    module.prepare_operator = prepare  # type: ignore[attr-defined]
    return module


def numpy_peer(error: float = 0.0) -> ModuleType:
    def prepare(problem: Problem, threads: int) -> Prepared:
        (left,) = problem.inputs.values()

        def run() -> np.ndarray[Any, Any]:
            assert problem.weight is not None
            return left @ problem.weight + np.float32(error)

        return Prepared(run, lambda: (run(),))

    return peer(prepare)


def gives(*results: np.ndarray[Any, Any]) -> ModuleType:
    """A peer with these results, whatever the operands."""
    return peer(lambda problem, threads: Prepared(lambda: results, lambda: results))


def refuse(problem: Problem, threads: int) -> Prepared:
    raise RuntimeError("not today\nand more")


def nothing(problem: Problem, threads: int) -> None:
    return None


def run(peers: dict[str, ModuleType], text: str, seen: list[tuple[int, str]] | None = None):
    groups = group_cases(parse_shapes(text), "right")
    notes = [] if seen is None else seen

    def progress(done: int, case: AnyCase) -> None:
        notes.append((done, case.name))

    return list(run_groups(groups, Plan(peers, 1, SHORT, self_checks=1), progress))


@pytest.mark.slow
def test_rows_of_two_groups() -> None:
    seen: list[tuple[int, str]] = []
    text = "M=3,N=4,K=5;M=6,N=4,K=5;M=2,N=3,K=5"
    rows = run({"numpy": numpy_peer()}, text, seen)
    assert seen == list(enumerate(text.split(";")))
    for row in rows:
        assert set(row.rounds) == {SUBJECT, "numpy"}
        assert all(len(times) == 2 and min(times) > 0 for times in row.rounds.values())
        assert row.ratios["numpy"] > 0 and row.differences["numpy"] < 1e-6
        assert row.failures == () and row.compile_seconds > 0
    # One of three has a second instance: the one in the middle.
    assert [row.self_ratio is not None for row in rows] == [False, True, False]


@pytest.mark.slow
def test_peers_that_are_wrong_fail_or_cannot() -> None:
    peers = {"wrong": numpy_peer(error=10.0), "bad": peer(refuse), "unable": peer(nothing)}
    peers |= {"other": gives(np.zeros((4, 3), np.float32)), "none": gives()}
    (row,) = run(peers, "M=3,N=4,K=5")
    assert row.largest_difference > 0.5
    assert [(f.contender, f.reason) for f in row.failures] == [
        ("bad", "RuntimeError: not today"), ("other", OTHER_OUTPUTS), ("none", OTHER_OUTPUTS),
    ]  # fmt: skip
    assert set(row.rounds) == {SUBJECT, "wrong"}


def run_table(case: TableCase, reference: Any = None) -> OperatorRow:
    """The row of a case, whose results are compared with another reference if one is given."""
    (group,) = group_table_cases([case])
    model, make_problem = group.prepare()

    def prepare() -> tuple[Any, Any]:
        return model, lambda case: replace(
            make_problem(case), reference=reference or make_problem(case).reference
        )

    changed: Any = SimpleNamespace(
        ranges=group.ranges, cases=group.cases, constant=group.constant, prepare=prepare
    )
    (row,) = run_groups([changed], Plan({}, 1, SHORT), lambda done, case: None)
    return row


SPLIT = ("memory", "s", "n", "float[rows,6] x", "", "p, q = Split <axis=1, num_outputs=2> (x)")


def test_models_of_tables_are_checked_and_put_beside_a_copy() -> None:
    row = run_table(make_table_case(*SPLIT, "rows=5"))
    assert row.failures == () and set(row.rounds) == {SUBJECT}
    assert row.copy_seconds is not None and row.copy_seconds > 0


def test_a_wrong_result_is_a_failure() -> None:
    case = make_table_case(*SPLIT, "rows=5")
    reference = make_table_problem(case).reference
    assert reference is not None
    row = run_table(case, lambda: tuple(result + 0.01 for result in reference()))
    assert row.rounds == {}
    (failure,) = row.failures
    assert failure.contender == SUBJECT and "differs from the reference" in failure.reason


def test_a_reference_that_fails_is_a_failure() -> None:
    def fail() -> tuple[Any, ...]:
        raise ValueError("not today")

    row = run_table(make_table_case(*SPLIT, "rows=5"), reference=fail)
    (failure,) = row.failures
    assert row.rounds == {} and "The reference failed: ValueError: not today" in failure.reason


def test_a_copy_moves_what_one_thread_has_to() -> None:
    copy: Any = operator_run._copy(4096, threads=2)
    target, source = copy.args
    assert target.nbytes == source.nbytes == 1024
    copy()
    assert target.all()


def test_what_no_cache_holds_is_copied_by_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = [SimpleNamespace(capacity=4096), SimpleNamespace(capacity=None)]
    monkeypatch.setattr(operator_run, "detect", lambda: SimpleNamespace(levels=levels))
    pairs = operator_run._copied(8192, threads=2)
    assert [target.nbytes for target, _ in pairs] == [2048, 2048]
    monkeypatch.setattr(operator_run, "_copied", lambda size, threads: pairs)
    operator_run._copy(8192, threads=2)()
    assert all(target.all() for target, _ in pairs)


def test_a_group_that_does_not_compile_keeps_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise UnsupportedError("not that")

    monkeypatch.setattr(operator_run, "compile_stages", fail)
    rows = run({"numpy": numpy_peer()}, "M=3,N=4,K=5;M=4,N=4,K=5")
    assert [row.failures[0].contender for row in rows] == [SUBJECT, SUBJECT]
    assert rows[0].rounds == {} and "Not that" in rows[0].failures[0].reason


def test_large_results_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_run, "_CHUNK", 8)
    one = np.arange(60, dtype=np.float32).reshape(15, 4)
    other = one.copy()
    other[13, 2] += 5.9
    assert operator_run._difference(one, one) == 0
    assert operator_run._difference(one, other) == pytest.approx(0.1)
    assert operator_run._difference(one, other[:3]) == float("inf")
    flags = np.arange(60).reshape(15, 4) > 7
    assert operator_run._difference(flags, flags) == 0
    assert operator_run._difference(flags, ~flags) == 1
    other[1, 1] = np.nan
    assert operator_run._difference(one, other) == float("inf")
