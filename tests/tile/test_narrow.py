"""Narrow forms of products as variants: which are kept where, and that all of them are right."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tilewright.backend.cpu.machine import host_level
from tilewright.compile import Compilation, compile_stages
from tilewright.runtime.model import CompiledModel


def product(depth: int, columns: int, kind: str = "weights") -> onnx.ModelProto:
    """x [m, depth] by weights, a normalisation behind it or not, or by y [b, depth, columns]."""
    texts = {
        "weights": f"(float[m, {depth}] x) => (float[m, n] z) {{ p = MatMul(x, w) z = Relu(p) }}",
        "rows": f"(float[m, {depth}] x) => (float[m, n] z) "
        "{ p = MatMul(x, w) q = ReduceMax<axes = [-1]>(p) z = Sub(p, q) }",
        "computed": f"(float[b, m, {depth}] x, float[b, {depth}, {columns}] y) => "
        "(float[b, m, n] z) { p = MatMul(x, y) z = Relu(p) }",
    }
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 17]> made {texts[kind]}')
    if kind != "computed":
        weights = np.random.default_rng(0).standard_normal((depth, columns), np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return model


def chosen(made: Compilation, level: str, rows: int, threads: int = 1) -> str:
    """The variant of the first kernel that is taken for so many rows."""
    variants = made.levels[level].lowered[0].variants
    sizes = {"m": rows, "_threads": threads}
    return min(variants, key=lambda variant: variant.cost.evaluate(sizes)).name


def is_narrow(name: str) -> bool:
    return "bfloat16" in name or "uint8" in name


@pytest.mark.parametrize(
    ("target", "level", "precision", "rows", "narrow"),
    [
        ("zen4", "avx512-vnni", "int8", 512, True),
        ("zen4", "avx512-bf16", "bfloat16", 512, True),
        # Without instructions, words are taken apart: that pays for one row of weights that come
        # from memory, and for bytes.
        ("zen3", "avx2", "bfloat16", 1, True),
        ("zen3", "avx2", "int8", 512, True),
        ("sapphire-rapids", "avx512-amx", "int8", 512, True),
        ("sapphire-rapids", "avx512-amx", "bfloat16", 512, True),
    ],
)
def test_the_unit_is_chosen_by_shape_and_level(
    target: str, level: str, precision: str, rows: int, narrow: bool
) -> None:
    made = compile_stages(
        product(2048, 4096),
        precision=precision,  # type: ignore[arg-type]
        target=target,
        levels=[level],  # type: ignore[list-item]
        dims={"m": (0, 1024)},
    )
    assert is_narrow(chosen(made, level, rows)) is narrow


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["weights", "rows", "computed"])
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_results_are_within_the_tolerance(kind: str, precision: str) -> None:
    depth, columns = 64, 72
    model = product(depth, columns, kind)
    for level in ("avx2", host_level("uint8" if precision == "int8" else precision).name):
        made = compile_stages(
            model,
            precision=precision,  # type: ignore[arg-type]
            levels=[level],  # type: ignore[list-item]
            dims={"m": (0, 4096)},
        )
        compiled = CompiledModel.from_contents(made.contents)
        for rows in (0, 1, 2, 5, 31, 32, 33, 257):
            random = np.random.default_rng(rows)
            if kind == "computed":
                x = random.standard_normal((3, rows, depth), np.float32)
                y = random.standard_normal((3, depth, columns), np.float32)
                got, want = compiled(x, y), np.maximum(x.astype(np.float64) @ y, 0)
            else:
                x = random.standard_normal((rows, depth), np.float32)
                got = compiled(x)
                want = x.astype(np.float64) @ numpy_helper.to_array(model.graph.initializer[0])
                largest = want.max(1, keepdims=True)
                want = want - largest if kind == "rows" else np.maximum(want, 0)
            bound = 4 * np.sqrt(3 * 2.0**-14) * np.abs(want).max(initial=0)
            assert np.abs(got - want).max(initial=0) <= bound, f"{level}, {rows} rows"
