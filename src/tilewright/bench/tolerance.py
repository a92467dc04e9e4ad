"""How far two right implementations of one model may differ: from its dtypes and its depth.

Every value is taken as the sum of independent rounding errors along the longest way to it. A node
of a dtype with machine epsilon ε that adds up K products contributes ε² · K to the variance;
elementwise work counts as K = 1, moving data as 0, rounding to 8-bit integers as ε = 2⁻⁷. A product
of narrow operands (``precision=`` bfloat16 or int8) errs by both of them: its data was rounded by a
node of its own, with ε = 2⁻⁷ of either type, and its weights add as much again; a relative error of
every factor is one of the sum, however many there are. So ``tolerances`` wants the graph with
those products as they are computed, see ``compile_graphs.narrowed_graph``. The
tolerance of an output, relative to its largest magnitude, is ``FACTOR`` standard deviations of its
worst variant. Integers and booleans must be equal, but for 8-bit integers that floats were rounded
to: those may be one apart. May import shape and ir. Start with :func:`tolerances`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node
from tilewright.ir.primitives import (
    ArgReduce,
    Cast,
    Contract,
    Convolve,
    Map,
    Opaque,
    Pad,
    Recurrence,
    Reduce,
    Reshape,
    Scan,
    ScatterElements,
    ScatterND,
    Transpose,
    Window,
)
from tilewright.shape import product

# Both sides err (√2), by half an epsilon at most for each rounding, and the worst of many elements
# lies some five deviations out: 5 · √2 / 2, rounded up.
FACTOR = 4.0
FORMULA = "4 · √(Σ ε²·K) along the longest way to the output, relative to its largest magnitude"
NARROW_FORMULA = f"{FORMULA}; products of narrow operands add 2 · (2⁻⁷)²"
# An operator run by the reference may do anything; a size that only data decides may be anything.
_UNKNOWN_LENGTH = 1024
_UNKNOWN_SIZE = 64
_QUANTISED = 2.0**-7  # a step of numbers of 8 bits, relative to the largest
# The spacing of numbers at 1; narrower floats than bfloat16 are judged like it.
_EPSILON = {
    DType.FLOAT64: 2.0**-52,
    DType.FLOAT32: 2.0**-23,
    DType.FLOAT16: 2.0**-10,
    DType.COMPLEX128: 2.0**-52,
    DType.COMPLEX64: 2.0**-23,
}
_COARSE = 2.0**-7  # of bfloat16
_BYTES = (DType.INT8, DType.UINT8)


def tolerances(graph: Graph, sizes: Mapping[str, int]) -> dict[str, float]:
    """The tolerance of each output at the given sizes of dimensions, by name.

    Relative to the largest magnitude for floats; in steps for integers, where 0.0 means equal.
    """
    variance: dict[Node, float] = {}
    for node in graph.nodes():
        inherited = max((variance[operand] for operand in node.inputs), default=0.0)
        variance[node] = inherited + _contribution(node, sizes) + _of_weights(node)
    return {name: _allowed(root, variance[root]) for name, root in graph.outputs}


def _allowed(root: Node, variance: float) -> float:
    if _is_inexact(root.dtype):
        return FACTOR * math.sqrt(variance)
    return 1.0 if root.dtype in _BYTES and variance > 0.0 else 0.0


def _contribution(node: Node, sizes: Mapping[str, int]) -> float:
    is_cast = isinstance(node.primitive, Cast)
    if is_cast and node.inputs[0].dtype.is_float and node.dtype in _BYTES:
        return _QUANTISED**2
    if not _is_inexact(node.dtype):
        return 0.0
    return _EPSILON.get(node.dtype, _COARSE) ** 2 * _length(node, sizes)


def _of_weights(node: Node) -> float:
    """What the rounded weights of a product add; its rounded data is a node of its own."""
    primitive = node.primitive
    if not isinstance(primitive, Contract | Convolve) or primitive.sums is None:
        return 0.0
    return _QUANTISED**2 if _is_rounded(node.inputs[0]) else 0.0


def _is_rounded(data: Node) -> bool:
    """Whether the data of a narrow product was converted from floats, and not given in bytes."""
    while isinstance(data.primitive, Pad | Reshape | Transpose):
        data = data.inputs[0]
    return isinstance(data.primitive, Cast) and data.inputs[0].dtype.is_float


def _is_inexact(dtype: DType) -> bool:
    return not (dtype.is_integer or dtype in (DType.BOOL, DType.STRING, DType.OBJECT))


def _length(node: Node, sizes: Mapping[str, int]) -> int:
    """How many terms one element of the node adds up."""
    operands = node.inputs
    match node.primitive:
        case Contract(summed=summed):
            extent = product(operands[0].shape[axis] for axis, _ in summed)
        case Convolve():
            extent = product(operands[1].shape[1:])
        case Reduce(axes=axes):
            extent = product(operands[0].shape[axis] for axis in axes)
        case Scan(axis=axis):
            extent = operands[0].shape[axis]
        case Recurrence():
            extent = node.shape[0] * node.shape[3]
        # All updates may meet in one element.
        case ScatterElements(axis=axis, reduction="add" | "multiply"):
            extent = operands[1].shape[axis]
        case ScatterND(reduction="add" | "multiply"):
            extent = product(operands[1].shape[:-1])
        case Window(kernel=kernel):
            return math.prod(kernel)
        case Map() | Cast() | ArgReduce():
            return 1
        case Opaque():
            return _UNKNOWN_LENGTH
        case _:
            return 0
    known = {name: sizes.get(name, _UNKNOWN_SIZE) for name in extent.free_symbols}
    return max(extent.evaluate(known), 1)
