"""Kernels that are alike side by side, where neither needs the other.

The runtime runs kernels that follow one another, and do not need each other, as one job
(``src/native/plan.cpp``), which uses many threads better. The products of both directions of a
recurrent layer are such, if the recurrence of the first does not stand between them: moved there,
the recurrences run side by side too. Only kernels that read and write tensors of equal types move,
since they take about equally long; others would only hold memory longer. Start with
:func:`alike_beside`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from tilewright.ir.graph import Graph
from tilewright.ir.kernel import Kernel, KernelKind, Plan
from tilewright.plan.launches import needs_of
from tilewright.runtime.jobs import MOST_KERNELS

MOST_AHEAD = 8  # kernels that one may overtake, so that what it writes is held for a short while


def alike_beside(graph: Graph, plan: Plan) -> Plan:
    """The plan with kernels moved forward to what they are alike to."""
    before = {kernel: number for number, kernel in enumerate(plan.kernels)}
    needs = needs_of(graph, plan.kernels)
    waiting = list(plan.kernels)
    order: list[Kernel] = []
    while waiting:
        beside = [waiting.pop(0)]
        while len(beside) < MOST_KERNELS:
            found = _next(waiting, beside, needs)
            if found is None:
                break
            waiting.remove(found)
            beside.append(found)
        order += beside
    if order == list(plan.kernels):
        return plan
    after = {before[kernel]: number for number, kernel in enumerate(order)}
    alternatives = tuple(
        replace(each, ways=tuple(tuple(sorted(after[n] for n in way)) for way in each.ways))
        for each in plan.alternatives
    )
    corrections = tuple(sorted(((after[n], own) for n, own in plan.corrections), key=itemgetter(0)))
    return replace(plan, kernels=tuple(order), alternatives=alternatives, corrections=corrections)


def _next(
    waiting: Sequence[Kernel],
    beside: Sequence[Kernel],
    needs: Mapping[Kernel, Sequence[Kernel]],
) -> Kernel | None:
    """The first kernel that is alike to those, and needs neither them nor what still waits."""
    if beside[0].kind is KernelKind.OPAQUE:
        return None
    overtaken: set[Kernel] = set()
    for kernel in waiting[:MOST_AHEAD]:
        if kernel.kind is KernelKind.OPAQUE:
            return None
        is_free = overtaken.isdisjoint(needs[kernel]) and not set(beside) & set(needs[kernel])
        if is_free and _types(kernel) == _types(beside[0]):
            return kernel
        overtaken.add(kernel)
    return None


def _types(kernel: Kernel) -> tuple[object, ...]:
    """What is equal of kernels that are alike."""
    types = [tuple(n.type for n in nodes) for nodes in (kernel.reads, kernel.outputs, kernel.seeds)]
    return kernel.kind, *types, len(kernel.body)


__all__ = ["alike_beside"]
