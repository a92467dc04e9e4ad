"""DynamicQuantizeLSTM: the LSTM that its bytes stand for, and near what ONNX Runtime computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.operator_harness import Array, compare, fission, run
from support.runtime_peer import DOMAIN, byte_range, model_of, runtime
from tilewright.ops.reference import evaluate_payload
from tilewright.support.errors import InvalidModelError

pytestmark = pytest.mark.peers

HIDDEN = 6
CONSTANTS = (1, 2, 3, 7, 8, 9, 10, 11)
# ONNX Runtime makes bytes of the states, which lie between -1 and 1: each is off by half a step at
# most, each sum by what its weights make of that, and a state by what is left of it (a sigmoid
# changes a quarter as fast as its argument). Errors of later steps come from those of earlier ones.
STEP = 2 / 255


def _operands(
    steps: int, batch: int, directions: int, dtype: Any, by_gate: bool, seed: int = 0
) -> list[Array | None]:
    random = np.random.default_rng(seed)
    limits, (low, high) = np.iinfo(dtype), byte_range(dtype)

    def weights(depth: int) -> Array:
        made = random.integers(low, high + 1, (directions, depth, 4 * HIDDEN))
        return np.asarray(made).astype(dtype)

    def floats(*shape: int, scale: float = 1.0) -> Array:
        return np.asarray(random.normal(0, scale, shape), np.float32)

    sizes = (directions, 4 * HIDDEN) if by_gate else (directions,)
    # ONNX Runtime takes one zero point of a direction, which is 0 for each gate of signed weights.
    zero = np.full(
        sizes, 0 if limits.min and by_gate else (limits.max + limits.min) // 2 + 3, dtype
    )
    scales = [np.asarray(random.uniform(0.002, 0.004, sizes), np.float32) for _ in range(2)]
    return [
        floats(steps, batch, 5), weights(5), weights(HIDDEN), floats(directions, 8 * HIDDEN),
        np.asarray(random.integers(0, steps + 1, batch), np.int32),
        floats(directions, batch, HIDDEN, scale=0.3), floats(directions, batch, HIDDEN),
        floats(directions, 3 * HIDDEN, scale=0.1), scales[0], zero, scales[1], zero,
    ]  # fmt: skip


def _floats_of(weights: Array, scale: Array, zero: Array) -> Array:
    """[D, K, 4 * H] of bytes as the weights [D, 4 * H, K] of ONNX's operator."""
    scale, zero = (v.reshape(v.shape[0], 1, -1).astype(np.float64) for v in (scale, zero))
    return ((weights - zero) * scale).transpose(0, 2, 1).astype(np.float32)


def _inputs_as_bytes(x: Array, lengths: Array | None) -> Array:
    """What DynamicQuantizeLinear leaves of the inputs up to the longest sequence's end."""
    reached = x if lengths is None else x[: lengths.max(initial=0)]
    low, high = min(reached.min(initial=0), 0), max(reached.max(initial=0), 0)
    scale = np.float32(high - low) / np.float32(255) if high > low else np.float32(1 / 255)
    zero = np.round(np.clip(-low / scale, 0, 255))
    out = np.zeros_like(x)
    data = np.clip(np.round(reached / scale) + zero, 0, 255)
    out[: len(reached)] = (data - zero) * scale
    return out


def _expected(operands: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    """The LSTM of the reference on the floats that bytes stand for."""
    x, w, r, *rest = operands
    others, (ws, wz, rs, rz) = rest[:5], rest[5:]
    assert x is not None and w is not None and r is not None
    assert ws is not None and wz is not None and rs is not None and rz is not None
    made = [_inputs_as_bytes(x, others[1]), _floats_of(w, ws, wz), _floats_of(r, rs, rz), *others]
    model = model_of("LSTM", made, attributes, 3, domain="")
    given = [v for v in made if v is not None]
    return [np.asarray(v) for v in evaluate_payload(model.SerializeToString(), given)]


@pytest.mark.parametrize("by_gate", [False, True])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_bytes_of_weights(direction: str, dtype: Any, by_gate: bool) -> None:
    directions = 2 if direction == "bidirectional" else 1
    attributes = {"direction": direction, "hidden_size": HIDDEN}
    first = _operands(3, 2, directions, dtype, by_gate)
    graph = fission(
        "DynamicQuantizeLSTM", first, attributes, opset=1, outputs=3, domain=DOMAIN,
        constants=CONSTANTS,
    )  # fmt: skip
    for steps, batch in ((3, 2), (1, 1), (17, 1), (5, 3), (2, 7), (0, 2), (4, 0)):
        operands = _operands(steps, batch, directions, dtype, by_gate)
        for index in CONSTANTS:
            operands[index] = first[index]
        given = [None if i in CONSTANTS else v for i, v in enumerate(operands)]
        found = run(graph, given)
        if min(steps, batch) == 0:
            assert found[0].size == 0
            continue
        wanted = _expected(operands, attributes)
        for own, other in zip(found, wanted, strict=True):
            compare(own, other, length=16 * steps)
        model = model_of("DynamicQuantizeLSTM", operands, attributes, 3, constants=CONSTANTS)
        peer = runtime(model, {f"x{i}": v for i, v in enumerate(given) if v is not None})
        # Of sequences without steps it returns zeros, not the initial states.
        lengths = operands[4]
        assert lengths is not None
        for own, other in zip(found, peer, strict=True):
            assert own.shape == other.shape
            assert np.abs(own - other)[..., lengths > 0, :].max(initial=0) < 2 * STEP


def test_what_may_be_left_out() -> None:
    """A bias, lengths, states and peepholes; and activations are those of the node."""
    attributes = {"hidden_size": HIDDEN, "activations": ["HardSigmoid", "Softsign", "Tanh"]}
    full = _operands(4, 2, 1, np.uint8, False)
    operands = [None if i in (3, 4, 5, 6, 7) else v for i, v in enumerate(full)]
    found = run(
        fission(
            "DynamicQuantizeLSTM", operands, attributes, opset=1, outputs=3, domain=DOMAIN,
            constants=[1, 2, 8, 9, 10, 11],
        ),
        [full[0]],
    )  # fmt: skip
    for own, other in zip(found, _expected(operands, attributes), strict=True):
        compare(own, other, length=64)


def test_scales_of_another_number_of_directions_are_refused() -> None:
    operands = _operands(4, 2, 1, np.uint8, False)
    operands[8] = np.ones((2,), np.float32)
    with pytest.raises(InvalidModelError, match="directions of operand 8"):
        fission("DynamicQuantizeLSTM", operands, {}, opset=1, domain=DOMAIN, constants=CONSTANTS)
    operands[8] = np.ones((1, 1, 1), np.float32)
    with pytest.raises(InvalidModelError, match="3 axes"):
        fission("DynamicQuantizeLSTM", operands, {}, opset=1, domain=DOMAIN, constants=CONSTANTS)
