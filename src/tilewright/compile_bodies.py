"""Bodies, compiled as models of their own that steps of a program call.

Those of If, Loop and Scan, and what runs for each sequence of a ragged batch. Each body becomes an
artifact, which is a constant of the program around it. Start with :func:`compiled_bodies`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tilewright.backend.cpu.program import Bodies
from tilewright.frontend.onnx import import_body
from tilewright.frontend.onnx.bodies import Body, ControlFlow, control_flow
from tilewright.ir.graph import Graph, Node, node
from tilewright.ir.primitives import Constant, Opaque, TensorType
from tilewright.rewrite.ragged import OPERATOR as RAGGED_OPERATOR
from tilewright.rewrite.ragged import RaggedBody
from tilewright.runtime.artifact import ArtifactContents
from tilewright.runtime.artifact_writer import artifact_bytes
from tilewright.runtime.control import ControlStep, ResultType
from tilewright.runtime.ragged import RaggedStep
from tilewright.runtime.ragged_batch import Share

_LOG = logging.getLogger(__name__)

CompileBody = Callable[[Body], ArtifactContents]
CompileGraph = Callable[[Graph], ArtifactContents]


def compiled_bodies(graph: Graph, compile_body: CompileBody) -> Bodies:
    """The bodies of all operators of a graph that have some which can be compiled."""
    found: dict[Node, tuple[bytes, Sequence[Node]]] = {}
    for call in graph.nodes():
        if not isinstance(call.primitive, Opaque):
            continue
        flow = control_flow(call, graph.scope, import_body)
        if flow is None:
            continue
        made = [compile_body(body) for body in flow.bodies]
        names = [next(iter(contents.programs.values())).input_names for contents in made]
        artifacts = [node(Constant.of(artifact_bytes(contents))) for contents in made]
        found[call] = (_step(flow, names).payload(), artifacts)
        _LOG.info("Compiled the bodies of %s", graph.label(call))
    return found


def ragged_bodies(
    graph: Graph, bodies: Sequence[RaggedBody], compile_graph: CompileGraph
) -> Bodies:
    """The bodies of a ragged batch, for the nodes of ``graph`` that call them."""
    artifacts: list[Node] = []
    for number, body in enumerate(bodies):
        artifacts.append(node(Constant.of(artifact_bytes(compile_graph(body.graph)))))
        _LOG.info("Compiled body %d of %d of a ragged batch", number + 1, len(bodies))
    found: dict[Node, tuple[bytes, Sequence[Node]]] = {}
    for call in graph.nodes():
        if isinstance(call.primitive, Opaque) and call.primitive.operator == RAGGED_OPERATOR:
            serial = call.primitive.serial
            found[call] = (ragged_step(bodies[serial]).payload(), (artifacts[serial],))
    return found


def ragged_step(body: RaggedBody) -> RaggedStep:
    results: list[tuple[Share, str, tuple[int, ...]]] = []
    for share, (_, result) in zip(body.results, body.graph.outputs, strict=True):
        sizes = tuple(size.value if size.is_constant else 0 for size in result.shape)
        results.append(((share.part, share.axis), result.dtype.value, sizes))
    operands: list[Share] = [(share.part, share.axis) for share in body.operands]
    return RaggedStep(tuple(operands), tuple(results))


def _step(flow: ControlFlow, names: Sequence[Sequence[str]]) -> ControlStep:
    """What the runtime is told; ``names`` are the inputs of the bodies in their order."""
    given = flow.attributes
    scanned = int(given.get("num_scan_inputs", 0))
    present = [operand for operand in flow.operands if operand is not None]
    body = flow.bodies[0]
    step = ControlStep(
        flow.operator,
        flow.operands,
        flow.outputs,
        tuple(map(_inputs, flow.bodies, names)),
        tuple(_known(kind, body.sizes) for kind in body.results),
    )
    if flow.operator != "Scan":
        return step
    stacked = len(body.results) - (len(present) - scanned)

    def listed(name: str, count: int) -> tuple[int, ...]:
        return tuple(given.get(name, [0] * count))

    return replace(
        step,
        scanned=scanned,
        axes=listed("scan_input_axes", scanned),
        backward=listed("scan_input_directions", scanned),
        result_axes=listed("scan_output_axes", stacked),
        result_backward=listed("scan_output_directions", stacked),
    )


def _inputs(body: Body, names: Sequence[str]) -> tuple[int, ...]:
    """Where the inputs of a body come from, as a step says it."""
    numbers = {name: number for number, name in enumerate(body.parameters)}
    captured = {name: -1 - index for name, index in body.captured}
    return tuple(numbers[n] if n in numbers else captured[n] for n in names)


def _known(kind: TensorType, places: Mapping[str, tuple[int, int]]) -> ResultType:
    """A type as the runtime is told it, with 0 for the sizes that are not known."""
    sizes = [s.value if s.is_constant else places.get(str(s), 0) for s in kind.shape]
    return kind.dtype.value, tuple(sizes)
