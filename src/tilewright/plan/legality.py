"""Which kernels can be lowered, in one place: what planners ask, and lowering relies on.

:class:`Legality` answers for whole kernels. Planners that grow kernels node by node ask the same
questions in parts: :func:`fits_epilogue`, :func:`fits_rows`, :func:`operands_for_memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from tilewright.ir.access import below_reshapes, contraction_access, is_stored_view
from tilewright.ir.attention import attention_of
from tilewright.ir.graph import Node, ancestors
from tilewright.ir.kernel import Kernel, KernelKind, RowSpace, kernel_of, kind_of_output
from tilewright.ir.primitives import (
    Broadcast,
    Cast,
    Constant,
    Contract,
    Convolve,
    Map,
    Opaque,
    Recurrence,
    Reduce,
    Reshape,
    ScatterElements,
    ScatterND,
    Slice,
    Transpose,
    Window,
)
from tilewright.ir.row_product import row_product_of
from tilewright.ir.views import is_view
from tilewright.ir.window_product import window_product_of
from tilewright.plan.chains import DEEPEST_KERNEL, MOST_REDUCTIONS, depth
from tilewright.plan.inline import cost, divides_integers, is_light, is_simple
from tilewright.plan.seeds import has_columns, has_tiles, kind_to_seed
from tilewright.shape import Expr, Scope, Truth, constant

OUTPUT_LIMIT = 3  # results that one kernel may write
TAP_COST = 2  # operations that may be repeated for every tap of a window
BYTES_TAP_COST = 3  # those where bytes are read instead of words: a zero point is among them
PACKING_COST = 4  # operations that may be repeated for every block that packs an operand


class Legality:
    """Why kernels of one graph cannot be lowered. Answers are kept; they depend on nothing else."""

    def __init__(self, scope: Scope) -> None:
        """``scope`` holds what is known about the sizes of the graph."""
        self._scope = scope
        self._known: dict[Kernel, str | None] = {}

    def reason(self, kernel: Kernel) -> str | None:
        """Why a kernel cannot be lowered, as the end of a sentence about it; None if it can be."""
        if kernel not in self._known:
            self._known[kernel] = self._found(kernel)
        return self._known[kernel]

    def _found(self, kernel: Kernel) -> str | None:
        if kernel.kind is KernelKind.ROW_PRODUCT:
            return _closed(kernel) or _small(kernel) or self._row_product(kernel)
        if kernel.kind is KernelKind.WINDOW_PRODUCT:
            return _closed(kernel) or self._window_product(kernel)
        rules: tuple[Callable[[Kernel], str | None], ...] = (
            _closed, _small, self._operands, _outputs, _elements, self._stored
        )  # fmt: skip
        found = (rule(kernel) for rule in rules)
        return next((why for why in found if why is not None), None)

    def _row_product(self, kernel: Kernel) -> str | None:
        """Both parts can be lowered by themselves, so that they may be steps of one kernel."""
        parts = row_product_of(kernel)
        if parts is None:
            return "has reductions that do not go along the rows of its product"
        return self.reason(parts.first) or self.reason(parts.last)

    def _window_product(self, kernel: Kernel) -> str | None:
        """Both parts can be lowered by themselves, so that they may be steps of one kernel."""
        parts = window_product_of(kernel)
        if parts is None:
            return "has windows that do not go over the pixels of its product alone"
        pixels, results = (part.seed.shape[1:-1] for part in (parts.first, parts.last))
        fewer = map(self._scope.is_less_equal, results, pixels)
        if any(truth is not Truth.YES for truth in fewer):
            return "has windows that may lie where there is no pixel, whose tasks would make them"
        return self.reason(parts.first) or self.reason(parts.last)

    def _operands(self, kernel: Kernel) -> str | None:
        for current in kernel.body:
            wanted = wanted_in_memory(current, kernel.reads, self._scope)
            if kernel.kind is KernelKind.ATTENTION and current is kernel.seeds[-1]:
                wanted.discard(current.inputs[0])  # weights are in scratch
            wanted.difference_update(kernel.reads)
            if not wanted:
                continue
            for operand in (*kernel.body, *current.inputs):
                if operand in wanted:
                    return f"needs {operand!r} in memory, as an operand of {current!r}"
        if kernel.kind is KernelKind.ATTENTION:
            return self._keys_and_values(kernel)
        return None

    def _stored(self, kernel: Kernel) -> str | None:
        """Results in another order can be stored as they come."""
        match kernel.kind:
            case KernelKind.CONTRACTION:
                seed, staged = kernel.seed, may_end_channels_first(kernel.seed)
            case KernelKind.ATTENTION:
                seed, staged = kernel.seeds[-1], False
            case _:
                return None
        for output in kernel.outputs:
            if not is_stored_view(output, _below_views(output), self._scope, staged):
                return f"cannot store {output!r}, made of {seed!r}, as it lies in memory"
        return None

    def _keys_and_values(self, kernel: Kernel) -> str | None:
        """Keys and values are read as they lie, the latter along vectors."""
        keys, values = (
            contraction_access(seed, self._scope, kernel.reads).right
            for seed in (kernel.seed, kernel.seeds[-1])
        )
        if keys is None or values is None or values.row is not constant(1):
            return "cannot read keys and values as they lie in memory"
        return None


def _closed(kernel: Kernel) -> str | None:
    """What is read and what is computed is all that there is, and nothing heavy is recomputed."""
    if not kernel.outputs:
        return "writes nothing"
    reads, body = set(kernel.reads), set(kernel.body)
    for current in (*kernel.seeds, *kernel.outputs):
        if current not in body:
            return f"does not compute {current!r}"
    used = {operand for current in kernel.body for operand in current.inputs}
    for current in used:
        if current not in reads and current not in body:
            return f"needs {current!r}, which it neither reads nor computes"
    for current in kernel.reads:
        if current not in used or current in body:
            return f"does not need {current!r}, which it reads"
    for current in kernel.body:
        if not (is_light(current) or current in kernel.seeds or current in kernel.outputs):
            return f"computes {current!r}, which is neither light nor a seed"
    return None


def _small(kernel: Kernel) -> str | None:
    """A program of it can be walked, and its sweeps are few."""
    if depth(kernel.body, kernel.reads) > DEEPEST_KERNEL:
        return f"is a chain of more than {DEEPEST_KERNEL} operations"
    reductions = sum(isinstance(current.primitive, Reduce) for current in kernel.body)
    if kernel.kind is KernelKind.ROWS and reductions > MOST_REDUCTIONS:
        return f"has more than {MOST_REDUCTIONS} reductions"
    return None


def _outputs(kernel: Kernel) -> str | None:
    """The results fit the one space of the kernel's loops."""
    match kernel.kind:
        case KernelKind.WINDOW if isinstance(kernel.seed.primitive, Reduce) and not has_columns(
            kernel.seed
        ):
            return f"has no columns to compute {kernel.seed!r} along"
        case KernelKind.CONTRACTION | KernelKind.WINDOW:
            bases = [_below_views(output) for output in kernel.outputs]
            strange = [b for b in bases if b.shape != kernel.seed.shape]
        case KernelKind.ATTENTION:
            bases = [_below_views(output) for output in kernel.outputs]
            strange = [b for b in bases if b.shape != kernel.seeds[-1].shape]
        case KernelKind.LOOPS:
            shape = kernel.outputs[0].shape
            strange = [
                output
                for output in kernel.outputs
                if output.shape != shape or kind_of_output(output) is not KernelKind.LOOPS
            ]
        case KernelKind.ROWS:
            space = RowSpace.of(kernel.seed)
            strange = [
                output
                for output in kernel.outputs
                if not space.holds_rows(output.shape) and not space.holds_elements(output.shape)
            ]
        case _:
            strange = list(kernel.outputs[1:])
    return f"writes {strange[0]!r}, which its loops do not fit" if strange else None


def _elements(kernel: Kernel) -> str | None:
    """What depends on the seeds can be computed where their results are."""
    if kernel.kind is KernelKind.ATTENTION:
        return _attention(kernel)
    shown = _views_of_outputs(kernel)
    fitting = _fitting(kernel)
    dependent = set(kernel.seeds)
    for current in kernel.body:
        if current in dependent or dependent.isdisjoint(current.inputs) or current in shown:
            continue
        if not fitting(current):
            return f"cannot compute {current!r} where its seeds are"
        dependent.add(current)
    if kernel.kind is KernelKind.CONTRACTION or kernel.kind is KernelKind.WINDOW:
        there = {*kernel.reads, *dependent}
        for current in kernel.body:
            for operand in current.inputs if current in dependent - {kernel.seed} else ():
                if not is_simple(operand, there):
                    return f"cannot compute {operand!r} in its epilogue"
    return None


def _attention(kernel: Kernel) -> str | None:
    """The seeds are an attention; what is between them and after them is elementwise."""
    found = attention_of(kernel.seed, kernel.seeds[-1], set(kernel.body))
    if found is None or found.seeds != kernel.seeds or found.scores.dtype.is_half:
        return "has seeds that are no attention"
    order = {node: number for number, node in enumerate((*kernel.reads, *kernel.body))}
    known = {*kernel.reads, found.context}
    for output in kernel.outputs:
        if found.scores in ancestors(output, lambda current: current not in known):
            return f"writes {output!r}, which needs scores that are never in memory"
    for seed, last, below in (
        (found.scores, (found.shown,), set[Node]()),
        (found.context, tuple(map(_below_views, kernel.outputs)), {found.weights}),
    ):
        there = {*kernel.reads, *below, seed}
        body = kernel_of((), last, {*there, *seed.inputs}, order.__getitem__, "", {}).body
        dependent = {seed}
        for current in body:
            if current is seed or dependent.isdisjoint(current.inputs):
                continue
            simple = all(is_simple(operand, {*there, *dependent}) for operand in current.inputs)
            if not simple or not fits_epilogue(current, seed):
                return f"cannot compute {current!r} where {seed!r} is"
            dependent.add(current)
    return None


def _fitting(kernel: Kernel) -> Callable[[Node], bool]:
    match kernel.kind:
        case KernelKind.CONTRACTION | KernelKind.WINDOW:
            return lambda current: fits_epilogue(current, kernel.seed)
        case KernelKind.ROWS:
            space = RowSpace.of(kernel.seed)
            return lambda current: fits_rows(current, space)
        case _:
            return lambda _: True


def _below_views(node: Node) -> Node:
    while is_view(node):
        node = node.inputs[0]
    return node


def _views_of_outputs(kernel: Kernel) -> set[Node]:
    """The views with which a contraction writes its results in another order."""
    found: set[Node] = set()
    if kernel.kind is KernelKind.CONTRACTION:
        for output in kernel.outputs:
            while is_view(output):
                found.add(output)
                output = output.inputs[0]
    return found


# ---------------------------------------------------------------- what may join a seed


def fits_epilogue(user: Node, seed: Node) -> bool:
    """Whether a node is computed element by element where a seed's results are."""
    if any(current.dtype.is_half for current in (user, *user.inputs)) or divides_integers(user):
        return False
    return isinstance(user.primitive, Map | Cast) and user.shape == seed.shape


def fits_rows(user: Node, space: RowSpace) -> bool:
    """Whether a node has an element for each of a space of rows, or one for each row."""
    match user.primitive:
        case Map() | Cast():
            return space.holds_elements(user.shape) or space.holds_rows(user.shape)
        case Reshape():
            source = user.inputs[0].shape
            if space.holds_rows(source):
                return space.holds_rows(user.shape)
            return source == space.shape and space.holds_elements(user.shape)
        case Broadcast(axes=axes):
            operand = user.inputs[0]
            if not space.holds_rows(operand.shape):
                return False
            places = [a for a, size in zip(axes, operand.shape, strict=True) if not _is_one(size)]
            if user.shape == space.shape:
                return tuple(places) == space.kept
            return space.holds_rows(user.shape)
        case Reduce():
            return RowSpace.of(user) == space
        case _:
            return False


def _is_one(size: Expr) -> bool:
    return size.is_constant and size.value == 1


# ---------------------------------------------------------------- operands


def wanted_in_memory(node: Node, memory: Collection[Node], scope: Scope) -> set[Node]:
    """Operands that a node of any kind cannot compute where it uses them."""
    match node.primitive:
        case Contract() | Convolve() | Window() | Reduce():
            return operands_for_memory(node, memory, scope)
        case Opaque():
            return set(node.inputs)
        case ScatterElements() | ScatterND():
            return {node.inputs[0]}
        case Recurrence() as primitive:
            return set(node.inputs[: primitive.in_memory()])
        case _:
            return set()


def operands_for_memory(node: Node, memory: Collection[Node], scope: Scope) -> set[Node]:
    """Operands of a seed that cannot be evaluated in place and so must be in memory."""
    match node.primitive:
        case Contract():
            return _contract_operands(node, memory, scope)
        case Convolve() as convolve:
            data, weights = node.inputs
            found = {weights}
            if convolve.channels_last and kind_to_seed(node) is KernelKind.WINDOW:
                return found if _runs_along_channels(data, memory) else {data, weights}
            heavy = not is_simple(data, memory) or cost(data, memory) > PACKING_COST
            if convolve.channels_last:
                found.add(_as_tiles_read(node, memory))
            elif heavy or is_turned(data, memory):
                found.add(data)
            return found
        case Reduce():
            return set()
        case Window(trailing=trailing) if trailing:
            data = node.inputs[0]
            return set() if _runs_along_channels(data, memory) else {data}
        case _:
            data = node.inputs[0]
            simple = is_simple(data, memory) and cost(data, memory) <= TAP_COST
            return set() if simple else {data}


def _runs_along_channels(data: Node, memory: Collection[Node]) -> bool:
    """Whether every tap may evaluate ``data`` in place: cheap, and elements in memory order."""
    stack, read = [data], list[Node]()
    while stack:
        current = stack.pop()
        if current in memory:
            read.append(current)
            continue
        if isinstance(current.primitive, Transpose | Reshape | Slice):
            return False
        stack.extend(current.inputs)
    are_bytes = bool(read) and all(source.dtype.bytes == 1 for source in read)
    limit = BYTES_TAP_COST if are_bytes else TAP_COST
    return is_simple(data, memory) and cost(data, memory) <= limit


def is_turned(data: Node, memory: Collection[Node]) -> bool:
    """Whether neighbours of what is evaluated in place lie apart in memory.

    Every tap of a convolution would gather them one by one, and so would a copy that pads, which
    takes longer than to transpose them once.
    """
    return any(
        isinstance(current.primitive, Transpose)
        and current.primitive.permutation[-1] != current.rank - 1
        for current in ancestors(data, lambda current: current not in memory)
    )


def _contract_operands(node: Node, memory: Collection[Node], scope: Scope) -> set[Node]:
    if not has_tiles(node):
        return {i for i in node.inputs if not is_simple(i, memory)}
    left, right = node.inputs
    found: set[Node] = set()
    access = contraction_access(node, scope, memory)
    word = 1 if node.dtype is left.dtype else node.dtype.bytes // left.dtype.bytes
    if access.left is None or not access.left.is_in_words(word):
        found.add(left)
    else:
        found.add(access.left.source)
    if access.right is not None:
        found.add(access.right.source)
    elif word > 1 or not is_simple(right, memory) or cost(right, memory) > PACKING_COST:
        found.add(right)
    return {f for f in found if not (isinstance(f.primitive, Constant) and f.rank > 0)}


def may_end_channels_first(node: Node) -> bool:
    """Whether a convolution may write its result with the channels first, though they are last."""
    return isinstance(node.primitive, Convolve) and node.primitive.channels_last


def _as_tiles_read(node: Node, memory: Collection[Node]) -> Node:
    """What must be in memory of the data of a convolution with the channels last."""
    data = node.inputs[0]
    if kind_to_seed(node) is not KernelKind.CONTRACTION or data in memory:
        return data
    return data.inputs[0] if _is_turned_by_line(node) else below_reshapes(data, memory)


def _is_turned_by_line(node: Node) -> bool:
    """Whether a convolution with the channels last copies lines of data that has them first.

    Each line is copied once or so and read by many taps.
    """
    primitive, data = node.primitive, node.inputs[0]
    assert isinstance(primitive, Convolve)
    if not isinstance(data.primitive, Transpose):
        return False
    taps = [size.value for size in node.inputs[1].shape[2:]]
    plain = primitive.groups == primitive.dilations[-1] == 1 and primitive.sums is None
    plain = plain and all(spread == 1 for spread in primitive.spread)
    reached = all(s <= size for s, size in zip(primitive.strides, taps, strict=True))
    order = (0, *range(2, node.rank), 1)
    first = data.primitive.permutation == order and max(taps) > 1
    return plain and reached and first and 1 <= len(taps) <= 2
