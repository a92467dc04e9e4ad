"""What a compiled model tells: its tensors, its outputs, and reports about itself.

Plain records, imported by everything that prints them. Imports nothing of the project. Start
reading at :class:`Outputs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


class Outputs(tuple[Any, ...]):
    """The outputs of a call in the model's order; by position, by name, or unpacked.

    ``outputs[0]``, ``outputs["logits"]``, ``outputs.logits`` and ``a, b = outputs`` all work.
    """

    names: tuple[str, ...] = ()

    @staticmethod
    def type_for(names: tuple[str, ...]) -> type[Outputs]:
        """The class of outputs with these names."""
        return type("Outputs", (Outputs,), {"names": names})

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            try:
                key = self.names.index(key)
            except ValueError:
                raise KeyError(f"no output '{key}'; there are {', '.join(self.names)}") from None
        return super().__getitem__(key)

    def __getattr__(self, name: str) -> Any:
        if name in self.names:
            return self[name]
        raise AttributeError(f"no output '{name}'; there are {', '.join(self.names)}")

    def keys(self) -> tuple[str, ...]:
        """The names, so that ``dict(outputs.items())`` and ``{**outputs}`` work."""
        return self.names

    def items(self) -> Iterator[tuple[str, Any]]:
        """Names with outputs."""
        return zip(self.names, self, strict=True)

    def __reduce__(self) -> tuple[Any, ...]:
        """Outputs travel to other processes, unlike the model that made them."""
        return _outputs, (self.names, tuple(self))

    def __repr__(self) -> str:
        return "Outputs(" + ", ".join(f"{name}={value!r}" for name, value in self.items()) + ")"


def _outputs(names: tuple[str, ...], values: tuple[Any, ...]) -> Outputs:
    return Outputs.type_for(names)(values)


@dataclass(frozen=True)
class TensorSpec:
    """An input or output: ``shape`` holds one text per axis, such as ("batch", "2*seq", "768")."""

    name: str
    dtype: str
    shape: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(self.shape)}]"


@dataclass(frozen=True)
class Stats:
    """Counters since the model was loaded, and the memory for calls of all models in the process.

    ``process_bytes`` are held now: by calls that run, by outputs that are still alive, and, that is
    ``process_idle_bytes``, for later calls. ``process_peak_bytes`` is the most that ever was. See
    ``tilewright.set_memory_limit``.
    """

    calls: int
    plans_made: int
    plan_hits: int
    plans_kept: int
    threads: int
    process_bytes: int
    process_idle_bytes: int
    process_peak_bytes: int
    opaque_operators: Mapping[str, int]


@dataclass(frozen=True)
class Memory:
    """Bytes one call needs at given dimensions; ``partial``: later phases depend on values."""

    constants: int
    arena: int
    scratch: int
    outputs: int
    partial: bool

    @property
    def total(self) -> int:
        """All of them."""
        return self.constants + self.arena + self.scratch + self.outputs


@dataclass(frozen=True)
class KernelUse:
    """One kernel at given dimensions; ``work`` in estimated nanoseconds on one thread.

    ``bytes`` is the size of all buffers it is given, ``scratch`` bytes per thread. ``variant``
    names the variant chosen where there are several. ``padded`` is the share of a contraction's
    work that is spent on padding (0.1: a tenth more than needed); None where it is unknown or there
    is none. ``steps`` is how many steps from this one on run as one job, which threads leave
    together; all but the first of a job have 1.
    """

    step: int
    label: str
    function: str
    grid: int
    threads: int
    work: int
    bytes: int
    scratch: int
    parameters: tuple[int, ...]
    variant: str = ""
    padded: float | None = None
    steps: int = 1


@dataclass(frozen=True)
class StepTime:
    """How long one step of a profiled call took."""

    step: int
    label: str
    kind: str
    nanoseconds: int
