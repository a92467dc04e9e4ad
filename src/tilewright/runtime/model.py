"""A compiled model that can be called: the Python face of the native extension.

Converting arguments, planning and running happen in ``_native``; here are construction from
contents or a file, and the reports. Imports ``support`` and the rest of the package. Start reading
at
:class:`CompiledModel`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any, cast

from tilewright.runtime import _native
from tilewright.runtime.artifact import (
    Artifact,
    ArtifactContents,
    describe,
    open_artifact,
    save_artifact,
)
from tilewright.runtime.constants import place_constants
from tilewright.runtime.hooks import Evaluate, Hooks
from tilewright.runtime.info import ArtifactInfo, specifications
from tilewright.runtime.levels import choose_level
from tilewright.runtime.lower import lower
from tilewright.runtime.program import Dimension, KernelStep, OpaqueStep, Program
from tilewright.runtime.results import KernelUse, Memory, Outputs, Stats, StepTime, TensorSpec
from tilewright.support.errors import DimensionError, InputError


class CompiledModel:
    """A model that runs at every shape in its range; made by ``from_contents`` or ``load``.

    Calls take numpy arrays, or anything with DLPack on the CPU, by position or by input name, and
    give fresh numpy arrays. Many threads may call one model at once; the GIL is released while
    kernels run. Errors: InputError, DimensionError, ExecutionError, ResourceError.
    """

    def __init__(
        self,
        contents: ArtifactContents,
        level: str,
        *,
        evaluate: Evaluate | None = None,
        num_threads: int | None = None,
        max_bytes: int | None = None,
        artifact: Artifact | None = None,
    ) -> None:
        program = contents.programs[level]
        image = contents.images[level]
        self.level = level
        self._program = program
        self._contents = contents
        self._artifact = artifact
        constants = place_constants(program, contents.constants[level])
        self._constant_bytes = sum(size for _, size, _ in constants.entries)
        code = None
        if image.functions:
            code = _native.Image(image.data, dict(image.functions), list(image.fixups))
        hooks = Hooks(program, evaluate)
        description = lower(program, [size for _, size, _ in constants.entries])
        self._native = _native.Model(description, code, constants.entries, constants.owners, hooks)
        self._symbols: list[str] = description["symbols"]
        self._sizes: list[tuple[int, int, int]] = description["sizes"]
        self._phase_count = len(description["phases"])
        self._single = len(program.output_names) == 1
        self._outputs_type = Outputs.type_for(program.output_names)
        self._call = self._native.call
        self.num_threads = num_threads
        self.max_bytes = max_bytes

    @staticmethod
    def from_contents(
        contents: ArtifactContents,
        *,
        level: str | None = None,
        evaluate: Evaluate | None = None,
        num_threads: int | None = None,
        max_bytes: int | None = None,
    ) -> CompiledModel:
        """A model from what the compiler made, without a file.

        ``level`` is the best one for this CPU unless given. ``evaluate(payload, inputs)`` runs the
        operators that have no kernel. Raises ArtifactError when no level fits.
        """
        features = {name: image.features for name, image in contents.images.items()}
        return CompiledModel(
            contents,
            choose_level(features, _native.cpu_features(), level),
            evaluate=evaluate,
            num_threads=num_threads,
            max_bytes=max_bytes,
        )

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        *,
        verify: bool = True,
        level: str | None = None,
        evaluate: Evaluate | None = None,
        num_threads: int | None = None,
        max_bytes: int | None = None,
    ) -> CompiledModel:
        """A model from an artifact; see :func:`open_artifact` for ``verify`` and errors."""
        artifact: Artifact = open_artifact(path, verify=verify)
        chosen = artifact.choose_level(_native.cpu_features(), level)
        return CompiledModel(
            artifact.contents([chosen]),
            chosen,
            evaluate=evaluate,
            num_threads=num_threads,
            max_bytes=max_bytes,
            artifact=artifact,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The output array, or :class:`Outputs` when the model has several outputs (or none)."""
        result = self._call(args, kwargs)
        return result if self._single else self._outputs_type(result)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """All outputs by name from inputs by name."""
        result = self._call((), dict(inputs))
        values = (result,) if self._single else result
        return dict(zip(self._program.output_names, values, strict=True))

    def profile(self, *args: Any, **kwargs: Any) -> list[StepTime]:
        """Run once and tell how long each step took, in the order of the steps."""
        _, times = self._native.profile(args, kwargs)
        report: list[StepTime] = []
        for number, (step, nanoseconds) in enumerate(zip(self._program.steps, times, strict=True)):
            match step:
                case KernelStep(label=label):
                    kind = "kernel"
                case OpaqueStep(label=label):
                    kind = "opaque"
                case _:
                    kind, label = "bind", "read dimensions from values"
            report.append(StepTime(number, label, kind, nanoseconds))
        return report

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as one artifact file; all levels that it was made with are kept."""
        if self._artifact is not None:
            self._artifact.copy_to(path)
        else:
            save_artifact(path, self._contents)

    @functools.cached_property
    def info(self) -> ArtifactInfo:
        """What the artifact is: its source, precision, levels with their machines, sizes."""
        return describe(self._contents) if self._artifact is None else self._artifact.info

    @property
    def name(self) -> str:
        """The model's name."""
        return self._program.name

    @property
    def program(self) -> Program:
        """What the model does, step by step."""
        return self._program

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Name, dtype and shape of each input, in order."""
        return specifications(self._program, "input")

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Name, dtype and shape of each output, in order."""
        return specifications(self._program, "output")

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The declared ranges."""
        return self._program.dimensions

    @property
    def num_threads(self) -> int:
        """Threads a call may use; set None for the default of the process."""
        return self._native.num_threads

    @num_threads.setter
    def num_threads(self, threads: int | None) -> None:
        if threads is not None and threads < 1:
            raise InputError(f"num_threads is {threads}, but must be 1 or more.")
        self._native.num_threads = threads or 0

    @property
    def max_bytes(self) -> int | None:
        """Bytes a call may use for intermediate tensors and outputs; None: no limit."""
        return self._native.max_bytes or None

    @max_bytes.setter
    def max_bytes(self, limit: int | None) -> None:
        if limit is not None and limit < 1:
            raise InputError(f"max_bytes is {limit}, but must be 1 or more.")
        self._native.max_bytes = limit or 0

    def stats(self) -> Stats:
        """Counters of calls, plans and memory."""
        opaque = {o.operator: o.opaque for o in self._program.operators if o.opaque}
        return Stats(opaque_operators=opaque, **self._native.stats())

    def shrink(self) -> None:
        """Free all memory that is kept for later calls; the next calls allocate again."""
        self._native.shrink()

    def memory(self, **dims: int) -> Memory:
        """Bytes that a call at these dimensions needs, without running it."""
        phases = self._explain(dims)
        blocks: dict[int, int] = {}
        for phase in phases:
            blocks[phase["block"]] = max(blocks.get(phase["block"], 0), phase["arena_bytes"])
        return Memory(
            constants=self._constant_bytes,
            arena=sum(blocks.values()),
            scratch=max((phase["scratch_bytes"] for phase in phases), default=0),
            outputs=sum(phase["output_bytes"] for phase in phases),
            partial=len(phases) < self._phase_count,
        )

    def explain(self, **dims: int) -> list[KernelUse]:
        """The kernels of a call at these dimensions, as far as they do not depend on values.

        Of a kernel with several variants, only the steps of the chosen one are listed.
        """
        kernels: list[KernelUse] = []
        for phase in self._explain(dims):
            for number, grid, threads, work, scratch, size, parameters in phase["kernels"]:
                step = cast("KernelStep", self._program.steps[number])
                if step.variant and grid == 0:
                    continue
                kernels.append(
                    KernelUse(
                        step=number,
                        label=step.label,
                        function=step.function,
                        grid=grid,
                        threads=threads,
                        work=work,
                        bytes=size,
                        scratch=scratch,
                        parameters=tuple(parameters),
                        variant=step.variant,
                        padded=_padded(step, dims),
                    )
                )
        return kernels

    def __repr__(self) -> str:
        inputs = ", ".join(str(spec) for spec in self.inputs)
        outputs = ", ".join(str(spec) for spec in self.outputs)
        return f"<CompiledModel '{self.name}' ({self.level}): ({inputs}) -> ({outputs})>"

    def _explain(self, dims: Mapping[str, int]) -> list[dict[str, Any]]:
        """The native numbers of each phase whose symbols are all given."""
        symbols = self._program.symbols
        unknown = [name for name in dims if name not in symbols]
        missing = [s.symbol for s in self._program.bindings if s.symbol not in dims]
        if unknown or missing:
            problem = (
                f"no dimension is called '{unknown[0]}'"
                if unknown
                else (f"dimension '{missing[0]}' is missing")
            )
            raise DimensionError(
                f"The dimensions do not fit: {problem}.",
                hint=f"values for {', '.join(s.symbol for s in self._program.bindings) or 'none'}",
            )
        values: list[int | None] = [dims.get(name) for name in self._symbols]
        shapes = {b.index: b.shape for b in self._program.buffers if b.kind == "input"}
        for index, axis, slot in self._sizes:
            values[slot] = shapes[index][axis].evaluate(dims)
        return self._native.explain(values)


def _padded(step: KernelStep, dims: Mapping[str, int]) -> float | None:
    """The share of padding in the work of a contraction."""
    if not dims.keys() >= {*step.useful.free_symbols, *step.spent.free_symbols}:
        return None
    useful = step.useful.evaluate(dims)
    return step.spent.evaluate(dims) / useful - 1 if useful else None
