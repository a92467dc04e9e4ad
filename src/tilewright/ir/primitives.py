"""The primitives: attribute records and how each one's result type follows from its operands.

The classes of Korch (its section 3), *elementwise* (map, cast), *reduce and broadcast*, *layout*,
*linear* and *opaque*, with three more: *source* (input, constant, dimension, iota), *index*, and
``Recurrence``, whose steps are a graph of their own. A record holds only what the operands do not
say; ``result`` derives element type and symbolic shape. Shapes must agree structurally (after the
scope has resolved them); ``Broadcast`` is the one place where a size may be 1 or equal, known only
at run time. Start with ``Map``, ``Broadcast`` and ``Contract``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilewright.ir.constants import Constant
from tilewright.ir.dtype import NARROW, DType
from tilewright.ir.scalar import SCALAR_FUNCTIONS, result_type
from tilewright.ir.tensor_type import PrimitiveError, Shape, TensorType, demand
from tilewright.shape import Expr, constant, total

if TYPE_CHECKING:
    from tilewright.ir.recurrence import Steps

# ---------------------------------------------------------------- sources


@dataclass(frozen=True)
class Input:
    """A graph input, by name."""

    name: str
    dtype: DType
    shape: Shape

    def result(self) -> TensorType:
        return TensorType(self.dtype, self.shape)


@dataclass(frozen=True)
class Dimension:
    """A scalar int64 whose value is a shape expression."""

    value: Expr

    def result(self) -> TensorType:
        return TensorType(DType.INT64, ())


@dataclass(frozen=True)
class Iota:
    """int64 tensor of ``shape`` whose element is its own index along ``axis``."""

    shape: Shape
    axis: int

    def result(self) -> TensorType:
        demand(0 <= self.axis < len(self.shape), "iota axis {} of {}", self.axis, len(self.shape))
        return TensorType(DType.INT64, self.shape)


# ---------------------------------------------------------------- elementwise


@dataclass(frozen=True)
class Map:
    """A scalar function applied to operands of one shape."""

    function: str

    def result(self, *operands: TensorType) -> TensorType:
        row = SCALAR_FUNCTIONS[self.function]
        try:
            dtype = result_type(row, tuple(o.dtype for o in operands))
        except ValueError as error:
            raise PrimitiveError(str(error)) from error
        if any(o.shape != operands[0].shape for o in operands):
            shown = ", ".join(map(str, operands))
            raise PrimitiveError(f"{self.function}: shapes differ: {shown}")
        return TensorType(dtype, operands[0].shape)


@dataclass(frozen=True)
class Cast:
    """Conversion of every element: floats to integers truncate, anything to bool is "not zero"."""

    dtype: DType

    def result(self, operand: TensorType) -> TensorType:
        return TensorType(self.dtype, operand.shape)


# ---------------------------------------------------------------- reduce and broadcast


@dataclass(frozen=True)
class Reduce:
    """``kind`` ("sum", "product", "maximum", "minimum") over ``axes``, which disappear.

    Over nothing: 0, 1, the least and the greatest value of the type.
    """

    kind: str
    axes: tuple[int, ...]

    def result(self, operand: TensorType) -> TensorType:
        rank = len(operand.shape)
        demand(all(0 <= a < rank for a in self.axes), "reduce axes {} of rank {}", self.axes, rank)
        demand(list(self.axes) == sorted(set(self.axes)), "reduce axes must increase")
        kept = tuple(s for a, s in enumerate(operand.shape) if a not in self.axes)
        return TensorType(operand.dtype, kept)


@dataclass(frozen=True)
class ArgReduce:
    """int64 index of the first or last "maximum" or "minimum" along ``axis``, which disappears."""

    kind: str
    axis: int
    last: bool

    def result(self, operand: TensorType) -> TensorType:
        kept = tuple(s for a, s in enumerate(operand.shape) if a != self.axis)
        return TensorType(DType.INT64, kept)


@dataclass(frozen=True)
class Scan:
    """Running "sum" or "product" along ``axis``; exclusive leaves the own element out."""

    kind: str
    axis: int
    exclusive: bool
    reverse: bool

    def result(self, operand: TensorType) -> TensorType:
        return operand


@dataclass(frozen=True)
class Broadcast:
    """Operand axis i becomes axis ``axes[i]`` of ``shape``; other axes are new (repeated).

    A mapped axis of size 1 is repeated, one of equal size is kept. Where the sizes are neither the
    constant 1 nor structurally equal, the choice is made at run time.
    """

    shape: Shape
    axes: tuple[int, ...]

    def result(self, operand: TensorType) -> TensorType:
        demand(len(self.axes) == len(operand.shape), "broadcast needs an axis per operand axis")
        demand(list(self.axes) == sorted(set(self.axes)), "broadcast axes must increase")
        demand(all(0 <= a < len(self.shape) for a in self.axes), "broadcast axis out of range")
        return TensorType(operand.dtype, self.shape)


# ---------------------------------------------------------------- layout


@dataclass(frozen=True)
class Reshape:
    """The same elements in row-major order under another shape (sizes agree by a guard)."""

    shape: Shape

    def result(self, operand: TensorType) -> TensorType:
        return TensorType(operand.dtype, self.shape)


@dataclass(frozen=True)
class Transpose:
    """Axis i of the result is axis ``permutation[i]`` of the operand."""

    permutation: tuple[int, ...]

    def result(self, operand: TensorType) -> TensorType:
        rank = len(operand.shape)
        demand(sorted(self.permutation) == list(range(rank)), "not a permutation of {} axes", rank)
        return TensorType(operand.dtype, tuple(operand.shape[p] for p in self.permutation))


@dataclass(frozen=True)
class Slice:
    """Element i of axis a is element ``starts[a] + i * steps[a]``; all in range by construction."""

    starts: Shape
    sizes: Shape
    steps: Shape

    def result(self, operand: TensorType) -> TensorType:
        rank = len(operand.shape)
        fits = len(self.starts) == len(self.sizes) == len(self.steps) == rank
        demand(fits, "slice needs {} starts, sizes and steps", rank)
        return TensorType(operand.dtype, self.sizes)


@dataclass(frozen=True)
class Pad:
    """``low`` and ``high`` more elements per axis with the value of the scalar second operand.

    Negative amounts are not allowed (slice first).
    """

    low: Shape
    high: Shape

    def result(self, operand: TensorType, value: TensorType) -> TensorType:
        demand(value.shape == () and value.dtype is operand.dtype, "pad value: scalar, same type")
        demand(len(self.low) == len(self.high) == len(operand.shape), "pad needs every axis")
        sizes = zip(operand.shape, self.low, self.high, strict=True)
        return TensorType(operand.dtype, tuple(size + low + high for size, low, high in sizes))


@dataclass(frozen=True)
class Concat:
    """The operands one after another along ``axis``."""

    axis: int

    def result(self, *operands: TensorType) -> TensorType:
        first = operands[0]
        for other in operands[1:]:
            same = all(
                a == self.axis or s is first.shape[a] for a, s in enumerate(other.shape)
            ) and len(other.shape) == len(first.shape)
            demand(same and other.dtype is first.dtype, "concat: {} and {}", first, other)
        size = total(o.shape[self.axis] for o in operands)
        shape = (*first.shape[: self.axis], size, *first.shape[self.axis + 1 :])
        return TensorType(first.dtype, shape)


# ---------------------------------------------------------------- linear


@dataclass(frozen=True)
class Contract:
    """Sum of products: ``batch`` and ``summed`` pair axes of the two operands.

    The result has the batch axes, then the free axes of the left, then those of the right operand.
    Operands have the type of the result; with ``sums`` they are narrower, one of ``NARROW``, and
    are multiplied and added up as elements of that type.
    """

    batch: tuple[tuple[int, int], ...]
    summed: tuple[tuple[int, int], ...]
    sums: DType | None = None

    def result(self, left: TensorType, right: TensorType) -> TensorType:
        made = _sum_type(left, right, self.sums)
        for i, j in self.batch + self.summed:
            demand(
                left.shape[i] is right.shape[j],
                "contract: axis {} of {}, {} of {}",
                i,
                left,
                j,
                right,
            )
        paired_left = {i for i, _ in self.batch + self.summed}
        paired_right = {j for _, j in self.batch + self.summed}
        free_left = tuple(s for a, s in enumerate(left.shape) if a not in paired_left)
        free_right = tuple(s for a, s in enumerate(right.shape) if a not in paired_right)
        batch = tuple(left.shape[i] for i, _ in self.batch)
        return TensorType(made, batch + free_left + free_right)


def _sum_type(left: TensorType, right: TensorType, sums: DType | None) -> DType:
    """The type of the products of two operands added up."""
    wanted = left.dtype if sums is None else sums
    found = right.dtype if sums is None else NARROW.get((left.dtype, right.dtype))
    demand(found is wanted, "products of {} and {} in {}", left, right, wanted.value)
    return wanted


@dataclass(frozen=True)
class Convolve:
    """[N, C, spatial…] with weights [O, C/groups, kernel…] to [N, O, ``sizes``…].

    With ``channels_last`` the data is [N, spatial…, C] and the result [N, ``sizes``…, O]; the
    weights stay as they are. The data is first spread by ``spread`` (zeros between elements;
    ConvTranspose), then padded with ``low`` zeros before (and as many as needed after). Output o
    reads o * stride + tap * dilation. ``sums`` is as in ``Contract``.
    """

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    spread: tuple[int, ...]
    low: Shape
    sizes: Shape
    groups: int
    channels_last: bool = False
    sums: DType | None = None

    @property
    def channel_axis(self) -> int:
        """Where the channels of data and result are."""
        return len(self.strides) + 1 if self.channels_last else 1

    @property
    def spatial(self) -> slice:
        """Where the spatial axes of data and result are."""
        first = 1 if self.channels_last else 2
        return slice(first, first + len(self.strides))

    def result(self, data: TensorType, weights: TensorType) -> TensorType:
        rank = len(self.strides)
        demand(len(data.shape) == len(weights.shape) == rank + 2, "convolve: rank of {}", data)
        fits = data.shape[self.channel_axis] is weights.shape[1] * self.groups
        demand(fits, "convolve: {} by {} in {} groups", data, weights, self.groups)
        made = _sum_type(data, weights, self.sums)
        if self.channels_last:
            return TensorType(made, (data.shape[0], *self.sizes, weights.shape[0]))
        return TensorType(made, (data.shape[0], weights.shape[0], *self.sizes))


@dataclass(frozen=True)
class Window:
    """``kind`` ("sum", "maximum", "minimum") over windows of the last axes, sizes ``sizes``.

    ``trailing`` axes after those (the channels, where they are last) are kept. Elements outside of
    the operand (``low`` before it, any after it) do not take part.
    """

    kind: str
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: Shape
    sizes: Shape
    trailing: int = 0

    def windowed(self, rank: int) -> slice:
        """The windowed axes of an operand of ``rank`` axes."""
        end = rank - self.trailing
        return slice(end - len(self.kernel), end)

    def result(self, operand: TensorType) -> TensorType:
        axes = self.windowed(len(operand.shape))
        demand(axes.start >= 0, "window of rank {} over {}", len(self.kernel), operand)
        shape = operand.shape[: axes.start] + self.sizes + operand.shape[axes.stop :]
        return TensorType(operand.dtype, shape)


# ---------------------------------------------------------------- index


@dataclass(frozen=True)
class Gather:
    """Axis ``axis`` of the data is replaced by the axes of the (int64) indices.

    An index below 0 counts from the end; one out of bounds is a run-time error.
    """

    axis: int

    def result(self, data: TensorType, indices: TensorType) -> TensorType:
        demand(indices.dtype is DType.INT64, "gather indices must be int64")
        head, tail = data.shape[: self.axis], data.shape[self.axis + 1 :]
        return TensorType(data.dtype, head + indices.shape + tail)


@dataclass(frozen=True)
class GatherElements:
    """Element (…, i, …) is data[…, indices[…, i, …], …]; negative indices as for ``Gather``."""

    axis: int

    def result(self, data: TensorType, indices: TensorType) -> TensorType:
        demand(indices.dtype is DType.INT64, "gather indices must be int64")
        return TensorType(data.dtype, indices.shape)


@dataclass(frozen=True)
class GatherND:
    """The last axis of the indices (constant size) addresses data axes after ``batch`` shared."""

    batch: int

    def result(self, data: TensorType, indices: TensorType) -> TensorType:
        demand(indices.dtype is DType.INT64, "gather indices must be int64")
        depth = indices.shape[-1].value
        return TensorType(data.dtype, indices.shape[:-1] + data.shape[self.batch + depth :])


@dataclass(frozen=True)
class ScatterElements:
    """The data with data[…, indices[…, i, …], …] combined with updates[…, i, …], in order.

    ``reduction`` is "none" (replace; the last one wins), "add", "multiply", "maximum", "minimum".
    """

    axis: int
    reduction: str

    def result(self, data: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        demand(indices.dtype is DType.INT64 and updates.dtype is data.dtype, "scatter types")
        demand(indices.shape == updates.shape, "scatter: indices and updates differ in shape")
        return data


@dataclass(frozen=True)
class ScatterND:
    """The data with slices addressed by the indices' last axis combined with updates, in order."""

    reduction: str

    def result(self, data: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        demand(indices.dtype is DType.INT64 and updates.dtype is data.dtype, "scatter types")
        return data


# ---------------------------------------------------------------- steps and opaque


@dataclass(frozen=True)
class Recurrence:
    """States that follow from those before them: [S + 1, B, states, H] for S steps.

    Operands are the inputs of all steps [S, B, G], weights [H, n] of every product of a step, with
    ``ragged`` the length of each row [B], the first states [B, H], and further vectors that steps
    read. Entry i + 1 follows from entry i, backwards entry i from i + 1: what a step leaves lies
    beside the one it leads to, the first states at the end that is left over. Beyond its length a
    row keeps its states. It is one of ``directions`` that need nothing of each other.
    """

    steps: Steps
    backward: bool
    ragged: bool
    directions: int = 1

    def result(self, *operands: TensorType) -> TensorType:
        steps, (inputs, *others) = self.steps, operands
        products, states = len(steps.products), len(steps.states)
        wanted = products + self.ragged + states + len(steps.extras)
        demand(products > 0 and len(others) == wanted, "recurrence of {}", len(operands))
        demand(len(inputs.shape) == 3, "recurrence of {}", inputs)
        for product, weights in zip(steps.products, others, strict=False):
            shape = (product.vector.shape[1], product.sums.shape[1])
            demand(weights.shape == shape, "recurrence by {}", weights)
        length, batch, _ = inputs.shape
        return TensorType(inputs.dtype, (length + 1, batch, constant(states), others[0].shape[0]))

    def in_memory(self) -> int:
        """How many operands, the first ones, have to be there: every step reads the weights."""
        return 1 + len(self.steps.products)


@dataclass(frozen=True)
class Opaque:
    """An operator run by the reference; ``payload`` is an ONNX model of just it.

    ``serial`` keeps apart calls that must not be shared (random generators). The node's own type is
    that of output 0; ``Project`` selects the others.
    """

    operator: str
    payload: bytes = field(repr=False)
    outputs: tuple[TensorType, ...]
    serial: int = 0

    def result(self, *operands: TensorType) -> TensorType:
        return self.outputs[0]


@dataclass(frozen=True)
class Project:
    """Output ``index`` (1 and up) of an opaque operator."""

    index: int
    output: TensorType

    def result(self, operand: TensorType) -> TensorType:
        return self.output


Primitive = (
    Input | Constant | Dimension | Iota | Map | Cast | Reduce | ArgReduce | Scan | Broadcast
    | Reshape | Transpose | Slice | Pad | Concat | Contract | Convolve | Window | Gather
    | GatherElements | GatherND | ScatterElements | ScatterND | Recurrence
    | Opaque | Project
)  # fmt: skip
