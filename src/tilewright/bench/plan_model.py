"""A plan as an ONNX model, for viewers of graphs such as Netron: one function for each kernel.

A kernel is a node whose function, which a viewer opens, holds the primitives that the kernel
computes. Its attributes say what it takes at a shape. The model is a picture and computes nothing:
primitives and weights are nodes of a domain of their own. Imports ir and onnx. Start with
:func:`plan_model`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx
from onnx import helper

from tilewright.bench.explain import KernelReport
from tilewright.ir.graph import Graph, Node
from tilewright.ir.kernel import Kernel, Plan
from tilewright.ir.primitives import Constant, Input, Map, Opaque, Project
from tilewright.ir.printing import attributes_of, node_names
from tilewright.ops.onnx_types import DTYPES

PRIMITIVES, KERNELS = "tilewright", "tilewright.kernels"
OPSETS = (helper.make_opsetid(PRIMITIVES, 1), helper.make_opsetid(KERNELS, 1))
_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
_MICRO = 1e6  # microseconds in a second


def plan_model(graph: Graph, plan: Plan, reports: Iterable[KernelReport]) -> onnx.ModelProto:
    """The kernels that ``reports`` are about, with what is measured and modelled of them."""
    names = node_names(graph)
    known = list(reports)
    kernels = [(report, plan.kernels[report.number]) for report in known]
    written = {output for _, kernel in kernels for output in kernel.outputs}
    nodes: dict[str, onnx.NodeProto] = {}
    for _, kernel in kernels:
        for read in kernel.reads:
            if read not in written and not isinstance(read.primitive, Input):
                nodes.setdefault(names[read], _source(read, names))
    for report, kernel in kernels:
        nodes[f"kernel {report.number}"] = _kernel_node(report, kernel, names)
    drawn = helper.make_graph(
        list(nodes.values()),
        graph.name or "plan",
        [_value(node, names[node]) for node in graph.inputs],
        [_value(node, names[node]) for _, node in graph.outputs if node in written],
        value_info=[_value(node, names[node]) for node in written if node in names],
    )
    functions = [_function(report, kernel, names) for report, kernel in kernels]
    return helper.make_model(
        drawn, functions=functions, opset_imports=list(OPSETS), producer_name="tilewright"
    )


def _operation(report: KernelReport) -> str:
    """The name of a kernel's function; it begins with what a reader looks for."""
    kind = "".join(word.capitalize() for word in report.kind.split())
    return f"{kind}_{report.number}"


def _told(report: KernelReport) -> dict[str, str]:
    """What a kernel's node says of it."""
    other = report.rejected
    return {
        "operators": ", ".join(report.operators),
        "variant": report.variant,
        "takes_us": f"{report.measured * _MICRO:.1f}",
        "modelled_us": f"{report.modelled * _MICRO:.1f}",
        "limit_us": f"{report.limit * _MICRO:.1f}",
        "one_by_one_us": f"{report.apart * _MICRO:.1f}",
        "instead": "no other" if other is None else other.described,
        "saves_us": "" if other is None else f"{other.more * _MICRO:.1f}",
        "runner_up": report.runner_up,
        "bytes": str(report.bytes),
        "multiply_adds": str(report.multiply_adds),
    }


def _kernel_node(report: KernelReport, kernel: Kernel, names: dict[Node, str]) -> onnx.NodeProto:
    return helper.make_node(
        _operation(report), _named(kernel.reads, names), _named(kernel.outputs, names),
        name=f"{report.number}: {report.label}", domain=KERNELS, **_told(report),
    )  # fmt: skip


def _function(report: KernelReport, kernel: Kernel, names: dict[Node, str]) -> onnx.FunctionProto:
    return helper.make_function(
        KERNELS, _operation(report), _named(kernel.reads, names), _named(kernel.outputs, names),
        [_primitive(node, names) for node in kernel.body], [OPSETS[0]], list(_told(report)),
    )  # fmt: skip


def _primitive(node: Node, names: dict[Node, str]) -> onnx.NodeProto:
    """A primitive by its name; an elementwise one by that of its function."""
    primitive = node.primitive
    name = type(primitive).__name__
    if isinstance(primitive, Map):
        name = primitive.function.title().replace("_", "")
    if isinstance(primitive, Opaque):
        name = primitive.operator
    given = {key: text for key, text in attributes_of(node) if key != "function"}
    return helper.make_node(
        name, _named(node.inputs, names), [names[node]], domain=PRIMITIVES, **given
    )


def _source(node: Node, names: dict[Node, str]) -> onnx.NodeProto:
    """Weights, and results of an operator with several, as nodes without data."""
    if isinstance(node.primitive, Constant):
        return helper.make_node(
            "Weights", [], [names[node]], domain=PRIMITIVES, type=str(node.type)
        )
    assert isinstance(node.primitive, Project)
    return _primitive(node, names)


def _named(nodes: Sequence[Node], names: dict[Node, str]) -> list[str]:
    return [names[node] for node in nodes]


def _value(node: Node, name: str) -> onnx.ValueInfoProto:
    sizes = [size.value if size.is_constant else str(size) for size in node.shape]
    return helper.make_tensor_value_info(name, _NUMBERS[node.dtype], sizes)


__all__ = ["plan_model"]
