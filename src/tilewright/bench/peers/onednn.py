# pyright: basic
"""oneDNN, through the prepacked linear and convolution operators that torch.compile uses.

Weights are packed beforehand. A linear layer has its batch in front, so a product whose left
operand is constant is computed transposed, on data stored that way. Convolutions get their data as
it is or channels-last, whichever is faster; their result is channels-last. There is no packed
operator for two operands that come at run time. Imports torch at the top: load this module only
when the peer is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from tilewright.bench.operators import Problem
from tilewright.bench.peers.operators import Prepared

_TRIES, _LONG = 4, 0.1  # calls, seconds


def prepare_operator(problem: Problem, threads: int) -> Prepared | None:
    """The contraction with packed weights; None for operands at run time and for models."""
    if problem.weight is None:
        return None
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    if problem.case.kind == "conv":
        return _prepare_convolution(problem)
    return _prepare_linear(problem)


def _prepare_linear(problem: Problem) -> Prepared:
    left = problem.constant == "left"
    name, array = next(iter(problem.inputs.items()))
    weight = torch.from_numpy(problem.weight)
    data = torch.from_numpy(array)
    is_transposed = problem.case.sizes[f"trans_{name}"] == 1
    if is_transposed != left:
        # Rows of the batch are contiguous, as a linear layer wants them.
        data = data.t().contiguous()
    filters = weight if left else weight.t().contiguous()
    packed = torch.ops.mkldnn._reorder_linear_weight(filters, data.shape[0])
    call = partial(torch.ops.mkldnn._linear_pointwise, data, packed, None, "none", [], "")

    def outputs() -> tuple[np.ndarray, ...]:
        result = call()
        return ((result.t() if left else result).numpy(),)

    return Prepared(call, outputs)


def _prepare_convolution(problem: Problem) -> Prepared:
    s = problem.case.sizes
    geometry = (
        [s["pad_h"], s["pad_w"]],
        [s["stride_h"], s["stride_w"]],
        [s["dilation"]] * 2,
        s["groups"],
    )
    data = torch.from_numpy(problem.inputs["x"])
    packed = torch.ops.aten.mkldnn_reorder_conv2d_weight(
        torch.from_numpy(problem.weight).to_mkldnn(), *geometry, list(data.shape)
    )

    def convolve(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        operator = torch.ops.mkldnn._convolution_pointwise
        return partial(operator, tensor, packed, None, *geometry, "none", [], "")

    call = convolve(data)
    channels_last = convolve(data.contiguous(memory_format=torch.channels_last))
    if _seconds(channels_last) < _seconds(call):
        call = channels_last
    return Prepared(call, lambda: (call().numpy(),))


def _seconds(call: Callable[[], object]) -> float:
    """The fastest of a few calls; one alone if it is long."""
    fastest = float("inf")
    for _ in range(_TRIES):
        started = time.perf_counter()
        call()
        fastest = min(fastest, time.perf_counter() - started)
        if fastest > _LONG:
            break
    return fastest
