"""Modelled times beside measured ones: statistics that add up, resources that shorten a price."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tilewright.bench.model_error import Priced, Unpriced, measure_errors, without_each
from tilewright.bench.model_error_report import errors_by_family, farthest, summarise_errors
from tilewright.bench.regret_cases import Setting, draw_cases
from tilewright.cost import Machine
from tilewright.target import preset

ONE, *_ = draw_cases(Setting(samples=1, seed=1))


def priced(predicted: float, measured: float, family: str = "a") -> Priced:
    return Priced(replace(ONE, suite=family), "v", predicted, measured, dict)


def test_errors_are_those_of_the_ratios() -> None:
    found = summarise_errors([priced(1.0, 2.0), priced(2.0, 4.0), priced(8.0, 8.0)])
    assert found.count == 3
    assert found.bias == pytest.approx(0.25 ** (1 / 3))
    assert found.median == pytest.approx(0.5)
    assert found.spread == pytest.approx(abs(0.5 / found.bias - 1))
    assert found.rank == pytest.approx(1.0)


def test_the_rank_correlation_is_that_of_the_orders() -> None:
    samples = [priced(p, m) for p, m in [(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]]
    assert summarise_errors(samples).rank == pytest.approx(-1.0)
    assert math.isnan(summarise_errors(samples[:2]).rank)


def test_families_are_apart_and_the_farthest_come_first() -> None:
    samples = [priced(1.0, 1.0), priced(1.0, 4.0, "b"), priced(1.1, 1.0)]
    assert {name: own.count for name, own in errors_by_family(samples).items()} == {"a": 2, "b": 1}
    assert farthest(samples, 1) == [samples[1]]


def test_every_part_of_the_price_list_is_left_out_once() -> None:
    machine = Machine(preset("zen4"))
    found = without_each(machine)
    assert {"steps of register tiles", "meetings", "L1", "memory", "core: panels"} <= set(found)
    assert found["core: panels"].core.panels.copied < machine.core.panels.copied / 60
    assert found["core: panels"].core.tile == machine.core.tile
    assert found["core: tile"].core.tile.pages == machine.core.tile.pages


def test_products_have_a_price_and_resources_that_shorten_it() -> None:
    setting = Setting("gemm", samples=2, sizes=(200, 300), seconds=0.05, seed=3)
    found = list(measure_errors(setting, lambda number, what: None))
    assert len(found) == 2
    for sample in found:
        assert isinstance(sample, Priced)
        assert 0.05 < sample.ratio < 20
        shares = sample.shares()
        assert max(shares, key=shares.__getitem__) == "steps of register tiles"
        assert all(0 <= share <= 1 for share in shares.values())


def test_a_kernel_of_one_variant_has_no_price() -> None:
    setting = Setting("memory", samples=1, families=("casting",), seconds=0.05, seed=1)
    (found,) = measure_errors(setting, lambda number, what: None)
    assert isinstance(found, Unpriced)
