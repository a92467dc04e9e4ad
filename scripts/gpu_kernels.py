"""Run the kernels for GPUs on the GPU of this machine: are they right, and how fast are they?

    python scripts/gpu_kernels.py
    python scripts/gpu_kernels.py --only attention --rounds 9

Each of five kinds of kernel is written once as Triton source, and compiled for each set of tile
constants and of sizes that are multiples of 16, so that its code serves all such sizes. At several
sizes its results are compared with those of PyTorch in float64, and its time with what PyTorch
takes by itself (``eager``) and through ``torch.compile(dynamic=True)``, in turns. Products of
float32 are those of IEEE on all sides, no TF32. *Limit* is the larger of bytes over the rate of a
copy and operations over that of the library's matrix product of the same type, both measured first.
Needs a GPU, PyTorch for it and Triton. Exit code 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from triton.testing import do_bench

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.gpu_graphs import attention, dense_gelu, normalised, softmax_of_rows, transposed_sum
from support.gpu_kit import written
from support.graph_kit import Space
from tilewright.backend.gpu.kernel import Launch, TritonKernel
from tilewright.backend.gpu.offline import compile_source
from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node
from tilewright.ir.primitives import Input

Tensors = Mapping[str, torch.Tensor]
Sizes = Mapping[str, int]
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ALLOWED = 2e-5  # ‖out - reference‖ / ‖reference‖ of sums of some thousand float32


@dataclass(frozen=True)
class Case:
    """A kernel, the same in PyTorch, its multiply-adds at some sizes, and the sizes."""

    name: str
    graph: Graph
    reference: Callable[[Tensors], torch.Tensor]
    operations: Callable[[Sizes], int]
    sizes: Sequence[Sizes]
    unit: torch.dtype = torch.float32


def dense_reference(t: Tensors) -> torch.Tensor:
    product = (t["x"] @ t["w"]).to(t["bias"].dtype)
    return torch.nn.functional.gelu(product + t["bias"])


def softmax_reference(t: Tensors) -> torch.Tensor:
    return torch.softmax(t["x"], -1)


def norm_reference(t: Tensors) -> torch.Tensor:
    return torch.nn.functional.layer_norm(t["x"], t["x"].shape[-1:], t["w"], t["v"], eps=1e-3)


def attention_reference(t: Tensors) -> torch.Tensor:
    mask = t["mask"][:, None, None, :].expand(-1, -1, t["q"].shape[1], -1)
    queries = t["q"].transpose(1, 2)
    made = torch.nn.functional.scaled_dot_product_attention(queries, t["k"], t["v"], mask)
    return made.transpose(1, 2)


def elements_reference(t: Tensors) -> torch.Tensor:
    return ((t["x"] + t["r"]) * t["c"]).permute(2, 0, 1).contiguous()


def cases() -> list[Case]:
    """The five kinds, at sizes that are multiples of the tiles and at others."""

    def dense(s: Sizes) -> int:
        return 2 * s["b"] * s["m"] * s["n"] * s["k"]

    def heads(s: Sizes) -> int:
        return 4 * s["b"] * s["h"] * s["m"] * s["n"] * 64

    def nothing(_: Sizes) -> int:
        return 0

    products = [{"b": b, "m": m, "n": n, "k": k} for b, m, n, k in (
        (8, 512, 3072, 768), (7, 509, 3001, 769), (1, 8192, 8192, 1024), (1, 1, 3072, 768),
    )]  # fmt: skip
    rows = [{"b": b, "c": c} for b, c in ((8192, 1024), (40009, 1009), (8191, 5003), (64, 32768))]
    norms = [{"a": a, "b": b, "c": c} for a, b, c in ((64, 512, 768), (61, 509, 1031))]
    scores = [
        {"b": b, "h": h, "m": m, "n": m} for b, h, m in ((8, 12, 512), (7, 12, 509), (2, 16, 2048))
    ]
    moved = [{"b": b, "m": m, "n": n} for b, m, n in ((16, 1024, 2048), (13, 1021, 2039))]
    narrow = dense_gelu(Space(), DType.BFLOAT16)
    return [
        Case("product, bias, GELU", dense_gelu(Space()), dense_reference, dense, products),
        Case("the same, bfloat16", narrow, dense_reference, dense, products, torch.bfloat16),
        Case("softmax", softmax_of_rows(Space()), softmax_reference, nothing, rows),
        Case("LayerNorm", normalised(Space(), (2,)), norm_reference, nothing, norms),
        Case("attention, mask", attention(Space(), "tensor"), attention_reference, heads, scores),
        Case("transposed sum", transposed_sum(Space()), elements_reference, nothing, moved),
    ]  # fmt: skip


class Runner:
    """One kernel of a graph, compiled for sets of tile constants when they are first used."""

    def __init__(self, graph: Graph) -> None:
        ((*self.variants,),) = written(graph)
        self.made: dict[tuple[Any, ...], Any] = {}
        self.units = torch.cuda.get_device_properties(0).multi_processor_count
        major, minor = torch.cuda.get_device_capability()
        self.architecture = 10 * major + minor

    def at(self, sizes: Sizes, inputs: Tensors) -> tuple[Callable[[], Any], torch.Tensor, str]:
        """What launches the first variant that can be, where it writes, and its name."""
        kernel, launch = next(
            (k, made) for k in self.variants if (made := k.launch(sizes, self.units)) is not None
        )
        key = kernel.name, tuple(launch.constants.values()), launch.multiples, launch.warps
        if key not in self.made:
            source = (kernel.name, kernel.source, kernel.signature)
            self.made[key] = compile_source(*source, launch, self.architecture)
        ((_, target),) = kernel.writes
        shape = [size.evaluate(sizes) for size in target.shape]
        result = torch.full(shape, torch.nan, device="cuda", dtype=TYPES[target.dtype.value])
        values = [inputs[_name(node)] for _, node in kernel.reads]
        values = [*values, result, *(sizes[symbol] for _, symbol in kernel.sizes)]
        values += launch.constants.values()
        run, grid = self.made[key], (launch.tasks, 1, 1)
        return lambda: run[grid](*values), result, _told(kernel, launch)


def _name(node: Node) -> str:
    assert isinstance(node.primitive, Input)
    return node.primitive.name


def _told(kernel: TritonKernel, launch: Launch) -> str:
    tile = "x".join(map(str, launch.constants.values()))
    return f"{kernel.name} {tile}, {launch.warps} warps"


def inputs_of(graph: Graph, sizes: Sizes) -> dict[str, torch.Tensor]:
    """Random inputs on the GPU."""
    made: dict[str, torch.Tensor] = {}
    for entry in graph.inputs:
        shape = [size.evaluate(sizes) for size in entry.shape]
        made[_name(entry)] = torch.randn(shape, device="cuda").to(TYPES[entry.dtype.value])
    return made


def milliseconds(run: Callable[[], Any]) -> float:
    """The median of many runs, with the second cache overwritten before each."""
    return float(do_bench(run, warmup=10, rep=40, return_mode="median"))


def ceilings() -> dict[Any, float]:
    """Bytes a millisecond of a copy, and operations a millisecond of matrix products."""
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    found: dict[Any, float] = {"copy": 8.0 * (1 << 28) / milliseconds(lambda: target.copy_(source))}
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(8192, 8192, device="cuda").to(dtype)
        found[dtype] = 2.0 * 8192**3 / milliseconds(lambda x=x: x @ x)
    return found


def measured(case: Case, ceiling: Mapping[Any, float], rounds: int, compiled: bool) -> bool:
    """Print a row for every size; whether all results are right."""
    runner, fine = Runner(case.graph), True
    fused = torch.compile(case.reference, dynamic=True) if compiled else None
    for sizes in case.sizes:
        inputs = inputs_of(case.graph, sizes)
        ours, result, name = runner.at(sizes, inputs)
        ours()
        wanted = case.reference({name: value.double() for name, value in inputs.items()})
        error = float((result.double() - wanted).norm() / wanted.norm())
        fine &= error <= ALLOWED
        runs: list[Callable[[], Any]] = [ours, lambda i=inputs: case.reference(i)]
        if fused is not None:
            runs.append(lambda i=inputs: fused(i))
        times = [[milliseconds(run) for run in runs] for _ in range(rounds)]
        mine, *others = (statistics.median(column) for column in zip(*times, strict=True))
        ratios = [min(row[1:]) / row[0] for row in times]
        moved = sum(v.nbytes for v in inputs.values()) + result.nbytes
        limit = max(moved / ceiling["copy"], case.operations(sizes) / ceiling[case.unit])
        shape = "x".join(map(str, sizes.values()))
        print(
            f"| {case.name} | {shape} | {name} | {error:.1e} | {1e3 * mine:.1f} | "
            + " | ".join(f"{1e3 * other:.1f}" for other in others)
            + f" | {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            f" | {100 * limit / mine:.0f} % |",
            flush=True,
        )
    return fine


def main() -> int:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="part of the name of a kernel")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--eager", action="store_true", help="leave torch.compile out")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    ceiling = ceilings()
    rates = ", ".join(f"{name} {rate / 1e9:.1f}" for name, rate in ceiling.items())
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; 10^12/s: {rates}\n")
    peers = ["eager"] if arguments.eager else ["eager", "compiled"]
    head = ["kernel", "sizes", "variant", "error", "µs", *peers, "best / ours", "of the limit"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    fine = [
        measured(case, ceiling, arguments.rounds, not arguments.eager)
        for case in cases() if arguments.only in case.name
    ]  # fmt: skip
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
