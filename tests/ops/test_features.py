"""Operators of ai.onnx.ml on numbers compute what ONNX Runtime computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.operator_harness import compare, fission, run
from support.runtime_peer import check_contributed
from tilewright.ops.features import DOMAIN, MOST_KEYS
from tilewright.ops.record import NoRule
from tilewright.support.errors import InvalidModelError

RANDOM = np.random.default_rng(7)
ROWS = (0, 1, 7, 8, 9, 37)


def _data(rows: int, columns: int = 4, dtype: Any = np.float32) -> Any:
    return RANDOM.standard_normal((rows, columns)).astype(dtype)


def _floats(*values: float) -> list[float]:
    return list(values)


def _check(name: str, attributes: dict[str, Any], *, length: int = 4, outputs: int = 1) -> None:
    first, *others = [[_data(rows)] for rows in ROWS]
    check_contributed(
        name, first, attributes, outputs, domain=DOMAIN, length=length, also=others
    )  # fmt: skip


@pytest.mark.parametrize("norm", ["L1", "L2"])
def test_normalizer(norm: str) -> None:
    _check("Normalizer", {"norm": norm})


def test_normalizer_by_the_largest_takes_no_signs() -> None:
    x = np.array([[1, -4, 2], [0, 0, 0]], np.float32)
    (made,) = run(fission("Normalizer", [x], {"norm": "MAX"}, opset=1, domain=DOMAIN), [x])
    np.testing.assert_array_equal(made, np.array([[0.25, -1, 0.5], [0, 0, 0]], np.float32))


def test_there_are_three_norms() -> None:
    with pytest.raises(InvalidModelError, match="no norm 'L3'"):
        fission("Normalizer", [_data(2)], {"norm": "L3"}, opset=1, domain=DOMAIN)


@pytest.mark.parametrize("offset", [[0.5], [0.5, -1.0, 2.0, 0.0]])
def test_scaler(offset: list[float]) -> None:
    _check("Scaler", {"offset": offset, "scale": [2.0 - o for o in offset]})


def test_scaled_doubles_and_integers_are_floats() -> None:
    attributes = {"offset": [1.0], "scale": [0.25]}
    for dtype in (np.float64, np.int64, np.int32):
        x = np.arange(6, dtype=dtype).reshape(2, 3)
        check_contributed("Scaler", [x], attributes, domain=DOMAIN)


def test_binarizer() -> None:
    _check("Binarizer", {"threshold": 0.25})


@pytest.mark.parametrize("replaced", [np.nan, 2.0])
@pytest.mark.parametrize("values", [[9.0], [1.0, -1.0, 0.5, 3.0]])
def test_imputer(replaced: float, values: list[float]) -> None:
    x = _data(5)
    x[RANDOM.random(x.shape) < 0.4] = replaced
    attributes = {"imputed_value_floats": values, "replaced_value_float": replaced}
    check_contributed("Imputer", [x], attributes, domain=DOMAIN)


def test_imputed_integers() -> None:
    x = RANDOM.integers(0, 3, (5, 4))
    attributes = {"imputed_value_int64s": [7, 8, 9, 10], "replaced_value_int64": 1}
    check_contributed("Imputer", [x], attributes, domain=DOMAIN)


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (0, 5)])
@pytest.mark.parametrize("picked", [(1,), (1, 3), (2, 2)])
def test_array_feature_extractor(shape: tuple[int, ...], picked: tuple[int, ...]) -> None:
    x, indices = RANDOM.standard_normal(shape).astype(np.float32), RANDOM.integers(0, 5, picked)
    check_contributed("ArrayFeatureExtractor", [x, indices], domain=DOMAIN)


def test_feature_vectorizer() -> None:
    x, y = _data(3, 4), RANDOM.standard_normal((3, 2)).astype(np.float32)
    attributes = {"inputdimensions": [4, 2]}
    check_contributed("FeatureVectorizer", [x, y], attributes, domain=DOMAIN, symbolic=False)
    graph = fission(
        "FeatureVectorizer", [x, y], {"inputdimensions": [3, 4]},
        opset=1, domain=DOMAIN, symbolic=False,
    )  # fmt: skip
    expected = np.concatenate([x[:, :3], y, np.zeros((3, 2), np.float32)], axis=1)
    np.testing.assert_array_equal(run(graph, [x, y])[0], expected)


@pytest.mark.parametrize("shape", [(0,), (7,), (3, 2)])
def test_one_hot_encoder(shape: tuple[int, ...]) -> None:
    x = RANDOM.integers(0, 5, shape)
    check_contributed("OneHotEncoder", [x], {"cats_int64s": [0, 3, 4], "zeros": 1}, domain=DOMAIN)


def test_every_element_has_a_category_without_zeros() -> None:
    with pytest.raises(NoRule, match="all of them known"):
        attributes = {"cats_int64s": [0], "zeros": 0}
        fission("OneHotEncoder", [np.arange(3)], attributes, opset=1, domain=DOMAIN)


@pytest.mark.parametrize(
    "attributes",
    [
        {"keys_int64s": [3, 0, 4], "values_floats": [1.5, 2.5, -1.0], "default_float": 9.0},
        {"keys_int64s": [3, 0, 4], "values_floats": [1.5, 2.5, -1.0]},
        {"keys_int64s": [3, 0, 4], "values_int64s": [5, 6, 7]} | {"default_int64": 2},
    ],
)
def test_label_encoder(attributes: dict[str, Any]) -> None:
    others = [[RANDOM.integers(-1, 6, rows)] for rows in ROWS]
    check_contributed("LabelEncoder", others[-1], attributes, domain=DOMAIN, also=others)


def test_labels_of_floats() -> None:
    x = np.array([[0.5, np.nan, -0.0], [np.inf, 1, 2]], np.float32)
    attributes = {"keys_floats": _floats(0.5, 0.0, np.inf), "values_int64s": [1, 2, 3]}
    check_contributed("LabelEncoder", [x], attributes, domain=DOMAIN)


def test_what_has_no_rule_is_told() -> None:
    x = np.arange(3)
    many = {"keys_int64s": [*range(MOST_KEYS + 1)], "values_int64s": [*range(MOST_KEYS + 1)]}
    texts = {"keys_int64s": [0, 1], "values_strings": ["a", "b"]}
    for attributes, reason in ((many, "257 keys"), (texts, "Values that are no numbers")):
        with pytest.raises(NoRule, match=reason):
            fission("LabelEncoder", [x], attributes, opset=1, domain=DOMAIN)
    with pytest.raises(NoRule, match="no integers"):
        attributes = {"classlabels_strings": ["a", "b"], "coefficients": _floats(1, 2)}
        fission("LinearClassifier", [_data(2, 1)], attributes, opset=1, domain=DOMAIN, outputs=2)


@pytest.mark.parametrize("targets", [1, 3])
def test_linear_regressor(targets: int) -> None:
    weights = _data(targets).reshape(-1).tolist()
    attributes = {"coefficients": weights, "targets": targets, "intercepts": [0.5] * targets}
    _check("LinearRegressor", attributes)
    _check("LinearRegressor", {"coefficients": weights, "targets": targets})


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_linear_classifier(transform: str) -> None:
    attributes = {
        "coefficients": _data(3).reshape(-1).tolist(),
        "intercepts": [0.5, -0.5, 0.25],
        "classlabels_ints": [4, -2, 9],
        "post_transform": transform,
        "multi_class": 1,
    }
    _check("LinearClassifier", attributes, outputs=2)


def test_one_score_of_two_classes() -> None:
    attributes: dict[str, Any] = {
        "coefficients": _data(1).reshape(-1).tolist(),
        "intercepts": [0.5],
        "classlabels_ints": [4, -2],
    }
    _check("LinearClassifier", attributes | {"post_transform": "LOGISTIC"}, outputs=2)
    x = _data(9)
    graph = fission("LinearClassifier", [x], attributes, opset=1, outputs=2, domain=DOMAIN)
    labels, scores = run(graph, [x])
    expected = x.astype(np.float64) @ attributes["coefficients"] + 0.5
    compare(scores, np.stack([-expected, expected], 1).astype(np.float32), length=4, name="y1")
    np.testing.assert_array_equal(labels, np.where(expected > 0, -2, 4))


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_svm_regressor(kernel: str) -> None:
    attributes = {
        "coefficients": RANDOM.standard_normal(6).tolist(),
        "support_vectors": _data(6).reshape(-1).tolist(),
        "kernel_type": kernel,
        "kernel_params": [0.2, 0.5, 3.0],
        "n_supports": 6,
        "rho": [0.25],
    }
    _check("SVMRegressor", attributes, length=64)


def test_one_class_is_a_sign() -> None:
    x = _data(9)
    attributes = {"coefficients": [1.0, -1.0, 0.5, 2.0], "rho": [0.25], "one_class": 1}
    (made,) = run(fission("SVMRegressor", [x], attributes, opset=1, domain=DOMAIN), [x])
    sums = x @ np.array([[1.0], [-1.0], [0.5], [2.0]]) + 0.25
    compare(made, np.where(sums > 0, 1, -1).astype(np.float32), name="y0")
