"""Classifiers and trees of ai.onnx.ml where onnx's reference evaluator fails or is wrong.

``CLASSIFIERS`` stand in for the operators of their names. May import numpy and onnx.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.aionnxml import (
    op_linear_classifier,
    op_svm_classifier,
    op_tree_ensemble,
    op_tree_ensemble_classifier,
)

Array = np.ndarray[Any, Any]
MOST_TURNS = 100
EXACT = 0.005  # what libsvm, and so ONNX Runtime, is content with for all classes together
LEAST = 1e-7  # of a probability, and of what is missing to 1


def coupled(pairwise: Array) -> Array:
    """Probabilities of classes from those of class i among i and j, as libsvm finds them.

    The second method of Wu, Lin and Weng: the minimum of a quadratic form on the simplex, one
    class after another.
    """
    count = len(pairwise)
    form = -pairwise.T * pairwise
    np.fill_diagonal(form, np.square(pairwise).sum(axis=0))
    found = np.full(count, 1 / count, pairwise.dtype)
    for _ in range(max(MOST_TURNS, count)):
        slopes = form @ found
        value = found @ slopes
        if np.abs(slopes - value).max() < EXACT / count:
            break
        for t in range(count):
            step = (value - slopes[t]) / form[t, t]
            found[t] += step
            value = (value + step * (step * form[t, t] + 2 * slopes[t])) / (1 + step) ** 2
            slopes = (slopes + step * form[t]) / (1 + step)
            found /= 1 + step
    return found


class SVMClassifier(op_svm_classifier.SVMClassifier):
    """The reference multiplies vectors where it should multiply elements, from three classes on."""

    _svm: Any

    def _probabilities(self, scores: Array, class_count_: int) -> Array:
        pairwise = np.zeros((class_count_, class_count_), scores.dtype)
        pairs = zip(*np.triu_indices(class_count_, 1), strict=True)
        parts = self._svm.atts
        for score, a, b, (i, j) in zip(scores, parts.prob_a, parts.prob_b, pairs, strict=False):
            chance = op_svm_classifier.sigmoid_probability(score, a, b)
            pairwise[i, j] = np.clip(chance, LEAST, 1 - LEAST)
            pairwise[j, i] = 1 - pairwise[i, j]
        return coupled(pairwise)


def _without_rows(operator: Any) -> type[OpRun]:
    """An operator with a result for each row, which the reference fails on where there is none."""

    class WithoutRows(operator):
        def _run(self, x: Array, **attributes: Any) -> tuple[Array, ...]:
            if x.shape[0]:
                return super()._run(x, **attributes)
            some = super()._run(np.zeros((1, *x.shape[1:]), x.dtype), **attributes)
            return tuple(result[:0] for result in some)

    WithoutRows.__name__ = operator.__name__  # by which the evaluator finds it
    return WithoutRows


CLASSIFIERS = tuple(
    map(
        _without_rows,
        (
            op_linear_classifier.LinearClassifier,
            SVMClassifier,
            op_tree_ensemble.TreeEnsemble,
            op_tree_ensemble_classifier.TreeEnsembleClassifier,
        ),
    )
)
