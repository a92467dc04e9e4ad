# pyright: basic
"""PyTorch without compilation, one operator at a time.

Imports torch at the top: load this module only when the peer is asked for.
"""

from __future__ import annotations

from functools import partial

import torch

from tilewright.bench.operators import Problem
from tilewright.bench.peers.operators import Prepared
from tilewright.bench.peers.torch_functions import prepare_attention, prepare_model


def prepare_operator(problem: Problem, threads: int) -> Prepared:
    """The problem as calls of PyTorch's functions on tensors that share the memory."""
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    match problem.case.kind:
        case "memory":
            return prepare_model(problem)
        case "attention":
            return prepare_attention(problem)
        case _:
            return _prepare_contraction(problem)


def _prepare_contraction(problem: Problem) -> Prepared:
    """A call of matmul, linear or conv2d."""
    sizes = problem.case.sizes
    if problem.case.kind == "conv":
        call = partial(
            torch.nn.functional.conv2d,
            torch.from_numpy(problem.inputs["x"]),
            torch.from_numpy(problem.weight),
            None,
            (sizes["stride_h"], sizes["stride_w"]),
            (sizes["pad_h"], sizes["pad_w"]),
            (sizes["dilation"], sizes["dilation"]),
            sizes["groups"],
        )
        return Prepared(call, lambda: (call().numpy(),))
    operands: dict[str, torch.Tensor] = {}
    for name, array in problem.inputs.items():
        tensor = torch.from_numpy(array)
        operands[name] = tensor.transpose(-1, -2) if sizes[f"trans_{name}"] else tensor
    if problem.constant == "right":
        weight = torch.from_numpy(problem.weight).t().contiguous()
        call = partial(torch.nn.functional.linear, operands["a"], weight)
    elif problem.constant == "left":
        call = partial(torch.matmul, torch.from_numpy(problem.weight), operands["b"])
    else:
        call = partial(torch.matmul, operands["a"], operands["b"])
    return Prepared(call, lambda: (call().numpy(),))
