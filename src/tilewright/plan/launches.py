"""Kernels in an order in which each finds what it reads. Start with :func:`in_order`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir.graph import Graph, Node
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Project
from tilewright.ir.verify import REPORT, VerificationError

Meet = Callable[[Kernel, Kernel], bool]


def _always(_: Kernel, __: Kernel) -> bool:
    return True


class LaunchRing(VerificationError):
    """Kernels that wait for each other; ``kernels`` are those of one ring."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        super().__init__(f"{kernels[0].label} needs its own results", hint=REPORT)
        self.kernels = tuple(kernels)


def in_order(graph: Graph, kernels: Sequence[Kernel], meet: Meet = _always) -> list[Kernel]:
    """Kernels after those that make what they read, or the sizes that they need.

    Of those that are free, the one comes first whose results do in the graph. ``meet`` tells
    whether some call launches both of two kernels; others do not wait for each other. Raises
    :class:`LaunchRing`.
    """
    place = {node: number for number, node in enumerate(graph.nodes())}
    first = sorted(kernels, key=lambda kernel: min(place[output] for output in kernel.outputs))
    needs = needs_of(graph, first, meet)
    done: dict[Kernel, None] = {}
    for kernel in first:
        _visit(kernel, needs, done)
    return list(done)


def needs_of(
    graph: Graph, kernels: Sequence[Kernel], meet: Meet = _always
) -> dict[Kernel, list[Kernel]]:
    """The kernels that must run before each, in a deterministic order."""
    makers: dict[Node, list[Kernel]] = {}
    for kernel in kernels:
        for output in kernel.outputs:
            makers.setdefault(output, []).append(kernel)
    return {kernel: _earlier(kernel, makers, graph, meet) for kernel in kernels}


def _earlier(
    kernel: Kernel, makers: dict[Node, list[Kernel]], graph: Graph, meet: Meet
) -> list[Kernel]:
    touched = (*kernel.reads, *kernel.body)
    sources = [*kernel.reads, *(d for n in touched for d in graph.sizes_from(n))]
    # The results of an opaque operator come together.
    whole = [s.inputs[0] if isinstance(s.primitive, Project) else s for s in sources]
    found = dict.fromkeys(maker for source in whole for maker in makers.get(source, ()))
    return [k for k in found if k is not kernel and meet(k, kernel)]


def _visit(kernel: Kernel, needs: dict[Kernel, list[Kernel]], done: dict[Kernel, None]) -> None:
    """Append a kernel to those done, after all that it needs."""
    stack: list[tuple[Kernel, bool]] = [(kernel, False)]
    open_: dict[Kernel, None] = {}
    while stack:
        current, ready = stack.pop()
        if current in done:
            continue
        if ready:
            done[current] = None
            del open_[current]
            continue
        if current in open_:
            waiting = list(open_)
            raise LaunchRing(waiting[waiting.index(current) :])
        open_[current] = None
        stack.append((current, True))
        stack += [(k, False) for k in reversed(needs[current]) if k not in done]


__all__ = ["LaunchRing", "in_order", "needs_of"]
