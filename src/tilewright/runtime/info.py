"""What an artifact says about itself: its making, its interface, its levels and their sizes.

The record stands in the manifest of an artifact, so that reading it needs neither code nor
weights. It holds nothing of time or place: equal models give equal records. Imports ``support`` and
the rest of the package. Start reading at :class:`ArtifactInfo`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.runtime.levels import runs_on
from tilewright.runtime.peak import peak_bytes
from tilewright.runtime.program import (
    LEVELS,
    Buffer,
    BufferKind,
    CodeImage,
    Dimension,
    KernelStep,
    OpaqueStep,
    OperatorCount,
    Program,
)
from tilewright.runtime.ragged_batch import RaggedBatch, RaggedTensor
from tilewright.runtime.reading import integer, text, texts
from tilewright.runtime.results import TensorSpec


@dataclass(frozen=True)
class MachineInfo:
    """By which machine the code of a level chooses between variants.

    ``name`` is that of the machine description, ``digest`` that of everything it says; ``profile``
    is the digest of the times of register tiles measured on it, "" where there are none. Equal
    digests mean equal choices.
    """

    name: str = ""
    digest: str = ""
    profile: str = ""


@dataclass(frozen=True)
class Origin:
    """From what and how a model was compiled.

    ``source`` is the name of the ONNX file without its folder, "" where the model was given in
    memory; ``source_sha256`` is the SHA-256 of that file, or of the model as serialised (data in
    other files is not part of it). ``machines`` are by level. ``ranges`` says of inputs which least
    and greatest value the model can use, as expressions over the dimensions, "" for an open end.
    ``policy`` chose the block sizes of products, ``plan`` is the planner that made kernels.
    ``measured`` names, by level, the kernels that it priced by running them.
    """

    source: str = ""
    source_sha256: str = ""
    precision: str = "float32"
    accuracy: str = "standard"
    machines: Mapping[str, MachineInfo] = field(default_factory=dict[str, MachineInfo])
    ranges: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    policy: str = "auto"
    plan: str = "greedy"
    measured: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


@dataclass(frozen=True)
class LevelInfo:
    """One instruction set level of an artifact.

    ``features`` are what it needs of a processor. ``kernels`` are the steps that run machine code,
    with all variants of each, ``functions`` the pieces of code that they share, ``opaque_steps``
    those that run on the ONNX reference evaluator. ``peak_bytes`` is the memory that a call needs
    between kernels, a formula in the dimensions, see ``peak``. ``measured`` names the kernels that
    were priced by running them when the model was planned.
    """

    name: str
    features: tuple[str, ...]
    machine: MachineInfo
    kernels: int
    functions: int
    opaque_steps: int
    code_bytes: int
    weight_bytes: int
    peak_bytes: str
    measured: tuple[str, ...] = ()


@dataclass(frozen=True)
class ArtifactInfo:
    """What an artifact is, without its code and weights.

    ``format`` is that of the file, ``version`` the tilewright that made it. ``weight_bytes`` counts
    weights that several levels share once. ``operators`` says how many run on the ONNX reference
    evaluator. ``ranges`` are those of ``Origin``.
    """

    format: int
    version: str
    name: str
    source: str
    source_sha256: str
    precision: str
    accuracy: str
    policy: str
    plan: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    dimensions: tuple[Dimension, ...]
    operators: tuple[OperatorCount, ...]
    levels: tuple[LevelInfo, ...]
    weight_bytes: int
    ranges: Mapping[str, tuple[str, str]]

    @property
    def code_bytes(self) -> int:
        """Machine code of all levels."""
        return sum(level.code_bytes for level in self.levels)

    @property
    def fallbacks(self) -> dict[str, int]:
        """How often each operator runs on the ONNX reference evaluator."""
        return {o.operator: o.opaque for o in self.operators if o.opaque}

    @property
    def runs_on(self) -> str:
        """Where the artifact runs, in a sentence."""
        return runs_on([level.name for level in self.levels])

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and ints."""
        return {
            "format": self.format,
            "version": self.version,
            "name": self.name,
            "source": self.source,
            "source_sha256": self.source_sha256,
            "precision": self.precision,
            "accuracy": self.accuracy,
            "policy": self.policy,
            "plan": self.plan,
            "inputs": [[t.name, t.dtype, list(t.shape)] for t in self.inputs],
            "outputs": [[t.name, t.dtype, list(t.shape)] for t in self.outputs],
            "dimensions": [d.row() for d in self.dimensions],
            "operators": [[o.operator, o.count, o.opaque] for o in self.operators],
            "levels": [_level_json(level) for level in self.levels],
            "weight_bytes": self.weight_bytes,
            "ranges": {name: list(ends) for name, ends in sorted(self.ranges.items())},
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ArtifactInfo:
        """The inverse of :meth:`to_json`; KeyError, TypeError or ValueError on malformed data."""
        levels = tuple(_level(item) for item in data["levels"])
        if not levels:
            raise ValueError("there is no level")
        return ArtifactInfo(
            format=integer(data["format"]),
            version=text(data["version"]),
            name=text(data["name"]),
            source=text(data["source"]),
            source_sha256=text(data["source_sha256"]),
            precision=text(data["precision"]),
            accuracy=text(data["accuracy"]),
            policy=text(data["policy"]),
            plan=text(data["plan"]),
            inputs=tuple(TensorSpec(text(n), text(d), texts(s)) for n, d, s in data["inputs"]),
            outputs=tuple(TensorSpec(text(n), text(d), texts(s)) for n, d, s in data["outputs"]),
            dimensions=tuple(map(Dimension.of, data["dimensions"])),
            operators=tuple(
                OperatorCount(text(name), integer(count), integer(opaque))
                for name, count, opaque in data["operators"]
            ),
            levels=levels,
            weight_bytes=integer(data["weight_bytes"]),
            ranges={text(name): _ends(ends) for name, ends in dict(data["ranges"]).items()},
        )


def _ends(data: Any) -> tuple[str, str]:
    low, high = texts(data)
    return low, high


def level_info(
    name: str, program: Program, image: CodeImage, origin: Origin, weight_bytes: int
) -> LevelInfo:
    """The record of one level from what it consists of."""
    return LevelInfo(
        name=name,
        features=image.features,
        machine=origin.machines.get(name, MachineInfo()),
        kernels=sum(isinstance(step, KernelStep) for step in program.steps),
        functions=len(image.functions),
        opaque_steps=sum(
            isinstance(step, OpaqueStep) and step.needs_reference for step in program.steps
        ),
        code_bytes=len(image.data),
        weight_bytes=weight_bytes,
        peak_bytes=str(peak_bytes(program)),
        measured=tuple(origin.measured.get(name, ())),
    )


def buffers_of(program: Program, kind: BufferKind) -> list[Buffer]:
    """The inputs or outputs of a program, in order."""
    return sorted((buffer for buffer in program.buffers if buffer.kind == kind), key=_position)


def specifications(program: Program, kind: BufferKind) -> tuple[TensorSpec, ...]:
    """Name, dtype and shape of the inputs or outputs of a program, in order.

    Of sequences of their own lengths the shape is that of a batch in which all are as long.
    """
    found = buffers_of(program, kind)
    ragged = program.ragged
    if ragged is None:
        return tuple(TensorSpec(b.name, b.dtype, tuple(map(str, b.shape))) for b in found)
    tensors = ragged.inputs if kind == "input" else ragged.outputs
    pairs = zip(found, tensors, strict=False)  # the offsets are the program's own
    return tuple(TensorSpec(b.name, b.dtype, _of_sequences(b, t, ragged)) for b, t in pairs)


def _of_sequences(buffer: Buffer, tensor: RaggedTensor, ragged: RaggedBatch) -> tuple[str, ...]:
    shape = [str(size) for size in buffer.shape]
    if tensor.part == "positions":
        shape[tensor.axis] = ragged.name
        if tensor.unit_axis >= 0:
            shape[tensor.unit_axis] = ragged.batch
    return tuple(shape)


def _position(buffer: Buffer) -> int:
    return buffer.index


def _level_json(level: LevelInfo) -> dict[str, Any]:
    machine = level.machine
    return {
        "name": level.name,
        "features": list(level.features),
        "machine": [machine.name, machine.digest, machine.profile],
        "kernels": level.kernels,
        "functions": level.functions,
        "opaque_steps": level.opaque_steps,
        "code_bytes": level.code_bytes,
        "weight_bytes": level.weight_bytes,
        "peak_bytes": level.peak_bytes,
        **({"measured": list(level.measured)} if level.measured else {}),
    }


def _level(data: Mapping[str, Any]) -> LevelInfo:
    if data["name"] not in LEVELS:
        raise ValueError(f"the level {data['name']!r}")
    machine, digest, profile = texts(data["machine"])
    return LevelInfo(
        name=text(data["name"]),
        features=texts(data["features"]),
        machine=MachineInfo(machine, digest, profile),
        kernels=integer(data["kernels"]),
        functions=integer(data["functions"]),
        opaque_steps=integer(data["opaque_steps"]),
        code_bytes=integer(data["code_bytes"]),
        weight_bytes=integer(data["weight_bytes"]),
        peak_bytes=text(data["peak_bytes"]),
        measured=texts(data.get("measured", [])),
    )
