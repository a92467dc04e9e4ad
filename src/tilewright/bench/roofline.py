"""The roofline of a model: what a call takes at least on a machine.

All multiply-adds of the plain algorithm at the peak, or the model's inputs, outputs and weights
once from the level of memory that holds them, whichever takes longer. Start with
:class:`ModelWork` and :func:`measure_limits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.constants import Constant
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, users
from tilewright.ir.primitives import Recurrence
from tilewright.plan.quick import is_product, multiply_adds, reads_a_part
from tilewright.shape import Expr, Scope, product, total
from tilewright.target import detect
from tilewright.tune.peak import measure_peak, measure_reads


@dataclass(frozen=True)
class Reads:
    """A level of memory: its name, its bytes (None: unbounded), and bytes read per second."""

    name: str
    capacity: int | None
    bytes_per_second: float


@dataclass(frozen=True)
class Limits:
    """What the machine can do with the threads of the run; ``reads`` from the nearest level on.

    ``flops`` are operations on float32 in a second, of which a multiply-add is two.
    """

    flops: float
    reads: tuple[Reads, ...]

    def larger(self, other: Limits) -> Limits:
        """The larger of two measurements of one machine."""
        pairs = zip(self.reads, other.reads, strict=True)
        reads = [max(pair, key=_bytes_per_second) for pair in pairs]
        return Limits(max(self.flops, other.flops), tuple(reads))

    def seconds(self, flops: float, size: float) -> float:
        """The least time of so many operations on so many bytes.

        All is computed at the best speed, or read once from the level that holds it, whichever
        takes longer.
        """
        reads = [r for r in self.reads if r.capacity is None or size <= r.capacity]
        fastest = max(r.bytes_per_second for r in reads)
        return max(flops / self.flops, size / fastest)


def measure_limits(threads: int) -> Limits:
    """The limits of so many threads of this machine, in two seconds or so.

    Several threads have as many caches as there are for their cores, and of what all cores share no
    more than these read together.
    """
    target = detect()
    levels = {level.name: level for level in target.levels}
    found: list[Reads] = []
    for reads in measure_reads(target):
        level = levels[reads.name]
        caches = min(level.instances, -(-threads // level.sharing))
        capacity = None if level is target.levels[-1] else level.capacity * caches
        found.append(Reads(reads.name, capacity, min(threads * reads.alone, reads.together)))
    return Limits(threads * measure_peak().flops, tuple(found))


@dataclass(frozen=True)
class ModelWork:
    """What a call of a model has to do: operations of its products, and bytes that it has to read
    or write once, by the sizes of the call, of which ``scope`` knows what follows from others."""

    flops: Expr
    bytes: Expr
    scope: Scope

    @staticmethod
    def of(graph: Graph) -> ModelWork | None:
        """The work of a graph; None where products are not all of float32, which peaks are of.

        What operators on the ONNX reference evaluator compute does not count. Of a constant of
        which every reader takes a part, as of a table of embeddings, these parts are read.
        """
        nodes = graph.nodes()
        products = [node for node in nodes if is_product(node)]
        if any(operand.dtype is not DType.FLOAT32 for p in products for operand in p.inputs):
            return None
        sums = [multiply_adds(node) for node in products]
        sums += [_of_steps(node.primitive, node) for node in nodes
                 if isinstance(node.primitive, Recurrence)]  # fmt: skip
        readers = users(nodes)
        moved = [*graph.inputs, *(root for _, root in graph.outputs)]
        for node in nodes:
            if isinstance(node.primitive, Constant):
                moved += _read_of(node, readers[node])
        return ModelWork(2 * total(sums), total(map(_bytes, moved)), graph.scope)

    def seconds(self, sizes: Mapping[str, int], limits: Limits) -> float | None:
        """The least time at these sizes; None where values of the call decide some."""
        sizes = self.scope.completed(sizes)
        if not sizes.keys() >= {*self.flops.free_symbols, *self.bytes.free_symbols}:
            return None
        return limits.seconds(self.flops.evaluate(sizes), self.bytes.evaluate(sizes))


def _of_steps(recurrence: Recurrence, node: Node) -> Expr:
    """The multiply-adds of all steps: each multiplies all rows of the states by all weights."""
    steps, batch, *_ = node.inputs[0].shape
    weights = node.inputs[1 : 1 + len(recurrence.steps.products)]
    return steps * batch * total(product(operand.shape) for operand in weights)


def _read_of(whole: Node, readers: Sequence[Node]) -> Iterable[Node]:
    """What is read of a tensor: the parts that its readers take, or all of it."""
    return readers if all(reads_a_part(reader, whole) for reader in readers) else (whole,)


def _bytes(node: Node) -> Expr:
    return product(node.shape) * node.dtype.bytes


def _bytes_per_second(reads: Reads) -> float:
    return reads.bytes_per_second


__all__ = ["Limits", "ModelWork", "Reads", "measure_limits"]
