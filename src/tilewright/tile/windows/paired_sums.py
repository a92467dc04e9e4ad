"""Convolutions in groups whose sums of whole numbers are made in integers, two taps at a time.

An instruction multiplies two neighbouring bytes, widened to 16 bits, by two weights and adds both.
Start with :func:`paired_sums`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Node, node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Cast, Constant, Convolve
from tilewright.ir.scalar import HALF_WORD
from tilewright.ir.tile import Apply, Convert, Literal, Value
from tilewright.ir.views import Index
from tilewright.rewrite.integers import EXACT
from tilewright.rewrite.quantised import OFFSET, known, quantised, without_sign
from tilewright.tile.values.lowering import Lowering

LARGEST = 255  # byte

Whole = np.ndarray[tuple[int, ...], np.dtype[np.int32]]


@dataclass(frozen=True)
class PairedSums:
    """Bytes without a sign, the byte that means 0, and whole weights [channel, kernel…].

    The bytes are ``stored`` as they are, or less 128 with a sign.
    """

    data: Node
    stored: Node
    zero: int
    weights: Whole

    @property
    def steps(self) -> int:
        """How many pairs of taps a row has."""
        return -(-self.weights.shape[-1] // 2)

    def words(self) -> Whole:
        """The weights of two taps that follow each other along rows in a word: [channel, …]."""
        taps = self.weights
        filled = np.pad(taps, [(0, 0)] * (taps.ndim - 1) + [(0, taps.shape[-1] % 2)])
        low, high = filled[..., 0::2], filled[..., 1::2]
        return np.asarray((low & 0xFFFF) | np.left_shift(high, HALF_WORD), np.int32)


def paired_sums(kernel: Kernel) -> PairedSums | None:
    """The operands of a convolution that sums whole numbers, where that is exact in float32.

    None of other kernels, of groups of several channels, of single taps along rows, and where it is
    not the bytes that the kernel reads.
    """
    seed, primitive = kernel.seed, kernel.seed.primitive
    if not isinstance(primitive, Convolve) or seed.dtype is not DType.FLOAT32:
        return None
    data, weights = seed.inputs[0], known(seed.inputs[1])
    if isinstance(data.primitive, Cast) and data.inputs[0].dtype is DType.INT32:
        data = data.inputs[0]
    found = quantised(data)
    if found is None or found.scale is not None or weights is None or not weights.size:
        return None
    if found.data not in (*kernel.reads, *kernel.body):
        return None
    sizes = np.abs(weights.astype(np.float64)).sum(tuple(range(1, weights.ndim)))
    if (weights != np.rint(weights)).any() or LARGEST * sizes.max() >= EXACT[DType.FLOAT32]:
        return None
    if weights.shape[1] > 1 or weights.shape[-1] < 2:
        return None
    point = np.zeros(1) if found.zero is None else known(found.zero.value)
    if point is None or point.size != 1:
        return None
    zero = int(point.item()) + (OFFSET if found.data.dtype is DType.INT8 else 0)
    if not 0 <= zero <= LARGEST:
        return None
    data = without_sign(found).data
    return PairedSums(data, found.data, zero, weights[:, 0].astype(np.int32))


def integers(array: Whole) -> Node:
    """A constant of int32."""
    return node(Constant.of(np.ascontiguousarray(array), DType.INT32))


def word_of(low: Value, high: Value) -> Value:
    """The word of two bytes, with a sign or without."""
    lower, upper = (Convert(byte, DType.INT32) for byte in (low, high))
    if low.dtype is DType.INT8:
        mask = Literal((1 << HALF_WORD) - 1, DType.INT32)
        lower = Apply("bitwise_and", (lower, mask), DType.INT32)
    upper = Apply("shift_left", (upper, Literal(HALF_WORD, DType.INT32)), DType.INT32)
    return Apply("bitwise_or", (lower, upper), DType.INT32)


def give_integers(
    kernel: Kernel, lowering: Lowering, find: Callable[[Index], Value | None]
) -> None:
    """Sums that readers want in integers, which never were floats."""
    for inner in kernel.body:
        is_whole = isinstance(inner.primitive, Cast) and inner.dtype is DType.INT32
        if is_whole and inner.inputs[0] is kernel.seed:
            lowering.cached[inner] = find


__all__ = ["PairedSums", "give_integers", "integers", "paired_sums", "word_of"]
