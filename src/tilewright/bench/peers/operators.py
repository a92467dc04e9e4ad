"""The engines to compare single operators with, each loaded only when asked for.

An engine gets a `Problem` (one case with all sizes fixed) and makes a `Prepared`: a call without
arguments, and a way to look at its result. Start with `prepare_peer`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from tilewright.bench.operators import Problem
from tilewright.support.errors import InputError, UnsupportedError

_MODULES: Mapping[str, tuple[str, str]] = {
    "onnxruntime": ("tilewright.bench.peers.onnx_runtime", "onnxruntime"),
    "openvino": ("tilewright.bench.peers.open_vino", "openvino"),
    "onednn": ("tilewright.bench.peers.onednn", "torch"),
    "torch": ("tilewright.bench.peers.torch_operators", "torch"),
}

OPERATOR_PEERS: tuple[str, ...] = tuple(_MODULES)


@dataclass(frozen=True)
class Prepared:
    """A problem that can be run.

    ``call`` runs it; ``outputs`` runs it and gives the results in the order of the model's outputs
    and axes, valid until any other engine runs.
    """

    call: Callable[[], object]
    outputs: Callable[[], tuple[np.ndarray[Any, Any], ...]]


def load_peers(names: Sequence[str]) -> dict[str, ModuleType]:
    """The modules of the peers named.

    Raises InputError for a name that is not known and UnsupportedError for what is not installed.
    """
    loaded: dict[str, ModuleType] = {}
    for name in names:
        if name not in _MODULES:
            raise InputError(
                f"There is no peer called {name!r}.",
                hint=f"choose among {', '.join(OPERATOR_PEERS)}",
            )
        module, package = _MODULES[name]
        try:
            loaded[name] = importlib.import_module(module)
        except ImportError as error:
            raise UnsupportedError(
                f"The peer {name} cannot be loaded: {error}.",
                hint=f'Install it with "pip install {package}", or leave out --against',
            ) from error
    return loaded


def prepare_peer(module: ModuleType, problem: Problem, threads: int) -> Prepared | None:
    """The problem in one engine; None if the engine has no way to do it."""
    prepared: Prepared | None = module.prepare_operator(problem, threads)
    return prepared
