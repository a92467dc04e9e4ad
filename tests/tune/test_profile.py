from __future__ import annotations

import numpy as np
import pytest

from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.backend.cpu.machine import AVX512, BASELINE, host_level
from tilewright.backend.cpu.register_tile import TileShape
from tilewright.ir.dtype import DType
from tilewright.target import detect
from tilewright.tune import InterruptedTuning, measure_profile, standard_shapes
from tilewright.tune.profile import _Sampled
from tilewright.tune.wrappers import Words, build

LEVEL = host_level()
LANES = LEVEL.lanes(4)


def shape(height: int, vectors: int, *, masked: bool = False, gathered: bool = False) -> TileShape:
    return TileShape(DType.FLOAT32, height, vectors, 1, vectors * LANES, masked, gathered)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("gathered", [False, True])
def test_a_wrapper_calls_the_tile(masked: bool, gathered: bool) -> None:
    wanted = shape(2, 1, masked=masked, gathered=gathered)
    generator = np.random.default_rng(1)
    left = generator.standard_normal((2, 5)).astype(np.float32)
    right = generator.standard_normal((3, 5, LANES)).astype(np.float32)
    tile = np.zeros((2, LANES), np.float32)
    table = np.array([0, 5 * 4], np.int64)
    columns = LANES - 1 if masked else LANES
    words = Words(
        5, left.ctypes.data, 5, 1, right.ctypes.data, LANES, columns, 1, table.ctypes.data, 2,
        tile.ctypes.data, LANES, 3, 5 * LANES,
    ).array()  # fmt: skip
    wrappers = build(LEVEL, [wanted])
    function = wrappers.tiles[wanted.name]
    function(0, words.ctypes.data)
    assert not tile.any()
    for rounds, panel in ((1, 0), (2, 1), (3, 2), (4, 0)):
        function(rounds, words.ctypes.data)
        expected = left.astype(np.float64) @ right[panel][:, :columns]
        atol = 5 * 2**-22 * np.abs(expected).max()
        np.testing.assert_allclose(tile[:, :columns], expected, atol=atol)


def test_standard_shapes() -> None:
    shapes = standard_shapes(AVX512)
    assert len(set(shapes)) == len(shapes)
    widths = {size.columns // 16 for size in register_tile(AVX512).sizes()}
    assert {s.vectors for s in shapes} == set(range(1, max(widths) + 1)) >= widths
    assert {s.masked for s in shapes} == {False, True}
    for s in shapes:
        assert s.height * s.vectors + s.vectors + 1 <= AVX512.registers
        assert s.right_depth == s.vectors * 16
    assert all(s.right_depth == s.vectors * 4 for s in standard_shapes(BASELINE))


def test_times_make_sense() -> None:
    shapes = [shape(1, 1), shape(3, 2), shape(3, 2, masked=True), shape(3, 2, gathered=True)]
    profile = measure_profile(LEVEL, [*shapes, shapes[0]], detect(), seconds=0.2)
    assert [tile.name for tile in profile.tiles] == [s.name for s in shapes]
    assert 0.2 < profile.clock_ghz < 10
    small, large = (profile.timing(s.name) for s in shapes[:2])
    assert small is not None and large is not None
    # Six times the products; a processor that did less in a step would take as long for both.
    assert small.step_ns < large.step_ns
    assert profile.timing("another") is None
    for tile in profile.tiles:
        assert 0 < tile.step_ns <= tile.streamed_step_ns
        assert tile.call_ns >= 0
        assert 0 <= tile.spread < 10
        # No processor does more than four 64-byte multiply-adds in a cycle.
        assert tile.flops < 4 * 2 * 16 * 10e9


def test_nothing_to_measure() -> None:
    profile = measure_profile(LEVEL, [], detect())
    assert profile.tiles == () and 0.2 < profile.clock_ghz < 10


@pytest.mark.parametrize(("passes", "is_kept"), [(1, False), (4, True)])
def test_an_interrupt_after_a_few_passes_keeps_the_times(
    monkeypatch: pytest.MonkeyPatch, passes: int, is_kept: bool
) -> None:
    shapes = standard_shapes(LEVEL)[:1]
    whole = _Sampled.sample
    counted = 0

    def interrupted(self: _Sampled, overhead: float) -> float:
        nonlocal counted
        # Four samples take part; each is calibrated by three calls before the first pass.
        counted += 1
        if counted > 4 * 3 + 4 * passes:
            raise KeyboardInterrupt
        return whole(self, overhead)

    monkeypatch.setattr(_Sampled, "sample", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        measure_profile(LEVEL, shapes, detect(), seconds=0.1)
    assert isinstance(caught.value, InterruptedTuning) is is_kept
    if isinstance(caught.value, InterruptedTuning):
        assert [tile.name for tile in caught.value.profile.tiles] == [shapes[0].name]
