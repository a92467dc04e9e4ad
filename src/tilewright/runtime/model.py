"""A compiled model that can be called: the Python face of the native extension.

Converting arguments, planning and running happen in ``_native``; here are construction from
contents or a file, and the reports. Imports ``support`` and the rest of the package. Start reading
at :class:`CompiledModel`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np

from tilewright.runtime import _native
from tilewright.runtime.artifact import Artifact, ArtifactContents, open_artifact
from tilewright.runtime.artifact_writer import describe, save_artifact
from tilewright.runtime.constants import PlacedConstants, place_constants
from tilewright.runtime.control import ControlOperator, ControlStep, are_native, is_native
from tilewright.runtime.dimensions import completed
from tilewright.runtime.hooks import Evaluate, Hooks, RunsBodies
from tilewright.runtime.info import ArtifactInfo, buffers_of, specifications
from tilewright.runtime.levels import choose_level
from tilewright.runtime.limits import apply_environment
from tilewright.runtime.lower import lower
from tilewright.runtime.program import RAGGED, Dimension, KernelStep, OpaqueStep, Program
from tilewright.runtime.ragged import RaggedOperator, RaggedStep
from tilewright.runtime.reading import contradiction
from tilewright.runtime.results import KernelUse, Memory, Outputs, Stats, StepTime, TensorSpec
from tilewright.runtime.sequences import Sequences
from tilewright.support.arguments import (
    MOST_THREADS,
    file_path,
    limit,
    switch,
)
from tilewright.support.errors import InputError
from tilewright.support.processors import default_threads
from tilewright.support.text import article


class CompiledModel:
    """A model that runs at every shape in its ranges; ``tilewright.compile`` and ``load`` make it.

    Calls take numpy arrays, or anything with DLPack on the CPU, by position or by input name, and
    give fresh numpy arrays, or torch tensors where a torch tensor is among the inputs. ``out``
    takes arrays to write the results to instead; see :meth:`__call__`. Many threads may call one
    model at once; the GIL is released while kernels run. Ctrl-C ends a long call of the main thread
    between two kernels. Errors: InputError, DimensionError, ExecutionError, ResourceError.
    """

    __slots__ = (
        "__weakref__",
        "_artifact",
        "_bodies",
        "_constant_bytes",
        "_contents",
        "_info",
        "_is_native",
        "_native",
        "_output_names",
        "_outputs_type",
        "_phase_count",
        "_program",
        "_sequences",
        "_single",
        "_sizes",
        "_symbols",
        "_takes_out",
        "level",
    )

    def __init__(
        self,
        contents: ArtifactContents,
        level: str,
        *,
        evaluate: Evaluate | None = None,
        num_threads: int | None = None,
        max_bytes: int | None = None,
        flush_denormals: bool = False,
        artifact: Artifact | None = None,
    ) -> None:
        apply_environment()
        program = contents.programs[level]
        image = contents.images[level]
        self.level = level
        self._program = program
        self._contents = contents
        self._artifact = artifact
        self._info: ArtifactInfo | None = None
        constants = place_constants(program, contents.constants[level])
        self._constant_bytes = sum(size for _, size, _ in constants.entries)
        code = None
        if image.functions:
            code = _native.Image(image.data, dict(image.functions), list(image.fixups))
        self._bodies: dict[int, CompiledModel] = {}
        called: dict[int, RunsBodies] = {}
        described: dict[int, dict[str, Any]] = {}
        for number, step in enumerate(program.steps):
            if not isinstance(step, OpaqueStep) or not step.has_bodies:
                continue
            operator = self._control(step, constants, evaluate)
            if isinstance(operator, dict):
                described[number] = operator
            else:
                called[number] = operator
        self._is_native = is_native(program, described.keys())
        hooks = Hooks(program, evaluate, called)
        sizes = [size for _, size, _ in constants.entries]
        description = lower(program, sizes, described)
        self._native = _native.Model(description, code, constants.entries, constants.owners, hooks)
        if artifact is not None and artifact.watch is not None:
            self._native.watch(artifact.watch)
        self._symbols: list[str] = description["symbols"]
        self._sizes: list[tuple[int, int, int]] = description["sizes"]
        self._phase_count = len(description["phases"])
        self._single = len(program.output_names) == 1
        self._outputs_type = Outputs.type_for(program.output_names)
        self._output_names = program.output_names
        self._takes_out = "out" in program.input_names
        self._sequences: Sequences | None = None
        if program.ragged is not None:
            self._sequences = Sequences(
                program.ragged, buffers_of(program, "input"), specifications(program, "input"),
                program.fixed,
            )  # fmt: skip
        self.num_threads = num_threads
        self.max_bytes = max_bytes
        self.flush_denormals = flush_denormals

    def _control(
        self, step: OpaqueStep, constants: PlacedConstants, evaluate: Evaluate | None
    ) -> RunsBodies | dict[str, Any]:
        """An operator with bodies, whose artifacts are the last inputs of its step.

        What calls it, or its description where the extension calls the bodies itself.
        """
        if step.payload.startswith(RAGGED):
            (body,) = self._bodies_of(step, 1, constants, evaluate)
            return RaggedOperator(RaggedStep.of(step.payload), body._into)
        control = ControlStep.of(step.payload)
        bodies = self._bodies_of(step, len(control.bodies), constants, evaluate)
        own = [self._program.buffers[number] for number in (*step.inputs, *step.outputs)]
        if all(body._is_native for body in bodies) and are_native(own):
            ranks = [len(buffer.shape) for buffer in own]
            return control.description([body._native for body in bodies], ranks)
        return ControlOperator(control, [body._results for body in bodies])

    def _bodies_of(
        self, step: OpaqueStep, count: int, constants: PlacedConstants, evaluate: Evaluate | None
    ) -> list[CompiledModel]:
        """The bodies of a step; steps with the same artifact share one model.

        What they hold was checked as a constant of this program, as far as it was asked for.
        """
        where = Path(f"program '{self._program.name}', {step.label}")
        found: list[CompiledModel] = []
        for number in step.inputs[len(step.inputs) - count :]:
            _, _, data = constants.entries[self._program.buffers[number].index]
            if data is None or data.dtype != np.uint8:
                raise contradiction(f"{step.label} has no body", self._program.name)
            if number not in self._bodies:
                artifact = Artifact(where, data, None, verify=False)
                level = artifact.choose_level(_native.cpu_features(), self.level)
                contents = artifact.contents([level])
                self._bodies[number] = CompiledModel(contents, level, evaluate=evaluate)
            found.append(self._bodies[number])
        return found

    def _results(self, args: tuple[Any, ...]) -> Sequence[Any]:
        """All outputs, in order, for the inputs by position."""
        made = self._native.call(args, {})
        return (made,) if self._single else made

    def _into(self, inputs: Sequence[Any], out: Sequence[Any]) -> Sequence[Any]:
        """All outputs, in order, in the arrays of ``out`` that are not None."""
        if all(place is None for place in out):
            return self._results(tuple(inputs))
        made = self._native.call_into(tuple(inputs), {}, tuple(out))
        return (made,) if self._single else made

    @staticmethod
    def from_contents(
        contents: ArtifactContents,
        *,
        level: str | None = None,
        evaluate: Evaluate | None = None,
        num_threads: int | None = None,
        max_bytes: int | None = None,
        flush_denormals: bool = False,
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
            flush_denormals=flush_denormals,
        )

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        *,
        verify: bool = True,
        copy: bool = False,
        level: str | None = None,
        evaluate: Evaluate | None = None,
        num_threads: int | None = None,
        max_bytes: int | None = None,
        flush_denormals: bool = False,
    ) -> CompiledModel:
        """A model from an artifact; see :func:`open_artifact` for its arguments and errors."""
        artifact: Artifact = open_artifact(path, verify=verify, copy=copy)
        chosen = artifact.choose_level(_native.cpu_features(), level)
        return CompiledModel(
            artifact.contents([chosen]),
            chosen,
            evaluate=evaluate,
            num_threads=num_threads,
            max_bytes=max_bytes,
            flush_denormals=flush_denormals,
            artifact=artifact,
        )

    def __call__(self, /, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """The output array, or :class:`Outputs` when the model has several outputs (or none).

        ``out`` is an array to write the result to, or for several outputs a tuple or dictionary of
        arrays (None: a fresh one); these are returned. They must be writable and row-major, have
        the dtype and shape of the result, and share no memory with inputs or each other; what they
        hold after an error is undefined. Where the model has an input called ``out``, that is meant
        here, and only :meth:`run` takes arrays for results.
        """
        if self._takes_out and out is not None:
            kwargs["out"], out = out, None
        if self._sequences is not None:
            results = self._ragged(self._sequences, args, kwargs, out)
            return results[0] if self._single else self._outputs_type(results)
        native = self._native
        result = native.call(args, kwargs) if out is None else native.call_into(args, kwargs, out)
        return result if self._single else self._outputs_type(result)

    def run(self, inputs: Mapping[str, Any], *, out: Any = None) -> dict[str, Any]:
        """All outputs by name from inputs by name; for ``out`` see :meth:`__call__`."""
        if type(inputs) is not dict:
            if not isinstance(inputs, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InputError(
                    f"The inputs of 'run' are a dictionary, not {article(type(inputs).__name__)}",
                    hint="Give arrays by input name, or call the model with them: model(array, …)",
                )
            inputs = dict(inputs)
        if self._sequences is not None:
            made = self._ragged(self._sequences, (), inputs, out)
            return dict(zip(self._output_names, made, strict=True))
        native = self._native
        result = native.call((), inputs) if out is None else native.call_into((), inputs, out)
        if self._single:
            return {self._output_names[0]: result}
        return dict(zip(self._output_names, result, strict=True))

    def _ragged(
        self, sequences: Sequences, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any
    ) -> list[Any]:
        """All outputs, in order, of a call with sequences of their own lengths."""
        if out is not None:
            raise InputError(
                "A model of ragged batches makes its outputs itself",
                hint="Call it without 'out'",
            )
        given, batch = sequences.packed(args, kwargs)
        made = self._native.call((), given)
        return sequences.unpacked((made,) if self._single else made, batch)

    def profile(self, /, *args: Any, **kwargs: Any) -> list[StepTime]:
        """Run once and tell how long each step that ran took, in the order of the steps."""
        if self._sequences is not None:
            args, kwargs = (), self._sequences.packed(args, kwargs)[0]
        _, times = self._native.profile(args, kwargs)
        report: list[StepTime] = []
        for number, (step, nanoseconds) in enumerate(zip(self._program.steps, times, strict=True)):
            if nanoseconds < 0:
                continue  # another variant was chosen, or there was nothing to compute
            match step:
                case KernelStep(label=label):
                    kind = "kernel"
                case OpaqueStep(label=label):
                    kind = "opaque"
                case _:
                    kind, label = "bind", "read dimensions from values"
            report.append(StepTime(number, label, kind, nanoseconds))
        return report

    def __copy__(self) -> CompiledModel:
        """The model itself: nothing about it changes, and any number of threads may call it."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModel:
        """The model itself, as for :meth:`__copy__`."""
        return self

    def __reduce__(self) -> NoReturn:
        """Models are not pickled: an artifact holds machine code, and is loaded on purpose."""
        raise InputError(
            f"The compiled model '{self.name}' cannot be pickled, or sent to another process",
            hint="Save it with model.save(path), and call tilewright.load(path) in that process",
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as one artifact file; all levels that it was made with are kept."""
        place = file_path(path)
        if self._artifact is not None:
            self._artifact.copy_to(place)
        else:
            save_artifact(place, self._contents)

    @property
    def info(self) -> ArtifactInfo:
        """What the artifact is: its source, precision, levels with their machines, sizes."""
        if self._info is None:
            of_file = self._artifact
            self._info = describe(self._contents) if of_file is None else of_file.info
        return self._info

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
        """Threads a call may use; set None for the default of the process.

        That is TILEWRIGHT_NUM_THREADS, or else the cores that the process may use: its affinity
        without second hardware threads, and at most what its control group allows. All calls of the
        process share one team of threads. While one has it, others run on their own thread alone,
        but by the same plan, so that results do not depend on who else is calling.
        """
        return self._native.num_threads

    @num_threads.setter
    def num_threads(self, threads: int | None) -> None:
        count = limit("num_threads", threads, MOST_THREADS) or default_threads()
        self._native.num_threads = min(count, _native.most_threads)
        for body in self._bodies.values():
            body.num_threads = threads

    @property
    def max_bytes(self) -> int | None:
        """Bytes a call may use for intermediate tensors and outputs; None: no limit."""
        return self._native.max_bytes or None

    @max_bytes.setter
    def max_bytes(self, most: int | None) -> None:
        self._native.max_bytes = limit("max_bytes", most) or 0
        for body in self._bodies.values():
            body.max_bytes = most

    @property
    def flush_denormals(self) -> bool:
        """Whether kernels take and make numbers below the normal ones as zeros.

        Processors may need a hundred times as long for those. Off unless set: results then are what
        the standard of floating-point numbers says. Only calls of this model are concerned.
        """
        return self._native.flush_denormals

    @flush_denormals.setter
    def flush_denormals(self, flush: bool) -> None:
        self._native.flush_denormals = switch("flush_denormals", flush)
        for body in self._bodies.values():
            body.flush_denormals = flush

    def stats(self) -> Stats:
        """Counters of calls, plans and memory."""
        opaque = {o.operator: o.opaque for o in self._program.operators if o.opaque}
        return Stats(opaque_operators=opaque, **self._native.stats())

    def shrink(self) -> None:
        """Free all memory that the process keeps for later calls, and this model's plans.

        The next calls allocate again. Memory of calls that run meanwhile is not touched.
        """
        self._native.shrink()
        for body in self._bodies.values():
            body.shrink()

    def memory(self, /, **dims: int) -> Memory:
        """Bytes that a call at these dimensions needs, without running it."""
        phases = self._explain(completed(self._program, dims))
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

    def explain(self, /, **dims: int) -> list[KernelUse]:
        """The kernels of a call at these dimensions, as far as they do not depend on values.

        Of a kernel with several variants, only the steps of the chosen one are listed, and of a
        plan with several ways to compute a part, only the kernels of the one taken.
        """
        kernels: list[KernelUse] = []
        dims = completed(self._program, dims)
        for phase in self._explain(dims):
            for number, grid, threads, work, scratch, size, parameters, steps in phase["kernels"]:
                step = cast("KernelStep", self._program.steps[number])
                if grid == 0 and not step.used.is_constant:
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
                        padded=step.padded(dims),
                        steps=steps,
                    )
                )
        return kernels

    def __repr__(self) -> str:
        inputs = ", ".join(str(spec) for spec in self.inputs)
        outputs = ", ".join(str(spec) for spec in self.outputs)
        return f"<CompiledModel '{self.name}' ({self.level}): ({inputs}) -> ({outputs})>"

    def _explain(self, dims: Mapping[str, int]) -> list[dict[str, Any]]:
        """The native numbers of each phase whose symbols are all given."""
        values: list[int | None] = [dims.get(name) for name in self._symbols]
        shapes = {b.index: b.shape for b in self._program.buffers if b.kind == "input"}
        for index, axis, slot in self._sizes:
            values[slot] = shapes[index][axis].evaluate(dims)
        return self._native.explain(values)
