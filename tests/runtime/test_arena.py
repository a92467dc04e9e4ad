"""Placing buffers: never two live ones on one place, and never more memory than without sharing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.runtime import _native
from tilewright.support.errors import ResourceError

SIZES = st.one_of(st.just(0), st.integers(1, 300), st.integers(1, 1 << 40))
LIFE = st.tuples(st.integers(0, 30), st.integers(0, 12)).map(lambda pair: (pair[0], sum(pair)))
ITEMS = st.lists(st.tuples(SIZES, LIFE), max_size=40)


def rounded(size: int) -> int:
    return -(-size // 64) * 64


@given(ITEMS)
def test_live_buffers_never_overlap(items: list[tuple[int, tuple[int, int]]]) -> None:
    sizes = [size for size, _ in items]
    lives = [life for _, life in items]
    offsets, total = _native.place(sizes, lives)
    assert all(offset >= 0 and offset % 64 == 0 for offset in offsets)
    assert all(o + s <= total for o, s in zip(offsets, sizes, strict=True))
    for a in range(len(items)):
        for b in range(a):
            together = lives[a][0] <= lives[b][1] and lives[b][0] <= lives[a][1]
            if together and sizes[a] and sizes[b]:
                first, second = sorted([(offsets[a], sizes[a]), (offsets[b], sizes[b])])
                assert first[0] + first[1] <= second[0]


@given(ITEMS)
def test_memory_lies_between_the_largest_moment_and_the_sum(
    items: list[tuple[int, tuple[int, int]]],
) -> None:
    _, total = _native.place([size for size, _ in items], [life for _, life in items])
    moments = [
        sum(rounded(size) for size, (first, last) in items if first <= step <= last)
        for step in range(45)
    ]
    assert max(moments) <= total <= sum(rounded(size) for size, _ in items)


def test_gaps_are_used() -> None:
    # A chain: each step reads one buffer and writes the next; two places are enough.
    offsets, total = _native.place([640] * 6, [(n, n + 1) for n in range(6)])
    assert total == 1280 and set(offsets) == {0, 640}


def test_overflow_is_an_error() -> None:
    with pytest.raises(ResourceError):
        _native.place([(1 << 63) - 1], [(0, 0)])
    with pytest.raises(ResourceError):
        _native.place([1 << 62, 1 << 62], [(0, 0), (0, 0)])
