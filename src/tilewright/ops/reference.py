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
from onnx.reference.op_run import OpRun

from tilewright.ops.reference_corrections import CORRECTIONS
from tilewright.support.errors import ExecutionError, UnsupportedError

MOST_KEPT = 256
_kept: OrderedDict[bytes, ReferenceEvaluator] = OrderedDict()
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


def _evaluator(payload: bytes) -> ReferenceEvaluator:
    with _lock:
        found = _kept.get(payload)
        if found is not None:
            _kept.move_to_end(payload)
            return found
    made = ReferenceEvaluator(onnx.load_model_from_string(payload), new_ops=_corrections())
    with _lock:
        _kept[payload] = made
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    return made


def _corrections() -> list[type[OpRun]]:
    return list(CORRECTIONS)


def _label(payload: bytes) -> str:
    model = onnx.load_model_from_string(payload)
    return model.graph.node[0].op_type


def check_payload(payload: bytes, where: str) -> None:
    """Raise ``UnsupportedError`` if the reference has no such operator."""
    try:
        _evaluator(payload)
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
    evaluator = _evaluator(payload)
    feeds = dict(zip(map(str, evaluator.input_names), inputs, strict=True))
    try:
        with np.errstate(all="ignore"):
            return list(evaluator.run(None, feeds))
    except FAILURES as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise ExecutionError(
            f"the reference of {_label(payload)} failed: {lines[0][:200]}", where=_label(payload)
        ) from error
