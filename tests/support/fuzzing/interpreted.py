"""A case without machine code: the tile programs that would be compiled are run by numpy.

Import, rewriting, planning and lowering run and are verified; of each kernel a variant is taken at
random. So it finds what is wrong before the backend. Start with :class:`Interpreted`.
"""

from __future__ import annotations

import numpy as np

from tilewright.backend.cpu.level_tiles import register_tile, usual_machine
from tilewright.backend.cpu.machine import LEVELS
from tilewright.compile_graphs import graph_by_rule, simplified_graph
from tilewright.frontend.onnx import Dim, import_model
from tilewright.ir.kernel import Kernel
from tilewright.ir.tile_evaluate import CheckFailed
from tilewright.plan.greedy import plan_greedily
from tilewright.shape.binding import InputPattern, bind_inputs
from tilewright.stages import Stages
from tilewright.support.errors import ExecutionError
from tilewright.tile.lower import LoweredKernel, lower_kernel
from tilewright.tile.variants import Accuracy

from ..tile_runs import TileRun, lowered_kernels
from .case import Array, Case

LEVEL = "avx2"  # for which kernels are lowered


class Interpreted:
    """Runs a case by numpy; the face of a compiled model as far as the fuzzer uses it."""

    def __init__(self, case: Case) -> None:
        self.num_threads = 1
        stages = Stages(case.check)
        ranges = {name: Dim(*limits) for name, limits in case.ranges.items()}
        imported = import_model(case.model, dims=ranges)
        stages.graph("import", imported.graph)
        simplified = simplified_graph(imported.graph, stages.rule, stages.graph)
        graph = graph_by_rule(simplified, stages.rule, stages.graph)
        plan = plan_greedily(graph)
        stages.plan(graph, plan, LEVEL)
        self._graph = graph
        self._inputs = [getattr(node.primitive, "name", "") for node in graph.inputs]
        patterns = [
            InputPattern(name, node.shape)
            for name, node in zip(self._inputs, graph.inputs, strict=True)
        ]
        self._binding = bind_inputs(patterns, graph.scope, imported.report.dimensions)
        machine, tile = usual_machine(LEVELS[LEVEL]), register_tile(LEVELS[LEVEL])

        def lower(kernel: Kernel) -> LoweredKernel:
            found = lower_kernel(kernel, graph.scope, tile, Accuracy.STANDARD, machine)
            stages.kernel(LEVEL, found)
            return found

        self._tiles = TileRun(graph, lowered_kernels(plan.kernels, lower))
        self._seed = case.seed

    def run(self, feeds: dict[str, Array]) -> dict[str, Array]:
        shapes = [feeds[name].shape for name in self._inputs]
        symbols = self._binding.solve(shapes)
        for guard in self._graph.guards:
            if set(guard.condition.free_symbols) <= symbols.keys():
                guard.check(symbols)
        chance = np.random.default_rng(self._seed)
        try:
            return self._tiles.outputs(
                feeds, symbols, lambda lowered: int(chance.integers(len(lowered.variants)))
            )
        except CheckFailed as error:
            raise ExecutionError(str(error)) from error
