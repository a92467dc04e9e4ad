"""Runs Triton kernels: on a GPU where PyTorch finds one, else under Triton's interpreter.

A process of its own, as that is chosen when Triton is imported. It writes the name of the GPU or
None, then reads launches from its input and writes results to its output, all pickled; see
``gpu_kit``.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from typing import IO, Any

import ml_dtypes
import numpy as np
import torch

from tilewright.backend.gpu.kernel import load_function
from tilewright.backend.gpu.offline import compile_source


def run(job: dict[str, Any], device: torch.device) -> list[np.ndarray[Any, Any]]:
    """All buffers of a launch as they are afterwards, borders included."""
    buffers = [tensor(buffer).to(device) for buffer in job["buffers"]]
    border, launch = job["border"], job["launch"]
    pointers = [buffer[border : len(buffer) - border] for buffer in buffers]
    if device.type == "cuda":
        launch_compiled(job, pointers)
    else:
        function = load_function(job["name"], job["source"])
        with np.errstate(all="ignore"):
            function[(launch.tasks,)](*pointers, *job["sizes"], **launch.constants)
    return [array(b, a.dtype) for b, a in zip(buffers, job["buffers"], strict=True)]


def launch_compiled(job: dict[str, Any], pointers: list[torch.Tensor]) -> None:
    """Launch the code that serves other sizes as well, not what Triton would make for these."""
    major, minor = torch.cuda.get_device_capability()
    launch, source = job["launch"], (job["name"], job["source"], job["signature"])
    made = compile_source(*source, launch, 10 * major + minor)
    made[(launch.tasks, 1, 1)](*pointers, *job["sizes"], *launch.constants.values())
    torch.cuda.synchronize()


def tensor(buffer: np.ndarray[Any, Any]) -> torch.Tensor:
    """The elements of an array, whose type numpy may have from ``ml_dtypes``."""
    if buffer.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(buffer.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(buffer)


def array(buffer: torch.Tensor, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The elements of a tensor."""
    if dtype == ml_dtypes.bfloat16:
        return buffer.cpu().view(torch.int16).numpy().view(dtype)
    return buffer.cpu().numpy()


def main() -> None:
    """Answers until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the interpreter prints is no answer
    torch.set_num_threads(1)
    gpu = torch.cuda.is_available()
    if not gpu:
        os.environ["TRITON_INTERPRET"] = "1"
    send(answers, torch.cuda.get_device_name() if gpu else None)
    device = torch.device("cuda" if gpu else "cpu")
    while True:
        try:
            job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: Any = run(job, device)
        except Exception:
            answer = traceback.format_exc()
        send(answers, answer)


def send(answers: IO[bytes], answer: Any) -> None:
    """To the process that waits for it."""
    pickle.dump(answer, answers)
    answers.flush()


if __name__ == "__main__":
    main()
