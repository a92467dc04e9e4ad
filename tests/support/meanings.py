"""Machine code beside the numpy meaning of the tile programs that it was made of.

Both run the same variant of every kernel on the same inputs. Start with :class:`BothMeanings`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from support.graph_kit import Compiled, Sizes, compare_outputs, inputs_at
from support.random_graphs import build, fill, largest
from support.tile_runs import TileRun
from tilewright.backend.cpu.machine import LEVELS
from tilewright.backend.cpu.program import lowering_of
from tilewright.plan.prepare import prepare
from tilewright.rewrite import simplify
from tilewright.tile.lower import LoweredKernel

SIZES = ({"a": 3, "b": 5}, {"a": 1, "b": 1}, {"a": 4, "b": 0}, {"a": 0, "b": 2}, {"a": 7, "b": 19})


class BothMeanings:
    """Random graphs; ``kernels`` are those that ran, one for each variant."""

    def __init__(self, seed: int, levels: Sequence[str]) -> None:
        self.chance = np.random.default_rng(seed)
        self.levels = levels
        self.kernels: set[tuple[int, str, str, int]] = set()
        self._graphs = 0

    def compare(self) -> None:
        """One more graph, at all sizes, a variant of each kernel at random for every size."""
        steps = int(self.chance.integers(3, 12))
        numbers = self.chance.integers(0, 1 << 16, 90).tolist()
        graph = prepare(simplify(build(numbers, steps)))
        level = self.levels[self._graphs % len(self.levels)]
        compiled = Compiled(graph, (level,))
        made = compiled.levels[level]
        # Programs in which results have memory of their own: code may overwrite operands.
        lowering = lowering_of(graph, LEVELS[level])
        run = TileRun(graph, [lowering.lowered(each.kernel) for each in made.lowered])
        scale = max(largest(graph, sizes) for sizes in SIZES)
        for sizes in SIZES:
            self._at(compiled, level, run, sizes, (400 * steps, scale))
        self._graphs += 1

    def _at(
        self, compiled: Compiled, level: str, run: TileRun, sizes: Sizes, bound: tuple[int, float]
    ) -> None:
        made = compiled.levels[level]
        variants = [int(self.chance.integers(len(k.variants))) for k in made.lowered]
        several = [v for v, k in zip(variants, made.lowered, strict=True) if len(k.variants) > 1]
        symbols = [choice.symbol for choice in made.program.choices]
        chosen = dict(zip(symbols, several, strict=True))
        waiting = iter(variants)

        def choose(lowered: LoweredKernel) -> int:
            number = next(waiting)
            name = lowered.variants[number].name
            self.kernels.add((self._graphs, lowered.kernel.label, name, number))
            return number

        inputs = inputs_at(compiled.graph, sizes, fill)
        want = run.outputs(inputs, sizes, choose)
        got = compiled.guarded(level, inputs, sizes, chosen=chosen)
        compare_outputs(compiled.graph, got, want, bound, f"{level} {dict(sizes)} {chosen}")
