"""What is known and not a finding: documented limits of the compiler, and errors of the oracles.

Each entry has its reason. An entry that no longer holds is to go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .case import Array

# Refusals that are right though both oracles answer: a pattern of the message, and why.
LIMITS: tuple[tuple[str, str], ...] = (
    (
        r"(?i)index -?\d+ is out of bounds for an axis of size 0",
        "an index into an axis without elements is wrong even where nothing is read",
    ),
)

# Nodes of which the ONNX reference evaluator is known to be wrong: the operator, one of its
# attributes or nothing, and why. It does not count for what is computed from them.
REFERENCE_ERRORS: tuple[tuple[str, str, object, str], ...] = (
    ("Resize", "coordinate_transformation_mode", b"pytorch_half_pixel",
     "an axis that becomes 1 long is read at -0.5 instead of 0"),
    ("LpNormalization", "p", 1, "it divides by the sum, not by the sum of magnitudes"),
    ("GlobalMaxPool", "", None, "images of other ranks than two lose an axis"),
    ("AveragePool", "ceil_mode", 1, "dilated windows begin at other places than without it"),
    ("LpPool", "", None, "it takes NaN for padding, and begins elsewhere with ceil_mode"),
    ("Gelu", "", None, "its constants are float32 ones, in float64 too"),
    ("LogSoftmax", "", None, "it is the logarithm of a softmax that may have vanished"),
    ("LRN", "", None, "it sums as many channels as the batch has elements"),
)  # fmt: skip

# The same of ONNX Runtime.
RUNTIME_ERRORS: tuple[tuple[str, str], ...] = (
    ("InstanceNormalization", "it adds mean * scale to the bias, which cancels where values agree"),
)

# The same for one of several outputs: the operator, the number of the output, and why.
REFERENCE_OUTPUT_ERRORS: tuple[tuple[str, int, str], ...] = (
    ("MaxPool", 1, "places are counted anew in every channel, not over the whole tensor"),
)


def limit(message: str) -> str | None:
    """Why a refusal with this message is no finding; None if it is one."""
    return next((why for pattern, why in LIMITS if re.search(pattern, message)), None)


def doubtful(model: onnx.ModelProto) -> set[str]:
    """Values that depend on an operator of which the ONNX reference evaluator is known wrong."""
    found = _depending(model, _is_wrong_in_the_reference)
    for node in model.graph.node:
        for operator, output, _ in REFERENCE_OUTPUT_ERRORS:
            if node.op_type == operator:
                found.update(node.output[output : output + 1])
    return found


def doubtful_in_runtime(model: onnx.ModelProto) -> set[str]:
    """Values that ONNX Runtime gets wrong.

    It computes Gelu of doubles with float32 constants, and takes the greatest integers for the very
    end of a slice backwards, too.
    """
    types = [v.type.tensor_type.elem_type for v in model.graph.input]
    types += [c.data_type for c in model.graph.initializer]
    wrong = {operator for operator, _ in RUNTIME_ERRORS}
    if onnx.TensorProto.DOUBLE in types:
        wrong.add("Gelu")
    known = _constants(model)
    greatest = [np.iinfo(np.int32).max, np.iinfo(np.int64).max]

    def is_wrong(node: onnx.NodeProto) -> bool:
        if node.op_type != "Slice" or len(node.input) < 5:
            return node.op_type in wrong
        ends, steps = (known.get(node.input[i], np.array([-1])) for i in (2, 4))
        return bool(np.isin(ends, greatest).any() and (steps < 0).any())

    return _depending(model, is_wrong)


def _constants(model: onnx.ModelProto) -> dict[str, Array]:
    """Initializers and what Constant nodes hold."""
    known = {c.name: numpy_helper.to_array(c) for c in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            known[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return known


def doubtful_of_nothing(model: onnx.ModelProto) -> set[str]:
    """Values that ONNX Runtime may get wrong where a size is 0.

    It takes an axis that is counted from the end for none where a reduction has no elements, and
    leaves the memory of a product by a vector without elements as it was.
    """
    known = _constants(model)

    def is_wrong(node: onnx.NodeProto) -> bool:
        return node.op_type == "MatMul" or any(axis < 0 for axis in _reduced(node, known))

    return _depending(model, is_wrong)


def _pads_below_zero(node: onnx.NodeProto) -> bool:
    """Whether the automatic padding of a node may come out below 0: where strides exceed windows.

    The reference then leaves elements out at the ends; elsewhere, padding is at least 0.
    """
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if not given.get("auto_pad", b"").startswith(b"SAME"):
        return False
    kernel = given.get("kernel_shape", [1])
    strides = given.get("strides", [1] * len(kernel))
    return any(step > size for step, size in zip(strides, kernel, strict=True))


def _pads_otherwise(node: onnx.NodeProto) -> bool:
    """Whether the reference pads what a MaxPool with steps of 1 reads in its own way.

    It takes the numbers in another order, those of other images than planes for none, and adds the
    padding of results that are rounded up twice.
    """
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    pads = given.get("pads", [])
    steps = {*given.get("strides", ()), *given.get("dilations", ())}
    if node.op_type != "MaxPool" or not any(pads) or steps - {1}:
        return False
    return len(pads) != 4 or pads[1] != pads[2] or bool(given.get("ceil_mode"))


def _is_wrong_in_the_reference(node: onnx.NodeProto) -> bool:
    if _pads_below_zero(node) or _pads_otherwise(node):
        return True
    return any(
        node.op_type == operator
        and (not name or any(a.name == name for a in node.attribute))
        and (not name or helper.get_node_attr_value(node, name) == value)
        for operator, name, value, _ in REFERENCE_ERRORS
    )


def _depending(model: onnx.ModelProto, is_wrong: Callable[[onnx.NodeProto], bool]) -> set[str]:
    """Every value that depends on a node of these."""
    found: set[str] = set()
    for node in model.graph.node:
        # A body may read any value around it.
        has_body = any(a.type == onnx.AttributeProto.GRAPH for a in node.attribute)
        if is_wrong(node) or not found.isdisjoint(node.input) or (has_body and found):
            found.update(node.output)
    return found


def _reduced(node: onnx.NodeProto, known: Mapping[str, Array]) -> list[int]:
    """The axes of a reduction; -1 for those that are not known."""
    if node.op_type in ("ArgMax", "ArgMin"):
        return [a.i for a in node.attribute if a.name == "axis"]
    if not node.op_type.startswith("Reduce"):
        return []
    given = [axis for a in node.attribute if a.name == "axes" for axis in a.ints]
    if len(node.input) > 1 and node.input[1]:
        given += known.get(node.input[1], np.array(-1)).ravel().tolist()
    return given


def unspecified(model: onnx.ModelProto, values: Mapping[str, Array]) -> str | None:
    """Why no oracle can be asked for these values of a model; None if one can.

    A computed size of 0 in the target of a Reshape is an empty axis here, as it is where the
    numbers come from, and a copied size by the letter of the standard. With allowzero the standard
    forbids -1 beside 0. The mean of no elements is not a number, or 0, or undefined. The place of
    the largest of no elements is nowhere. Of no images the reference pools without their padding.
    Of what it refuses, as the mean of no images, it does not say whether windows fit.
    The largest of padding only is -inf here, 0 in the reference, and refused by ONNX Runtime. A
    slice backwards from before the first element begins at the first by the standard, and is empty
    in the reference. The logarithm of a sum of zeros is not a number in the reference. A product of
    many factors overflows in one order and vanishes in another.
    """
    constants = {c.name for c in model.graph.initializer}
    known = {c.name: numpy_helper.to_array(c) for c in model.graph.initializer}
    known |= {name: np.asarray(value) for name, value in values.items()}
    # What the reference refuses to compute may be empty if something that it is given is.
    unknown: list[int] = [] if any(np.size(value) == 0 for value in values.values()) else [0]
    for node in model.graph.node:
        if node.op_type == "Slice" and _begins_before_the_first(node, known):
            return "Slice backwards from before the first element"
        if node.op_type in ("ArgMax", "ArgMin") and node.input[0] in values:
            axes = [a.i for a in node.attribute if a.name == "axis"] or [0]
            if np.asarray(values[node.input[0]]).shape[axes[0]] == 0:
                return f"{node.op_type} of nothing"
        operand = np.asarray(values.get(node.input[0], 0) if node.input else 0)
        if node.op_type == "ReduceLogSumExp" and (operand == -np.inf).any():
            return "ReduceLogSumExp of -inf"
        if node.op_type == "ReduceProd" and _depends_on_the_order(operand):
            return "ReduceProd of very large and very small products"
        if node.op_type == "ReduceMean" and np.size(values.get(node.input[0], unknown)) == 0:
            return "ReduceMean of nothing"
        if node.op_type in ("MaxPool", "AveragePool", "LpPool"):
            if node.input[0] not in known:
                return "pooling of what the reference refuses"
            if _fits_nowhere(node, known[node.input[0]].shape[2:]):
                return "pooling by windows that fit nowhere"
        is_pool = node.op_type == "MaxPool" and node.input[0] in values
        if is_pool and np.asarray(values[node.input[0]]).size == 0:
            return "MaxPool of nothing"
        if is_pool and _has_window_of_padding(node, np.asarray(values[node.input[0]]).shape[2:]):
            return "MaxPool of padding only"
        if node.op_type != "Reshape" or node.input[1] in constants:
            continue
        allows_zero = any(a.name == "allowzero" and a.i for a in node.attribute)
        if not values.keys() >= set(node.input):
            if allows_zero:  # the reference has refused what the target is computed from
                return "Reshape to an empty axis and one to infer"
            continue
        data, target = (np.asarray(values[name]) for name in node.input)
        zeros = [axis for axis, size in enumerate(target) if size == 0]
        if allows_zero:
            if zeros and -1 in target:
                return "Reshape to an empty axis and one to infer"
        elif any(axis >= data.ndim or data.shape[axis] for axis in zeros):
            return "Reshape to a computed size of 0"
    return None


def _depends_on_the_order(factors: Array) -> bool:
    """Whether some of the factors multiply to more than any number, and others to less."""
    if factors.dtype.kind != "f":
        return False
    known = np.abs(factors[np.isfinite(factors) & (factors != 0)]).astype(np.float64)
    logarithms, limits = np.log2(known), np.finfo(factors.dtype)
    overflows = logarithms[logarithms > 0].sum() >= limits.maxexp
    return bool(overflows and logarithms[logarithms < 0].sum() <= limits.minexp)


def _begins_before_the_first(node: onnx.NodeProto, values: Mapping[str, Array]) -> bool:
    """Whether a Slice goes backwards from further than the whole axis before its end."""
    if len(node.input) < 5 or not values.keys() >= {node.input[0], node.input[1], node.input[4]}:
        return False
    data, starts, steps = (values[node.input[i]] for i in (0, 1, 4))
    axes = values.get(node.input[3], np.arange(len(starts))) if node.input[3] else range(data.ndim)
    triples = zip(starts, axes, steps, strict=False)
    return any(step < 0 and start < -data.shape[axis] for start, axis, step in triples)


def _fits_nowhere(node: onnx.NodeProto, sizes: tuple[int, ...]) -> bool:
    """Whether a window is wider than the padded data: ONNX Runtime rounds towards 0 there."""
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    rank = len(sizes)
    dilations, pads = given.get("dilations", [1] * rank), given.get("pads", [0] * (2 * rank))
    reach = [
        step * (taps - 1) + 1 for step, taps in zip(dilations, given["kernel_shape"], strict=True)
    ]
    return any(sizes[a] + pads[a] + pads[rank + a] < reach[a] for a in range(rank))


def _has_window_of_padding(node: onnx.NodeProto, sizes: tuple[int, ...]) -> bool:
    """Whether a window of a pooling node reads no element of the data along some axis."""
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    rank = len(sizes)
    kernel = given["kernel_shape"]
    strides, dilations = given.get("strides", [1] * rank), given.get("dilations", [1] * rank)
    pads = given.get("pads", [0] * (2 * rank))
    for axis, size in enumerate(sizes):
        taps = dilations[axis] * np.arange(kernel[axis])
        span = size + pads[axis] + pads[rank + axis] - taps[-1] - 1
        rounded = -(-span // strides[axis]) if given.get("ceil_mode") else span // strides[axis]
        places = strides[axis] * np.arange(rounded + 1)[:, None] - pads[axis] + taps
        if places.size and not ((places >= 0) & (places < size)).any(axis=1).all():
            return True
    return False
