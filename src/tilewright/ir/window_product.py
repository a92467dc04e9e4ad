"""A convolution and windows over its results among primitives, with the channels last.

    shown[b, y, x, c]  = any elementwise function of the sums of a convolution
    result[b, y, x, c] = a window of shown over y and x: pooling, or a convolution of each channel

Such a group of nodes can be computed band by band of an image: what the windows of a few rows reach
is known, so that it is made for a block of channels, and read while it is in cache. It is found by
its structure alone. Start with :func:`window_product_of`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.access import below_reshapes
from tilewright.ir.graph import Node
from tilewright.ir.kernel import Kernel, is_depthwise
from tilewright.ir.primitives import Cast, Convolve, Map, Window


@dataclass(frozen=True)
class WindowProduct:
    """The two kernels that a kernel of a product and of windows over its results is made of.

    ``first`` writes ``shown``, which nothing but the windows of ``last`` reads.
    """

    first: Kernel
    last: Kernel
    shown: Node


def window_product_of(kernel: Kernel) -> WindowProduct | None:
    """The product and the windows that ``kernel`` is made of, if it is of these."""
    if len(kernel.seeds) != 2:
        return None
    seed, windowed = kernel.seeds
    shown = windowed.inputs[0] if is_channel_window(windowed) else None
    if shown is None or not is_pixel_product(seed) or not _is_of_sums(shown, seed):
        return None
    inner = _dependent(kernel, seed) - _dependent(kernel, windowed)
    outer = [n for n in kernel.body if n not in inner]
    pairs = [(n, operand) for n in outer for operand in n.inputs if operand in inner]
    if pairs != [(windowed, shown)] or not inner.isdisjoint(kernel.outputs):
        return None  # something else reads what the windows do
    order = {node: number for number, node in enumerate((*kernel.reads, *kernel.body))}
    place, memory = order.__getitem__, {*kernel.reads, shown}
    first = kernel.part((seed,), (shown,), kernel.reads, place)
    last = kernel.part((windowed,), kernel.outputs, memory, place)
    return WindowProduct(first, last, shown)


def is_pixel_product(node: Node) -> bool:
    """Whether a node is a convolution whose pixels are the rows of one product."""
    primitive = node.primitive
    if not isinstance(primitive, Convolve) or not primitive.channels_last or is_depthwise(node):
        return False
    return primitive.groups == 1 and primitive.sums is None


def is_channel_window(node: Node) -> bool:
    """Whether a node is a window over two axes or more of data with its channels last."""
    match node.primitive:
        case Window(kernel=kernel, trailing=trailing):
            return trailing == 1 and len(kernel) >= 2 and node.rank == len(kernel) + 2
        case Convolve(channels_last=channels_last, strides=strides):
            return channels_last and len(strides) >= 2 and is_depthwise(node)
        case _:
            return False


def _is_of_sums(node: Node, seed: Node) -> bool:
    base = below_reshapes(node, (seed,))
    return node.shape == seed.shape and (base is seed or isinstance(base.primitive, Map | Cast))


def _dependent(kernel: Kernel, root: Node) -> set[Node]:
    """A node and those of a kernel's nodes that are made of it."""
    found = {root}
    for current in kernel.body:
        if not found.isdisjoint(current.inputs):
            found.add(current)
    return found
