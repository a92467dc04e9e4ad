"""Result types that onnx's inference cannot tell: of bodies, what is selected, scores of rows.

A body is imported on trial with parameters of the operands' types; what its outputs turn out to
be tells the types of the results. ``Trial`` is that import; it returns None where it fails. Start
with :func:`result_types`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir

from tilewright.frontend.onnx.tensor_types import element_type
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node
from tilewright.ir.primitives import TensorType
from tilewright.ir.symbolic import integer_contents
from tilewright.shape import Expr, Scope, constant

# Operators with bodies, and the attributes that hold these.
BODIES: Mapping[str, tuple[str, ...]] = {
    "If": ("then_branch", "else_branch"),
    "Loop": ("body",),
    "Scan": ("body",),
}

Types = list[TensorType | None]
Trial = Callable[[onnx_ir.Graph, Sequence[TensorType | Node]], Types | None]
SCALAR_INT = TensorType(DType.INT64, ())
SCALAR_BOOL = TensorType(DType.BOOL, ())


def result_types(
    name: str,
    operands: Sequence[Node | None],
    attributes: dict[str, Any],
    trial: Trial,
    scope: Scope,
) -> Types:
    """Types of the results of an operator, as far as they can be told; or nothing."""
    match name:
        case "If":
            return _if(attributes, trial, scope)
        case "Loop":
            return _loop(operands, attributes, trial, scope)
        case "Scan":
            return _scan(operands, attributes, trial)
        case "Compress":
            return _compress(operands, attributes, scope)
        case "MelWeightMatrix":
            return _mel_weights(operands, attributes, scope)
        case "NonMaxSuppression":
            return [TensorType(DType.INT64, (scope.fresh("selected"), constant(3)))]
        case "TopK":
            return _top_k(operands, attributes, scope)
        case "LinearClassifier" | "SVMClassifier" | "TreeEnsembleClassifier":
            return _classes(operands, attributes, scope)
        case "LinearRegressor" | "SVMRegressor" | "TreeEnsembleRegressor":
            return [*_scores(operands, scope)]
        case _:
            return []


def _top_k(operands: Sequence[Node | None], attributes: dict[str, Any], scope: Scope) -> Types:
    """Those of the data but for one axis, whose size onnx's inference reads from constants only."""
    data, count = (*operands, None, None)[:2]
    wanted = None if count is None else integer_contents(count)
    axis = int(attributes.get("axis", -1))
    if data is None or not -data.rank <= axis < data.rank:
        return []
    sizes = list(data.shape)
    known = [] if wanted is None or wanted.size != 1 else [*wanted.reshape(-1)]
    sizes[axis] = scope.resolve(known[0]) if known else scope.fresh("topk")
    return [TensorType(kind, tuple(sizes)) for kind in (data.dtype, DType.INT64)]


def _compress(operands: Sequence[Node | None], attributes: dict[str, Any], scope: Scope) -> Types:
    """Some of the elements, or of what lies along an axis; onnx tells it from opset 11 on."""
    data, axis = operands[0] if operands else None, attributes.get("axis")
    if data is None or (axis is not None and not -data.rank <= axis < data.rank):
        return []
    sizes = [scope.fresh("selected")] if axis is None else list(data.shape)
    if axis is not None:
        sizes[axis] = scope.fresh("selected")
    return [TensorType(data.dtype, tuple(sizes))]


def _mel_weights(
    operands: Sequence[Node | None], attributes: dict[str, Any], scope: Scope
) -> Types:
    """[frequencies, bands]; onnx tells it of constants only."""
    contents = [None if o is None else integer_contents(o) for o in operands[:2]]
    bands, points = (None if c is None or c.size != 1 else c.reshape(-1)[0] for c in contents)
    sizes = (
        scope.fresh("frequencies") if points is None else scope.resolve(points // 2 + 1),
        scope.fresh("bands") if bands is None else scope.resolve(bands),
    )
    kind = int(attributes.get("output_datatype", onnx.TensorProto.FLOAT))
    return [TensorType(element_type(kind, "MelWeightMatrix"), sizes)]


def _classes(operands: Sequence[Node | None], attributes: dict[str, Any], scope: Scope) -> Types:
    """A class and scores for each row; onnx's inference may tell only the type of the class."""
    scores = _scores(operands, scope)
    label = DType.STRING if attributes.get("classlabels_strings") else DType.INT64
    return [*(TensorType(label, kind.shape[:1]) for kind in scores), *scores]


def _scores(operands: Sequence[Node | None], scope: Scope) -> list[TensorType]:
    """A row of scores for each row of the data."""
    data = operands[0] if operands else None
    if data is None or data.rank != 2:
        return []
    return [TensorType(DType.FLOAT32, (data.shape[0], scope.fresh("scores")))]


def _if(attributes: dict[str, Any], trial: Trial, scope: Scope) -> Types:
    sides = [trial(attributes[n], ()) for n in ("then_branch", "else_branch") if n in attributes]
    known = [s for s in sides if s is not None]
    if len(known) != 2:
        return []
    return [_merged(a, b, scope) for a, b in zip(*known, strict=False)]


def _merged(a: TensorType | None, b: TensorType | None, scope: Scope) -> TensorType | None:
    if a is None or b is None or a.dtype is not b.dtype or len(a.shape) != len(b.shape):
        return None
    sizes = [
        s if s is t and _declared(s, scope) else scope.fresh("if")
        for s, t in zip(a.shape, b.shape, strict=True)
    ]
    return TensorType(a.dtype, tuple(sizes))


def _declared(size: Expr, scope: Scope) -> bool:
    """Whether a size from a trial means anything outside of it."""
    return all(name in scope.symbols for name in size.free_symbols)


def _loop(
    operands: Sequence[Node | None], attributes: dict[str, Any], trial: Trial, scope: Scope
) -> Types:
    body = attributes.get("body")
    if not isinstance(body, onnx_ir.Graph) or any(o is None for o in operands[2:]):
        return []
    states = [o for o in operands[2:] if o is not None]
    start: list[TensorType | Node] = [SCALAR_INT, SCALAR_BOOL]
    start += [s if s.dtype in (DType.OBJECT, DType.STRING) else s.type for s in states]
    made = trial(body, start)
    if made is not None and all(
        isinstance(before, Node) or before == after
        for before, after in zip(start[2:], made[1:], strict=False)
    ):
        # What one turn leaves as it was, every turn does.
        return _loop_types(states, start, made, scope)
    # Sizes change from turn to turn: only those stay that the body does not touch.
    fresh = [
        p
        if isinstance(p, Node)
        else TensorType(p.dtype, tuple(scope.fresh("loop") for _ in p.shape))
        for p in start
    ]
    made = trial(body, fresh)
    return [] if made is None else _loop_types(states, fresh, made, scope)


def _loop_types(
    states: Sequence[Node], parameters: Sequence[TensorType | Node], made: Types, scope: Scope
) -> Types:
    out: Types = []
    for state, before, after in zip(states, parameters[2:], made[1:], strict=False):
        out.append(_carried(state, before, after, scope))
    count = scope.fresh("loop")
    for element in made[1 + len(states) :]:
        out.append(None if element is None else _stacked(element, count, 0, scope))
    return out


def _carried(
    state: Node, before: TensorType | Node, after: TensorType | None, scope: Scope
) -> TensorType | None:
    if after is None or after.dtype is not state.dtype or len(after.shape) != state.rank:
        return None
    sizes = [
        start if mine is its else scope.fresh("loop")
        for start, mine, its in zip(state.shape, before.shape, after.shape, strict=True)
    ]
    return TensorType(state.dtype, tuple(sizes))


def _stacked(element: TensorType, count: Expr, axis: int, scope: Scope) -> TensorType | None:
    sizes = [s if _declared(s, scope) else scope.fresh("loop") for s in element.shape]
    place = axis + len(sizes) + 1 if axis < 0 else axis
    sizes.insert(place, count)
    return TensorType(element.dtype, tuple(sizes))


def _scan(operands: Sequence[Node | None], attributes: dict[str, Any], trial: Trial) -> Types:
    body = attributes.get("body")
    count = int(attributes.get("num_scan_inputs", 0))
    present = [o for o in operands if o is not None]
    if not isinstance(body, onnx_ir.Graph) or len(present) != len(operands) or count < 1:
        return []
    states, scanned = present[:-count], present[-count:]
    axes = list(attributes.get("scan_input_axes", [0] * count))
    parameters: list[TensorType | Node] = [s.type for s in states]
    lengths: list[Expr] = []
    for value, axis in zip(scanned, axes, strict=False):
        place = axis + value.rank if axis < 0 else axis
        if not 0 <= place < value.rank:
            return []
        lengths.append(value.shape[place])
        kept = (*value.shape[:place], *value.shape[place + 1 :])
        parameters.append(TensorType(value.dtype, kept))
    made = trial(body, parameters)
    if made is None or not lengths:
        return []
    results = made[len(states) :]
    out_axes = list(attributes.get("scan_output_axes", [0] * len(results)))
    out: Types = [s.type for s in states]
    for element, axis in zip(results, out_axes, strict=False):
        if element is None:
            out.append(None)
            continue
        sizes = list(element.shape)
        sizes.insert(axis + len(sizes) + 1 if axis < 0 else axis, lengths[0])
        out.append(TensorType(element.dtype, tuple(sizes)))
    return out
