# pyright: basic
"""OpenVINO on the CPU, told to use 32-bit floating point and to care for latency.

Imports openvino at the top: load this module only when the peer is asked for.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import openvino

from tilewright.bench.contender import Call, Contender, Inputs
from tilewright.bench.operators import Problem
from tilewright.bench.peers import PeerOptions
from tilewright.bench.peers.operators import Prepared


class OpenVino:
    """One compiled model with one inference request, inputs and outputs shared without copies."""

    name = "openvino"

    def __init__(self, model: Path, options: PeerOptions) -> None:
        self._model = model
        self._options = options
        self._compiled = openvino.Core().compile_model(
            str(model), "CPU", _settings(options.threads)
        )
        self._request = self._compiled.create_infer_request()
        self._names = {name for port in self._compiled.inputs for name in port.get_names()}

    def prepare(self, inputs: Inputs) -> Call:
        """A run of the request on these inputs."""
        feeds = {name: array for name, array in inputs.items() if name in self._names}
        return partial(self._request.infer, feeds, share_inputs=True, share_outputs=True)

    def outputs(self, inputs: Inputs) -> tuple[np.ndarray, ...]:
        """Copies of the outputs, in the order of the model."""
        self.prepare(inputs)()
        return tuple(
            np.array(self._request.get_output_tensor(index).data)
            for index in range(len(self._compiled.outputs))
        )

    def twin(self) -> Contender:
        """The model compiled once more."""
        return OpenVino(self._model, self._options)


def _settings(threads: int) -> dict[str, str]:
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": str(threads),
    }


def create(model: Path, options: PeerOptions) -> Contender:
    """The file `model`, compiled."""
    return OpenVino(model, options)


def prepare_operator(problem: Problem, threads: int) -> Prepared:
    """One problem compiled, with a request on its inputs and on the room for its results."""
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(problem.model), "CPU", _settings(threads))
    request = compiled.create_infer_request()
    for name, array in (*problem.inputs.items(), *problem.results.items()):
        request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
    call = partial(request.infer, share_outputs=True)

    def outputs() -> tuple[np.ndarray, ...]:
        call()
        return tuple(problem.results.values())

    return Prepared(call, outputs)
