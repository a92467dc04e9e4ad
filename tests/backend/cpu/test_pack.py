"""Constants as kernels read them: panels of constant weights, made once and from where they lie."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.backend.cpu import pack
from tilewright.backend.cpu.pack import ConstantStore
from tilewright.ir.graph import node
from tilewright.ir.mapped import is_mapped, map_file
from tilewright.ir.primitives import Constant, Transpose
from tilewright.runtime.artifact_writer import ArtifactDraft
from tilewright.tile.variants import PackedConstant


def straight(array: np.ndarray, packed: PackedConstant) -> np.ndarray:
    """The definition: one element after the other."""
    array = array.transpose(packed.order)
    lead = packed.lead
    if lead < 0:
        array = array.reshape(-lead, array.shape[0] // -lead, *array.shape[1:])
        lead = 1
    end = array.ndim - packed.depth
    batch, rows, depth = (math.prod(array.shape[s]) for s in np.s_[:lead, lead:end, end:])
    flat = array.reshape(batch, rows, depth)
    panels = -(-rows // packed.panel)
    made = np.zeros((batch, panels, depth // packed.word, packed.panel, packed.word), array.dtype)
    for b, r, d in np.ndindex(flat.shape):
        place = (b, r // packed.panel, d // packed.word, r % packed.panel, d % packed.word)
        made[place] = flat[b, r, d]
    return made


CASES = [
    ((5, 7), (1, 0), 0, 1, 4, 1),  # [k, n]
    ((9, 6), (0, 1), 0, 1, 4, 2),  # [n, k] in words of two
    ((8, 12), (1, 0), 0, 1, 4, 4),
    ((3, 5, 6), (0, 2, 1), 1, 1, 8, 1),  # a batch
    ((6, 2, 3, 3), (0, 2, 3, 1), -2, 3, 4, 1),  # a convolution in two groups
    ((2, 3, 4, 5), (1, 3, 0, 2), 1, 2, 4, 1),  # axes that are no view of two
    ((0, 4), (1, 0), 0, 1, 4, 1),
    ((4, 0), (1, 0), 0, 1, 4, 1),
]


@pytest.mark.parametrize(("shape", "order", "lead", "depth", "panel", "word"), CASES)
@pytest.mark.parametrize("parts", [1 << 30, 64])
def test_panels_hold_what_their_definition_says(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], order: tuple[int, ...], lead: int,
    depth: int, panel: int, word: int, parts: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(pack, "_JOB", parts)
    monkeypatch.setattr(pack, "LARGE", parts // 64)
    array = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    packed = PackedConstant(node(Constant.of(array)), order, lead, depth, panel, word)
    want = straight(array, packed)
    store = ConstantStore()
    assert store.add(packed) == want.nbytes
    (made,) = store.arrays([packed])
    np.testing.assert_array_equal(made, want)
    assert not made.size or made.ctypes.data % 64 == 0


@pytest.mark.parametrize(("shape", "order", "lead", "depth", "panel", "word"), CASES)
def test_a_draft_holds_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...],
    order: tuple[int, ...], lead: int, depth: int, panel: int, word: int,
) -> None:  # fmt: skip
    """In parts that begin and end anywhere in a panel."""
    monkeypatch.setattr(pack, "_JOB", 48)
    monkeypatch.setattr(pack, "LARGE", 1)
    array = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    source = node(Constant.of(array))
    packed = PackedConstant(source, order, lead, depth, panel, word)
    with ArtifactDraft(tmp_path / "model.tw") as draft, ConstantStore(draft) as store:
        assert store.add(packed) == straight(array, packed).nbytes
        assert store.add(source) == array.nbytes
        made, plain = store.arrays([packed, source])
        assert not made.size or is_mapped(made)
    np.testing.assert_array_equal(made, straight(array, packed))
    np.testing.assert_array_equal(plain, array)


@given(st.data())
def test_any_part_of_any_view_is_copied(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=5)))
    axes = data.draw(st.permutations(range(len(shape))))
    array = np.arange(np.prod(shape)).reshape(shape).transpose(axes)
    begin = data.draw(st.integers(0, array.size))
    out = np.full(data.draw(st.integers(0, array.size - begin)), -1)
    pack._copy(array, begin, out)
    np.testing.assert_array_equal(out, array.reshape(-1)[begin : begin + out.size])


def test_a_constant_is_made_once() -> None:
    array = np.random.default_rng(2).standard_normal((64, 48)).astype(np.float32)
    source = node(Constant.of(array))
    packed = PackedConstant(source, (1, 0), 0, 1, 16)
    store = ConstantStore()
    store.add(packed), store.add(source), store.add(packed)
    first, plain = store.arrays([packed, source])
    assert store.arrays([packed, source])[0] is first
    np.testing.assert_array_equal(plain, array)


class Doubled:
    """Twice as many rows, each of which is there twice as much."""

    def sizes(self, given: tuple[int, ...]) -> tuple[int, ...]:
        return 2 * given[0], *given[1:]

    def applied(self, array: np.ndarray) -> np.ndarray:
        return 2 * np.repeat(array, 2, axis=0)


def test_what_becomes_of_a_constant_is_packed() -> None:
    array = np.random.default_rng(2).standard_normal((9, 6)).astype(np.float32)
    packed = PackedConstant(node(Constant.of(array)), (0, 1), 0, 1, 4, 2, Doubled())
    assert [size.value for size in packed.type.shape] == [18, 6]
    store = ConstantStore()
    store.add(packed)
    (made,) = store.arrays([packed])
    np.testing.assert_array_equal(made, straight(2 * np.repeat(array, 2, axis=0), packed))


def test_constants_share_memory_and_no_byte_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "_FIRST_ROOM", 1 << 10)
    monkeypatch.setattr(pack, "_MOST_ROOM", 1 << 14)
    store, sizes = ConstantStore(), [0, 1, 7, 16, 100, 3, 5000, 40, 0, 33, 200, 900, 8]
    arrays = [np.full(size, number, np.float32)[::-1] for number, size in enumerate(sizes)]
    sources = [PackedConstant(node(Constant.of(a)), (0,), 0, 0, 1) for a in arrays]
    for source in sources:
        store.add(source)
    made = store.arrays(sources)
    for array, source in zip(arrays, made, strict=True):
        np.testing.assert_array_equal(source.reshape(-1), array)
    places = [array.__array_interface__["data"][0] for array in made]
    assert [p % 64 for p, size in zip(places, sizes, strict=True) if size] == [0] * 11
    assert places[2] - places[1] == 64, "the second begins in the next cache line"


def test_weights_in_a_file_are_copied_from_it(tmp_path: Path) -> None:
    """So that a model does not change with a file that it was compiled from."""
    array = np.random.default_rng(2).standard_normal((300, 200)).astype(np.float32)
    path = tmp_path / "w.bin"
    path.write_bytes(array.tobytes())
    source = node(Constant.of(map_file(path).view(np.float32).reshape(array.shape)))
    turned = node(Transpose((1, 0)), source)
    store = ConstantStore()
    sources = [source, PackedConstant(turned, (0, 1), 0, 1, 16)]
    for each in sources:
        store.add(each)
    plain, packed = store.arrays(sources)
    with path.open("r+b") as file:
        file.write(b"\0" * array.nbytes)
    np.testing.assert_array_equal(plain, array)
    np.testing.assert_array_equal(
        packed, straight(array.T, PackedConstant(turned, (0, 1), 0, 1, 16))
    )
