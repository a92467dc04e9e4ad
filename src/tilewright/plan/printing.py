"""A plan as text, one line per kernel, with the names that the graph's own text gives to nodes.

Start with :func:`print_plan`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.graph import Graph, Node
from tilewright.ir.kernel import Kernel, Plan
from tilewright.ir.printing import node_names
from tilewright.plan.greedy import kernel_reads


def print_plan(graph: Graph, plan: Plan) -> str:
    """Kernels in order: what each reads, computes and writes."""
    names = node_names(graph)
    lines = [f"plan {graph.name}: {len(plan.kernels)} kernels"]
    for number, kernel in enumerate(plan.kernels):
        lines.append(kernel_line(number, kernel, names))
        reads = ", ".join(names.get(n, repr(n)) for n in kernel_reads(kernel, plan.materialised))
        group = ", ".join(names.get(n, repr(n)) for n in kernel.group)
        lines += [f"    reads    {reads}", f"    computes {group}"]
    return "\n".join(lines) + "\n"


def kernel_line(number: int, kernel: Kernel, names: Mapping[Node, str]) -> str:
    """A kernel's number, kind, results and label."""
    outputs = ", ".join(f"{names.get(o, '?')}: {o.type}" for o in kernel.outputs)
    return f"  kernel {number} {kernel.kind.value} {outputs}  # {kernel.label}"
