"""NonMaxSuppression against loops over all pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

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
