"""From a program to the description that the native extension reads: numbers instead of names.

Decides, once per model, what does not depend on shapes: *phases* (a step that binds symbols ends
one, as sizes can be computed only from there on), how long each buffer lives, and which arena block
each phase uses (a block is used again as soon as nothing in it is needed any more). May import
``shape``, ``support`` and the rest of the package. Start reading at :func:`lower`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from tilewright.runtime.built_in import BuiltInStep
from tilewright.runtime.jobs import ends_of_jobs
from tilewright.runtime.library_kernels import address_of
from tilewright.runtime.program import (
    BUFFER_KINDS,
    NATIVE_ITEM_SIZES,
    BindStep,
    Buffer,
    Choice,
    KernelStep,
    OpaqueStep,
    Program,
    Step,
)
from tilewright.runtime.reading import contradiction
from tilewright.runtime.tensors import native_dtype
from tilewright.shape import Expr, Guard, encode, size_symbol
from tilewright.support.errors import DimensionError

_EXTERNAL, _ARENA, _OUTPUT, _MADE = range(4)
_NEVER = -1  # the step in which nothing happens
# Values of this dtype are sequences, optionals and the like, which have no shape.
SHAPELESS = "object"


def lower(
    program: Program,
    constant_sizes: Sequence[int],
    control: Mapping[int, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """The description of ``program``; ``constant_sizes`` in bytes, by position.

    ``control`` describes those of its steps whose bodies the extension calls, by their numbers.
    Raises ArtifactError where the program contradicts itself.
    """
    try:
        return _Lowering(program, constant_sizes, control or {}).description()
    except DimensionError as error:
        # Of constants that depend on dimensions, or numbers that need more than 64 bits.
        raise contradiction(error.message, program.name) from error


@dataclass
class _Life:
    """When a buffer is written first and touched last (steps), and by what it is written."""

    first: int = _NEVER
    last: int = _NEVER
    opaque: bool = False
    native: bool = False  # by an operator that the extension computes, or whose bodies it calls


@dataclass
class _Phase:
    first_step: int
    end_step: int = 0
    learned: list[str] = field(default_factory=list[str])  # symbols bound before it
    buffers: list[int] = field(default_factory=list[int])
    guards: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    block: int = 0


class _Lowering:
    """One pass each over steps, buffers and guards; collects numbered expressions."""

    def __init__(
        self,
        program: Program,
        constant_sizes: Sequence[int],
        control: Mapping[int, dict[str, Any]],
    ) -> None:
        self.program = program
        self.control = control
        self.constant_sizes = constant_sizes
        self.inputs = sorted(
            (buffer for buffer in program.buffers if buffer.kind == "input"),
            key=_position,
        )
        self.sizes = [
            (index, axis, str(size_symbol(index, axis)))
            for index, buffer in enumerate(self.inputs)
            if buffer.dtype != SHAPELESS
            for axis in range(len(buffer.shape))
        ]
        self.choices = {choice.symbol: choice for choice in program.choices}
        decided = [program.threads_symbol] if program.threads_symbol else []
        sizes = [name for _, _, name in self.sizes]
        self.names = [*program.symbols, *self.choices, *decided, *sizes]
        self.slots = {name: slot for slot, name in enumerate(self.names)}
        self.numbers: dict[Expr, int] = {}
        self.choosers: dict[tuple[str, tuple[str, ...]], int] = {}  # function and its arguments
        self.known_from = dict.fromkeys([*sizes, *decided], 0)
        self.known_from |= {source.symbol: 0 for source in program.bindings}
        self.lives = [_Life() for _ in program.buffers]
        self.phases: list[_Phase] = [_Phase(0)]
        self.opaque_bindings: dict[int, list[tuple[int, int, int]]] = {}
        self.block_count = 1
        self.ends = ends_of_jobs(program.steps)

    def description(self) -> dict[str, Any]:
        self.check_constants()
        self.split_phases()
        phase_of_buffer = [self.buffer_phase(number) for number in range(len(self.lives))]
        self.assign_buffers(phase_of_buffer)
        solving = self.solving_and_guards()
        self.assign_blocks()
        program = self.program
        described: dict[str, Any] = {
            "symbols": self.names,
            "buffers": [
                self.buffer(buffer, life, phase)
                for buffer, life, phase in zip(
                    program.buffers, self.lives, phase_of_buffer, strict=True
                )
            ],
            "steps": [self.step(number, step) for number, step in enumerate(program.steps)],
            "sizes": [(index, axis, self.slots[name]) for index, axis, name in self.sizes],
            "solving": solving,
            "phases": [self.phase(number) for number in range(len(self.phases))],
            "block_count": self.block_count,
            "threads_slot": self.slots.get(program.threads_symbol, -1),
            "constant_count": len(self.constant_sizes),
        }
        described["expressions"] = [(encode(e, self.slots), e.brief) for e in self.numbers]
        described["choosers"] = [
            (function, [self.slots[name] for name in arguments])
            for function, arguments in self.choosers
        ]
        return described

    def refuse(self, what: str) -> NoReturn:
        raise contradiction(what, self.program.name)

    def number(self, expr: Expr) -> int:
        return self.numbers.setdefault(expr, len(self.numbers))

    def all_numbers(self, exprs: Iterable[Expr]) -> list[int]:
        return [self.number(expr) for expr in exprs]

    def known(self, expr: Expr) -> int:
        """The phase in which all symbols of the expression are known."""
        phase = 0
        for name in expr.free_symbols:
            if name in self.choices and name not in self.known_from:
                costs = self.choices[name].costs
                if any(cost.free_symbols.count(name) for cost in costs):
                    self.refuse(f"'{name}' is chosen by what it decides")
                self.known_from[name] = max((self.known(cost) for cost in costs), default=0)
            if name not in self.known_from:
                self.refuse(f"nothing determines '{name}', which {expr} needs")
            phase = max(phase, self.known_from[name])
        return phase

    def require(self, exprs: Iterable[Expr], phase: int, place: str) -> None:
        for expr in exprs:
            if self.known(expr) > phase:
                self.refuse(f"'{place}' needs {expr} before its symbols are known")

    def check_constants(self) -> None:
        for buffer in self.program.buffers:
            if buffer.kind != "constant":
                continue
            if not 0 <= buffer.index < len(self.constant_sizes):
                self.refuse(f"constant '{buffer.name}' has no data")
            if buffer.dtype not in NATIVE_ITEM_SIZES:
                continue
            needed = NATIVE_ITEM_SIZES[buffer.dtype]
            for size in buffer.shape:
                needed *= size.evaluate({})
            if buffer.packed_bytes is not None:
                needed = buffer.packed_bytes.evaluate({})
            if self.constant_sizes[buffer.index] < needed:
                self.refuse(
                    f"constant '{buffer.name}' has {self.constant_sizes[buffer.index]} bytes, "
                    f"but needs {needed}"
                )

    def split_phases(self) -> None:
        """Walk the steps: lifetimes, what each step binds, and where phases begin."""
        for number, step in enumerate(self.program.steps):
            learned: list[str] = []
            match step:
                case KernelStep():
                    self.walk_kernel(number, step)
                case OpaqueStep():
                    learned = self.walk_opaque(number, step)
                case BindStep():
                    self.read(number, step.buffer)
                    if self.program.buffers[step.buffer].kind == "constant":
                        self.refuse("symbols are read from a constant")
                    learned = list(step.symbols)
            if learned:
                self.begin_phase(number + 1, learned)
        self.phases[-1].end_step = len(self.program.steps)

    def begin_phase(self, step: int, learned: list[str]) -> None:
        for name in learned:
            if name not in self.slots:
                self.refuse(f"'{name}' is bound, but is not among its symbols")
            if name in self.known_from:
                self.refuse(f"'{name}' is bound twice")
            self.known_from[name] = len(self.phases)
        self.phases[-1].end_step = step
        self.phases.append(_Phase(step, learned=learned))

    def walk_kernel(self, number: int, step: KernelStep) -> None:
        self.require((*step.parameters, *step.sizes), len(self.phases) - 1, step.label)
        for buffer in step.buffers:
            if buffer not in step.outputs:
                self.read(number, buffer)
        for buffer in step.outputs:
            if buffer not in step.buffers:
                self.refuse(f"'{step.label}' writes a buffer that it is not given")
            self.write(number, buffer, opaque=False)

    def walk_opaque(self, number: int, step: OpaqueStep) -> list[str]:
        learned: list[str] = []
        bindings = self.opaque_bindings.setdefault(number, [])
        for buffer in step.inputs:
            self.read(number, buffer)
        for position, buffer in enumerate(step.outputs):
            self.write(number, buffer, opaque=True)
            self.lives[buffer].native = step.is_built_in or number in self.control
            for axis, size in enumerate(self.program.buffers[buffer].shape):
                name = size.symbol_name
                if name is None or name in self.known_from or name in learned:
                    continue
                learned.append(name)
                bindings.append((position, axis, self.slots.get(name, -1)))
        return learned

    def read(self, step: int, buffer: int) -> None:
        self.check_buffer(buffer)
        life = self.lives[buffer]
        made_here = self.program.buffers[buffer].kind in ("output", "intermediate")
        if made_here and life.first == _NEVER:
            self.refuse(f"'{self.program.buffers[buffer].name}' is read before it is written")
        life.last = step

    def write(self, step: int, buffer: int, *, opaque: bool) -> None:
        self.check_buffer(buffer)
        life = self.lives[buffer]
        if self.program.buffers[buffer].kind not in ("output", "intermediate"):
            self.refuse(f"'{self.program.buffers[buffer].name}' is written, but not made here")
        if life.first == _NEVER:
            life.first, life.opaque = step, opaque
        elif opaque or life.opaque:
            self.refuse(f"'{self.program.buffers[buffer].name}' is written twice")
        life.last = step

    def check_buffer(self, buffer: int) -> None:
        if not 0 <= buffer < len(self.lives):
            self.refuse(f"there is no buffer {buffer}")

    def phase_of_step(self, step: int) -> int:
        return next(n for n, phase in enumerate(self.phases) if step < phase.end_step)

    def buffer_phase(self, number: int) -> int:
        """The phase in which the sizes of the buffer are known and its memory is provided."""
        buffer, life = self.program.buffers[number], self.lives[number]
        sizes = (
            buffer.shape if buffer.packed_bytes is None else (*buffer.shape, buffer.packed_bytes)
        )
        if buffer.kind == "output" and life.first == _NEVER:
            self.refuse(f"output '{buffer.name}' is never written")
        if life.first == _NEVER:
            return max((self.known(size) for size in sizes), default=0)
        phase = self.phase_of_step(life.first)
        if life.opaque:
            return max([phase, *(self.known(size) for size in sizes)])
        self.require(sizes, phase, buffer.name)
        return phase

    def storage(self, buffer: Buffer, life: _Life) -> int:
        if life.native:
            return _MADE
        if life.first == _NEVER or life.opaque:
            return _EXTERNAL
        return _OUTPUT if buffer.kind == "output" else _ARENA

    def assign_buffers(self, phase_of_buffer: Sequence[int]) -> None:
        for number, buffer in enumerate(self.program.buffers):
            unused = buffer.kind == "intermediate" and self.lives[number].first == _NEVER
            if buffer.kind != "constant" and not unused:
                self.phases[phase_of_buffer[number]].buffers.append(number)

    def solving_and_guards(self) -> list[tuple[list[tuple[int, str]], int, int]]:
        """The order in which symbols are found, with the guards that can be checked before each."""
        guards: list[Guard] = list(self.program.guards)
        for step in self.program.steps:
            if isinstance(step, BindStep):
                guards.extend(step.guards)
        found = {name for _, _, name in self.sizes}
        solving: list[tuple[list[tuple[int, str]], int, int]] = []
        for source in self.program.bindings:
            ready, waiting = _split(guards, found)
            if source.symbol not in self.slots:
                self.refuse(f"'{source.symbol}' is bound, but is not among its symbols")
            if not found.issuperset(source.formula.free_symbols):
                self.refuse(f"'{source.symbol}' is computed from what is not known")
            slot = self.slots[source.symbol]
            solving.append((self.numbered(ready), slot, self.number(source.formula)))
            found.add(source.symbol)
            guards = waiting
        for guard in guards:
            phase = self.phases[self.known(guard.condition)]
            phase.guards.extend(self.numbered([guard]))
        return solving

    def numbered(self, guards: Iterable[Guard]) -> list[tuple[int, str]]:
        return [(self.number(guard.condition), guard.message) for guard in guards]

    def assign_blocks(self) -> None:
        """Give each phase a block in which nothing is needed any more when it begins."""
        busy_until: list[int] = []
        for phase in self.phases:
            lasts = [self.lives[number].last for number in self.arena_items(phase)]
            if not lasts:
                continue
            free = (n for n, last in enumerate(busy_until) if last < phase.first_step)
            phase.block = next(free, len(busy_until))
            if phase.block == len(busy_until):
                busy_until.append(0)
            busy_until[phase.block] = max(lasts)
        self.block_count = max(1, len(busy_until))

    def arena_items(self, phase: _Phase) -> list[int]:
        return [
            number
            for number in phase.buffers
            if self.storage(self.program.buffers[number], self.lives[number]) == _ARENA
        ]

    def buffer(self, buffer: Buffer, life: _Life, phase: int) -> dict[str, Any]:
        native = buffer.dtype in NATIVE_ITEM_SIZES
        packed = -1 if buffer.packed_bytes is None else self.number(buffer.packed_bytes)
        return {
            "name": buffer.name,
            "kind": BUFFER_KINDS.index(buffer.kind),
            "index": buffer.index,
            "native": native,
            "shaped": buffer.dtype != SHAPELESS,
            "storage": self.storage(buffer, life),
            "item_size": NATIVE_ITEM_SIZES.get(buffer.dtype, 0),
            "shape": self.all_numbers(buffer.shape),
            "packed": packed,
            "phase": phase,
            "dtype": native_dtype(buffer.dtype) if native else None,
            "expected": describe(buffer),
        }

    def step(self, number: int, step: Step) -> dict[str, Any]:
        match step:
            case KernelStep():
                return {
                    "step": "kernel",
                    "function": step.function,
                    "address": address_of(step.function),
                    "label": step.label,
                    "checks": list(step.checks),
                    "parameters": self.all_numbers(step.parameters),
                    "buffers": list(step.buffers),
                    "written": list(step.outputs),
                    "grid": self.number(step.grid),
                    "rounds": self.number(step.rounds),
                    "scratch": self.number(step.scratch),
                    "work": self.number(step.work),
                    "used": self.number(step.used),
                }
            case OpaqueStep():
                described: dict[str, Any] = {
                    "step": "opaque",
                    "label": step.label,
                    "inputs": list(step.inputs),
                    "outputs": list(step.outputs),
                    "bindings": self.opaque_bindings[number],
                }
                if step.is_built_in:
                    described["built_in"] = BuiltInStep.of(step.payload).description()
                if number in self.control:
                    described["control"] = self.control[number]
                return described
            case BindStep():
                slots = [self.slots[name] for name in step.symbols]
                return {"step": "bind", "buffer": step.buffer, "slots": slots}

    def phase(self, number: int) -> dict[str, Any]:
        phase = self.phases[number]
        learned = [name for earlier in self.phases[: number + 1] for name in earlier.learned]
        deciding = [name for _, _, name in self.sizes] + learned
        return {
            "first_step": phase.first_step,
            "end_step": phase.end_step,
            "slots": [self.slots[name] for name in deciding],
            "guards": phase.guards,
            "choices": self.chosen(phase),
            "buffers": phase.buffers,
            "block": phase.block,
            "intervals": [
                (self.lives[item].first, self.lives[item].last) for item in self.arena_items(phase)
            ],
            # The same where kernels that could be one job are: until the last of them ends.
            "beside": [
                (self.lives[item].first, self.ends[self.lives[item].last])
                for item in self.arena_items(phase)
            ],
        }

    def chosen(self, phase: _Phase) -> list[tuple[int, int]]:
        """The choices that a phase depends on: where each goes, and what makes it."""
        used: set[str] = set()
        for step in self.program.steps[phase.first_step : phase.end_step]:
            if isinstance(step, KernelStep):
                sizes = (*step.parameters, *step.sizes)
                used.update(name for size in sizes for name in size.free_symbols)
        for number in phase.buffers:
            buffer = self.program.buffers[number]
            sizes = (*buffer.shape, *([] if buffer.packed_bytes is None else [buffer.packed_bytes]))
            used.update(name for size in sizes for name in size.free_symbols)
        return [
            (self.slots[choice.symbol], self.chooser(choice))
            for choice in self.program.choices
            if choice.symbol in used
        ]

    def chooser(self, choice: Choice) -> int:
        """The number of what makes a choice, shared by choices that are always the same."""
        if {name for cost in choice.costs for name in cost.free_symbols} != set(choice.arguments):
            self.refuse(f"'{choice.symbol}' depends on more than its costs")
        key = (choice.function, choice.arguments)
        return self.choosers.setdefault(key, len(self.choosers))


def describe(buffer: Buffer) -> str:
    """The type of a buffer for people: ``float32[batch, 768]``."""
    if buffer.dtype == SHAPELESS:
        return SHAPELESS
    return f"{buffer.dtype}[{', '.join(str(size) for size in buffer.shape)}]"


def _position(buffer: Buffer) -> int:
    return buffer.index


def _split(guards: Iterable[Guard], found: set[str]) -> tuple[list[Guard], list[Guard]]:
    """The guards that can be decided, and the others."""
    ready: list[Guard] = []
    waiting: list[Guard] = []
    for guard in guards:
        known = found.issuperset(guard.condition.free_symbols)
        (ready if known else waiting).append(guard)
    return ready, waiting
