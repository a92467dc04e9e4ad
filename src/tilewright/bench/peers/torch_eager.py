# pyright: basic
"""PyTorch without compilation, on the module that the ONNX file was exported from.

An ONNX file does not hold a PyTorch module; only a file whose metadata names one of the models
under test (`tilewright.factory`) can be timed. Imports torch and transformers: load this module
only when the peer is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from tilewright.bench.contender import Call, Contender, Inputs
from tilewright.bench.peers import PeerOptions
from tilewright.bench.torch_models import NAMES, TorchModel, build
from tilewright.support.errors import UnsupportedError

FACTORY = "tilewright.factory"


def find_module(model: Path) -> TorchModel:
    """The module that the file names. Raises UnsupportedError for a file that names none."""
    metadata = onnx.load(str(model), load_external_data=False).metadata_props
    name = next((entry.value for entry in metadata if entry.key == FACTORY), None)
    if name not in NAMES:
        raise UnsupportedError(
            "PyTorch cannot run an ONNX file, and this one does not name the module it is from.",
            where=f"metadata {FACTORY} of {model}",
            hint="Export the model with scripts/export_models.py, or leave torch out.",
        )
    return build(name)


class TorchContender:
    """A module, called with its inputs in order; inference mode."""

    def __init__(
        self,
        name: str,
        call: Callable[..., torch.Tensor],
        input_names: tuple[str, ...],
        options: PeerOptions,
    ) -> None:
        self.name = name
        self._call = call
        self._input_names = input_names
        torch.set_num_threads(options.threads)

    def prepare(self, inputs: Inputs) -> Call:
        """A call of the module on tensors that share the inputs' memory."""
        tensors = tuple(torch.from_numpy(inputs[name]) for name in self._input_names)
        return partial(self._run, tensors)

    def _run(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        with torch.inference_mode():
            return self._call(*tensors)

    def outputs(self, inputs: Inputs) -> tuple[np.ndarray, ...]:
        """The one output."""
        result: torch.Tensor = self.prepare(inputs)()  # type: ignore[assignment]
        return (result.numpy(),)

    def twin(self) -> Contender:
        """The module itself: PyTorch has one pool of threads for the whole process."""
        return self


def create(model: Path, options: PeerOptions) -> Contender:
    """The module that the file `model` was exported from."""
    found = find_module(model)
    return TorchContender("torch", found.module, found.input_names, options)
