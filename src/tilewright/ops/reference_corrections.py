"""Operators that onnx's reference evaluator lacks or gets wrong, written anew in numpy.

Each class stands in for the operator of its name and domain wherever a payload uses it. Add one to
``CORRECTIONS`` together with a test that fails without it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

Array = np.ndarray[Any, Any]


class Scatter(OpRun):
    """Scatter of opsets 9 and 10: ScatterElements under its old name."""

    op_domain = ""

    def _run(  # type: ignore[override]
        self, data: Array, indices: Array, updates: Array, axis: int | None = None
    ) -> tuple[Array]:
        along = 0 if axis is None else axis
        out = data.copy()
        where = np.where(indices < 0, indices + data.shape[along], indices)
        index = list(np.indices(indices.shape, sparse=True))
        index[along] = where
        out[tuple(index)] = updates
        return (out,)


CORRECTIONS: tuple[type[OpRun], ...] = (Scatter,)
