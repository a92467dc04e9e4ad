"""Constants of equal contents are one constant, however large and however they lie in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilewright.ir.graph import node
from tilewright.ir.mapped import is_mapped, map_file, release
from tilewright.ir.primitives import Constant

SHAPES = [(3,), (200, 300), (60000,), (7, 100, 100), (1, 70000), (70000, 1)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.float16, np.complex128])
def test_equal_contents_are_one_node(shape: tuple[int, ...], dtype: type) -> None:
    array = np.random.default_rng(1).integers(-100, 100, shape).astype(dtype)
    first = node(Constant.of(array))
    assert node(Constant.of(array.copy())) is first
    other = array.copy()
    # Somewhere that no sample is taken from.
    other.reshape(-1)[array.size // 3 + 1] += np.asarray(1).astype(dtype)
    assert node(Constant.of(other)) is not first
    assert node(Constant.of(array.reshape(-1, 1, *shape[1:]))) is not first


def test_not_a_number_is_equal_to_itself_bit_by_bit() -> None:
    array = np.full((200, 200), np.nan, np.float32)
    assert node(Constant.of(array)) is node(Constant.of(array.copy()))
    zeros = np.zeros((200, 200), np.float32)
    assert node(Constant.of(zeros)) is not node(Constant.of(-zeros))


def test_large_transposed_constants_are_not_copied_and_equal_those_that_are() -> None:
    array = np.random.default_rng(1).standard_normal((200, 300)).astype(np.float32)
    made = Constant.of(array.T)
    assert np.shares_memory(made.array, array)
    assert made == Constant.of(np.ascontiguousarray(array.T)) != Constant.of(array)
    spread = np.broadcast_to(array[:1], array.shape)
    assert Constant.of(spread).array.flags.c_contiguous  # it would be read as what it is not


def test_mapped_files_are_read_again_after_their_memory_was_given_back(tmp_path: Path) -> None:
    path = tmp_path / "w.bin"
    data = np.arange(100_000, dtype=np.float32)
    path.write_bytes(b"\0\0\0\0" + data.tobytes())
    mapped = map_file(path)[4:].view(np.float32).reshape(100, 1000)
    assert is_mapped(mapped) and is_mapped(mapped.T[5:, ::3]) and not is_mapped(data)
    for view in (mapped, mapped.T, mapped[3:5], mapped[::-2, ::-1], mapped[:0]):
        release(view)
        np.testing.assert_array_equal(mapped.reshape(-1), data)
    (tmp_path / "none").write_bytes(b"")
    assert map_file(tmp_path / "none").size == 0


def test_what_was_written_to_a_private_mapping_is_not_given_back(tmp_path: Path) -> None:
    path = tmp_path / "w.bin"
    path.write_bytes(np.zeros(100_000, np.float32).tobytes())
    mapped = np.memmap(path, np.float32, mode="c")
    mapped[:] = 7.0
    release(mapped)
    assert (mapped == 7.0).all()
