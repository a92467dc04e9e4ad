# pyright: basic
"""ONNX Runtime on the CPU, all graph optimisations on.

Imports onnxruntime at the top: load this module only when the peer is asked for.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime

from tilewright.bench.contender import Call, Contender, Inputs, as_arrays
from tilewright.bench.operators import Problem
from tilewright.bench.peers import PeerOptions
from tilewright.bench.peers.operators import Prepared


class OnnxRuntime:
    """One inference session."""

    name = "onnxruntime"

    def __init__(self, model: Path, options: PeerOptions) -> None:
        self._model = model
        self._options = options
        self._session = _session(str(model), options.threads)
        self._names = {value.name for value in self._session.get_inputs()}

    def prepare(self, inputs: Inputs) -> Call:
        """A run of the session on these inputs."""
        feeds = {name: array for name, array in inputs.items() if name in self._names}
        return partial(self._session.run, None, feeds)

    def outputs(self, inputs: Inputs) -> tuple[np.ndarray, ...]:
        """The outputs, in the order of the model."""
        return as_arrays(self.prepare(inputs)())

    def twin(self) -> Contender:
        """A second session with threads of its own."""
        return OnnxRuntime(self._model, self._options)


def _session(model: str | bytes, threads: int) -> onnxruntime.InferenceSession:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    settings.log_severity_level = 4  # what it refuses, it raises
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    return onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])


def create(model: Path, options: PeerOptions) -> Contender:
    """A session on the file `model`."""
    return OnnxRuntime(model, options)


def prepare_operator(problem: Problem, threads: int) -> Prepared:
    """A session on one problem, bound to its inputs and to the room for its results."""
    session = _session(problem.model, threads)
    binding = session.io_binding()
    for name, array in problem.inputs.items():
        binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    for name, array in problem.results.items():
        binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    call = partial(session.run_with_iobinding, binding)

    def outputs() -> tuple[np.ndarray, ...]:
        call()
        return tuple(problem.results.values())

    return Prepared(call, outputs)
