"""Resizing to sizes and by scales, known and not, in every mode."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from support.operator_harness import check_node, compare, fission, reference, run
from tilewright.ir.graph import Graph
from tilewright.ops.record import NoRule
from tilewright.support.errors import DimensionError, InvalidModelError

GENERATOR = np.random.default_rng(3)
COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
)
TARGETS = ((9, 4), (1, 1))


def _image(height: int = 7, width: int = 6, channels: int = 2) -> np.ndarray:
    return GENERATOR.standard_normal((1, channels, height, width)).astype(np.float32)


def _scales(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def _sizes(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def _fissioned(
    image: np.ndarray,
    known: bool,
    attributes: dict[str, Any],
    *,
    scales: np.ndarray | None = None,
    sizes: np.ndarray | None = None,
) -> Graph:
    where = {"constants": (2, 3)} if known else {"fixed": (2, 3)}
    return fission("Resize", [image, None, scales, sizes], attributes, opset=19, **where)


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.nan, np.inf, -np.inf])
def test_a_scale_that_is_none_is_refused(wrong: float) -> None:
    with pytest.raises(
        InvalidModelError, match="The scale of axis 2 must be a number above 0, and not"
    ):
        _fissioned(_image(), True, {}, scales=_scales(1, 1, wrong, 1))
    graph = _fissioned(_image(), False, {}, scales=_scales(1, 1, 2, 1))
    with pytest.raises(DimensionError, match=r"the scale of axis 2 must be a number above 0\Z"):
        run(graph, [_image(), None, _scales(1, 1, wrong, 1)])


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("coordinate", COORDINATES)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_sizes(mode: str, coordinate: str, known: bool) -> None:
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinate}
    graph: Graph | None = None
    for height, width in TARGETS:
        if coordinate == "pytorch_half_pixel" and height == 1:
            continue  # the reference places a single element at -0.5, the text at 0
        sizes = _sizes(1, 2, height, width)
        if graph is None or known:
            graph = _fissioned(_image(), known, attributes, sizes=sizes)
        for image in (_image(),) if known else (_image(), _image(4, 9)):
            wanted = reference("Resize", [image, None, None, sizes], attributes, opset=19)[0]
            compare(run(graph, [image, None, None, sizes])[0], wanted, relative=1e-5)


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("coordinate", COORDINATES)
def test_nearest(coordinate: str, rounding: str) -> None:
    """By the operator's text in whole numbers; floats would blur positions on an element."""
    attributes = {"coordinate_transformation_mode": coordinate, "nearest_mode": rounding}
    image = _image(6, 6)
    graph = _fissioned(image, False, attributes, sizes=_sizes(1, 2, 6, 6))
    for target in (1, 2, 4, 6, 9, 12):
        for size in (3, 7, 8):
            data = _image(size, 6)
            index = [_nearest(y, size, target, coordinate, rounding) for y in range(target)]
            own = run(graph, [data, None, None, _sizes(1, 2, target, 6)])[0]
            np.testing.assert_array_equal(own, data[:, :, index], f"{size} to {target}")


def _nearest(y: int, size: int, wanted: int, coordinate: str, rounding: str) -> int:
    """Position as the exact fraction numerator / denominator."""
    match coordinate:
        case "align_corners":
            numerator, denominator = y * (size - 1), max(wanted - 1, 1)
        case "asymmetric":
            numerator, denominator = y * size, wanted
        case "pytorch_half_pixel" if wanted == 1:
            numerator, denominator = 0, 1
        case _:
            numerator, denominator = (2 * y + 1) * size - wanted, 2 * wanted
    match rounding:
        case "floor":
            index = numerator // denominator
        case "ceil":
            index = -(-numerator // denominator)
        case "round_prefer_floor":
            index = -((denominator - 2 * numerator) // (2 * denominator))
        case _:
            index = (2 * numerator + denominator) // (2 * denominator)
    return min(max(index, 0), size - 1)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("known", [True, False])
def test_scales(mode: str, known: bool) -> None:
    attributes = {"mode": mode, "coordinate_transformation_mode": "asymmetric",
                  "nearest_mode": "floor"}  # fmt: skip
    factors_of_mode = [(2.0, 3.0), (0.5, 1.0), (1.5, 0.25)]
    if mode == "linear":
        # Where a position is on an element, the reference may find the one before it.
        factors_of_mode.append((0.6, 1.3))
    for factors in factors_of_mode:
        scales = _scales(1, 1, *factors)
        graph = _fissioned(_image(), known, attributes, scales=scales)
        for image in (_image(), _image(4, 9), _image(1, 4)):
            inputs = [image, None, scales]
            wanted = reference("Resize", inputs, attributes, opset=19)[0]
            compare(run(graph, inputs)[0], wanted, relative=1e-5)


@pytest.mark.parametrize("known", [True, False])
def test_symmetric_positions_on_an_element_are_found(known: bool) -> None:
    """7 rows by 1/2 are 3, around the centre: at 1, 3 and 5, of which rounding up changes none."""
    attributes = {"coordinate_transformation_mode": "half_pixel_symmetric", "nearest_mode": "ceil"}
    for size, factor, places in ((7, 0.5, [1, 3, 5]), (7, 0.2, [3]), (5, 0.75, [1, 2, 4])):
        image, scales = _image(size), _scales(1, 1, factor, 1)
        graph = _fissioned(image, known, attributes, scales=scales)
        own = run(graph, [image, None, scales])[0]
        np.testing.assert_array_equal(own, image[:, :, places])


@pytest.mark.parametrize(
    ("scale", "size"),
    [(2.0, "2*x0_2"), (0.5, "x0_2//2"), (1.5, "x0_2 + (x0_2//2)"), (0.2, "x0_2//5")],
)
def test_scaled_sizes_are_symbolic(scale: float, size: str) -> None:
    graph = _fissioned(_image(), True, {}, scales=_scales(1, 1, scale, scale))
    assert str(graph.outputs[0][1].shape[2]) == size
    assert not graph.bindings


@pytest.mark.parametrize("scale", [0.7, 1.1, 1 / 3, 2.3, 0.123456, 1.7320508])
def test_scaled_sizes_are_rounded_as_float32_products(scale: float) -> None:
    graph = _fissioned(_image(1, 1), True, {}, scales=_scales(1, 1, scale, 1))
    for size in (1, 9, 10, 21, 30, 57, 100):
        own = run(graph, [np.zeros((1, 1, size, 1), np.float32)])[0]
        assert own.shape[2] == int(np.floor(np.float32(size) * np.float32(scale))), size


def test_a_whole_factor_repeats_elements() -> None:
    for attributes in (
        {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        {"coordinate_transformation_mode": "half_pixel"},
    ):
        graph = _fissioned(_image(), True, attributes, scales=_scales(1, 1, 2, 3))
        names = {type(n.primitive).__name__ for n in graph.nodes()}
        assert names == {"Input", "Broadcast", "Reshape"}
        image = _image(3, 2)
        np.testing.assert_array_equal(run(graph, [image])[0], image.repeat(2, 2).repeat(3, 3))


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("known", [True, False])
def test_aspect_ratio_is_kept(policy: str, known: bool) -> None:
    attributes = {"keep_aspect_ratio_policy": policy, "axes": [2, 3], "mode": "linear"}
    sizes = _sizes(9, 11)
    graph = _fissioned(_image(), known, attributes, sizes=sizes)
    for image in (_image(), _image(4, 9), _image(1, 5)):
        inputs = [image, None, None, sizes]
        compare(run(graph, inputs)[0], reference("Resize", inputs, attributes, opset=19)[0],
                relative=1e-5)  # fmt: skip


@pytest.mark.parametrize("exclude", [0, 1])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("known", [True, False])
def test_antialias(mode: str, exclude: int, known: bool) -> None:
    attributes = {"mode": mode, "antialias": 1, "exclude_outside": exclude}
    image = _image(8, 6, 1)
    for height, width in ((3, 4), (9, 1)):
        inputs = [image, None, None, _sizes(1, 1, height, width)]
        graph = _fissioned(image, known, attributes, sizes=inputs[3])
        wanted = reference("Resize", inputs, attributes, opset=19)[0]
        compare(run(graph, inputs)[0], wanted, relative=1e-5)
    for factors in ((0.5, 1.5), (0.375, 0.25)):
        inputs = [image, None, _scales(1, 1, *factors)]
        graph = _fissioned(image, known, attributes, scales=inputs[2])
        wanted = reference("Resize", inputs, attributes, opset=19)[0]
        compare(run(graph, inputs)[0], wanted, relative=1e-5)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_weights_outside_are_left_out(mode: str) -> None:
    attributes = {"mode": mode, "exclude_outside": 1, "cubic_coeff_a": -0.5}
    for scale in (0.8, 2.0):
        check_node("Resize", [_image(), None, _scales(1, 1, scale, scale)], attributes, 19,
                   constants=(2,), relative=1e-5)  # fmt: skip


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("known", [True, False])
def test_crop_and_resize(mode: str, known: bool) -> None:
    attributes = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize",
                  "extrapolation_value": 10.0, "axes": [2, 3]}  # fmt: skip
    where = {"constants": (1, 3)} if known else {"fixed": (1, 3)}
    for region in ((0.41, 0.57, 0.63, 0.85), (-0.31, 0.13, 0.71, 1.29)):
        for sizes in (_sizes(3, 4), _sizes(1, 5)):
            inputs = [_image(), _scales(*region), None, sizes]
            check_node("Resize", inputs, attributes, 19, relative=1e-5, **where)
    with pytest.raises(NoRule, match="region"):
        fission(
            "Resize", [_image(), None, None, _sizes(3, 4)], attributes, opset=19, constants=(3,)
        )


def test_regions_of_run_time() -> None:
    attributes = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
    region = _scales(0, 0, 0.1, 0.2, 1, 1, 0.9, 0.95)
    inputs = [_image(), region, None, _sizes(1, 2, 4, 5)]
    check_node("Resize", inputs, attributes, 19, relative=1e-5, fixed=(1, 3))


def test_sizes_of_nothing() -> None:
    for mode in ("nearest", "linear", "cubic"):
        graph = _fissioned(_image(), False, {"mode": mode}, sizes=_sizes(1, 2, 3, 4))
        own = run(graph, [_image(), None, None, _sizes(1, 2, 0, 4)])[0]
        assert own.shape == (1, 2, 0, 4)
        graph = _fissioned(_image(), True, {"mode": mode}, scales=_scales(1, 1, 2, 0.5))
        assert run(graph, [np.zeros((0, 2, 0, 1), np.float32)])[0].shape == (0, 2, 0, 0)


def test_negative_sizes_are_an_error() -> None:
    graph = _fissioned(_image(), False, {}, sizes=_sizes(1, 2, 3, 4))
    message = 'the size of axis 2 must not be negative, where "x3"[2] ='
    with pytest.raises(DimensionError, match=re.escape(message)):
        run(graph, [_image(), None, None, _sizes(1, 2, -3, 4)])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32, np.float16, ml_dtypes.bfloat16,
                                   np.float64])  # fmt: skip
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_types(mode: str, dtype: object) -> None:
    image = (GENERATOR.integers(0, 100, (1, 1, 4, 5))).astype(dtype)  # type: ignore[arg-type]
    inputs = [image, None, None, _sizes(1, 1, 8, 10)]
    own = run(_fissioned(image, True, {"mode": mode}, sizes=inputs[3]), inputs)[0]
    wanted = reference("Resize", inputs, {"mode": mode}, opset=19)[0]
    assert own.dtype == image.dtype
    exact = np.issubdtype(image.dtype, np.integer) or mode == "nearest"
    compare(own, wanted, relative=0.0 if exact else float(ml_dtypes.finfo(image.dtype).eps) * 4)


def test_the_oldest_forms() -> None:
    image = _image(3, 2)
    wanted = image.repeat(2, 2).repeat(3, 3)
    scales = _scales(1, 1, 2, 3)
    for name, opset in (("Resize", 10), ("Upsample", 9)):
        for where in ({"constants": (1,)}, {"fixed": (1,)}):
            graph = fission(name, [image, scales], opset=opset, **where)
            np.testing.assert_array_equal(run(graph, [image, scales])[0], wanted)
    graph = fission("Upsample", [image], {"scales": scales.tolist()}, opset=7)
    np.testing.assert_array_equal(run(graph, [image])[0], wanted)
    first = {"height_scale": 2.0, "width_scale": 3.0}
    graph = fission("Upsample", [image], first, opset=1)
    np.testing.assert_array_equal(run(graph, [image])[0], wanted)
    made = [
        run(fission("Upsample", [image], attributes, opset=opset), [image])[0]
        for attributes, opset in (
            ({**first, "mode": "bilinear"}, 1),
            ({"scales": scales.tolist(), "mode": "linear"}, 7),
        )
    ]
    np.testing.assert_array_equal(*made)


def test_what_has_no_rule() -> None:
    for attributes in (
        {"mode": "area"},
        {"coordinate_transformation_mode": "tf_half_pixel_for_nn"},
    ):
        with pytest.raises(NoRule):
            _fissioned(_image(), True, attributes, sizes=_sizes(1, 2, 3, 4))
    with pytest.raises(NoRule, match="either"):
        _fissioned(_image(), True, {})


@pytest.mark.peers
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinate", COORDINATES)
def test_as_onnxruntime(mode: str, coordinate: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    import onnx

    rounding = "round_prefer_floor" if "half_pixel" in coordinate else "floor"
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinate,
                  "nearest_mode": rounding}  # fmt: skip
    made = onnx.helper.make_node("Resize", ["x", "", "scales"], ["y"], **attributes)
    entries = [onnx.helper.make_tensor_value_info("x", 1, [1, 2, None, None]),
               onnx.helper.make_tensor_value_info("scales", 1, [4])]  # fmt: skip
    graph = onnx.helper.make_graph([made], "g", entries, [onnx.ValueInfoProto(name="y")])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)],
                                   ir_version=10)  # fmt: skip
    session = onnxruntime.InferenceSession(model.SerializeToString())
    many = ((2.0, 2.0), (0.5, 1.5), (10 / 7, 4 / 6), (0.7, 1.3), (3.0, 1 / 3))
    # The text aligns corners by the size before it is rounded, as the ONNX project's cases do.
    for factors in ((2.0, 3.0),) if coordinate == "align_corners" else many:
        scales = _scales(1, 1, *factors)
        own = _fissioned(_image(), True, attributes, scales=scales)
        for image in (_image(), _image(10, 9)):
            (wanted,) = session.run(None, {"x": image, "scales": scales})
            compare(run(own, [image])[0], wanted, relative=1e-4)
