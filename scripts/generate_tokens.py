"""Generation with a cache of keys and values: the tokens of ONNX Runtime, and what a step costs.

    python scripts/generate_tokens.py                      # learned, rotary, grouped; 60 tokens
    python scripts/generate_tokens.py --tokens 500 --variant rotary --layers 4 --width 512

A decoder with random weights generates tokens one by one, so that every step has a shape that was
never seen before. The tokens are compared with those of ONNX Runtime. Then the same steps run once
more, now at shapes that are known. Both passes are repeated, each time with a model loaded anew;
for each step the least times count, and the median of their ratios is printed: what a new shape
costs. Exit code 1 if any token differs.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime

import tilewright
from tilewright.bench.decoders import VARIANTS, Array, Decoder, Step, generate

PROMPT = 5  # tokens


def reference(decoder: Decoder, threads: int) -> Step:
    """A step of ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    data = decoder.model().SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(None, dict(feeds)), strict=True))


def timed(step: Step, times: list[float]) -> Step:
    """``step``, adding the seconds of each call to ``times``."""

    def run(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        start = time.perf_counter()
        results = step(feeds)
        times.append(time.perf_counter() - start)
        return results

    return run


def check(name: str, decoder: Decoder, options: argparse.Namespace) -> bool:
    """Generate with both, print one line, and say whether the tokens are the same."""
    prompt = np.random.default_rng(1).integers(0, decoder.vocabulary, (options.batch, PROMPT))
    dims = {
        "batch": (1, options.batch),
        "sequence": (1, PROMPT),
        "past": (0, options.tokens + PROMPT),
    }
    wanted = generate(reference(decoder, options.threads), decoder, prompt, options.tokens)
    new: list[list[float]] = []
    known: list[list[float]] = []
    same = True
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "decoder.tw"
        tilewright.compile(decoder.model(), dims=dims).save(path)
        for _ in range(options.repeat):
            model = tilewright.load(path, num_threads=options.threads)
            for rows in (new, known):
                times: list[float] = []
                tokens = generate(timed(model.run, times), decoder, prompt, options.tokens)
                same = same and np.array_equal(tokens, wanted)
                rows.append(times[1:])  # the first step is the prompt
    first, second = ([min(column) for column in zip(*rows, strict=True)] for rows in (new, known))
    ratio = statistics.median(a / b for a, b in zip(first, second, strict=True))
    new_us, known_us = (statistics.median(row) * 1e6 for row in (first, second))
    print(
        f"{name:8} {options.tokens} tokens {'agree' if same else 'DIFFER'}; a step at a new shape "
        f"takes {new_us:.0f} us, at a known one {known_us:.0f} us: {ratio:.2f}",
        flush=True,
    )
    return same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", choices=sorted(VARIANTS), action="append")
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    sizes = {"layers": options.layers, "width": options.width, "vocabulary": options.vocabulary}
    results = [
        check(name, replace(VARIANTS[name], **sizes), options)
        for name in options.variant or VARIANTS
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
