"""A planned graph run by the numpy meaning of its tile programs, kernel by kernel.

Start with :class:`TileRun`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.backend.cpu.pack import ConstantStore, constant_value
from tilewright.ir.evaluate import evaluate_node
from tilewright.ir.graph import Graph, Node
from tilewright.ir.kernel import Kernel, KernelKind
from tilewright.ir.primitives import Constant, Input, Opaque, Project
from tilewright.ir.tile_evaluate import evaluate_tile
from tilewright.ops.reference import evaluate_payload
from tilewright.tile.lower import LoweredKernel
from tilewright.tile.variants import THREADS, LoweredStep, Packed, Source, Workspace

Array = np.ndarray[Any, Any]
Choose = Callable[[LoweredKernel], int]


class TileRun:
    """The kernels of one graph, lowered; ``steps`` counts the tile programs that ran."""

    def __init__(self, graph: Graph, kernels: Sequence[Kernel | LoweredKernel]) -> None:
        self.graph = graph
        self.kernels = kernels
        self.steps = 0
        self._constants: dict[Source, Array] = {}

    def outputs(
        self, feeds: Mapping[str, Array], symbols: Mapping[str, int], choose: Choose
    ) -> dict[str, Array]:
        """The outputs of the graph for inputs; of each kernel, the variant that is chosen."""
        environment = {THREADS: 1, **symbols}
        values: dict[Node, Array] = {}
        for node in self.graph.inputs:
            assert isinstance(node.primitive, Input)
            values[node] = feeds[node.primitive.name]
        waiting = list(self.graph.bindings)
        for kernel in self.kernels:
            for binding in [b for b in waiting if self._is_known(b.source, values)]:
                contents = self._contents(binding.source, values).reshape(-1)
                environment.update(zip(binding.symbols, map(int, contents), strict=True))
                waiting.remove(binding)
            if isinstance(kernel, LoweredKernel):
                self._run(kernel, choose(kernel), values, environment)
            else:
                self._run_opaque(kernel, values, environment)
        return {name: self._contents(node, values) for name, node in self.graph.outputs}

    @staticmethod
    def _is_known(node: Node, values: Mapping[Node, Array]) -> bool:
        return node in values or isinstance(node.primitive, Constant)

    def _contents(self, node: Node, values: Mapping[Node, Array]) -> Array:
        return values[node] if node in values else constant_value(node)

    def _run_opaque(
        self, kernel: Kernel, values: dict[Node, Array], environment: dict[str, int]
    ) -> None:
        (node,) = kernel.outputs
        assert isinstance(node.primitive, Opaque)
        operands = [self._contents(i, values) for i in node.inputs]
        results = evaluate_node(
            node, operands, environment, {}, lambda p, a: evaluate_payload(p, a)
        )
        values[node] = results[0]
        for other in self.graph.nodes():
            if isinstance(other.primitive, Project) and other.inputs[0] is node:
                values[other] = results[other.primitive.index]

    def _run(
        self,
        lowered: LoweredKernel,
        variant: int,
        values: dict[Node, Array],
        environment: dict[str, int],
    ) -> None:
        spaces: dict[Workspace, Array] = {}
        for step in lowered.variants[variant].steps:
            self._step(step, values, spaces, environment)
            self.steps += 1

    def _step(
        self,
        step: LoweredStep,
        values: dict[Node, Array],
        spaces: dict[Workspace, Array],
        environment: dict[str, int],
    ) -> None:
        arrays: dict[str, Array] = {}
        sources = (*step.reads, *step.writes)
        for buffer, source in zip(step.program.buffers, sources, strict=True):
            if isinstance(source, Workspace):
                if source not in spaces:
                    count = source.elements.evaluate(environment)
                    spaces[source] = _poisoned((count,), source.dtype.numpy)
                arrays[buffer.name] = spaces[source]
            elif source in step.writes:
                assert isinstance(source, Node)
                shape = tuple(size.evaluate(environment) for size in source.shape)
                made = values.get(source)
                if made is None:
                    values[source] = made = _poisoned(shape, source.dtype.numpy)
                arrays[buffer.name] = made.reshape(-1)
            else:
                assert not isinstance(source, Workspace)
                arrays[buffer.name] = self._read(source, values)
        evaluate_tile(step.program, arrays, environment)

    def _read(self, source: Node | Packed, values: Mapping[Node, Array]) -> Array:
        if isinstance(source, Node) and source in values:
            return np.ascontiguousarray(values[source]).reshape(-1)
        if source not in self._constants:
            with ConstantStore() as store:
                store.add(source)
                (array,) = store.arrays([source])
            self._constants[source] = np.ascontiguousarray(array).reshape(-1)
        return self._constants[source]


def _poisoned(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    made = np.empty(shape, dtype)
    made.reshape(-1).view(np.uint8)[...] = 1 if dtype == np.bool_ else 0xFF
    return made


def lowered_kernels(
    kernels: Sequence[Kernel], lower: Callable[[Kernel], LoweredKernel]
) -> list[Kernel | LoweredKernel]:
    """Kernels lowered, but those that the reference runs."""
    return [k if k.kind is KernelKind.OPAQUE else lower(k) for k in kernels]
