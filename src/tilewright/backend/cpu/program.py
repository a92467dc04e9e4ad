"""From lowered kernels to a runtime program: buffers, steps in order, code and constants.

Start with :func:`build_program`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.backend.cpu.alternatives import Launched
from tilewright.backend.cpu.buffer_numbers import moved, renumbered
from tilewright.backend.cpu.generate import CodeGenerator, KernelCode
from tilewright.backend.cpu.level_tiles import register_tile, usual_machine
from tilewright.backend.cpu.library import Compilation
from tilewright.backend.cpu.machine import Level
from tilewright.backend.cpu.pack import ConstantStore
from tilewright.cost import Machine
from tilewright.ir.graph import Binding, Graph, Node
from tilewright.ir.kernel import Kernel, KernelKind, Plan
from tilewright.ir.primitives import Constant, Input, Opaque, Project, TensorType
from tilewright.ir.product_nest import ProductNest
from tilewright.ir.tile import TileProgram
from tilewright.ir.verify import REPORT, VerificationError, failure
from tilewright.policy import POLICIES, Policy
from tilewright.rewrite.precision import Precision, narrower_of
from tilewright.runtime.program import (
    BindStep,
    Buffer,
    Choice,
    CodeImage,
    Dimension,
    KernelStep,
    OpaqueStep,
    OperatorCount,
    Program,
    Step,
)
from tilewright.shape import (
    Expr,
    InputPattern,
    bind_inputs,
    ceil_div,
    constant,
    equal,
    product,
    symbol,
)
from tilewright.tile.alike import LoweringOnce
from tilewright.tile.lower import LoweredKernel
from tilewright.tile.sharing import Launch, OverwritingOnce, SharedMemory, Tensor
from tilewright.tile.variants import (
    THREADS,
    Accuracy,
    LoweredStep,
    Packed,
    Source,
    Variant,
    Workspace,
)

Array = np.ndarray[Any, Any]
Observe = Callable[[LoweredKernel], None]


Bodies = Mapping[Node, tuple[bytes, Sequence[Node]]]


@dataclass(frozen=True)
class CompiledProgram:
    """All that one level needs to run."""

    program: Program
    image: CodeImage
    constants: tuple[Array, ...]
    lowered: tuple[LoweredKernel, ...]


@dataclass
class _Item:
    """Steps to be ordered as one: what they read, what they make, and the symbols of both."""

    steps: list[Step]
    reads: list[Node]
    makes: list[Node]
    symbols: set[str]
    binds: tuple[str, ...] = ()
    lowered: LoweredKernel | None = None  # that the steps are of, one variant after the other


@dataclass
class _Builder:
    graph: Graph
    plan: Plan
    level: Level
    store: ConstantStore
    bodies: Bodies
    buffers: list[Buffer] = field(default_factory=list[Buffer])
    places: dict[Source, int] = field(default_factory=dict[Source, int])
    choices: list[Choice] = field(default_factory=list[Choice])
    constants: list[Node | Packed] = field(default_factory=list[Node | Packed])
    counts: dict[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        self.numbers = {kernel: number for number, kernel in enumerate(self.plan.kernels)}
        self.launched = Launched(self.plan, self.unused)

    def place(
        self, key: Source | None, name: str, kind: str, type_: TensorType,
        packed: Expr | None = None,
    ) -> int:  # fmt: skip
        """A new buffer; ``key`` finds it again."""
        index = self.counts.get(kind, 0)
        self.counts[kind] = index + 1
        self.buffers.append(
            Buffer(name, type_.dtype.value, type_.shape, kind, index, packed)  # type: ignore[arg-type]
        )
        if key is not None:
            self.places[key] = len(self.buffers) - 1
        return len(self.buffers) - 1

    def constant_place(self, source: Node | Packed) -> int:
        """The buffer of a constant, added on first use."""
        if source in self.places:
            return self.places[source]
        packed = isinstance(source, Packed)
        size = constant(self.store.add(source))
        self.constants.append(source)
        return self.place(
            source,
            f"constant_{len(self.constants) - 1}",
            "constant",
            source.type,
            size if packed else None,
        )

    def operand(self, source: Source) -> int:
        """The buffer a kernel reads."""
        if isinstance(source, Workspace):
            return self.places[source]
        if isinstance(source, Packed) or isinstance(source.primitive, Constant):
            return self.constant_place(source)
        return self.places[source]

    def declare(self) -> None:
        """Buffers of inputs, outputs and intermediates."""
        for node in self.graph.inputs:
            primitive = node.primitive
            assert isinstance(primitive, Input)
            self.place(node, primitive.name, "input", node.type)
        for name, node in self.graph.outputs:
            self.place(node, name, "output", node.type)
        for kernel in self.plan.kernels:
            for position, output in enumerate(kernel.outputs):
                if output not in self.places:
                    type_ = self.launched.stored(output)
                    self.place(output, f"{kernel.label}:{position}", "intermediate", type_)
        for node in self.graph.nodes():
            if isinstance(node.primitive, Project) and node not in self.places:
                self.place(node, self.graph.label(node), "intermediate", node.type)

    # ------------------------------------------------------------ steps

    def kernel_item(self, lowered: LoweredKernel, code: CodeGenerator) -> _Item:
        kernel, variants = lowered.kernel, lowered.variants
        chosen = self.choice(kernel.label, variants, code) if len(variants) > 1 else None
        steps: list[Step] = []
        symbols = _symbols(kernel.outputs) | {
            s for variant in variants for s in variant.cost.free_symbols
        }
        reads: list[Node] = []
        launched = self.launched.by(kernel)
        taken = [
            launched if chosen is None else launched * equal(chosen, n)
            for n in range(len(variants))
        ]
        self.place_workspaces(kernel, variants, taken)
        for variant, used in zip(variants, taken, strict=True):
            name = "" if chosen is None else variant.name
            for lowered_step in variant.steps:
                step = self.kernel_step(kernel, lowered_step, (used, name), code)
                steps.append(step)
                sizes = (*step.parameters, step.grid, step.work)
                symbols |= {s for e in sizes for s in e.free_symbols}
                reads += [source for source in lowered_step.reads if isinstance(source, Node)]
        reads = [read for read in reads if read not in kernel.outputs]  # of an earlier step
        own = set() if chosen is None else {str(chosen)}
        return _Item(steps, reads, list(kernel.outputs), symbols - own - {THREADS}, lowered=lowered)

    def place_workspaces(
        self, kernel: Kernel, variants: Sequence[Variant], taken: Sequence[Expr]
    ) -> None:
        """Memory between steps, of no size unless a variant is taken that writes it."""
        used: dict[Workspace, Expr] = {}
        for variant, chosen in zip(variants, taken, strict=True):
            written = dict.fromkeys(w for step in variant.steps for w in step.writes)
            for target in written:
                if isinstance(target, Workspace):
                    used[target] = used.get(target, constant(0)) + chosen
        for target, share in used.items():
            type_ = TensorType(target.dtype, (target.elements * share,))
            self.place(target, f"{kernel.label}:{target.name}", "intermediate", type_)

    def choice(self, label: str, variants: tuple[Variant, ...], code: CodeGenerator) -> Expr:
        """The symbol that says which of several variants is taken."""
        name = self.unused(f"choice_{len(self.choices)}")
        names = tuple(variant.name for variant in variants)
        self.add_choice(name, label, names, tuple(variant.cost for variant in variants), code)
        return symbol(name)

    def add_choice(
        self, name: str, label: str, names: tuple[str, ...], costs: tuple[Expr, ...],
        code: CodeGenerator,
    ) -> None:  # fmt: skip
        """A symbol that becomes the position of the least cost."""
        self.choices.append(Choice(name, label, names, costs, *code.add_choice(costs)))

    def choose_ways(
        self, lowered: Sequence[LoweredKernel], machine: Machine, code: CodeGenerator
    ) -> None:
        """The symbols that say which ways of a plan with alternatives are taken."""
        for made in self.launched.ways(lowered, machine):
            self.add_choice(*made, code)

    def kernel_step(
        self, kernel: Kernel, lowered: LoweredStep, variant: tuple[Expr, str], code: CodeGenerator
    ) -> KernelStep:
        """One step of a variant: (whether it is taken: 1 or 0, its name)."""
        used, name = variant
        if lowered.external is None:
            made = code.add(lowered.program)
        else:
            tasks = product([size for _, size in lowered.program.grid])
            given = lowered.external
            made = KernelCode(given.name, given.parameters, tasks, constant(1), constant(0))
        reads = tuple(self.operand(source) for source in lowered.reads)
        writes = tuple(self.places[target] for target in lowered.writes)
        return KernelStep(
            made.function, made.parameters, reads + writes, writes, made.grid, made.scratch,
            lowered.program.work, kernel.label, lowered.program.checks, name, used,
            *self.multiply_adds(lowered.program), self.numbers[kernel], made.rounds,
        )  # fmt: skip

    def multiply_adds(self, program: TileProgram) -> tuple[Expr, Expr]:
        """Those of a product of blocks without padding, and with that of its last columns."""
        nest = ProductNest.find(program)
        if nest is None:
            return constant(0), constant(0)
        made = nest.product
        word = 1 if made.narrow is None else made.dtype.bytes // made.narrow.bytes
        rows = product([size for _, size in nest.batch]) * nest.m * nest.k * word
        lanes = self.level.lanes(made.dtype.bytes)
        return rows * nest.n, rows * ceil_div(nest.n, lanes) * lanes

    def share_memory(self, ordered: Sequence[_Item], code: CodeGenerator) -> SharedMemory:
        """Put results where what they may overwrite is; steps are in their order."""
        launches = [
            Launch(item.lowered.variants)
            if item.lowered
            else Launch((), (*item.reads, *item.makes))
            for item in ordered
        ]
        memory = SharedMemory(
            launches, OverwritingOnce(self.graph.scope), self.is_intermediate, self.stored_bytes
        )
        found = memory.problems(launches)
        if found:
            raise failure(found, f"memory of graph '{self.graph.name}'")
        numbers = {
            place: self.places[owner]
            for source, place in self.places.items()
            if (owner := memory.owner(source)) is not source
        }
        kept = [number for number in range(len(self.buffers)) if number not in numbers]
        places = {number: place for place, number in enumerate(kept)}
        places |= {number: places[owner] for number, owner in numbers.items()}
        self.buffers = renumbered([self.buffers[number] for number in kept])
        for item in ordered:
            item.steps = [moved(step, places) for step in item.steps]
            if item.lowered is not None:
                self.write_in_place(item, memory.kernel(item.lowered), code)
        return memory

    def write_in_place(self, item: _Item, made: LoweredKernel, code: CodeGenerator) -> None:
        """Let the steps of a kernel call the programs that overwrite their operands."""
        assert item.lowered is not None
        before = [step for variant in item.lowered.variants for step in variant.steps]
        after = [step for variant in made.variants for step in variant.steps]
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            step = item.steps[number]
            if new.program is not old.program and isinstance(step, KernelStep):
                item.steps[number] = replace(step, **vars(code.add(new.program)))

    def is_intermediate(self, tensor: Tensor) -> bool:
        """Whether a tensor is made by a kernel and is nothing that a caller gets."""
        place = self.places.get(tensor)
        return place is not None and self.buffers[place].kind == "intermediate"

    def stored_bytes(self, tensor: Tensor) -> Expr:
        """The size of a tensor in memory."""
        return product(self.buffers[self.places[tensor]].shape) * tensor.dtype.bytes

    def unused(self, name: str) -> str:
        """``name``, or one like it that no dimension of the graph has."""
        taken = self.graph.scope.symbols
        while name in taken:
            name += "_"
        return name

    def opaque_item(self, kernel: Kernel, bound: set[str]) -> _Item:
        (node,) = kernel.outputs
        primitive = node.primitive
        assert isinstance(primitive, Opaque)
        makes: list[Node] = [node]
        outputs = [self.places[node]]
        projects = {
            n.primitive.index: n
            for n in self.graph.nodes()
            if isinstance(n.primitive, Project) and n.inputs[0] is node
        }
        for index in range(1, len(primitive.outputs)):
            found = projects.get(index)
            if found is None:
                name = f"{kernel.label}:{index}"
                outputs.append(self.place(None, name, "intermediate", primitive.outputs[index]))
            else:
                outputs.append(self.places[found])
                makes.append(found)
        shapes = [e for t in primitive.outputs for e in t.shape]
        binds = tuple(
            dict.fromkeys(str(e) for e in shapes if str(e) in e.free_symbols if str(e) not in bound)
        )
        payload, bodies = self.bodies.get(node, (primitive.payload, ()))
        inputs = tuple(self.operand(i) for i in (*node.inputs, *bodies))
        step = OpaqueStep(primitive.operator, payload, inputs, tuple(outputs), kernel.label)
        needs = {s for e in shapes for s in e.free_symbols} - set(binds)
        return _Item([step], list(node.inputs), makes, needs, binds)

    def bind_item(self, binding: Binding) -> _Item:
        step = BindStep(self.operand(binding.source), binding.symbols)
        return _Item([step], [binding.source], [], _symbols([binding.source]), binding.symbols)


def _symbols(nodes: Sequence[Node]) -> set[str]:
    return {s for n in nodes for e in n.shape for s in e.free_symbols}


def _ordered(items: list[_Item], known: set[str], ready: set[Node]) -> list[_Item]:
    """Items in their order, each after everything it reads and the symbols it needs are there."""
    bound = known | {s for item in items for s in item.binds}
    made = {n for item in items for n in item.makes}
    waiting, done = list(items), list[_Item]()
    while waiting:
        following = next(
            (
                item
                for item in waiting
                if all(r in ready or r not in made for r in item.reads)
                and not (item.symbols & bound) - known
            ),
            None,
        )
        if following is None:
            stuck = [s.label for w in waiting for s in w.steps if not isinstance(s, BindStep)]
            raise VerificationError(
                f"There is no order for {', '.join(dict.fromkeys(stuck))}",
                hint=REPORT,
            )
        waiting.remove(following)
        done.append(following)
        ready.update(following.makes)
        known |= set(following.binds)
    return done


def lowering_of(
    graph: Graph,
    level: Level,
    accuracy: Accuracy = Accuracy.STANDARD,
    machine: Machine | None = None,
    policy: Policy = POLICIES["auto"],
    precision: Precision = Precision.FLOAT32,
) -> LoweringOnce:
    """How kernels of a graph are lowered for one instruction set level.

    Costs are those of ``machine``, as far as code for the level uses it; a usual one of the level
    unless it is given. ``policy`` chooses the block sizes of products, ``precision`` is the one
    that they may have beside float32.
    """
    machine = (machine or usual_machine(level)).limited(level.has_instruction)
    tile = register_tile(level, machine)
    return LoweringOnce(graph.scope, tile, accuracy, machine, policy, narrower_of(precision))


def build_program(
    graph: Graph,
    plan: Plan,
    level: Level,
    dimensions: Sequence[Dimension] = (),
    operators: Sequence[OperatorCount] = (),
    lowering: LoweringOnce | None = None,
    observe: Observe | None = None,
    store: ConstantStore | None = None,
    bodies: Bodies | None = None,
) -> CompiledProgram:
    """Compile a planned graph for one instruction set level.

    ``lowering`` is what :func:`lowering_of` gives, by default for a usual machine of the level; it
    may know kernels of the plan already. ``observe`` is given every kernel before its code is
    generated. Levels that are given one ``store`` share the constants that they read alike.
    ``bodies`` holds for opaque nodes whose bodies are compiled the payload of their step and the
    artifacts.
    """
    builder = _Builder(graph, plan, level, store or ConstantStore(), bodies or {})
    with Compilation(level) as compilation:
        code = CodeGenerator(level, compilation)
        return _built(
            builder, lowering or lowering_of(graph, level), code, dimensions, operators, observe
        )


def _built(
    builder: _Builder,
    lowering: LoweringOnce,
    code: CodeGenerator,
    dimensions: Sequence[Dimension],
    operators: Sequence[OperatorCount],
    observe: Observe | None,
) -> CompiledProgram:
    """See :func:`build_program`."""
    graph = builder.graph
    builder.declare()
    patterns = [InputPattern(_input_name(n), n.shape) for n in graph.inputs]
    binding = bind_inputs(patterns, graph.scope, dimensions, graph.guards)
    known = set(binding.symbols)
    items = [builder.bind_item(b) for b in graph.bindings]
    lowered: list[LoweredKernel] = []
    taken = known | {s for b in graph.bindings for s in b.symbols}
    for kernel in builder.plan.kernels:
        if kernel.kind is KernelKind.OPAQUE:
            items.append(builder.opaque_item(kernel, taken))
            taken |= set(items[-1].binds)
            continue
        lowered.append(lowering.lowered(kernel))
        items.append(builder.kernel_item(lowered[-1], code))
    builder.choose_ways(lowered, lowering.machine, code)
    ordered = _ordered(items, set(known), set(graph.inputs))
    memory = builder.share_memory(ordered, code)
    shared = tuple(map(memory.kernel, lowered))
    if observe is not None:
        for made in shared:
            observe(made)
    program = Program(
        name=graph.name,
        buffers=tuple(builder.buffers),
        steps=tuple(step for item in ordered for step in item.steps),
        symbols=(*binding.symbols, *(s for item in ordered for s in item.binds)),
        input_names=tuple(_input_name(n) for n in graph.inputs),
        output_names=tuple(name for name, _ in graph.outputs),
        bindings=binding.sources,
        guards=binding.guards,
        dimensions=tuple(dimensions),
        operators=tuple(operators),
        choices=tuple(builder.choices),
        threads_symbol=THREADS,
    )
    functions = {step.function for step in program.steps if isinstance(step, KernelStep)}
    image = code.image(functions.union(choice.function for choice in program.choices))
    return CompiledProgram(program, image, builder.store.arrays(builder.constants), shared)


def _input_name(node: Node) -> str:
    primitive = node.primitive
    assert isinstance(primitive, Input)
    return primitive.name


__all__ = [
    "Bodies",
    "CompiledProgram",
    "build_program",
    "lowering_of",
]
