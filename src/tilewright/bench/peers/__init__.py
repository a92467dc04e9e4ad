"""The engines to compare with, each in a module of its own that is loaded only when asked for.

Every peer gets the same number of threads and 32-bit floating point. `create_peer` raises an error
for people where a peer is not installed or cannot run the model; `create_peers` collects those
instead. Start here; each module has one class that fulfils `Contender`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.bench.contender import Contender, Fixed, Inputs
from tilewright.bench.report import Failure
from tilewright.support.errors import InputError, TilewrightError, UnsupportedError


@dataclass(frozen=True)
class PeerOptions:
    """What every peer is set up with: threads, and inputs that are the same in all calls."""

    threads: int
    constants: Inputs = field(default_factory=dict[str, Any])


_MODULES: Mapping[str, tuple[str, str]] = {
    "onnxruntime": ("tilewright.bench.peers.onnx_runtime", "onnxruntime"),
    "openvino": ("tilewright.bench.peers.open_vino", "openvino"),
    "torch": ("tilewright.bench.peers.torch_eager", "torch and transformers"),
    "torch-compile": ("tilewright.bench.peers.torch_compiled", "torch and transformers"),
}

PEERS: tuple[str, ...] = tuple(_MODULES)


def create_peer(name: str, model: Path, options: PeerOptions) -> Contender:
    """The peer called `name` with the ONNX file `model` loaded.

    Raises InputError for an unknown name and UnsupportedError where the peer is not installed or
    has no way to run this model.
    """
    if name not in _MODULES:
        raise InputError(
            f"There is no peer called {name!r}.", hint=f"Choose among {', '.join(PEERS)}."
        )
    module_name, packages = _MODULES[name]
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UnsupportedError(
            f"The peer {name} cannot be loaded: {error}.",
            hint=f'Install it with "pip install {packages}"',
        ) from error
    peer: Contender = module.create(model, options)
    return Fixed(peer, options.constants) if options.constants else peer


def create_peers(
    names: Sequence[str], model: Path, options: PeerOptions
) -> tuple[tuple[Contender, ...], tuple[Failure, ...]]:
    """The peers that can run `model`, and a failure with its reason for each of the others.

    Raises InputError for an unknown name.
    """
    peers: list[Contender] = []
    failures: list[Failure] = []
    for name in names:
        try:
            peers.append(create_peer(name, model, options))
        except InputError:
            raise
        except TilewrightError as error:
            failures.append(Failure(name, error.message))
        # An engine refuses a model with an error of its own class.
        except Exception as error:
            failures.append(Failure(name, f"{type(error).__name__}: {error}"))
    return tuple(peers), tuple(failures)
