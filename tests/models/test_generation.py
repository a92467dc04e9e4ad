"""Decoders with a cache of keys and values: every step has a new size, and the tokens are right."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

import tilewright
from tilewright.bench.decoders import VARIANTS, generate

pytestmark = [pytest.mark.slow, pytest.mark.peers]

RANGES = {"batch": (0, 4), "sequence": (0, 16), "past": (0, 256)}


def reference(decoder):
    data = decoder.model().SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(None, dict(feeds)), strict=True))


@pytest.mark.parametrize(
    ("name", "dims"), [*((name, RANGES) for name in sorted(VARIANTS)), ("grouped", None)]
)
def test_a_cached_decoder_makes_the_tokens_of_onnx_runtime(name, dims):
    decoder = VARIANTS[name]
    model = tilewright.compile(decoder.model(), dims=dims)
    assert not any(count.opaque for count in model.program.operators)
    prompt = np.random.default_rng(1).integers(0, decoder.vocabulary, (2, 5))
    wanted = generate(reference(decoder), decoder, prompt, 60)
    assert len(np.unique(wanted)) > 10
    assert np.array_equal(generate(model.run, decoder, prompt, 60), wanted)


def test_a_token_beyond_the_learned_positions_is_refused():
    decoder = VARIANTS["learned"]
    model = tilewright.compile(decoder.model(), dims={**RANGES, "past": (0, 2000)})
    past = {name: np.zeros((1, 4, 1024, 16), np.float32) for name in decoder.empty(1)}
    with pytest.raises(tilewright.TilewrightError, match="1024"):
        model.run({"input_ids": np.zeros((1, 1), np.int64), **past})
