"""The two oracles, and how far from them a right answer may lie.

The ONNX reference evaluator runs node by node, so it can also run with every operand of an inexact
node moved by a few rounding errors: how far the outputs move then is how far two right
implementations may differ, whatever cancels or amplifies between. A value that jumps, as a rounded
one may, is free. Start with :class:`Reference`, :func:`onnxruntime_session`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime

from .builder import evaluator
from .case import Array
from .generate import names_read

# Operators that round nothing: moving data, choosing among values, exact functions.
EXACT = frozenset((
    "Abs", "And", "ArgMax", "ArgMin", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr",
    "BitwiseXor", "Ceil", "Clip", "Compress", "Concat", "Constant", "ConstantOfShape",
    "DepthToSpace", "Equal", "Expand", "EyeLike", "Flatten", "Floor", "Gather",
    "GatherElements", "GatherND", "GlobalMaxPool", "Greater", "GreaterOrEqual", "Hardmax",
    "Identity", "IsInf", "IsNaN", "Less", "LessOrEqual", "Max", "MaxPool", "Min", "Neg",
    "NonZero", "Not", "OneHot", "Or", "Pad", "Range", "ReduceMax", "ReduceMin", "Relu",
    "Reshape", "ReverseSequence", "Round", "ScatterElements", "ScatterND", "Shape", "Sign",
    "Size", "Slice", "SpaceToDepth", "Split", "Squeeze", "ThresholdedRelu", "Tile", "TopK",
    "Transpose", "Trilu", "Unique", "Unsqueeze", "Where", "Xor",
))  # fmt: skip
COARSE = ("Erf",)  # what the reference evaluator computes in float32 even for float64
TRIALS = 3
# Before an answer is called wrong: two values that rounding may swap are swapped in a quarter of
# the trials.
MORE_TRIALS = 24
# How far operands are moved, in units of the type's epsilon. An implementation errs by about one
# for each node; sums in another order and approximated functions by some more.
STEPS = {"float16": 4.0, "float32": 16.0, "float64": 16.0}

Values = dict[str, Array]
_Step = tuple[onnx.NodeProto, tuple[str, ...], Callable[[dict[str, Any]], list[Array]]]


class Reference:
    """The ONNX reference evaluator of one model, node by node."""

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self.outputs = [output.name for output in graph.output]
        self._constants = {c.name: onnx.numpy_helper.to_array(c) for c in graph.initializer}
        known = {*self._constants, *(value.name for value in graph.input)}
        self._steps: list[_Step] = []
        for node in graph.node:
            operands = tuple(sorted(names_read([node]) & known))
            known |= set(node.output)
            opset = model.opset_import[0].version
            self._steps.append((node, operands, evaluator(node, operands, opset)))

    def values(self, feeds: Values, chance: np.random.Generator | None = None) -> Values:
        """Every value but what it refuses and what needs that; with ``chance``, operands of
        inexact nodes are moved at random."""
        known = {**self._constants, **feeds}
        for node, operands, evaluate in self._steps:
            if not known.keys() >= set(operands):
                continue
            given = {name: known[name] for name in operands}
            is_exact = node.op_type in EXACT
            if chance is not None and not is_exact:
                given = {name: _moved(array, chance) for name, array in given.items()}
            try:
                results = evaluate(given)
            except Exception:  # it refuses in many ways
                continue
            for name, result in zip(node.output, results, strict=True):
                if chance is not None and not is_exact:
                    result = _moved(result, chance, node.op_type in COARSE, _addends(given, result))
                    if node.op_type == "Resize":
                        result = _displaced(result, chance)
                    if node.op_type == "Gelu":
                        result = _cancelled(result, given[node.input[0]], chance)
                    if node.op_type in ("Celu", "Elu", "Selu"):
                        result = _cancelled(result, np.ones_like(result), chance)
                known[name] = result
        return known

    def allowances(self, feeds: Values, base: Values, seed: int, trials: int = TRIALS) -> Values:
        """The difference that each element of each output may have; infinite where it jumps."""
        spreads = {name: np.zeros(base[name].shape) for name in self.outputs if name in base}
        for trial in range(trials):
            moved = self.values(feeds, np.random.default_rng([seed, trial]))
            for name, spread in spreads.items():
                if name not in moved or moved[name].shape != base[name].shape:
                    spread[...] = np.inf
                else:
                    np.maximum(spread, _distance(moved[name], base[name]), out=spread)
        return {name: _levelled(spread) for name, spread in spreads.items()}


def _addends(given: dict[str, Any], result: Array) -> float:
    """How many elements of an operand there are for each of a result, which may be their sum."""
    sizes = [np.size(array) for array in given.values()]
    return max(sizes, default=0) / max(result.size, 1)


def _moved(
    array: Array, chance: np.random.Generator, is_coarse: bool = False, addends: float = 1.0
) -> Array:
    """An array with the errors of rounding.

    A running sum of n elements errs by at most n / 2 epsilons of the sum of their magnitudes, and
    by about half of that where equal elements are all rounded the same way. Elements of half
    precision are summed in float32.
    """
    if array.dtype.kind != "f":
        return array
    step = STEPS.get(array.dtype.name, 4.0) * float(np.finfo(array.dtype).eps)
    if is_coarse:
        step = max(step, STEPS["float32"] * float(np.finfo(np.float32).eps))
    running = np.finfo(np.float64 if array.dtype == np.float64 else np.float32)
    step = max(step, addends / 4 * float(running.eps))
    signs = chance.choice((-step, step), array.shape)
    with np.errstate(all="ignore"):
        return (array.astype(np.float64) * (1.0 + signs)).astype(array.dtype)


def _cancelled(array: Array, operand: Array, chance: np.random.Generator) -> Array:
    """``operand`` times 1 + t, with t rounded: near -1, little more than that error is left."""
    if array.dtype.kind != "f":
        return array
    step = 2.0 * float(np.finfo(array.dtype).eps)
    signs = chance.choice((-step, step), array.shape)
    return (array.astype(np.float64) + signs * operand.astype(np.float64)).astype(array.dtype)


def _displaced(array: Array, chance: np.random.Generator) -> Array:
    """Elements read a little beside their place: positions are rounded, too, with their size."""
    if array.dtype.kind != "f":
        return array
    step = 2.0 * max(float(np.finfo(array.dtype).eps), float(np.finfo(np.float32).eps))
    moved = array.astype(np.float64)
    for axis, size in enumerate(array.shape):
        if size > 1 and array.size:
            moved += np.gradient(moved, axis=axis) * (chance.choice((-step, step)) * size)
    return moved.astype(array.dtype)


def _distance(one: Array, other: Array) -> Array:
    """How far apart elements are; infinite for integers that differ, or one that is not finite."""
    same = (one == other) | ((one != one) & (other != other))
    if one.dtype.kind != "f":
        return np.where(same, 0.0, np.inf)
    with np.errstate(all="ignore"):
        apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
    return np.where(same, 0.0, np.where(np.isfinite(apart), apart, np.inf))


def _levelled(spread: Array) -> Array:
    """Half the usual spread is allowed everywhere: few trials may meet one element's middle."""
    finite = spread[np.isfinite(spread)]
    usual = float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0
    return spread + usual / 2


def onnxruntime_session(model: bytes) -> Callable[[Values], Values]:
    """ONNX Runtime without optimisations and threads, from inputs to outputs by name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    taken = {value.name for value in session.get_inputs()}

    def run(feeds: Values) -> Values:
        given = {name: array for name, array in feeds.items() if name in taken}
        return dict(zip(names, session.run(names, given), strict=True))

    return run


def difference(ours: Array, expected: Array, allowed: Array | None) -> str | None:
    """What is wrong with our result beside one oracle's; ``allowed`` as :meth:`allowances` says.

    Without it floats may differ by a thousandth of the largest magnitude.
    """
    if ours.dtype != expected.dtype:
        return f"type {ours.dtype} for {expected.dtype}"
    if ours.shape != expected.shape:
        if allowed is not None and allowed.size and np.isinf(allowed).all():
            return None  # a size that rounding decides
        return f"shape {ours.shape} for {expected.shape}"
    if allowed is None or allowed.shape != ours.shape:
        scale = 0.0
        if ours.dtype.kind == "f":
            finite = np.abs(expected[np.isfinite(expected)].astype(np.float64))
            scale = float(finite.max(initial=0.0)) * (2e-2 if ours.dtype.itemsize == 2 else 1e-3)
        allowed = np.full(ours.shape, scale)
    if expected.dtype.kind == "f":  # the largest of nothing, as ONNX Runtime has it
        expected = np.where(expected == np.finfo(expected.dtype).min, -np.inf, expected)
    wrong = _distance(ours, expected) > allowed
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    text = f"{int(wrong.sum())} of {ours.size} elements; {ours[at]} for {expected[at]} at {at}"
    return f"{text}, {allowed[at]:.3g} allowed"
