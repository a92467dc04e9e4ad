"""Looking at every stage of a compilation, to verify it and to write it down.

:class:`Stages` is told of every stage as soon as it is there. With ``check`` each is verified
before the next one begins; with ``dump`` each becomes a numbered file of text, the same under any
hash seed, so that two versions of the compiler can be compared by ``diff``. The logger of this
module gets a line for every stage with its time at INFO, and more at DEBUG. Start with
:class:`Stages`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from tilewright.ir.graph import Graph, Node
from tilewright.ir.kernel import Plan
from tilewright.ir.printing import node_names, print_graph
from tilewright.ir.tile_print import print_program
from tilewright.ir.tile_verify import Findings
from tilewright.ir.verify import VerificationError, failure, node_problems, verify
from tilewright.plan.layouts import Layouts
from tilewright.plan.printing import kernel_line, print_plan
from tilewright.plan.rewriting import Rewriting
from tilewright.plan.verify import verify as verify_plan
from tilewright.policy.candidates import product_counts
from tilewright.support.errors import InputError
from tilewright.support.text import format_count, format_seconds
from tilewright.target import Target
from tilewright.tile.lower import LoweredKernel
from tilewright.tile.variants import LoweredStep, PackedCodes, PackedConstant, Source, Workspace
from tilewright.tile.verify import KernelVerifier

_LOG = logging.getLogger(__name__)
CHECK_VARIABLE = "TILEWRIGHT_CHECK"


def is_checked(given: bool | None) -> bool:
    """Whether to verify: as given, or else as the environment says."""
    return os.environ.get(CHECK_VARIABLE, "") not in ("", "0") if given is None else given


class Stages:
    """Verifies and writes down the stages of one compilation, in their order."""

    def __init__(self, check: bool = False, dump: str | os.PathLike[str] | None = None) -> None:
        self.check = check
        self.folder = None if dump is None else _folder(Path(dump))
        self.findings = Findings()
        self._known: set[Node] = set()
        self._written = 0
        self._tiles: list[str] = []
        self._names: dict[Node, str] = {}
        self._kernels: KernelVerifier | None = None
        self._kernel_count = self._variant_count = 0
        self._since = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def graph(self, stage: str, graph: Graph) -> None:
        """A graph that a stage has made."""
        self._tell(stage, lambda: format_count(len(graph.nodes()), "node"))
        self._write(stage, lambda: print_graph(graph, labels=True))
        if self.check:
            verify(graph, stage, self._known)

    def layouts(self, made: Layouts) -> None:
        """The graph after the orders of its tensors were decided by price."""
        for part in made.parts:
            _LOG.info("layouts: %s", part)
        if made.units and not made.parts:
            kernels = format_count(made.units, "kernel")
            _LOG.info("layouts: %s with a choice, none of them cheaper otherwise", kernels)
        lines = [f"# {part}\n" for part in made.parts]
        self._write("layouts-by-price", lambda: "".join(lines) or "# nothing is cheaper\n")
        self.graph("layouts", made.graph)

    def rewriting(self, made: Rewriting) -> None:
        """The graph after alternatives to its parts were taken by their price."""
        for applied in made.applied:
            _LOG.info("rewriting: %s", applied)
        lines = [f"# {applied}\n" for applied in made.applied]
        self._write("rewriting-by-price", lambda: "".join(lines) or "# nothing is cheaper\n")
        self.graph("rewriting", made.graph)

    def rule(self, name: str, before: Node, after: Node) -> None:
        """A rule has put ``after`` in the place of ``before``."""
        if not self.check:
            return
        stack = [after]
        while stack:
            current = stack.pop()
            if current in self._known:
                continue
            found = node_problems(current, f"in the place of {before!r}")
            if found:
                raise failure(found, f"stage rewrite, rule {name}")
            self._known.add(current)
            stack += current.inputs

    def candidates(self, level: str, target: Target) -> None:
        """The candidates for products that a level has on a machine, and why they are no more."""
        if not _LOG.isEnabledFor(logging.INFO):
            return
        for counted in product_counts(target, "float32"):
            passed = ", ".join(f"{count} {name}" for name, count in counted.passed)
            left = format_count(counted.left, "candidate")
            _LOG.info("%s on %s, level %s: %s; %s", level, target.name, counted.level, passed, left)

    def plan(self, graph: Graph, plan: Plan, level: str) -> None:
        """The plan of a graph for one instruction set level."""
        self._tell(f"plan for {level}", lambda: format_count(len(plan.kernels), "kernel"))
        self._write(f"plan-{level}", lambda: print_plan(graph, plan))
        if self.check:
            verify_plan(graph, plan)
            self._kernels = KernelVerifier(graph, self.findings)
        if self.folder is not None:
            self._names = node_names(graph)

    def kernel(self, level: str, lowered: LoweredKernel) -> None:
        """A kernel as tile programs, for one instruction set level."""
        self._kernel_count += 1
        self._variant_count += len(lowered.variants)
        if _LOG.isEnabledFor(logging.DEBUG):
            names = ", ".join(variant.name or "only" for variant in lowered.variants)
            _LOG.debug("kernel %d of %s: variants %s", self._kernel_count, level, names)
        if self.folder is not None:
            self._tiles += self._kernel_lines(lowered)
        if self._kernels is not None:
            try:
                self._kernels.verify(lowered, f"stage tile-{level}")
            except VerificationError:
                self.end_of_level(level)
                raise

    def end_of_level(self, level: str) -> None:
        """All kernels of a level are lowered, and its machine code is made."""
        kernels = format_count(self._kernel_count, "kernel")
        covered = format_count(self._variant_count, "variant")
        self._tell(f"code for {level}", lambda: f"{kernels} covered by {covered}")
        self._kernel_count = self._variant_count = 0
        lines, self._tiles = self._tiles, []
        self._write(f"tile-{level}", lambda: "\n".join(lines) + "\n")

    def _tell(self, stage: str, what: Callable[[], str]) -> None:
        """Log a stage that ends now, with what it made and its time since the one before."""
        now = time.perf_counter()
        taken, self._since = now - self._since, now
        self.seconds[stage] = self.seconds.get(stage, 0.0) + taken
        if _LOG.isEnabledFor(logging.INFO):
            _LOG.info("stage %s: %s, %s", stage, what(), format_seconds(taken))

    def _kernel_lines(self, lowered: LoweredKernel) -> list[str]:
        number = sum(line.startswith("  kernel ") for line in self._tiles)
        lines = [kernel_line(number, lowered.kernel, self._names)]
        for variant in lowered.variants:
            lines.append(f"    variant {variant.name}")
            for step in variant.steps:
                lines += [f"      {line}" for line in self._step_lines(step)]
        return lines

    def _step_lines(self, step: LoweredStep) -> list[str]:
        names = [self._source(s) for s in (*step.reads, *step.writes)]
        pairs = zip(step.program.buffers, names, strict=True)
        places = ", ".join(f"{buffer.name} = {name}" for buffer, name in pairs)
        checks = [f"check {n}: {text}" for n, text in enumerate(step.program.checks)]
        if step.external is not None:
            numbers = ", ".join(map(str, step.external.parameters))
            checks.append(f"calls {step.external.name}({numbers})")
        return [f"step {places}", *checks, *print_program(step.program).splitlines()]

    def _source(self, source: Source) -> str:
        if isinstance(source, Workspace):
            return f"{source.name} of {source.elements}"
        if isinstance(source, PackedCodes):
            part = source.part.name.lower()
            return f"{part} of {self._source(source.node)} in panels of {source.panel}"
        if isinstance(source, PackedConstant):
            order = ", ".join(map(str, source.order))
            what = self._source(source.node)
            what = what if source.transform is None else f"what becomes of {what}, {source.type},"
            return f"packed {what} by [{order}] in panels of {source.panel}"
        return self._names.get(source, f"({source.type})")

    def _write(self, stage: str, text: Callable[[], str]) -> None:
        if self.folder is None:
            return
        name = f"{self._written:02}-{stage}.txt"
        self._written += 1
        try:
            (self.folder / name).write_text(text(), encoding="utf-8")
        except OSError as error:
            raise _cannot_write(self.folder, error) from error


def _folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    return folder


def _cannot_write(folder: Path, error: OSError) -> InputError:
    return InputError(
        f"The stages cannot be written: {error}",
        where=str(folder),
        hint="Give a folder that can be written to",
    )


__all__ = ["CHECK_VARIABLE", "Stages", "is_checked"]
