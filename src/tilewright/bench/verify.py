# pyright: basic
"""Whether a compiled model computes what a reference computes, shape by shape.

The model and the reference get the same seeded inputs at every shape; where the reference refuses a
shape, the other one (onnx's own, in numpy) is asked. How far the outputs may differ is said by
``tolerance``. May import lower packages, numpy and onnx; onnxruntime only through ``peers``. Start
with :func:`verify`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tilewright.bench.compare import first_line, largest_difference
from tilewright.bench.contender import as_arrays
from tilewright.bench.inputs import ModelInputs
from tilewright.bench.peers import PeerOptions, create_peer
from tilewright.bench.shapes import estimated_cost
from tilewright.bench.tolerance import tolerances
from tilewright.ir.graph import Graph
from tilewright.ops.reference_corrections import CORRECTIONS
from tilewright.runtime.model import CompiledModel
from tilewright.support.errors import InputError, TilewrightError, UnsupportedError
from tilewright.support.text import format_sizes

REFERENCES = ("onnxruntime", "onnx")
Progress = Callable[[int, str], None]
Inputs = Mapping[str, np.ndarray[Any, Any]]
Arrays = tuple[np.ndarray[Any, Any], ...]

# Onnx's reference is some hundred times slower than compiled code.
_LONGEST = 0.05

AGREES, DIFFERS, REFUSED, UNREFERENCED = "agrees", "differs", "refused", "no reference"


@dataclass(frozen=True)
class Check:
    """One shape. ``difference`` and ``tolerance`` are those of the worst output.

    ``verdict`` is "agrees", "differs" (also where only one of both sides refuses the shape),
    "refused" by both sides, or "no reference" where no reference could run it.
    """

    sizes: Mapping[str, int]
    verdict: str
    reference: str | None = None
    output: str | None = None
    difference: float | None = None
    tolerance: float | None = None
    note: str | None = None


@dataclass(frozen=True)
class Verification:
    """All checks of one model."""

    checks: tuple[Check, ...]
    seed: int

    @property
    def is_right(self) -> bool:
        """Whether nothing differs, and something was compared."""
        verdicts = [check.verdict for check in self.checks]
        return DIFFERS not in verdicts and AGREES in verdicts

    def count(self, verdict: str) -> int:
        """How many checks came out so."""
        return sum(check.verdict == verdict for check in self.checks)


class References:
    """The reference asked for and, where it refuses, the others; each is loaded when needed.

    ``constants`` are inputs of the ONNX file that are the same in all calls.
    """

    def __init__(
        self, model: Path, first: str, threads: int, constants: Inputs | None = None
    ) -> None:
        if first not in REFERENCES:
            raise InputError(
                f"There is no reference called {first!r}.",
                hint=f"Choose from {', '.join(REFERENCES)}",
            )
        self._model = model
        self._threads = threads
        self._constants = constants or {}
        self._order = (first, *(name for name in REFERENCES if name != first))
        self._loaded: dict[str, Callable[[Inputs], Arrays] | str] = {}

    def run(self, inputs: Inputs, seconds: float) -> tuple[str, Arrays] | str:
        """The name of the reference that ran and its outputs, or why none did.

        A second choice is not asked where the model itself is estimated to take many ``seconds``.
        """
        reasons: list[str] = []
        for name in self._order_for(inputs):
            if reasons and seconds > _LONGEST:
                reasons.append(f"{name}: not asked, it would take long")
                continue
            outcome = self._run(name, inputs)
            if not isinstance(outcome, str):
                return name, outcome
            reasons.append(f"{name}: {outcome}")
        return "; ".join(reasons)

    def first(self, inputs: Inputs) -> tuple[str, Arrays | str]:
        """The first reference that can load the model, and its outputs or why it refuses.

        If none can, the last one and the reason.
        """
        found: tuple[str, Arrays | str] = ("", "there is no reference")
        for name in self._order_for(inputs):
            found = name, self._run(name, inputs)
            if not isinstance(self._loaded[name], str):
                break
        return found

    def _order_for(self, inputs: Inputs) -> tuple[str, ...]:
        """Onnx's own first where an input is empty: there an LSTM ends ONNX Runtime's process."""
        if any(array.size == 0 for array in inputs.values()):
            return ("onnx", *(name for name in self._order if name != "onnx"))
        return self._order

    def _run(self, name: str, inputs: Inputs) -> Arrays | str:
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        call = self._loaded[name]
        if isinstance(call, str):
            return call
        # A reference may raise any error of its own; it only means that it has no answer.
        try:
            return call({**inputs, **self._constants})
        except Exception as error:
            return first_line(error)

    def _load(self, name: str) -> Callable[[Inputs], Arrays] | str:
        try:
            if name == "onnxruntime":
                return create_peer(name, self._model, PeerOptions(self._threads)).outputs
            return _OnnxReference(self._model)
        except UnsupportedError as error:
            return error.message
        except Exception as error:
            return first_line(error)


class _OnnxReference:
    """The model in onnx's reference implementation, with the corrections of its known mistakes."""

    def __init__(self, model: Path) -> None:
        self._evaluator = ReferenceEvaluator(onnx.load(model), new_ops=list(CORRECTIONS))

    def __call__(self, inputs: Inputs) -> Arrays:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return as_arrays(list(self._evaluator.run(None, dict(inputs))))


def verify(
    model: CompiledModel,
    graph: Graph,
    references: References,
    inputs: ModelInputs,
    shapes: Sequence[Mapping[str, int]],
    *,
    progress: Progress | None = None,
) -> Verification:
    """Compare ``model`` with the references at every shape.

    ``graph`` is the model's graph with its narrow products, for the tolerances; every shape has a
    seed of its own. ``progress`` is called before each shape with the number done and the shape as
    text.
    """
    checks: list[Check] = []
    for index, sizes in enumerate(shapes):
        if progress is not None:
            progress(index, format_sizes(list(sizes.items())))
        feeds = inputs.at(sizes, inputs.seed + index)
        checks.append(_check(model, graph, references, feeds, sizes))
    return Verification(tuple(checks), inputs.seed)


def _check(
    model: CompiledModel,
    graph: Graph,
    references: References,
    inputs: Inputs,
    sizes: Mapping[str, int],
) -> Check:
    try:
        actual = model.run(inputs)
    except TilewrightError as error:
        return _refused(sizes, error, references.first(inputs))
    answer = references.run(inputs, estimated_cost(model, sizes).seconds)
    if isinstance(answer, str):
        return Check(sizes, UNREFERENCED, note=answer)
    name, expected = answer
    return _compared(sizes, name, actual, expected, tolerances(graph, sizes))


def _refused(
    sizes: Mapping[str, int], error: TilewrightError, first: tuple[str, Arrays | str]
) -> Check:
    """A shape that the model refuses, and what the first reference says of it.

    No other is asked: onnx's own computes something even for images smaller than their window.
    """
    name, outcome = first
    if isinstance(outcome, str):
        return Check(sizes, REFUSED, note=f"{error.message}; {name}: {outcome}")
    return Check(sizes, DIFFERS, name, note=f"only {name} runs it: {error.message}")


def _compared(
    sizes: Mapping[str, int],
    reference: str,
    actual: Mapping[str, Any],
    expected: Arrays,
    allowed: Mapping[str, float],
) -> Check:
    """The worst of the outputs, by how far it exceeds its tolerance."""
    worst: tuple[float, str, float, float] | None = None
    for (name, own), other in zip(actual.items(), expected, strict=True):
        tolerance = allowed.get(name, 0.0)
        difference = _difference(np.asarray(own), np.asarray(other))
        excess = difference - tolerance if tolerance == 0.0 else difference / tolerance - 1.0
        if worst is None or excess > worst[0]:
            worst = (excess, name, difference, tolerance)
    if worst is None:
        return Check(sizes, AGREES, reference)
    excess, name, difference, tolerance = worst
    verdict = AGREES if excess <= 0.0 else DIFFERS
    return Check(sizes, verdict, reference, name, difference, tolerance)


def _difference(own: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """Relative to the largest magnitude, in steps for integers; infinite for what cannot be."""
    if own.dtype != other.dtype or own.shape != other.shape:
        return float("inf")
    if own.dtype.kind in "OUSTb":
        return 0.0 if bool(np.all(own == other)) else float("inf")
    if own.dtype.kind in "iu":
        differing = own != other
        apart = own[differing].astype(np.float64) - other[differing].astype(np.float64)
        return float(np.abs(apart).max(initial=float(differing.any())))
    if own.dtype.kind == "c":
        own, other = np.stack([own.real, own.imag]), np.stack([other.real, other.imag])
    return largest_difference([own], [other])
