"""Print the tile programs that `docs/schedules.md` explains, into that page.

    python scripts/schedules.py -o docs/schedules.md

Every block of the page that follows a comment `<!-- print NAME -->` is made anew: the first variant
of a kernel, lowered for the preset `zen4` at the level avx512. Long lines are cut. A test holds the
page against the programs.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from onnx import parser

from tilewright.backend.cpu.level_tiles import register_tile
from tilewright.backend.cpu.machine import LEVELS
from tilewright.cost import Machine
from tilewright.frontend.onnx import import_model
from tilewright.ir.tile_print import print_program
from tilewright.plan.greedy import plan_greedily
from tilewright.plan.prepare import prepare
from tilewright.rewrite import simplify
from tilewright.target import preset
from tilewright.tile.lower import lower_kernel

PAGE = Path(__file__).resolve().parent.parent / "docs" / "schedules.md"
WIDTH = 110  # characters of a line that are shown
HEAD = '<ir_version: 10, opset_import: ["": 23]>'
MODELS = {
    "matmul": """product (float[rows,768] x, float[768,k] w, float[k] b) => (float[rows,k] y) {
        p = MatMul(x, w)
        s = Add(p, b)
        y = Relu(s)
    }""",
    "group_norm": """group_norm (float[n,pixels,8,8] x, float[8,8] s, float[8,8] b)
            => (float[n,pixels,8,8] y) <int64[2] axes = {1, 3}, float e = {0.00001}> {
        mean = ReduceMean(x, axes)
        centred = Sub(x, mean)
        square = Mul(centred, centred)
        variance = ReduceMean(square, axes)
        safe = Add(variance, e)
        root = Sqrt(safe)
        scaled = Div(centred, root)
        weighted = Mul(scaled, s)
        moved = Add(weighted, b)
        gate = Sigmoid(moved)
        y = Mul(moved, gate)
    }""",
    "attention": """attention (float[n,12,q,64] Q, float[n,12,k,64] K, float[n,12,k,64] V)
            => (float[n,12,q,64] y) { y = Attention(Q, K, V) }""",
    "max_pool": """max_pool (float[n,c,h,w] x) => (float[n,c,a,b] y) {
        y = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(x)
    }""",
}


def program_text(name: str) -> str:
    """The first variant of the only kernel of a model."""
    imported = import_model(parser.parse_model(f"{HEAD}\n{MODELS[name]}"))
    graph = prepare(simplify(imported.graph))
    (kernel,) = plan_greedily(graph).kernels
    tile, machine = register_tile(LEVELS["avx512"]), Machine(preset("zen4"))
    first = lower_kernel(kernel, graph.scope, tile, machine=machine).variants[0]
    lines: list[str] = []
    for step in first.steps:
        printed = print_program(step.program).splitlines()
        lines += [line for line in printed if not line.startswith("work $")]  # parts of the price
    return "\n".join(line if len(line) <= WIDTH else f"{line[:WIDTH]} …" for line in lines)


def refreshed(page: str) -> str:
    """The page with its programs as they are now."""
    block = re.compile(r"<!-- print (\w+) -->\n```\n.*?```", re.DOTALL)
    return block.sub(
        lambda found: f"<!-- print {found[1]} -->\n```\n{program_text(found[1])}\n```", page
    )


def main() -> None:
    """Write the page."""
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("-o", "--output", type=Path, required=True, help="the file to write")
    options.parse_args().output.write_text(
        refreshed(PAGE.read_text(encoding="utf-8")), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
