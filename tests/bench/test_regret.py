"""Statistics of regret: reports that add up, several kernels of a program, dips of a sweep."""

from __future__ import annotations

import numpy as np
import pytest

from support.oldest_level import of_a_module
from tilewright.bench.clock import ProcessClock
from tilewright.bench.regret import KernelTimes, Sample, draw, measure_regret
from tilewright.bench.regret_cases import Setting, draw_cases
from tilewright.bench.regret_report import ablations, by_family, summarise, wins_of, worst_of
from tilewright.bench.suites import AnyCase
from tilewright.bench.sweep import dips_of, parse_sweep
from tilewright.bench.tables import Form, TableCase, TableGroup
from tilewright.support.errors import TilewrightError

__all__ = ["of_a_module"]

ONE, OTHER = draw_cases(Setting(samples=2, seed=1))


def sample(seconds: tuple[float, ...], chosen: int, case: AnyCase = ONE) -> Sample:
    kernel = KernelTimes(("a", "b"), seconds, chosen, unmeasured=0)
    return Sample(case, (kernel,), seconds[chosen], min(seconds))


def test_regret_is_the_time_lost_against_the_best_variant() -> None:
    samples = [sample((1.0, 2.0), 0), sample((3.0, 2.0), 0), sample((1.0, 1.1), 1)]
    found = summarise(samples)
    assert found.count == 3
    assert found.mean == pytest.approx((0.0 + 0.5 + 0.1) / 3)
    assert found.median == pytest.approx(0.1)
    assert found.worst == pytest.approx(0.5)
    assert found.at is samples[1]
    assert worst_of(samples, 5) == [samples[1], samples[2]]


def test_families_add_up_to_all() -> None:
    cases = draw_cases(Setting(samples=30, seed=4))
    drawn = np.random.default_rng(0).uniform(1.0, 2.0, (len(cases), 2))
    samples = [sample((a, b), 0, case) for (a, b), case in zip(drawn, cases, strict=True)]
    families, whole = by_family(samples), summarise(samples)
    assert set(families) == {"X·Y", "X·Yᵀ"}
    assert sum(f.count for f in families.values()) == whole.count == 30
    total = sum(f.count * f.mean for f in families.values())
    assert total == pytest.approx(whole.count * whole.mean)
    assert max(f.worst for f in families.values()) == whole.worst
    best, chosen = zip(*wins_of(samples).values(), strict=True)
    assert sum(best) == sum(chosen) == 30


def test_kernels_of_a_program_are_summed() -> None:
    first = KernelTimes(("a", "b"), (10.0, 8.0), chosen=0, unmeasured=1)
    second = KernelTimes(("c", "d", "e"), (13.0, 10.0, 15.0), chosen=1, unmeasured=0)
    found = Sample(ONE, (first, second), 10.0, 8.0)
    assert (found.chosen, found.best, found.unmeasured) == ((0, 1), (1, 1), (1, 0))
    assert found.regret == pytest.approx(0.25)
    assert found.regret_of(found.unmeasured) == pytest.approx((10.0 - 2.0 + 3.0) / 8.0 - 1)
    assert found.names_of(found.best) == "b, d"


def test_what_is_chosen_stays_best_among_equals() -> None:
    assert KernelTimes(("a", "b"), (1.0, 1.0), chosen=1, unmeasured=0).best == 1


def test_ablations_are_shares_of_the_oracle() -> None:
    rows = ablations([sample((1.0, 2.0), 1), sample((1.0, 2.0), 0)])
    assert rows["oracle"] == 1.0
    assert rows["dynamic"] == pytest.approx(0.75)
    assert rows["no level measured"] == 1.0


class CountingClock(ProcessClock):
    """A clock on which every look takes the same, so that all calls seem equally long."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        self.time += 1e-3
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def test_all_kernels_of_a_program_are_timed() -> None:
    """Two reductions that stand apart, each with variants: what departs is one at a time."""
    text = "s = ReduceSum <keepdims=0> (x, axes) t = ReduceMax <keepdims=0> (z, axes)"
    form = Form("float[rows,7] x, float[rows,9] z", "int64[1] axes = {-1}", text)
    case = TableCase("reductions", "two", "memory", {"rows": 5}, form, 0, 5 * 18 * 4)
    group = TableGroup(form, {"rows": (1, 100000)}, (case,))
    setting = Setting("memory", samples=1, seconds=0.01)
    (found,) = measure_regret((group,), setting, lambda done, what: None, CountingClock())
    assert len(found.kernels) == 2
    for kernel in found.kernels:
        assert len(kernel.names) == len(kernel.seconds) > 1
    assert found.regret == pytest.approx(0.0)


@pytest.mark.slow
def test_programs_of_a_table_without_a_choice_are_counted() -> None:
    setting = Setting("memory", samples=3, families=("gathering", "softmax"), most_bytes=1 << 16)
    drawn = draw(setting, lambda done, what: None)
    assert {case.suite for case in drawn.alone} == {"gathering"}
    assert len(drawn.alone) == 9
    cases = [case for group in drawn.groups for case in group.cases]
    assert {case.suite for case in cases} == {"softmax"}
    assert len(cases) == 3


def test_a_dip_is_measured_from_the_line_through_the_neighbours() -> None:
    assert dips_of([10.0, 9.0, 10.0, 12.0]) == pytest.approx((0.0, 0.1, 1 - 10 / 10.5, 0.0))
    assert dips_of([1.0]) == (0.0,)


def test_sweeps_are_parsed() -> None:
    axis, sizes, fixed = parse_sweep("M=1..9:4,N=30,K=7")
    assert (axis, list(sizes), fixed) == ("M", [1, 5, 9], {"N": 30, "K": 7})
    with pytest.raises(TilewrightError):
        parse_sweep("M=4,N=30,K=7")
