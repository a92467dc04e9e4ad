"""Operators that onnx's reference evaluator lacks, gets wrong or makes slow, anew in numpy.

Each class stands in for the operator of its name and domain wherever a payload uses it. Add one to
``CORRECTIONS`` together with a test of it. May import numpy and onnx.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_loop import Loop as ReferenceLoop
from onnx.reference.ops.op_scan import Scan as ReferenceScan

from tilewright.ops.reference_classifiers import CLASSIFIERS
from tilewright.ops.reference_recurrent import GRU, LSTM, RNN
from tilewright.ops.reference_selection import Multinomial, NonMaxSuppression, NonZero, TopK

Array = np.ndarray[Any, Any]


class Scatter(OpRun):
    """Scatter of opsets 9 and 10: ScatterElements under its old name; the reference has none."""

    op_domain = ""

    def _run(  # type: ignore[override]
        self, data: Array, indices: Array, updates: Array, axis: int | None = None
    ) -> tuple[Array]:
        along = 0 if axis is None else axis
        out = data.copy()
        index = list(np.indices(indices.shape, sparse=True))
        index[along] = np.where(indices < 0, indices + data.shape[along], indices)
        out[tuple(index)] = updates
        return (out,)


class Optional(OpRun):
    """An optional is its element, or None; the reference wraps the element in a list."""

    op_domain = ""

    def _run(self, x: Any = None, type: Any = None) -> tuple[Any]:  # type: ignore[override]
        return (x,)


class Normalizer(OpRun):
    """Rows divided by their norm; the reference fails where there are no rows."""

    op_domain = "ai.onnx.ml"

    def _run(self, x: Array, norm: str | None = None) -> tuple[Array]:  # type: ignore[override]
        sizes = np.abs(x)
        match norm:
            case "MAX" | None:
                sizes = sizes.max(axis=-1, keepdims=True, initial=0)
            case "L1":
                sizes = sizes.sum(axis=-1, keepdims=True)
            case "L2":
                sizes = np.sqrt(np.square(sizes).sum(axis=-1, keepdims=True))
            case _:
                raise ValueError(f"the norm is {norm!r}, which is none of MAX, L1 and L2")
        return (x / np.maximum(sizes, 1e-30),)


def _empty_stack(info: onnx.ValueInfoProto) -> Array:
    """What stacking no elements of a stated type gives."""
    tensor = info.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type or onnx.TensorProto.FLOAT)
    return np.zeros((0, *(d.dim_value for d in tensor.shape.dim)), dtype=dtype)


def _stacked(elements: Sequence[Array], info: onnx.ValueInfoProto, axis: int = 0) -> Array:
    if not elements:
        return np.moveaxis(_empty_stack(info), 0, axis)
    return np.stack([np.asarray(e) for e in elements], axis=axis)


class Loop(ReferenceLoop):
    """Loop as specified: the reference joins its scan outputs along an axis that exists already,
    ignores a missing condition's meaning (true), and forgets the type of what never ran."""

    op_domain = ""
    body: Any  # an evaluator of the sub-graph, set from the attribute of that name
    _run_body: Any

    def _run(  # type: ignore[override]
        self,
        count: Array | None,
        condition: Array | None = None,
        *states: Any,
        context: dict[str, Any] | None = None,
        body: Any = None,
        attributes: Any = None,
        bindings: Any = None,
    ) -> tuple[Any, ...]:
        graph = self.body
        names = graph.input_names
        feeds: dict[str, Any] = dict(context or {})
        carried = list(states)
        stacks: list[list[Array]] = [[] for _ in range(self.K)]
        limit = None if count is None else int(np.asarray(count).reshape(()))
        turn, going = 0, condition is None or bool(np.asarray(condition).reshape(()))
        while going and (limit is None or turn < limit):
            feeds[names[0]] = np.array(turn, dtype=np.int64)
            feeds[names[1]] = np.array(going)
            feeds.update(zip(names[2:], carried, strict=True))
            results = self._run_body(feeds, attributes=attributes, bindings=bindings)
            going = bool(np.asarray(results[0]).reshape(()))
            carried = list(results[1 : 1 + len(carried)])
            for stack, element in zip(stacks, results[1 + len(carried) :], strict=True):
                stack.append(element)
            turn += 1
        infos = list(graph.proto_.output)[1 + len(carried) :]
        return (*carried, *(_stacked(s, i) for s, i in zip(stacks, infos, strict=True)))


class Scan(ReferenceScan):
    """Scan with directions and axes, and the batched one of opset 8; the reference has neither."""

    op_domain = ""
    body: Any
    _run_body: Any

    def __init__(self, node: onnx.NodeProto, parameters: dict[str, Any]) -> None:
        OpRun.__init__(self, node, parameters)

    def _run(  # type: ignore[override]
        self, *operands: Any, context: dict[str, Any] | None = None, **options: Any
    ) -> tuple[Any, ...]:
        if self.run_params["opsets"].get("", 9) < 9:
            return self._batched(operands, context, options)
        return self._sequence(operands, context, options)

    def _batched(
        self, operands: tuple[Any, ...], context: dict[str, Any] | None, options: dict[str, Any]
    ) -> tuple[Any, ...]:
        """Opset 8: sequence lengths first, then operands with a leading batch axis."""
        lengths, given = operands[0], operands[1:]
        rows: list[tuple[Any, ...]] = []
        for row in range(given[0].shape[0]):
            parts = [value[row] for value in given]
            if lengths is not None:
                first = len(parts) - int(options["num_scan_inputs"])
                parts[first:] = [p[: int(lengths[row])] for p in parts[first:]]
            rows.append(self._sequence(tuple(parts), context, options))
        return tuple(np.stack(column) for column in zip(*rows, strict=True))

    def _sequence(
        self, operands: tuple[Any, ...], context: dict[str, Any] | None, options: dict[str, Any]
    ) -> tuple[Any, ...]:
        graph = self.body
        count = int(options["num_scan_inputs"])
        states, scanned = list(operands[:-count]), operands[-count:]
        outputs = len(graph.output_names) - len(states)
        backward = _list(options, "scan_input_directions", "directions", count)
        axes = _list(options, "scan_input_axes", None, count)
        elements = [
            np.flip(np.moveaxis(x, axis, 0), 0) if back else np.moveaxis(x, axis, 0)
            for x, axis, back in zip(scanned, axes, backward, strict=True)
        ]
        stacks: list[list[Array]] = [[] for _ in range(outputs)]
        for turn in range(elements[0].shape[0]):
            feeds = dict(context or {})
            slices = [e[turn] for e in elements]
            feeds.update(zip(graph.input_names, [*states, *slices], strict=True))
            results = self._run_body(feeds, bindings=options.get("bindings"))
            states = list(results[: len(states)])
            for stack, element in zip(stacks, results[len(states) :], strict=True):
                stack.append(element)
        infos = list(graph.proto_.output)[len(states) :]
        out_axes = _list(options, "scan_output_axes", None, outputs)
        reverse = _list(options, "scan_output_directions", None, outputs)
        for stack, info, axis, back in zip(stacks, infos, out_axes, reverse, strict=True):
            states.append(_stacked(stack[::-1] if back else stack, info, axis))
        return tuple(states)


class SequenceInsert(OpRun):
    """SequenceInsert at any place: the reference puts in front what belongs at the end."""

    op_domain = ""

    def _run(  # type: ignore[override]
        self, sequence: Sequence[Any], element: Any, position: Any = None
    ) -> tuple[list[Any]]:
        made = [*sequence]
        place = len(made) if position is None else int(np.asarray(position).reshape(-1)[0])
        if not -len(made) <= place <= len(made):
            raise IndexError(f"position {place} is out of range for {len(made)} elements")
        made.insert(place + len(made) if place < 0 else place, element)
        return (made,)


class SequenceMap(OpRun):
    """SequenceMap whose body may read values from around it, which the reference forgets."""

    op_domain = ""
    body: Any
    _run_body: Any

    def need_context(self) -> bool:
        """The body may read any value computed so far."""
        return True

    def _run(  # type: ignore[override]
        self,
        sequence: list[Array],
        *further: Any,
        context: dict[str, Any] | None = None,
        body: Any = None,
        attributes: Any = None,
        bindings: Any = None,
    ) -> tuple[list[Array], ...]:
        columns: list[list[Array]] = [[] for _ in self.body.output_names]
        for turn, element in enumerate(sequence):
            feeds: dict[str, Any] = dict(context or {})
            given = [x[turn] if isinstance(x, list) else x for x in further]
            feeds.update(zip(self.body.input_names, [element, *given], strict=True))
            results = self._run_body(feeds, attributes=attributes, bindings=bindings)
            for column, result in zip(columns, results, strict=True):
                column.append(result)
        return tuple(columns)


def _list(options: dict[str, Any], name: str, old: str | None, count: int) -> list[int]:
    """An optional list attribute with one entry per operand or result, 0 by default."""
    given = options.get(name)
    if given is None and old is not None:
        given = options.get(old)
    return [0] * count if given is None else [int(v) for v in given]


CORRECTIONS: tuple[type[OpRun], ...] = (
    GRU,
    LSTM,
    RNN,
    Loop,
    Multinomial,
    NonMaxSuppression,
    NonZero,
    Normalizer,
    Optional,
    Scan,
    Scatter,
    SequenceInsert,
    SequenceMap,
    TopK,
    *CLASSIFIERS,
)
