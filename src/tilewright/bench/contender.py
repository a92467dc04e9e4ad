# pyright: basic
"""What can be timed: something that turns named inputs into a call without arguments.

`Contender` is the protocol that the peers fulfil; `ModelContender` makes one of a compiled model,
and `Fixed` one of another with fewer inputs.
Imports numpy only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

Inputs = Mapping[str, np.ndarray]
Call = Callable[[], object]


class Contender(Protocol):
    """A model in some engine, ready to be called at any shape it supports."""

    @property
    def name(self) -> str:
        """What the report calls it."""
        ...

    def prepare(self, inputs: Inputs) -> Call:
        """A call on these inputs, with everything done beforehand that need not be timed."""
        ...

    def outputs(self, inputs: Inputs) -> tuple[np.ndarray, ...]:
        """The outputs in the order of the model."""
        ...

    def twin(self) -> Contender:
        """An independent instance of the same, to be put against this one."""
        ...


class Fixed:
    """A contender that gets the same ``constants`` as inputs in every call, beside the others."""

    def __init__(self, inner: Contender, constants: Inputs) -> None:
        self._inner = inner
        self._constants = constants
        self.name = inner.name

    def prepare(self, inputs: Inputs) -> Call:
        """The call of the contender on all inputs."""
        return self._inner.prepare({**inputs, **self._constants})

    def outputs(self, inputs: Inputs) -> tuple[np.ndarray, ...]:
        """The outputs for all inputs."""
        return self._inner.outputs({**inputs, **self._constants})

    def twin(self) -> Contender:
        """Another instance with the same constants."""
        return Fixed(self._inner.twin(), self._constants)


def as_arrays(result: Any) -> tuple[np.ndarray, ...]:
    """One array, a mapping of arrays or a sequence of them, as a tuple of arrays."""
    if isinstance(result, Mapping):
        return tuple(np.asarray(value) for value in result.values())
    if isinstance(result, Sequence):
        return tuple(np.asarray(value) for value in result)
    return (np.asarray(result),)


class ModelContender:
    """A compiled model, called with the inputs by name.

    `make_twin` makes a second instance of the model, for example by loading the saved artifact.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        make_twin: Callable[[], Callable[..., Any]],
        name: str = "tilewright",
    ) -> None:
        self._model = model
        self._make_twin = make_twin
        self.name = name

    def prepare(self, inputs: Inputs) -> Call:
        """The call of the model on these inputs."""
        return partial(self._model, **inputs)

    def outputs(self, inputs: Inputs) -> tuple[np.ndarray, ...]:
        """The model's outputs, as arrays."""
        return as_arrays(self._model(**inputs))

    def twin(self) -> Contender:
        """The same model in a second instance."""
        return ModelContender(self._make_twin(), self._make_twin, self.name)
