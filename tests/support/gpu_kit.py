"""Small primitive graphs, run as Triton kernels and compared with float64.

:func:`check` plans a graph, writes every kernel of the plan as Triton source, and runs all variants
that can be launched. Buffers lie between borders of a pattern, which may be neither read (it is no
number) nor written; results are that pattern before, too. Kernels run on a GPU where there is one,
else under Triton's interpreter. Where Triton is absent, tests skip.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.gpu_graphs import every_kind
from support.graph_kit import (
    Fill,
    Sizes,
    assert_close,
    default_fill,
    exact,
    inputs_at,
)
from tilewright.backend.gpu.generate import launched, triton_kernels
from tilewright.backend.gpu.kernel import Launch, TritonKernel
from tilewright.backend.gpu.offline import Binary, compile_offline
from tilewright.ir.graph import Graph, Node
from tilewright.ir.primitives import Constant
from tilewright.plan.greedy import plan_greedily
from tilewright.support.errors import UnsupportedError
from tilewright.target import preset

Array = np.ndarray[Any, Any]
UNITS = 8  # multiprocessors: few, so that tests have tiles of all sizes
BORDER = 1 << 12  # elements before and after every buffer
_MISSING = [name for name in ("triton", "torch") if importlib.util.find_spec(name) is None]
needs_triton = pytest.mark.skipif(
    bool(_MISSING), reason=f"{' and '.join(_MISSING)} not installed: pip install tilewright[gpu]"
)


class Launcher:
    """A process that launches kernels on a ``device``, a GPU by its name; None: the interpreter."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("triton_child.py")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        atexit.register(self.process.kill)
        assert self.process.stdout is not None
        self.device: str | None = pickle.load(self.process.stdout)

    def run(self, job: Mapping[str, Any]) -> list[Array]:
        """The buffers of a launch afterwards."""
        assert self.process.stdin is not None and self.process.stdout is not None
        pickle.dump(job, self.process.stdin)
        self.process.stdin.flush()
        answer = pickle.load(self.process.stdout)
        assert not isinstance(answer, str), f"{answer}\n{job['source']}"
        return answer


@functools.cache
def launcher() -> Launcher:
    """One for all tests of a process: it takes seconds to start."""
    return Launcher()


def bordered(array: Array) -> Array:
    """The elements of an array between borders of a pattern."""
    whole = np.empty(array.size + 2 * BORDER, array.dtype)
    whole[...] = pattern(array.dtype)
    whole[BORDER : BORDER + array.size] = array.ravel()
    return whole


def pattern(dtype: np.dtype[Any]) -> Any:
    """What no result may be: no number, or one that no test uses."""
    if dtype.kind == "b":
        return True
    return np.iinfo(dtype).max // 3 if dtype.kind in "iu" else np.nan


def launch(
    kernel: TritonKernel, made: Launch, values: Mapping[Node, Array], sizes: Sizes
) -> dict[Node, Array]:
    """The results of one launch."""
    shapes = [tuple(size.evaluate(sizes) for size in node.shape) for _, node in kernel.writes]
    empty = [
        np.full(shape, pattern(node.dtype.numpy), node.dtype.numpy)
        for (_, node), shape in zip(kernel.writes, shapes, strict=True)
    ]
    before = [*(bordered(values[node]) for _, node in kernel.reads), *map(bordered, empty)]
    after = before
    if made.tasks:
        job = {
            "name": kernel.name,
            "source": kernel.source,
            "signature": kernel.signature,
            "buffers": before,
            "border": BORDER,
            "sizes": [sizes[symbol] for _, symbol in kernel.sizes],
            "launch": made,
        }
        after = launcher().run(job)
    reads = len(kernel.reads)
    for old, new in zip(before[:reads], after[:reads], strict=True):
        assert old.tobytes() == new.tobytes(), f"{kernel.name} writes what it reads"
    found: dict[Node, Array] = {}
    for (_, node), shape, new in zip(kernel.writes, shapes, after[reads:], strict=True):
        for border in (new[:BORDER], new[-BORDER:]):
            want = np.full_like(border, pattern(border.dtype))
            assert border.tobytes() == want.tobytes(), f"{kernel.name} writes too far"
        found[node] = new[BORDER:-BORDER].reshape(shape)
    return found


def written(graph: Graph) -> list[tuple[TritonKernel, ...]]:
    """The variants of every kernel of a plan."""
    return [triton_kernels(kernel, graph.scope) for kernel in launched(plan_greedily(graph))]


def check(
    graph: Graph,
    cases: Sequence[Sizes],
    *,
    length: int | Callable[[Sizes], int] = 1,
    scale: float = 1.0,
    fill: Fill = default_fill,
) -> list[tuple[TritonKernel, ...]]:
    """Write once, and compare every variant at every size; give what was written.

    ``length`` and ``scale`` are as in ``graph_kit.check``.
    """
    kernels = written(graph)
    check_written(graph, kernels, {}, cases, length=length, scale=scale, fill=fill)
    return kernels


def check_what_can_be_written(
    graph: Graph, cases: Sequence[Sizes], *, length: int, scale: float, fill: Fill
) -> int:
    """The same with the exact results in the place of kernels that are refused; their number."""
    kernels: list[tuple[TritonKernel, ...]] = []
    refused: dict[str, Node] = {}
    for kernel in launched(plan_greedily(graph)):
        try:
            kernels.append(triton_kernels(kernel, graph.scope))
        except UnsupportedError:
            refused |= {f"refused{len(refused) + i}": o for i, o in enumerate(kernel.outputs)}
    check_written(graph, kernels, refused, cases, length=length, scale=scale, fill=fill)
    return len(kernels)


def check_written(
    graph: Graph,
    kernels: Sequence[Sequence[TritonKernel]],
    given: Mapping[str, Node],
    cases: Sequence[Sizes],
    *,
    length: int | Callable[[Sizes], int],
    scale: float,
    fill: Fill,
) -> None:
    """Compare the outputs of all kernels and of the graph, where some nodes are ``given``."""
    made = {f"made{i}": o for i, (k, *_) in enumerate(kernels) for _, o in k.writes}
    named = {**dict(graph.outputs), **given, **made}
    whole = Graph(graph.name, graph.inputs, tuple(named.items()), graph.scope)
    for sizes in cases:
        inputs = inputs_at(graph, sizes, fill)
        with np.errstate(all="ignore"):
            want = exact(whole, inputs, sizes)
        start = dict(zip(graph.inputs, inputs.values(), strict=True))
        for name, node in given.items():
            start[node] = np.asarray(want[name]).astype(node.dtype.numpy)
        count = length if isinstance(length, int) else length(sizes)
        for variant in range(max(map(len, kernels), default=0)):
            values = _run(kernels, variant, start, sizes)
            for name, node in named.items():
                wanted, what = np.asarray(want[name]), f"{name} {dict(sizes)}, variant {variant}"
                wanted = wanted if node.dtype.is_float else wanted.astype(node.dtype.numpy)
                assert_close(values[node], wanted, node.dtype, (count, scale), what)


def _run(
    kernels: Sequence[Sequence[TritonKernel]],
    variant: int,
    start: Mapping[Node, Array],
    sizes: Sizes,
) -> dict[Node, Array]:
    """All values in memory, with one variant of every kernel that has so many."""
    values = dict(start)
    for variants in kernels:
        able = [(k, made) for k in variants if (made := k.launch(sizes, UNITS)) is not None]
        kernel, made = able[min(variant, len(able) - 1)]
        for _, node in kernel.reads:
            if isinstance(node.primitive, Constant):
                values[node] = node.primitive.array
        values |= launch(kernel, made, values, sizes)
    return values


def compiled(name: str, target: str) -> list[tuple[str, Binary]]:
    """The names and code of all variants of a graph of ``gpu_graphs`` for a machine."""
    graph, sizes = every_kind()[name]
    made: list[tuple[str, Binary]] = []
    for kernel in (kernel for variants in written(graph) for kernel in variants):
        found = kernel.launch(sizes, preset(target).units)
        assert found is not None
        made.append((kernel.name, compile_offline(kernel, found, preset(target))))
    return made
