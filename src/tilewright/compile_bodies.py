"""Bodies of If, Loop and Scan, compiled as models of their own that steps of a program call.

Each body becomes an artifact, which is a constant of the program around it. Where one cannot be
compiled, the operator stays with the ONNX reference evaluator. Start with :func:`compiled_bodies`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tilewright.backend.cpu.program import Bodies
from tilewright.frontend.onnx import Fallback, ImportReport
from tilewright.frontend.onnx.bodies import Body, ControlFlow, control_flow
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.kernel import KernelKind, Plan
from tilewright.ir.primitives import Constant, TensorType
from tilewright.runtime.artifact import ArtifactContents
from tilewright.runtime.artifact_writer import artifact_bytes
from tilewright.runtime.control import BodyInputs, ControlStep, ResultType
from tilewright.support.errors import TilewrightError

_LOG = logging.getLogger(__name__)

CompileBody = Callable[[Body], tuple[ImportReport, ArtifactContents]]


def compiled_bodies(
    graph: Graph, plan: Plan, report: ImportReport, compile_body: CompileBody
) -> tuple[Bodies, ImportReport]:
    """The bodies of all operators of a plan that have some, and the report that counts them."""
    found: dict[Node, tuple[bytes, Sequence[Node]]] = {}
    for kernel in plan.kernels:
        if kernel.kind is not KernelKind.OPAQUE:
            continue
        (call,) = kernel.outputs
        flow = control_flow(call, graph.scope)
        if flow is None:
            continue
        try:
            made = [compile_body(body) for body in flow.bodies]
        except TilewrightError as error:
            _LOG.info("A body of %s is not compiled: %s", graph.label(call), error)
            continue
        programs = [next(iter(contents.programs.values())) for _, contents in made]
        names = [program.input_names for program in programs]
        artifacts = [node(Constant.of(artifact_bytes(contents))) for _, contents in made]
        found[call] = (_step(flow, names).payload(), artifacts)
        report = _counted(report, flow.operator, graph.label(call), [r for r, _ in made])
    return found, report


def _step(flow: ControlFlow, names: Sequence[Sequence[str]]) -> ControlStep:
    """What the runtime is told; ``names`` are the inputs of the bodies in their order."""
    places: list[BodyInputs] = []
    for body, inputs in zip(flow.bodies, names, strict=True):
        captured = dict(body.captured)
        places.append(
            BodyInputs(
                tuple(
                    body.parameters.index(name) if name in body.parameters else -1 - captured[name]
                    for name in inputs
                )
            )
        )
    given = flow.attributes
    scanned = int(given.get("num_scan_inputs", 0))
    present = [operand for operand in flow.operands if operand is not None]
    results = flow.bodies[0].results
    stacked = len(results) - (len(present) - scanned)

    def listed(name: str, count: int) -> tuple[int, ...]:
        return tuple(given.get(name, [0] * count))

    step = ControlStep(
        flow.operator,
        flow.operands,
        flow.outputs,
        tuple(places),
        tuple(_known(kind, flow.bodies[0].sizes) for kind in results),
    )
    if flow.operator != "Scan":
        return step
    return replace(
        step,
        scanned=scanned,
        axes=listed("scan_input_axes", scanned),
        backward=listed("scan_input_directions", scanned),
        result_axes=listed("scan_output_axes", stacked),
        result_backward=listed("scan_output_directions", stacked),
    )


def _known(kind: TensorType, places: Mapping[str, tuple[int, int]]) -> ResultType:
    """A type as the runtime is told it, with 0 for the sizes that are not known."""
    sizes = [s.value if s.is_constant else places.get(str(s), 0) for s in kind.shape]
    return kind.dtype.value, tuple(sizes)


def _counted(
    report: ImportReport, operator: str, where: str, bodies: Sequence[ImportReport]
) -> ImportReport:
    """The report with an operator compiled, and what its bodies hold."""
    fallbacks = list(report.fallbacks)
    own = next((f for f in fallbacks if (f.operator, f.where) == (operator, where)), None)
    if own is not None:
        fallbacks.remove(own)
    compiled = dict(report.compiled)
    for name, count in [(operator, 1), *(item for b in bodies for item in b.compiled.items())]:
        compiled[name] = compiled.get(name, 0) + count
    inner = [
        Fallback(f.operator, f"{where} > {f.where}", f.reason) for b in bodies for f in b.fallbacks
    ]
    return replace(report, compiled=dict(sorted(compiled.items())), fallbacks=(*fallbacks, *inner))
