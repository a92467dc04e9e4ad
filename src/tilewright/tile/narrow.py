"""The narrow form of a product kernel: its data is converted first, then multiplied in few bits.

A kernel around a float32 product may have one where a user allows fewer bits (see
``rewrite.precision``). It computes the same results from the same operands, in more steps, so it is
one more variant: where converting the data takes longer than it saves, at few columns, with few
rows that are read once, or on processors without an instruction for it, the float32 one is taken.
Start with :func:`narrow_kernel`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.cost import Machine
from tilewright.ir.graph import Node, same, topological
from tilewright.ir.kernel import Kernel, KernelKind
from tilewright.ir.primitives import Constant, Reduce
from tilewright.ir.row_product import row_product_of
from tilewright.ir.window_product import window_product_of
from tilewright.rewrite.precision import Narrower
from tilewright.shape import Scope, constant
from tilewright.tile.loops.loops import lower_loops
from tilewright.tile.passes.borders import with_borders
from tilewright.tile.passes.tables import with_tables
from tilewright.tile.prices import priced, with_costs
from tilewright.tile.rows.rows import lower_rows
from tilewright.tile.values.lowering import Lowering
from tilewright.tile.variants import LoweredStep, Variant, Workspace, between, workspace


@dataclass(frozen=True)
class NarrowKernel:
    """A kernel over narrow operands, the kernels before it that convert its data, and its type.

    ``places`` says where steps find what these kernels name otherwise: results of the kernel that
    all stand for, and memory between the steps.
    """

    name: str
    conversions: tuple[Kernel, ...]
    product: Kernel
    places: Mapping[Node, Node | Workspace]

    def placed(self, step: LoweredStep) -> LoweredStep:
        """A step of one of the kernels as one of the kernel that all stand for."""
        return between(step, self.places)

    def prepared(self, scope: Scope, machine: Machine) -> tuple[Variant, ...]:
        """The ways to convert the data, with their prices."""
        ways = [Variant(self.name, (), constant(0))]
        for kernel in self.conversions:
            found = converted(kernel, scope, machine)
            ways = [self._then(way, one, len(found) > 1) for way in ways for one in found]
        return tuple(replace(way, cost=way.cost + meetings(way.steps, machine)) for way in ways)

    def _then(self, way: Variant, one: Variant, is_named: bool) -> Variant:
        """One way to convert, and then another one."""
        name = f"{way.name} by {one.name}" if is_named else way.name
        return Variant(name, (*way.steps, *map(self.placed, one.steps)), way.cost + one.cost)


def narrow_kernel(kernel: Kernel, narrower: Narrower) -> NarrowKernel | None:
    """The narrow form of a kernel whose first seed is a product; None where it has none."""
    found = narrower(kernel.seed)
    if found is None:
        return None
    made: dict[Node, Node] = {kernel.seed: found.result}
    for current in kernel.body:
        if current not in made:
            made[current] = same(current, tuple(made.get(i, i) for i in current.inputs))
    outputs = tuple(made[output] for output in kernel.outputs)
    memory = set(kernel.reads)
    nodes = topological(outputs, lambda n: () if n in memory else n.inputs)
    place = {n: number for number, n in enumerate(nodes)}.__getitem__
    memory |= {n for n in nodes if isinstance(n.primitive, Constant) and n.rank > 0}
    conversions: list[Kernel] = []
    for converted in found.conversions:
        one = kernel.part((), converted, memory, place)
        seeds = tuple(n for n in one.body if isinstance(n.primitive, Reduce))
        conversions.append(replace(one, seeds=seeds))
        memory.update(converted)
    product = kernel.part((found.product,), outputs, memory, place)
    spaces = {n: workspace(n) for converted in found.conversions for n in converted}
    places = {**spaces, **dict(zip(outputs, kernel.outputs, strict=True))}
    name = found.product.inputs[0].dtype.value
    return NarrowKernel(name, tuple(conversions), product, places)


def narrow_nodes(kernel: Kernel, narrower: Narrower) -> tuple[Node, ...]:
    """The nodes of a kernel's narrow form, in the same order for kernels that are alike."""
    part = kernel
    if kernel.kind is KernelKind.ROW_PRODUCT:
        parts = row_product_of(kernel)
        assert parts is not None, f"{kernel.label}: its rows are not those of a product"
        part = parts.first
    elif kernel.kind is KernelKind.WINDOW_PRODUCT:
        windows = window_product_of(kernel)
        assert windows is not None, f"{kernel.label}: its windows are not those of a product"
        part = windows.first
    elif kernel.kind is not KernelKind.CONTRACTION:
        return ()
    found = narrow_kernel(part, narrower)
    if found is None:
        return ()
    reads = set(part.reads)
    return tuple(topological(found.product.outputs, lambda n: () if n in reads else n.inputs))


def meetings(steps: Sequence[LoweredStep], machine: Machine) -> int:
    """Picoseconds in which all threads meet behind each of the steps."""
    return round(1000 * (machine.target.sync_ns + machine.core.threads.step_ns)) * len(steps)


def converted(kernel: Kernel, scope: Scope, machine: Machine) -> tuple[Variant, ...]:
    """The ways to compute a kernel that converts data: of single elements, or along rows."""

    def fresh() -> Lowering:
        return Lowering(kernel, scope)

    if kernel.seeds:
        return with_costs(lower_rows(kernel, fresh, machine), machine)
    lowering = fresh()
    program = with_borders(lower_loops(kernel, lowering), lowering)
    steps = tuple(with_tables(program, lowering, kernel.outputs))
    return priced((Variant("", steps, constant(0)),), machine)
