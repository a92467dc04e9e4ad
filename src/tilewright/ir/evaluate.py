"""The numpy meaning of the primitive graph: the reference everything else is checked against.

:func:`evaluate` runs a graph on arrays, one primitive at a time, in the graph's own types. It is
also what folds constants. Opaque operators need a callable that runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.evaluate_linear import contract, convolve, window
from tilewright.ir.graph import Graph, Node
from tilewright.ir.primitives import (
    ArgReduce,
    Broadcast,
    Cast,
    Concat,
    Constant,
    Contract,
    Convolve,
    Dimension,
    Gather,
    GatherElements,
    GatherND,
    Input,
    Iota,
    Map,
    Opaque,
    Pad,
    Project,
    Recurrence,
    Reduce,
    Reshape,
    Scan,
    ScatterElements,
    ScatterND,
    Slice,
    Transpose,
    Window,
)
from tilewright.ir.recurrence import recur
from tilewright.ir.scalar import SCALAR_FUNCTIONS
from tilewright.shape import Expr
from tilewright.support.errors import ExecutionError

Array = np.ndarray[Any, Any]
OpaqueEvaluator = Callable[[bytes, list[Array]], Sequence[Array]]
Environment = dict[str, int]


def evaluate(
    graph: Graph,
    inputs: Mapping[str, Array],
    symbols: Mapping[str, int],
    opaque: OpaqueEvaluator | None = None,
) -> dict[str, Array]:
    """The graph's outputs for ``inputs``; ``symbols`` holds the sizes the inputs determine."""
    environment: Environment = dict(symbols)
    bindings = {b.source: b.symbols for b in graph.bindings}
    values: dict[Node, Any] = {}
    for current in graph.nodes():
        operands = [values[i] for i in current.inputs]
        values[current] = evaluate_node(current, operands, environment, inputs, opaque)
        if current in bindings:
            contents = np.asarray(values[current]).reshape(-1)
            environment.update(zip(bindings[current], map(int, contents), strict=True))
    return {name: _first(values[n]) for name, n in graph.outputs}


def _first(value: Any) -> Array:
    return value[0] if isinstance(value, tuple) else value


def evaluate_node(
    current: Node,
    operands: list[Any],
    environment: Environment,
    inputs: Mapping[str, Array],
    opaque: OpaqueEvaluator | None,
) -> Any:
    """The value of one node (a tuple of arrays for an opaque operator)."""
    primitive = current.primitive
    match primitive:
        case Opaque(payload=payload):
            return _run_opaque(current, payload, [_first(o) for o in operands], environment, opaque)
        case Project(index=index):
            return operands[0][index]
        case Input(name=name):
            return inputs[name]
        case _:
            with np.errstate(all="ignore"):
                arrays = [_first(o) for o in operands]
                return np.asarray(_value(current, arrays, environment)).astype(
                    current.dtype.numpy, copy=False
                )


def _run_opaque(
    current: Node,
    payload: bytes,
    operands: list[Array],
    environment: Environment,
    opaque: OpaqueEvaluator | None,
) -> tuple[Array, ...]:
    if opaque is None:
        raise ExecutionError("no evaluator for opaque operators was given", where=repr(current))
    results = tuple(opaque(payload, operands))
    primitive = current.primitive
    assert isinstance(primitive, Opaque)
    for result, expected in zip(results, primitive.outputs, strict=False):
        if expected.dtype is DType.OBJECT:
            continue
        for size, actual in zip(expected.shape, np.shape(result), strict=True):
            if not size.is_constant and str(size) in size.free_symbols:
                environment.setdefault(str(size), int(actual))
    return results


def _sizes(expressions: Sequence[Expr], environment: Environment) -> tuple[int, ...]:
    return tuple(e.evaluate(environment) for e in expressions)


def _value(current: Node, x: list[Array], environment: Environment) -> Array:
    def size(e: Sequence[Expr]) -> tuple[int, ...]:
        return _sizes(e, environment)

    match current.primitive:
        case Constant(array=array):
            return array
        case Dimension(value=value):
            return np.array(value.evaluate(environment), dtype=np.int64)
        case Iota(shape=shape, axis=axis):
            sizes = size(shape)
            view = [1] * len(sizes)
            view[axis] = sizes[axis]
            return np.broadcast_to(np.arange(sizes[axis], dtype=np.int64).reshape(view), sizes)
        case Map(function=function):
            return SCALAR_FUNCTIONS[function].meaning(*x)
        case Cast(dtype=dtype):
            return _cast(x[0], dtype)
        case Reduce(kind=kind, axes=axes):
            return reduce(kind, x[0], axes)
        case ArgReduce(kind=kind, axis=axis, last=last):
            return _arg_reduce(kind, x[0], axis, last)
        case Scan(kind=kind, axis=axis, exclusive=exclusive, reverse=reverse):
            return _scan(kind, x[0], axis, exclusive, reverse)
        case Broadcast(shape=shape, axes=axes):
            view = [1] * len(shape)
            for axis, actual in zip(axes, x[0].shape, strict=True):
                view[axis] = actual
            return np.broadcast_to(x[0].reshape(view), size(shape))
        case Reshape(shape=shape):
            return x[0].reshape(size(shape))
        case Transpose(permutation=permutation):
            return x[0].transpose(permutation)
        case Slice(starts=starts, sizes=sizes, steps=steps):
            return _slice(x[0], size(starts), size(sizes), size(steps))
        case Pad(low=low, high=high):
            widths = list(zip(size(low), size(high), strict=True))
            return np.pad(x[0], widths, constant_values=x[1].item()) if widths else x[0]
        case Concat(axis=axis):
            return np.concatenate(x, axis=axis)
        case Contract(batch=batch, summed=summed, sums=sums):
            return contract(*_widened(x, sums), batch, summed)
        case Convolve() as primitive:
            low, sizes = size(primitive.low), size(primitive.sizes)
            return convolve(primitive, *_widened(x, primitive.sums), low, sizes)
        case Window() as primitive:
            return window(primitive, x[0], size(primitive.low), size(primitive.sizes))
        case Recurrence() as primitive:
            return recur(primitive, x, evaluate_node)
        case _:
            return _index(current, x)


def _widened(x: Sequence[Array], sums: DType | None) -> tuple[Array, Array]:
    """Two operands in the type in which their products are summed."""
    left, right = x
    return (left, right) if sums is None else (_cast(left, sums), _cast(right, sums))


def _cast(x: Array, dtype: DType) -> Array:
    if dtype is DType.BOOL:
        return x != 0
    return x.astype(dtype.numpy)


def reduce(kind: str, x: Array, axes: tuple[int, ...]) -> Array:
    """Reduction with the identity of ``kind`` over nothing."""
    match kind:
        case "sum":
            return np.add.reduce(x, axis=axes, dtype=x.dtype)
        case "product":
            return np.multiply.reduce(x, axis=axes, dtype=x.dtype)
        case "maximum":
            return np.maximum.reduce(x, axis=axes, initial=identity(kind, x.dtype))
        case _:
            return np.minimum.reduce(x, axis=axes, initial=identity(kind, x.dtype))


def identity(kind: str, dtype: np.dtype[Any]) -> Any:
    """The neutral element of a reduction kind for a numpy dtype."""
    if kind in ("sum", "add"):
        return dtype.type(0)
    if kind in ("product", "multiply"):
        return dtype.type(1)
    least = kind == "maximum"
    if dtype.kind == "b":
        return not least
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if least else np.iinfo(dtype).max
    return dtype.type(-np.inf if least else np.inf)


def _arg_reduce(kind: str, x: Array, axis: int, last: bool) -> Array:
    pick = np.argmax if kind == "maximum" else np.argmin
    if x.shape[axis] == 0:  # no element to point at: 0, as kernels give
        return np.zeros(x.shape[:axis] + x.shape[axis + 1 :], dtype=np.int64)
    if not last:
        return pick(x, axis=axis)
    return x.shape[axis] - 1 - pick(np.flip(x, axis), axis=axis)


def _scan(kind: str, x: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
    work = np.flip(x, axis) if reverse else x
    running = np.cumsum if kind == "sum" else np.cumprod
    out = running(work, axis=axis, dtype=x.dtype)
    if exclusive:
        out = np.roll(out, 1, axis)
        first = [slice(None)] * x.ndim
        first[axis] = slice(0, 1)
        out[tuple(first)] = identity(kind, x.dtype)
    return np.flip(out, axis) if reverse else out


def _slice(
    x: Array, starts: tuple[int, ...], sizes: tuple[int, ...], steps: tuple[int, ...]
) -> Array:
    picks = [s + np.arange(n) * d for s, n, d in zip(starts, sizes, steps, strict=True)]
    return x[np.ix_(*picks)] if picks else x


def _checked(indices: Array, size: int) -> Array:
    bad = (indices < -size) | (indices >= size)
    if np.any(bad):
        value = int(indices[bad].reshape(-1)[0])
        raise ExecutionError(f"index {value} is out of bounds for an axis of size {size}")
    return np.where(indices < 0, indices + size, indices)


def _index(current: Node, x: list[Array]) -> Array:
    match current.primitive:
        case Gather(axis=axis):
            return np.take(x[0], _checked(x[1], x[0].shape[axis]), axis=axis)
        case GatherElements(axis=axis):
            return x[0][_element_index(x[0].shape, x[1], axis)]
        case GatherND(batch=batch):
            return x[0][_nd_index(x[0].shape, x[1], batch)]
        case ScatterElements(axis=axis, reduction=reduction):
            out = x[0].copy()
            _scatter(out, _element_index(out.shape, x[1], axis), x[2], reduction)
            return out
        case ScatterND(reduction=reduction):
            out = x[0].copy()
            _scatter(out, _nd_index(out.shape, x[1], 0), x[2], reduction)
            return out
        case _:
            raise AssertionError(f"no meaning for {current.primitive}")


def _element_index(shape: tuple[int, ...], indices: Array, axis: int) -> tuple[Array, ...]:
    index = list(np.indices(indices.shape, sparse=True))
    index[axis] = _checked(indices, shape[axis])
    return tuple(index)


def _nd_index(shape: tuple[int, ...], indices: Array, batch: int) -> tuple[Array, ...]:
    lead = [
        np.arange(shape[b]).reshape([-1 if a == b else 1 for a in range(indices.ndim - 1)])
        for b in range(batch)
    ]
    depth = indices.shape[-1]
    picks = [_checked(indices[..., d], shape[batch + d]) for d in range(depth)]
    return tuple(np.broadcast_arrays(*lead, *picks)) if lead or picks else ()


def _scatter(out: Array, index: tuple[Array, ...], updates: Array, reduction: str) -> None:
    if reduction == "none":
        positions = np.broadcast_arrays(*index) if index else []
        for where in np.ndindex(*(positions[0].shape if positions else ())):
            out[tuple(int(p[where]) for p in positions)] = updates[where]
        return
    functions: dict[str, np.ufunc] = {
        "add": np.add,
        "multiply": np.multiply,
        "maximum": np.maximum,
        "minimum": np.minimum,
    }
    functions[reduction].at(out, index, updates)
