"""Running operators on onnx's reference implementation, with corrections where it is wrong.

A payload is a serialised ONNX model of one node; :func:`evaluate_payload` runs it. Evaluators are
kept by payload. May import ``support``, numpy and onnx.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tilewright.ops.reference_corrections import CORRECTIONS
from tilewright.support.errors import ExecutionError, UnsupportedError

MOST_KEPT = 256  # evaluators, each of which holds its model
_kept: OrderedDict[bytes, _Operator] = OrderedDict()
_lock = threading.Lock()

# What the Python code of the reference, and of readers of models, raises on what it cannot take.
FAILURES: tuple[type[Exception], ...] = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RuntimeError,
    OSError,
    ImportError,
)


class _Operator:
    """The one node of a payload, ready to run."""

    def __init__(self, payload: bytes) -> None:
        model = onnx.load_model_from_string(payload)
        self.label = model.graph.node[0].op_type
        self._evaluator = ReferenceEvaluator(model, new_ops=list(CORRECTIONS))
        self._names = list(map(str, self._evaluator.input_names))
        self._run = self._evaluator.rt_nodes_[0]
        # A node whose operands are the payload's, in order, is called without what is around it.
        node, outputs = model.graph.node[0], [o.name for o in model.graph.output]
        self._is_plain = (
            list(node.input) == self._names
            and list(node.output) == outputs
            and not self._run.need_context()
            and not self._run.has_linked_attribute
        )

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for the inputs of the payload."""
        if self._is_plain:
            return list(self._run.run(*inputs))[: len(self._run.output)]
        return list(self._evaluator.run(None, dict(zip(self._names, inputs, strict=True))))


def _operator(payload: bytes) -> _Operator:
    with _lock:
        found = _kept.get(payload)
        if found is not None:
            _kept.move_to_end(payload)
            return found
    made = _Operator(payload)
    with _lock:
        _kept[payload] = made
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    return made


def check_payload(payload: bytes, where: str) -> None:
    """Raise ``UnsupportedError`` if the reference has no such operator."""
    try:
        _operator(payload)
    except FAILURES as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise UnsupportedError(
            f"there is neither a rule nor a reference for this operator: {lines[0][:200]}",
            where=where,
            hint="replace the operator in the model, or run that part elsewhere",
        ) from error


def evaluate_payload(payload: bytes, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of the payload's one node, in order.

    ``inputs`` are arrays (lists for sequences, None for an empty optional) in the order of the
    payload's graph inputs. Raises ``ExecutionError`` if the operator fails on them.
    """
    operator = _operator(payload)
    try:
        with np.errstate(all="ignore"):
            return operator(inputs)
    except FAILURES as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise ExecutionError(
            f"the reference of {operator.label} failed: {lines[0][:200]}", where=operator.label
        ) from error
