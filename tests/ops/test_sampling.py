"""Sampling at positions of a grid, grids of affine maps, and blocks put back into images."""

from __future__ import annotations

import numpy as np
import pytest

from support.operator_harness import check_node, compare, fission, reference, run
from tilewright.ops.record import NoRule
from tilewright.support.errors import DimensionError

GENERATOR = np.random.default_rng(5)


def _image(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def _grid(*shape: int, reach: float = 1.5) -> np.ndarray:
    return GENERATOR.uniform(-reach, reach, shape).astype(np.float32)


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample(mode: str, padding: str, aligned: int) -> None:
    if (mode, padding) == ("cubic", "border"):
        pytest.skip("the reference moves positions where other engines move neighbours")
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    check_node("GridSample", [_image(2, 2, 3, 4), _grid(2, 2, 3, 2)], attributes, 20,
               relative=2e-5, also=[[_image(1, 1, 5, 2), _grid(1, 1, 4, 2, reach=4)]])  # fmt: skip


@pytest.mark.parametrize("reach", [1.5, 4, 1e30])
@pytest.mark.parametrize("aligned", [0, 1])
def test_cubic_samples_near_a_border_are_those_of_a_larger_image(aligned: int, reach: float):
    """Each neighbour is the nearest one inside, as in PyTorch and ONNX Runtime."""
    image, grid = _image(1, 2, 5, 6), _grid(1, 7, 3, 2, reach=reach)
    attributes = {"mode": "cubic", "padding_mode": "border", "align_corners": aligned}
    own = run(fission("GridSample", [image, grid], attributes, opset=20), [image, grid])[0]
    sizes, wide = np.array([6, 5], np.float32), 4
    half = (sizes - 1) / 2 if aligned else sizes / 2
    place = (grid + 1) * half - (0 if aligned else 0.5)
    place = np.clip(place, -2, sizes + 1) + wide
    larger = np.pad(image, ((0, 0), (0, 0), (wide, wide), (wide, wide)), mode="edge")
    inside = place / (sizes + 2 * wide - 1) * 2 - 1
    attributes = {"mode": "cubic", "align_corners": 1}
    (wanted,) = reference("GridSample", [larger, inside.astype(np.float32)], attributes, opset=20)
    compare(own, wanted, relative=2e-4)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_grid_sample_of_volumes_and_lines(mode: str) -> None:
    attributes = {"mode": mode, "padding_mode": "border"}
    volume = [_image(1, 2, 2, 3, 4), _grid(1, 2, 2, 2, 3)]
    check_node("GridSample", volume, attributes, 20, relative=2e-5)
    line = [_image(2, 2, 5), _grid(2, 4, 1)]
    check_node("GridSample", line, attributes, 20, relative=2e-5)


def test_grid_sample_by_its_older_names() -> None:
    inputs = [_image(1, 1, 3, 4), _grid(1, 2, 2, 2)]
    for old, new in (("bilinear", "linear"), ("bicubic", "cubic")):
        own = run(fission("GridSample", inputs, {"mode": old}, opset=16), inputs)[0]
        compare(own, reference("GridSample", inputs, {"mode": new}, opset=20)[0], relative=2e-5)


def test_grid_sample_of_halves() -> None:
    inputs = [_image(1, 1, 3, 4).astype(np.float16), _grid(1, 2, 2, 2).astype(np.float16)]
    own = run(fission("GridSample", inputs, opset=20), inputs)[0]
    wide = [value.astype(np.float32) for value in inputs]
    wanted = reference("GridSample", wide, opset=20)[0].astype(np.float16)
    compare(own, wanted, relative=1e-3)


def test_grid_sample_of_a_single_element() -> None:
    for padding in ("zeros", "border", "reflection"):
        for aligned in (0, 1):
            attributes = {"padding_mode": padding, "align_corners": aligned}
            inputs = [np.ones((1, 1, 1, 1), np.float32), np.zeros((1, 1, 1, 2), np.float32)]
            graph = fission("GridSample", inputs, attributes, opset=20)
            assert run(graph, inputs)[0].item() == 1
            empty = [np.ones((0, 3, 2, 2), np.float32), np.zeros((0, 5, 1, 2), np.float32)]
            assert run(graph, empty)[0].shape == (0, 3, 5, 1)


def test_grid_sample_that_does_not_fit() -> None:
    graph = fission("GridSample", [_image(1, 1, 3, 4), _grid(1, 2, 2, 2)], opset=20)
    with pytest.raises(DimensionError, match="batch"):
        run(graph, [_image(2, 1, 3, 4), _grid(1, 2, 2, 2)])
    with pytest.raises(NoRule):
        fission("GridSample", [_image(1, 1, 3, 4), _grid(1, 2, 2, 2)], {"mode": "area"}, opset=20)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (1, 1, 3, 2, 4)])
def test_affine_grid(size: tuple[int, ...], aligned: int, known: bool) -> None:
    rank = len(size) - 2
    theta = _image(size[0], rank, rank + 1)
    where = {"constants": (1,)} if known else {"fixed": (1,)}
    inputs = [theta, np.array(size)]
    check_node("AffineGrid", inputs, {"align_corners": aligned}, 20, relative=1e-5, **where)


def test_affine_grid_of_single_elements() -> None:
    theta = np.array([[[1, 0, 0], [0, 1, 0]]], np.float32)
    for aligned, wanted in ((0, 0.0), (1, -1.0)):
        inputs = [theta, np.array([1, 1, 1, 1])]
        graph = fission("AffineGrid", inputs, {"align_corners": aligned}, opset=20, fixed=(1,))
        np.testing.assert_array_equal(run(graph, inputs)[0].reshape(-1), [wanted, wanted])
        assert run(graph, [theta, np.array([1, 1, 0, 3])])[0].shape == (1, 0, 3, 2)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("image", "block", "attributes"),
    [
        ((5, 5), (1, 5), {}),
        ((5, 6), (2, 3), {"strides": [2, 1]}),
        ((5, 5), (3, 2), {"pads": [1, 0, 1, 1]}),
        ((6, 6), (2, 2), {"dilations": [1, 3]}),
        ((4,), (2,), {}),
        ((3, 4, 4), (1, 2, 2), {"pads": [0, 1, 0, 0, 1, 0]}),
    ],
)
def test_blocks_to_images(
    image: tuple[int, ...], block: tuple[int, ...], attributes: dict[str, list[int]], known: bool
) -> None:
    rank = len(image)
    strides = attributes.get("strides", [1] * rank)
    dilations = attributes.get("dilations", [1] * rank)
    pads = attributes.get("pads", [0] * 2 * rank)
    counts = [
        (size + pads[a] + pads[a + rank] - dilations[a] * (block[a] - 1) - 1) // strides[a] + 1
        for a, size in enumerate(image)
    ]
    data = _image(2, 3 * int(np.prod(block)), int(np.prod(counts)))
    inputs = [data, np.array(image), np.array(block)]
    where = {"constants": (1, 2)} if known else {"fixed": (1,), "constants": (2,)}
    check_node("Col2Im", inputs, attributes, 18, length=int(np.prod(block)), **where)
