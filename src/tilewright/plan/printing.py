"""A plan as text, one line per kernel, with the names that the graph's own text gives to nodes.

Start with :func:`print_plan`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.graph import Graph, Node
from tilewright.ir.kernel import Kernel, Plan
from tilewright.ir.printing import node_names


def print_plan(graph: Graph, plan: Plan) -> str:
    """Kernels in order: what each reads, is shaped by, computes and writes."""
    names = node_names(graph)
    lines = [f"plan {graph.name}: {len(plan.kernels)} kernels"]
    for number, kernel in enumerate(plan.kernels):
        lines.append(kernel_line(number, kernel, names))
        for what in ("reads", "seeds", "body"):
            nodes: tuple[Node, ...] = getattr(kernel, what)
            if nodes:
                lines.append(f"    {what} {', '.join(names.get(n, repr(n)) for n in nodes)}")
    for group, alternatives in enumerate(plan.alternatives):
        ways = " or ".join(", ".join(map(str, numbers)) for numbers in alternatives.ways)
        lines.append(f"  alternatives {group}: kernels {ways}")
    if plan.corrections:
        numbers = ", ".join(str(number) for number, _ in plan.corrections)
        lines.append(f"  priced by measurement: kernels {numbers}")
    return "\n".join(lines) + "\n"


def kernel_line(number: int, kernel: Kernel, names: Mapping[Node, str]) -> str:
    """A kernel's number, kind, results and label."""
    outputs = ", ".join(f"{names.get(o, '?')}: {o.type}" for o in kernel.outputs)
    return f"  kernel {number} {kernel.kind.value} {outputs}  # {kernel.label}"
