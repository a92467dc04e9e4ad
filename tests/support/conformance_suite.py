"""The ONNX backend test suite as plain cases: a model, and inputs with expected outputs.

:func:`load_cases` gives the cases of one kind; :func:`check_outputs` compares with the suite's own
tolerances. Used by the tests and by ``run_suite.py``.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import DATA_DIR, load_model_tests
from onnx.backend.test.runner import Runner

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "light")
DataSet = tuple[list[Any], list[Any]]


@dataclass(frozen=True)
class Case:
    """One model with its data sets and tolerances."""

    name: str
    kind: str
    model: onnx.ModelProto
    data_sets: tuple[DataSet, ...]
    rtol: float
    atol: float


def _plain(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def node_cases() -> list[Case]:
    """The cases of kind "node", which onnx makes in memory."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        rows = load_model_tests(kind="node")
    cases: list[Case] = []
    for row in rows:
        assert row.model is not None and row.data_sets is not None
        data = tuple(([_plain(i) for i in a], [_plain(o) for o in b]) for a, b in row.data_sets)
        cases.append(Case(row.name, "node", row.model, data, row.rtol, row.atol))
    return cases


def _read(path: Path, kind: onnx.TypeProto) -> Any:
    data = path.read_bytes()
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def file_cases(kind: str) -> Iterator[Case]:
    """The cases of a kind that are kept as files."""
    for row in sorted(load_model_tests(kind=kind), key=_name):
        if row.model_dir is None:
            continue
        folder = Path(row.model_dir)
        model = onnx.load(folder / "model.onnx")
        graph = model.graph
        sets: list[DataSet] = []
        for data in sorted(folder.glob("test_data_set*")):
            inputs = [
                _read(data / f"input_{i}.pb", graph.input[i].type)
                for i in range(len(list(data.glob("input_*.pb"))))
            ]
            outputs = [
                _read(data / f"output_{i}.pb", graph.output[i].type)
                for i in range(len(list(data.glob("output_*.pb"))))
            ]
            sets.append((inputs, outputs))
        yield Case(row.name, kind, model, tuple(sets), row.rtol, row.atol)


def _name(row: Any) -> str:
    return str(row.name)


def light_cases() -> Iterator[Case]:
    """The light models: real topologies, made-up weights, one recorded output each."""
    folder = Path(DATA_DIR) / "light"
    for path in sorted(folder.glob("*.onnx")):
        model = onnx.load(path)
        weights = {i.name for i in model.graph.initializer}
        inputs = [
            Runner.generate_dummy_data(v, seed=0, name=path.stem, random=False)
            for v in model.graph.input
            if v.name not in weights
        ]
        recorded = path.with_name(f"{path.stem}_output_0.pb")
        expected = numpy_helper.to_array(onnx.TensorProto.FromString(recorded.read_bytes()))
        yield Case(path.stem, "light", model, ((inputs, [expected]),), 1e-3, 1e-7)


def load_cases(kind: str) -> Iterator[Case]:
    """The cases of one of ``KINDS``."""
    if kind == "node":
        return iter(node_cases())
    return light_cases() if kind == "light" else file_cases(kind)


def input_names(model: onnx.ModelProto) -> list[str]:
    """The inputs that a caller gives, in order."""
    weights = {i.name for i in model.graph.initializer}
    return [v.name for v in model.graph.input if v.name not in weights]


RANDOM = ("test_bernoulli",)  # what these compute is random: only types and shapes can agree


def check_outputs(case: Case, expected: Sequence[Any], actual: Sequence[Any]) -> None:
    """Raise ``AssertionError`` unless the outputs agree within the suite's tolerances."""
    for one, other in zip(expected, actual, strict=True):
        _check_value(case, one, other)


def _check_value(case: Case, expected: Any, actual: Any) -> None:
    if expected is None or actual is None:
        assert expected is None and actual is None, f"{actual!r} instead of {expected!r}"
    elif isinstance(expected, list | tuple):
        assert isinstance(actual, list | tuple), f"a {type(actual).__name__} is not a sequence"
        check_outputs(case, expected, actual)
    elif case.name.startswith(RANDOM):
        want, have = np.asarray(expected), np.asarray(actual)
        assert (want.dtype, want.shape) == (have.dtype, have.shape), f"{have.dtype}{have.shape}"
    else:
        Runner.assert_similar_outputs([expected], [np.asarray(actual)], case.rtol, case.atol)
