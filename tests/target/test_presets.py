from __future__ import annotations

import pytest

from tilewright.support.errors import InputError
from tilewright.target import preset, preset_names
from tilewright.target.description import check

NAMES = preset_names()
CPUS = [name for name in NAMES if preset(name).kind == "cpu"]
GPUS = [name for name in NAMES if preset(name).kind == "gpu"]


def test_all_asked_for_are_there() -> None:
    assert {"zen3", "zen4", "zen5", "skylake-x", "icelake-server", "sapphire-rapids"} <= set(CPUS)
    assert {"haswell", "x86-64", "neoverse-n1", "neoverse-v1"} <= set(CPUS)
    assert {"v100", "t4", "a100", "h100", "rtx3090", "k80"} == set(GPUS)


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_makes_sense(name: str) -> None:
    target = check(preset(name), name)
    assert hash(target) == hash(preset(name))
    caches = target.levels[1:-1]
    latencies = [level.latency for level in target.levels]
    assert latencies == sorted(latencies)
    bandwidths = [level.bandwidth for level in target.levels]
    assert bandwidths == sorted(bandwidths, reverse=True)
    assert all(level.capacity for level in caches)
    for level in target.levels:
        assert level.total_bandwidth >= level.bandwidth
        assert level.bandwidth_of(1) == level.bandwidth
        assert level.bandwidth_of(target.units) >= level.bandwidth
        assert level.instances * level.sharing >= target.units * 0.9


@pytest.mark.parametrize("name", CPUS)
def test_rates_follow_from_the_pipes(name: str) -> None:
    target = preset(name)
    lanes = target.lanes("float32")
    assert target.multiply_adds_per_cycle("float32") == target.fma_pipes * lanes
    assert target.multiply_adds_per_cycle("float64") == target.fma_pipes * lanes / 2
    assert target.level("registers").capacity == target.vector_bytes * target.vector_registers
    vectors = target.level("L1").bandwidth / target.vector_bytes
    assert vectors == target.loads_per_cycle


# TFLOP/s and GB/s as the makers' data sheets state them.
@pytest.mark.parametrize(
    ("name", "dtype", "teraflops"),
    [
        ("k80", "float32", 4.37),
        ("v100", "float32", 15.7),
        ("v100", "float16", 125.0),
        ("t4", "float32", 8.1),
        ("t4", "float16", 65.0),
        ("t4", "int8", 130.0),
        ("a100", "float32", 19.5),
        ("a100", "float64", 19.5),
        ("a100", "tfloat32", 156.0),
        ("a100", "bfloat16", 312.0),
        ("a100", "int8", 624.0),
        ("rtx3090", "float32", 35.6),
        ("rtx3090", "float16", 71.0),
        ("rtx3090", "int8", 284.0),
        ("h100", "float16", 989.4),
        ("h100", "tfloat32", 494.7),
        ("h100", "int8", 1978.9),
    ],
)
def test_published_peaks(name: str, dtype: str, teraflops: float) -> None:
    assert preset(name).peak_flops(dtype) / 1e12 == pytest.approx(teraflops, rel=0.01)


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [("k80", 240), ("v100", 900), ("t4", 320), ("a100", 1555), ("h100", 3352), ("zen3", 205)],
)
def test_published_bandwidths(name: str, gigabytes: float) -> None:
    target = preset(name)
    found = target.bytes_per_second("memory", target.units)
    assert found / 1e9 == pytest.approx(gigabytes, rel=0.01)


def test_the_plain_instruction_comes_first() -> None:
    assert [tile.name for tile in preset("a100").instructions("float16")] == ["fma", "mma"]
    (vector,) = preset("zen3").instructions("float32")
    assert (vector.m, vector.n, vector.k, vector.per_cycle) == (1, 8, 1, 16.0)
    assert preset("zen3").instructions("float16") == ()


def test_unknown_names() -> None:
    with pytest.raises(InputError, match="Did you mean zen4"):
        preset("zen44")
    with pytest.raises(InputError, match=r"no level 'L9'.*\n.*registers, L1, L2, L3, memory"):
        preset("zen4").level("L9")
    with pytest.raises(InputError, match="'string'"):
        preset("zen4").lanes("string")


def test_bandwidth_of_instances() -> None:
    level = preset("zen3").level("L3")
    assert level.bandwidth_of(8) == 8 * level.bandwidth
    memory = preset("zen3").level("memory")
    assert memory.bandwidth_of(64) == memory.total_bandwidth < 64 * memory.bandwidth
