"""Which tensors between kernels lie in the same memory, one after the other.

A result takes the place of an operand that nobody reads afterwards, where every variant of the
kernel may overwrite it (``ir/tile_overwrite.py``), and of what its own kernel keeps between its
steps. Both must be as large as the result, so that no step of the program needs more memory than
before. It is decided once for all shapes; kernels are then written for the one place. Start with
:class:`SharedMemory`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.ir.graph import Node
from tilewright.ir.tile import TileBuffer, TileProgram
from tilewright.ir.tile_overwrite import Overwriting, in_place
from tilewright.shape import Expr, Scope, product
from tilewright.tile.lower import LoweredKernel
from tilewright.tile.variants import THREADS, LoweredStep, Packed, Source, Variant, Workspace

Tensor = Node | Workspace


@dataclass(frozen=True)
class Launch:
    """A kernel by its variants, or something else, without any, that touches tensors."""

    variants: tuple[Variant, ...]
    touched: tuple[Node, ...] = ()

    @property
    def steps(self) -> Iterator[LoweredStep]:
        """The steps of all variants."""
        return (step for variant in self.variants for step in variant.steps)

    @property
    def tensors(self) -> dict[Tensor, None]:
        """Everything that is read or written and is no constant."""
        sources = [s for step in self.steps for s in (*step.reads, *step.writes)]
        return dict.fromkeys(s for s in (*self.touched, *sources) if not isinstance(s, Packed))


class OverwritingOnce:
    """What is known of tile programs of one graph; each is asked once."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope.copy()
        self.scope.declare(THREADS, 1)
        self._known: dict[TileProgram, Overwriting] = {}

    def allows(self, step: LoweredStep, operand: Tensor, result: Tensor) -> bool:
        """Whether a step may write ``result`` where ``operand``, which it reads, lies."""
        if step.external is not None:
            return False
        if step.program not in self._known:
            self._known[step.program] = Overwriting(step.program, self.scope)
        found = self._known[step.program]
        return all(found.allows(*pair) for pair in _pairs(step, operand, result))


def _pairs(
    step: LoweredStep, operand: Tensor, result: Tensor
) -> Iterator[tuple[TileBuffer, TileBuffer]]:
    """The buffers of a step's program that an operand and a result are."""
    buffers = step.program.buffers
    for own, source in zip(buffers, step.reads, strict=False):
        if source is operand:
            for other, target in zip(buffers[len(step.reads) :], step.writes, strict=True):
                if target is result:
                    yield own, other


class SharedMemory:
    """The memory of the tensors of launches in order; ``stored`` are the bytes of a tensor in it.

    ``may_share`` tells which tensors have memory that may be another one's.
    """

    def __init__(
        self,
        launches: Sequence[Launch],
        overwriting: OverwritingOnce,
        may_share: Callable[[Tensor], bool],
        stored: Callable[[Tensor], Expr],
    ) -> None:
        self._overwriting = overwriting
        self._stored = stored
        self._owners: dict[Tensor, Tensor] = {}
        self._programs: dict[tuple[TileProgram, tuple[TileBuffer, ...]], TileProgram] = {}
        self._first: dict[Tensor, int] = {}
        self._last: dict[Tensor, int] = {}
        fixed: set[Tensor] = set()
        for number, launch in enumerate(launches):
            for tensor in launch.tensors:
                self._first.setdefault(tensor, number)
                self._last[tensor] = number
            fixed.update(launch.touched)
        self._free = {t for t in self._first if t not in fixed and may_share(t)}
        for number, launch in enumerate(launches):
            self._share(number, launch)

    def owner(self, source: Source) -> Source:
        """The tensor whose place in memory a source has: itself, or what overwrites it at last."""
        while not isinstance(source, Packed) and source in self._owners:
            source = self._owners[source]
        return source

    def program(self, step: LoweredStep) -> TileProgram:
        """The program of a step as it is compiled: operands are read where results are written."""
        results = step.program.buffers[len(step.reads) :]
        places = {self.owner(t): (t, own) for t, own in zip(step.writes, results, strict=True)}
        pairs: dict[TileBuffer, TileBuffer] = {}
        for source, operand in zip(step.reads, step.program.buffers, strict=False):
            target, result = places.get(self.owner(source), (source, operand))
            if target is not source:
                pairs[operand] = result
        if not pairs:
            return step.program
        key = (step.program, tuple(b for pair in pairs.items() for b in pair))
        if key not in self._programs:
            self._programs[key] = in_place(step.program, pairs)
        return self._programs[key]

    def kernel(self, lowered: LoweredKernel) -> LoweredKernel:
        """A kernel with the programs that are compiled."""

        def variant(made: Variant) -> Variant:
            steps = (replace(step, program=self.program(step)) for step in made.steps)
            return replace(made, steps=tuple(steps))

        return replace(lowered, variants=tuple(map(variant, lowered.variants)))

    def problems(self, launches: Sequence[Launch]) -> list[str]:
        """What would be overwritten before it is read, as sentences; there should be nothing."""
        found: list[str] = []
        there: dict[Source, Source] = {}  # what each place holds
        for launch in launches:
            found += self._overwritten(launch.touched, there)
            there |= {self.owner(tensor): tensor for tensor in launch.touched}
            ends: list[dict[Source, Source]] = []
            for variant in launch.variants:
                held = dict(there)
                for step in variant.steps:
                    found += self._overwritten(step.reads, held)
                    found += self._too_early(step)
                    held |= {self.owner(target): target for target in step.writes}
                ends.append(held)
            there = {place: source for held in ends for place, source in held.items()} or there
            for held in ends:
                found += [
                    f"{there[place]!r} and {source!r} are in one place"
                    for place, source in held.items()
                    if there[place] is not source
                ]
        return found

    def _overwritten(self, reads: Iterable[Source], there: Mapping[Source, Source]) -> list[str]:
        pairs = [(read, there.get(self.owner(read), read)) for read in reads]
        return [
            f"{other!r} is where {read!r} is read" for read, other in pairs if other is not read
        ]

    def _too_early(self, step: LoweredStep) -> list[str]:
        """What a step writes where it still reads."""
        places = {self.owner(target): target for target in step.writes}
        tensors = [read for read in step.reads if not isinstance(read, Packed)]
        pairs = [(read, places[self.owner(read)]) for read in tensors if self.owner(read) in places]
        return [
            f"{target!r} is written where the same step reads {read!r}"
            for read, target in pairs
            if not self._overwriting.allows(step, read, target)
        ]

    # ------------------------------------------------------------ one kernel

    def _share(self, number: int, launch: Launch) -> None:
        """Find what the results of a kernel may overwrite."""
        tensors = [t for t in launch.tensors if t in self._free]
        written = {target for step in launch.steps for target in step.writes}
        ended = [t for t in tensors if self._last[t] == number and t not in self._owners]
        for result in tensors:
            is_new = self._first[result] == number and result in written
            if not is_new or isinstance(result, Workspace):
                continue
            before: Tensor | None = None
            joined: list[Tensor] = []  # ``before`` as well: what steps read of it counts for all
            for other in ended:
                if other is result or other in self._owners or other.dtype is not result.dtype:
                    continue
                if isinstance(other, Workspace):
                    if self._is_as_large(other, result) and self._fits(
                        launch, before, [*joined, other, result], result
                    ):
                        joined.append(other)
                elif before is None and other not in written:
                    is_equal = self._stored(other) is self._stored(result)
                    if is_equal and self._fits(launch, other, [*joined, other, result], result):
                        before = other
                        joined.append(other)
            for other in joined:
                self._owners[other] = result

    def _is_as_large(self, space: Workspace, result: Tensor) -> bool:
        scope = self._overwriting.scope
        return scope.resolve(space.elements) is scope.resolve(elements(result))

    def _fits(
        self, launch: Launch, before: Tensor | None, members: Sequence[Tensor], result: Tensor
    ) -> bool:
        """Whether every variant finds what it reads if all members lie in one place.

        ``before`` is there when the kernel begins, and ``result`` has to be when it ends.
        """
        for variant in launch.variants:
            there = before
            for step in variant.steps:
                reads = [r for r in step.reads if r in members and not isinstance(r, Packed)]
                writes = [w for w in step.writes if w in members]
                if any(read is not there for read in reads) or len(writes) > 1:
                    return False
                for target in writes:
                    if not all(self._overwriting.allows(step, r, target) for r in reads):
                        return False
                    there = target
            if there is not result:
                return False
        return True


def elements(tensor: Tensor) -> Expr:
    """How many elements a tensor has."""
    return tensor.elements if isinstance(tensor, Workspace) else product(tensor.shape)


__all__ = ["Launch", "OverwritingOnce", "SharedMemory", "Tensor", "elements"]
