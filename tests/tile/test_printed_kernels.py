"""Kernels as text are the same kernels: those of random graphs, and those of whole networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.graph_kit import inputs_at
from support.meanings import SIZES
from support.random_graphs import build, fill
from support.tile_equality import difference
from support.tile_runs import TileRun, lowered_kernels
from tilewright.backend.cpu.level_tiles import register_tile, usual_machine
from tilewright.backend.cpu.machine import LEVELS
from tilewright.frontend.onnx import import_model
from tilewright.ir.graph import Graph
from tilewright.ir.kernel import Kernel
from tilewright.ir.tile import TileProgram
from tilewright.ir.tile_parse import parse_program
from tilewright.ir.tile_print import print_program
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.prepare import prepare
from tilewright.policy import POLICIES
from tilewright.rewrite import simplify
from tilewright.rewrite.channels_last import prefer_channels_last
from tilewright.tile.alike import LoweringOnce
from tilewright.tile.lower import LoweredKernel
from tilewright.tile.variants import Accuracy

FOLDER = Path(__file__).parents[2] / "models"
MANY_KERNELS = "segformer-short"
NETWORKS = ("bert-2l", MANY_KERNELS)
NUMBERS = st.lists(st.integers(0, 1 << 16), min_size=12, max_size=90)
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]


def lowered(graph: Graph, level: str) -> list[Kernel | LoweredKernel]:
    """The kernels of a prepared graph, without machine code."""
    machine, tile = usual_machine(LEVELS[level]), register_tile(LEVELS[level])
    once = LoweringOnce(graph.scope, tile, Accuracy.STANDARD, machine, POLICIES["auto"])
    return lowered_kernels(plan_greedily(graph).kernels, once.lowered)


def programs(kernels: Sequence[Kernel | LoweredKernel]) -> Iterator[TileProgram]:
    """The programs of all variants, each once."""
    seen: set[TileProgram] = set()
    for kernel in kernels:
        for variant in kernel.variants if isinstance(kernel, LoweredKernel) else ():
            for step in variant.steps:
                if step.program not in seen:
                    seen.add(step.program)
                    yield step.program


def read_back(kernel: Kernel | LoweredKernel) -> Kernel | LoweredKernel:
    """A kernel of which every program has been text."""
    if not isinstance(kernel, LoweredKernel):
        return kernel
    variants = tuple(
        replace(
            variant,
            steps=tuple(
                replace(step, program=parse_program(print_program(step.program)))
                for step in variant.steps
            ),
        )
        for variant in kernel.variants
    )
    return replace(kernel, variants=variants)


@given(NUMBERS, st.integers(3, 12), st.sampled_from(("x86-64", "avx2", "avx512")))
@settings(max_examples=12, deadline=None, suppress_health_check=QUIET, derandomize=True)
def test_kernels_of_random_graphs_are_read_back_and_give_equal_bits(
    numbers: list[int], steps: int, level: str
) -> None:
    graph = prepare(simplify(build(numbers, steps)))
    kernels = lowered(graph, level)
    again = [read_back(kernel) for kernel in kernels]
    for made, text in zip(programs(kernels), programs(again), strict=True):
        assert difference(made, text) is None
    sizes = SIZES[sum(numbers) % len(SIZES)]
    inputs = inputs_at(graph, sizes, fill)
    first, second = (
        TileRun(graph, chosen).outputs(inputs, sizes, _last) for chosen in (kernels, again)
    )
    for name, want in first.items():
        np.testing.assert_array_equal(_bits(second[name]), _bits(want))


def _last(kernel: LoweredKernel) -> int:
    return len(kernel.variants) - 1


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def networks() -> Iterator[Any]:
    """One network at one level; both at both where all cases are asked for."""
    for place, name in enumerate(NETWORKS):
        for number, level in enumerate(("avx2", "avx512")):
            is_left_out = name == MANY_KERNELS or place % 2 != number
            yield pytest.param(name, level, marks=pytest.mark.combination if is_left_out else ())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "level"), list(networks()))
def test_kernels_of_networks_are_read_back(name: str, level: str) -> None:
    path = FOLDER / f"{name}.onnx"
    if not path.exists():
        pytest.skip(f"needs models/{name}.onnx: python scripts/export_models.py {name}")
    graph = prepare(prefer_channels_last(simplify(import_model(path).graph)))
    found = list(programs(lowered(graph, level)))
    assert len(found) > 20
    for made in found:
        assert difference(made, parse_program(print_program(made))) is None
