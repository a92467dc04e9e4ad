"""Checks that a primitive graph is what it claims to be.

:func:`problems` lists everything that is wrong, :func:`verify` raises. ``stages`` runs it after
every stage of a compilation that is checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.ir.dtype import DType
from tilewright.ir.graph import Graph, Node, expressions_of, node, topological
from tilewright.ir.primitives import (
    Constant,
    Input,
    Opaque,
    PrimitiveError,
    Project,
)
from tilewright.support.errors import InternalError

REPORT = "Report this as a defect, with the model and what --dump writes"


class VerificationError(InternalError):
    """What a stage of the compiler has made is not what it must be; a defect of tilewright.

    ``where`` names the stage, and the rule or the kernel.
    """


def failure(found: Sequence[str], where: str) -> VerificationError:
    """The error for problems that were found, of which there is at least one."""
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return VerificationError(f"{found[0]}{more}", where=where, hint=REPORT)


def verify(graph: Graph, stage: str | None = None, known: set[Node] | None = None) -> None:
    """Raise ``VerificationError`` with the first of all problems; ``stage`` is named in it."""
    found = problems(graph, known)
    if found:
        where = f"graph '{graph.name}'"
        raise failure(found, where if stage is None else f"stage {stage}, {where}")


def problems(graph: Graph, known: set[Node] | None = None) -> list[str]:
    """Everything that is wrong with a graph, as sentences; empty if nothing is.

    Nodes in ``known`` have been found right before; those that are found right now are added.
    """
    nodes = topological((*graph.inputs, *graph.roots))
    found = _interface(graph, nodes)
    for current in nodes:
        if known is None or current not in known:
            wrong = node_problems(current, graph.label(current))
            found += wrong
            if known is not None and not wrong:
                known.add(current)
    found += _dimensions(graph)
    return found


def _interface(graph: Graph, nodes: Iterable[Node]) -> list[str]:
    found: list[str] = []
    names: list[str] = []
    for value in graph.inputs:
        if isinstance(value.primitive, Input):
            names.append(value.primitive.name)
        else:
            found.append(f"{value!r} is listed as an input, but is none")
    found += [f'two inputs are called "{n}"' for n in _repeated(names)]
    found += [f'two outputs are called "{n}"' for n in _repeated(n for n, _ in graph.outputs)]
    if not graph.outputs:
        found.append("there are no outputs")
    known = set(graph.inputs)
    for current in nodes:
        if isinstance(current.primitive, Input) and current not in known:
            found.append(f'the input "{current.primitive.name}" is used, but not listed')
    return found


def _repeated(names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    out: list[str] = []
    for name in names:
        if name in seen:
            out.append(name)
        seen.add(name)
    return out


def node_problems(current: Node, label: str) -> list[str]:
    """Everything that is wrong with one node by itself."""
    label = f"{label}: {current!r}"
    try:
        derived = current.primitive.result(*(i.type for i in current.inputs))
    except (PrimitiveError, TypeError, LookupError) as error:
        return [f"{label} does not fit its operands: {error}"]
    found: list[str] = []
    if derived != current.type:
        found.append(f"{label} has another type than it would be given: {derived}")
    if node(current.primitive, *current.inputs) is not current:
        found.append(f"{label} is not interned")
    match current.primitive:
        case Constant(codes=None, array=array, dtype=dtype, shape=shape):
            if array.shape != shape or (dtype is not DType.STRING and array.dtype != dtype.numpy):
                found.append(f"{label} holds {array.dtype}{list(array.shape)}")
        case Project(index=index):
            operand = current.inputs[0].primitive
            if not isinstance(operand, Opaque) or not 0 < index < len(operand.outputs):
                found.append(f"{label} selects what is not there")
        case _:
            pass
    return found


def _dimensions(graph: Graph) -> list[str]:
    """Every dimension is known where it is used."""
    found: list[str] = []
    known = {s for value in graph.inputs for e in value.shape for s in e.free_symbols}
    for name, expression in graph.scope.definitions.items():
        if known.issuperset(expression.free_symbols):
            known.add(name)
    known |= {s for s in graph.scope.symbols if _follows(graph, s, known)}
    bound = {b.source: b.symbols for b in graph.bindings}
    for current in graph.nodes():
        found += _used(current, known, graph)
        known |= set(bound.get(current, ()))
    for guard in graph.guards:
        missing = [s for s in guard.condition.free_symbols if s not in known]
        if missing:
            found.append(f'nothing determines "{missing[0]}" of the demand {guard.condition}')
    return found


def _follows(graph: Graph, name: str, known: set[str]) -> bool:
    """Whether an equality of the scope gives a dimension from known ones."""
    value = graph.scope.resolve(graph.scope.declare(name, None))
    return name not in value.free_symbols and set(value.free_symbols) <= known


def _used(current: Node, known: set[str], graph: Graph) -> list[str]:
    found: list[str] = []
    if isinstance(current.primitive, Opaque):
        for kind in current.primitive.outputs:
            known |= {s for e in kind.shape for s in e.free_symbols}
    for expression in expressions_of(current):
        for name in expression.free_symbols:
            if name not in known:
                found.append(f'{graph.label(current)}: nothing determines "{name}" before')
                known.add(name)
    return found
