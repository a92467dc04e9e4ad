"""Kernels that are alike are lowered once; the layers of a model usually are.

Two kernels are alike if they compute the same primitives of operands that lie in memory in the same
way: then their tile programs are equal, and only the buffers differ. Start with
:class:`LoweringOnce`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from threading import Lock
from weakref import WeakValueDictionary

from tilewright.cost import Machine
from tilewright.ir.graph import Node, topological
from tilewright.ir.kernel import Kernel
from tilewright.ir.primitives import Constant, Input
from tilewright.policy import Policy
from tilewright.rewrite.precision import Narrower, never_narrowed
from tilewright.shape import Scope
from tilewright.tile.lower import LoweredKernel, lower_kernel
from tilewright.tile.narrow import narrow_nodes
from tilewright.tile.products.frame import RegisterTile
from tilewright.tile.variants import (
    Accuracy,
    LoweredStep,
    Packed,
    PackedCodes,
    PackedConstant,
    Source,
    Variant,
    Workspace,
)


class OutlineKey:
    """What is equal of kernels that are alike: one object for all of them, quick to look up."""

    __slots__ = ("__weakref__",)


@dataclass(frozen=True)
class Outline:
    """What two kernels that are alike have in common, and the nodes of one of them by number."""

    key: OutlineKey
    nodes: tuple[Node, ...]


_KEYS = WeakValueDictionary[tuple[object, ...], OutlineKey]()
_LOCK = Lock()


class LoweringOnce:
    """Lowers the kernels of one plan for one machine."""

    def __init__(
        self,
        scope: Scope,
        tile: RegisterTile,
        accuracy: Accuracy,
        machine: Machine,
        policy: Policy,
        narrower: Narrower = never_narrowed,
    ) -> None:
        self._tile = tile
        self._accuracy = accuracy
        self._policy = policy
        self._narrower = narrower
        self.scope = scope
        self.machine = machine
        self._known: dict[tuple[OutlineKey, str], tuple[Outline, tuple[Variant, ...]]] = {}

    def lowered(self, kernel: Kernel) -> LoweredKernel:
        """The variants of a kernel."""

        def make() -> tuple[Variant, ...]:
            return lower_kernel(
                kernel, self.scope, self._tile, self._accuracy, self.machine, self._policy,
                self._narrower, self._once,
            ).variants  # fmt: skip

        return LoweredKernel(kernel, self._once(kernel, "", make))

    def _once(
        self, kernel: Kernel, role: str, make: Callable[[], tuple[Variant, ...]]
    ) -> tuple[Variant, ...]:
        """See :data:`~tilewright.tile.variants.Once`."""
        own = outline_of(kernel)
        # Weights that are narrowed are other nodes than those of the kernel.
        narrow = narrow_nodes(kernel, self._narrower)
        own = replace(own, nodes=(*own.nodes, *narrow))
        found = self._known.get((own.key, role))
        if found is not None and len(found[0].nodes) == len(own.nodes):
            alike = _renamed(found[1], dict(zip(found[0].nodes, own.nodes, strict=True)))
            if alike is not None:
                return alike
        made = make()
        self._known.setdefault((own.key, role), (own, made))
        return made


def outline_key(kernel: Kernel) -> OutlineKey:
    """What is equal of kernels that are alike; they take equal time."""
    return outline_of(kernel).key


def outline_of(kernel: Kernel) -> Outline:
    """The nodes of a kernel, operands first, numbered from what it writes."""
    reads = set(kernel.reads)

    def operands(n: Node) -> tuple[Node, ...]:
        return () if n in reads else n.inputs

    nodes = topological((*kernel.outputs, *kernel.seeds), operands)
    number = {n: i for i, n in enumerate(nodes)}

    def numbers(of: Iterable[Node]) -> tuple[int, ...]:
        return tuple(number[n] for n in of)

    rows = tuple((_primitive(n, n in reads), numbers(operands(n)), n.type) for n in nodes)
    parts = (numbers(kernel.seeds), numbers(kernel.outputs))
    with _LOCK:
        key = _KEYS.setdefault((kernel.kind, parts, rows), OutlineKey())
    return Outline(key, tuple(nodes))


def _primitive(n: Node, is_read: bool) -> object:
    """The primitive without what its code does not depend on.

    That is contents of tensors, and how something was computed that is read from memory.
    """
    match n.primitive:
        case Constant(codes=codes) if n.rank > 0:
            return Constant, None if codes is None else codes.form
        case primitive if not is_read or isinstance(primitive, Constant):
            return type(primitive), primitive
        case _:
            return Input


def _renamed(variants: tuple[Variant, ...], names: dict[Node, Node]) -> tuple[Variant, ...] | None:
    """The variants with other nodes; None where they read what was made for the kernel itself."""
    spaces: dict[Workspace, Workspace] = {}

    def other(source: Source) -> Source:
        match source:
            case Workspace():
                return spaces.setdefault(source, replace(source))
            case PackedConstant(node=packed) | PackedCodes(node=packed):
                return replace(source, node=names[packed])
            case Node():
                return names[source]

    def renamed(step: LoweredStep) -> LoweredStep:
        writes = [w for w in map(other, step.writes) if not isinstance(w, Packed)]
        return replace(step, reads=tuple(map(other, step.reads)), writes=tuple(writes))

    steps = [step for variant in variants for step in variant.steps]
    if any(step.program.checks for step in steps):
        return None  # messages name the operator
    try:
        return tuple(
            replace(variant, steps=tuple(map(renamed, variant.steps))) for variant in variants
        )
    except KeyError:
        return None
