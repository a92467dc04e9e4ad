"""A small transformer on ragged batches: every form of input, every mistake, files and threads.

Needs the CPU; what is said of torch needs torch.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tilewright as tw
from support import text_models
from tilewright.backend.cpu.machine import host_levels
from tilewright.runtime.program import RAGGED
from tilewright.runtime.program_json import program_from_json, program_to_json
from tilewright.runtime.ragged import RaggedStep

Array = np.ndarray[Any, Any]
HEADS, WIDTH, MOST = 2, 16, 40
LENGTHS = ([5, 1, 17], [0, 3], [], [MOST], [2] * 9)


def weights(name: str, *shape: int) -> str:
    values = np.random.default_rng(len(name) + sum(shape)).standard_normal(shape) * 0.3
    listed = ", ".join(f"{value:.4f}" for value in values.reshape(-1))
    return f"float[{','.join(map(str, shape))}] {name} = {{{listed}}}"


def transformer() -> onnx.ModelProto:
    """Masked attention with positions, a normalisation, a mean over positions, class scores."""
    constants = [
        weights("table", MOST, WIDTH), weights("wq", WIDTH, WIDTH), weights("wk", WIDTH, WIDTH),
        weights("wv", WIDTH, WIDTH), weights("classes", WIDTH, 3), weights("gain", WIDTH),
        f"int64[4] parts = {{0, 0, {HEADS}, {WIDTH // HEADS}}}",
        f"int64[3] joined = {{0, 0, {WIDTH}}}", "int64[1] zero = {0}", "int64[1] first = {1}",
        "int64[2] inner = {1, 2}", "float least = {-1e9}", "float full = {1.0}",
    ]  # fmt: skip
    inputs = (
        f"float[batch, length, {WIDTH}] x, int64[batch, length] mask, float[batch, {WIDTH}] bias"
    )
    return text_models.model(
        f"""ragged ({inputs}) => (float[batch, length, {WIDTH}] states, float[batch, 3] scores)
        <{", ".join(constants)}> {{
            size = Shape <start = 1, end = 2> (x)
            places = Slice (table, zero, size, zero)
            placed = Add (x, places)
            q0 = MatMul (placed, wq)
            k0 = MatMul (placed, wk)
            v0 = MatMul (placed, wv)
            q1 = Reshape (q0, parts)
            k1 = Reshape (k0, parts)
            v1 = Reshape (v0, parts)
            q = Transpose <perm = [0, 2, 1, 3]> (q1)
            k = Transpose <perm = [0, 2, 3, 1]> (k1)
            v = Transpose <perm = [0, 2, 1, 3]> (v1)
            products = MatMul (q, k)
            visible = Cast <to = 1> (mask)
            rows = Unsqueeze (visible, inner)
            hidden = Sub (full, rows)
            low = Mul (hidden, least)
            masked = Add (products, low)
            shares = Softmax <axis = -1> (masked)
            context = MatMul (shares, v)
            back = Transpose <perm = [0, 2, 1, 3]> (context)
            together = Reshape (back, joined)
            summed = Add (together, placed)
            states = LayerNormalization <axis = -1> (summed, gain)
            mean = ReduceMean <keepdims = 0> (states, first)
            biased = Add (mean, bias)
            scores = MatMul (biased, classes)
        }}"""
    )


RANGE = {"batch": (0, 16), "length": tw.Dim(0, MOST, ragged="batch")}


def batch(lengths: list[int]) -> tuple[list[Array], list[Array], Array]:
    chance = np.random.default_rng(sum(lengths) + len(lengths))
    x = [chance.standard_normal((n, WIDTH)).astype(np.float32) for n in lengths]
    masks = [np.maximum(chance.integers(0, 2, n), np.arange(n) == 0) for n in lengths]
    return x, masks, chance.standard_normal((len(lengths), WIDTH)).astype(np.float32)


@pytest.fixture(scope="module")
def plain() -> tw.Model:
    return tw.compile(transformer(), dims={"batch": (0, 16), "length": (0, MOST)}, levels="x86-64")


@pytest.fixture(scope="module")
def ragged() -> tw.Model:
    return tw.compile(transformer(), dims=RANGE, levels="x86-64", check=True)


def assert_as_alone(plain: tw.Model, lengths: list[int], states: Any, scores: Any) -> None:
    """Every sequence has what it has in a batch of its own."""
    x, masks, bias = batch(lengths)
    assert len(states) == len(scores) == len(lengths)
    for number in range(len(lengths)):
        alone = plain(x[number][None], masks[number][None], bias[number][None])
        want = alone.states[0]
        assert states[number].shape == want.shape
        np.testing.assert_allclose(states[number], want, 1e-4, 1e-5)
        np.testing.assert_allclose(scores[number], alone.scores[0], 1e-4, 1e-5)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_each_sequence_gets_what_it_gets_alone(
    plain: tw.Model, ragged: tw.Model, lengths: list[int]
) -> None:
    states, scores = ragged(*batch(lengths))
    assert_as_alone(plain, lengths, states, scores)


@pytest.mark.parametrize("level", [level.name for level in host_levels() if level.serves(None)])
def test_every_level(plain: tw.Model, level: Any) -> None:
    model = tw.compile(transformer(), dims=RANGE, levels=level)
    states, scores = model(*batch([5, 1, 17]))
    assert_as_alone(plain, [5, 1, 17], states, scores)


def test_padded_with_its_mask_gives_the_same(plain: tw.Model, ragged: tw.Model) -> None:
    lengths = [5, 1, 17]
    x, _, bias = batch(lengths)
    longest = max(lengths)
    padded = np.stack([np.pad(part, ((0, longest - len(part)), (0, 0))) for part in x])
    mask = (np.arange(longest) < np.array(lengths)[:, None]).astype(np.int64)
    want = plain(padded, mask, bias).states
    got = ragged(x, [np.ones(n, np.int64) for n in lengths], bias).states
    for number, length in enumerate(lengths):
        np.testing.assert_allclose(got[number], want[number, :length], 1e-4, 1e-5)


def test_packed_values_and_offsets(plain: tw.Model, ragged: tw.Model) -> None:
    lengths = [5, 0, 17]
    x, masks, bias = batch(lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    packed = [tw.Ragged(np.concatenate(parts), offsets) for parts in (x, masks)]
    states, scores = ragged(*packed, bias)
    assert isinstance(states, tw.Ragged)
    cut = [states.values[first:last] for first, last in pairwise(states.offsets)]
    assert_as_alone(plain, lengths, cut, scores)


def test_one_array_of_equally_long_sequences(plain: tw.Model, ragged: tw.Model) -> None:
    for shape in ((3, 7), (0, 4), (2, 0)):
        x, masks, bias = batch([shape[1]] * shape[0])
        whole = np.array(x, np.float32).reshape(*shape, WIDTH)
        arrays = whole, np.array(masks, np.int64).reshape(shape), bias
        states, scores = ragged(*arrays)
        assert states.shape == (*shape, WIDTH)
        assert_as_alone(plain, [shape[1]] * shape[0], states, scores)


def test_by_name(plain: tw.Model, ragged: tw.Model) -> None:
    x, masks, bias = batch([4, 9])
    made = ragged.run({"mask": masks, "x": x, "bias": bias})
    assert_as_alone(plain, [4, 9], made["states"], made["scores"])


def test_a_saved_model(plain: tw.Model, ragged: tw.Model, tmp_path: Path) -> None:
    ragged.save(tmp_path / "model.tw")
    loaded = tw.load(tmp_path / "model.tw", num_threads=1)
    assert_as_alone(plain, [3, 8], *loaded(*batch([3, 8])))
    assert [str(spec) for spec in loaded.inputs] == [
        f"x: float32[batch, length, {WIDTH}]", "mask: int64[batch, length]",
        f"bias: float32[batch, {WIDTH}]",
    ]  # fmt: skip
    assert [str(spec) for spec in loaded.info.outputs] == [
        f"states: float32[batch, length, {WIDTH}]", "scores: float32[batch, 3]"
    ]  # fmt: skip


def test_many_callers(plain: tw.Model, ragged: tw.Model) -> None:
    cases = [list(np.random.default_rng(n).integers(0, 20, n % 5)) for n in range(24)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda lengths: ragged(*batch(lengths)), cases))
    for lengths, (states, scores) in zip(cases, results, strict=True):
        assert_as_alone(plain, lengths, states, scores)


def test_a_profile_lists_the_bodies(ragged: tw.Model) -> None:
    steps = ragged.profile(*batch([5, 3]))
    assert sum(step.kind == "opaque" for step in steps) >= 2
    assert ragged.stats().opaque_operators == {}


# ---------------------------------------------------------------- torch


def test_lists_of_tensors_and_nested_tensors(plain: tw.Model, ragged: tw.Model) -> None:
    torch = pytest.importorskip("torch")
    lengths = [5, 1, 17]
    x, masks, bias = batch(lengths)
    tensors = [[torch.from_numpy(part) for part in parts] for parts in (x, masks)]
    states, scores = ragged(*tensors, torch.from_numpy(bias))
    assert all(isinstance(part, torch.Tensor) for part in (*states, scores))
    assert_as_alone(plain, lengths, [part.numpy() for part in states], scores.numpy())
    for layout in (torch.jagged, torch.strided):
        nested = [torch.nested.nested_tensor(parts, layout=layout) for parts in tensors]
        states, scores = ragged(*nested, torch.from_numpy(bias))
        assert states.is_nested and states.layout is layout
        assert_as_alone(plain, lengths, [p.numpy() for p in states.unbind()], scores.numpy())


# ---------------------------------------------------------------- mistakes


def test_lengths_outside_their_range(ragged: tw.Model) -> None:
    x, masks, bias = batch([3, MOST + 1])
    with pytest.raises(tw.errors.DimensionError, match="Sequence 1 has the length 41") as caught:
        ragged(x, masks, bias)
    assert "length is in 0..40" in str(caught.value)


def test_inputs_that_differ(ragged: tw.Model) -> None:
    x, masks, bias = batch([3, 4])
    with pytest.raises(tw.errors.InputError, match="sequence 1 has the length 4 in 'x', but 3 in"):
        ragged(x, [masks[0], masks[1][:3]], bias)
    with pytest.raises(tw.errors.InputError, match="'x' has 2 sequences, 'mask' 1"):
        ragged(x, masks[:1], bias)
    with pytest.raises(tw.errors.TilewrightError, match="batch"):
        ragged(x, masks, bias[:1])


def test_what_are_no_sequences(ragged: tw.Model) -> None:
    x, masks, bias = batch([3, 4])
    for wrong, message in (
        (7, "is an int"),
        ([1.0, 2.0], "does not fit|axis"),
        ([x[0], x[1].astype(np.float64)], "Sequence 1 is float64"),
        ([x[0], x[1][:, :3]], "differ in other sizes"),
        ([part.astype(np.float64) for part in x], r"float64, but float32 is expected[^@]*length, "),
        ([part[..., None] for part in x], "has 3 axes"),
        ([np.ma.masked_less(part, 0) for part in x], "masked elements"),
        (np.zeros((2, 3), np.float32), "a batch has 3"),
        (tw.Ragged(np.zeros((7, WIDTH), np.float32), [0, 3]), "do not divide 7 positions"),
        (tw.Ragged(np.zeros((7, WIDTH), np.float32), [0, 5, 3, 7]), "do not divide"),
        (tw.Ragged(np.zeros((7, WIDTH), np.float32), [0.0, 7.0]), "do not divide"),
        (tw.Ragged(np.float32(1), [0]), "0 axes"),
    ):
        with pytest.raises(tw.errors.InputError, match=message):
            ragged(wrong, masks, bias)


def test_wrong_calls(ragged: tw.Model) -> None:
    x, masks, bias = batch([3])
    with pytest.raises(tw.errors.InputError, match=r"'bias' is missing[^@]*batch, length, "):
        ragged(x, masks)
    with pytest.raises(tw.errors.InputError, match="'x', 'mask', 'bias' are missing"):
        ragged()
    with pytest.raises(tw.errors.InputError, match="takes 3 inputs"):
        ragged(x, masks, bias, bias)
    with pytest.raises(tw.errors.InputError, match="twice"):
        ragged(x, masks, bias, x=x)
    with pytest.raises(tw.errors.InputError, match="no input"):
        ragged(x, masks, bias, other=x)
    with pytest.raises(tw.errors.InputError, match="makes its outputs itself"):
        ragged(x, masks, bias, out=[None, None])


def test_dimensions_that_cannot_be_ragged() -> None:
    for dims, message in (
        ({"length": tw.Dim(0, 40, ragged="rows")}, "no other dimension"),
        ({"length": tw.Dim(0, 40, ragged="length")}, "no other dimension"),
        ({"length": tw.Dim(0, 4, ragged="batch"), "batch": tw.Dim(0, 4, ragged="length")}, "both"),
    ):
        with pytest.raises(tw.errors.DimensionError, match=message):
            tw.compile(transformer(), dims=dims)


def test_a_damaged_record_is_refused(ragged: tw.Model) -> None:
    good = program_to_json(ragged.program)
    for place, value in ((6, [["positions", 1, 0]]), (7, []), (1, "0"), (6, "positions")):
        row = list(good["ragged"])
        row[place] = value
        with pytest.raises((TypeError, ValueError)):
            program_from_json({**good, "ragged": row})
    wrong = [[["positions", 7, 0], *good["ragged"][6][1:]]]
    with pytest.raises(ValueError, match="ragged batch"):
        program_from_json({**good, "ragged": [*good["ragged"][:6], *wrong, good["ragged"][7]]})
    for payload in (b"", b"[1]", b"[[], [[1]]]", b'[[["rows", 1]], []]'):
        with pytest.raises(tw.errors.ArtifactError, match="damaged"):
            RaggedStep.of(RAGGED + payload)
