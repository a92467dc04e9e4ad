# pyright: basic
"""PyTorch with torch.compile: frozen weights, shapes made dynamic from the second one on.

Imports torch and transformers: load this module only when the peer is asked for.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch._inductor.config as inductor

from tilewright.bench.contender import Contender
from tilewright.bench.peers import PeerOptions
from tilewright.bench.peers.torch_eager import TorchContender, find_module


def create(model: Path, options: PeerOptions) -> Contender:
    """The module that the file `model` was exported from, compiled at its first call."""
    found = find_module(model)
    # Frozen weights are what makes torch.compile competitive on a CPU, so the peer gets them.
    inductor.freezing = True
    return TorchContender("torch-compile", torch.compile(found.module), found.input_names, options)
