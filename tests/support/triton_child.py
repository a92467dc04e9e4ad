"""Runs Triton kernels under Triton's interpreter, which is chosen when Triton is imported.

A process of its own that reads launches from its input and writes results to its output, both
pickled; see ``gpu_kit``.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from typing import Any

import numpy as np
import torch

from tilewright.backend.gpu.kernel import load_function


def view(whole: np.ndarray[Any, Any], border: int) -> torch.Tensor:
    """The tensor inside of the borders of an array."""
    return torch.from_numpy(whole)[border : len(whole) - border]


def run(job: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    """All buffers of a launch as they are afterwards, borders included."""
    function = load_function(job["name"], job["source"])
    buffers = job["buffers"]
    pointers = [view(buffer, job["border"]) for buffer in buffers]
    with np.errstate(all="ignore"):
        function[(job["tasks"],)](*pointers, *job["sizes"], **job["constants"])
    return buffers


def main() -> None:
    """Answers until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the interpreter prints is no answer
    torch.set_num_threads(1)
    while True:
        try:
            job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: Any = run(job)
        except Exception:
            answer = traceback.format_exc()
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
