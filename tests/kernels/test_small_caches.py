"""Convolutions on machines whose second cache holds hardly anything.

What a task of them keeps in cache follows from the description of the machine, so these are other
programs; their results are the same.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

from tilewright.compile import compile_stages
from tilewright.ir.product_nest import ProductNest
from tilewright.policy.candidates import task_room
from tilewright.runtime.model import CompiledModel
from tilewright.target import Target, detect, preset
from tilewright.tile.variants import THREADS

FORMS = {
    "of few channels, with a stride": ("3", "5, 3, 7, 7", "strides=[2, 2], pads=[3, 3, 3, 3]"),
    "in Winograd's form": ("17", "19, 17, 3, 3", "pads=[1, 1, 1, 1]"),
    "of one tap, with a stride": ("33", "18, 33, 1, 1", "strides=[2, 2]"),
    "with gaps between taps": ("9", "7, 9, 3, 3", "dilations=[2, 2], pads=[2, 2, 2, 2]"),
}
TINY = 2 << 10  # bytes


def with_second_cache(target: Target, capacity: int) -> Target:
    """The machine with so many bytes in its second cache, and no less in those behind."""
    levels = tuple(
        replace(level, capacity=capacity if level.name == "L2" else max(level.capacity, capacity))
        if level.name not in ("registers", "L1", target.levels[-1].name)
        else level
        for level in target.levels
    )
    return replace(target, levels=levels)


def convolution(form: str) -> onnx.ModelProto:
    channels, weights, attributes = FORMS[form]
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[n, {channels}, h, w] x) => (float[n, k, p, q] y)
        <float[{weights}] f = {{{", ".join(_weights(weights))}}}>
        {{ y = Conv <{attributes}> (x, f) }}"""
    )


def _weights(shape: str) -> list[str]:
    count = int(np.prod([int(size) for size in shape.split(",")]))
    values = np.random.default_rng(0).integers(-8, 9, count) / 8
    return [f"{value:.3f}" for value in values]


@pytest.mark.parametrize("form", FORMS)
def test_results_do_not_depend_on_the_cache(form: str) -> None:
    model = convolution(form)
    dims = {name: (0, 64) for name in ("n", "h", "w")}
    target = with_second_cache(detect(), TINY)
    made = compile_stages(model, dims=dims, fallback="error", target=target)
    compiled = CompiledModel.from_contents(made.contents, num_threads=2)
    reference = ReferenceEvaluator(model)
    generator = np.random.default_rng(1)
    for batch, height, width in ((1, 7, 7), (2, 17, 13), (3, 31, 64), (0, 8, 8)):
        shape = (batch, int(FORMS[form][0]), height, width)
        x = generator.integers(-4, 5, shape).astype(np.float32)
        (wanted,) = reference.run(None, {"x": x})
        assert isinstance(wanted, np.ndarray)
        np.testing.assert_allclose(compiled(x), wanted, rtol=1e-4, atol=1e-3)


def test_a_larger_second_cache_gives_larger_blocks() -> None:
    """Pixels of a block of a convolution of taps that are gathered."""
    model = convolution("with gaps between taps")
    rows: list[int] = []
    for capacity in (8 << 10, 64 << 10, 1 << 20):
        made = compile_stages(model, target=with_second_cache(detect(), capacity))
        (level,) = made.levels.values()
        nests = [
            ProductNest.find(step.program)
            for kernel in level.lowered
            for variant in kernel.variants
            if variant.name == "gathered"
            for step in variant.steps
        ]
        sizes = {"n": 8, "h": 64, "w": 64, THREADS: 1}
        nest = next(nest for nest in nests if nest is not None)
        rows.append(nest.rows.block.evaluate(sizes))
    assert rows == sorted(set(rows))


def test_what_tasks_may_keep_is_a_share_of_the_second_cache() -> None:
    assert task_room(preset("zen3")) == 384 << 10
    assert task_room(preset("zen4")) == 768 << 10
