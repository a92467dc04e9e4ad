"""The kernels of a program that have several variants, and the program restricted to some of them.

A program has a `Choice` for each such kernel. Variants are named by their positions, one for each
choice in the order of the program. May import runtime. Start with `Variants`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.runtime.artifact import ArtifactContents
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.program import Buffer, KernelStep, Program, Step
from tilewright.shape import evaluate_all

ONLY = "only"


def variants_of(program: Program) -> tuple[tuple[str, ...], ...]:
    """The names of the variants of each kernel that has several."""
    return tuple(choice.names for choice in program.choices)


def chosen_variants(program: Program, sizes: Mapping[str, int], threads: int) -> tuple[int, ...]:
    """The variant of each choice with the least cost, the first of equals."""
    environment = {**sizes, program.threads_symbol: threads}
    found: list[int] = []
    for choice in program.choices:
        costs = evaluate_all(choice.costs, environment)
        found.append(costs.index(min(costs)))
    return tuple(found)


def described(program: Program, variants: Sequence[int]) -> str:
    """The names of these variants, for people."""
    chosen = zip(program.choices, variants, strict=True)
    return ", ".join(choice.names[variant] for choice, variant in chosen) or ONLY


def restricted(contents: ArtifactContents, variants: Sequence[int]) -> ArtifactContents:
    """The same programs with choices that always fall on these variants."""

    def fixed(program: Program) -> Program:
        symbols = (choice.symbol for choice in program.choices)
        chosen = dict(zip(symbols, variants, strict=True))

        def buffer(given: Buffer) -> Buffer:
            return replace(given, shape=tuple(size.substitute(chosen) for size in given.shape))

        def step(given: Step) -> Step:
            if not isinstance(given, KernelStep):
                return given
            return replace(given, used=given.used.substitute(chosen))

        buffers, steps = tuple(map(buffer, program.buffers)), tuple(map(step, program.steps))
        return replace(program, choices=(), buffers=buffers, steps=steps)

    return replace(contents, programs={n: fixed(p) for n, p in contents.programs.items()})


@dataclass
class Variants:
    """The models that a compiled program becomes with its choices fixed.

    They share code and constants, and each is made when it is first asked for: of several kernels
    only one at a time departs from what is chosen, so most combinations never are.
    """

    contents: ArtifactContents
    threads: int
    _made: dict[tuple[int, ...], CompiledModel] = field(
        default_factory=dict[tuple[int, ...], CompiledModel]
    )

    @property
    def program(self) -> Program:
        """The one program, with its choices."""
        (program,) = self.contents.programs.values()
        return program

    def chosen(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """What the runtime chooses at these sizes."""
        return chosen_variants(self.program, sizes, self.threads)

    def model(self, variants: tuple[int, ...]) -> CompiledModel:
        """The model that takes these variants at every shape."""
        if variants not in self._made:
            contents = restricted(self.contents, variants)
            self._made[variants] = CompiledModel.from_contents(contents, num_threads=self.threads)
        return self._made[variants]
