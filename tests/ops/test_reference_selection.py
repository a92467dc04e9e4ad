"""NonMaxSuppression against loops over all pairs, and classes drawn by their probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tilewright
from tilewright.ops.reference import evaluate_payload
from tilewright.support.errors import ExecutionError

Array = np.ndarray[Any, Any]
NAMES = ["boxes", "scores", "most", "overlap", "least"]


def payload(given: int, centred: bool) -> bytes:
    kinds = [onnx.TensorProto.FLOAT] * 2 + [onnx.TensorProto.INT64] + [onnx.TensorProto.FLOAT] * 2
    made = helper.make_tensor_value_info
    inputs = [made(n, k, None) for n, k in zip(NAMES[:given], kinds, strict=False)]
    node = helper.make_node(
        "NonMaxSuppression", NAMES[:given], ["y"], center_point_box=int(centred)
    )
    outputs = [made("y", onnx.TensorProto.INT64, None)]
    graph = helper.make_graph([node], "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)]).SerializeToString()


def area_in_common(a: Array, b: Array) -> float:
    """Of two boxes [low y, low x, high y, high x]."""
    height = min(a[2], b[2]) - max(a[0], b[0])
    width = min(a[3], b[3]) - max(a[1], b[1])
    return float(height * width) if height > 0 and width > 0 else 0.0


def overlaps(a: Array, b: Array) -> float:
    own, other = area_in_common(a, a), area_in_common(b, b)
    both = area_in_common(a, b)
    return both / (own + other - both) if own > 0 and other > 0 else 0.0


def corners(box: Array, centred: bool) -> Array:
    if centred:
        return np.concatenate([box[:2] - box[2:] / 2, box[:2] + box[2:] / 2])
    return np.concatenate([np.minimum(box[:2], box[2:]), np.maximum(box[:2], box[2:])])


def chosen(
    boxes: Array, scores: Array, most: int, limit: float, least: float | None, centred: bool
) -> list[list[int]]:
    found: list[list[int]] = []
    for batch in range(scores.shape[0]):
        places = [corners(box, centred) for box in boxes[batch]]
        for label in range(scores.shape[1]):
            row, taken = scores[batch, label], list[int]()
            for box in sorted(range(len(row)), key=lambda i: (-row[i], i)):
                if len(taken) == most or (least is not None and row[box] <= least):
                    break
                if all(overlaps(places[box], places[other]) <= limit for other in taken):
                    taken.append(box)
            found += [[batch, label, box] for box in taken]
    return found


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("least", [None, 0.4])
@pytest.mark.parametrize("limit", [0.0, 0.25, 1.0])
def test_boxes_that_overlap_with_a_better_one_are_left_out(
    limit: float, least: float | None, centred: bool
) -> None:
    random = np.random.default_rng(3)
    # Whole numbers below 9, so that quotients of areas are the same however they are computed.
    boxes = random.integers(0, 9, (2, 40, 4)).astype(np.float32) * 2
    scores = random.integers(0, 9, (2, 3, 40)).astype(np.float32) / 8
    for most in (0, 1, 5, 100):
        given = [boxes, scores, np.array([most]), np.array([limit], np.float32)]
        given += [] if least is None else [np.array([least], np.float32)]
        (found,) = evaluate_payload(payload(len(given), centred), given)
        assert found.dtype == np.int64
        assert found.tolist() == chosen(boxes, scores, most, limit, least, centred)


def test_what_is_no_number_is_not_taken_and_suppresses_nothing() -> None:
    boxes = np.array([[[0, 0, 2, 2], [0, np.nan, 2, 2], [0, 0, 2, 2], [0, 0, 2, 2]]], np.float32)
    scores = np.array([[[0.5, 0.9, 0.7, np.nan]]], np.float32)
    given = [boxes, scores, np.array([9]), np.array([0.5], np.float32)]
    (found,) = evaluate_payload(payload(4, False), given)
    assert found.tolist() == [[0, 0, 1], [0, 0, 2]]


def test_more_boxes_than_are_compared_at_once() -> None:
    random = np.random.default_rng(7)
    corner = random.integers(0, 60, (1, 700, 2))
    boxes = np.concatenate([corner, corner + random.integers(1, 9, (1, 700, 2))], axis=2)
    boxes, scores = boxes.astype(np.float32), random.random((1, 2, 700)).astype(np.float32)
    given = [boxes, scores, np.array([600]), np.array([0.25], np.float32)]
    (found,) = evaluate_payload(payload(4, False), given)
    assert len(found) > 300
    assert found.tolist() == chosen(boxes, scores, 600, 0.25, None, centred=False)


def test_boxes_and_scores_that_do_not_fit_are_refused() -> None:
    boxes, scores = np.ones((1, 3, 4), np.float32), np.ones((1, 2, 4), np.float32)
    with pytest.raises(ExecutionError, match="Boxes are"):
        evaluate_payload(payload(3, False), [boxes, scores, np.array([4])])


def test_without_a_number_nothing_is_taken() -> None:
    boxes, scores = np.ones((1, 3, 4), np.float32), np.ones((1, 2, 3), np.float32)
    (found,) = evaluate_payload(payload(2, False), [boxes, scores])
    assert found.shape == (0, 3)


@pytest.mark.parametrize("shapes", [((0, 3, 4), (0, 2, 3)), ((2, 0, 4), (2, 1, 0))])
def test_of_nothing_nothing_is_taken(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    boxes, scores = (np.zeros(shape, np.float32) for shape in shapes)
    (found,) = evaluate_payload(payload(3, False), [boxes, scores, np.array([4])])
    assert found.shape == (0, 3)


def test_a_share_beyond_one_is_refused() -> None:
    given = [np.ones((1, 1, 4), np.float32), np.ones((1, 1, 1), np.float32), np.array([1])]
    with pytest.raises(ExecutionError, match=r"iou_threshold is 1\.5"):
        evaluate_payload(payload(4, False), [*given, np.array([1.5], np.float32)])


@pytest.mark.parametrize("dtype", [onnx.TensorProto.INT32, onnx.TensorProto.INT64])
def test_classes_are_drawn_as_often_as_they_are_likely(dtype: int) -> None:
    made = helper.make_tensor_value_info
    inputs = [made("x", onnx.TensorProto.FLOAT, ["b", "c"])]
    outputs = [made("y", dtype, ["b", 4000])]
    node = helper.make_node("Multinomial", ["x"], ["y"], sample_size=4000, seed=3.0, dtype=dtype)
    graph = helper.make_graph([node], "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    compiled = tilewright.compile(model)
    likely = np.array([[0.2, 0.0, 0.5, 0.3], [1.0, 0.0, 0.0, 0.0]], np.float32)
    with np.errstate(divide="ignore"):
        logarithms = np.log(likely) + np.float32([[7.0], [-200.0]])
    drawn = compiled(logarithms)
    assert drawn.shape == (2, 4000) and drawn.dtype == helper.tensor_dtype_to_np_dtype(dtype)
    for row, expected in zip(drawn, likely, strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=4) / 4000, expected, atol=0.03)
        assert not set(row) & set(np.flatnonzero(expected == 0))
    np.testing.assert_array_equal(compiled(logarithms), drawn)
    assert compiled(logarithms[:0]).shape == (0, 4000)
