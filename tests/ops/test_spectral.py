"""DFT and STFT of any length against numpy's transforms, and the windows against their formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.operator_harness import Array, check_node, compare, fission, run
from tilewright.ir.graph import Node, topological
from tilewright.ir.primitives import Input
from tilewright.support.errors import DimensionError, InvalidModelError


def _random(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _pair(x: Array) -> Array:
    return np.stack([x.real, x.imag], axis=-1).astype(np.float32)


@pytest.mark.parametrize("length", [None, 3, 8, 13])
@pytest.mark.parametrize("axis", [1, 2, -2])
@pytest.mark.parametrize("components", [1, 2])
@pytest.mark.parametrize("onesided", [0, 1])
def test_forward(components: int, axis: int, length: int | None, onesided: int) -> None:
    for symbolic in (True, False):
        operands: list[Array | None] = [
            _random(2, 5, 8, components),
            None if length is None else np.array(length),
            np.array(axis),
        ]
        attributes = {"onesided": onesided}
        graph = fission("DFT", operands, attributes, opset=20, constants=(2,), symbolic=symbolic)
        for shape in ((2, 5, 8), (1, 9, 7)) if symbolic else ((2, 5, 8),):
            x = _random(*shape, components, seed=1)
            signal = x[..., 0] + (1j * x[..., 1] if components == 2 else 0)
            along = axis if axis > 0 else 2
            expected = np.fft.fft(signal, length, along)
            if onesided:
                expected = np.take(expected, range(expected.shape[along] // 2 + 1), along)
            compare(run(graph, [x, *operands[1:]])[0], _pair(expected), length=16)


@pytest.mark.parametrize("size", [1, 5, 8])
def test_there_and_back(size: int) -> None:
    x = _random(3, size, 1)
    axis = np.array(1)
    whole = run(fission("DFT", [x, None, axis], {}, opset=20, constants=(2,)), [x, None, axis])[0]
    inverse = fission("DFT", [whole, None, axis], {"inverse": 1}, opset=20, constants=(2,))
    back = run(inverse, [whole, None, axis])[0]
    compare(back[..., 0], x[..., 0], length=16)
    compare(back[..., 1], np.zeros_like(x[..., 0]), length=16, absolute=1e-5)
    length = np.array(size)
    attributes = {"inverse": 1, "onesided": 1}
    half = whole[:, : size // 2 + 1]
    real = fission("DFT", [half, length, axis], attributes, opset=20, constants=(2,))
    compare(run(real, [half, length, axis])[0], x, length=16)


def test_the_older_form_takes_its_axis_from_an_attribute() -> None:
    x = _random(2, 6, 4, 1)
    expected = _pair(np.fft.fft(x[..., 0], axis=2))
    check_node("DFT", [x], {"axis": 2}, 17, expected=[expected], length=16)
    with pytest.raises(InvalidModelError):
        fission("DFT", [x], {"axis": 3}, opset=17)


@pytest.mark.parametrize("components", [1, 2])
@pytest.mark.parametrize("with_window", [False, True])
@pytest.mark.parametrize("onesided", [0, 1])
def test_short_time(onesided: int, with_window: bool, components: int) -> None:
    step, length = np.array(3), np.array(8)
    window = np.hanning(8).astype(np.float32) if with_window else None
    operands: list[Array | None] = [_random(2, 20, components), step, window, length]
    attributes = {"onesided": onesided}
    for known in ((), (1, 3)):
        graph = fission("STFT", operands, attributes, opset=17, constants=known)
        for size in (20, 8, 25):
            x = _random(2, size, components, seed=size)
            signal = x[..., 0] + (1j * x[..., 1] if components == 2 else 0)
            frames = [signal[:, i : i + 8] for i in range(0, size - 7, 3)]
            cut = np.stack(frames, axis=1) * (1 if window is None else window)
            expected = np.fft.fft(cut, axis=2)
            expected = expected[:, :, :5] if onesided else expected
            compare(run(graph, [x, *operands[1:]])[0], _pair(expected), length=16)


def test_signals_shorter_than_a_frame_are_refused() -> None:
    operands: list[Array | None] = [_random(1, 20, 1), np.array(3), None, np.array(8)]
    graph = fission("STFT", operands, {}, opset=17)
    with pytest.raises(DimensionError, match="shorter"):
        run(graph, [_random(1, 7, 1), *operands[1:]])


WINDOWS = {
    "HannWindow": (0.5, -0.5, 0.0),
    "HammingWindow": (25 / 46, -21 / 46, 0.0),
    "BlackmanWindow": (0.42, -0.5, 0.08),
}


@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("name", sorted(WINDOWS))
def test_windows(name: str, periodic: int) -> None:
    graph = fission(name, [np.array(10)], {"periodic": periodic}, opset=17)
    for size in (10, 7, 64):
        angle = 2 * np.pi * np.arange(size) / (size if periodic else size - 1)
        a, b, c = WINDOWS[name]
        expected = (a + b * np.cos(angle) + c * np.cos(2 * angle)).astype(np.float32)
        compare(run(graph, [np.array(size)])[0], expected, absolute=1e-6)
    doubles = fission(name, [np.array(10)], {"output_datatype": 11}, opset=17)
    assert run(doubles, [np.array(10)])[0].dtype == np.float64


@pytest.mark.parametrize(("onesided", "inverse"), [(0, 0), (0, 1), (1, 0)])  # both: one step
@pytest.mark.parametrize("components", [1, 2])
@pytest.mark.parametrize("size", [240, 252, 450])
def test_lengths_with_factors(size: int, components: int, onesided: int, inverse: int) -> None:
    """Two steps of shorter transforms, along any axis, of signals that are cut or filled up."""
    for own, axis in ((size, 1), (size - 3, 0), (size + 5, 1)):
        shape = (own, 3) if axis == 0 else (3, own)
        x = _random(*shape, components, seed=own)
        operands: list[Array | None] = [x, np.array(size), np.array(axis)]
        attributes = {"onesided": onesided, "inverse": inverse}
        graph = fission("DFT", operands, attributes, opset=20, constants=(1, 2))
        signal = x[..., 0] + (1j * x[..., 1] if components == 2 else 0)
        expected = (np.fft.ifft if inverse else np.fft.fft)(signal, size, axis)
        if onesided:
            expected = np.take(expected, range(size // 2 + 1), axis)
        compare(run(graph, operands)[0], _pair(expected), length=size)
    assert max(n.shape[-2].value for n in graph.nodes() if _is_table(n)) <= 60


def _is_table(x: Node) -> bool:
    """What a product is with: a tensor that no input is part of."""
    return x.rank >= 4 and not any(isinstance(n.primitive, Input) for n in topological((x,)))
