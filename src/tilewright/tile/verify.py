"""Checks of the tile programs of a kernel: what it reads and writes are what its plan says.

Start with :class:`KernelVerifier`.
"""

from __future__ import annotations

import math
from math import prod

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, topological
from tilewright.ir.primitives import Broadcast, Reshape
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.tile import TileBuffer, TileProgram
from tilewright.ir.tile_print import print_tile
from tilewright.ir.tile_samples import sample_sizes
from tilewright.ir.tile_verify import Findings, unfilled, verify_tile
from tilewright.ir.verify import failure
from tilewright.shape import Expr, constant, equal, less_equal, logical_or, product
from tilewright.tile.lower import LoweredKernel
from tilewright.tile.variants import (
    THREADS,
    LoweredStep,
    PackedCodes,
    PackedConstant,
    Source,
    Workspace,
)

# By the memory between steps, the programs that have written to it, and its name in each.
_Spaces = dict[Workspace, list[tuple[TileProgram, TileBuffer]]]


class KernelVerifier:
    """Verifies kernels of one graph; equal programs over equal buffers once."""

    def __init__(self, graph: Graph, findings: Findings) -> None:
        self.scope = graph.scope.copy()
        self.scope.declare(THREADS, 1)
        self.findings = findings
        self.samples = sample_sizes(self.scope, _demands(graph), (THREADS,))
        self.done: set[tuple[object, ...]] = set()

    def verify(self, lowered: LoweredKernel, stage: str) -> None:
        """Raise ``VerificationError`` if something is wrong with a variant of a kernel."""
        for variant in lowered.variants:
            spaces: _Spaces = {}
            for number, step in enumerate(variant.steps):
                found = self._step(lowered, step, spaces) or self._filled(step, spaces)
                if found:
                    kernel = lowered.kernel
                    name = f"{kernel.kind.value} kernel '{kernel.label}'"
                    raise failure(found, f"{stage}, {name}, {variant.name}, step {number}")
                for space, buffer in _workspaces(step):
                    if space in step.writes:
                        spaces.setdefault(space, []).append((step.program, buffer))
            written = {w for step in variant.steps for w in step.writes}
            missing = [o for o in lowered.kernel.outputs if o not in written]
            if missing:
                raise failure([f"nothing writes {missing[0]!r}"], f"{stage}, {variant.name}")

    def _step(self, lowered: LoweredKernel, step: LoweredStep, spaces: _Spaces) -> list[str]:
        program = step.program
        sources = (*step.reads, *step.writes)
        if len(sources) != len(program.buffers) or len(step.writes) != program.results:
            return [f"{len(sources)} tensors are given for {len(program.buffers)} buffers"]
        found: list[str] = []
        for read in step.reads:
            if isinstance(read, Workspace) and read not in spaces:
                found.append(f"{read.name} is read, but no step before has filled it")
        nest = ProductNest.find(program)
        word = None if nest is None else nest.dtype
        pairs = zip(program.buffers, sources, strict=True)
        sizes = {buffer.name: _bytes(source, word) for buffer, source in pairs}
        for buffer, source in zip(program.buffers, sources, strict=True):
            wanted = _element(source)
            is_word = isinstance(source, PackedConstant) and buffer.dtype is word
            if buffer.dtype is not wanted and not is_word:
                found.append(f"{buffer.name} is {buffer.dtype.value}, not {wanted.value}")
        key = (print_tile(program), *sizes.values())
        if key not in self.done and step.external is None:
            found += verify_tile(program, sizes, self.scope, self.samples, self.findings)
            self.done.add(key)
        return found

    def _filled(self, step: LoweredStep, spaces: _Spaces) -> list[str]:
        """What a step reads of workspaces that the steps before it leave as it was."""
        found: list[str] = []
        for space, buffer in _workspaces(step):
            if space in step.writes:
                continue
            before = spaces[space]
            key = (buffer, *(print_tile(p) for p in (step.program, *(p for p, _ in before))))
            if key not in self.done:
                found += unfilled(step.program, buffer, before, self.scope, self.samples)
                self.done.add(key)
        return found


def _workspaces(step: LoweredStep) -> list[tuple[Workspace, TileBuffer]]:
    """The workspaces that a step reads or writes, with their names in its program."""
    sources = zip((*step.reads, *step.writes), step.program.buffers, strict=True)
    return [(source, buffer) for source, buffer in sources if isinstance(source, Workspace)]


def _demands(graph: Graph) -> list[Expr]:
    """What holds at every shape at which a graph may be called."""
    found = [guard.condition for guard in graph.guards]
    nodes = topological((*graph.inputs, *graph.roots))
    found += [less_equal(0, size) for n in nodes for size in n.shape]
    for current in nodes:
        match current.primitive:
            case Broadcast(shape=shape, axes=axes):
                sizes = current.inputs[0].shape
                pairs = [(size, shape[a]) for size, a in zip(sizes, axes, strict=True)]
                found += [logical_or(equal(size, 1), equal(size, wide)) for size, wide in pairs]
            case Reshape(shape=shape):
                found.append(equal(product(current.inputs[0].shape), product(shape)))
            case _:
                pass
    return [demand for demand in dict.fromkeys(found) if not demand.is_constant]


def _element(source: Source) -> DType:
    """The type of what the memory of a buffer holds."""
    if isinstance(source, PackedCodes):
        return source.part.value
    return source.node.dtype if isinstance(source, PackedConstant) else source.dtype


def _bytes(source: Source, word: DType | None) -> Expr:
    """How large the memory of a buffer is."""
    if isinstance(source, Workspace):
        return source.elements * source.dtype.bytes
    if isinstance(source, Node):
        return product(source.shape) * source.dtype.bytes
    if isinstance(source, PackedCodes):
        return constant(math.prod(source.shape) * source.part.value.bytes)
    shape = [source.type.shape[axis].value for axis in source.order]
    if source.lead < 0:
        shape = [-source.lead, shape[0] // -source.lead, *shape[1:]]
    lead = 1 if source.lead < 0 else source.lead
    end = len(shape) - source.depth
    panels = -(-prod(shape[lead:end]) // source.panel)
    elements = prod(shape[:lead]) * panels * source.panel * prod(shape[end:])
    return constant(elements * source.node.dtype.bytes)


__all__ = ["KernelVerifier"]
