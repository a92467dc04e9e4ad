"""The garbage collector comes back as it was, whoever leaves last and however."""

from __future__ import annotations

import gc

import pytest

from tilewright.support.collector import paused_collector


def test_collections_come_back_with_the_last_to_leave() -> None:
    assert gc.isenabled()
    with paused_collector():
        with paused_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_collections_come_back_after_an_error() -> None:
    with pytest.raises(ValueError, match="wrong"), paused_collector():
        raise ValueError("wrong")
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with paused_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
