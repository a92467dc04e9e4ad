"""Operators. One record per ONNX operator, with the rule that splits it into primitives.

``record`` defines what a rule sees; the other modules hold the rules by family, and importing this
package registers them all. May import ``support``, ``shape``, ``ir``, numpy and onnx.
"""

from __future__ import annotations

from tilewright.ops import (
    activation,
    attention,
    cast,
    comparison,
    contributed_attention,
    contributed_fusions,
    contributed_products,
    contributed_quantised,
    contributed_recurrent,
    convolution,
    elementwise,
    generate,
    index,
    layout,
    linear_attention,
    matmul,
    normalisation,
    pooling,
    quantised_linear,
    quantize,
    recurrent,
    reduction,
    regions,
    resize,
    sampling,
    slicing,
    softmax,
    spectral,
)

__all__ = [
    "activation",
    "attention",
    "cast",
    "comparison",
    "contributed_attention",
    "contributed_fusions",
    "contributed_products",
    "contributed_quantised",
    "contributed_recurrent",
    "convolution",
    "elementwise",
    "generate",
    "index",
    "layout",
    "linear_attention",
    "matmul",
    "normalisation",
    "pooling",
    "quantised_linear",
    "quantize",
    "recurrent",
    "reduction",
    "regions",
    "resize",
    "sampling",
    "slicing",
    "softmax",
    "spectral",
]
