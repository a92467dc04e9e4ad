"""Small results that are known while importing become constants.

Rules look at constants (scales, axes, fill values), and exporters compute those with operators.
Only small tensors are folded here; the rest is the rewriter's work. Start with :func:`folded`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.onnx.boundary import UNFIT
from tilewright.ir.dtype import DType
from tilewright.ir.evaluate import evaluate
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Cast, Constant, Dimension, Input, Opaque, Project
from tilewright.ir.symbolic import integer_contents
from tilewright.shape import Scope, product
from tilewright.support.errors import TilewrightError

_BYTES = (DType.INT8, DType.UINT8)
LARGEST = 4096  # elements of a tensor on the way to a folded one


def between(results: Sequence[Node], operands: Sequence[Node]) -> list[Node]:
    """The nodes from which ``results`` are made, without ``operands`` and what lies before them."""
    stop = set(operands)
    seen: dict[Node, None] = {}
    pending = list(results)
    while pending:
        current = pending.pop()
        if current not in stop and current not in seen:
            seen[current] = None
            pending.extend(current.inputs)
    return list(seen)


def folded(value: Node, region: Sequence[Node], scope: Scope, constant: bool) -> Node:
    """``value``, or the constant or dimension it always is.

    ``region`` are the nodes between the operator's operands and ``value``; ``constant`` says that
    these operands are constants.
    """
    if isinstance(value.primitive, Constant | Dimension | Input | Opaque):
        return value
    symbolic = _by_contents(value, scope)
    if symbolic is not None:
        return symbolic
    if not constant or not all(_small(n) for n in region):
        return value
    graph = Graph("fold", (), (("value", value),), scope)
    try:
        result = evaluate(graph, {}, {})["value"]
    except (TilewrightError, *UNFIT):
        return value  # an error of the model's; it is raised where it happens, in the call
    return node(Constant.of(np.asarray(result), value.dtype))


def _small(current: Node) -> bool:
    """Whether a node can be evaluated now at little cost."""
    primitive = current.primitive
    if isinstance(primitive, Input | Opaque | Project) or not current.dtype.is_native:
        return False
    if isinstance(primitive, Cast) and current.rank > 1 and current.inputs[0].dtype in _BYTES:
        return False  # weights that are quantised, which products of bytes look for
    if isinstance(primitive, Dimension) and not primitive.value.is_constant:
        return False
    return all(s.is_constant for s in current.shape) and product(current.shape).value <= LARGEST


def _by_contents(value: Node, scope: Scope) -> Node | None:
    """int64 contents that shape arithmetic determines."""
    if value.dtype is not DType.INT64:
        return None
    contents = integer_contents(value)
    if contents is None:
        return None
    known = [scope.resolve(e) for e in contents.reshape(-1)]
    if all(e.is_constant and -(1 << 63) <= e.value < 1 << 63 for e in known):
        values = np.array([e.value for e in known], dtype=np.int64).reshape(contents.shape)
        return node(Constant.of(values, DType.INT64))
    if value.rank == 0:
        return node(Dimension(known[0]))
    return None
