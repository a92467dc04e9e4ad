"""The ONNX project's cases for elementwise operators, reductions, normalisations, quantisation."""

from __future__ import annotations

from functools import cache

import pytest

from support.node_suite import Outcome, cases_of, run_suite

OPERATORS = [
    "Abs",
    "Acos",
    "Acosh",
    "Add",
    "And",
    "ArgMax",
    "ArgMin",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "BatchNormalization",
    "BitShift",
    "BitwiseAnd",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseXor",
    "Cast",
    "CastLike",
    "Ceil",
    "Celu",
    "Clip",
    "Cos",
    "Cosh",
    "CumProd",
    "CumSum",
    "DequantizeLinear",
    "Div",
    "Dropout",
    "DynamicQuantizeLinear",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "Greater",
    "GreaterOrEqual",
    "GroupNormalization",
    "HardSigmoid",
    "HardSwish",
    "Hardmax",
    "Identity",
    "InstanceNormalization",
    "IsInf",
    "IsNaN",
    "LRN",
    "LayerNormalization",
    "LeakyRelu",
    "Less",
    "LessOrEqual",
    "Log",
    "LogSoftmax",
    "LpNormalization",
    "Max",
    "Mean",
    "MeanVarianceNormalization",
    "Min",
    "Mish",
    "Mod",
    "Mul",
    "Neg",
    "NegativeLogLikelihoodLoss",
    "Not",
    "Or",
    "PRelu",
    "Pow",
    "QuantizeLinear",
    "RMSNormalization",
    "Reciprocal",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
    "Relu",
    "Round",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softmax",
    "SoftmaxCrossEntropyLoss",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Sub",
    "Sum",
    "SwiGLU",
    "Swish",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
    "Where",
    "Xor",
]
# Why a case may have no rule: a type that kernels do not handle, or random numbers.
REASONS = ("has type", "random")


@cache
def outcomes() -> tuple[Outcome, ...]:
    return tuple(run_suite(OPERATORS))


@pytest.mark.parametrize("operator", OPERATORS)
def test_cases_pass_or_have_a_reason(operator: str) -> None:
    own = [o for o in outcomes() if o.operator == operator]
    bad = [
        f"{o.case}: {o.verdict} {o.detail}"
        for o in own
        if o.verdict not in ("pass", "not a tensor")
        and not (o.verdict == "no rule" and any(reason in o.detail for reason in REASONS))
    ]
    assert any(o.verdict == "pass" for o in own)
    assert not bad, "\n".join(bad)


def test_every_case_is_looked_at() -> None:
    assert len(outcomes()) == len(cases_of(OPERATORS)) >= 800
