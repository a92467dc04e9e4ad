"""Simulated workers: what they lose adds up, and their rules are those of the runtime's team."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.cost import CallRun, Loss, SharedStep, Tasks, simulated
from tilewright.target.core_model import MOST_PIECES, PIECE_NS, THREAD_NS

TEAM = Path(__file__).parents[2] / "src" / "native" / "team.hpp"
MICROSECOND = 1e6  # picoseconds


def step(tasks: int, microseconds: float, memory: float = 0.0) -> SharedStep:
    """Equal tasks that take so many microseconds in sum on one thread."""
    work = round(1000 * microseconds)
    return SharedStep(
        "step", Tasks((tasks,), (1.0,)), microseconds * MICROSECOND, memory * MICROSECOND, work
    )


def run(made: SharedStep, threads: int) -> CallRun:
    return simulated([made], threads)


@pytest.mark.skipif(not TEAM.exists(), reason="the sources of the extension are not here")
def test_rules_are_those_of_the_team() -> None:
    text = TEAM.read_text(encoding="utf-8")
    found = dict(re.findall(r"constexpr std::int64_t (\w+) = (\d+);", text))
    assert int(found["kWorkPerThread"]) == THREAD_NS
    assert int(found["kWorkPerPiece"]) == PIECE_NS
    assert int(found["kMaximumPieces"]) == MOST_PIECES


steps = st.builds(
    SharedStep,
    st.just("step"),
    st.lists(st.tuples(st.integers(1, 9), st.floats(0.05, 1.0)), min_size=1, max_size=3).map(
        lambda axes: Tasks(tuple(s for s, _ in axes), tuple(e for _, e in axes))
    ),
    st.floats(1e3, 1e9),
    st.floats(0, 1e8),
    st.integers(0, 1_000_000),
)


@given(st.lists(steps, min_size=1, max_size=4), st.integers(1, 70))
def test_what_is_lost_and_what_is_used_is_all_time(made: list[SharedStep], threads: int) -> None:
    call = simulated(made, threads)
    assert call.utilisation + sum(call.lost.values()) == pytest.approx(1.0)
    assert all(lost >= -1e-9 for lost in call.lost.values())
    assert all(own.workers <= min(threads, own.step.tasks.count) for own in call.steps)
    assert call == simulated(made, threads)


@given(st.lists(st.tuples(st.integers(1, 6), st.floats(0.05, 1.0)), min_size=1, max_size=3))
def test_work_before_a_task_is_the_sum_of_those_before(axes: list[tuple[int, float]]) -> None:
    tasks = Tasks(tuple(s for s, _ in axes), tuple(e for _, e in axes))
    own = [1.0]
    for size, end in axes:
        own = [o * share for o in own for share in [1.0] * (size - 1) + [end]]
    for task in range(tasks.count + 1):
        assert tasks.before(task) == pytest.approx(sum(own[:task]) / sum(own))


def test_one_thread_loses_nothing() -> None:
    assert run(step(100, 50.0), 1).time == 50.0 * MICROSECOND
    assert run(step(100, 50.0), 1).utilisation == 1.0


@pytest.mark.parametrize(
    ("made", "threads", "workers", "loss"),
    [
        (step(1000, 5.0), 8, 1, Loss.LITTLE_WORK),
        (step(3, 1000.0), 8, 3, Loss.FEW_TASKS),
        (step(9, 1000.0), 8, 8, Loss.UNEVEN),
        (step(8000, 1000.0, memory=500.0), 8, 8, Loss.MEMORY),
        (step(8000, 24.0), 8, 8, Loss.MEETING),
    ],
)
def test_most_is_lost_to(made: SharedStep, threads: int, workers: int, loss: Loss) -> None:
    call = run(made, threads)
    assert call.steps[0].workers == workers
    assert max(call.lost, key=lambda of: call.lost[of]) is loss


def test_memory_is_never_faster_than_all_of_it() -> None:
    for threads in (1, 2, 8, 64):
        assert run(step(8000, 1000.0, memory=500.0), threads).time >= 500.0 * MICROSECOND


def test_others_take_over_what_is_left() -> None:
    """The last rows of a grid are short, so that those who have them help the others."""
    uneven = SharedStep("step", Tasks((2, 64), (0.01, 1.0)), 1000 * MICROSECOND, 0, 1_000_000)
    assert run(uneven, 2).utilisation > 0.9
