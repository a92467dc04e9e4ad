"""A model of padded batches as one of ragged batches: sequences of their own lengths, packed.

Of a model with the sizes *batch* and *sequence*, what treats positions alike runs on the positions
of all sequences one after another, as if they were one long sequence. What does not, such as
attention, is cut out as *bodies* that run for one sequence after another, on slices of the packed
tensors. Both are the same nodes with other sizes: a batch of 1, and for the packed ones the number
of all positions in the place of the length. Start with :func:`split_ragged`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

from tilewright.ir.carried import carried
from tilewright.ir.constants import Constant
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, expressions_of, node, same, users
from tilewright.ir.primitives import (
    Broadcast,
    Cast,
    Contract,
    Input,
    Iota,
    Map,
    Opaque,
    Project,
    Reshape,
    Slice,
    TensorType,
    Transpose,
)
from tilewright.ir.sizes import with_sizes
from tilewright.shape import Expr, Guard, constant, symbol
from tilewright.support.errors import UnsupportedError

OPERATOR = "Ragged"  # of the opaque nodes that call bodies
_MOST_POSITIONS = 1 << 31  # of all sequences of a batch together


Part = Literal["positions", "sequences", "whole"]


@dataclass(frozen=True)
class Share:
    """What of a tensor belongs to one sequence, along ``axis``: positions, an entry, or all.

    ``unit_axis`` has the size 1 in the place of the batch, if it is there.
    """

    part: Part
    axis: int = 0
    unit_axis: int | None = None


@dataclass(frozen=True)
class RaggedBody:
    """What runs for every sequence: a graph, and what of its operands and results is its share."""

    graph: Graph
    operands: tuple[Share, ...]
    results: tuple[Share, ...]


@dataclass(frozen=True)
class RaggedGraph:
    """A graph whose opaque nodes ``OPERATOR`` run ``bodies[serial]``.

    Their first operand is the last input, where each sequence begins and the last one ends.
    ``inputs``, without that, and ``outputs`` say what belongs to one sequence. ``positions`` is the
    symbol of the sum of all lengths.
    """

    graph: Graph
    bodies: tuple[RaggedBody, ...]
    positions: str
    inputs: tuple[Share, ...]
    outputs: tuple[Share, ...]


def split_ragged(graph: Graph, batch: str, sequence: str) -> RaggedGraph:
    """The packed graph and the bodies. Raises UnsupportedError where sequences are mixed."""
    return _Splitter(graph, batch, sequence).split()


class _Run(Enum):
    """How a node is computed."""

    ONCE = "once"  # it depends on neither the batch nor the lengths
    ROWS = "rows"  # for all sequences at once: it has nothing of the lengths
    PACKED = "packed"  # for all positions at once
    EACH = "each"  # for one sequence after another


class _Splitter:
    def __init__(self, graph: Graph, batch: str, sequence: str) -> None:
        self.graph = graph
        self.batch, self.sequence = symbol(batch), symbol(sequence)
        taken = {*graph.scope.symbols, *(name for name, _ in graph.outputs)}
        taken |= {n.primitive.name for n in graph.inputs if isinstance(n.primitive, Input)}
        self.total = symbol(_unused("positions", taken))
        self.offsets = _unused("offsets", taken)
        self.order = list(dict.fromkeys((*graph.inputs, *graph.nodes())))
        self.of_one: dict[str, Expr | int] = {batch: 1}
        self.of_all: dict[str, Expr | int] = {batch: 1, sequence: self.total}
        self.run: dict[Node, _Run] = {}
        self.depth: dict[Node, int] = {}

    def split(self) -> RaggedGraph:
        graph = self.graph
        if graph.bindings or graph.measured:
            raise self._refusal("has sizes that depend on values", None)
        if graph.scope.definitions:
            raise self._refusal("has sizes that are long formulas of its dimensions", None)
        if all(self.place(i) is None or not self.of_batch(i.shape) for i in graph.inputs):
            both = f"{self.batch} and {self.sequence}"
            raise self._refusal(f"has no input with the sizes {both}", None)
        for current in self.order:
            self._check_rows(current)
            self.run[current] = self._how(current)
        self._sink()
        for current in self.order:
            self.depth[current] = self._depth(current)
        return _Builder(self).built()

    # ------------------------------------------------------------ shapes

    def of_batch(self, shape: Iterable[Expr]) -> list[int]:
        """The axes that have something of the batch."""
        return [a for a, size in enumerate(shape) if str(self.batch) in size.free_symbols]

    def of_lengths(self, shape: Iterable[Expr]) -> list[int]:
        """The axes that have something of the lengths."""
        return [a for a, size in enumerate(shape) if str(self.sequence) in size.free_symbols]

    def place(self, current: Node) -> int | None:
        """The axis along which the positions of sequences can follow each other."""
        axes = self.of_lengths(current.shape)
        if len(axes) != 1:
            return None
        size = current.shape[axes[0]].substitute(self.of_one)
        return axes[0] if size is self.sequence else None

    def is_contiguous(self, current: Node) -> bool:
        """Whether a sequence's positions are together in memory."""
        place = self.place(current)
        if place is None:
            return False
        before = (size.substitute(self.of_one) for size in current.shape[:place])
        return all(size is constant(1) for size in before)

    def row_axis(self, current: Node) -> int | None:
        """The axis with one entry for every sequence."""
        axes = self.of_batch(current.shape)
        return axes[0] if len(axes) == 1 and current.shape[axes[0]] is self.batch else None

    # ------------------------------------------------------------ how nodes run

    def _check_rows(self, current: Node) -> None:
        """Raise where what is made for one sequence depends on others."""
        primitive, axes = current.primitive, self.of_batch(current.shape)
        named = {s for e in expressions_of(current) for s in e.free_symbols}
        operands = [(n, i) for n, i in enumerate(current.inputs) if self.of_batch(i.shape)]
        if not axes and not operands:
            if str(self.batch) in named:
                raise self._refusal("depends on the number of sequences", current)
            if isinstance(primitive, Input) and self.of_lengths(current.shape):
                raise self._refusal(f"has an input without the size {self.batch}", current)
            return
        if isinstance(primitive, Opaque | Project):
            raise self._refusal("runs an operator that may mix sequences", current)
        if len(axes) != 1:
            raise self._refusal("mixes sequences", current)
        if isinstance(primitive, Input) and self.row_axis(current) is None:
            raise self._refusal(f"has an input of sizes computed of {self.batch}", current)
        if not operands:
            fits = isinstance(primitive, Input | Broadcast)
            if not fits and not (isinstance(primitive, Iota) and primitive.axis != axes[0]):
                raise self._refusal("depends on the number of a sequence", current)
        for number, operand in operands:
            (axis,) = self.of_batch(operand.shape)
            if carried(current, number, axis) != axes[0]:
                raise self._refusal("mixes sequences", current)

    def _how(self, current: Node) -> _Run:
        named = {s for e in expressions_of(current) for s in e.free_symbols}
        runs = {self.run[i] for i in current.inputs}
        if str(self.sequence) not in named and all(self._is_row(i) for i in current.inputs):
            rows = str(self.batch) in named or runs - {_Run.ONCE}
            return _Run.ROWS if rows else _Run.ONCE
        return _Run.PACKED if self._is_packed(current) else _Run.EACH

    def _is_row(self, operand: Node) -> bool:
        """Whether a node for all sequences at once can read this."""
        if self.run[operand] is not _Run.EACH:
            return self.run[operand] is not _Run.PACKED
        return not self.of_lengths(operand.shape) and self.row_axis(operand) is not None

    def _is_packed(self, current: Node) -> bool:
        """Whether a node treats all positions alike, and its operands are there for all of them."""
        place, primitive = self.place(current), current.primitive
        if place is None or not self._sizes_follow(current, place):
            return False
        if isinstance(primitive, Input):
            return True
        operands = [(n, i) for n, i in enumerate(current.inputs) if self.run[i] is not _Run.ONCE]
        if not operands:
            plain = isinstance(primitive, Iota) and primitive.axis != place
            return plain or isinstance(primitive, Broadcast)
        is_product = isinstance(primitive, Contract)
        for number, operand in operands:
            axis = self.place(operand)
            if axis is None or carried(current, number, axis) != place:
                return False
            if self.run[operand] is _Run.EACH and not (is_product or self.is_contiguous(operand)):
                return False
        return True

    def _sizes_follow(self, current: Node, place: int) -> bool:
        """Whether a node names the length as the size of this axis of its result alone."""
        primitive = current.primitive
        expected = len(self.of_lengths(current.shape))
        match primitive:
            case Input() | Broadcast() | Reshape() | Iota() | Slice():  # each has sizes of its own
                expected *= 2
            case _:
                pass
        found = [e for e in expressions_of(current) if str(self.sequence) in e.free_symbols]
        return len(found) == expected and place in self.of_lengths(current.shape)

    def _sink(self) -> None:
        """Let views run with what reads them, so that no more is cut into sequences than needed."""
        read_by = users(self.order)
        roots = set(self.graph.roots)
        for current in reversed(self.order):
            readers = read_by[current]
            if self.run[current] is not _Run.PACKED or current in roots or not readers:
                continue
            if any(self.run[reader] is not _Run.EACH for reader in readers):
                continue
            primitive = current.primitive
            view = isinstance(primitive, Reshape | Transpose | Slice | Broadcast)
            light = isinstance(primitive, Map | Cast | Iota) and not self.is_contiguous(current)
            if view or light:
                self.run[current] = _Run.EACH

    def _depth(self, current: Node) -> int:
        """How many bodies run before a node: those that read it come no earlier."""
        deepest = 0
        for operand in current.inputs:
            after = self.run[operand] is _Run.EACH and self.run[current] is not _Run.EACH
            deepest = max(deepest, self.depth[operand] + after)
        return deepest

    def is_fixed(self, current: Node) -> bool:
        """Whether a node depends on no input."""
        stack, seen = [current], {current}
        while stack:
            found = stack.pop()
            if isinstance(found.primitive, Input):
                return False
            fresh = [i for i in found.inputs if i not in seen]
            seen.update(fresh)
            stack += fresh
        return True

    def _refusal(self, problem: str, where: Node | None) -> UnsupportedError:
        return UnsupportedError(
            f"The model cannot run on ragged batches, because it {problem}",
            where=None if where is None else self.graph.label(where),
            hint=f"Leave out ragged={str(self.batch)!r} and give padded batches",
        )


class _Builder:
    """Makes the packed graph and the bodies, once it is known how every node runs."""

    def __init__(self, splitter: _Splitter) -> None:
        self.of = splitter
        self.graph = splitter.graph
        scope = self.graph.scope.copy()
        scope.declare(str(splitter.total), 0, _MOST_POSITIONS)
        self.scope = scope
        ends = (splitter.batch + 1,)
        self.offsets = node(Input(splitter.offsets, DType.INT64, ends))
        self.packed: dict[Node, Node] = {}
        self.bodies: dict[tuple[Node, ...], RaggedBody] = {}
        self.read_by = users(splitter.order)

    def built(self) -> RaggedGraph:
        of, graph = self.of, self.graph
        deepest = max(of.depth.values(), default=0)
        for depth in range(deepest + 1):
            for current in of.order:
                if of.run[current] is not _Run.EACH and of.depth[current] == depth:
                    self.packed[current] = self._packed(current)
            self._call(depth)
        for name, root in graph.outputs:
            if root not in self.packed:
                raise UnsupportedError(
                    "An output has neither one entry for every position nor one for every sequence",
                    where=f'output "{name}"',
                    hint="Leave this output out of the model, or give padded batches",
                )
        inputs = tuple(self.packed[i] for i in graph.inputs)
        named = str(of.sequence)
        outer = replace(
            graph,
            inputs=(*inputs, self.offsets),
            outputs=tuple((name, self.packed[root]) for name, root in graph.outputs),
            scope=self.scope,
            guards=tuple(g for g in graph.guards if named not in g.condition.free_symbols),
            labels={self.packed[n]: text for n, text in graph.labels.items() if n in self.packed},
        )
        return RaggedGraph(
            outer, tuple(self.bodies.values()), str(of.total),
            tuple(self._share(i) for i in graph.inputs),
            tuple(self._share(root) for _, root in graph.outputs),
        )  # fmt: skip

    def _packed(self, current: Node) -> Node:
        """A node of the packed graph."""
        of = self.of
        operands = tuple(self.packed[i] for i in current.inputs)
        if of.run[current] is _Run.PACKED:
            return node(with_sizes(current.primitive, _substituting(of.of_all)), *operands)
        return same(current, operands)

    def _share(self, current: Node) -> Share:
        """What of a tensor of the packed graph belongs to one sequence."""
        of = self.of
        if of.run[current] is _Run.ONCE:
            return Share("whole")
        place, axis = of.place(current), of.row_axis(current)
        if place is not None:
            return Share("positions", place, None if axis == place else axis)
        assert axis is not None
        return Share("sequences", axis)

    # ------------------------------------------------------------ bodies

    def _call(self, depth: int) -> None:
        """Put the results of the body that runs after ``depth`` others into the packed graph."""
        of = self.of
        roots = set(self.graph.roots)
        own = [n for n in of.order if of.run[n] is _Run.EACH and of.depth[n] == depth]
        results = [n for n in own if self._leaves(n, depth, n in roots)]
        if not results:
            return
        made: dict[Node, Node] = {}
        given: dict[Node, Node] = {}
        for result in results:
            self._in_body(result, depth, made, given)
        if all(of.place(n) is None for n in given):  # a body has to know how long a sequence is
            self._give(next(i for i in self.graph.inputs if of.place(i) is not None), made, given)
        outputs = tuple(made[n] for n in results)
        shares = tuple(self._share(n) for n in given), tuple(self._share(n) for n in results)
        if outputs not in self.bodies:
            self.bodies[outputs] = self._body(outputs, tuple(given.values()), made, *shares)
        serial = list(self.bodies).index(outputs)
        types = tuple(self._type(n) for n in results)
        operands = (self.offsets, *(self.packed[n] for n in given))
        # Calls of one body on other tensors are other nodes; equal ones are one.
        call = node(Opaque(OPERATOR, b"", types, serial), *operands)
        for number, (result, kind) in enumerate(zip(results, types, strict=True)):
            self.packed[result] = call if number == 0 else node(Project(number, kind), call)

    def _leaves(self, current: Node, depth: int, is_root: bool) -> bool:
        """Whether a result of a body is read outside, and can be put together."""
        of = self.of
        if of.place(current) is None and (
            of.of_lengths(current.shape) or of.row_axis(current) is None
        ):
            return False
        return is_root or any(
            of.run[reader] is not _Run.EACH or of.depth[reader] > depth
            for reader in self.read_by[current]
        )

    def _in_body(
        self, wanted: Node, depth: int, made: dict[Node, Node], given: dict[Node, Node]
    ) -> None:
        """Make a node and what it is made of, as far as the body does not read it."""
        stack = [wanted]
        while stack:
            current = stack[-1]
            if current in made:
                stack.pop()
                continue
            if self._is_given(current, depth):
                self._give(current, made, given)
                stack.pop()
                continue
            missing = [i for i in current.inputs if i not in made]
            if missing:
                stack += reversed(missing)
                continue
            operands = tuple(made[i] for i in current.inputs)
            primitive = with_sizes(current.primitive, _substituting(self.of.of_one))
            made[current] = node(primitive, *operands)
            stack.pop()

    def _give(self, current: Node, made: dict[Node, Node], given: dict[Node, Node]) -> None:
        """Make a node an input of a body."""
        shape = tuple(size.substitute(self.of.of_one) for size in current.shape)
        made[current] = given[current] = node(Input(f"x{len(given)}", current.dtype, shape))

    def _is_given(self, current: Node, depth: int) -> bool:
        """Whether a body reads a node from the packed graph, in place of computing it."""
        of = self.of
        if isinstance(current.primitive, Constant):
            return False
        if of.run[current] is not _Run.EACH:
            return not of.is_fixed(current)
        return of.depth[current] < depth and current in self.packed

    def _body(
        self, outputs: tuple[Node, ...], inputs: tuple[Node, ...], made: Mapping[Node, Node],
        operands: tuple[Share, ...], results: tuple[Share, ...],
    ) -> RaggedBody:  # fmt: skip
        of, graph = self.of, self.graph
        named = str(of.sequence)
        known = {s for i in inputs for e in i.shape for s in e.free_symbols}
        guards = [
            Guard(g.condition.substitute(of.of_one), g.message)
            for g in graph.guards
            if named in g.condition.free_symbols
        ]
        body = Graph(
            f"{graph.name}, each sequence",
            inputs,
            tuple((f"y{number}", output) for number, output in enumerate(outputs)),
            graph.scope.copy(),
            guards=tuple(g for g in guards if set(g.condition.free_symbols) <= known),
            labels={made[n]: text for n, text in graph.labels.items() if n in made},
        )
        return RaggedBody(body, operands, results)

    def _type(self, current: Node) -> TensorType:
        """Of a result that was put together."""
        of = self.of
        sizes = of.of_one if of.place(current) is None else of.of_all
        if of.place(current) is None:
            return current.type
        return TensorType(current.dtype, tuple(s.substitute(sizes) for s in current.shape))


def _substituting(replaced: Mapping[str, Expr | int]) -> Callable[[Expr], Expr]:
    """Gives sizes with the symbols in them replaced."""
    return lambda size: size.substitute(replaced)


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name
